"""Rank features for a row, and rows for a feature.

``Headstart.recommend``, ``recommend_many``, ``audience`` and ``suggest`` are implemented here, and return a
``Ranking``. The candidates are first scored in single precision, block by block; the candidates that may be
among the best are scored again in double precision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self, cast

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.core.types import Heads, RowStates
from headstart.display import MAX_LINES, table_html, text_table
from headstart.errors import InputError, did_you_mean, for_user, option_name
from headstart.model.cell_predictions import predict_features
from headstart.model.features import Feature, FeatureColumns
from headstart.model.inputs import (
    NEW_ROW,
    as_list,
    as_mapping,
    as_row_mapping,
    encode_rows,
    is_observations,
    optional_list,
    require_mapping,
    truth,
    unique_names,
)
from headstart.model.levels import category_columns, columns_of, is_level, owner_of
from headstart.model.local import local_part
from headstart.model.scores import By, Candidates, Criterion, ScoredSlots, score_predictions, scores
from headstart.model.state import ModelState
from headstart.model.suggestion import most_informative_features, most_informative_rows, most_uncertain_level
from headstart.model.titles import feature_titles, row_titles
from headstart.table import Names
from headstart.table.arrow_columns import number_column, text_column
from headstart.table.kinds import is_value
from headstart.table.names import as_name


def require_same_units(columns: FeatureColumns, slots: NDArray[np.int64], what: str) -> None:
    """Refuse features whose values cannot be compared, because their kinds or units differ."""
    different = columns.find_different_units(slots)
    if different is None:
        return
    pair = (columns.features[slots[0]], columns.features[different])
    names = " and ".join(f"{feature.name!r} is {feature.kind}" for feature in pair if feature is not None)
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
        The type of the names: ``"feature"`` or ``"row"``.
    by : str
        The criterion: ``"mean"``, ``"lower"``, ``"upper"``, ``"sample"``, ``"lift"``, ``"relevance"`` or
        ``"information"``.
    names : tuple of str
        The names, best first.
    score : ndarray of shape (n,)
        The values of the criterion. The mean and the upper quantile are in the data's units, or on the
        models' scale if kinds are mixed, and not clipped at the limits of a rating. Information is the
        decrease of the mean variance of predictions, on the models' scale.
    mean, std, low, high : ndarray of shape (n,)
        The predictions and their intervals, equal to those of ``predict``.
    level : float
        The probability that an interval contains the value.
    titles : tuple of str, optional
        The metadata ``title`` or ``name`` of each feature or row, if there is such a column.
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
    titles: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[Ranked]:
        numbers = (array.tolist() for array in (self.score, self.mean, self.low, self.high))
        return map(Ranked._make, zip(self.names, *numbers, strict=True))

    def __getitem__(self, rank: int) -> Ranked:
        numbers = (array[rank].item() for array in (self.score, self.mean, self.low, self.high))
        return Ranked(self.names[rank], *numbers)

    def to_arrow(self) -> pa.Table:
        """Return one line per name: its name, its title if there is one, score, mean, std, low and high."""
        titles = {} if self.titles is None else {"title": text_column(self.titles)}
        columns = {
            name: number_column(getattr(self, name)) for name in ("score", "mean", "std", "low", "high")
        }
        return pa.table({self.noun: text_column(self.names), **titles, **columns})

    def to_pandas(self) -> Any:
        """Return ``to_arrow`` as a pandas frame; pandas must be installed."""
        return self.to_arrow().to_pandas()

    @property
    def _title(self) -> str:
        other = "row" if self.noun == "feature" else "feature"
        return f"{len(self)} {self.noun}s for {other} {self.of!r}, by {self.by}"

    def _lines(self) -> list[tuple[object, ...]]:
        first = list(self)[:MAX_LINES]
        return [
            (*self._names_of(rank), line.mean, f"({line.low:.4g} – {line.high:.4g})")
            for rank, line in enumerate(first)
        ]

    def _names_of(self, rank: int) -> tuple[str, ...]:
        return (self.names[rank],) if self.titles is None else (self.names[rank], self.titles[rank])

    def __repr__(self) -> str:
        more = [f"  … {len(self) - MAX_LINES} more"] if len(self) > MAX_LINES else []
        return "\n".join([self._title, *([text_table(self._lines())] if len(self) else []), *more])

    def _repr_html_(self) -> str:
        titles = () if self.titles is None else ("title",)
        header = (self.noun, *titles, "mean", f"{self.level:.0%} interval")
        return table_html(header, self._lines(), self._title, total=len(self))


_SLACK = 16  # candidates beyond ``n``, because rounding may change the order of nearly equal scores

_ROUNDING = 1e-5  # a bound on the rounding error of scores in single precision, relative to the largest

_CELLS_AT_ONCE = 1 << 21  # scores computed at once, which bounds the memory


def top_candidates(
    score: Callable[[slice], Tensor], lines: int, total: int, n: int, at_once: int | None = None
) -> list[Tensor]:
    """Return, for each line, all candidates that may be among its ``n`` best given rounding errors.

    Only the scores of one slice of candidates and the best candidates so far are in memory.

    Parameters
    ----------
    score : callable
        Returns the scores of a slice of the candidates in single precision, (lines, length of the slice); −∞
        for an excluded candidate.
    lines, total : int
        The numbers of lines and of candidates.
    n : int
        The number of candidates to choose for each line.
    at_once : int, default=None
        The length of a slice; by default as many candidates as fit into ``_CELLS_AT_ONCE``.

    Returns
    -------
    list of Tensor
        The candidates of each line, in any order.
    """
    at_once = at_once or max(1024, _CELLS_AT_ONCE // max(1, lines))
    parts = [slice(start, min(start + at_once, total)) for start in range(0, total, at_once)]
    values = torch.zeros(lines, 0)
    index = torch.zeros(lines, 0, dtype=torch.int64)
    for part in parts:
        scored = score(part)
        highest, positions = torch.topk(scored, min(n + _SLACK, scored.shape[1]), dim=1)
        values = torch.cat([values, highest], dim=1)
        index = torch.cat([index, positions + part.start], dim=1)
        if values.shape[1] > n + _SLACK:
            values, best = torch.topk(values, n + _SLACK, dim=1)
            index = index.gather(1, best)
    if values.shape[1] == 0:
        return [index[0]] * lines if lines else []
    values, order = values.sort(dim=1, descending=True)
    index = index.gather(1, order)
    largest = torch.where(values.isfinite(), values.abs(), 0.0).amax(1).clamp(min=1)
    threshold = values[:, min(n, values.shape[1]) - 1] - _ROUNDING * largest
    complete = (values[:, -1] < threshold) | (values.shape[1] == total) | ~values[:, -1].isfinite()
    near = (values >= threshold[:, None]) & values.isfinite()
    return [
        index[line, near[line]]
        if complete[line]
        else _candidates_above(score, parts, line, float(threshold[line]))
        for line in range(lines)
    ]


def _candidates_above(
    score: Callable[[slice], Tensor], parts: list[slice], line: int, threshold: float
) -> Tensor:
    """Return all candidates of a line with at least the score ``threshold``, if many are nearly equal."""
    return torch.cat([torch.nonzero(score(part)[line] >= threshold)[:, 0] + part.start for part in parts])


@dataclass(frozen=True)
class Selection:
    """Which features or rows to rank.

    Attributes
    ----------
    names : sequence, optional
        The names of candidates; all by default.
    exclude_observed : bool, default=True
        Whether to leave out observed cells.
    exclude : sequence, default=()
        The names to leave out.
    where : mapping, optional
        The metadata that candidates must have: one of the values in each column.
    """

    names: Sequence[Any] | None = None
    exclude_observed: bool = True
    exclude: Sequence[Any] = ()
    where: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, names: Any, exclude_observed: object, exclude: Any, where: Mapping[str, Any] | None) -> Self:
        """Check the arguments of ``Headstart.recommend``; one name may stand for a list."""
        exclude_observed = truth(exclude_observed, "exclude_observed")
        return cls(optional_list(names), exclude_observed, as_list(exclude), where)


_ROWS_AT_ONCE = 256  # target rows whose scores are computed together

_MOST_NEAR = 4096  # candidates that are scored again in double precision


@dataclass(frozen=True)
class TargetRow:
    """A row that features are ranked for."""

    name: str
    position: int | None  # in the model; None for a row that is not in it
    observed: tuple[str, ...] = ()  # the features that a row outside the model observed


TargetRows = tuple[list[TargetRow], RowStates]  # rows and their states

_EMPTY = np.zeros(0, dtype=np.int64)


def one_target_row(model: ModelState, row: object) -> TargetRows:
    """Return a row given by its name or its observations, with its state."""
    if not is_observations(row):
        if not (isinstance(row, str) or np.isscalar(row)):
            raise InputError(
                f"recommend() takes the name or the observations of one row; got {type(row).__name__}; "
                "recommend_many() takes several rows"
            )
        return _known_rows(model, [row])
    observations = as_mapping(row, "recommend()")
    if isinstance(observations, Mapping) and any(is_observations(value) for value in observations.values()):
        raise InputError(
            "recommend() takes the observations {feature: value} of one row; recommend_many() takes several"
        )
    return _new_rows(model, {NEW_ROW: observations})


def target_rows(model: ModelState, rows: Any) -> TargetRows:
    """Return rows given by their names, or as ``{row: {feature: value}}`` or a frame, with their states."""
    rows = as_row_mapping(rows, "recommend_many()")
    if isinstance(rows, Mapping):
        unique_names(rows, "recommend_many()", "row")
        return _new_rows(model, {row: as_mapping(rows[row], f"row {row!r}") for row in rows})
    return _known_rows(model, as_list(rows))


def _known_rows(model: ModelState, rows: Sequence[object]) -> TargetRows:
    names = [as_name(row, "row") for row in rows]
    positions = model.rows.positions(names)
    targets = [TargetRow(name, int(position)) for name, position in zip(names, positions, strict=True)]
    return targets, model.row_store.take(positions)


def _new_rows(model: ModelState, rows: Mapping[Any, Any]) -> TargetRows:
    states = encode_rows(model, rows)
    targets = [
        TargetRow(as_name(row, "row"), None, tuple(as_name(feature, "feature") for feature in observations))
        for row, observations in rows.items()
    ]
    return targets, states


def rank_features(
    model: ModelState,
    targets: TargetRows,
    n: int,
    selection: Selection,
    criterion: Criterion,
    *,
    mixed_kinds: bool,
    level: float,
) -> list[Ranking]:
    """Rank features for each target row, best first; the parameters are those of ``Headstart.recommend``."""
    rows, states = targets
    best = best_features(model, rows, states, n, selection, criterion, mixed_kinds=mixed_kinds)
    stored = model.feature_store.columns.features
    rankings = []
    for line, (row, (slots, score)) in enumerate(zip(rows, best, strict=True)):
        names = [stored[slot].name for slot in slots]
        if criterion.by == "information":
            names = [owner_of(stored[slot]) for slot in slots]
        prediction = predict_features(
            model, Names([row.name], "row"), states.take(slice(line, line + 1)), names
        )
        low, high = prediction.interval(level)
        mean, std, low, high = (part[0] for part in (prediction.mean, prediction.std, low, high))
        titles = feature_titles(model, names)
        numbers = (score, mean, std, low, high)
        if criterion.by == "mean" and any(is_level(stored[slot]) for slot in slots):
            # The probabilities of the levels of a category are divided by their sum.
            order = np.argsort(-mean, kind="stable")
            numbers = tuple(part[order] for part in (mean, mean, std, low, high))
            names = [names[i] for i in order]
            titles = None if titles is None else tuple(titles[i] for i in order)
        rankings.append(Ranking(row.name, "feature", criterion.by, tuple(names), *numbers, level, titles))
    return rankings


@torch.no_grad()
def best_features(
    model: ModelState,
    rows: Sequence[TargetRow],
    states: RowStates,
    n: int,
    selection: Selection,
    criterion: Criterion,
    *,
    mixed_kinds: bool,
) -> list[ScoredSlots]:
    """Return, for each row, the slots of the best features, best first, and their scores."""
    columns = model.feature_store.columns
    mixed_kinds = truth(mixed_kinds, "mixed_kinds")
    slots = _candidate_slots(model, columns, selection, criterion)
    if criterion.by != "information" and not mixed_kinds and len(slots):
        require_same_units(columns, slots, for_user("recommend()", "headstart recommend"))
    if selection.exclude_observed:
        require_contexts(columns, slots)
    excluded = [_excluded_slots(model, columns, row, selection) for row in rows]
    if criterion.by == "information":
        return most_informative_features(model, columns, slots, states, n, excluded)
    chosen: list[ScoredSlots] = []
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        part = slice(start, start + _ROWS_AT_ONCE)
        chosen += _highest_features(model, columns, slots, states.take(part), n, criterion, excluded[part])
    if criterion.by == "relevance" or mixed_kinds:
        return chosen
    if criterion.by == "lift":  # a difference has no offset
        return [(best, score * columns.spans[best]) for best, score in chosen]
    return [(best, columns.values_of(best, score)) for best, score in chosen]


def _candidate_slots(
    model: ModelState, columns: FeatureColumns, selection: Selection, criterion: Criterion
) -> NDArray[np.int64]:
    """Return the slots of the candidates of a ``selection``."""
    slots = _slots_of(model, columns, selection.names, criterion)
    if len(selection.exclude):
        excluded_columns = columns_of(model, selection.exclude)
        slots = np.setdiff1d(slots, np.array(model.feature_store.slots(excluded_columns), dtype=np.int64))
    where, stored, schema = selection.where, columns.features, model.schema
    if where is None:
        return slots
    _check_filter(where, [] if schema is None else [column.name for column in schema.columns])
    keep = [_matches(stored[slot].readable_metadata(schema), where) for slot in slots]
    kept: NDArray[np.int64] = slots[np.array(keep, dtype=bool)]
    return kept


def _excluded_slots(
    model: ModelState, columns: FeatureColumns, row: TargetRow, selection: Selection
) -> NDArray[np.int64]:
    """Return the slots of the features that a row has observed, or that do not apply to it."""
    excluded = observed_slots(model, columns, row) if selection.exclude_observed else _EMPTY
    if not len(model.not_applicable):
        return excluded
    not_applicable = columns_of(model, model.not_applicable.features_of(row.name))
    return np.union1d(excluded, np.array(model.feature_store.slots(not_applicable), dtype=np.int64))


def _slots_of(
    model: ModelState, columns: FeatureColumns, features: Sequence[Any] | None, criterion: Criterion
) -> NDArray[np.int64]:
    """Return the slots of the candidates, by default of all features that the criterion can compare.

    The levels of a category have no order: only information compares whole categories. A name
    ``FEATURE=LEVEL`` is compared by the probability of the level.
    """
    if features is not None:
        names = columns_of(model, features) if criterion.by == "information" else features
        return np.unique(np.array(model.feature_store.slots(names), dtype=np.int64))
    if criterion.by == "information" or not columns.has_levels:
        return columns.used_slots
    slots = columns.used_slots
    slots = slots[[not is_level(cast(Feature, columns.features[slot])) for slot in slots]]
    if not len(slots):
        level = cast(Feature, columns.features[columns.used_slots[0]]).name
        raise InputError(
            f"the features are categories, whose levels have no order: name the levels to rank by, as "
            f"{option_name('features', [level])}, or rank by {option_name('by', 'information')}"
        )
    return slots


def require_contexts(columns: FeatureColumns, slots: NDArray[np.int64]) -> None:
    """Raise an error if the model lacks the observations of a feature, and so cannot exclude them."""
    fixed = slots[columns.fixed[slots]] if columns.any_fixed else _EMPTY
    if len(fixed):
        name = columns.features[fixed[0]].name
        raise InputError(
            f"feature {name!r} was trained into the backbone, and the model does not hold which rows "
            f"observed it; {for_user('pass exclude_observed=False', 'use --include-observed')}, or fit with "
            f"{option_name('adapter', 'bayes')}"
        )


def observed_slots(model: ModelState, columns: FeatureColumns, row: TargetRow) -> NDArray[np.int64]:
    """Return the slots of the features that a row observed."""
    if row.position is None:
        observed = columns_of(model, row.observed)
        return np.unique(np.array(model.feature_store.slots(observed), dtype=np.int64))
    slots = columns.observed_by(row.position)
    observations = model.row_store.observations(row.position)
    if observations is None:
        return slots
    row_slots = model.feature_store.slots_by_number(observations.keys)
    return np.union1d(slots, row_slots[row_slots >= 0])


def _highest_features(
    model: ModelState,
    columns: FeatureColumns,
    slots: NDArray[np.int64],
    states: RowStates,
    n: int,
    criterion: Criterion,
    excluded: Sequence[NDArray[np.int64]],
) -> list[ScoredSlots]:
    """Return, for each row, the slots of the highest scores, and these scores in double precision."""
    total = len(columns.positions)
    # If most slots are candidates, reading all stored heads is cheaper than copying the candidates.
    selected = None if 3 * len(slots) > total else slots
    unused = None
    if selected is None and len(slots) < total:
        unused = torch.ones(total, dtype=torch.bool)
        unused[torch.from_numpy(slots)] = False
    if len(states) == 1:
        near_slots = _bounded_candidates(model, columns, selected, unused, states, n, criterion, excluded[0])
        if near_slots is not None:
            return [_best_of(model, columns, near_slots, states, n, criterion)]
    excluded_lines, excluded_columns = _excluded_cells(selected, excluded)

    def score(part: slice) -> Tensor:
        part_slots = part if selected is None else torch.from_numpy(selected[part])
        scored = scores(model, criterion, Candidates.at(model, columns, part_slots), states, torch.float32)
        if unused is not None:
            scored[:, unused[part]] = -torch.inf
        begin, end = np.searchsorted(excluded_columns, [part.start, part.stop])
        scored[excluded_lines[begin:end], excluded_columns[begin:end] - part.start] = -torch.inf
        return scored

    chosen = []
    count = total if selected is None else len(selected)
    for line, near in enumerate(top_candidates(score, len(states), count, n)):
        near_slots = near.numpy() if selected is None else selected[near.numpy()]
        state = states.take(slice(line, line + 1))
        chosen.append(_best_of(model, columns, near_slots, state, n, criterion))
    return chosen


def _best_of(
    model: ModelState,
    columns: FeatureColumns,
    slots: NDArray[np.int64],
    state: RowStates,
    n: int,
    criterion: Criterion,
) -> ScoredSlots:
    """Return the best of a few ``slots`` for one row, and their scores in double precision."""
    exact = scores(model, criterion, Candidates.at(model, columns, torch.from_numpy(slots)), state)[0].numpy()
    # The last bits of a matrix product depend on the position: rounding keeps equal scores equal.
    rounded = np.round(exact / max(1.0, float(np.abs(exact).max(initial=0.0))), 12)
    order = np.lexsort((columns.positions[slots], -rounded))[:n]
    return slots[order], exact[order]


def _bounded_candidates(
    model: ModelState,
    columns: FeatureColumns,
    selected: NDArray[np.int64] | None,
    unused: Tensor | None,
    state: RowStates,
    n: int,
    criterion: Criterion,
    excluded: NDArray[np.int64],
) -> NDArray[np.int64] | None:
    """Return the slots that may be among the ``n`` best of one row; None if their scores have no bounds.

    The uncertainty of a head with the covariance C adds at most ‖C‖·(‖[d; 1]‖² + Σ v) to the variance of a
    prediction, with the Frobenius norm, and a score is monotone in the variance. So the covariances of most
    candidates are never read. ``selected`` and ``unused`` are as in ``_highest_features``.
    """
    slots = slice(0, len(columns.positions)) if selected is None else torch.from_numpy(selected)
    candidates = Candidates.at(model, columns, slots)
    by_variance = criterion.by in ("mean", "lower", "upper", "relevance")
    if not by_variance or not candidates.is_linear(model) or len(candidates.types) <= n + _SLACK:
        return None
    without = replace(candidates, heads=replace(candidates.heads, covariance=None))
    if criterion.by == "mean" or candidates.heads.covariance is None:
        low = high = scores(model, criterion, without, state, torch.float32)[0]
    else:
        least = without.predict(model, state, torch.float32)
        norms = model.feature_store.covariance_norms(columns.used_slots)[slots]
        size = 1 + state.activation.square().sum()
        size = size if state.variance is None else size + state.variance.sum()
        most = replace(least, variance=least.variance + norms * size)
        ends = [score_predictions(model, criterion, candidates, state, end)[0] for end in (least, most)]
        low, high = torch.minimum(*ends), torch.maximum(*ends)
    left_out = torch.from_numpy(_excluded_cells(selected, [excluded])[1])
    if unused is not None:
        left_out = torch.cat([left_out, torch.nonzero(unused)[:, 0]])
    low, high = (part.index_fill(0, left_out, -torch.inf) for part in (low, high))
    threshold = torch.topk(low, n).values
    slack = _ROUNDING * threshold.abs().clamp(min=1).where(threshold.isfinite(), 1.0).max()
    near = torch.nonzero((high >= threshold[-1] - slack) & high.isfinite())[:, 0].numpy()
    if len(near) > _MOST_NEAR:
        return None
    return near if selected is None else selected[near]


def _excluded_cells(
    selected: NDArray[np.int64] | None, excluded: Sequence[NDArray[np.int64]]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the lines and columns of excluded cells, sorted by column.

    ``excluded`` has the slots of each line. Columns are positions in the ascending slots ``selected``, or the
    slots themselves if it is None.
    """
    lines = np.repeat(np.arange(len(excluded)), [len(slots) for slots in excluded])
    columns = np.concatenate([*excluded, _EMPTY])
    if selected is not None:
        slots, columns = columns, np.searchsorted(selected, columns)
        inside = columns < len(selected)
        inside[inside] = selected[columns[inside]] == slots[inside]
        lines, columns = lines[inside], columns[inside]
    order = np.argsort(columns, kind="stable")
    return lines[order], columns[order]


_CANDIDATE_ROWS_AT_ONCE = 1 << 14  # so that their activations stay in the cache


@torch.no_grad()
def rank_rows(
    model: ModelState,
    feature: object,
    n: int,
    selection: Selection,
    criterion: Criterion,
    *,
    level: float,
) -> Ranking:
    """Rank rows for one feature, best first; the parameters are those of ``Headstart.audience``."""
    if criterion.by == "information":
        feature = most_uncertain_level(model, feature)
    (known,), heads = model.feature_store.take([feature])
    if selection.exclude_observed:
        require_contexts(model.feature_store.columns, np.array(model.feature_store.slots([feature])))
    excluded = model.observers(known) if selection.exclude_observed else _EMPTY
    if len(selection.exclude):
        others = model.rows.positions([as_name(row, "row") for row in selection.exclude])
        excluded = np.union1d(excluded, others)
    candidates = candidate_rows(model, selection.names, known, excluded)
    records = None if model.row_metadata is None else model.row_metadata.lines
    where = selection.where
    if where is not None:
        _check_filter(where, [] if records is None else records.column_names)
    if where:
        chosen = cast(pa.Table, records).select(list(where)).take(pa.array(candidates)).to_pylist()
        candidates = candidates[np.array([_matches(record, where) for record in chosen], dtype=bool)]
    if criterion.by == "information":
        what = option_name("by", "information")
        positions, score = most_informative_rows(model, heads, known, candidates, n, what)
    else:
        positions, score = _highest_rows(model, heads, known, candidates, n, criterion)
    names = [model.rows[position] for position in positions]
    states = model.row_store.take(positions)
    prediction = predict_features(model, Names(names, "row"), states, [known.name])
    low, high = prediction.interval(level)
    mean, std, low, high = (part[:, 0] for part in (prediction.mean, prediction.std, low, high))
    titles = row_titles(model, positions.tolist())
    numbers = (score, mean, std, low, high)
    return Ranking(known.name, "row", criterion.by, tuple(names), *numbers, level, titles)


def _check_filter(where: Mapping[str, Any], columns: Sequence[str]) -> None:
    """Refuse a filter by a metadata column that the model does not have, or by no texts and numbers."""
    require_mapping(where, option_name("where"), "{'genre': 'crime'}")
    for name, wanted in where.items():
        if name not in columns:
            known = f"the columns are {', '.join(columns)}" if columns else "there is no metadata"
            hint = did_you_mean(name, columns) if isinstance(name, str) else ""
            raise InputError(f"{option_name('where')}: there is no metadata column {name!r}; {known}{hint}")
        options = wanted if isinstance(wanted, (list, tuple, set)) else [wanted]
        if not options or not all(isinstance(option, str) or is_value(option) for option in options):
            raise InputError(
                f"{option_name('where')}: column {name!r} is compared with a text, a number or a list of "
                f"these; got {wanted!r}"
            )


def _matches(record: Mapping[str, object], where: Mapping[str, Any]) -> bool:
    """Return whether metadata has one of the wanted values in each column of ``where``."""
    for column, wanted in where.items():
        value = record.get(column)
        values = value if isinstance(value, (list, tuple)) else [value]
        options = wanted if isinstance(wanted, (list, tuple, set)) else [wanted]
        texts = {_spelling(option) for option in options}  # the command line has texts only
        if not any(_spelling(value) in texts for value in values if value is not None):
            return False
    return True


def _spelling(value: object) -> str:
    """Return a value as text; a whole number is the same as int and as float."""
    whole = isinstance(value, (float, np.floating)) and float(value).is_integer()
    return str(int(value)) if whole else str(value)  # type: ignore[call-overload]


@torch.no_grad()
def suggest_rows(model: ModelState, feature: object, n: int, rows: Sequence[Any] | None) -> list[str]:
    """Return the rows whose observations would inform most about a feature, best first."""
    (known,), heads = model.feature_store.take([most_uncertain_level(model, feature)])
    candidates = candidate_rows(model, rows, known, model.observers(known))
    what = for_user("suggest()", "headstart suggest")
    positions, _ = most_informative_rows(model, heads, known, candidates, n, what)
    return [model.rows[position] for position in positions]


def candidate_rows(
    model: ModelState, rows: Sequence[Any] | None, feature: Feature, excluded: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the ascending positions of ``rows``, or of all rows, that are candidates for a ``feature``.

    Rows at the ``excluded`` positions and rows to which the feature does not apply are none.
    """
    if rows is None:
        is_candidate = np.ones(len(model.rows), dtype=bool)
    else:
        is_candidate = np.zeros(len(model.rows), dtype=bool)
        is_candidate[model.rows.positions([as_name(row, "row") for row in rows])] = True
    is_candidate[excluded] = False
    is_candidate[model.rows.positions(model.not_applicable.rows_of(owner_of(feature)))] = False
    return np.flatnonzero(is_candidate)


def _highest_rows(
    model: ModelState,
    heads: Heads,
    feature: Feature,
    candidates: NDArray[np.int64],
    n: int,
    criterion: Criterion,
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the positions of the rows with the highest scores, and the scores in the data's units."""
    asked, features = 0, [feature]
    if is_level(feature):
        columns = category_columns(model, owner_of(feature))
        asked = columns.index(feature.name)
        features, heads = model.feature_store.take(columns)
    types = torch.full((len(heads),), int(feature.kind.type))
    shots = torch.full((len(heads),), feature.shots)
    slots = np.array(model.feature_store.slots(known.name for known in features))
    local = local_part(model, features, slots)
    in_backbone = torch.full((len(heads),), feature.in_backbone)
    candidate = Candidates(heads, types, model.modelled_types(types), shots, in_backbone, types[:1], local)

    def score_rows(states: RowStates, dtype: torch.dtype = torch.float64) -> Tensor:
        scored = scores(model, criterion, candidate, states, dtype)
        if len(heads) == 1 or criterion.by == "lift":
            return scored[:, asked]
        return scored[:, asked] / scored.sum(1)  # the probabilities of all levels add up to 1

    row_store, positions, excluded = model.row_store, candidates, np.zeros(len(candidates), dtype=bool)
    read_all = 3 * len(candidates) > len(model.rows)
    if read_all:  # in the order of storage, so that the states are not copied
        slots = row_store.slots()
        excluded = np.ones(int(slots.max(initial=-1)) + 1, dtype=bool)
        excluded[slots[candidates]] = False
        positions = np.full(len(excluded), -1)
        positions[slots] = np.arange(len(slots))

    def score(part: slice) -> Tensor:
        at = torch.from_numpy(positions[part])
        states = row_store.states_at(part).at(at) if read_all else row_store.take(positions[part])
        scored = score_rows(states, torch.float32)
        return torch.where(torch.from_numpy(excluded[part]), -torch.inf, scored)[None]

    (near,) = top_candidates(score, 1, len(positions), n, _CANDIDATE_ROWS_AT_ONCE)
    near_rows = np.sort(positions[near.numpy()])
    exact = score_rows(row_store.take(near_rows)).numpy()
    order = np.argsort(-exact, kind="stable")[:n]
    kind = feature.kind
    if criterion.by == "relevance":  # a probability
        return near_rows[order], exact[order]
    if criterion.by == "lift":  # a difference has no offset
        return near_rows[order], exact[order] * kind.span
    return near_rows[order], kind.margin.unrounded(exact[order] * kind.span + kind.offset)
