"""Run blocks of work in the threads of this process."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import NamedTuple, TypeVar

# By default a waiting OpenMP thread keeps its core busy. Beside other work, each of the many short waits then
# lasts until the system schedules the other thread: training became 16 times slower. A sleeping thread costs
# a few microseconds. GNU's library reads the first variable, Intel's the second.
_PASSIVE = {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0"}

_SETTINGS = (*_PASSIVE, "GOMP_SPINCOUNT")

_MAX_THREADS = 16

_MAX_BYTES = 2**30  # memory of all items in progress together


def set_openmp_wait_policy() -> None:
    """Let idle OpenMP threads sleep, unless the environment says how they wait.

    The command line calls it. A program of your own may call it before it imports torch, and so before it
    uses a model; after that it changes nothing.
    """
    if "torch" not in sys.modules and not any(name in os.environ for name in _SETTINGS):
        os.environ.update(_PASSIVE)


Item = TypeVar("Item")

Result = TypeVar("Result")


class _Pool(NamedTuple):
    threads: ThreadPoolExecutor
    size: int


_pool: ContextVar[_Pool | None] = ContextVar("pool", default=None)


@contextmanager
def thread_pool() -> Iterator[None]:
    """Run the items of ``parallel_map`` in threads during the block, as many as torch would use.

    Torch divides single operations among its threads. A training has many short operations, and the threads
    wait for each other longer than they compute: two threads took up to twice the time of one. Threads with
    whole blocks of work rarely wait, and continue if another process takes the core of one of them. Inside
    the block, torch computes each operation in one thread.
    """
    import torch  # here, because ``set_openmp_wait_policy`` must be importable before torch

    number = torch.get_num_threads()
    size = min(number, _MAX_THREADS)
    if number == 1 or _pool.get() is not None:
        yield
        return
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(size, "headstart", torch.set_num_threads, (1,)) as threads:
            token = _pool.set(_Pool(threads, size))
            try:
                yield
            finally:
                _pool.reset(token)
    finally:
        torch.set_num_threads(number)


def parallel_map(
    function: Callable[[Item], Result], items: Iterable[Item], *, each_takes: int = 2**26
) -> Iterator[Result]:
    """Apply ``function`` to each item, and yield the results in the order of the items.

    Outside of ``thread_pool``, inside another ``parallel_map``, and on a device other than the CPU, it is
    ``map``. The function must neither draw random numbers nor communicate with other processes, because the
    order of execution varies. ``each_takes`` is the approximate number of bytes that an item needs; it
    limits the number of items in progress.

    >>> list(parallel_map(abs, [-1, 2, -3]))
    [1, 2, 3]
    >>> with thread_pool():
    ...     list(parallel_map(abs, [-1, 2, -3]))
    [1, 2, 3]
    """
    import torch

    pool = _pool.get()
    if pool is None or torch.get_default_device().type != "cpu":
        yield from map(function, items)
        return
    with_gradients = torch.is_grad_enabled()  # a setting of this thread

    def run(item: Item) -> Result:
        _pool.set(None)
        with torch.set_grad_enabled(with_gradients):
            return function(item)

    limit = min(pool.size + 1, max(1, _MAX_BYTES // each_takes))
    waiting: deque[Future[Result]] = deque()
    try:
        for item in items:
            if len(waiting) == limit:
                yield waiting.popleft().result()
            waiting.append(pool.threads.submit(copy_context().run, run, item))
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:  # after an error, or if the caller stops early
            future.cancel()
