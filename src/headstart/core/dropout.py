"""Dropout that depends neither on how many processes share a batch nor on the device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
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
        if not self.training or (not _shares and input.device.type == "cpu"):
            dropped: Tensor = super().forward(input)
            return dropped
        start, whole = _shares[-1] if _shares else (0, len(input))
        # The processor draws, whatever the device: the same seed drops the same.
        ones = torch.ones(whole, *input.shape[1:], dtype=input.dtype, device="cpu")
        kept: Tensor = super().forward(ones)
        return input * kept[start : start + len(input)].to(input.device)
