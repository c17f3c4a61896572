"""Train one model by several processes: the group, its collective operations, and ``torchrun``."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from headstart import errors
from headstart.errors import HeadstartError, LostProcessError, for_user

if TYPE_CHECKING:
    from torch import Tensor

Result = TypeVar("Result")

_BLOCK = 2**26  # bytes that are sent to the first process at a time


class ProcessGroup:
    """The processes that train one model together; they hold stretches of the sorted rows, in their order.

    All of them run the same program on their own rows and call the same methods in the same order. By
    itself, a process is a crew of one, and no method changes anything or costs anything.

    Parameters
    ----------
    rank, size : int
        The place of this process, and how many there are.
    launched : bool
        Whether ``torchrun`` started it. Then the table is read, and the model saved, as by several
        processes, even if there is only one.
    """

    def __init__(self, rank: int = 0, size: int = 1, *, launched: bool = False) -> None:
        self.rank, self.size, self.launched = rank, size, launched

    @property
    def is_single(self) -> bool:
        """Whether there is no other process."""
        return self.size == 1

    @property
    def is_main(self) -> bool:
        """Whether this is the first process: the one that writes files and shows progress."""
        return self.rank == 0

    # -- sums -------------------------------------------------------------------------------------

    def all_reduce_sum(self, numbers: Tensor) -> Tensor:
        """The sum over all processes."""
        return self._reduced(numbers, "SUM")

    def all_reduce_max(self, numbers: Tensor) -> Tensor:
        """The largest over all processes."""
        return self._reduced(numbers, "MAX")

    def sum_number(self, number: float) -> float:
        """The sum of one number over all processes."""
        if self.is_single:
            return number
        import torch

        return float(self.all_reduce_sum(torch.tensor(number, dtype=torch.float64)))

    def _reduced(self, numbers: Tensor, how: str) -> Tensor:
        if self.is_single:
            return numbers
        import torch
        import torch.distributed as dist

        numbers = numbers.detach().clone(memory_format=torch.contiguous_format)
        with explain_lost_process():
            dist.all_reduce(numbers, op=getattr(dist.ReduceOp, how))
        return numbers

    def span(self, count: int) -> tuple[int, int]:
        """Where this process's ``count`` things begin among those of all, and how many all are."""
        if self.is_single:
            return 0, count
        counts = self.sizes(count)
        return sum(counts[: self.rank]), sum(counts)

    def sizes(self, count: int) -> list[int]:
        """How many things each process has."""
        import torch

        if self.is_single:
            return [count]
        counts = torch.zeros(self.size, dtype=torch.int64)
        counts[self.rank] = count
        return [int(each) for each in self.all_reduce_sum(counts)]

    # -- what others have -------------------------------------------------------------------------

    def all_gather(self, part: Tensor) -> Tensor:
        """The lines (first dimension) of all processes, in their order."""
        if self.is_single:
            return part
        import torch
        import torch.distributed as dist

        sizes = self.sizes(len(part))
        whole = part.new_empty(sum(sizes), *part.shape[1:])
        for source, piece in enumerate(torch.split(whole, sizes)):
            if source == self.rank:
                piece.copy_(part)
            if piece.numel():
                with explain_lost_process():
                    dist.broadcast(piece, source)
        return whole

    def all_to_all(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Send each process its part, and return what each of them has sent to this one."""
        if self.is_single:
            return list(parts)
        import torch
        import torch.distributed as dist

        sent, got = torch.tensor([len(part) for part in parts]), torch.zeros(self.size, dtype=torch.int64)
        with explain_lost_process():
            dist.all_to_all_single(got, sent)
            sizes = got.tolist()
            arrived = parts[0].new_empty(sum(sizes), *parts[0].shape[1:])
            dist.all_to_all_single(arrived, torch.cat(list(parts)), sizes, sent.tolist())
        return list(torch.split(arrived, sizes))

    def gather_blocks(self, part: Tensor) -> Iterator[Tensor]:
        """On the first process, the lines of all processes in their order, block by block; else nothing."""
        import torch
        import torch.distributed as dist

        line = max(1, part[:1].numel() * part.element_size())
        step = max(1, _BLOCK // line)
        for source, count in enumerate(self.sizes(len(part))):
            for start in range(0, count, step):
                stop = min(count, start + step)
                if source == 0:
                    if self.is_main:
                        yield part[start:stop]
                elif self.rank == source:
                    with explain_lost_process():
                        dist.send(part[start:stop].contiguous(), 0)
                elif self.is_main:
                    block = torch.empty(stop - start, *part.shape[1:], dtype=part.dtype)
                    with explain_lost_process():
                        dist.recv(block, source)
                    yield block

    def broadcast(self, *tensors: Tensor) -> None:
        """Let all processes have the numbers of the first one, which are written over their own."""
        if self.is_single:
            return
        import torch.distributed as dist

        for each in tensors:
            if each.numel():
                own = each.contiguous()
                with explain_lost_process():
                    dist.broadcast(own, 0)
                each.copy_(own)

    # -- texts ------------------------------------------------------------------------------------

    def all_gather_texts(self, texts: Sequence[str]) -> list[list[str]]:
        """The texts of every process."""
        if self.is_single:
            return [list(texts)]
        import torch

        encoded = _encoded(texts)
        sizes, whole = self.sizes(len(encoded)), self.all_gather(encoded)
        return [_decoded(piece) for piece in torch.split(whole, sizes)]

    def all_to_all_texts(self, parts: Sequence[Sequence[str]]) -> list[list[str]]:
        """``exchanged`` of texts."""
        return [_decoded(part) for part in self.all_to_all([_encoded(part) for part in parts])]

    # -- working together -------------------------------------------------------------------------

    def all_or_none(self, work: Callable[[], Result]) -> Result:
        """Do some work that waits for no other process; if it fails in one, it fails in all of them."""
        if self.is_single:
            return work()
        failure: HeadstartError | None = None
        result: list[Result] = []
        try:
            result.append(work())
        except HeadstartError as error:
            failure = error
        reports = self.all_gather_texts([] if failure is None else [type(failure).__name__, str(failure)])
        failed = [report for report in reports if report]
        if failed:
            kind = getattr(errors, failed[0][0], HeadstartError)
            shared: HeadstartError = kind(failed[0][1])
            shared.shared = True
            raise shared from failure
        return result[0]

    def barrier(self) -> None:
        """Wait until all processes are here."""
        self.sizes(0)


def _encoded(texts: Sequence[str]) -> Tensor:
    import torch

    content = json.dumps(list(texts)).encode()
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def _decoded(content: Tensor) -> list[str]:
    return list(json.loads(content.numpy().tobytes())) if len(content) else []


SINGLE_PROCESS = ProcessGroup()

_present = [SINGLE_PROCESS]


def process_group() -> ProcessGroup:
    """The processes that train together here; outside of ``join_processes`` a process is by itself."""
    return _present[-1]


@contextmanager
def use_group(members: ProcessGroup) -> Iterator[ProcessGroup]:
    """Let this process be one of these for the time of the block."""
    _present.append(members)
    try:
        yield members
    finally:
        _present.pop()


@contextmanager
def explain_lost_process() -> Iterator[None]:
    """Turn the failure of a connection into an error that says what to do."""
    try:
        yield
    except RuntimeError as error:
        if any(other in str(error) for other in ("memory", "enforce fail")):
            raise
        again = for_user("fit again with resume=True", "run the same command with --resume")
        raise LostProcessError(
            "the connection to another process of this training was lost: it was killed, or its machine "
            f"failed; {again}, with any number of processes"
        ) from error


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
def join_processes() -> Iterator[ProcessGroup]:
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
    with explain_lost_process():
        store, rank, size = next(rendezvous("env://", timeout=_PATIENCE))
        # Processes that are started again must not find the addresses of those that are lost.
        store = PrefixStore(f"start-{_starts()}", store)
        backend = "cpu:gloo,cuda:nccl" if on_gpus else "gloo"
        dist.init_process_group(backend, timeout=_PATIENCE, store=store, rank=rank, world_size=size)
    try:
        with use_group(ProcessGroup(rank, size, launched=True)) as members:
            yield members
    finally:
        dist.destroy_process_group()
