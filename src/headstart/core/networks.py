"""Build small networks whose initial values and dropout do not depend on device or sharding."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

_LOADING = ContextVar("loading", default=False)


@contextmanager
def loading() -> Iterator[None]:
    """Leave the tensors of ``initial_tensor`` uninitialised in this block: a saved model replaces them."""
    token = _LOADING.set(True)
    try:
        yield
    finally:
        _LOADING.reset(token)


def initial_tensor(make: Callable[[], Tensor], *sizes: int) -> Tensor:
    """Return ``make()``, a tensor of these ``sizes``; while loading, an uninitialised one.

    It is for parameters and saved buffers that grow with the features: opening a model should not cost the
    time to write as many numbers as it has.

    >>> initial_tensor(lambda: torch.ones(2, 3), 2, 3).sum()
    tensor(6.)
    >>> with loading():
    ...     initial_tensor(lambda: torch.ones(2, 3), 2, 3).shape
    torch.Size([2, 3])
    """
    return torch.empty(sizes) if _LOADING.get() else make()


@dataclass(frozen=True)
class _Share:
    start: int
    whole: int
    generator: torch.Generator


_share: ContextVar[_Share | None] = ContextVar("share", default=None)


@contextmanager
def batch_share(start: int, whole: int, seed: int) -> Iterator[None]:
    """Declare the inputs of networks in this block as the lines from ``start`` of a batch of ``whole`` lines.

    Threads and processes with other shares of the batch pass the same ``seed``.
    """
    generator = torch.Generator("cpu").manual_seed(seed)
    token = _share.set(_Share(start, whole, generator))
    try:
        yield
    finally:
        _share.reset(token)


class SharedDropout(nn.Dropout):
    """Dropout with the same mask whether a batch is computed whole or in shares (``batch_share``)."""

    def forward(self, input: Tensor) -> Tensor:
        """Drop some of the inputs (lines, width) in training."""
        share = _share.get()
        if not self.training or share is None:
            dropped: Tensor = super().forward(input)
            return dropped
        # The CPU draws for every device: the same seed gives the same mask.
        drawn = torch.rand(share.whole, *input.shape[1:], generator=share.generator, device="cpu")
        kept = (drawn >= self.p)[share.start : share.start + len(input)].to(input)
        return input * kept / (1 - self.p)


def mlp(sizes: list[int], *, last: bool = False) -> nn.Sequential:
    """Build linear layers of these ``sizes`` with ReLU between them, and after the last one if ``last``."""
    layers: list[nn.Module] = []
    for size, following in pairwise(sizes):
        layers += [nn.Linear(size, following), nn.ReLU()]
    return nn.Sequential(*(layers if last else layers[:-1]))
