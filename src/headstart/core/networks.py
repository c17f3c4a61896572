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


@dataclass(frozen=True)
class _Share:
    start: int
    whole: int
    generator: torch.Generator


_share: ContextVar[_Share | None] = ContextVar("share", default=None)


@contextmanager
def batch_share(start: int, whole: int, seed: int) -> Iterator[None]:
    """Say that what passes through networks are the lines from ``start`` on of a batch of so many.

    Whoever has a share of the batch, in another thread or process, gives the same seed.
    """
    generator = torch.Generator("cpu").manual_seed(seed)
    token = _share.set(_Share(start, whole, generator))
    try:
        yield
    finally:
        _share.reset(token)


class SharedDropout(nn.Dropout):
    """Drops what would be dropped of the whole batch (``batch_share``)."""

    def forward(self, input: Tensor) -> Tensor:
        """Drop some of the numbers (lines, width) in training."""
        share = _share.get()
        if not self.training or share is None:
            dropped: Tensor = super().forward(input)
            return dropped
        # The processor draws, whatever the device: the same seed drops the same.
        drawn = torch.rand(share.whole, *input.shape[1:], generator=share.generator, device="cpu")
        kept = (drawn >= self.p)[share.start : share.start + len(input)].to(input)
        return input * kept / (1 - self.p)


def mlp(sizes: list[int], *, last: bool = False) -> nn.Sequential:
    """Linear layers of these sizes with ReLU between them; also after the last one if ``last``."""
    layers: list[nn.Module] = []
    for size, following in pairwise(sizes):
        layers += [nn.Linear(size, following), nn.ReLU()]
    return nn.Sequential(*(layers if last else layers[:-1]))
