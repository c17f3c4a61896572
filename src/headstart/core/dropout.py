"""Dropout that depends neither on how a batch is shared out nor on the device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class _Share:
    start: int
    whole: int
    generator: torch.Generator


_share: ContextVar[_Share | None] = ContextVar("share", default=None)


@contextmanager
def of_a_batch(start: int, whole: int, seed: int) -> Iterator[None]:
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
    """Drops what would be dropped of the whole batch (``of_a_batch``)."""

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
