"""The lock of a folder on systems without fcntl (Windows), tried here with the same library."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headstart import BusyError, Headstart, StorageError
from headstart.datasets import synthetic_ratings
from headstart.files import lock_folder
from tests.limits import limits


@pytest.fixture(autouse=True)
def _without_posix_locks() -> Iterator[None]:
    with limits(posix_locks=None):
        yield


def test_threads_take_turns(tmp_path: Path) -> None:
    order: list[str] = []

    def work(name: str) -> None:
        with lock_folder(tmp_path):
            order.append(name)
            time.sleep(0.05)
            order.append(name)

    threads = [threading.Thread(target=work, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert order[0::2] == order[1::2]


def test_a_second_holder_is_refused_if_asked(tmp_path: Path) -> None:
    refused: list[str] = []

    def try_it() -> None:
        try:
            with lock_folder(tmp_path, busy="in use"):
                pass
        except BusyError as error:
            refused.append(str(error))

    with lock_folder(tmp_path):
        thread = threading.Thread(target=try_it)
        thread.start()
        thread.join()
    assert refused == ["in use"]
    with lock_folder(tmp_path, busy="in use"):
        pass


def test_the_owner_may_lock_again(tmp_path: Path) -> None:
    owner = object()
    with lock_folder(tmp_path / "new", owner, create=True):
        with lock_folder(tmp_path / "new", owner):
            pass
        with pytest.raises(BusyError), lock_folder(tmp_path / "new"):
            pass


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError), lock_folder(tmp_path / "missing"):
        pass


def test_updates_of_threads_are_kept(tmp_path: Path) -> None:
    table = synthetic_ratings(rows=40, features=10, density=0.5)
    Headstart(adapter="bayes", quiet=True).fit(table).save(tmp_path / "m")

    def add(number: int) -> None:
        with Headstart.updating(tmp_path / "m") as model:
            model.add_feature(f"new {number}")

    threads = [threading.Thread(target=add, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {f"new {number}" for number in range(3)} < set(Headstart.load(tmp_path / "m").features)
