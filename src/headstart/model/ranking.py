"""Rank features for a row and rows for a feature."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.core.predictive import grid_logits, predict_grid
from headstart.core.types import Heads, RowStates
from headstart.display import MAX_LINES, table_html, text_table
from headstart.errors import InputError, did_you_mean, for_user, option_name
from headstart.model.features import Feature, FeatureColumns
from headstart.model.inputs import (
    NEW_ROW,
    as_list,
    as_mapping,
    as_rows,
    encode_rows,
    is_observations,
    unique_names,
)
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
    """The criterion of a ranking: the mean, an upper quantile, or the information about the unknown."""

    by: By = "mean"
    quantile: float = 0.9

    def __post_init__(self) -> None:
        if self.by not in get_args(By):
            criteria = ", ".join(repr(criterion) for criterion in get_args(By))
            hint = did_you_mean(str(self.by), get_args(By))
            raise InputError(f"{option_name('by')} must be one of {criteria}; got {self.by!r}{hint}")
        number = isinstance(self.quantile, (int, float)) and not isinstance(self.quantile, bool)
        if not number or not 0.5 <= self.quantile < 1:
            raise InputError(
                f"{option_name('quantile')} must be a number from 0.5 up and below 1; got {self.quantile!r}"
            )


@dataclass(frozen=True)
class Candidates:
    """Heads with the properties of their features that scores depend on."""

    heads: Heads
    types: Tensor  # (features,): the kinds of the features
    modelled: Tensor  # (features,): the kinds that the likelihood uses for them
    shots: Tensor  # (features,)
    kinds: Tensor  # a superset of the kinds in ``types``, without repetition

    @classmethod
    def at(cls, fitted: ModelState, listing: FeatureColumns, slots: Tensor | slice) -> Candidates:
        """Return the features whose heads are stored in these slots."""
        types = torch.from_numpy(listing.types)[slots]
        shots = torch.from_numpy(listing.shots)[slots]
        kinds = torch.from_numpy(listing.kinds)
        return cls(fitted.catalogue.stored(slots), types, fitted.modelled_kinds(types), shots, kinds)


def scores(
    fitted: ModelState,
    criterion: Criterion,
    candidates: Candidates,
    states: RowStates,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """Return the score of every row at every feature, on the models' scale: (rows, features).

    The mean is not clipped at a rating's ends, so that values beyond them are ranked too. The upper quantile
    is the one of the value. For a binary feature, whose quantiles are 0 or 1, it is the quantile of its
    probability under the uncertainty of head and row.
    """
    likelihood, modelled = fitted.knowledge.likelihood, candidates.modelled
    if criterion.by == "mean" and not bool(
        likelihood.squashes(fitted.modelled_kinds(candidates.kinds)).any()
    ):
        scored = grid_logits(candidates.heads, states, dtype)
    else:
        predictive = predict_grid(candidates.heads, states, modelled, likelihood, dtype)
        scored = predictive.mean
        if criterion.by == "upper":
            deviations = _normal_quantile(criterion.quantile)
            offset = deviations * predictive.variance.sqrt()
            upper_probability = likelihood.predictive(
                predictive.logits + offset, torch.zeros_like(offset), predictive.noise, modelled
            )[0]
            factor = _calibration_factor(fitted, candidates, 2 * criterion.quantile - 1).to(dtype)
            upper_value = scored + deviations * factor * predictive.std
            scored = torch.where(candidates.types == KindType.BINARY, upper_probability, upper_value)
    if KindType.BINARY in candidates.kinds:
        binary = candidates.types == KindType.BINARY
        shots = candidates.shots[binary]
        probabilities = fitted.calibration.probability(scored[:, binary].clamp(0, 1), shots)
        scored = scored.clone()
        scored[:, binary] = probabilities.to(dtype)
    return scored


def _calibration_factor(fitted: ModelState, candidates: Candidates, level: float) -> Tensor:
    """Return the calibration factor of an interval's half-width at this level: (features,)."""
    factors = fitted.calibration.factor(candidates.shots, candidates.modelled)
    right = int(np.clip(np.searchsorted(LEVELS, level), 1, len(LEVELS) - 1))
    share = (level - LEVELS[right - 1]) / (LEVELS[right] - LEVELS[right - 1])
    return torch.lerp(factors[:, right - 1], factors[:, right], float(np.clip(share, 0, 1)))


def _normal_quantile(quantile: float) -> float:
    from scipy.special import ndtri  # imported here: few uses of a model need SciPy

    return float(ndtri(quantile))


def require_same_units(listing: FeatureColumns, slots: NDArray[np.int64], what: str) -> None:
    """Refuse features whose values cannot be compared, because their kinds or units differ."""
    different = listing.odd if slots is listing.present else listing.unlike(slots)
    if different is None:
        return
    both = (listing.features[slots[0]], listing.features[different])
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


@dataclass(frozen=True, eq=False, repr=False)
class Ranking:
    """Features for one row, or rows for one feature, best first.

    Iterating yields ``Ranked`` lines; ``names`` has the names alone. Equal scores are in the order of the
    model's features or rows.

    Attributes
    ----------
    of : str
        The row or feature that the ranking is for.
    noun : str
        What is ranked: ``"feature"`` or ``"row"``.
    by : str
        The criterion: ``"mean"``, ``"upper"`` or ``"information"``.
    names : tuple of str
        The names, best first.
    score : ndarray of shape (n,)
        The values of the criterion. Mean and upper quantile are in the data's units, or on the models' scale
        if kinds are mixed, and not clipped at a rating's ends. Information is the decrease of the mean
        variance of predictions, on the models' scale.
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
        """Return one line per name: its name, score, mean, std, low and high."""
        columns = {"score": self.score, "mean": self.mean, "std": self.std, "low": self.low}
        return pa.table({self.noun: pa.array(self.names, pa.string()), **columns, "high": self.high})

    def to_pandas(self) -> Any:
        """Return ``to_arrow`` as a pandas frame; pandas must be installed."""
        return self.to_arrow().to_pandas()

    @property
    def _title(self) -> str:
        other = "row" if self.noun == "feature" else "feature"
        return f"{len(self)} {self.noun}s for {other} {self.of!r}, by {self.by}"

    def _lines(self) -> list[tuple[object, ...]]:
        first = list(self)[:MAX_LINES]
        return [(line.name, line.mean, f"({line.low:.4g} – {line.high:.4g})") for line in first]

    def __repr__(self) -> str:
        more = [f"  … {len(self) - MAX_LINES} more"] if len(self) > MAX_LINES else []
        return "\n".join([self._title, *([text_table(self._lines())] if len(self) else []), *more])

    def _repr_html_(self) -> str:
        header = (self.noun, "mean", f"{self.level:.0%} interval")
        return table_html(header, self._lines(), self._title, total=len(self))


_SLACK = 16  # candidates beyond ``n``, because rounding in single precision may exchange neighbours

_ROUNDING = 1e-5  # a generous bound on the rounding of scores in single precision, relative to the largest

_CELLS_AT_ONCE = 1 << 21


def top_candidates(
    score: Callable[[slice], Tensor], lines: int, total: int, n: int, at_once: int | None = None
) -> list[Tensor]:
    """Return, for each line, the candidates that may be among its ``n`` best, in any order.

    ``score`` returns the scores of a slice of the ``total`` candidates in single precision, (lines, …), −∞
    for an excluded one. Memory is needed only for the best so far. All candidates that could be among the
    best given the rounding are returned, however many there are. ``at_once`` is the length of the slices; by
    default it is chosen so that the scores of a slice fit into memory.
    """
    at_once = at_once or max(1024, _CELLS_AT_ONCE // max(1, lines))
    parts = [slice(start, min(start + at_once, total)) for start in range(0, total, at_once)]
    values = torch.zeros(lines, 0)
    index = torch.zeros(lines, 0, dtype=torch.int64)
    for part in parts:
        scored = score(part)
        highest, places = torch.topk(scored, min(n + _SLACK, scored.shape[1]), dim=1)
        values = torch.cat([values, highest], dim=1)
        index = torch.cat([index, places + part.start], dim=1)
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
    """Return all candidates of a line with at least this score, when many scores are nearly equal."""
    return torch.cat([torch.nonzero(score(part)[line] >= least)[:, 0] + part.start for part in parts])


_ROWS_AT_ONCE = 256

_HEADS_AT_ONCE = 4096


@dataclass(frozen=True)
class TargetRow:
    """A row that features are ranked for."""

    name: str
    position: int | None  # in the model; None for a row that is not in it
    observed: tuple[str, ...] = ()  # the features that a row outside the model observed


TargetRows = tuple[list[TargetRow], RowStates]

NONE = np.zeros(0, dtype=np.int64)

Chosen = tuple[NDArray[np.int64], NDArray[np.float64]]


def one_target_row(fitted: ModelState, row: object) -> TargetRows:
    """Return a row given by its name or its observations, with its state."""
    if not is_observations(row):
        if not (isinstance(row, str) or np.isscalar(row)):
            raise InputError(
                f"recommend() takes the name or the observations of one row; got {type(row).__name__}; "
                "recommend_many() takes several rows"
            )
        return _known_rows(fitted, [row])
    observations = as_mapping(row, "recommend()")
    if isinstance(observations, Mapping) and any(is_observations(value) for value in observations.values()):
        raise InputError(
            "recommend() takes the observations {feature: value} of one row; recommend_many() takes several"
        )
    return _new_rows(fitted, {NEW_ROW: observations})


def target_rows(fitted: ModelState, rows: Any) -> TargetRows:
    """Return rows given by their names, or as ``{row: {feature: value}}`` or a frame, with their states."""
    rows = as_rows(rows, "recommend_many()")
    if isinstance(rows, Mapping):
        unique_names(rows, "recommend_many()", "row")
        return _new_rows(fitted, {row: as_mapping(rows[row], f"row {row!r}") for row in rows})
    return _known_rows(fitted, as_list(rows))


def _known_rows(fitted: ModelState, rows: Sequence[object]) -> TargetRows:
    names = [as_name(row, "row") for row in rows]
    positions = fitted.rows.positions(names)
    targets = [TargetRow(name, int(position)) for name, position in zip(names, positions, strict=True)]
    return targets, fitted.roster.take(positions)


def _new_rows(fitted: ModelState, rows: Mapping[Any, Any]) -> TargetRows:
    states = encode_rows(fitted, rows)
    targets = [
        TargetRow(as_name(row, "row"), None, tuple(as_name(feature, "feature") for feature in observations))
        for row, observations in rows.items()
    ]
    return targets, states


def rank_features(
    fitted: ModelState,
    targets: TargetRows,
    n: int,
    features: Sequence[Any] | None,
    criterion: Criterion,
    *,
    exclude_observed: bool,
    mixed_kinds: bool,
    level: float,
) -> list[Ranking]:
    """Rank features for each target row, best first."""
    rows, states = targets
    best = best_features(
        fitted,
        rows,
        states,
        n,
        features,
        criterion,
        exclude_observed=exclude_observed,
        mixed_kinds=mixed_kinds,
    )
    stored = fitted.catalogue.listing.features
    rankings = []
    for line, (row, (slots, score)) in enumerate(zip(rows, best, strict=True)):
        names = [stored[slot].name for slot in slots]
        prediction = predict_features(
            fitted, Names([row.name], "row"), states.take(slice(line, line + 1)), names
        )
        low, high = prediction.interval(level)
        mean, std, low, high = (part[0] for part in (prediction.mean, prediction.std, low, high))
        of = (row.name, "feature", criterion.by, tuple(names))
        rankings.append(Ranking(*of, score, mean, std, low, high, level))
    return rankings


@torch.no_grad()
def best_features(
    fitted: ModelState,
    rows: Sequence[TargetRow],
    states: RowStates,
    n: int,
    features: Sequence[Any] | None,
    criterion: Criterion,
    *,
    exclude_observed: bool,
    mixed_kinds: bool,
) -> list[Chosen]:
    """Return, for each row, the slots of the best features, best first, and their scores."""
    listing = fitted.catalogue.listing
    slots = _slots_of(fitted, listing, features)
    if criterion.by != "information" and not mixed_kinds and len(slots):
        require_same_units(listing, slots, for_user("recommend()", "headstart recommend"))
    if exclude_observed:
        require_contexts(listing, slots)
    excluded = [_observed(fitted, listing, row) if exclude_observed else NONE for row in rows]
    choose = _most_informative_features if criterion.by == "information" else _highest_features
    chosen: list[Chosen] = []
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        part = slice(start, start + _ROWS_AT_ONCE)
        chosen += choose(fitted, listing, slots, states.take(part), n, criterion, excluded[part])
    if criterion.by == "information" or mixed_kinds:
        return chosen
    return [(best, score * listing.spans[best] + listing.offsets[best]) for best, score in chosen]


def _slots_of(
    fitted: ModelState, listing: FeatureColumns, features: Sequence[Any] | None
) -> NDArray[np.int64]:
    if features is None:
        return listing.present
    return np.unique(np.array(fitted.catalogue.slots(features), dtype=np.int64))


def require_contexts(listing: FeatureColumns, slots: NDArray[np.int64]) -> None:
    """Refuse to exclude observed cells of features whose observations the model does not hold."""
    fixed = slots[listing.fixed[slots]] if listing.any_fixed else NONE
    if len(fixed):
        name = listing.features[fixed[0]].name
        raise InputError(
            f"feature {name!r} was trained into the backbone, and the model does not hold which rows "
            f"observed it; {for_user('pass exclude_observed=False', 'use --include-observed')}, or fit with "
            f"{option_name('adapter', 'bayes')}"
        )


def _observed(fitted: ModelState, listing: FeatureColumns, row: TargetRow) -> NDArray[np.int64]:
    """Return the slots of the features that a row observed."""
    if row.position is None:
        return np.unique(np.array(fitted.catalogue.slots(row.observed), dtype=np.int64))
    slots = listing.observed_by(row.position)
    observations = fitted.roster.observations(row.position)
    if observations is None:
        return slots
    others = fitted.catalogue.slots_by_number(observations.keys)
    return np.union1d(slots, others[others >= 0])


def _highest_features(
    fitted: ModelState,
    listing: FeatureColumns,
    slots: NDArray[np.int64],
    states: RowStates,
    n: int,
    criterion: Criterion,
    excluded: Sequence[NDArray[np.int64]],
) -> list[Chosen]:
    """Return, for each row, the slots of the highest scores, and these scores in double precision."""
    total = len(listing.places)
    some = None if 3 * len(slots) > total else slots  # None: read all stored heads without copying them
    never = None
    if some is None and len(slots) < total:
        never = torch.ones(total, dtype=torch.bool)
        never[torch.from_numpy(slots)] = False
    lines, columns = _excluded_cells(some, excluded)

    def score(part: slice) -> Tensor:
        at = part if some is None else torch.from_numpy(some[part])
        scored = scores(fitted, criterion, Candidates.at(fitted, listing, at), states, torch.float32)
        if never is not None:
            scored[:, never[part]] = -torch.inf
        begin, end = np.searchsorted(columns, [part.start, part.stop])
        scored[lines[begin:end], columns[begin:end] - part.start] = -torch.inf
        return scored

    chosen = []
    for line, near in enumerate(top_candidates(score, len(states), total if some is None else len(some), n)):
        near_slots = near.numpy() if some is None else some[near.numpy()]
        candidates = Candidates.at(fitted, listing, torch.from_numpy(near_slots))
        exact = scores(fitted, criterion, candidates, states.take(slice(line, line + 1)))[0].numpy()
        # Matrix products round equal numbers differently by their position: rounding keeps them equal.
        rounded = np.round(exact / max(1.0, float(np.abs(exact).max(initial=0.0))), 12)
        order = np.lexsort((listing.places[near_slots], -rounded))[:n]
        chosen.append((near_slots[order], exact[order]))
    return chosen


def _excluded_cells(
    some: NDArray[np.int64] | None, excluded: Sequence[NDArray[np.int64]]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the lines and columns of excluded cells, sorted by column.

    ``excluded`` has the slots of each line. Columns are positions in the ascending slots ``some``, or the
    slots themselves if it is None.
    """
    lines = np.repeat(np.arange(len(excluded)), [len(slots) for slots in excluded])
    columns = np.concatenate([*excluded, NONE])
    if some is not None:
        slots, columns = columns, np.searchsorted(some, columns)
        inside = columns < len(some)
        inside[inside] = some[columns[inside]] == slots[inside]
        lines, columns = lines[inside], columns[inside]
    order = np.argsort(columns, kind="stable")
    return lines[order], columns[order]


def _most_informative_features(
    fitted: ModelState,
    listing: FeatureColumns,
    slots: NDArray[np.int64],
    states: RowStates,
    n: int,
    criterion: Criterion,  # noqa: ARG001
    excluded: Sequence[NDArray[np.int64]],
) -> list[Chosen]:
    """Return, for each row, the features whose observation would inform most about it.

    It is the A-optimal design of ``suggest`` with rows and features exchanged: the unknown is the row's
    activation, with the variance that the backbone gives. The uncertainty of heads counts as noise.
    """
    if states.variance is None:
        raise InputError(
            f"{option_name('by', 'information')} needs a backbone that knows how sure it is of rows; "
            "fit with "
            f"{option_name('backbone', 'factorisation')}"
        )
    moment = _second_moment_of_weights(fitted, listing.present)
    chosen = []
    for line, observed in enumerate(excluded):
        some = np.setdiff1d(slots, observed)
        candidates = torch.from_numpy(some[np.argsort(listing.places[some], kind="stable")])
        state = states.take(slice(line, line + 1))
        noise = _observation_noise(fitted, listing, candidates, state)
        covariance = torch.diag(state.variance[0].double())  # type: ignore[index]
        weights = Weights(fitted.catalogue.stored(candidates).weight)
        best, gains = greedy_design(weights, noise, covariance, moment, n)
        chosen.append((candidates.numpy()[best], np.array(gains)))
    return chosen


def _second_moment_of_weights(fitted: ModelState, slots: NDArray[np.int64]) -> Tensor:
    """Return E[w·wᵀ] over all features, which turns the covariance of an activation into mean variance."""
    weights = [fitted.catalogue.stored(part).weight.double() for part in _parts(torch.from_numpy(slots))]
    return sum(weight.T @ weight for weight in weights) / max(1, len(slots))  # type: ignore[return-value]


def _observation_noise(
    fitted: ModelState, listing: FeatureColumns, slots: Tensor, state: RowStates
) -> Tensor:
    """Return the variance of one row's observation of each feature given its activation: (features,)."""
    certain = RowStates(state.code, state.code_std, state.activation, state.noise)
    noise = [torch.zeros(0, dtype=torch.float64)]
    for part in _parts(slots):
        some = Candidates.at(fitted, listing, part)
        grid = predict_grid(some.heads, certain, some.modelled, fitted.knowledge.likelihood)
        noise.append((grid.output_noise() + grid.variance)[0])
    return torch.cat(noise)


def _parts(slots: Tensor) -> Sequence[Tensor]:
    return torch.split(slots, _HEADS_AT_ONCE)


_CANDIDATE_ROWS_AT_ONCE = 1 << 14  # so that their activations stay in the cache


@torch.no_grad()
def rank_rows(
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
    (known,), heads = fitted.catalogue.take([feature])
    if exclude_observed:
        require_contexts(fitted.catalogue.listing, np.array(fitted.catalogue.slots([feature])))
    candidates = candidate_rows(fitted, rows, fitted.observers(known) if exclude_observed else NONE)
    if criterion.by == "information":
        what = option_name("by", "information")
        positions, score = _most_informative_rows(fitted, heads, known, candidates, n, what)
    else:
        positions, score = _highest_rows(fitted, heads, known, candidates, n, criterion)
    names = [fitted.rows[position] for position in positions]
    states = fitted.roster.take(positions)
    prediction = predict_features(fitted, Names(names, "row"), states, [known.name])
    low, high = prediction.interval(level)
    mean, std, low, high = (part[:, 0] for part in (prediction.mean, prediction.std, low, high))
    return Ranking(known.name, "row", criterion.by, tuple(names), score, mean, std, low, high, level)


@torch.no_grad()
def suggest_rows(fitted: ModelState, feature: object, n: int, rows: Sequence[Any] | None) -> list[str]:
    """Return the rows whose observations would inform most about a feature, best first."""
    (known,), heads = fitted.catalogue.take([feature])
    candidates = candidate_rows(fitted, rows, fitted.observers(known))
    what = for_user("suggest()", "headstart suggest")
    positions, _ = _most_informative_rows(fitted, heads, known, candidates, n, what)
    return [fitted.rows[position] for position in positions]


def candidate_rows(
    fitted: ModelState, rows: Sequence[Any] | None, excluded: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the ascending positions of ``rows``, or of all rows, without the ``excluded`` positions."""
    if rows is None:
        is_candidate = np.ones(len(fitted.rows), dtype=bool)
    else:
        is_candidate = np.zeros(len(fitted.rows), dtype=bool)
        is_candidate[fitted.rows.positions([as_name(row, "row") for row in rows])] = True
    is_candidate[excluded] = False
    return np.flatnonzero(is_candidate)


def _highest_rows(
    fitted: ModelState,
    heads: Heads,
    feature: Feature,
    candidates: NDArray[np.int64],
    n: int,
    criterion: Criterion,
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the positions of the rows with the highest scores, and the scores in the data's units."""
    kinds = torch.tensor([feature.kind.type])
    candidate = Candidates(heads, kinds, fitted.modelled_kinds(kinds), torch.tensor([feature.shots]), kinds)
    roster, positions, excluded = fitted.roster, candidates, np.zeros(len(candidates), dtype=bool)
    read_all = 3 * len(candidates) > len(fitted.rows)
    if read_all:  # in the order of storage, which does not copy the states after a change
        slots = roster.slots()
        excluded = np.ones(int(slots.max(initial=-1)) + 1, dtype=bool)
        excluded[slots[candidates]] = False
        positions = np.full(len(excluded), -1)
        positions[slots] = np.arange(len(slots))

    def score(part: slice) -> Tensor:
        states = roster.stored(part) if read_all else roster.take(positions[part])
        scored = scores(fitted, criterion, candidate, states, torch.float32)[:, 0]
        return torch.where(torch.from_numpy(excluded[part]), -torch.inf, scored)[None]

    (near,) = top_candidates(score, 1, len(positions), n, _CANDIDATE_ROWS_AT_ONCE)
    nearest = np.sort(positions[near.numpy()])
    exact = scores(fitted, criterion, candidate, roster.take(nearest))[:, 0].numpy()
    order = np.argsort(-exact, kind="stable")[:n]
    return nearest[order], exact[order] * feature.kind.span + feature.kind.offset


def _most_informative_rows(
    fitted: ModelState, heads: Heads, feature: Feature, candidates: NDArray[np.int64], n: int, what: str
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the positions of the rows that inform most about a feature, and the gain of each."""
    if not fitted.adapter.gives_uncertainty:
        raise InputError(
            f"{what} needs an adapter that knows how sure it is; fit with {option_name('adapter', 'bayes')}"
        )
    kind, likelihood = int(fitted.kinds_of([feature])), fitted.knowledge.likelihood
    chosen, gains = information(heads, fitted.states, torch.from_numpy(candidates), kind, n, likelihood)
    return candidates[chosen], np.array(gains)
