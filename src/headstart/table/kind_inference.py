"""Infer the kind of each feature from its values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray

from headstart.errors import InputError, join_names
from headstart.table.cells import Floats, Positions, chunk_slices, count_positions
from headstart.table.kinds import Kind, Kinds, KindType, as_option, kinds_as_option
from headstart.table.names import Names
from headstart.table.outliers import moments_by_feature
from headstart.table.sharding import FeatureExchange, gather, global_count, global_max, global_sum, is_single

MAX_STEPS = 100  # values that span more steps do not count as a grid


def few_distinct(values: Floats, limit: int) -> NDArray[np.float64] | None:
    """Return the distinct values in order, or None if there are more than ``limit``.

    >>> few_distinct(np.array([2.0, 1.0, 2.0]), limit=2)
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
    low, high, step = np.full(count, np.inf), np.full(count, -np.inf), np.full(count, np.inf)
    np.minimum.at(low, features, values)
    np.maximum.at(high, features, values)
    same = features[1:] == features[:-1]
    gaps, gap_features = np.diff(values)[same], features[1:][same]
    np.minimum.at(step, gap_features, gaps)
    integers = np.bincount(features, values != np.round(values), count) == 0
    with np.errstate(over="ignore", invalid="ignore"):  # very large numbers, which are on no grid
        multiples = gaps / step[gap_features]
        even = np.bincount(gap_features, np.abs(multiples - np.round(multiples)) > 1e-4, count) == 0
        fits = high - low <= MAX_STEPS * np.where(even, step, 1.0) * (1 + 1e-9)
    return np.asarray((even | integers) & fits)


ROUNDING = 4 * np.finfo(np.float64).eps  # a smaller spread, relative to the values, is no spread

_LEAST_SHARE = 1e-15  # of a scale in the distance of the value furthest off, whose square must be possible


def real_scales(
    index: Positions, values: Floats, count: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], bool]:
    """Return the center and scale of each of ``count`` features, and whether all share one pair.

    ``index`` is the feature of each value. Features of similar center and scale share one pair; otherwise
    each feature has its own. Values far beyond all others of their feature do not enlarge its scale.
    """
    number = global_sum(np.bincount(index, minlength=count))
    values = np.asarray(values, dtype=np.float64)
    mean, squares = moments_by_feature(torch.from_numpy(index), torch.from_numpy(values), count)
    deviation = np.sqrt(squares / np.maximum(number, 1))
    deviation[deviation <= ROUNDING * np.abs(mean)] = 0.0  # a constant feature, up to rounding
    # The deviation of two or three values says little: if possible, compare features with five or more.
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
    scale = scale if scale > ROUNDING * abs(center) else abs(center) or 1.0
    return np.full(count, center), np.full(count, max(scale, float(least.max(initial=0)))), True


def _least_scales(
    index: Positions, values: NDArray[np.float64], mean: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The scale below which the value furthest off, which is no part of a scale, would overflow."""
    with np.errstate(over="ignore", invalid="ignore"):  # values that are too large are found at the end
        distance = np.nan_to_num(np.abs(values - mean[index]))
    furthest = np.zeros(len(mean))
    np.maximum.at(furthest, index, distance)
    return _LEAST_SHARE * global_max(furthest)


FEW = 20  # a rating has at most so many distinct values, and at least so many observations

MANY_TOPS = 5  # so many different upper limits are not upper limits

MAX_RATIO = 3  # ratings with a larger upper limit than so many times the usual one are not alike


class Inferred(NamedTuple):
    """Which features are binary and which are ratings, with limits; the others are real."""

    binary: NDArray[np.bool_]  # (features,)
    rating: NDArray[np.bool_]  # (features,)
    low: NDArray[np.float64]  # (features,)
    high: NDArray[np.float64]  # (features,)


def infer_each(mask: NDArray[np.bool_], index: Positions, values: Floats) -> Inferred:
    """Judge each feature in ``mask`` by its own values, then make equal those that are alike.

    ``index`` (n,) is the position of the feature of each of the ``values`` (n,).

    Columns of whole numbers are alike in one of three ways. Their ranges go on growing past what a rating
    can be: these are counts, and real. Or their ranges differ, but all values lie on one small grid: these
    are ratings with one range. Or one range is usual, and some columns do not reach its ends: these have
    the usual range.
    """
    count = len(mask)
    order = np.lexsort((values, index))
    feature, value = index[order], values[order]
    new = np.append(True, (feature[1:] != feature[:-1]) | (value[1:] != value[:-1]))
    # The distinct values of each feature, in order; their differences need double precision.
    feature, value = feature[new], value[new].astype(np.float64)
    distinct, enough = np.bincount(feature, minlength=count), np.bincount(index, minlength=count) >= FEW
    zeros_and_ones = np.bincount(feature, ~np.isin(value, (0, 1)), count) == 0
    binary = mask & zeros_and_ones & ((distinct == 2) | enough)
    rating = mask & ~binary & enough & (distinct > 1) & (distinct <= FEW) & on_grid(feature, value, count)
    low, high = np.full(count, np.inf), np.full(count, -np.inf)
    np.minimum.at(low, feature, value)
    np.maximum.at(high, feature, value)
    inferred = Inferred(binary, rating, low, high)
    whole = mask & (np.bincount(feature, value != np.round(value), count) == 0)
    _make_equal(inferred, whole, feature, value)
    return inferred


def _make_equal(
    inferred: Inferred, whole: NDArray[np.bool_], feature: Positions, value: NDArray[np.float64]
) -> None:
    """Change the kinds of columns of whole numbers that are alike, in place."""
    binary, rating, low, high = inferred
    ratings = rating & whole
    if not ratings.any():
        return
    ranges = Counter(zip(low[ratings].tolist(), high[ratings].tolist(), strict=True))
    usual, number = ranges.most_common(1)[0]
    if 2 * number >= ratings.sum():
        if number > 1:
            # A rating of its own within a much larger range is not alike.
            wide = ~rating | (2 * (high - low) >= usual[1] - usual[0])
            others = whole & ~binary & (low >= usual[0]) & (high <= usual[1]) & wide
            rating |= others
            low[others], high[others] = usual
        return
    grid = few_distinct(value[ratings[feature]], FEW)
    if _are_counts(inferred, ratings, whole & ~binary & ~rating, grid is not None):
        if binary.sum() < (whole & ~binary).sum():
            binary &= ~whole  # counts that are never above 1
        rating &= ~whole
    elif (
        grid is not None
        and grid[-1] - grid[0] <= MAX_STEPS
        and high[ratings].max() <= MAX_RATIO * np.median(high[ratings])
    ):
        low[ratings], high[ratings] = grid[0], grid[-1]


def _are_counts(
    inferred: Inferred, ratings: NDArray[np.bool_], others: NDArray[np.bool_], small_grid: bool
) -> bool:
    """Return whether the ranges of ratings differ because these are counts without an upper limit.

    ``others`` are columns of whole numbers that are no ratings: one that overlaps with the ratings
    continues them.
    """
    low, high = inferred.low, inferred.high
    tops = np.unique(high[ratings])
    continued = bool((others & (low >= 0) & (low <= tops[-1])).any())
    many = not small_grid and len(tops) >= MANY_TOPS
    return bool((low[ratings] >= 0).all()) and len(tops) > 2 and (continued or many)


Pairs = tuple[Positions, Floats]


def sample_values(index: Positions, values: Floats, width: int) -> Pairs:
    """Features and values that stand for those of all processes: see ``resolve_kinds``.

    Of a feature there are all distinct values if they are few, and otherwise some more than a rating can
    have, with the smallest, the largest and one that is not whole, if there is one. There are as many as
    the feature has observations, but at most enough to tell a rating. A process by itself has all values.
    """
    if is_single():
        return index, values
    counts = global_sum(np.bincount(index, minlength=width))
    features, few = _few_values(index, values)
    exchange = FeatureExchange(torch.from_numpy(features), width)
    received = exchange.send(torch.from_numpy(few)).numpy()
    features = np.repeat(np.arange(width)[exchange.features], exchange.counts.numpy())
    features, few = _few_values(features, received)
    features, few = gather(features), gather(few)
    distinct = np.bincount(features, minlength=width)
    more = np.maximum(0, np.minimum(counts, FEW) - distinct)
    first = np.searchsorted(features, np.flatnonzero(more))  # the first value of each, once more
    repeated = np.repeat(first, more[more > 0])
    every = np.concatenate([features, features[repeated]]).astype(np.int32)
    return every, np.concatenate([few, few[repeated]])


def _few_values(index: NDArray[Any], values: Floats) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Distinct values of each feature, sorted; of many the first ones, the last, and one not whole."""
    order = np.lexsort((values, index))
    feature, value = index[order], values[order]
    new = np.append(True, (feature[1:] != feature[:-1]) | (value[1:] != value[:-1]))[: len(feature)]
    feature, value = feature[new], value[new]
    starts = np.flatnonzero(np.append(True, feature[1:] != feature[:-1])[: len(feature)])
    ends = np.append(starts[1:], len(feature))
    place = np.arange(len(feature)) - np.repeat(starts, ends - starts)
    kept = place <= FEW  # one more than a rating has
    kept[ends - 1] = True
    fractional = np.flatnonzero(value != np.round(value))
    kept[fractional[np.append(True, np.diff(feature[fractional]) > 0)[: len(fractional)]]] = True
    return feature[kept].astype(np.int64), value[kept].astype(np.float64)  # as other processes have them


KindsLike = str | Kind | Mapping[str, str | Kind] | Mapping[str | None, str | Kind] | None

UNDECIDED = -1  # in place of a KindType: the kind of the feature is not decided yet


class _KindArrays(NamedTuple):
    """The kinds that are decided so far. NaN is a parameter that is still to be computed."""

    types: NDArray[np.int64]  # (features,)
    first: NDArray[np.float64]  # (features,)
    second: NDArray[np.float64]  # (features,)

    def assign(self, features: NDArray[np.bool_] | int, kind: Kind | int) -> None:
        self.types[features] = kind.type if isinstance(kind, Kind) else kind
        if isinstance(kind, Kind):
            self.first[features], self.second[features] = kind.first, kind.second

    def median_real(self, mask: NDArray[np.bool_]) -> Kind:
        return Kind.real(float(np.median(self.first[mask])), float(np.median(self.second[mask])))


def resolve_kinds(
    kinds: KindsLike, features: Names, index: Positions, values: Floats
) -> tuple[Kinds, tuple[str, ...]]:
    """Return the features' kinds, and notes that say what was inferred.

    ``index`` (n,) is the position of the feature of each of the ``values`` (n,).

    >>> resolve_kinds(None, Names(["a", "b"], "feature"), np.array([0, 0, 1]), np.array([1.0, 5.0, 3.0]))
    (Kinds(2 rating:1:5), ("2 features inferred as rating:1:5 (kinds='rating:1:5')",))
    """
    count = len(features)
    every = index, values
    index, values = sample_values(index, values, count)
    arrays = _KindArrays(np.full(count, UNDECIDED), np.full(count, np.nan), np.full(count, np.nan))
    observed = count_positions(index, count) > 0
    if isinstance(kinds, Mapping):
        _assign_by_name(arrays, kinds, features, index, values)
    elif kinds is not None:
        arrays.assign(np.full(count, True), _kind_of_many(kinds, values, "the table"))
    inferred = (arrays.types == UNDECIDED) & observed
    unobserved = (arrays.types == UNDECIDED) & ~observed
    _infer(arrays, inferred, index, values)
    _compute_rating_limits(arrays, features, index, values)
    shared = _compute_real_scales(arrays, *every)
    common = _most_common(arrays, observed, shared)
    arrays.assign(arrays.types == UNDECIDED, common)
    resolved = _as_kinds(arrays)
    notes = []
    if inferred.any():
        positions = np.flatnonzero(inferred)
        found = resolved.take(positions)
        summary = found.summary()
        text = (
            f"features inferred: {summary}"
            if "," in summary
            else summary.replace(" ", " features inferred as ", 1)
        )
        notes.append(f"{text} ({kinds_as_option(features.take(positions), found)})")
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
) -> None:
    """Raise an error for the first value that its feature's kind does not allow."""
    for part in chunk_slices(len(values)):
        bad = kinds.impossible(values[part], feature_index[part])
        if not bad.any():
            continue
        i = part.start + int(np.argmax(bad))
        kind = kinds[feature_index[i]]
        raise InputError(
            f"row {rows[row_index[i]]!r}, feature {features[feature_index[i]]!r}: the value"
            f" {values[i]:.12g} must be {kind.allowed} (the feature's kind is {kind}); correct the value, or"
            f" give this feature another kind, as in {as_option({features[feature_index[i]]: 'real'})}"
        )


def parse_kind(text: object) -> Kind | int:
    """Read a kind. ``rating`` and ``real`` give only a ``KindType``: the data gives the parameters."""
    if isinstance(text, Kind):
        return text
    if not isinstance(text, str):
        raise InputError(f"a kind is a text such as 'rating:1:5'; got {text!r}")
    types = {"rating": KindType.RATING, "real": KindType.REAL}
    return types[text] if text in types else Kind.parse(text)


def _assign_by_name(
    arrays: _KindArrays,
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
        arrays.assign(position, kind)
    if None in kinds:
        others = np.full(len(features), True)
        others[positions] = False
        arrays.assign(others, _kind_of_many(kinds[None], values[others[index]], "the other features"))


def _kind_of_many(text: str | Kind, values: Floats, owner: str) -> Kind | int:
    """Return one kind for features with these values. ``rating`` gets the limits of all of them."""
    kind = parse_kind(text)
    return _rating_of(values, owner) if kind == KindType.RATING else kind


def _rating_of(values: Floats, owner: str) -> Kind:
    """Return the rating whose limits are the smallest and largest value. ``owner`` is for messages."""
    if not len(values):
        raise InputError(f"{owner} have no observations; give the limits of the rating, as in rating:1:5")
    low, high = float(values.min()), float(values.max())
    if low == high:
        raise InputError(
            f"all values of {owner} are {low:.12g}; give the limits of the rating, as in rating:1:5"
        )
    return Kind.rating(low, high)


def _infer(arrays: _KindArrays, mask: NDArray[np.bool_], index: Positions, values: Floats) -> None:
    """Decide the kinds of the features in ``mask``: one kind for all if possible, else one for each."""
    if not mask.any():
        return
    undecided = arrays.types == UNDECIDED  # includes features without observations
    if not mask.all():
        selected = mask[index]
        index, values = index[selected], values[selected]
    distinct_values = few_distinct(values, FEW)
    if distinct_values is not None and np.isin(distinct_values, (0, 1)).all():
        arrays.assign(undecided, Kind.binary())
        return
    if distinct_values is not None and len(distinct_values) > 1:
        one_feature = np.zeros(len(distinct_values), np.int64)
        if on_grid(one_feature, distinct_values, 1)[0]:
            arrays.assign(undecided, Kind.rating(float(distinct_values[0]), float(distinct_values[-1])))
            return
    binary, rating, low, high = infer_each(mask, index, values)
    arrays.assign(binary, Kind.binary())
    arrays.types[rating] = KindType.RATING
    arrays.first[rating], arrays.second[rating] = low[rating], high[rating]
    arrays.types[mask & ~binary & ~rating] = KindType.REAL


def _compute_rating_limits(arrays: _KindArrays, features: Names, index: Positions, values: Floats) -> None:
    """Set missing limits of ratings to the smallest and largest value of the feature.

    A feature with fewer than two distinct values gets the limits of all such ratings together.
    """
    mask = (arrays.types == KindType.RATING) & np.isnan(arrays.second)
    if not mask.any():
        return
    low, high = np.full(len(features), np.inf), np.full(len(features), -np.inf)
    selected = mask[index]
    np.minimum.at(low, index[selected], values[selected])
    np.maximum.at(high, index[selected], values[selected])
    constant = mask & ~(high > low)
    if constant.any():
        name = features[int(np.argmax(constant))]
        if not selected.any():
            raise InputError(
                f"feature {name!r} has no observations; give the limits of the rating, as in rating:1:5"
            )
        common = _rating_of(values[selected], f"feature {name!r} and of the other ratings without limits")
        low[constant], high[constant] = common.low, common.high
    arrays.first[mask], arrays.second[mask] = low[mask], high[mask]


def _compute_real_scales(arrays: _KindArrays, index: Positions, values: Floats) -> bool:
    """Set missing centers and scales of reals. Return whether all of them share one pair."""
    mask = (arrays.types == KindType.REAL) & np.isnan(arrays.second)
    if not mask.any():  # every process has the same features
        return True
    selected = mask[index]
    if not global_count(int(selected.sum())):
        arrays.assign(mask, Kind.real())
        return True
    index = index[selected]
    center, scale, shared = real_scales(index, values[selected], len(mask))
    observed = mask & (global_sum(np.bincount(index, minlength=len(mask))) > 0)
    arrays.first[observed], arrays.second[observed] = center[observed], scale[observed]
    arrays.assign(mask & ~observed, arrays.median_real(observed))
    return shared


def _most_common(arrays: _KindArrays, observed: NDArray[np.bool_], shared: bool) -> Kind:
    """Return the most common kind of features with observations.

    If it is real and each real has its own scale, return the median center and scale.
    """
    decided = observed & (arrays.types != UNDECIDED)
    types, counts = np.unique(arrays.types[decided], return_counts=True)
    kind_type = KindType(int(types[np.argmax(counts)]))
    mask = decided & (arrays.types == kind_type)
    if kind_type == KindType.REAL and not shared:
        return arrays.median_real(mask)
    pairs = np.stack([arrays.first[mask], arrays.second[mask]], 1)
    pairs, counts = np.unique(pairs, axis=0, return_counts=True)
    return Kind(kind_type, *pairs[np.argmax(counts)].tolist())


def _as_kinds(arrays: _KindArrays) -> Kinds:
    triples = zip(arrays.types.tolist(), arrays.first.tolist(), arrays.second.tolist(), strict=True)
    cache: dict[tuple[int, float, float], Kind] = {}
    kinds = Kinds([cache.setdefault(triple, Kind(KindType(triple[0]), *triple[1:])) for triple in triples])
    if not np.isfinite(kinds.spans).all():
        raise InputError("some values are too large to be scaled; use other units")
    return kinds
