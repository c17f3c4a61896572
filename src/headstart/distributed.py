"""Train one model by several processes: the process group, its collective operations, and ``torchrun``.

Model code calls the functions of ``linalg.row_sharded``, which sum over the processes of the current group,
and the functions at the end of this module, which coordinate work on files.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from headstart import errors
from headstart.errors import HeadstartError, LostProcessError, for_user

if TYPE_CHECKING:
    from torch import Tensor, nn

Result = TypeVar("Result")

_BLOCK_BYTES = 2**26  # bytes sent to the main process at a time

_TIMEOUT = timedelta(hours=2)  # a process waits this long for others, which may be reading or solving


class ProcessGroup:
    """The processes that train one model together, and their collective operations.

    Each process holds consecutive rows of the sorted table. All processes run the same program on their own
    rows and must call the same methods in the same order. In a group of one process every method returns
    its argument.

    Parameters
    ----------
    rank, size : int
        The number of this process, from 0, and the number of processes.
    launched : bool
        Whether ``torchrun`` started the process. Then the table is read and the model is saved by the code
        for several processes even if there is only one.
    """

    def __init__(self, rank: int = 0, size: int = 1, *, launched: bool = False) -> None:
        self.rank, self.size, self.launched = rank, size, launched

    @property
    def is_single(self) -> bool:
        """Whether this process is the only one."""
        return self.size == 1

    @property
    def is_main(self) -> bool:
        """Whether this is the main process, which writes files and shows progress."""
        return self.rank == 0

    # -- sums -------------------------------------------------------------------------------------

    def all_reduce_sum(self, part: Tensor) -> Tensor:
        """Sum a tensor of the same shape over all processes."""
        return self._all_reduce(part, "SUM")

    def all_reduce_max(self, part: Tensor) -> Tensor:
        """Compute the elementwise maximum over all processes."""
        return self._all_reduce(part, "MAX")

    def sum_number(self, number: float) -> float:
        """Sum one number over all processes."""
        if self.is_single:
            return number
        import torch

        return float(self.all_reduce_sum(torch.tensor(number, dtype=torch.float64)))

    def _all_reduce(self, part: Tensor, operation: str) -> Tensor:
        if self.is_single:
            return part
        import torch
        import torch.distributed as dist

        result = part.detach().clone(memory_format=torch.contiguous_format)
        with explain_lost_process():
            dist.all_reduce(result, op=getattr(dist.ReduceOp, operation))
        return result

    def span(self, count: int) -> tuple[int, int]:
        """Return the global position of the first of ``count`` local items, and the number of all items."""
        if self.is_single:
            return 0, count
        counts = self.sizes(count)
        return sum(counts[: self.rank]), sum(counts)

    def sizes(self, count: int) -> list[int]:
        """Return the number of local items of each process, ``count`` in this one."""
        if self.is_single:
            return [count]
        import torch

        counts = torch.zeros(self.size, dtype=torch.int64)
        counts[self.rank] = count
        return [int(number) for number in self.all_reduce_sum(counts)]

    # -- tensors of other processes ---------------------------------------------------------------

    def all_gather(self, part: Tensor) -> Tensor:
        """Concatenate the tensors of all processes along the first dimension, in the order of the ranks."""
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
        """Send ``parts[rank]`` to each process ``rank``; return the tensors received, ordered by rank."""
        if self.is_single:
            return list(parts)
        import torch
        import torch.distributed as dist

        sent = torch.tensor([len(part) for part in parts])
        received = torch.zeros(self.size, dtype=torch.int64)
        with explain_lost_process():
            dist.all_to_all_single(received, sent)
            sizes = received.tolist()
            result = parts[0].new_empty(sum(sizes), *parts[0].shape[1:])
            dist.all_to_all_single(result, torch.cat(list(parts)), sizes, sent.tolist())
        return list(torch.split(result, sizes))

    def gather_blocks(self, part: Tensor) -> Iterator[Tensor]:
        """Send ``part`` to the main process, and there yield the tensors of all processes in blocks of rows.

        In the other processes the iterator is empty, but it must be exhausted to send anything.
        """
        import torch
        import torch.distributed as dist

        row_bytes = max(1, part[:1].numel() * part.element_size())
        step = max(1, _BLOCK_BYTES // row_bytes)
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
        """Overwrite ``tensors`` with those of the main process."""
        if self.is_single:
            return
        import torch.distributed as dist

        for tensor in tensors:
            if tensor.numel():
                buffer = tensor.contiguous()
                with explain_lost_process():
                    dist.broadcast(buffer, 0)
                tensor.copy_(buffer)

    # -- texts ------------------------------------------------------------------------------------

    def all_gather_texts(self, texts: Sequence[str]) -> list[list[str]]:
        """Return the texts of every process, in the order of the ranks."""
        if self.is_single:
            return [list(texts)]
        import torch

        encoded = _encode_texts(texts)
        sizes, gathered = self.sizes(len(encoded)), self.all_gather(encoded)
        return [_decode_texts(piece) for piece in torch.split(gathered, sizes)]

    def all_to_all_texts(self, parts: Sequence[Sequence[str]]) -> list[list[str]]:
        """Send the texts ``parts[rank]`` to the process ``rank``; return the texts received."""
        return [_decode_texts(part) for part in self.all_to_all([_encode_texts(part) for part in parts])]

    # -- errors -----------------------------------------------------------------------------------

    def all_or_none(self, work: Callable[[], Result]) -> Result:
        """Call ``work``; if it raises a HeadstartError in one process, raise the same error in all of them.

        ``work`` must not communicate with other processes.
        """
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
            error_class = getattr(errors, failed[0][0], HeadstartError)
            shared: HeadstartError = error_class(failed[0][1])
            shared.shared = True
            raise shared from failure
        return result[0]

    def barrier(self) -> None:
        """Wait until all processes have called this."""
        self.sizes(0)


def _encode_texts(texts: Sequence[str]) -> Tensor:
    import torch

    content = json.dumps(list(texts)).encode()
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def _decode_texts(content: Tensor) -> list[str]:
    return list(json.loads(content.numpy().tobytes())) if len(content) else []


SINGLE_PROCESS = ProcessGroup()

_groups = [SINGLE_PROCESS]  # a stack; the last one is current


def process_group() -> ProcessGroup:
    """Return the current process group; outside of ``join_processes`` it is this process alone."""
    return _groups[-1]


@contextmanager
def use_group(group: ProcessGroup) -> Iterator[ProcessGroup]:
    """Make ``group`` the current process group during the block."""
    _groups.append(group)
    try:
        yield group
    finally:
        _groups.pop()


@contextmanager
def explain_lost_process() -> Iterator[None]:
    """Raise LostProcessError, which says what to do, in place of a connection error of torch.distributed."""
    try:
        yield
    except RuntimeError as error:
        if any(word in str(error) for word in ("memory", "enforce fail")):
            raise
        again = for_user("fit again with resume=True", "run the same command with --resume")
        raise LostProcessError(
            "the connection to another process of this training was lost: it was killed, or its machine "
            f"failed; {again}, with any number of processes"
        ) from error


# -- torchrun -----------------------------------------------------------------------------------------


def is_launched() -> bool:
    """Return whether ``torchrun`` started this process."""
    return all(name in os.environ for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR"))


def is_restarted() -> bool:
    """Return whether ``torchrun --max-restarts`` restarted this process after one of the group was lost."""
    return is_launched() and _restart_count() > 0


def _restart_count() -> int:
    """Return how often ``torchrun`` has restarted the processes."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


@contextmanager
def join_processes() -> Iterator[ProcessGroup]:
    """Join the other processes that ``torchrun`` started, during the block.

    In the block ``Table.read`` reads a part of the rows in each process, ``fit`` trains one model on all
    rows, and ``save`` writes it once; every process must call them. The other methods of a model need all
    rows: load the saved model to use them. Tensors in main memory are exchanged by gloo, tensors on GPUs by
    NCCL.
    """
    import torch
    import torch.distributed as dist

    # Torch's optimizers, which a backbone or adapter of another package may use, import this module. If
    # imported after the processes have joined, its functions keep the group alive as a default argument, and
    # the group's threads outlive the interpreter and crash.
    import torch.distributed.nn.functional
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    on_gpus = torch.cuda.is_available() and dist.is_nccl_available()
    if on_gpus:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    with explain_lost_process():
        store, rank, size = next(rendezvous("env://", timeout=_TIMEOUT))
        # Restarted processes must not find the addresses of lost ones.
        store = PrefixStore(f"start-{_restart_count()}", store)
        backend = "cpu:gloo,cuda:nccl" if on_gpus else "gloo"
        dist.init_process_group(backend, timeout=_TIMEOUT, store=store, rank=rank, world_size=size)
    try:
        with use_group(ProcessGroup(rank, size, launched=True)) as group:
            yield group
    finally:
        dist.destroy_process_group()


# -- work on files and modules ------------------------------------------------------------------------


def rows_are_sharded() -> bool:
    """Return whether tables and models have only the rows of this process: inside ``join_processes``."""
    return process_group().launched


def only_in_main_process(
    context: AbstractContextManager[object],
) -> AbstractContextManager[object]:
    """Return ``context`` in the main process, and a context that does nothing in the others."""
    return context if process_group().is_main else nullcontext()


def consume_in_main_process(
    pieces: Iterable[Tensor], consume: Callable[[Iterable[Tensor]], Result]
) -> Result | None:
    """Return ``consume(pieces)`` in the main process, and None in the others.

    The other processes exhaust ``pieces``, which sends their parts to the main process.
    """
    if process_group().is_main:
        return consume(pieces)
    for _ in pieces:
        pass
    return None


def main_process_decides(condition: bool) -> bool:
    """Return the main process's ``condition`` in all processes."""
    group = process_group()
    return bool(group.sum_number(group.is_main and condition))


def run_in_main_process(work: Callable[[], object]) -> None:
    """Call ``work`` in the main process; if it raises a HeadstartError, raise the same error in all."""
    group = process_group()
    group.all_or_none(lambda: work() if group.is_main else None)


def run_in_each_process(work: Callable[[], Result]) -> Result:
    """Call ``work`` in each process; if it raises a HeadstartError in one, raise the same error in all."""
    return process_group().all_or_none(work)


def local_share(count: int) -> slice:
    """Return the positions of this process's equal share of ``count`` items that every process has.

    >>> local_share(5)
    slice(0, 5, None)
    """
    group = process_group()
    larger = count % group.size  # the first processes have one item more
    start = group.rank * (count // group.size) + min(group.rank, larger)
    return slice(start, start + count // group.size + (group.rank < larger))


def copy_from_main_process(module: nn.Module) -> None:
    """Copy the weights of ``module`` from the main process, because different machines round differently."""
    process_group().broadcast(*(part for part in module.state_dict().values() if part.is_floating_point()))


def sum_gradients(module: nn.Module) -> None:
    """Sum the gradient of every parameter over all processes; it stays None if no process has one."""
    if process_group().is_single:
        return
    import torch

    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    has_gradient = torch.tensor([parameter.grad is not None for parameter in parameters], dtype=torch.float32)
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    packed = torch.cat([has_gradient, *(gradient.reshape(-1) for gradient in gradients)])
    counts, *sums = torch.split(
        process_group().all_reduce_sum(packed), [len(parameters), *(p.numel() for p in parameters)]
    )
    for parameter, count, total in zip(parameters, counts.tolist(), sums, strict=True):
        parameter.grad = total.view_as(parameter) if count else None
