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

# By default an idle thread of OpenMP keeps its core busy while it waits. Beside any other work each of its
# many short waits then lasts until the system lets the other thread run: training became 16 times slower.
# A thread that sleeps instead costs a few microseconds. GNU's library reads the first, Intel's the second.
_PASSIVE = {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0"}

_SETTINGS = (*_PASSIVE, "GOMP_SPINCOUNT")


def set_openmp_wait_policy() -> None:
    """Let idle OpenMP threads sleep, unless the environment says how they wait.

    The command line calls it. A program of your own may call it before it imports torch, and so before it
    uses a model; after that it changes nothing.
    """
    if "torch" not in sys.modules and not any(name in os.environ for name in _SETTINGS):
        os.environ.update(_PASSIVE)


Item = TypeVar("Item")

Result = TypeVar("Result")

_MOST = 16  # threads

_MEMORY = 2**30  # bytes that all items under way may take together


class _Pool(NamedTuple):
    threads: ThreadPoolExecutor
    size: int


_pool: ContextVar[_Pool | None] = ContextVar("pool", default=None)


@contextmanager
def thread_pool() -> Iterator[None]:
    """In this block ``parallel_map`` takes as many threads as torch would, and each of them computes alone.

    Torch shares out single operations. A training has so many of them, most of them short, that its threads
    wait for each other longer than they compute: two took up to twice the time of one. Threads that take
    whole blocks of work hardly meet, and if another process takes a core from one, the others go on.
    """
    import torch  # here, because ``set_openmp_wait_policy`` must be importable before torch

    number = torch.get_num_threads()
    size = min(number, _MOST)
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
    """The results of a function for each of these items, in their order, as ``map`` gives them.

    Outside of ``thread_pool``, in a worker itself, and on a device, it is ``map``. The function may not draw
    random numbers and may not speak to other processes, because it is not known which item comes first.
    ``each_takes`` is about how many bytes of memory an item needs in between: if it is much, fewer of them
    are under way at a time.

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
    with_gradients = torch.is_grad_enabled()  # of this thread alone

    def alone(item: Item) -> Result:
        _pool.set(None)
        with torch.set_grad_enabled(with_gradients):
            return function(item)

    most = min(pool.size + 1, max(1, _MEMORY // each_takes))
    waiting: deque[Future[Result]] = deque()
    try:
        for item in items:
            if len(waiting) == most:
                yield waiting.popleft().result()
            waiting.append(pool.threads.submit(copy_context().run, alone, item))
        while waiting:
            yield waiting.popleft().result()
    finally:
        for each in waiting:  # after an error, or if nobody wants the rest
            each.cancel()
