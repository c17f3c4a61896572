"""Encoded metadata as linear models read it."""

from __future__ import annotations

import torch
from torch import Tensor


def described(metadata: Tensor, *more: Tensor) -> Tensor:
    """Metadata, its bends, whatever ``more`` there is, and a constant: (features, …).

    A number from 0 to 1, such as a year between the ends seen, may matter other than by a straight
    line: m·(1 − m) and m·(1 − m)·(1 − 2m) let it. They are zero for labels, which are 0 or 1.

    >>> described(torch.tensor([[0.0, 0.2]]))
    tensor([[0.0000, 0.2000, 0.0000, 0.1600, 0.0000, 0.0960, 1.0000]])
    """
    bend = metadata * (1 - metadata)
    one = metadata.new_ones(len(metadata), 1)
    return torch.cat([metadata, bend, bend * (1 - 2 * metadata), *more, one], dim=1)
