"""Read values that are texts, such as agree or A, and make the columns of categories.

A source whose values are not numbers is read again by a ``LabelledSource``, which numbers the labels.
``resolve_labels`` then decides the kind of each feature with labels, and replaces them by values: 0 and 1 of
a binary feature, the positions of ordered levels, and one column of 0 and 1 per level of a category.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headstart.display import count
from headstart.distributed import rows_are_sharded
from headstart.errors import InputError, did_you_mean, join_names
from headstart.table.cells import Floats, Positions
from headstart.table.censored_values import MIN_EXACT, Limit, expected_values, parse_limit
from headstart.table.kind_inference import FITTABLE, KindsLike, parse_kind
from headstart.table.kinds import Kind, KindType, Margin, as_option, column_name
from headstart.table.margins import Binary, Category, Ordinal, write_levels
from headstart.table.missing_values import as_missing, is_no_answer
from headstart.table.names import Names, as_name
from headstart.table.sources import BLANKS, Source, as_number, is_number, is_text

# Pairs of labels whose order is known: the first means 0.
PAIRS = (("no", "yes"), ("false", "true"), ("n", "y"), ("f", "t"), ("absent", "present"),
         ("wrong", "right"), ("incorrect", "correct"), ("negative", "positive"),
         ("disagree", "agree"), ("off", "on"))  # fmt: skip

MAX_LABELS = 1000  # different labels of one feature

MAX_TEXT_SHARE = 0.5  # different labels per observation; a feature with more holds free text

LEVEL = "level"  # the metadata column with the levels of categories


class LabelledSource(Source):
    """A source some of whose values are texts: they become positions in ``labels``.

    Parameters
    ----------
    source : Source
        The source.
    error : InputError
        The error of reading its values as numbers.
    weight : str, default=None
        The column of weights, which are numbers.
    """

    def __init__(self, source: Source, error: InputError, weight: str | None = None) -> None:
        self.label, self.columns, self.own_names = source.label, source.columns, source.own_names
        self.missing, self.notes, self.decimal = source.missing, source.notes, source.decimal
        self.not_applicable = source.not_applicable
        self.error = error
        self.labels: list[str] = []
        self.texts: set[str] = set()  # the columns with texts
        self.orders: dict[str, tuple[str, ...]] = {}  # the categories of ordered columns
        self._source, self._weight = source, weight
        self._positions: dict[str, int] = {}

    def batches(self, names: Sequence[str], numbers: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the columns ``names``, and the columns ``numbers`` as numbers or positions of labels."""
        try:
            self.texts = self._find_texts(names, numbers)
        except InputError:
            raise self.error from None
        texts = [name for name in numbers if name in self.texts]
        others = [name for name in numbers if name not in self.texts]
        if not texts:
            raise self.error
        for batch in self._source.batches([*names, *texts], others):
            columns = [batch.column(name) for name in names]
            columns += [
                self._encode(batch.column(name)) if name in self.texts else batch.column(name)
                for name in numbers
            ]
            yield pa.record_batch(columns, names=[*names, *numbers])

    def read(self, name: str) -> pa.Table:
        """Return all columns and records."""
        return self._source.read(name)

    def place(self, record: int) -> str:
        """Return where a record is."""
        return self._source.place(record)

    def _find_texts(self, names: Sequence[str], numbers: Sequence[str]) -> set[str]:
        """Return the columns of ``numbers`` with values that are not numbers."""
        texts: set[str] = set()
        written: set[str] = set()  # columns of a frame that are texts, perhaps of numbers
        values = [name for name in numbers if name != self._weight]
        for batch in self._source.batches([*names[:1], *values], []):
            for name in values:
                array = batch.column(name)
                if not (
                    is_number(array.type) or pa.types.is_boolean(array.type) or pa.types.is_null(array.type)
                ):
                    if not (is_text(array.type) or pa.types.is_dictionary(array.type)):
                        raise self.error
                    known = _as_text(self.missing.to_null(_as_text(array)))
                    distinct = pc.unique(known).drop_null().to_pylist()
                    written.add(name)
                    if any(self._number(text) is None for text in distinct if text.strip()):
                        texts.add(name)
        if texts and not self._source.converts_texts:
            texts |= written
        self.orders = self._source.category_orders(sorted(texts))
        return texts

    def _number(self, text: str) -> float | None:
        return as_number(text.replace(self.decimal, "."))

    def _encode(self, array: pa.Array) -> pa.Array:
        """Return the positions of texts in ``labels`` as float64; blank texts are null."""
        encoded = _as_text(self.missing.to_null(_as_text(array))).dictionary_encode()
        texts = [str(text).strip() for text in encoded.dictionary.to_pylist()]
        for text in texts:
            if text and text not in self._positions:
                self._positions[text] = len(self.labels)
                self.labels.append(text)
        positions = pa.array([self._positions.get(text) for text in texts], pa.float64())
        return positions.take(encoded.indices)


def _as_text(array: pa.Array) -> pa.Array:
    """Return an array as text, with nulls for blank texts."""
    decoded = array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
    text = decoded.cast(pa.string())
    return pc.if_else(pc.is_in(pc.utf8_trim_whitespace(text), pa.array(BLANKS)), None, text)


def _resembles_number(text: str) -> bool:
    """Return whether a text is a number, perhaps with another decimal point or a sign: 4,5 or <0.1."""
    return as_number(text) is not None or _NUMBER.fullmatch(text) is not None


_DATE = re.compile(r"\d{4}-\d\d-\d\d.*|\d{1,2}[./]\d{1,2}[./]\d{2,4}")

_NUMBER = re.compile(r"[^\w]*\d[\d.,'\s]*(?:[^\w\s]|e[+-]?\d+)*")


class Labelled(NamedTuple):
    """Observations whose labels are replaced by values. Categories are expanded to columns."""

    features: Names
    row_index: Positions  # (n,)
    feature_index: Positions  # (n,)
    values: Floats  # (n,)
    repeats: NDArray[np.int64]  # (observations before,): the number of columns of each
    kinds: KindsLike
    notes: list[str]
    bases: dict[str, str]  # the feature of each column of a category
    weights: NDArray[np.float64] | None = None  # (n,): of censored values; None: all 1


@dataclass
class _Feature:
    """A feature with labels."""

    position: int
    name: str
    own: list[str]  # the labels that were observed, sorted
    cells: NDArray[np.int64]  # (n,): the positions of its observations
    margin: Margin | None = None  # as given
    order: tuple[str, ...] = ()  # of ordered categories
    inferred: bool = field(default=False)


def needs_labels(kinds: KindsLike) -> bool:
    """Return whether a kind is given whose values are levels by name."""
    requested = kinds.values() if isinstance(kinds, Mapping) else () if kinds is None else (kinds,)
    return any(_is_labelled(_margin(kind)) for kind in requested)


def _margin(kind: Any) -> Margin:
    parsed = parse_kind(kind)
    return parsed.margin if isinstance(parsed, Kind) else parsed


def _is_labelled(margin: Margin | None) -> bool:
    """Return whether the values of a margin are given as labels also where they look like numbers."""
    return isinstance(margin, Category) or bool(margin is not None and margin.labels)


def resolve_labels(
    kinds: KindsLike,
    rows: Names,
    features: Names,
    row_index: Positions,
    feature_index: Positions,
    values: Floats,
    source: Source,
) -> Labelled:
    """Decide the kinds of features with labels, and replace labels by values and columns.

    Parameters
    ----------
    kinds : str, Kind, mapping or None
        The kinds that the user gave.
    rows, features : Names
        The names of the table.
    row_index, feature_index : ndarray of shape (n,)
        The positions of the observations, sorted by row and feature.
    values : ndarray of shape (n,)
        The values; positions of labels if a ``LabelledSource`` read them from texts.
    source : Source
        The source of the observations.
    """
    if rows_are_sharded():
        raise InputError(
            "texts and categories cannot be read under torchrun; give one column of 0 and 1 per level, named "
            "FEATURE=LEVEL"
        )
    given, default = _given(kinds, features)
    texts = _Texts.of(source, features, len(values)) if isinstance(source, LabelledSource) else None
    values = np.asarray(values, np.float64).copy()
    order = np.argsort(feature_index, kind="stable")
    starts = np.searchsorted(feature_index[order], np.arange(len(features) + 1))
    labelled: list[_Feature] = []
    weights, censored = np.ones(len(values)), 0
    codes = np.full(len(values), -1)  # positions in ``own`` of the feature, whose observations are ``cells``
    for position, name in enumerate(features):
        cells = order[starts[position] : starts[position + 1]]
        margin = given.get(name, default)
        if texts is not None and texts.has(name):
            found, inverse = texts.distinct(values[cells], margin)
            numbers = _read_numbers(name, margin, found, inverse, source.decimal)
            if numbers is not None:
                values[cells], weights[cells] = numbers.values, numbers.weights
                censored += numbers.censored
                continue
            texts.require_labels(margin, found)
        elif _is_labelled(margin):
            distinct, inverse = np.unique(values[cells], return_inverse=True)
            found = [f"{value:.12g}" for value in distinct]
        else:
            continue
        own = sorted(set(found), key=_label_key)
        codes[cells] = np.array([own.index(text) for text in found], dtype=np.int64)[inverse]
        levels_in_order = () if texts is None else texts.levels_in_order(name)
        labelled.append(_Feature(position, name, own, cells, margin, levels_in_order))
    notes = _infer_labelled(labelled)
    if texts is not None:
        notes = [*_note_spellings(texts.labels, texts.unified), *notes]
    if default is None:
        blank = [i for i in np.flatnonzero(np.diff(starts) == 0).tolist() if features[i] not in given]
        notes += _infer_unobserved(labelled, {i: features[i] for i in blank}, len(features) - len(blank))
    if censored:
        notes.insert(0, f"{censored} censored values, such as <0.1, read as their expected values")
    resolved = _replace(labelled, kinds, rows, features, row_index, feature_index, values, codes, notes)
    return resolved._replace(weights=np.repeat(weights, resolved.repeats)) if censored else resolved


@dataclass(frozen=True)
class _Texts:
    """The labels of a source, and the columns that have them as values."""

    source: LabelledSource
    unified: list[str]  # the labels, with one spelling of words such as yes and no
    is_long: bool  # whether all features have their values in one column
    is_single: bool  # whether exactly one of the labels is not a number
    all_equal: bool  # whether all values of a table that could be fitted are equal

    @classmethod
    def of(cls, source: LabelledSource, features: Names, observations: int) -> _Texts:
        """Return the labels that ``source`` read as the values of some number of ``observations``."""
        labels, columns = source.labels, source.texts
        is_long = not columns & set(features)  # then the texts are those of the one column of values
        all_texts = is_long or columns >= set(features)
        return cls(
            source,
            _unify_spellings(labels),
            is_long,
            sum(not _resembles_number(text) for text in labels) == 1,
            len(labels) == 1 and all_texts and observations >= FITTABLE,
        )

    @property
    def labels(self) -> list[str]:
        """The labels, in order of occurrence."""
        return self.source.labels

    def has(self, feature: str) -> bool:
        """Return whether the values of a feature were read as texts."""
        return bool(self.source.texts) and (self.is_long or feature in self.source.texts)

    def distinct(self, values: Floats, margin: Margin | None) -> tuple[list[str], NDArray[np.int64]]:
        """Return the different texts of ``values`` (n,), positions of labels, and which each has: (n,)."""
        positions, inverse = np.unique(values.astype(np.int64), return_inverse=True)
        spellings = self.labels if _has_levels(margin) else self.unified
        return [spellings[position] for position in positions], inverse

    def levels_in_order(self, feature: str) -> tuple[str, ...]:
        """Return the levels of ordered categories in a data frame; empty for other features."""
        orders = self.source.orders
        return orders.get(feature) or (next(iter(orders.values()), ()) if self.is_long else ())

    def require_labels(self, margin: Margin | None, found: list[str]) -> None:
        """Raise an error if the texts ``found`` in a feature look like mistakes among numbers."""
        if margin is not None and not isinstance(margin, (Binary, Category, Ordinal)):
            raise self.source.error
        if margin is None and self.all_equal and self.is_single:
            raise InputError(
                f"{self.source.label}: every value is {self.labels[0]!r}, so there is nothing to predict; if "
                "these are clicks, purchases or views, write 1 in its place and use "
                f"{as_option({None: 'click'})}"
            )
        if margin is None and (self.is_single or any(_resembles_number(text) for text in found)):
            raise self.source.error


class _Numbers(NamedTuple):
    """The values of a feature whose texts are numbers or limits, such as <0.1."""

    values: NDArray[np.float64]  # (n,)
    weights: NDArray[np.float64]  # (n,): of censored values; 1 of others
    censored: int  # the number of censored values


def _read_numbers(
    name: str, margin: Margin | None, found: list[str], inverse: NDArray[np.int64], decimal: str
) -> _Numbers | None:
    """Read the texts of a feature as numbers or limits; None if any text is a label.

    ``found`` are the different texts, and ``inverse`` (n,) says which of them each observation has.
    """
    numbers = [as_number(text.replace(decimal, ".")) for text in found]
    may_be_numbers = not _is_labelled(margin)
    if may_be_numbers and all(number is not None for number in numbers):
        return _Numbers(np.array(numbers, np.float64)[inverse], np.ones(len(inverse)), 0)
    for text, number in zip(found, numbers, strict=True):
        if number is not None and not math.isfinite(number):
            raise InputError(
                f"feature {name!r}: the value {text!r} is neither a number nor a label; if it means "
                f"'missing', use {as_missing([text])}"
            )
    limits = [parse_limit(text.replace(decimal, ".")) for text in found]
    if not may_be_numbers or not all(map(_any_of, numbers, limits)):
        return None
    _require_censored_kind(name, margin, found, limits, numbers)
    censored = np.array([limit is not None for limit in limits])[inverse]
    return _Numbers(*_replace_limits(numbers, limits, inverse), int(censored.sum()))


def _has_levels(margin: Margin | None) -> bool:
    """Return whether the user named the levels of a margin, and so their spelling."""
    return bool(margin is not None and (margin.labels or margin.level_names))


def _unify_spellings(labels: Sequence[str]) -> list[str]:
    """Return labels with one spelling of yes, no, true, false and other words of known pairs, the first one.

    A single letter is such a word only if the labels have no other letters.

    >>> _unify_spellings(["Yes", "no", "YES", "dunno", "Dunno"])
    ['Yes', 'no', 'Yes', 'dunno', 'Dunno']
    """
    folded = {label.casefold() for label in labels}
    words = {word for pair in PAIRS for word in pair if len(word) > 1 or folded == set(pair)}
    first: dict[str, str] = {}
    return [
        first.setdefault(label.casefold(), label) if label.casefold() in words else label for label in labels
    ]


def _note_spellings(labels: Sequence[str], unified: Sequence[str]) -> list[str]:
    """Return notes on labels that differ in upper and lower case only: words that are unified, and others."""
    merged = [label for label, one in zip(labels, unified, strict=True) if label != one]
    notes = []
    if merged:
        notes.append(f"spellings of yes, no and the like read as one label: {join_names(merged)}")
    folded = Counter(label.casefold() for label in dict.fromkeys(unified))
    similar = sorted(label for label in set(unified) if folded[label.casefold()] > 1)
    if similar:
        notes.append(
            f"labels that differ in upper and lower case only are different levels: {join_names(similar)}; "
            "if they mean the same, write them the same"
        )
    return notes


def _any_of(number: float | None, limit: Limit | None) -> bool:
    return number is not None or limit is not None


def _require_censored_kind(
    name: str,
    margin: Margin | None,
    found: list[str],
    limits: list[Limit | None],
    numbers: list[float | None],
) -> None:
    """Refuse censored values of a kind that cannot have them, or with too few other values."""
    first = next(text for text, limit in zip(found, limits, strict=True) if limit is not None)
    if margin is not None and margin.type != KindType.REAL:
        raise InputError(
            f"feature {name!r}: the value {first!r} is censored, which only real, count and amount can be; "
            f"correct it, or give the feature another kind than {margin.name}"
        )
    if sum(number is not None for number in numbers) < MIN_EXACT:
        raise InputError(
            f"feature {name!r}: the value {first!r} is censored, and fewer than {MIN_EXACT} different values "
            "are not; give the limit as a number, or leave the feature out"
        )


def _replace_limits(
    numbers: list[float | None], limits: list[Limit | None], inverse: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the values and weights (n,) of one feature, with expected values for censored ones.

    ``inverse`` (n,) are positions in ``numbers`` and ``limits``.
    """
    values = np.array([np.nan if number is None else number for number in numbers])[inverse]
    sides = np.array([0 if limit is None else limit.side for limit in limits])[inverse]
    ends = np.array([np.nan if limit is None else limit.limit for limit in limits])[inverse]
    weights, limited = np.ones(len(values)), sides != 0
    exact = values[~limited]
    values[limited], weights[limited] = expected_values(exact, sides[limited], ends[limited])
    if (exact == np.round(exact)).all():
        values = np.round(values)  # counts
    return values, weights


def _label_key(text: str) -> tuple[bool, float, str]:
    number = as_number(text)
    return number is None, 0.0 if number is None else number, text


def _given(kinds: KindsLike, features: Names) -> tuple[dict[str, Margin], Margin | None]:
    """Return the margins that the user gave, by feature, and that of all other features."""
    if kinds is None:
        return {}, None
    if not isinstance(kinds, Mapping):
        return {}, _margin(kinds)
    named = {as_name(name, "feature"): _margin(kind) for name, kind in kinds.items() if name is not None}
    features.positions(named)
    others = [_margin(kind) for name, kind in kinds.items() if name is None]
    return named, others[0] if others else None


def _infer_labelled(labelled: list[_Feature]) -> list[str]:
    """Decide the margins of features with labels, in place; return notes on inferred ones."""
    open_features = [feature for feature in labelled if feature.margin is None]
    unions = _shared_labels([feature for feature in open_features if not feature.order])
    for feature in open_features:
        feature.inferred = True
        if feature.order:
            _refuse_no_answers(feature)
            feature.margin = Ordinal(feature.order)
        elif len(union := unions[feature.position]) == 2:
            feature.margin = Binary(_pair(union) or union)
        else:
            if len(feature.own) > 1 and all(map(_DATE.fullmatch, feature.own)):
                raise InputError(
                    f"feature {feature.name!r} has dates, such as {feature.own[0]!r}, in place of values; "
                    "give numbers, such as the days since a start, or read them as options with "
                    f"{as_option({feature.name: 'category'})}"
                )
            limit = max(20.0, MAX_TEXT_SHARE * len(feature.cells))
            if len(feature.own) > min(limit, MAX_LABELS):
                option = as_option({feature.name: "category"})
                raise InputError(
                    f"feature {feature.name!r} has {len(feature.own)} different texts in "
                    f"{len(feature.cells)} observations, such as {feature.own[0]!r}: free text cannot be "
                    f"predicted; leave the feature out, or read it as options with {option}"
                )
            feature.margin = Category(union)
    for feature in labelled:
        margin = feature.margin
        if isinstance(margin, Category) and not margin.names:
            feature.margin = Category(tuple(feature.own))
        elif isinstance(margin, Binary) and not margin.labels:
            if len(feature.own) != 2:
                raise InputError(
                    f"feature {feature.name!r} has {len(feature.own)} labels ({join_names(feature.own)}); "
                    "binary has two: name them, as in binary:no,yes, or use category"
                )
            feature.margin = Binary(_pair(feature.own) or tuple(feature.own))
        elif isinstance(margin, Ordinal) and not margin.names:
            if not feature.order:
                example = f"ordinal:{','.join(feature.own[:5])}"
                raise InputError(
                    f"feature {feature.name!r}: name the levels in their order, as in "
                    f"{as_option({feature.name: example})}"
                )
            feature.margin = Ordinal(feature.order)
    return _notes([feature for feature in labelled if feature.inferred])


def _infer_unobserved(labelled: list[_Feature], names: Mapping[int, str], others: int) -> list[str]:
    """Read features without observations as categories if most of the ``others`` are; return notes.

    ``names`` are these features by position. They get the levels that most categories have. The name of a
    column of a category, which metadata describes, is no feature.
    """
    categories = [feature for feature in labelled if isinstance(feature.margin, Category)]
    columns = {
        column_name(feature.name, level)
        for feature in categories
        for level in cast(Category, feature.margin).names
    }
    names = {i: name for i, name in names.items() if name not in columns}
    if not names or 2 * len(categories) <= others:
        return []
    counts = Counter(level for feature in categories for level in cast(Category, feature.margin).names)
    levels = tuple(level for level, n in counts.items() if 2 * n > len(categories))
    if len(levels) < 2:
        first = next(iter(names.values()))
        raise InputError(
            f"feature {first!r} has no observations, so that its levels are not known: name them, as in "
            f"{as_option({first: 'category:A,B,C'})}, or leave the feature out"
        )
    nothing = np.zeros(0, np.int64)
    labelled += [_Feature(i, name, [], nothing, Category(levels)) for i, name in names.items()]
    features = count(len(names), "feature")
    return [f"{features} without observations got the most common kind, {Kind(Category(levels))}"]


def _refuse_no_answers(feature: _Feature) -> None:
    """Raise an error if an observed level of ordered categories says that there is no answer."""
    no_answers = [label for label in feature.own if is_no_answer(label)]
    if no_answers:
        kind = Kind(Ordinal(feature.order)).option
        raise InputError(
            f"feature {feature.name!r}: the ordered levels contain {join_names(no_answers)}, which may mean "
            f"'missing'; if so, use {as_missing(no_answers)}, otherwise {as_option({feature.name: kind})}"
        )


def _shared_labels(features: list[_Feature]) -> dict[int, tuple[str, ...]]:
    """Return the labels of each feature by its position, together with those of features with common labels.

    Features with labels in common share all of them, unless these are many more than each feature has.
    """
    group_of: dict[str, int] = {}  # of labels
    members: dict[int, list[_Feature]] = {}
    for number, feature in enumerate(features):
        groups = {group_of[label] for label in feature.own if label in group_of}
        members[number] = [feature, *(other for group in groups for other in members.pop(group))]
        group_of |= dict.fromkeys((label for other in members[number] for label in other.own), number)
    labels: dict[int, tuple[str, ...]] = {}
    for group in members.values():
        union = sorted({label for feature in group for label in feature.own}, key=_label_key)
        sizes = sorted(len(feature.own) for feature in group)
        shared = len(union) <= 2 * sizes[len(sizes) // 2]
        labels |= {feature.position: tuple(union if shared else feature.own) for feature in group}
    return labels


def _pair(labels: Sequence[str]) -> tuple[str, str] | None:
    """Return two labels in the order of a known pair; None if they are none.

    >>> _pair(["TRUE", "FALSE"])
    ('FALSE', 'TRUE')
    """
    by_word = {label.casefold(): label for label in labels}
    for first, second in PAIRS:
        if set(by_word) == {first, second}:
            return by_word[first], by_word[second]
    return None


def _notes(inferred: list[_Feature]) -> list[str]:
    """Return one note per kind that was inferred from labels, which can be pasted back."""
    by_kind: dict[Kind, list[str]] = {}
    for feature in inferred:
        by_kind.setdefault(Kind(cast(Margin, feature.margin)), []).append(feature.name)
    if not by_kind:
        return []
    reasons = {"ordinal": "ordered categories", "binary": "two labels", "category": "labels without an order"}
    usual = max(by_kind, key=lambda kind: len(by_kind[kind]))
    notes = []
    for kind, names in by_kind.items():
        text = kind.option if kind.short == kind.option else kind.name  # to be pasted back
        option = as_option({None: text} if len(by_kind) == 1 else dict.fromkeys(names[:20], text))
        also = ""
        if kind == usual and kind.name == "category":
            also = "; if the labels have an order, name it, as in ordinal:never,sometimes,often"
        features, reason = count(len(names), "feature"), reasons[kind.name]
        notes.append(f"{features} inferred as {kind.short} because of {reason} ({option}){also}")
    return notes if len(notes) <= 5 else [*notes[:5], f"{len(notes) - 5} more kinds inferred from labels"]


def _replace(
    labelled: list[_Feature],
    kinds: KindsLike,
    rows: Names,
    features: Names,
    row_index: Positions,
    feature_index: Positions,
    values: NDArray[np.float64],
    codes: NDArray[np.int64],
    notes: list[str],
) -> Labelled:
    """Replace the ``codes`` (n,) of labels by values, and categories by columns."""
    by_position = {feature.position: feature for feature in labelled}
    widths = np.ones(len(features), np.int64)
    levels = np.full(len(values), -1)  # the level of each observation of a category
    names: list[str] = []
    bases: dict[str, str] = {}
    resolved: dict[str | None, str | Kind] = {}
    if isinstance(kinds, Mapping):
        resolved |= {name if name is None else as_name(name, "feature"): kind for name, kind in kinds.items()}
    elif kinds is not None:
        resolved[None] = kinds
    for position, name in enumerate(features):
        feature = by_position.get(position)
        if feature is None:
            names.append(name)
            continue
        margin, cells = cast(Margin, feature.margin), feature.cells
        level_positions = _level_positions(feature, margin, codes, rows, row_index)
        resolved.pop(name, None)
        if isinstance(margin, Category):
            columns = _level_columns(name, margin)
            widths[position] = len(columns)
            names += columns
            bases |= dict.fromkeys(columns, name)
            resolved |= dict.fromkeys(columns, Kind(Category()))
            levels[cells] = level_positions
        else:
            names.append(name)
            resolved[name] = Kind(margin)
            values[cells] = np.array(margin.levels)[level_positions]
    repeats = widths[feature_index]
    names, index, within = _column_positions(names, bases, features, widths, feature_index)
    level_of_each = np.repeat(levels, repeats)
    expanded = np.where(level_of_each >= 0, within == level_of_each, np.repeat(values, repeats))
    return Labelled(
        Names(names, "feature"),
        np.repeat(row_index, repeats),
        index,
        expanded.astype(values.dtype),
        repeats,
        resolved or None,
        notes,
        bases,
    )


def _level_positions(
    feature: _Feature, margin: Margin, codes: NDArray[np.int64], rows: Names, row_index: Positions
) -> NDArray[np.int64]:
    """Return the level of each observation of a feature: (cells,). Refuse a label that is not a level."""
    known = margin.names if isinstance(margin, (Category, Ordinal)) else margin.labels
    own_codes = codes[feature.cells]
    unknown = [label for label in feature.own if label not in known]
    if unknown:
        wrong = feature.cells[own_codes == feature.own.index(unknown[0])][0]
        raise InputError(
            f"row {rows[row_index[wrong]]!r}, feature {feature.name!r}: the value {unknown[0]!r} is not one "
            f"of {join_names(known, 10)}{did_you_mean(unknown[0], known)}; correct the value, or add "
            f"it to the levels of the kind{_advise_on_commas(unknown[0], margin)}"
        )
    return np.array([known.index(label) for label in feature.own], dtype=np.int64)[own_codes]


def _level_columns(name: str, category: Category) -> list[str]:
    """Return the names of the columns of a category, one per level."""
    bad = next((level for level in category.names if "=" in level), None)
    if bad is not None:
        raise InputError(f"feature {name!r}: the level {bad!r} has an equals sign; write it without one")
    return [column_name(name, level) for level in category.names]


def _column_positions(
    names: list[str],
    bases: Mapping[str, str],
    features: Names,
    widths: NDArray[np.int64],
    feature_index: Positions,
) -> tuple[list[str], Positions, NDArray[np.int64]]:
    """Return the columns of a table, and where its observations are after each is expanded to all levels.

    Parameters
    ----------
    names : list of str
        The columns of all ``features``, one after the other.
    bases : mapping
        The feature of each column of a category.
    features : Names
        The features: also columns of categories that have metadata of their own, without observations.
    widths : ndarray of shape (features,)
        The number of columns of each feature.
    feature_index : ndarray of shape (n,)
        The feature of each observation.

    Returns
    -------
    names : list of str
        The columns, each once.
    index : ndarray of shape (m,)
        The column of each expanded observation.
    within : ndarray of shape (m,)
        The position of this column among those of its feature.
    """
    repeats = widths[feature_index]
    first = np.cumsum(widths) - widths
    starts = np.cumsum(repeats) - repeats
    within = np.arange(repeats.sum()) - np.repeat(starts, repeats)
    index = np.repeat(first[feature_index], repeats) + within
    described = set(bases) & set(features)  # columns that are features only because metadata describes them
    if described:
        observed = [name for name in described if (feature_index == features.position(name)).any()]
        if observed:
            raise InputError(
                f"the column {observed[0]!r} of a category is also a feature; rename the feature"
            )
        positions = {name: position for position, name in enumerate(dict.fromkeys(names))}
        index = np.array([positions[name] for name in names], dtype=np.int64)[index]
        names = list(positions)
    return names, index.astype(np.int32), within


def _advise_on_commas(label: str, margin: Margin) -> str:
    """Return how to write a level with a comma, if the label has one."""
    return f", as in {margin.name}:{write_levels([label, 'another'])}" if "," in label else ""


def describe_columns(
    described: list[str], lines: pa.Table | None, bases: Mapping[str, str], features: Names
) -> tuple[list[str], pa.Table | None]:
    """Return metadata with a line for each column of a category: that of its feature and its own.

    If several features share levels, a column ``level`` has the level.

    Parameters
    ----------
    described : list of str
        The features with metadata: also columns ``FEATURE=LEVEL``.
    lines : pyarrow.Table or None
        Their metadata.
    bases : mapping
        The feature of each column of a category.
    features : Names
        The features of the table, with columns in place of categories.
    """
    shared = len(set(bases.values())) > 1 and len(
        {level_of(column, base) for column, base in bases.items()}
    ) < len(bases)
    records = {} if lines is None else dict(zip(described, lines.to_pylist(), strict=True))
    fields = [] if lines is None else lines.column_names
    if not records and not shared:
        return described, lines
    merged: dict[str, dict[str, Any]] = {}
    for name in features:
        base = bases.get(name)
        record = {key: value for key, value in records.get(name, {}).items() if value is not None}
        merged[name] = record if base is None else {**records.get(base, {}), **record}
        if shared and base is not None and LEVEL not in fields:
            merged[name][LEVEL] = level_of(name, base)
    names = [name for name in features if merged[name]]
    wanted = [*fields, *([LEVEL] if shared and LEVEL not in fields else [])]
    columns = {}
    for column in wanted:
        arrow_type = pa.string() if lines is None or column not in fields else lines.schema.field(column).type
        columns[column] = pa.array([merged[name].get(column) for name in names], arrow_type)
    return names, pa.table(columns)


def level_of(column: str, base: str) -> str:
    """Return the level of a column of the feature ``base``."""
    return column[len(base) + 1 :]
