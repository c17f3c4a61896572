"""Dropout that does not depend on how many processes share a batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

_shares: list[tuple[int, int]] = []


@contextmanager
def of_a_batch(start: int, whole: int) -> Iterator[None]:
    """Say that what passes through networks are the lines from ``start`` on of a batch of so many."""
    _shares.append((start, whole))
    try:
        yield
    finally:
        _shares.pop()


class SharedDropout(nn.Dropout):
    """Drops what one process would drop that has the whole batch (``of_a_batch``)."""

    def forward(self, input: Tensor) -> Tensor:
        """Drop some of the numbers (lines, width) in training."""
        if not _shares or not self.training:
            dropped: Tensor = super().forward(input)
            return dropped
        start, whole = _shares[-1]
        kept: Tensor = super().forward(input.new_ones(whole, *input.shape[1:]))
        return input * kept[start : start + len(input)]
