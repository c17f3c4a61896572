"""Numbers that can no longer be computed with."""

from __future__ import annotations

from torch import Tensor, maximum, stack

from headstart.core.heads import Heads
from headstart.errors import NumericalError
from headstart.model.parts.feature import Feature

_MAX_CANCELLATION = 1e3  # times that sums may shrink when observations are taken out of them


def cancelled(before: Tensor, gone: Tensor, after: Tensor) -> bool:
    """Whether so much was taken out of the sums that what was rounded away beside it would be missed."""
    largest = maximum(before.abs().max(), gone.abs().max())
    return not bool(largest <= _MAX_CANCELLATION * after.abs().max())


def too_extreme(feature: Feature) -> NumericalError:
    """What to raise of a feature whose numbers leave what can be computed with."""
    return NumericalError(
        f"feature {feature.name!r}: its observations or metadata are so extreme that nothing can be computed "
        "from them; correct them or leave them out"
    )


def are_finite(heads: Heads) -> list[bool]:
    """Whether all numbers of each head are finite."""
    parts = [part.view(len(heads), -1).isfinite().all(1) for part in heads.parts()]
    return stack(parts).all(0).tolist()
