"""Tensors of parts that are made to be trained, or to be filled from a saved model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

_LOADING = ContextVar("loading", default=False)


@contextmanager
def loading() -> Iterator[None]:
    """In this block the tensors of ``initial`` get no values, because those of a saved model replace them."""
    token = _LOADING.set(True)
    try:
        yield
    finally:
        _LOADING.reset(token)


def initial(make: Callable[[], Tensor], *sizes: int) -> Tensor:
    """The tensor of these sizes that ``make`` gives, or, while loading, memory that was not touched.

    It is for parameters and saved buffers that grow with the features: to open a model must not cost what
    it costs to write as many numbers as it has.

    >>> initial(lambda: torch.ones(2, 3), 2, 3).sum()
    tensor(6.)
    >>> with loading():
    ...     initial(lambda: torch.ones(2, 3), 2, 3).shape
    torch.Size([2, 3])
    """
    return torch.empty(sizes) if _LOADING.get() else make()
