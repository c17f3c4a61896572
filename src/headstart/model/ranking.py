"""Rank features for a row and rows for a feature."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.core.predictive import grid_logits, predict_grid
from headstart.core.types import Heads, RowStates
from headstart.errors import InputError, did_you_mean, for_user, option_name
from headstart.model.features import Feature, FeatureColumns
from headstart.model.prediction import predict_features
from headstart.model.state import ModelState
from headstart.model.suggestion import Weights, greedy_design, information
from headstart.table import Names
from headstart.table.kinds import KindType
from headstart.table.names import as_name
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
            raise InputError(f"{option_name('by')} must be one of {ways}; got {self.by!r}{hint}")
        number = isinstance(self.quantile, (int, float)) and not isinstance(self.quantile, bool)
        if not number or not 0.5 <= self.quantile < 1:
            raise InputError(
                f"{option_name('quantile')} must be a number from 0.5 up and below 1; got {self.quantile!r}"
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
    def at(cls, fitted: ModelState, listing: FeatureColumns, slots: Tensor | slice) -> Candidates:
        """The features whose heads are stored in these slots."""
        types = torch.from_numpy(listing.types)[slots]
        shots = torch.from_numpy(listing.shots)[slots]
        kinds = torch.from_numpy(listing.kinds)
        return cls(fitted.catalogue.stored(slots), types, fitted.modelled(types), shots, kinds)


def scores(
    fitted: ModelState,
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


def _factor_at(fitted: ModelState, candidates: Candidates, level: float) -> Tensor:
    """By what calibration multiplies the reach of an interval of this level: (features,)."""
    factors = fitted.calibration.factor(candidates.shots, candidates.modelled)
    right = int(np.clip(np.searchsorted(LEVELS, level), 1, len(LEVELS) - 1))
    share = (level - LEVELS[right - 1]) / (LEVELS[right] - LEVELS[right - 1])
    return torch.lerp(factors[:, right - 1], factors[:, right], float(np.clip(share, 0, 1)))


def _normal_quantile(quantile: float) -> float:
    from scipy.special import ndtri  # imported here: few uses of a model need SciPy

    return float(ndtri(quantile))


def require_same_units(listing: FeatureColumns, slots: NDArray[np.int64], what: str) -> None:
    """Refuse features whose values cannot be compared, because their kinds or units differ."""
    odd = listing.odd if slots is listing.present else listing.unlike(slots)
    if odd is None:
        return
    both = (listing.features[slots[0]], listing.features[odd])
    names = " and ".join(f"{each.name!r} is {each.kind}" for each in both if each is not None)
    raise InputError(
        f"{what} compares values of one kind, but {names}; "
        f"name features of one kind ({option_name('features')}), or compare on a common scale "
        f"({for_user('mixed_kinds=True', '--mixed-kinds')})"
    )


class Ranked(NamedTuple):
    """One line of a ranking, in the data's own units."""

    name: str
    score: float
    mean: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class Ranking:
    """Features for one row, or rows for one feature, best first.

    Iterating gives ``Ranked`` lines; ``names`` are the names alone. Equal scores are in the order of the
    model's own features or rows.

    Attributes
    ----------
    of : str
        The row that features were ranked for, or the feature that rows were ranked for.
    noun : str
        What is ranked: ``"feature"`` or ``"row"``.
    by : str
        What the ranking goes by: ``"mean"``, ``"upper"`` or ``"information"``.
    names : tuple of str
        The names, best first.
    score : ndarray of shape (n,)
        What was compared. By mean and upper it is in the data's units, or on the models' scale where kinds
        are mixed, and not cut off at a rating's ends. By information it is by how much the mean variance of
        predictions falls, on the models' scale.
    mean, std, low, high : ndarray of shape (n,)
        The predictions and their intervals, as ``predict`` gives them.
    level : float
        The probability that an interval contains the value.
    """

    of: str
    noun: str
    by: By
    names: tuple[str, ...]
    score: NDArray[np.float64]
    mean: NDArray[np.float64]
    std: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    level: float

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[Ranked]:
        numbers = (array.tolist() for array in (self.score, self.mean, self.low, self.high))
        return map(Ranked._make, zip(self.names, *numbers, strict=True))

    def __getitem__(self, place: int) -> Ranked:
        numbers = (array[place].item() for array in (self.score, self.mean, self.low, self.high))
        return Ranked(self.names[place], *numbers)

    def to_arrow(self) -> pa.Table:
        """One line per name: its name, score, mean, std, low and high."""
        columns = {"score": self.score, "mean": self.mean, "std": self.std, "low": self.low}
        return pa.table({self.noun: pa.array(self.names, pa.string()), **columns, "high": self.high})

    def to_pandas(self) -> Any:
        """The same as a pandas frame; pandas must be installed."""
        return self.to_arrow().to_pandas()

    def __repr__(self) -> str:
        other = "row" if self.noun == "feature" else "feature"
        title = f"{len(self)} {self.noun}s for {other} {self.of!r}, by {self.by}"
        width = max((len(name) for name in self.names), default=0)
        lines = [
            f"{place:>3}  {each.name:<{width}}  {each.mean:.4g}  ({each.low:.4g} – {each.high:.4g})"
            for place, each in enumerate(self, start=1)
        ]
        return "\n".join([title, *lines])


_SLACK = 16  # candidates kept beyond those asked for, because single precision may exchange neighbours

_ROUNDING = 1e-5  # of scores in single precision, relative to the largest, by far enough

_CELLS_AT_ONCE = 1 << 21


def top_candidates(
    score: Callable[[slice], Tensor], lines: int, total: int, n: int, at_once: int | None = None
) -> list[Tensor]:
    """Return, for each line, the candidates that may be among its ``n`` best, in no order.

    ``score`` gives the scores of a slice of the ``total`` candidates in single precision, (lines, …), −∞
    for one that is left out. Only a running choice is kept. A candidate is returned if it could be among
    the best once rounding is taken into account, however many there are. ``at_once`` is the length of the
    slices; by default as many as memory allows.
    """
    at_once = at_once or max(1024, _CELLS_AT_ONCE // max(1, lines))
    parts = [slice(start, min(start + at_once, total)) for start in range(0, total, at_once)]
    values = torch.zeros(lines, 0)
    index = torch.zeros(lines, 0, dtype=torch.int64)
    for part in parts:
        found = score(part)
        some, where = torch.topk(found, min(n + _SLACK, found.shape[1]), dim=1)
        values, index = torch.cat([values, some], dim=1), torch.cat([index, where + part.start], dim=1)
        if values.shape[1] > n + _SLACK:
            values, kept = torch.topk(values, n + _SLACK, dim=1)
            index = index.gather(1, kept)
    if values.shape[1] == 0:
        return [index[0]] * lines if lines else []
    values, order = values.sort(dim=1, descending=True)
    index = index.gather(1, order)
    size = torch.where(values.isfinite(), values.abs(), 0.0).amax(1).clamp(min=1)
    least = values[:, min(n, values.shape[1]) - 1] - _ROUNDING * size
    enough = (values[:, -1] < least) | (values.shape[1] == total) | ~values[:, -1].isfinite()
    near = (values >= least[:, None]) & values.isfinite()
    return [
        index[line, near[line]] if enough[line] else _all_near(score, parts, line, float(least[line]))
        for line in range(lines)
    ]


def _all_near(score: Callable[[slice], Tensor], parts: list[slice], line: int, least: float) -> Tensor:
    """All candidates of a line from a score on: many are alike."""
    return torch.cat([torch.nonzero(score(part)[line] >= least)[:, 0] + part.start for part in parts])


_ROWS_AT_ONCE = 256

_HEADS_AT_ONCE = 4096


@dataclass(frozen=True)
class Asker:
    """A row that features are ranked for."""

    name: str
    position: int | None  # in the model; None for a row that it does not keep
    given: tuple[str, ...] = ()  # the features that such a row was described by


NONE = np.zeros(0, dtype=np.int64)

Chosen = tuple[NDArray[np.int64], NDArray[np.float64]]


@torch.no_grad()
def best_features(
    fitted: ModelState,
    askers: Sequence[Asker],
    states: RowStates,
    n: int,
    features: Sequence[Any] | None,
    criterion: Criterion,
    *,
    exclude_observed: bool,
    mixed_kinds: bool,
) -> list[Chosen]:
    """The slots of the best features for each row of these states, best first, and their scores."""
    listing = fitted.catalogue.listing
    slots = _slots_of(fitted, listing, features)
    if criterion.by != "information" and not mixed_kinds and len(slots):
        require_same_units(listing, slots, for_user("recommend()", "headstart recommend"))
    if exclude_observed:
        require_contexts(listing, slots)
    left_out = [_observed(fitted, listing, asker) if exclude_observed else NONE for asker in askers]
    rank = _most_informative_features if criterion.by == "information" else _highest_features
    found: list[Chosen] = []
    for start in range(0, len(askers), _ROWS_AT_ONCE):
        part = slice(start, start + _ROWS_AT_ONCE)
        found += rank(fitted, listing, slots, states.take(part), n, criterion, left_out[part])
    if criterion.by == "information" or mixed_kinds:
        return found
    return [(best, score * listing.spans[best] + listing.offsets[best]) for best, score in found]


def rankings(
    fitted: ModelState,
    askers: Sequence[Asker],
    states: RowStates,
    best: Sequence[Chosen],
    criterion: Criterion,
    level: float,
) -> list[Ranking]:
    """What ``best_features`` found for each row, with predictions."""
    listed, found = fitted.catalogue.listing.features, []
    for line, (asker, (chosen, score)) in enumerate(zip(askers, best, strict=True)):
        names, one = [listed[slot].name for slot in chosen], states.take(slice(line, line + 1))
        found.append(_ranking_of_features(fitted, asker.name, one, names, score, criterion, level))
    return found


def _slots_of(
    fitted: ModelState, listing: FeatureColumns, features: Sequence[Any] | None
) -> NDArray[np.int64]:
    if features is None:
        return listing.present
    return np.unique(np.array(fitted.catalogue.slots(features), dtype=np.int64))


def require_contexts(listing: FeatureColumns, slots: NDArray[np.int64]) -> None:
    """Refuse to leave out what is observed where that is not known."""
    fixed = slots[listing.fixed[slots]] if listing.any_fixed else NONE
    if len(fixed):
        name = listing.features[fixed[0]].name
        raise InputError(
            f"feature {name!r} was trained into the backbone, and the model does not hold which rows "
            f"observed it; {for_user('pass exclude_observed=False', 'use --include-observed')}, or fit with "
            f"{option_name('adapter', 'bayes')}"
        )


def _observed(fitted: ModelState, listing: FeatureColumns, asker: Asker) -> NDArray[np.int64]:
    if asker.position is None:
        return np.unique(np.array(fitted.catalogue.slots(asker.given), dtype=np.int64))
    held = listing.observed_by(asker.position)
    observations = fitted.roster.observations(asker.position)
    if observations is None:
        return held
    own = fitted.catalogue.slots_by_number(observations.keys)
    return np.union1d(held, own[own >= 0])


def _highest_features(
    fitted: ModelState,
    listing: FeatureColumns,
    slots: NDArray[np.int64],
    states: RowStates,
    n: int,
    criterion: Criterion,
    left_out: Sequence[NDArray[np.int64]],
) -> list[Chosen]:
    """The slots of the highest scores for each row, with their scores in double precision."""
    total = len(listing.places)
    walk = None if 3 * len(slots) > total else slots  # None: all heads are read as they lie
    never = None
    if walk is None and len(slots) < total:
        never = torch.ones(total, dtype=torch.bool)
        never[torch.from_numpy(slots)] = False
    lines, hidden = _hidden(walk, left_out)

    def score(part: slice) -> Tensor:
        where = part if walk is None else torch.from_numpy(walk[part])
        found = scores(fitted, criterion, Candidates.at(fitted, listing, where), states, torch.float32)
        if never is not None:
            found[:, never[part]] = -torch.inf
        begin, end = np.searchsorted(hidden, [part.start, part.stop])
        found[lines[begin:end], hidden[begin:end] - part.start] = -torch.inf
        return found

    chosen = []
    found = top_candidates(score, len(states), total if walk is None else len(walk), n)
    for line, near in enumerate(found):
        some = near.numpy() if walk is None else walk[near.numpy()]
        candidates, one = Candidates.at(fitted, listing, torch.from_numpy(some)), slice(line, line + 1)
        exact = scores(fitted, criterion, candidates, states.take(one))[0].numpy()
        # Products of matrices round the same numbers differently by where they stand: what is alike stays so.
        alike = np.round(exact / max(1.0, float(np.abs(exact).max(initial=0.0))), 12)
        order = np.lexsort((listing.places[some], -alike))[:n]
        chosen.append((some[order], exact[order]))
    return chosen


def _hidden(
    walk: NDArray[np.int64] | None, left_out: Sequence[NDArray[np.int64]]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """What each line leaves out, as lines and places in the ascending ``walk``, in the order of places."""
    lines = np.repeat(np.arange(len(left_out)), [len(each) for each in left_out])
    places = np.concatenate([*left_out, NONE])
    if walk is not None:
        slots, places = places, np.searchsorted(walk, places)
        inside = places < len(walk)
        inside[inside] = walk[places[inside]] == slots[inside]
        lines, places = lines[inside], places[inside]
    order = np.argsort(places, kind="stable")
    return lines[order], places[order]


def _most_informative_features(
    fitted: ModelState,
    listing: FeatureColumns,
    slots: NDArray[np.int64],
    states: RowStates,
    n: int,
    criterion: Criterion,  # noqa: ARG001
    left_out: Sequence[NDArray[np.int64]],
) -> list[Chosen]:
    """The features whose observation would tell most about each row.

    As in ``suggest`` with the parts exchanged: the unknown is the row's activation, of the variance that
    the backbone gives. What a head is unsure of counts as noise.
    """
    if states.variance is None:
        raise InputError(
            f"{option_name('by', 'information')} needs a backbone that knows how sure it is of rows; "
            "fit with "
            f"{option_name('backbone', 'factorisation')}"
        )
    every = _second_moment_of_weights(fitted, listing.present)
    found = []
    for line, hidden in enumerate(left_out):
        some = np.setdiff1d(slots, hidden)
        where = torch.from_numpy(some[np.argsort(listing.places[some], kind="stable")])
        one = states.take(slice(line, line + 1))
        noise = _noise_of_answers(fitted, listing, where, one)
        covariance = torch.diag(one.variance[0].double())  # type: ignore[index]
        weights = Weights(fitted.catalogue.stored(where).weight)
        chosen, gains = greedy_design(weights, noise, covariance, every, n)
        found.append((where.numpy()[chosen], np.array(gains)))
    return found


def _second_moment_of_weights(fitted: ModelState, slots: NDArray[np.int64]) -> Tensor:
    """E[w·wᵀ] over all features: by it the variance of a row's activation is that of its predictions."""
    weights = [fitted.catalogue.stored(part).weight.double() for part in _parts(torch.from_numpy(slots))]
    return sum(each.T @ each for each in weights) / max(1, len(slots))  # type: ignore[return-value]


def _noise_of_answers(fitted: ModelState, listing: FeatureColumns, slots: Tensor, one: RowStates) -> Tensor:
    """The variance of one row's observation of each feature, about what its activation says: (features,)."""
    known = RowStates(one.code, one.code_std, one.activation, one.noise)
    found = [torch.zeros(0, dtype=torch.float64)]
    for part in _parts(slots):
        some = Candidates.at(fitted, listing, part)
        grid = predict_grid(some.heads, known, some.modelled, fitted.knowledge.likelihood)
        found.append((grid.output_noise() + grid.variance)[0])
    return torch.cat(found)


def _parts(slots: Tensor) -> Sequence[Tensor]:
    return torch.split(slots, _HEADS_AT_ONCE)


def _ranking_of_features(
    fitted: ModelState,
    row: str,
    state: RowStates,
    names: list[str],
    score: NDArray[np.float64],
    criterion: Criterion,
    level: float,
) -> Ranking:
    prediction = predict_features(fitted, Names([row], "row"), state, names)
    low, high = prediction.interval(level)
    mean, std = prediction.mean[0], prediction.std[0]
    return Ranking(row, "feature", criterion.by, tuple(names), score, mean, std, low[0], high[0], level)


_AUDIENCE_AT_ONCE = 1 << 14  # whose activations stay in the cache


@torch.no_grad()
def audience(
    fitted: ModelState,
    feature: object,
    n: int,
    rows: Sequence[Any] | None,
    criterion: Criterion,
    *,
    exclude_observed: bool,
    level: float,
) -> Ranking:
    """Rank rows for one feature, best first."""
    (own,), heads = fitted.catalogue.take([feature])
    if exclude_observed:
        require_contexts(fitted.catalogue.listing, np.array(fitted.catalogue.slots([feature])))
    everyone = candidate_rows(fitted, rows, fitted.observers(own) if exclude_observed else NONE)
    if criterion.by == "information":
        places, score = _most_informative_rows(fitted, heads, own, everyone, n)
    else:
        places, score = _highest_rows(fitted, heads, own, everyone, n, criterion)
    names = [fitted.rows[place] for place in places]
    states = fitted.roster.take(places)
    prediction = predict_features(fitted, Names(names, "row"), states, [own.name])
    low, high = prediction.interval(level)
    mean, std, low, high = (part[:, 0] for part in (prediction.mean, prediction.std, low, high))
    return Ranking(own.name, "row", criterion.by, tuple(names), score, mean, std, low, high, level)


def candidate_rows(
    fitted: ModelState, rows: Sequence[Any] | None, seen: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The positions of the rows given, or of all, without those ``seen``, in ascending order."""
    if rows is None:
        wanted = np.ones(len(fitted.rows), dtype=bool)
    else:
        wanted = np.zeros(len(fitted.rows), dtype=bool)
        wanted[fitted.rows.positions([as_name(row, "row") for row in rows])] = True
    wanted[seen] = False
    return np.flatnonzero(wanted)


def _highest_rows(
    fitted: ModelState,
    heads: Heads,
    own: Feature,
    candidates: NDArray[np.int64],
    n: int,
    criterion: Criterion,
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The rows of the highest scores, and these in the data's units."""
    kinds = torch.tensor([own.kind.type])
    feature = Candidates(heads, kinds, fitted.modelled(kinds), torch.tensor([own.shots]), kinds)
    roster, walk, hidden = fitted.roster, candidates, np.zeros(len(candidates), dtype=bool)
    everyone = 3 * len(candidates) > len(fitted.rows)
    if everyone:  # then all states are read as they lie, which does not move them after a change
        slots = roster.slots()
        hidden = np.ones(int(slots.max(initial=-1)) + 1, dtype=bool)
        hidden[slots[candidates]] = False
        walk = np.full(len(hidden), -1)
        walk[slots] = np.arange(len(slots))

    def score(part: slice) -> Tensor:
        states = roster.stored(part) if everyone else roster.take(walk[part])
        found = scores(fitted, criterion, feature, states, torch.float32)[:, 0]
        return torch.where(torch.from_numpy(hidden[part]), -torch.inf, found)[None]

    (near,) = top_candidates(score, 1, len(walk), n, _AUDIENCE_AT_ONCE)
    some = np.sort(walk[near.numpy()])
    exact = scores(fitted, criterion, feature, roster.take(some))[:, 0].numpy()
    order = np.argsort(-exact, kind="stable")[:n]
    return some[order], exact[order] * own.kind.span + own.kind.offset


def _most_informative_rows(
    fitted: ModelState, heads: Heads, own: Feature, candidates: NDArray[np.int64], n: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The rows that ``suggest`` names, with what each of them adds."""
    if not fitted.adapter.gives_uncertainty:
        raise InputError(
            f"{option_name('by', 'information')} needs an adapter that knows how sure it is; fit with "
            f"{option_name('adapter', 'bayes')}"
        )
    kind, likelihood = int(fitted.kinds_of([own])), fitted.knowledge.likelihood
    chosen, gains = information(heads, fitted.states, torch.from_numpy(candidates), kind, n, likelihood)
    return candidates[chosen], np.array(gains)
