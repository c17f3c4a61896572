"""The limit of threads holds in blocks, and leaves nothing behind."""

from __future__ import annotations

from threading import Thread

import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from headstart.linalg.array_ops import import_lapack
from headstart.linalg.threads import one_blas_thread


def blas_threads() -> set[int]:
    import_lapack()
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}


@pytest.fixture(autouse=True)
def two_threads() -> object:
    import_lapack()
    with threadpool_limits(2, "blas") as limits:
        if blas_threads() != {2}:
            pytest.skip("the libraries of this machine use one thread")
        yield limits


def test_nested_blocks_restore_the_threads_once() -> None:
    with one_blas_thread():
        with one_blas_thread():
            assert blas_threads() == {1}
        assert blas_threads() == {1}
    assert blas_threads() == {2}


def test_an_error_restores_the_threads() -> None:
    with pytest.raises(ZeroDivisionError), one_blas_thread():
        1 / 0  # noqa: B018
    assert blas_threads() == {2}


def test_a_block_in_another_thread_changes_nothing() -> None:
    found = []

    def other() -> None:
        with one_blas_thread():
            found.append(blas_threads())

    thread = Thread(target=other)
    thread.start()
    thread.join(10)
    assert [*found, blas_threads()] == [{2}, {2}]
