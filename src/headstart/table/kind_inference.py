"""Infer the kind of each feature from its values.

``resolve_kinds`` assigns the kinds that the user gives, refuses codes for missing values, infers the other
kinds and unifies those of similar features, then computes limits of ratings, margins, centers and scales.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray

from headstart.distributed import process_group
from headstart.errors import InputError, join_names, option_name
from headstart.table.cells import Floats, Positions, chunk_slices, count_positions
from headstart.table.kinds import KINDS, Kind, Kinds, KindType, Margin, as_option, kinds_as_option
from headstart.table.margins import MAX_STEPS, RATING, REAL, Amount, Category, Count, likely_shift
from headstart.table.missing_values import MAX_CODES, as_missing, find_codes
from headstart.table.names import Names
from headstart.table.outliers import moments_by_feature
from headstart.table.shards import FeatureExchange, gather, global_count, global_max, global_sum

_ROUNDING = 4 * np.finfo(np.float64).eps  # a smaller deviation relative to the mean is a rounding error

_LEAST_SHARE = 1e-15  # scale / largest distance: the square of the scaled distance must not overflow

MAX_LEVELS = 20  # distinct values of a rating; it also needs at least this number of observations

MANY_MAXIMA = 5  # columns with this number of different maxima have no upper limit

FITTABLE = 4  # observations that a model needs at least; a table with fewer is never fitted

MAX_RATIO = 3  # of the largest maximum of ratings with a common range to the median one

MAX_MAGNITUDE_RATIO = 100  # of the means of amounts or counts that have one shift

MIN_COUNTS = 50  # observations from which counts can be told from other numbers

COUNT_GAIN = 0.5  # nats per observation by which the logarithm must be more likely than the value itself

ZERO_GAIN = 0.1  # the same if 0 occurs: a Gaussian would give much probability to negative numbers


def distinct_if_few(values: Floats, limit: int) -> NDArray[np.float64] | None:
    """Return the distinct values in order, or None if there are more than ``limit``.

    >>> distinct_if_few(np.array([2.0, 1.0, 2.0]), limit=2)
    array([1., 2.])
    """
    if len(np.unique(values[:1000])) > limit:
        return None
    distinct = np.unique(pc.unique(pa.array(values)).to_numpy())  # hashing first is faster than sorting all
    distinct = distinct.astype(np.float64)  # differences of values in single precision would be rounded
    return distinct if len(distinct) <= limit else None


def on_grid(features: NDArray[np.int64], values: NDArray[np.float64], count: int) -> NDArray[np.bool_]:
    """Return whether each feature's values are whole numbers or multiples of one step: (count,).

    ``features`` (n,) and ``values`` (n,) are the distinct values of each feature, sorted by feature and
    then by value.

    >>> on_grid(np.array([0, 0, 0, 1, 1, 1]), np.array([0.5, 1.0, 2.5, 0.1, 0.5, 0.6001]), 2)
    array([ True, False])
    """
    (low, high), step = range_by_feature(features, values, count), np.full(count, np.inf)
    same = features[1:] == features[:-1]
    integers = np.bincount(features, values != np.round(values), count) == 0
    with np.errstate(over="ignore", invalid="ignore"):  # very large numbers, which are on no grid
        gaps, gap_features = np.diff(values)[same], features[1:][same]
        np.minimum.at(step, gap_features, gaps)
        multiples = gaps / step[gap_features]
        even = np.bincount(gap_features, np.abs(multiples - np.round(multiples)) > 1e-4, count) == 0
        fits = high - low <= MAX_STEPS * np.where(even, step, 1.0) * (1 + 1e-9)
    return np.asarray((even | integers) & fits)


def real_scales(
    index: Positions, values: Floats, count: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], bool]:
    """Return the center and scale of each of ``count`` features, and whether all share one pair.

    ``index`` (n,) is the feature of each of the ``values`` (n,). Features of similar center and scale share
    one pair; otherwise each feature has its own. Outliers do not enlarge the scale.
    """
    number = global_sum(np.bincount(index, minlength=count))
    values = np.asarray(values, dtype=np.float64)
    mean, squares = moments_by_feature(torch.from_numpy(index), torch.from_numpy(values), count)
    deviation = np.sqrt(squares / np.maximum(number, 1))
    deviation[deviation <= _ROUNDING * np.abs(mean)] = 0.0  # a constant feature, up to rounding
    # The deviation of two or three values is uncertain: if possible, compare features with five or more.
    compared = number >= min(5, number.max())
    deviations = deviation[compared & (deviation > 0)]
    pooled = np.sqrt(squares.sum() / number.sum())
    similar = bool(
        (np.abs(mean[compared] - np.median(mean[compared])) <= 10 * pooled).all()
        and (len(deviations) == 0 or (np.abs(np.log10(deviations / np.median(deviations))) <= 1).all())
    )
    least = _least_scales(index, values, mean)
    if not similar:
        magnitude = np.where(np.abs(mean) > 0, np.abs(mean), 1.0)
        return mean, np.maximum(np.where(deviation > 0, deviation, magnitude), least), False
    share, first = number / number.sum(), mean[np.argmax(number > 0)]
    center = float(first + share @ (mean - first))  # exact if all values are equal
    scale = float(np.sqrt(pooled**2 + share @ (mean - center) ** 2))
    scale = scale if scale > _ROUNDING * abs(center) else abs(center) or 1.0
    return np.full(count, center), np.full(count, max(scale, float(least.max(initial=0)))), True


def _least_scales(
    index: Positions, values: NDArray[np.float64], mean: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the least scale of each feature for which its farthest value does not overflow: (features,)."""
    with np.errstate(over="ignore", invalid="ignore"):  # values that are too large are found at the end
        distance = np.nan_to_num(np.abs(values - mean[index]))
    furthest = np.zeros(len(mean))
    np.maximum.at(furthest, index, distance)
    return _LEAST_SHARE * global_max(furthest)


class InferredKinds(NamedTuple):
    """Masks of the binary features and of the ratings, with limits; the other features are real."""

    binary: NDArray[np.bool_]  # (features,)
    rating: NDArray[np.bool_]  # (features,)
    low: NDArray[np.float64]  # (features,)
    high: NDArray[np.float64]  # (features,)


def distinct_by_feature(
    index: NDArray[Any], values: Floats
) -> tuple[NDArray[Any], Floats, NDArray[np.int64]]:
    """Return the distinct values of each feature, and how often each occurs.

    ``index`` (n,) is the position of the feature of each of the ``values`` (n,). The result is three arrays:
    features, ascending, their values, ascending, and counts.
    """
    order = np.lexsort((values, index))
    feature, value = index[order], values[order]
    first = np.append(True, (feature[1:] != feature[:-1]) | (value[1:] != value[:-1]))[: len(feature)]
    starts = np.flatnonzero(first)
    return feature[starts], value[starts], np.diff(np.append(starts, len(value)))


def range_by_feature(
    index: NDArray[Any], values: NDArray[Any], count: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the smallest and the largest value of each of ``count`` features: ∞ and −∞ without values."""
    low, high = np.full(count, np.inf), np.full(count, -np.inf)
    np.minimum.at(low, index, values)
    np.maximum.at(high, index, values)
    return low, high


def infer_each(mask: NDArray[np.bool_], index: Positions, values: Floats) -> InferredKinds:
    """Infer the kind of each feature in ``mask`` from its own values, then unify similar features.

    ``index`` (n,) is the position of the feature of each of the ``values`` (n,).

    Features of whole numbers are unified in one of three cases. If most ranges are equal, features within
    this range get it, too. If the ranges grow beyond the limit of ratings, the features are counts, and
    real. If the ranges differ, but all values lie on one small grid, the features are ratings of one range.
    """
    count = len(mask)
    feature, value, _ = distinct_by_feature(index, values)
    value = value.astype(np.float64)  # for differences of values
    distinct, enough = (
        np.bincount(feature, minlength=count),
        np.bincount(index, minlength=count) >= MAX_LEVELS,
    )
    zeros_and_ones = np.bincount(feature, ~np.isin(value, (0, 1)), count) == 0
    binary = mask & zeros_and_ones & ((distinct == 2) | enough)
    rating = (
        mask & ~binary & enough & (distinct > 1) & (distinct <= MAX_LEVELS) & on_grid(feature, value, count)
    )
    inferred = InferredKinds(binary, rating, *range_by_feature(feature, value, count))
    whole = mask & (np.bincount(feature, value != np.round(value), count) == 0)
    _unify_whole_numbers(inferred, whole, feature, value)
    return inferred


def _unify_whole_numbers(
    inferred: InferredKinds, whole: NDArray[np.bool_], feature: Positions, value: NDArray[np.float64]
) -> None:
    """Unify the kinds of similar features of ``whole`` numbers in place; see ``infer_each``.

    ``feature`` (n,) and ``value`` (n,) are the distinct values of each feature.
    """
    binary, rating, low, high = inferred
    ratings = rating & whole
    if not ratings.any():
        return
    ranges = Counter(zip(low[ratings].tolist(), high[ratings].tolist(), strict=True))
    usual, number = ranges.most_common(1)[0]
    if 2 * number >= ratings.sum():
        if number > 1:
            # A rating with a much smaller range than the usual one keeps it.
            wide = ~rating | (2 * (high - low) >= usual[1] - usual[0])
            others = whole & ~binary & (low >= usual[0]) & (high <= usual[1]) & wide
            rating |= others
            low[others], high[others] = usual
        return
    grid = distinct_if_few(value[ratings[feature]], MAX_LEVELS)
    if _look_like_counts(inferred, ratings, whole & ~binary & ~rating, grid is not None):
        if binary.sum() < (whole & ~binary).sum():
            binary &= ~whole  # counts that are never above 1
        rating &= ~whole
    elif (
        grid is not None
        and grid[-1] - grid[0] <= MAX_STEPS
        and high[ratings].max() <= MAX_RATIO * np.median(high[ratings])
    ):
        low[ratings], high[ratings] = grid[0], grid[-1]


def _look_like_counts(
    inferred: InferredKinds, ratings: NDArray[np.bool_], others: NDArray[np.bool_], small_grid: bool
) -> bool:
    """Return whether the ranges of the ``ratings`` differ because these are counts without an upper limit.

    ``others`` are features of whole numbers with too many values for a rating; one that overlaps with the
    ratings continues their ranges. ``small_grid`` says whether the ratings together have few values.
    """
    low, high = inferred.low, inferred.high
    maxima = np.unique(high[ratings])
    continued = bool((others & (low >= 0) & (low <= maxima[-1])).any())
    many = not small_grid and len(maxima) >= MANY_MAXIMA
    return bool((low[ratings] >= 0).all()) and len(maxima) > 2 and (continued or many)


def sample_values(index: Positions, values: Floats, width: int) -> tuple[Positions, Floats]:
    """Return features (n,) and values (n,) from which all processes infer the same kinds.

    A single process returns its arguments. Several processes gather the distinct values of each feature if
    they are few; otherwise more than a rating can have, with the smallest, the largest and one that is not
    whole. Values are repeated until a feature has as many as it has observations, or enough for a rating.
    """
    if process_group().is_single:
        return index, values
    counts = global_sum(np.bincount(index, minlength=width))
    features, few = _few_values(index, values)
    exchange = FeatureExchange(torch.from_numpy(features), width)
    received = exchange.send(torch.from_numpy(few)).numpy()
    features = np.repeat(np.arange(width)[exchange.features], exchange.counts.numpy())
    features, few = _few_values(features, received)
    features, few = gather(features), gather(few)
    distinct = np.bincount(features, minlength=width)
    more = np.maximum(0, np.minimum(counts, MAX_LEVELS) - distinct)
    first = np.searchsorted(features, np.flatnonzero(more))  # the first value of each is repeated
    repeated = np.repeat(first, more[more > 0])
    all_features = np.concatenate([features, features[repeated]]).astype(np.int32)
    return all_features, np.concatenate([few, few[repeated]])


def _few_values(index: NDArray[Any], values: Floats) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return distinct values of each feature, sorted: the first ones, the last, and one that is not whole."""
    feature, value, _ = distinct_by_feature(index, values)
    starts = np.flatnonzero(np.append(True, feature[1:] != feature[:-1])[: len(feature)])
    ends = np.append(starts[1:], len(feature))
    rank = np.arange(len(feature)) - np.repeat(starts, ends - starts)
    chosen = rank <= MAX_LEVELS  # one more than a rating has
    chosen[ends - 1] = True
    fractional = np.flatnonzero(value != np.round(value))
    chosen[fractional[np.append(True, np.diff(feature[fractional]) > 0)[: len(fractional)]]] = True
    # All processes must send the same types.
    return feature[chosen].astype(np.int64), value[chosen].astype(np.float64)


KindsLike = str | Kind | Mapping[str, str | Kind] | Mapping[str | None, str | Kind] | None


class _PartialKinds(NamedTuple):
    """The kinds that are decided so far. A parameter that is not computed yet is NaN."""

    margins: list[Margin]
    codes: NDArray[np.int64]  # (features,): positions in ``margins``; -1 where the kind is not decided
    first: NDArray[np.float64]  # (features,)
    second: NDArray[np.float64]  # (features,)

    @classmethod
    def undecided(cls, count: int) -> _PartialKinds:
        return cls([], np.full(count, -1), np.full(count, np.nan), np.full(count, np.nan))

    def assign(self, features: NDArray[np.bool_] | int, kind: Kind | Margin) -> None:
        margin = kind.margin if isinstance(kind, Kind) else kind
        if margin not in self.margins:
            self.margins.append(margin)
        self.codes[features] = self.margins.index(margin)
        if isinstance(kind, Kind):
            self.first[features], self.second[features] = kind.first, kind.second

    @property
    def is_undecided(self) -> NDArray[np.bool_]:
        return np.asarray(self.codes < 0)

    def of_type(self, type: KindType, among: NDArray[np.bool_]) -> dict[Margin, NDArray[np.bool_]]:
        """Return the features of each margin of a type, as masks, among the features in ``among``."""
        masks = {margin: among & (self.codes == code) for code, margin in enumerate(self.margins)}
        return {margin: mask for margin, mask in masks.items() if margin.type == type and mask.any()}

    def median_units(self, margin: Margin, mask: NDArray[np.bool_]) -> Kind:
        return Kind(margin).with_units(
            float(np.median(self.first[mask])), float(np.median(self.second[mask]))
        )


def resolve_kinds(
    kinds: KindsLike, features: Names, index: Positions, values: Floats
) -> tuple[Kinds, tuple[str, ...]]:
    """Return the kinds of the features, and notes on the kinds that were inferred.

    ``index`` (n,) is the position of the feature of each of the ``values`` (n,).

    >>> resolve_kinds(None, Names(["a", "b"], "feature"), np.array([0, 0, 1]), np.array([1.0, 5.0, 3.0]))
    (Kinds(2 rating:1:5), ("2 features inferred as rating:1:5 (kinds='rating:1:5')",))
    """
    count = len(features)
    local_index, local_values = index, values
    index, values = sample_values(index, values, count)
    partial = _PartialKinds.undecided(count)
    observed = count_positions(index, count) > 0
    if isinstance(kinds, Mapping):
        _assign_by_name(partial, kinds, features, index, values)
    elif kinds is not None:
        partial.assign(np.full(count, True), _kind_of_many(kinds, values, "the table"))
    _refuse_codes(partial, features, index, values, local_values)
    inferred = partial.is_undecided & observed
    unobserved = partial.is_undecided & ~observed
    _infer(partial, inferred, features, index, values)
    _infer_counts(partial, inferred, index, values, local_index, local_values)
    _compute_rating_limits(partial, features, index, values)
    _learn_margins(partial, local_index, local_values)
    shared = _compute_scales(partial, local_index, local_values)
    common = _most_common(partial, observed)
    partial.assign(partial.is_undecided, common)
    resolved = _as_kinds(partial)
    notes = []
    if inferred.any():
        positions = np.flatnonzero(inferred)
        inferred_kinds = resolved.take(positions)
        summary = inferred_kinds.summary()
        text = (
            f"features inferred: {summary}"
            if "," in summary
            else summary.replace(" ", " features inferred as ", 1)
        )
        notes.append(f"{text} ({kinds_as_option(features.take(positions), inferred_kinds)})")
    notes += _note_constants(resolved, index, values)
    if unobserved.any():
        notes.append(
            f"{int(unobserved.sum())} features without observations got the most common kind, {common}"
        )
    if not shared:
        notes.append("real features differ in magnitude, so each has its own center and scale")
    return resolved, tuple(notes)


def check_values(
    kinds: Kinds,
    rows: Names,
    features: Names,
    row_index: Positions,
    feature_index: Positions,
    values: Floats,
    duplicates: str = "error",
) -> None:
    """Raise an error for the first value that its feature's kind does not allow.

    ``duplicates`` is the rule by which several values of one cell were merged, for the message.
    """
    for part in chunk_slices(len(values)):
        bad = kinds.impossible(values[part], feature_index[part])
        if not bad.any():
            continue
        i = part.start + int(np.argmax(bad))
        kind = kinds[feature_index[i]]
        raise InputError(
            f"row {rows[row_index[i]]!r}, feature {features[feature_index[i]]!r}: the value "
            f"{values[i]:.12g} must be {kind.allowed} (the feature's kind is {kind.option}); correct the "
            f"value, or give this feature another kind, as in "
            f"{as_option({features[feature_index[i]]: 'real'})}, or, if it means 'missing', use "
            f"{as_missing([values[i]])}"
            + (f"; {option_name('duplicates', 'mean')} averages values" if duplicates == "mean" else "")
        )


def parse_kind(text: object) -> Kind | Margin:
    """Parse a kind. A name alone, such as ``rating``, returns a margin: the data determines the rest."""
    if isinstance(text, Kind):
        return text
    if not isinstance(text, str):
        raise InputError(f"a kind is a text such as 'rating:1:5'; got {text!r}")
    if text in KINDS and KINDS[text].type in (KindType.RATING, KindType.REAL):
        return KINDS[text]()
    kind = Kind.parse(text)
    # Without center and scale, the margin alone: the data determines them.
    return kind.margin if text == kind.margin.family and kind.type == KindType.REAL else kind


def _assign_by_name(
    partial: _PartialKinds,
    kinds: Mapping[Any, str | Kind],
    features: Names,
    index: Positions,
    values: Floats,
) -> None:
    named = {name: parse_kind(text) for name, text in kinds.items() if name is not None}
    positions = features.positions(named)
    if len(np.unique(positions)) < len(positions):
        raise InputError(f"kinds contains a feature twice, in two spellings: {join_names(named)}; keep one")
    for position, kind in zip(positions.tolist(), named.values(), strict=True):
        partial.assign(position, kind)
    if None in kinds:
        others = np.full(len(features), True)
        others[positions] = False
        partial.assign(others, _kind_of_many(kinds[None], values[others[index]], "the other features"))


def _kind_of_many(text: str | Kind, values: Floats, owner: str) -> Kind | Margin:
    """Return one kind for features with these values. ``rating`` gets the limits of all values together."""
    kind = parse_kind(text)
    if kind != RATING:
        return kind
    distinct, counts = np.unique(values.astype(np.float64), return_counts=True)
    if len(distinct) <= MAX_LEVELS + MAX_CODES and len(codes := find_codes(distinct, counts)):
        raise _far_from_others(codes, distinct, None, values)
    return _rating_of(values, owner)


def _rating_of(values: Floats, owner: str) -> Kind:
    """Return the rating between the smallest and the largest value. ``owner`` names them in messages."""
    if not len(values):
        raise InputError(f"{owner} have no observations; give the limits of the rating, as in rating:1:5")
    low, high = float(values.min()), float(values.max())
    if low == high:
        raise InputError(
            f"all values of {owner} are {low:.12g}; give the limits of the rating, as in rating:1:5"
        )
    return Kind.rating(low, high)


def _refuse_codes(
    partial: _PartialKinds, features: Names, index: Positions, values: Floats, local_values: Floats
) -> None:
    """Raise an error for values that look like codes for missing values and would set the limits of a kind.

    All features with values to infer from are judged together if they have few distinct values, otherwise
    one by one. ``local_values`` are the values of this process, which the message counts.
    """
    open_ratings = partial.of_type(KindType.RATING, np.isnan(partial.second)).get(RATING, False)
    mask = partial.is_undecided | open_ratings
    if not mask[index].any():
        return
    if not mask.all():
        selected = mask[index]
        index, values = index[selected], values[selected]

    if distinct_if_few(values, MAX_LEVELS + MAX_CODES) is not None:
        distinct, counts = np.unique(values.astype(np.float64), return_counts=True)
        if len(codes := find_codes(distinct, counts)):
            raise _far_from_others(codes, distinct, None, local_values)
        return
    feature, value, counts = distinct_by_feature(index, values)
    value = value.astype(np.float64)
    starts = np.flatnonzero(np.append(True, feature[1:] != feature[:-1]))
    ends = np.append(starts[1:], len(feature))
    few = (ends - starts >= 3) & (ends - starts <= MAX_LEVELS + MAX_CODES)
    # Only the ends of a feature can be codes: most features are excluded by their gaps there.
    widest = np.maximum.reduceat(
        np.append(np.diff(value), 0.0) * np.append(np.diff(feature) == 0, False), starts
    )
    few &= (3 * widest >= value[ends - 1] - value[starts]) | (value[starts] < 0)
    for start, end in zip(starts[few].tolist(), ends[few].tolist(), strict=True):
        values_of_feature = value[start:end]
        if len(codes := find_codes(values_of_feature, counts[start:end], cautious=True)):
            raise _far_from_others(codes, values_of_feature, features[int(feature[start])], local_values)


def _far_from_others(
    codes: NDArray[np.float64], distinct: NDArray[np.float64], feature: str | None, local_values: Floats
) -> InputError:
    """Return the error about ``codes`` among the ``distinct`` values of a feature, or of the whole table."""
    count = global_count(int(np.isin(local_values, codes).sum()))
    others, texts = distinct[~np.isin(distinct, codes)], [f"{code:.12g}" for code in codes]
    values = f"the value {texts[0]}" if len(texts) == 1 else f"the values {' and '.join(texts)}"
    of = "" if feature is None else f"feature {feature!r}: "
    rating = as_option({feature: f"rating:{distinct[0]:.12g}:{distinct[-1]:.12g}"})
    return InputError(
        f"{of}{values} ({count} in the table) may be a code for missing values: the others go from"
        f" {others[0]:.12g} to {others[-1]:.12g}; use {as_missing(codes.tolist())}, or, if it is a value,"
        f" give its kind, as {rating} or {as_option({feature: 'real'})}"
    )


def _only_ones(what: str, binary: Mapping[str | None, str]) -> InputError:
    """Return the error about 0/1 features without any 0, from which nothing can be learned."""
    clicks: Mapping[str | None, str] = dict.fromkeys(binary, "click")
    return InputError(
        f"{what}: a model could only learn to predict 1 everywhere; if these are clicks, purchases or views,"
        f" read them with {as_option(clicks)}; if 0 was left out by mistake, add the zeros;"
        f" {as_option(binary)} reads the values as they are"
    )


def _note_constants(kinds: Kinds, index: Positions, values: Floats) -> list[str]:
    """Return a note if all values of the binary features are 1, or all values of the table are equal."""
    binary = np.array([kind.name == "binary" for kind in kinds], dtype=bool)[index]
    if binary.any() and (values[binary] == 1).all():
        return ["all values of the binary features are 1: their predictions will be 1 everywhere"]
    numeric = all(kind.name not in ("binary", "click", "category") for kind in kinds)
    if not numeric or len(values) < FITTABLE or (values != values[0]).any():
        return []
    return [f"all values are {values[0]:g}: the predictions will be {values[0]:g} everywhere"]


def _infer(
    partial: _PartialKinds, mask: NDArray[np.bool_], features: Names, index: Positions, values: Floats
) -> None:
    """Infer the kinds of the features in ``mask``: one kind for all if possible, otherwise one for each."""
    if not mask.any():
        return
    undecided = partial.is_undecided  # includes features without observations
    if not mask.all():
        selected = mask[index]
        index, values = index[selected], values[selected]
    distinct_values = distinct_if_few(values, MAX_LEVELS)
    if distinct_values is not None and np.isin(distinct_values, (0, 1)).all():
        if 0 not in distinct_values and undecided.all() and len(values) >= FITTABLE:
            raise _only_ones("every value is 1", {None: "binary"})
        partial.assign(undecided, Kind.binary())
        return
    if distinct_values is not None and len(distinct_values) > 1:
        one_feature = np.zeros(len(distinct_values), np.int64)
        if on_grid(one_feature, distinct_values, 1)[0]:
            partial.assign(undecided, Kind.rating(float(distinct_values[0]), float(distinct_values[-1])))
            return
    binary, rating, low, high = infer_each(mask, index, values)
    if binary.any() and (values[binary[index]] == 1).all():  # each has at least MAX_LEVELS observations
        names = features.take(np.flatnonzero(binary))
        raise _only_ones(f"every value of {join_names(names, 3)} is 1", {names[0]: "binary"})
    partial.assign(binary, Kind.binary())
    partial.assign(rating, RATING)
    partial.first[rating], partial.second[rating] = low[rating], high[rating]
    partial.assign(mask & ~binary & ~rating, REAL)


def _infer_counts(
    partial: _PartialKinds,
    mask: NDArray[np.bool_],
    index: Positions,
    values: Floats,
    local_index: Positions,
    local_values: Floats,
) -> None:
    """Make counts of the reals in ``mask`` with whole numbers from 0 up, if their logarithm is more Gaussian.

    All processes share ``index`` and ``values``; the others are the observations of this process.
    """
    count = len(mask)
    others = np.bincount(index, (values < 0) | (values != np.round(values)), count) > 0
    whole = partial.of_type(KindType.REAL, mask & ~others).get(REAL)
    if whole is None:
        return
    chosen = whole[local_index]
    if global_count(int(chosen.sum())) < MIN_COUNTS:
        return
    _, gain = likely_shift(local_index[chosen], local_values[chosen], count)
    zeros = global_count(int((local_values[chosen] == 0).sum())) > 0
    if gain > (ZERO_GAIN if zeros else COUNT_GAIN):
        partial.assign(whole, Count())


def _compute_rating_limits(partial: _PartialKinds, features: Names, index: Positions, values: Floats) -> None:
    """Set missing limits of ratings to the smallest and largest value of the feature.

    A feature with fewer than two distinct values gets the limits of all such ratings together.
    """
    mask = partial.of_type(KindType.RATING, np.isnan(partial.second)).get(RATING)
    if mask is None:
        return
    selected = mask[index]
    low, high = range_by_feature(index[selected], values[selected], len(features))
    constant = mask & ~(high > low)
    if constant.any():
        name = features[int(np.argmax(constant))]
        if not selected.any():
            raise InputError(
                f"feature {name!r} has no observations; give the limits of the rating, as in rating:1:5"
            )
        common = _rating_of(values[selected], f"feature {name!r} and of the other ratings without limits")
        low[constant], high[constant] = common.low, common.high
    partial.first[mask], partial.second[mask] = low[mask], high[mask]


def _learn_margins(partial: _PartialKinds, index: Positions, values: Floats) -> None:
    """Learn the parameters of margins that are not known, each from all features with this margin.

    Amounts and counts of different magnitudes are learned apart, because their shift depends on it.
    """
    for code, margin in enumerate(list(partial.margins)):  # every process has the same
        mask = partial.codes == code
        if margin.is_complete or not mask.any():
            continue
        selected = mask[index] & margin.possible(values)  # impossible values are refused afterwards
        features, numbers = index[selected], np.asarray(values[selected], np.float64)
        groups = [mask]
        if isinstance(margin, Amount):
            groups = [mask & group for group in groups_of_magnitude(features, numbers, len(mask))]
        for group in groups:
            of = group[features]
            learned = margin.learn(features[of], numbers[of], len(mask))
            if isinstance(margin, Amount) and len(groups) > 1:  # there are zeros, perhaps in another group
                shift, _ = likely_shift(features[of], numbers[of], len(mask), zeros=True)
                learned = replace(margin, shift=shift)
            partial.assign(group, learned if learned.type == KindType.REAL else Kind(learned))


def groups_of_magnitude(features: Positions, values: Floats, count: int) -> list[NDArray[np.bool_]]:
    """Divide ``count`` features into groups of similar magnitude, as masks; one group if no value is 0.

    The shift of log(x + shift) determines the logarithm of 0. With a shift that fits values of 0.01, zeros
    among values of 1000 would be outliers.

    Parameters
    ----------
    features : ndarray of shape (n,)
        The feature of each value.
    values : ndarray of shape (n,)
        Values from 0 up.
    count : int
        The number of features.

    Examples
    --------
    >>> groups_of_magnitude(np.array([0, 0, 1, 2]), np.array([0.0, 1.0, 5e4, 3.0]), 3)
    [array([ True, False,  True]), array([False,  True, False])]
    """
    positive = values > 0
    if not global_count(int((~positive).sum())):
        return [np.full(count, True)]
    logs = global_sum(np.bincount(features[positive], np.log(values[positive]), count))
    numbers = global_sum(np.bincount(features[positive], minlength=count))
    magnitude = logs / np.maximum(numbers, 1)
    group, number, smallest = np.zeros(count, dtype=np.int64), 0, np.inf
    for feature in np.argsort(magnitude, kind="stable").tolist():
        if numbers[feature] > 0:  # others are in the first group
            if magnitude[feature] > smallest + np.log(MAX_MAGNITUDE_RATIO):
                number, smallest = number + 1, magnitude[feature]
            smallest = min(smallest, magnitude[feature])
            group[feature] = number
    return [group == position for position in range(number + 1)]


def _compute_scales(partial: _PartialKinds, index: Positions, values: Floats) -> bool:
    """Set missing centers and scales of kinds modelled as reals. Return whether those of a kind share one."""
    shared = True
    incomplete = np.isnan(partial.second)
    for margin, mask in partial.of_type(KindType.REAL, incomplete).items():  # the same in every process
        selected = mask[index] & margin.possible(values)
        if not global_count(int(selected.sum())):
            partial.assign(mask, Kind(margin))
            continue
        features, numbers = index[selected], np.asarray(values[selected], np.float64)
        center, scale, same = real_scales(features, margin.to_number(numbers), len(mask))
        observed = mask & (global_sum(np.bincount(features, minlength=len(mask))) > 0)
        partial.first[observed], partial.second[observed] = center[observed], scale[observed]
        partial.assign(mask & ~observed, partial.median_units(margin, observed))
        shared &= same
    return shared


def _most_common(partial: _PartialKinds, observed: NDArray[np.bool_]) -> Kind:
    """Return the most common kind of features with observations, apart from categories.

    If it is modelled as a real and the features have their own scales, return the median center and scale.
    """
    decided = observed & ~partial.is_undecided
    by_type = {
        type: {
            margin: mask
            for margin, mask in partial.of_type(type, decided).items()
            if not isinstance(margin, Category)  # the column of one level
        }
        for type in KindType
    }
    if not any(by_type.values()):
        return Kind.binary()
    kind_type = max(by_type, key=lambda type: sum(int(mask.sum()) for mask in by_type[type].values()))
    margin, mask = max(by_type[kind_type].items(), key=lambda item: int(item[1].sum()))
    pairs = np.stack([partial.first[mask], partial.second[mask]], 1)
    pairs, counts = np.unique(pairs, axis=0, return_counts=True)
    if kind_type == KindType.REAL and len(pairs) > 1:
        return partial.median_units(margin, mask)
    return Kind(margin, *pairs[np.argmax(counts)].tolist())


def _as_kinds(partial: _PartialKinds) -> Kinds:
    margins = [partial.margins[code] for code in partial.codes.tolist()]
    triples = zip(margins, partial.first.tolist(), partial.second.tolist(), strict=True)
    cache: dict[tuple[Margin, float, float], Kind] = {}
    kinds = Kinds([cache.setdefault(triple, Kind(*triple)) for triple in triples])
    if not np.isfinite(kinds.spans).all():
        raise InputError("some values are too large to be scaled; use other units")
    return kinds
