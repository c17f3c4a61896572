"""One thread for the small matrices of single items in numpy and scipy.

The BLAS of numpy and scipy divides even a product of 30 × 30 numbers among threads. Waking these takes
longer than the product, and they compete with the threads of torch: one observation then takes three to five
times as long.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from threading import current_thread, main_thread
from typing import Any

from headstart.linalg.array_ops import import_lapack


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Run the BLAS of numpy and scipy on one thread in a block, and restore the number of threads after it.

    Only the main thread sets the limit: OpenBLAS ignores that of others. The number of threads of torch,
    which computes large batches, is unchanged.
    """
    if current_thread() is main_thread():
        with _blas().limit(limits=1):
            yield
    else:
        yield


@cache
def _blas() -> Any:
    """Return the controller of the BLAS of numpy and scipy."""
    from threadpoolctl import ThreadpoolController  # few commands need it

    import_lapack()  # only libraries that are loaded are found
    return ThreadpoolController().select(user_api="blas")
