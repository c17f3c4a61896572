"""Numbers of shots at which predictions are measured, and what lies between them."""

from __future__ import annotations

import torch
from torch import Tensor

VALIDATION_SHOTS = (0, 1, 2, 4, 8, 16, 32, 64, 128)


def between(marks: Tensor, shots: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """For each number of shots the mark at its left, that at its right, and how near it is to the right one.

    Distances are those of log(1 + shots). Past the last mark, what holds there still holds.

    >>> left, right, share = between(torch.tensor([0, 1, 3]), torch.tensor([0, 3, 50]))
    >>> torch.lerp(left.float(), right.float(), share)
    tensor([0., 2., 2.])
    """
    places = marks.to(torch.float32).log1p()
    at = shots.to(torch.float32).log1p().clamp(max=float(places[-1]))
    right = torch.bucketize(at, places).clamp(min(1, len(places) - 1), len(places) - 1)
    left = (right - 1).clamp(min=0)
    share = (at - places[left]) / (places[right] - places[left]).clamp(min=1e-9)
    return left, right, share.clamp(0, 1)
