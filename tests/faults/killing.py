"""Runs work in a process of its own that is killed, by SIGKILL, at a chosen step of its work on the disk."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

# Each is a step before and after.
CALLS = ("open", "replace", "fsync", "mkdir", "chmod", "unlink", "rmdir", "write", "ftruncate")


def killed_at(step: int | None, work: Callable[[], object]) -> int:
    """Do the work in a forked process and kill it at this step; 0 if it came to its end before.

    Without a step it is not killed, and the number of steps is returned.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _work(step, work, writing)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        told = pipe.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return -1
    assert os.WEXITSTATUS(status) == 0, told
    return int(told)


def _work(step: int | None, work: Callable[[], object], writing: int) -> None:
    done = 0

    def count() -> None:
        nonlocal done
        done += 1
        if done == step:
            os.kill(os.getpid(), signal.SIGKILL)

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **named: Any) -> Any:
            count()
            result = call(*args, **named)
            count()
            return result

        return wrapped

    try:
        for name in CALLS:
            setattr(os, name, counted(getattr(os, name)))
        work()
        os.write(writing, str(done if step is None else 0).encode())
        os._exit(0)
    except BaseException as error:  # the parent shows it
        os.write(writing, f"{type(error).__name__}: {error}".encode())
        os._exit(1)
