"""Calibration of predictions at each number of shots, on held-out features."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.core.clicks import LEAST_CHANCE, click_log_odds, is_click
from headstart.core.likelihood import binary_logit
from headstart.core.predictive import Predictive
from headstart.core.types import interpolate_shots
from headstart.table.kinds import KindType
from headstart.table.margins import VALUE_TYPES

SHRINKAGE_FEATURES = 10  # number of features at which an estimate is shrunk by half

LEVELS = (0.5, 0.8, 0.9, 0.95, 0.99)  # of the calibrated intervals

USUAL_LEVEL = LEVELS.index(0.9)

# Quantiles of the absolute value of a standard normal variable, at the levels.
_QUANTILES = [
    0.6744897501960817,
    1.2815515655446004,
    1.6448536269514722,
    1.959963984540054,
    2.5758293035489004,
]

# The edge of logits (``soft_logit``): of probabilities, and of 0 and 1 predicted as numbers, which need a
# larger one; there relative to the rarer of the two.
_EDGE, _EDGE_SHARE = 1e-4, 0.2

_LEAST_SHARES = (1.0, 0.1, 0.01)  # of the mean probability of a click

_LARGEST_SHIFT = 5.0
_PLATT_BOUNDS = torch.tensor([[0.2, -_LARGEST_SHIFT], [3.0, _LARGEST_SHIFT]], dtype=torch.float64)
_MAX_NEWTON_STEPS = 50
_SMALLEST_STEP = 1e-9
_MAX_HALVINGS = 40


@dataclass(frozen=True)
class Outcome:
    """Predictions of held-out features at one number of shots, and the true values."""

    predictive: Predictive  # (n,)
    truth: Tensor  # (n,), on the models' scale
    feature: Tensor  # (n,): the feature of each value
    binary: Tensor  # (n,): whether the feature is binary, even if the model treats it as a number
    weights: Tensor | None = None  # (n,): of the values; None: all 1
    # (n, parts): residuals of neighbours by which the local part moves a prediction at strength 1
    local: Tensor | None = None
    # (n,): the unit of errors, where features have scales of their own that the model did not know; None: 1
    unit: Tensor | None = None

    def at(self, values: slice | Tensor) -> Outcome:
        """Return the outcome of some ``values``, a slice or a mask (n,)."""
        weights = None if self.weights is None else self.weights[values]
        local = None if self.local is None else self.local[values]
        unit = None if self.unit is None else self.unit[values]
        parts = (self.truth[values], self.feature[values], self.binary[values])
        return Outcome(self.predictive.at(values), *parts, weights, local, unit)

    def weighted(self, numbers: Tensor) -> Tensor:
        """Multiply ``numbers`` of the values (n,) by their weights."""
        return numbers if self.weights is None else numbers * self.weights.to(numbers.dtype)

    def weighted_squares(self, squares: Tensor) -> Tensor:
        """Multiply squares or products of errors (n,) by the weights of values, in units of errors."""
        return self.weighted(squares if self.unit is None else squares / self.unit.to(squares.dtype) ** 2)

    @property
    def features(self) -> int:
        """The number of features."""
        return len(torch.unique(self.feature))

    @property
    def ratios(self) -> Tensor:
        """The absolute errors in standard deviations: (n,)."""
        return (self.predictive.mean - self.truth).abs() / self.predictive.std

    def numeric_kinds(self) -> Iterator[tuple[int, Tensor]]:
        """Yield each kind whose values have intervals, not probabilities, with the mask of its values."""
        kinds = self.predictive.kinds
        for kind in set(kinds[~self.binary].tolist()) - {int(KindType.CLICK)}:
            yield kind, (kinds == kind) & ~self.binary


@dataclass(frozen=True)
class RowOutcomes:
    """Predictions of known features at rows that were held out, and the true values."""

    outcome: Outcome  # its ``feature`` contains the rows
    shots: Tensor  # (n,): the number of observations of the feature of each value
    observed: Tensor  # (n,): the number of observations of its row that the prediction is made from


class CalibrationTable(NamedTuple):
    """Corrections by number of shots, in numpy: of new features, then of known features."""

    factors: NDArray[np.float64]  # (kinds, 2 × shots, levels)
    slopes: NDArray[np.float64]  # (2 × shots,)
    shifts: NDArray[np.float64]  # (2 × shots,)
    click_slopes: NDArray[np.float64]  # (2 × shots,)
    click_shifts: NDArray[np.float64]  # (2 × shots,)
    click_least: NDArray[np.float64]  # (2 × shots,)


@dataclass(frozen=True)
class Calibration:
    """Corrections of predictions by kind and shots, estimated at a few numbers of shots (``marks``).

    The standard deviation of a rating or real is multiplied by a factor for each of the ``LEVELS``, such that
    the interval contains this fraction of held-out values. The logit of a binary prediction, or of the
    probability of a click, is multiplied by a slope and shifted (Platt scaling). Corrections are interpolated
    linearly in log(1 + shots) between marks, and constant beyond the last one.

    They are measured on features that were held out. Known features, whose observations trained the backbone,
    have a further correction, measured on rows that were held out (``fit_known``): their factors are
    multiplied by ``known_factors``. The same for their logits made probabilities worse.
    """

    marks: Tensor  # (marks,): numbers of shots, ascending
    factors: Tensor  # (kinds, marks, levels)
    slopes: Tensor  # (marks,)
    shifts: Tensor  # (marks,)
    click_slopes: Tensor  # (marks,)
    click_shifts: Tensor  # (marks,)
    click_least: Tensor  # (marks,): see ``click_log_odds``
    edge: Tensor  # (1,): of the logits of binary predictions, see ``soft_logit``
    level_strength: Tensor  # (1,): of the rows' differences in known categories, see ``level_chances``
    known_factors: Tensor  # (kinds, levels)

    @classmethod
    @torch.no_grad()
    def fit(cls, outcomes: Mapping[int, Outcome], marks: tuple[int, ...], *, by_level: bool) -> Calibration:
        """Estimate the corrections from outcomes.

        A mark without outcomes gets the corrections of the last mark with outcomes.

        Parameters
        ----------
        outcomes : dict
            Predictions and true values, by number of shots.
        marks : tuple of int
            The numbers of shots of the calibration, ascending.
        by_level : bool
            Whether to calibrate the interval of each level. Otherwise the standard deviation becomes that of
            the errors, for heads without uncertainty.
        """
        calibration = cls.none(marks)
        calibration.edge.fill_(max((_logit_edge(outcome) for outcome in outcomes.values()), default=_EDGE))
        for column, shots in enumerate(marks):
            outcome = outcomes.get(shots)
            if outcome is None:
                continue
            share, ratios = shrinkage(outcome.features), outcome.ratios
            for kind, of_kind in outcome.numeric_kinds():
                kind_ratios, weights = ratios[of_kind], outcome.at(of_kind).weights
                calibration.factors[kind, column:] = (
                    _interval_factors(kind_ratios, share, weights)
                    if by_level
                    else _weighted_mean(kind_ratios**2, weights).sqrt()
                )
            if bool(outcome.binary.any()):
                of_binary = outcome.at(outcome.binary)
                logits = calibration.logits(of_binary.predictive.mean, of_binary.predictive.std)
                slope, shift = _platt(logits, of_binary.truth, share, of_binary.weights)
                calibration.slopes[column:], calibration.shifts[column:] = slope, shift
            clicks = is_click(outcome.predictive.kinds)
            if bool(clicks.any()):
                of_clicks = outcome.at(clicks)
                slope, shift, least = _click_terms(
                    of_clicks.predictive.mean, of_clicks.truth, share, of_clicks.weights
                )
                calibration.click_least[column:] = least
                calibration.click_slopes[column:], calibration.click_shifts[column:] = slope, shift
        return calibration

    @torch.no_grad()
    def fit_known(self, rows: RowOutcomes) -> Calibration:
        """Return the calibration with a correction of known features, estimated on held-out rows."""
        outcome, factors = rows.outcome, self.known_factors.clone()
        share, ratios = shrinkage(outcome.features), outcome.ratios
        for kind, of_kind in outcome.numeric_kinds():
            part = outcome.at(of_kind)
            current = self.factor(rows.shots[of_kind], part.predictive.kinds)  # (n, levels)
            for level in range(len(LEVELS)):
                by_level = _interval_factors(ratios[of_kind] / current[:, level], share, part.weights)
                factors[kind, level] = by_level[level]
        return replace(self, known_factors=factors)

    @classmethod
    def none(cls, marks: tuple[int, ...]) -> Calibration:
        """Return a calibration that changes nothing."""
        factors = torch.ones(VALUE_TYPES, len(marks), len(LEVELS))
        ones, zeros = torch.ones(len(marks)), torch.zeros(len(marks))
        least = torch.full((len(marks),), LEAST_CHANCE)
        clicks, known = (ones.clone(), zeros.clone(), least), factors[:, 0].clone()
        edge = torch.full((1,), _EDGE)
        return cls(torch.tensor(marks), factors, ones, zeros, *clicks, edge, torch.ones(1), known)

    def factor(self, shots: Tensor, kinds: Tensor, known: Tensor | None = None) -> Tensor:
        """Return the factors for features with ``shots`` and ``kinds`` (features,): (features, levels).

        ``known`` (features,) is the mask of known features; None: all are new. The factors are 1 for clicks,
        whose probabilities are corrected instead.
        """
        left, right, share = interpolate_shots(self.marks, shots)
        rows = kinds.clamp(max=VALUE_TYPES - 1)
        factors = torch.lerp(self.factors[rows, left], self.factors[rows, right], share[:, None])
        if known is not None:
            factors = torch.where(known[:, None], factors * self.known_factors[rows], factors)
        return torch.where((kinds < VALUE_TYPES)[:, None], factors, 1.0)

    @cached_property
    def table(self) -> CalibrationTable:
        """The corrections for 0, 1, 2, … shots up to the last mark; beyond it they are constant."""
        shots = torch.arange(int(self.marks[-1]) + 1).repeat(2)
        known = torch.arange(2).repeat_interleave(len(shots) // 2) == 1
        kinds = torch.arange(len(KindType))
        factors = torch.stack([self.factor(shots, kind.expand(len(shots)), known) for kind in kinds])
        terms = (*self.logit_terms(shots), *self.click_terms(shots))
        return CalibrationTable(*(part.double().numpy() for part in (factors, *terms)))

    def at(self, shots: NDArray[np.int64], known: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return the positions in ``table`` of features with ``shots``; ``known`` are known (a mask)."""
        most = len(self.table.slopes) // 2
        positions: NDArray[np.int64] = np.minimum(shots, most - 1) + known * most
        return positions

    def one_factor(self, shots: int, kind: int) -> float:
        """Return the factor of ``USUAL_LEVEL`` for one feature, as if it were new."""
        factors = self.table.factors
        return float(factors[kind, min(shots, factors.shape[1] // 2 - 1), USUAL_LEVEL])

    @cached_property
    def spread(self) -> float | None:
        """The usual standard deviation of 0 and 1 that are predicted as numbers; None: as probabilities."""
        rarer = float(self.edge) / _EDGE_SHARE
        return (rarer * (1 - rarer)) ** 0.5 if float(self.edge) > _EDGE else None

    def logits(self, mean: Tensor, std: Tensor) -> Tensor:
        """Return the logits of binary predictions (n,), in double precision; see ``binary_logit``."""
        logits: Tensor = binary_logit(mean.double(), std.double(), float(self.edge), self.spread)
        return logits

    def probability(self, mean: Tensor, std: Tensor, shots: Tensor) -> Tensor:
        """Return the corrected probabilities of binary features with ``shots`` (features,): (…, features).

        ``mean`` and ``std`` (…, features) are the moments of their predictions.
        """
        slope, shift = self.logit_terms(shots)
        return torch.sigmoid(self.logits(mean, std) * slope + shift)

    def click_probability(self, probability: Tensor, shots: Tensor) -> Tensor:
        """Correct the ``probability`` (…, features) of clicks on features with ``shots`` (features,)."""
        slope, shift, least = self.click_terms(shots)
        return torch.sigmoid(click_log_odds(probability, least)[0] * slope + shift)

    def logit_terms(self, shots: Tensor) -> tuple[Tensor, Tensor]:
        """Return slope and shift of the logits of binary features with ``shots``: two of (features,)."""
        left, right, share = interpolate_shots(self.marks, shots)
        slope, shift = (torch.lerp(part[left], part[right], share) for part in (self.slopes, self.shifts))
        return slope, shift

    def click_terms(self, shots: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return slope, shift and least probability of clicks on features with ``shots``: (features,)."""
        left, right, share = interpolate_shots(self.marks, shots)
        parts = (self.click_slopes, self.click_shifts, self.click_least)
        slope, shift, least = (torch.lerp(part[left], part[right], share) for part in parts)
        return slope, shift, least


def shrinkage(features: int) -> float:
    """Return the weight of an estimate from some ``features``; the rest is the weight of its usual value.

    >>> shrinkage(10)
    0.5
    """
    return features / (features + SHRINKAGE_FEATURES)


def _logit_edge(outcome: Outcome) -> float:
    """Return the edge of the logits of binary values, which are probabilities or numbers."""
    numbers = outcome.binary & (outcome.predictive.kinds != KindType.BINARY)
    if not bool(numbers.any()):
        return _EDGE
    share = float(outcome.truth[numbers].double().mean())
    return max(_EDGE, _EDGE_SHARE * min(share, 1 - share))


def _interval_factors(ratios: Tensor, share: float, weights: Tensor | None) -> Tensor:
    """Return factors of the intervals with which each level contains its fraction of errors: (levels,).

    ``ratios`` (n,) are absolute errors in standard deviations, ``weights`` (n,) their weights in the
    fractions. ``share`` of the correction is applied.
    """
    ordered, order = ratios.sort()
    if weights is None:
        ranks = torch.tensor([max(1, min(len(ratios), round(level * len(ratios)))) for level in LEVELS])
    else:
        shares = weights[order].double().cumsum(0) / weights.double().sum()
        levels = torch.tensor(LEVELS, dtype=torch.float64, device=ratios.device)
        # Equal weights give the rounded ranks of no weights.
        ranks = torch.searchsorted(shares, levels - 0.5 / len(ratios)) + 1
        ranks = ranks.clamp(max=len(ratios))
    factors = ordered[ranks - 1] / ratios.new_tensor(_QUANTILES)
    return factors.clamp(0.2, 5.0) ** share


def _weighted_mean(numbers: Tensor, weights: Tensor | None) -> Tensor:
    """Return the mean of ``numbers`` (n,) with ``weights`` (n,)."""
    return numbers.mean() if weights is None else (numbers * weights).sum() / weights.sum()


def _click_terms(
    probability: Tensor, truth: Tensor, share: float, weights: Tensor | None
) -> tuple[float, float, float]:
    """Return slope, shift and least probability of the log-odds of clicks that maximise the likelihood.

    The least probability is one of ``_LEAST_SHARES`` of the mean.
    """
    mean, fits = float(_weighted_mean(truth.double(), weights)), []
    counts = torch.ones_like(truth) if weights is None else weights
    for least_share in _LEAST_SHARES:
        least = max(least_share * mean, LEAST_CHANCE)
        log_odds = click_log_odds(probability.double(), least)[0]
        slope, shift = _platt(log_odds, truth, share, weights)
        outputs = slope * log_odds + shift
        losses = counts.double() * (torch.nn.functional.softplus(outputs) - truth.double() * outputs)
        fits.append((float(losses.sum()), slope, shift, least))
    return min(fits)[1:]


def _platt(logits: Tensor, truth: Tensor, share: float, weights: Tensor | None = None) -> tuple[float, float]:
    """Return slope and shift of the logits that maximise the likelihood (Platt scaling).

    The prior N((1, 0), I) shrinks the estimate from few values to no change. The penalised likelihood is
    concave; projected Newton steps with a line search find its maximum within bounds. ``share`` of the
    correction is applied, or none if it does not increase the likelihood of the values, which count by
    ``weights`` (n,).
    """
    inputs = torch.stack([logits.double(), torch.ones_like(logits.double())], dim=1)  # (n, 2)
    truth = truth.double()
    counts = torch.ones_like(truth) if weights is None else weights.double()
    no_change = torch.tensor([1.0, 0.0], dtype=torch.float64)
    low, high = _PLATT_BOUNDS

    def log_likelihood(coefficients: Tensor) -> Tensor:
        outputs = inputs @ coefficients
        return (counts * (truth * outputs - torch.nn.functional.softplus(outputs))).sum()

    def objective(coefficients: Tensor) -> Tensor:
        return log_likelihood(coefficients) - (coefficients - no_change).square().sum() / 2

    coefficients = no_change
    for _ in range(_MAX_NEWTON_STEPS):
        expected = torch.sigmoid(inputs @ coefficients)
        gradient = inputs.T @ (counts * (truth - expected)) - (coefficients - no_change)
        at_bound = ((coefficients <= low) & (gradient < 0)) | ((coefficients >= high) & (gradient > 0))
        curvature = (inputs * (counts * expected * (1 - expected))[:, None]).T @ inputs + torch.eye(2)
        curvature = torch.where(at_bound[:, None] | at_bound[None], torch.eye(2), curvature)
        step = torch.linalg.solve(curvature, torch.where(at_bound, 0.0, gradient))
        if float(step.abs().max()) < _SMALLEST_STEP:
            break
        current = objective(coefficients)
        for halvings in range(_MAX_HALVINGS):
            candidate = (coefficients + step / 2**halvings).clamp(low, high)
            if objective(candidate) > current:
                break
        else:
            break  # no step improves the objective any more
        coefficients = candidate
    corrected = torch.stack([coefficients[0] ** share, coefficients[1] * share])
    if not log_likelihood(corrected) > log_likelihood(no_change):
        corrected = no_change
    return float(corrected[0]), float(corrected[1])
