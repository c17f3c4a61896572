"""Scores of cells that rankings go by, on the models' scale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.core.heads import Heads
from headstart.core.predictive import grid_logits, predict_grid
from headstart.core.states import RowStates
from headstart.errors import InputError, argument, did_you_mean, worded
from headstart.model.parts.fitted import Fitted
from headstart.model.parts.listing import Listing
from headstart.table.kinds import KindType
from headstart.training.calibration import LEVELS

By = Literal["mean", "upper", "information"]


@dataclass(frozen=True)
class Criterion:
    """What a ranking goes by: the expected value, or an upper quantile of it."""

    by: By = "mean"
    quantile: float = 0.9

    def __post_init__(self) -> None:
        if self.by not in get_args(By):
            ways = ", ".join(repr(way) for way in get_args(By))
            hint = did_you_mean(str(self.by), get_args(By))
            raise InputError(f"{argument('by')} must be one of {ways}; got {self.by!r}{hint}")
        number = isinstance(self.quantile, (int, float)) and not isinstance(self.quantile, bool)
        if not number or not 0.5 <= self.quantile < 1:
            raise InputError(
                f"{argument('quantile')} must be a number from 0.5 up and below 1; got {self.quantile!r}"
            )


@dataclass(frozen=True)
class Candidates:
    """Heads with what scores need to know of their features."""

    heads: Heads
    types: Tensor  # (features,): the kinds of features, as given
    modelled: Tensor  # (features,): as the model takes them
    shots: Tensor  # (features,)
    kinds: Tensor  # those that may be among ``types``

    @classmethod
    def at(cls, fitted: Fitted, listing: Listing, slots: Tensor | slice) -> Candidates:
        """The features whose heads are stored in these slots."""
        types = torch.from_numpy(listing.types)[slots]
        shots = torch.from_numpy(listing.shots)[slots]
        kinds = torch.from_numpy(listing.kinds)
        return cls(fitted.catalogue.stored(slots), types, fitted.modelled(types), shots, kinds)


def scores(
    fitted: Fitted,
    criterion: Criterion,
    candidates: Candidates,
    states: RowStates,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """The score of every row at every feature, on the models' scale: (rows, features).

    The expected value is not cut off at a rating's ends, so that what lies beyond is ranked too. The upper
    quantile is that of the value. For a binary feature, whose quantiles are 0 or 1, it is the quantile of
    its probability instead, as far as head and row are uncertain.
    """
    likelihood, modelled = fitted.knowledge.likelihood, candidates.modelled
    if criterion.by == "mean" and not bool(likelihood.squashes(fitted.modelled(candidates.kinds)).any()):
        found = grid_logits(candidates.heads, states, dtype)
    else:
        predictive = predict_grid(candidates.heads, states, modelled, likelihood, dtype)
        found = predictive.mean
        if criterion.by == "upper":
            reach = _normal_quantile(criterion.quantile)
            likely = reach * predictive.variance.sqrt()
            upper = likelihood.predictive(
                predictive.logits + likely, torch.zeros_like(likely), predictive.noise, modelled
            )[0]
            factor = _factor_at(fitted, candidates, 2 * criterion.quantile - 1).to(dtype)
            values = found + reach * factor * predictive.std
            found = torch.where(candidates.types == KindType.BINARY, upper, values)
    if KindType.BINARY in candidates.kinds:
        binary = candidates.types == KindType.BINARY
        chances = fitted.calibration.probability(found[:, binary].clamp(0, 1), candidates.shots[binary])
        found = found.clone()
        found[:, binary] = chances.to(dtype)
    return found


def _factor_at(fitted: Fitted, candidates: Candidates, level: float) -> Tensor:
    """By what calibration multiplies the reach of an interval of this level: (features,)."""
    factors = fitted.calibration.factor(candidates.shots, candidates.modelled)
    right = int(np.clip(np.searchsorted(LEVELS, level), 1, len(LEVELS) - 1))
    share = (level - LEVELS[right - 1]) / (LEVELS[right] - LEVELS[right - 1])
    return torch.lerp(factors[:, right - 1], factors[:, right], float(np.clip(share, 0, 1)))


def _normal_quantile(quantile: float) -> float:
    from scipy.special import ndtri  # imported here: few uses of a model need SciPy

    return float(ndtri(quantile))


def require_alike(listing: Listing, slots: NDArray[np.int64], what: str) -> None:
    """Refuse features whose values cannot be compared, because their kinds or units differ."""
    odd = listing.odd if slots is listing.present else listing.unlike(slots)
    if odd is None:
        return
    both = (listing.features[slots[0]], listing.features[odd])
    names = " and ".join(f"{each.name!r} is {each.kind}" for each in both if each is not None)
    raise InputError(
        f"{what} compares values of one kind, but {names}; "
        f"name features of one kind ({argument('features')}), or compare on a common scale "
        f"({worded('mixed_kinds=True', '--mixed-kinds')})"
    )
