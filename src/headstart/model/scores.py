"""Score candidate features for rows by the criterion of a ranking."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, cast, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.core.neighbours import LocalPart
from headstart.core.predictive import Predictive, grid_logits, predict_grid
from headstart.core.types import Heads, RowStates
from headstart.errors import InputError, did_you_mean, option_name
from headstart.evaluate.metrics import COVERAGE
from headstart.evaluate.rankings import RELEVANT_RATING
from headstart.model.features import FeatureColumns
from headstart.model.inputs import seed_number
from headstart.model.local import local_part, row_residuals
from headstart.model.prediction import MAX_LEVEL, at_level
from headstart.model.state import ModelState
from headstart.table.kinds import KindType

By = Literal["mean", "lower", "upper", "sample", "lift", "relevance", "information"]


ScoredSlots = tuple[NDArray[np.int64], NDArray[np.float64]]  # of the best features, best first


@dataclass(frozen=True)
class Criterion:
    """The criterion of a ranking, checked.

    Attributes
    ----------
    by : {"mean", "lower", "upper", "sample", "lift", "relevance", "information"}
        The mean, a lower or upper quantile of the value, a random draw of the mean, the mean less that of an
        average row, the probability of a high value times the popularity of the feature, or the information
        that an observation would add.
    quantile : float
        The quantile of ``by="upper"``; that of ``by="lower"`` is 1 − ``quantile``.
    random_state : int
        The seed of ``by="sample"``.
    """

    by: By = "mean"
    quantile: float = 0.9
    random_state: int = 0

    def __post_init__(self) -> None:
        if self.by not in get_args(By):
            criteria = ", ".join(repr(criterion) for criterion in get_args(By))
            hint = did_you_mean(str(self.by), get_args(By))
            raise InputError(f"{option_name('by')} must be one of {criteria}; got {self.by!r}{hint}")
        number = isinstance(self.quantile, (int, float)) and not isinstance(self.quantile, bool)
        if not number or not 0.5 <= self.quantile <= MAX_LEVEL:
            raise InputError(
                f"{option_name('quantile')} must be a number from 0.5 to 0.999999999; got {self.quantile!r}"
            )
        seed_number(self.random_state)


@dataclass(frozen=True)
class Candidates:
    """Candidate features: their heads, and the properties that scores depend on."""

    heads: Heads
    types: Tensor  # (features,): the kinds of the features
    modelled: Tensor  # (features,): the kinds that the likelihood uses for them
    shots: Tensor  # (features,)
    known: Tensor  # (features,): whether each trained the backbone
    all_types: Tensor  # a superset of ``types``, without repetition
    local: LocalPart | None = None  # of the features; None: none has one

    @classmethod
    def at(cls, model: ModelState, columns: FeatureColumns, slots: Tensor | slice) -> Candidates:
        """Return the features whose heads are stored in ``slots``."""
        types = torch.from_numpy(columns.types)[slots]
        shots, known = (torch.from_numpy(part)[slots] for part in (columns.shots, columns.in_backbone))
        all_types = torch.from_numpy(columns.kinds)
        heads, modelled = model.feature_store.heads_at(slots), model.modelled_types(types)
        local = local_part(model, columns.features)
        if local is not None:
            whole = isinstance(slots, slice) and slots == slice(0, local.size)
            # An array, because a tensor of one element would be taken for a number.
            places = slots if isinstance(slots, slice) else slots.numpy()
            local = local if whole else local.take(np.arange(local.size)[places])
        return cls(heads, types, modelled, shots, known, all_types, local)

    def is_linear(self, model: ModelState) -> bool:
        """Return whether the mean of each candidate is its output, which does not depend on variances.

        The probability of a binary feature depends on them, even if it is modelled as a number.
        """
        types = model.modelled_types(self.all_types)
        return KindType.BINARY not in self.all_types and model.knowledge.likelihood.is_linear(types)

    def predict(self, model: ModelState, states: RowStates, dtype: torch.dtype) -> Predictive:
        """Predict every row at every candidate: (rows, features)."""
        predictive = predict_grid(self.heads, states, self.modelled, model.knowledge.likelihood, dtype)
        return (
            predictive if self.local is None else self.local.shift(predictive, row_residuals(model, states))
        )


def scores(
    model: ModelState,
    criterion: Criterion,
    candidates: Candidates,
    states: RowStates,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """Return the score of every row at every candidate, on the models' scale: (rows, features).

    A mean beyond the limits of a rating is not clipped, so that such values are ranked too. A lower or upper
    quantile is that of the value. The value of a binary feature has no quantiles except 0 and 1; there it is
    the quantile of the probability, given the uncertainty of head and row. A sample is a draw of the mean,
    given the uncertainty of head and row (Thompson sampling); each cell has its own.
    """
    if criterion.by == "lift":
        mean = replace(criterion, by="mean")
        usual = scores(model, mean, candidates, average_row(model), dtype)
        return scores(model, mean, candidates, states, dtype) - usual
    if criterion.by == "mean" and candidates.is_linear(model):
        if candidates.local is None:
            return grid_logits(candidates.heads, states, dtype)
        candidates = replace(candidates, heads=replace(candidates.heads, covariance=None))
        states = replace(states, variance=None)
    return score_predictions(model, criterion, candidates, states, candidates.predict(model, states, dtype))


def score_predictions(
    model: ModelState,
    criterion: Criterion,
    candidates: Candidates,
    states: RowStates,
    predictive: Predictive,
) -> Tensor:
    """Return the ``scores`` of predicted cells: (rows, features)."""
    if criterion.by == "relevance":
        return _relevance(model, candidates, predictive)
    scored = predictive.mean
    dtype = scored.dtype
    if criterion.by in ("lower", "upper"):
        deviations = _normal_quantile(criterion.quantile) * (1 if criterion.by == "upper" else -1)
        factor = _calibration_factor(model, candidates, 2 * criterion.quantile - 1).to(dtype)
        scored = scored + deviations * factor * predictive.std
        if KindType.BINARY in candidates.all_types:
            probability = _mean_at(predictive, deviations)
            scored = torch.where(candidates.types == KindType.BINARY, probability, scored)
    elif criterion.by == "sample":
        scored = _mean_at(predictive, _draws(criterion.random_state, states, candidates.heads).to(dtype))
    if KindType.BINARY in candidates.all_types:
        binary = candidates.types == KindType.BINARY
        shots, std = candidates.shots[binary], predictive.std[:, binary]
        probabilities = model.calibration.probability(scored[:, binary], std, shots)
        scored = scored.clone()
        scored[:, binary] = probabilities.to(dtype)
    if KindType.CLICK in candidates.all_types:
        clicks = candidates.types == KindType.CLICK
        probabilities = model.calibration.click_probability(scored[:, clicks], candidates.shots[clicks])
        scored = scored.clone()
        scored[:, clicks] = probabilities.to(dtype)
    return scored


def _relevance(model: ModelState, candidates: Candidates, predictive: Predictive) -> Tensor:
    """Return the probability that a row observes each candidate and likes it: (rows, features).

    A row observes a feature with the share of rows that have observed it. It likes a 1 of a binary feature,
    and a rating from three quarters of its scale upwards, as in the metrics of rankings.
    """
    if KindType.REAL in candidates.all_types:
        raise InputError(
            f"{option_name('by', 'relevance')} is for ratings, binary features and clicks, whose high values "
            "are preferred; other kinds have no common order"
        )
    mean, shots, dtype = predictive.mean, candidates.shots, predictive.mean.dtype
    factor = _calibration_factor(model, candidates, COVERAGE).to(dtype)
    liked: Tensor = torch.special.ndtr((mean - RELEVANT_RATING) / (factor * predictive.std))
    if KindType.BINARY in candidates.all_types:
        probability = model.calibration.probability(mean, predictive.std, shots).to(dtype)
        liked = torch.where(candidates.types == KindType.BINARY, probability, liked)
    if KindType.CLICK in candidates.all_types:
        click = model.calibration.click_probability(mean, shots).to(dtype)
        liked = torch.where(candidates.types == KindType.CLICK, click, liked)
    return liked * ((shots + 1) / (len(model.rows) + 1)).to(dtype)


def default_criterion(model: ModelState, by: By | None) -> By:
    """Return the criterion ``by``, or else the one that ranked best on held-out cells at the fit."""
    if by is not None or model.judgement is None:
        return by or "mean"
    return cast(By, model.judgement.ranking)


def average_row(model: ModelState) -> RowStates:
    """Return the state of a row with the mean activation of all rows: one row."""
    states = model.states.take(slice(0, 1))
    activation = model.states.second_moment[-1:, :-1].to(states.activation.dtype)
    return replace(states, activation=activation, variance=None, rows=None)


def _mean_at(predictive: Predictive, deviations: Tensor | float) -> Tensor:
    """Return the means if outputs are ``deviations`` of their standard deviations above the expected ones."""
    outputs = predictive.logits + deviations * predictive.variance.sqrt()
    certain = torch.zeros_like(outputs)
    return predictive.likelihood.predictive(outputs, certain, predictive.noise, predictive.kinds)[0]


_MULTIPLIERS = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # of SplitMix64


def _draws(random_state: int, states: RowStates, heads: Heads) -> Tensor:
    """Draw a standard normal number for each row and head, in double precision: (rows, heads).

    The draw is a hash of the seed, of the row's activation and of the head, so that it does not depend on the
    other rows and heads, nor on the precision.
    """
    from scipy.special import ndtri  # imported here: few uses of a model need SciPy

    with np.errstate(over="ignore"):
        rows = _hash(states.activation, np.uint64(random_state) * np.uint64(_MULTIPLIERS[0]))
        features = _hash(heads.stacked, np.uint64(random_state))
        mixed = _scramble(rows[:, None] ^ features)
    return torch.from_numpy(ndtri((mixed >> np.uint64(11)).astype(np.float64) / 2**53 + 2**-54))


def _hash(numbers: Tensor, start: np.uint64) -> NDArray[np.uint64]:
    """Return a hash of each line of ``numbers`` (lines, n) in single precision: (lines,)."""
    bits = numbers.float().contiguous().numpy().view(np.uint32).astype(np.uint64)
    weights = _scramble(np.arange(1, bits.shape[1] + 1, dtype=np.uint64) * np.uint64(_MULTIPLIERS[0]))
    return _scramble((bits * (weights | np.uint64(1))).sum(1, dtype=np.uint64) + start)


def _scramble(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the output function of SplitMix64 of each number."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(_MULTIPLIERS[1])
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(_MULTIPLIERS[2])
    return numbers ^ (numbers >> np.uint64(31))


def _calibration_factor(model: ModelState, candidates: Candidates, level: float) -> Tensor:
    """Return the calibration factors of the widths of intervals of probability ``level``: (features,)."""
    at = model.calibration.at(candidates.shots.numpy(), candidates.known.numpy())
    widths = at_level(model.calibration.table.factors, level)  # (kinds, positions in the table)
    return torch.from_numpy(widths[candidates.modelled.numpy(), at])


def _normal_quantile(quantile: float) -> float:
    from scipy.special import ndtri  # imported here: few uses of a model need SciPy

    return float(ndtri(quantile))
