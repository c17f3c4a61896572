"""Joining the processes that ``torchrun`` started."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from headstart.crew import Crew, naming_loss, working_as

_PATIENCE = timedelta(hours=2)  # how long a process waits for others, which may be reading or solving


def is_launched() -> bool:
    """Whether ``torchrun`` started this process."""
    return all(name in os.environ for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR"))


def is_restarted() -> bool:
    """Whether ``torchrun --max-restarts`` started this process again after one of them was lost."""
    return is_launched() and _starts() > 0


def _starts() -> int:
    """How often ``torchrun`` has started the processes again."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


@contextmanager
def working_together() -> Iterator[Crew]:
    """Join the other processes that ``torchrun`` started, for the time of the block.

    In the block ``Table.read`` reads a part of the rows in each process, ``fit`` trains one model on all of
    them, and ``save`` writes it once; each process has to call them. What else a model can do needs all
    rows: load the model afterwards. Tensors in main memory are exchanged by gloo, those on GPUs by NCCL.
    """
    import torch
    import torch.distributed as dist

    # Torch's optimizers, which a part from elsewhere may use, import this module. After the processes have
    # joined, it would keep their group alive: its functions have it as a default argument. Threads of the
    # group would then outlive Python, and crash.
    import torch.distributed.nn.functional
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    on_gpus = torch.cuda.is_available() and dist.is_nccl_available()
    if on_gpus:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    with naming_loss():
        store, rank, size = next(rendezvous("env://", timeout=_PATIENCE))
        # Processes that are started again must not find the addresses of those that are lost.
        store = PrefixStore(f"start-{_starts()}", store)
        backend = "cpu:gloo,cuda:nccl" if on_gpus else "gloo"
        dist.init_process_group(backend, timeout=_PATIENCE, store=store, rank=rank, world_size=size)
    try:
        with working_as(Crew(rank, size, launched=True)) as members:
            yield members
    finally:
        dist.destroy_process_group()
