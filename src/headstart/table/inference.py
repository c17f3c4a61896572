"""The kind of each feature: as the user says, or inferred from its values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from headstart.crew import crew
from headstart.errors import InputError, listed
from headstart.table.alike import FEW, infer_each
from headstart.table.compact import Floats, Positions, counts_of, parts_of
from headstart.table.digests import digest
from headstart.table.grids import few_distinct, on_grid
from headstart.table.kinds import Kind, Kinds, KindType
from headstart.table.names import Names
from headstart.table.pasting import kinds_to_paste, pasted
from headstart.table.scales import real_scales

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
    index, values = digest(index, values, count)
    arrays = _KindArrays(np.full(count, UNDECIDED), np.full(count, np.nan), np.full(count, np.nan))
    observed = counts_of(index, count) > 0
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
        notes.append(f"{text} ({kinds_to_paste(features.take(positions), found)})")
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
    for part in parts_of(len(values)):
        bad = kinds.impossible(values[part], feature_index[part])
        if not bad.any():
            continue
        i = part.start + int(np.argmax(bad))
        kind = kinds[feature_index[i]]
        raise InputError(
            f"row {rows[row_index[i]]!r}, feature {features[feature_index[i]]!r}: the value"
            f" {values[i]:.12g} must be {kind.allowed} (the feature's kind is {kind}); correct the value, or"
            f" give this feature another kind, as in {pasted({features[feature_index[i]]: 'real'})}"
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
        raise InputError(f"kinds contains a feature twice, in two spellings: {listed(named)}; keep one")
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
    if not crew().count(int(selected.sum())):
        arrays.assign(mask, Kind.real())
        return True
    index = index[selected]
    center, scale, shared = real_scales(index, values[selected], len(mask))
    observed = mask & (crew().total(torch.from_numpy(np.bincount(index, minlength=len(mask)))) > 0).numpy()
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
