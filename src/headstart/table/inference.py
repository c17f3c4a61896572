"""Which kind each feature is of: as the user says, or as its values look."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headstart.errors import InputError
from headstart.table.grids import few_distinct, on_grid
from headstart.table.kinds import Kind, Kinds, KindType
from headstart.table.names import Names

KindsGiven = str | Kind | Mapping[str, str | Kind] | None

FEW = 20  # more distinct values than this are no rating; fewer observations than this prove none
OPEN = -1  # the kind of a feature of which nothing is known yet


class _Draft(NamedTuple):
    """Kinds in the making, with the two numbers of each; NaN is to be found from the values."""

    types: NDArray[np.int64]  # (features,)
    first: NDArray[np.float64]  # (features,)
    second: NDArray[np.float64]  # (features,)

    def put(self, where: NDArray[np.bool_] | int, kind: Kind) -> None:
        self.types[where], self.first[where], self.second[where] = kind.type, kind.first, kind.second


def settle_kinds(
    given: KindsGiven, features: Names, index: NDArray[np.int64], values: NDArray[np.float64]
) -> tuple[Kinds, tuple[str, ...]]:
    """Return the features' kinds and, in words, what was inferred.

    ``index`` (n,) is the feature of each of the ``values`` (n,).

    >>> settle_kinds(None, Names(["a", "b"], "feature"), np.array([0, 0, 1]), np.array([1.0, 5.0, 3.0]))
    (Kinds(2 rating:1:5), ('2 features inferred as rating:1:5; pass kinds= to say otherwise',))
    """
    count = len(features)
    draft = _Draft(np.full(count, OPEN), np.full(count, np.nan), np.full(count, np.nan))
    observed = np.bincount(index, minlength=count) > 0
    if isinstance(given, Mapping):
        _put_given(draft, given, features)
    elif given is not None:
        kind = given if isinstance(given, Kind) else parse_kind(given)
        if isinstance(kind, Kind):
            draft.put(np.full(count, True), kind)
        elif kind == KindType.RATING:
            draft.put(np.full(count, True), _whole_rating(values, "the table"))
        else:
            draft.types[:] = kind
    inferred = (draft.types == OPEN) & observed
    blank = (draft.types == OPEN) & ~observed
    _infer(draft, inferred, index, values)
    _find_rating_ends(draft, features, index, values)
    shared = _find_real_scales(draft, index, values)
    commonest = _commonest(draft, observed, shared)
    draft.put(draft.types == OPEN, commonest)
    kinds = _built(draft)
    notes = []
    if inferred.any():
        told = kinds.take(np.flatnonzero(inferred)).summary()
        told = (
            told.replace(" ", " features inferred as ", 1)
            if "," not in told
            else f"features inferred: {told}"
        )
        notes.append(f"{told}; pass kinds= to say otherwise")
    if blank.any():
        notes.append(
            f"{int(blank.sum())} features without observations taken for {commonest}, the commonest kind"
        )
    if not shared:
        notes.append("real features differ in size, so each has its own center and scale")
    return kinds, tuple(notes)


def check_values(
    kinds: Kinds,
    rows: Names,
    features: Names,
    row_index: NDArray[np.int64],
    feature_index: NDArray[np.int64],
    values: NDArray[np.float64],
) -> None:
    """Refuse the first value that its feature's kind cannot take."""
    bad = kinds.impossible(values, feature_index)
    if bad.any():
        i = int(np.argmax(bad))
        kind = kinds[feature_index[i]]
        raise InputError(
            f"row {rows[row_index[i]]!r}, feature {features[feature_index[i]]!r}: the value"
            f" {values[i]:.12g} must be {kind.allowed} (the feature's kind is {kind})"
        )


def parse_kind(text: object) -> Kind | int:
    """Read a kind; ``rating`` and ``real`` alone give only the type, their ends being left to the data."""
    if isinstance(text, Kind):
        return text
    if not isinstance(text, str):
        raise InputError(f"a kind is a text such as 'rating:1:5'; got {text!r}")
    bare = {"rating": KindType.RATING, "real": KindType.REAL}
    return bare[text] if text in bare else Kind.parse(text)


def _put_given(draft: _Draft, given: Mapping[str, str | Kind], features: Names) -> None:
    for position, text in zip(features.positions(given), given.values(), strict=True):
        kind = parse_kind(text)
        if isinstance(kind, Kind):
            draft.put(int(position), kind)
        else:
            draft.types[position] = kind


def _whole_rating(values: NDArray[np.float64], whose: str) -> Kind:
    low, high = float(values.min()), float(values.max())
    if low == high:
        raise InputError(
            f"all values of {whose} are {low:.12g}; give the ends of the rating, as in rating:1:5"
        )
    return Kind.rating(low, high)


def _infer(
    draft: _Draft, which: NDArray[np.bool_], index: NDArray[np.int64], values: NDArray[np.float64]
) -> None:
    """Choose the kinds of these features: one for all if their values allow it, else one each."""
    if not which.any():
        return
    every = draft.types == OPEN  # also those without observations, should all get one kind
    if not which.all():
        mine = which[index]
        index, values = index[mine], values[mine]
    whole = few_distinct(values, FEW)
    if whole is not None and np.isin(whole, (0, 1)).all():
        draft.put(every, Kind.binary())
        return
    if whole is not None and len(whole) > 1 and on_grid(np.zeros(len(whole), np.int64), whole, 1)[0]:
        draft.put(every, Kind.rating(float(whole[0]), float(whole[-1])))
        return
    count = len(which)
    order = np.lexsort((values, index))
    owner, value = index[order], values[order]
    new = np.append(True, (owner[1:] != owner[:-1]) | (value[1:] != value[:-1]))
    owner, value = owner[new], value[new]  # the distinct values of each feature, in order
    distinct, enough = np.bincount(owner, minlength=count), np.bincount(index, minlength=count) >= FEW
    only_bits = np.bincount(owner, ~np.isin(value, (0, 1)), count) == 0
    bits = which & only_bits & ((distinct == 2) | enough)
    grid = which & ~bits & enough & (distinct > 1) & (distinct <= FEW) & on_grid(owner, value, count)
    draft.put(bits, Kind.binary())
    draft.types[grid] = KindType.RATING
    draft.types[which & ~bits & ~grid] = KindType.REAL


def _find_rating_ends(
    draft: _Draft, features: Names, index: NDArray[np.int64], values: NDArray[np.float64]
) -> None:
    """Give each rating without ends those of its own values, or of all such if its own are one."""
    todo = (draft.types == KindType.RATING) & np.isnan(draft.second)
    if not todo.any():
        return
    low, high = np.full(len(features), np.inf), np.full(len(features), -np.inf)
    mine = todo[index]
    np.minimum.at(low, index[mine], values[mine])
    np.maximum.at(high, index[mine], values[mine])
    lone = todo & ~(high > low)
    if lone.any():
        if not mine.any():
            raise InputError(f"feature {features[int(np.argmax(lone))]!r}: give the ends of the rating")
        whole = _whole_rating(values[mine], f"feature {features[int(np.argmax(lone))]!r} and its like")
        low[lone], high[lone] = whole.low, whole.high
    draft.first[todo], draft.second[todo] = low[todo], high[todo]


def _find_real_scales(draft: _Draft, index: NDArray[np.int64], values: NDArray[np.float64]) -> bool:
    """Give the reals center and scale: one pair for all if they are alike, else one each. Say which."""
    todo = (draft.types == KindType.REAL) & np.isnan(draft.second)
    mine = todo[index]
    if not mine.any():
        draft.put(todo, Kind.real())
        return True
    count, index, values = len(todo), index[mine], values[mine]
    number = np.bincount(index, minlength=count)
    mean = np.bincount(index, values, count) / np.maximum(number, 1)
    square = np.bincount(index, (values - mean[index]) ** 2, count)
    deviation = np.sqrt(square / np.maximum(number, 1))
    deviation[deviation <= 1e-9 * np.abs(mean)] = 0.0  # a constant, but for rounding
    # Of two or three values the deviation says little; features with more decide where there are any.
    judged = number >= min(5, number.max())
    varied = deviation[judged & (deviation > 0)]
    pooled = np.sqrt(square.sum() / number.sum())
    alike = bool(
        (np.abs(mean[judged] - np.median(mean[judged])) <= 10 * pooled).all()
        and (len(varied) == 0 or (np.abs(np.log10(varied / np.median(varied))) <= 1).all())
    )
    if alike:
        center, scale = float(values.mean()), float(values.std())
        scale = scale if scale > 1e-9 * abs(center) else abs(center) or 1.0
        draft.put(todo, Kind.real(center, scale))
    else:
        seen = todo & (number > 0)
        size = np.where(np.abs(mean) > 0, np.abs(mean), 1.0)
        draft.first[seen] = mean[seen]
        draft.second[seen] = np.where(deviation > 0, deviation, size)[seen]
        middle = Kind.real(float(np.median(draft.first[seen])), float(np.median(draft.second[seen])))
        draft.put(todo & ~seen, middle)
    return alike


def _commonest(draft: _Draft, observed: NDArray[np.bool_], shared: bool) -> Kind:
    """The kind that most features with observations have; of reals that differ, one in their middle."""
    settled = observed & (draft.types != OPEN)
    found, counts = np.unique(draft.types[settled], return_counts=True)
    kind = KindType(int(found[np.argmax(counts)]))
    these = settled & (draft.types == kind)
    if kind == KindType.REAL and not shared:
        return Kind.real(float(np.median(draft.first[these])), float(np.median(draft.second[these])))
    pairs, counts = np.unique(
        np.stack([draft.first[these], draft.second[these]], 1), axis=0, return_counts=True
    )
    return Kind(kind, *pairs[np.argmax(counts)].tolist())


def _built(draft: _Draft) -> Kinds:
    triples = zip(draft.types.tolist(), draft.first.tolist(), draft.second.tolist(), strict=True)
    made: dict[tuple[int, float, float], Kind] = {}
    kinds = Kinds([made.setdefault(triple, Kind(KindType(triple[0]), *triple[1:])) for triple in triples])
    if not np.isfinite(kinds.spans).all():
        raise InputError("some values are too large to be scaled; bring them to other units")
    return kinds
