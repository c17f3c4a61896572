"""Threads that take blocks of work side by side."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from headstart import Headstart
from headstart.linalg.ragged import segment_weighted_sum
from headstart.parallel import parallel_map, thread_pool
from headstart.table.cells import Cells, offsets
from tests.limits import Limits
from tests.model.conftest import ratings_table


@contextmanager
def threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def test_results_come_in_order_from_several_threads() -> None:
    with threads(3), thread_pool():
        assert torch.get_num_threads() == 1
        seen = set()

        def wait(number: int) -> int:
            seen.add(threading.current_thread().name)
            time.sleep(0.02 * (5 - number))
            assert torch.get_num_threads() == 1
            own = threading.current_thread()
            assert list(parallel_map(lambda _: threading.current_thread(), [1])) == [own]  # it has no workers
            return number

        assert list(parallel_map(wait, range(5))) == list(range(5))
        assert len(seen) == 3
        with thread_pool():  # the same ones
            assert {each.name for each in parallel_map(lambda _: threading.current_thread(), [1])} <= seen
    with threads(3):
        with thread_pool():
            pass
        assert torch.get_num_threads() == 3


def test_what_takes_much_memory_is_not_done_at_the_same_time() -> None:
    under_way, most = [0], [0]

    def count(_: int) -> None:
        under_way[0] += 1
        most[0] = max(most[0], under_way[0])
        time.sleep(0.01)
        under_way[0] -= 1

    with threads(3), thread_pool():
        list(parallel_map(count, range(6), each_takes=2**40))
        assert most == [1]
        list(parallel_map(count, range(12)))
        assert most[0] > 1


def test_one_thread_needs_no_workers() -> None:
    with threads(1), thread_pool():
        own = list(parallel_map(lambda _: threading.current_thread(), range(3)))
        assert own == [threading.current_thread()] * 3


@pytest.mark.parametrize("enabled", [True, False])
def test_a_worker_has_gradients_where_its_caller_has(enabled: bool) -> None:
    with threads(2), thread_pool(), torch.set_grad_enabled(enabled):
        assert list(parallel_map(lambda _: torch.is_grad_enabled(), range(3))) == [enabled] * 3


def test_an_error_ends_the_work() -> None:
    begun = []

    def fail(number: int) -> None:
        begun.append(number)
        if number == 1:
            raise ValueError("no")

    with threads(2):
        with pytest.raises(ValueError, match="no"), thread_pool():
            list(parallel_map(fail, range(1000)))
        assert len(begun) < 1000
        assert torch.get_num_threads() == 2


def test_a_product_in_slices_is_the_same_in_threads() -> None:
    torch.manual_seed(0)
    cells = Cells(offsets(torch.tensor([3, 0, 5])), torch.randint(7, (8,)), torch.rand(8), 7)
    table = torch.rand(7, 200)
    alone = segment_weighted_sum(table, cells, cells.values)
    with threads(2), thread_pool():
        assert torch.equal(segment_weighted_sum(table, cells, cells.values), alone)


@pytest.mark.parametrize("adapter", ["bayes", "chn-bayes"])
def test_a_fit_is_the_same_whatever_the_number_of_threads(adapter: str, limits: Limits) -> None:
    limits(block_bytes=2**16)  # many blocks
    table = ratings_table(rows=60, features=30)
    found = []
    for number in (1, 2):
        with threads(number):
            model = Headstart(adapter=adapter, metatraining={"epochs": 2}, quiet=True).fit(table)
            found.append(model.predict())
    assert np.array_equal(found[0].mean, found[1].mean)
    assert np.array_equal(found[0].std, found[1].std)


# -- How threads wait


NAMES = ("OMP_WAIT_POLICY", "KMP_BLOCKTIME", "GOMP_SPINCOUNT")


def settings_after(program: str, **given: str) -> dict[str, str]:
    """What a process has set after a program, from the settings given."""
    environment = {name: value for name, value in os.environ.items() if name not in NAMES}
    report = f"; import json, os; print(json.dumps({{n: os.environ[n] for n in {NAMES} if n in os.environ}}))"
    done = subprocess.run(
        [sys.executable, "-c", program + report],
        capture_output=True, text=True, check=True, env=environment | given,
    )  # fmt: skip
    found: dict[str, str] = json.loads(done.stdout)
    return found


SET = "from headstart.parallel import set_openmp_wait_policy; set_openmp_wait_policy()"
COMMAND = (
    "import contextlib, io, sys; sys.argv = ['headstart', '--version']; from headstart.cli import main\n"
    "with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()): main()\n0"
)
PASSIVE = {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0"}


@pytest.mark.parametrize("program", [SET, COMMAND], ids=["function", "command line"])
def test_threads_sleep_while_they_wait(program: str) -> None:
    assert settings_after(program) == PASSIVE


@pytest.mark.parametrize("name", NAMES)
def test_what_the_user_set_stays(name: str) -> None:
    assert settings_after(SET, **{name: "7"}) == {name: "7"}


def test_nothing_is_set_when_it_is_too_late() -> None:
    program = f"import sys, types; sys.modules['torch'] = types.ModuleType('torch'); {SET}"
    assert settings_after(program) == {}
