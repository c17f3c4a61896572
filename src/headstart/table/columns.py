"""Metadata columns: their interface, and columns of categories, labels, numbers and dates."""

from __future__ import annotations

import difflib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headstart.config import Config
from headstart.errors import InputError, join_names
from headstart.progress import Reporter
from headstart.table.kinds import is_value
from headstart.table.names import MAX_BITS
from headstart.table.text_encoders import EncoderLike

Encoded = NDArray[np.float32]

MAX_CATEGORIES = 200  # the most frequent categories get a number of their own

MAX_LABELS = 500  # the most frequent labels get a number of their own

SEPARATOR = "|"  # between the labels of a text

_FAR = 0.1  # the distance from the range of the fitted values, relative to it, that is reported


class TokenSequence(NamedTuple):
    """Encoded numbers that are positions in a vocabulary; 0 fills up short texts."""

    length: int
    vocabulary: int


class ImageShape(NamedTuple):
    """Encoded numbers that are the pixels of an image, row by row."""

    height: int
    width: int


Structure = TokenSequence | ImageShape


class Column(Config, ABC):
    """A fitted metadata column, which encodes values as numbers.

    ``convert`` accepts the column of a table, and ``accept`` the value of a record. Both give values of
    the Arrow type ``arrow``, which ``encode`` turns into numbers. A column whose encoding takes long, or
    needs something of the user's, also has its own ``fit_encoded`` and ``encode_using``.
    """

    arrow: ClassVar[pa.DataType]
    expected: ClassVar[str]  # the valid values, for messages

    name: str

    @property
    @abstractmethod
    def width(self) -> int:
        """How many numbers of each feature this column gives."""

    @property
    def takes(self) -> Literal["function", "folder"] | None:
        """The kind of encoder that this column takes, if any; its vectors are expensive."""
        return None

    @property
    def structure(self) -> Structure | None:
        """The structure that only networks can read; None for plain numbers."""
        return None

    @property
    def spec(self) -> str:
        """The type in the form that ``MetadataSchema.fit`` takes: ``number``, ``text:128``."""
        return str(self.model_dump()["type"])

    @classmethod
    @abstractmethod
    def fit(cls, name: str, column: pa.Array) -> Self:
        """Fit to a column of type ``arrow``."""

    @abstractmethod
    def encode(self, column: pa.Array) -> Encoded:
        """Encode a column of type ``arrow``: (n, width). Missing values are allowed."""

    @classmethod
    @abstractmethod
    def accept(cls, name: str, value: Any) -> Any:
        """Convert one value of a record to a value of type ``arrow``."""

    @classmethod
    def convert(cls, name: str, column: pa.Array) -> pa.Array:
        """Convert a table's column to type ``arrow``. An invalid value is an error."""
        if column.type == cls.arrow or column.null_count == len(column):
            return pa.nulls(len(column), cls.arrow) if column.null_count == len(column) else column
        raise cls.refusal(name, column.drop_null()[0].as_py())

    @classmethod
    def fit_encoded(
        cls,
        name: str,
        column: pa.Array,
        argument: str,
        encoder: EncoderLike | None,
        reporter: Reporter,  # noqa: ARG003
    ) -> tuple[Self, Encoded | None]:
        """Fit to the column of a table; also return the encoded column if fitting computes it.

        ``argument`` is the text after the colon in a type such as ``text:128``; ``encoder`` is the user's
        encoder of this column.
        """
        if argument:
            raise InputError(
                f"metadata column {name!r}: only text and tokens take an argument, as text:128,"
                f" text:static, text:all-MiniLM-L6-v2 or tokens:32; got {argument!r}"
            )
        if encoder is not None:
            raise InputError(f"metadata column {name!r}: a column with an encoder has the type custom")
        return cls.fit(name, cls.convert(name, column)), None

    def encode_using(self, column: pa.Array, encoder: EncoderLike | None, reporter: Reporter) -> Encoded:  # noqa: ARG002
        """Encode the column of a table, with the user's encoder if the column takes one: (n, width)."""
        return self.encode(self.convert(self.name, column))

    def encode_values(self, values: list[Any], encoder: EncoderLike | None, reporter: Reporter) -> Encoded:
        """Encode values of records, None if missing: (n, width)."""
        accepted = [None if value is None else self.accept(self.name, value) for value in values]
        column = pa.array(accepted, self.arrow)  # needs no further conversion
        return self.encode(column) if encoder is None else self.encode_using(column, encoder, reporter)

    @classmethod
    def refusal(cls, name: str, value: object) -> InputError:
        """Return the error for an invalid value."""
        prefix = "text " if isinstance(value, str) else ""
        shown = repr(value) if len(repr(value)) <= 60 else repr(value)[:60] + "…"
        return InputError(f"metadata {name!r} must be {cls.expected}; got {prefix}{shown}")

    def describe_unusual(self, value: Any) -> list[str]:  # noqa: ARG002
        """Return a message for each part of the value of a record that the fitted column does not know."""
        return []

    def decode(self, numbers: Encoded) -> object | None:  # noqa: ARG002
        """Return the value that these numbers (width,) encode; None if missing or not recoverable."""
        return None

    def describe(self) -> str:
        """Return name and type: ``year: number``."""
        return f"{self.name}: {self.spec}"


def is_missing(value: object) -> bool:
    """Return whether a value is None, NaN, NaT or the NA of pandas.

    >>> is_missing(None), is_missing(float("nan")), is_missing(np.datetime64("NaT")), is_missing(False)
    (True, True, True, False)
    """
    if value is None:
        return True
    differs: object = value != value  # only NaN and NaT differ from themselves
    if isinstance(differs, (bool, np.bool_)):
        return bool(differs)
    return differs is value  # the NA of pandas: NA != NA is NA


def category(value: object) -> str | None:
    """Return a category or label as text: 3, 3.0 and "3" are the same. Return None if it is invalid.

    >>> category(3.0), category("3"), category(True), category([3])
    ('3', '3', 'true', None)
    """
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, (bool, np.bool_)):
        return str(bool(value)).lower()
    if isinstance(value, (int, np.integer)) and is_value(value):
        return str(int(value)) if int(value).bit_length() <= MAX_BITS else None
    if isinstance(value, (float, np.floating)) and np.isfinite(value):
        return str(int(value)) if float(value).is_integer() else repr(float(value))
    return None


def map_distinct(column: pa.Array, function: Callable[[object], str | None]) -> pa.Array:
    """Apply a function to a column, calling it once per distinct value."""
    dictionary = column.dictionary_encode()
    texts = [function(value) for value in dictionary.dictionary.to_pylist()]
    return pa.array(texts, pa.string()).take(dictionary.indices)


def most_frequent(texts: pa.Array, limit: int) -> tuple[str, ...]:
    """Return the ``limit`` most frequent texts, in alphabetical order."""
    counts = pc.value_counts(texts.drop_null())
    pairs = zip(counts.field(1).to_pylist(), counts.field(0).to_pylist(), strict=True)
    return tuple(sorted(text for _, text in sorted(pairs, key=lambda pair: (-pair[0], pair[1]))[:limit]))


def multi_hot(lines: NDArray[np.int64], texts: pa.Array, vocabulary: tuple[str, ...], height: int) -> Encoded:
    """Set a one at (line, position in ``vocabulary``) for every text of it: (height, vocabulary)."""
    result = np.zeros((height, len(vocabulary)), np.float32)
    positions = pc.index_in(texts, value_set=pa.array(vocabulary, pa.string()))
    in_vocabulary = positions.is_valid().to_numpy(zero_copy_only=False)
    result[lines[in_vocabulary], positions.drop_null().to_numpy()] = 1.0
    return result


def describe_unknown(name: str, text: str, known: tuple[str, ...]) -> str:
    """Describe a category or label that a column does not know, with the nearest one that it knows.

    >>> describe_unknown("genre", "HOROR", ("Drama", "Horror"))
    "metadata 'genre': 'HOROR' is not known and has no effect; did you mean 'Horror'?"
    """
    folded = {value.casefold(): value for value in known}
    close = difflib.get_close_matches(text.casefold(), folded, n=1)
    hint = f"did you mean {folded[close[0]]!r}?" if close else f"known are {join_names(known)}"
    return f"metadata {name!r}: {text!r} is not known and has no effect; {hint}"


class CategoryColumn(Column):
    """One category per feature, one-hot encoded. A missing or unknown category gives zeros."""

    arrow: ClassVar[pa.DataType] = pa.string()
    expected: ClassVar[str] = "one category (text, a number or a boolean)"
    type: Literal["category"] = "category"
    values: tuple[str, ...]

    @property
    def width(self) -> int:
        """The number of categories."""
        return len(self.values)

    @classmethod
    def fit(cls, name: str, column: pa.Array) -> Self:
        """Find the most frequent categories."""
        return cls(name=name, values=most_frequent(column, MAX_CATEGORIES))

    def count_distinct(self, column: pa.Array) -> int:
        """Return the number of distinct categories in the column of a table."""
        return len(pc.unique(self.convert(self.name, column).drop_null()))

    def encode(self, column: pa.Array) -> Encoded:
        """Encode one-hot: (n, categories)."""
        return multi_hot(np.arange(len(column)), column, self.values, len(column))

    def describe_unusual(self, value: Any) -> list[str]:
        """Return a message if the category is not known."""
        text = self.accept(self.name, value)
        return [] if text is None or text in self.values else [describe_unknown(self.name, text, self.values)]

    def decode(self, numbers: Encoded) -> str | None:
        """Return the category, None if it is missing or unknown."""
        return self.values[int(numbers.argmax())] if len(numbers) and numbers.max() > 0.5 else None

    @classmethod
    def convert(cls, name: str, column: pa.Array) -> pa.Array:
        """Accept texts, numbers and booleans."""
        if pa.types.is_nested(column.type) or pa.types.is_temporal(column.type):
            return super().convert(name, column)
        return map_distinct(column, lambda value: value if value is None else cls.accept(name, value))

    @classmethod
    def accept(cls, name: str, value: Any) -> str | None:
        """Accept text, a number or a boolean. An empty text is a missing value."""
        text = category(value)
        if text is None:
            raise cls.refusal(name, value)
        return text or None


class LabelsColumn(Column):
    """Any number of labels per feature, multi-hot encoded.

    A value is a list or a text such as ``"Action|Comedy"``. Unknown labels are ignored.
    """

    arrow: ClassVar[pa.DataType] = pa.list_(pa.string())
    expected: ClassVar[str] = "a list of labels or text such as 'Action|Comedy'"
    type: Literal["labels"] = "labels"
    values: tuple[str, ...]

    @property
    def width(self) -> int:
        """The number of labels."""
        return len(self.values)

    @classmethod
    def fit(cls, name: str, column: pa.Array) -> Self:
        """Find the most frequent labels."""
        _, labels = _flatten(column)
        return cls(name=name, values=most_frequent(labels, MAX_LABELS))

    def count_distinct(self, column: pa.Array) -> int:
        """Return the number of distinct labels in the column of a table."""
        return len(pc.unique(_flatten(self.convert(self.name, column))[1]))

    def encode(self, column: pa.Array) -> Encoded:
        """Encode multi-hot: (n, labels)."""
        return multi_hot(*_flatten(column), self.values, len(column))

    def describe_unusual(self, value: Any) -> list[str]:
        """Return a message for each label that is not known."""
        labels = [(label or "").strip() for label in self.accept(self.name, value)]
        unknown = [label for label in labels if label and label not in self.values]
        return [describe_unknown(self.name, label, self.values) for label in unknown]

    def decode(self, numbers: Encoded) -> list[str] | None:
        """Return the labels that are known, None if there are none."""
        return [self.values[i] for i in np.flatnonzero(numbers > 0.5)] or None

    @classmethod
    def convert(cls, name: str, column: pa.Array) -> pa.Array:
        """Accept lists of texts or numbers, and texts with the separator."""
        if pa.types.is_string(column.type):
            return pc.split_pattern(column, SEPARATOR)
        if pa.types.is_list(column.type) and not pa.types.is_nested(column.type.value_type):
            ends = np.cumsum(pc.fill_null(column.value_lengths(), 0).to_numpy(), dtype=np.int32)
            labels = map_distinct(pc.list_flatten(column), lambda value: cls._label(name, value))
            return pa.ListArray.from_arrays(
                pa.array(np.append(np.int32(0), ends)), labels, mask=column.is_null()
            )
        return super().convert(name, column)

    @classmethod
    def accept(cls, name: str, value: Any) -> list[str | None]:
        """Accept a list, tuple, set or array, or a text with the separator."""
        if isinstance(value, str):
            return list(value.split(SEPARATOR))
        several = isinstance(value, (Collection, np.ndarray)) and not hasattr(value, "columns")
        if several and not isinstance(value, (dict, bytes)):
            return [cls._label(name, label) for label in value]
        raise cls.refusal(name, value)

    @classmethod
    def _label(cls, name: str, value: object) -> str | None:
        label = category(value)
        if label is None and not is_missing(value):
            raise cls.refusal(name, value)
        return label


def _flatten(column: pa.Array) -> tuple[NDArray[np.int64], pa.Array]:
    """Return the line of each label, and the labels, without blank labels: (labels,) each."""
    labels = pc.utf8_trim_whitespace(pc.list_flatten(column))
    not_blank = pc.fill_null(pc.not_equal(labels, ""), False)
    lines = pc.list_parent_indices(column).filter(not_blank).to_numpy()
    return lines.astype(np.int64), labels.filter(not_blank)


class ScaledColumn(Column):
    """A number, scaled to [0, 1] by the smallest and largest value of the fitted column.

    Beyond this range nothing was learned, so a value at the distance d from it, relative to its width,
    returns towards the mean: from the nearest end by the factor exp(-d). A missing value is replaced by the
    mean. If the fitted column has missing values, a second number is 1 for a missing value and 0
    otherwise. Without them, a model could not learn the weight of this second number.
    """

    low: float
    high: float
    mean: float
    missing: bool

    @property
    def width(self) -> int:
        """2 if there is a number for missing values, else 1."""
        return 1 + self.missing

    @classmethod
    def fit(cls, name: str, column: pa.Array) -> Self:
        """Compute the smallest and largest value and the mean."""
        values = cls._floats(column.drop_null())
        low, high, mean = (values.min(), values.max(), values.mean()) if len(values) else (0.0, 1.0, 0.0)
        return cls(name=name, low=low, high=high, mean=mean, missing=column.null_count > 0)

    def encode(self, column: pa.Array) -> Encoded:
        """Scale the values: (n, 1 or 2)."""
        valid = column.is_valid().to_numpy(zero_copy_only=False)
        values = np.full(len(column), self.mean)
        values[valid] = self._floats(column.drop_null())
        scaled, mean = self._scale(values), self._scale(np.array(self.mean))
        inside = np.clip(scaled, 0.0, 1.0)
        scaled = mean + (inside - mean) * np.exp(-np.abs(scaled - inside))
        return np.stack([scaled, ~valid][: self.width], axis=1).astype(np.float32)

    def _scale(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return values on the scale on which the range of the fitted values is from 0 to 1."""
        with np.errstate(over="ignore"):
            return (values - self.low) / ((self.high - self.low) or 1.0)

    def describe_unusual(self, value: Any) -> list[str]:
        """Return a message if the value is far outside of the range of the fitted values."""
        number = self._floats(pa.array([self.accept(self.name, value)], self.arrow))
        scaled = self._scale(number)
        if self.low == self.high or np.abs(scaled - np.clip(scaled, 0.0, 1.0))[0] <= _FAR:
            return []
        low, high = (self._value(end, 1e-6 * (self.high - self.low)) for end in (self.low, self.high))
        return [
            f"metadata {self.name!r}: {value} is far outside of the known range from {low} to {high};"
            " its effect returns towards that of the mean"
        ]

    def decode(self, numbers: Encoded) -> object | None:
        """Return the value in single precision; None if it is missing.

        If the fitted column had no missing values, a missing value is decoded to the mean. A value outside
        of the fitted range is decoded to one inside.
        """
        if self.missing and numbers[1] > 0.5:
            return None
        span = (self.high - self.low) or 1.0
        value = self.low + span * float(numbers[0])
        return self._value(value, 1e-6 * max(span, abs(value) * 1e-6))

    def _value(self, number: float, resolution: float) -> object:
        """Return the number as a value of the column, without digits below the resolution."""
        short = round(number, max(0, -math.floor(math.log10(resolution)) - 1))
        return int(short) if short.is_integer() else short

    @classmethod
    def _floats(cls, values: pa.Array) -> NDArray[np.float64]:
        return values.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


class NumberColumn(ScaledColumn):
    """A finite number."""

    arrow: ClassVar[pa.DataType] = pa.float64()
    expected: ClassVar[str] = "a finite number"
    type: Literal["number"] = "number"

    @classmethod
    def convert(cls, name: str, column: pa.Array) -> pa.Array:
        """Accept columns of numbers only."""
        if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
            column = column.cast(pa.float64(), safe=False)
            finite = pc.is_finite(column)
            if not pc.all(finite, min_count=0).as_py():
                raise cls.refusal(name, column.filter(pc.invert(finite))[0].as_py())
        return super().convert(name, column)

    @classmethod
    def accept(cls, name: str, value: Any) -> float:
        """Accept a finite number; a boolean is not a number."""
        numbers = (int, float, np.integer, np.floating)
        if isinstance(value, numbers) and not isinstance(value, (bool, np.timedelta64)):
            try:
                if math.isfinite(value):
                    return float(value)
            except OverflowError:
                pass
        raise cls.refusal(name, value)


class DateColumn(ScaledColumn):
    """A date or a date with time, as a number of days."""

    arrow: ClassVar[pa.DataType] = pa.timestamp("us")
    expected: ClassVar[str] = "a date such as '2026-11-15'"
    type: Literal["date"] = "date"

    @classmethod
    def convert(cls, name: str, column: pa.Array) -> pa.Array:
        """Accept columns of dates, and of texts in ISO format."""
        if pa.types.is_string(column.type):
            dates = [value and cls.accept(name, value) for value in column.to_pylist()]
            return pa.array(dates, cls.arrow)
        return super().convert(name, column)

    @classmethod
    def accept(cls, name: str, value: Any) -> datetime:
        """Accept a date or datetime, also of numpy or pandas, or text in ISO format."""
        date = value.astype("datetime64[us]").item() if isinstance(value, np.datetime64) else value
        try:
            time = datetime.fromisoformat(date if isinstance(date, str) else date.isoformat())
            return time.astimezone(UTC).replace(tzinfo=None) if time.tzinfo else time
        except (AttributeError, ValueError, OverflowError):  # OverflowError: near the years 1 and 9999
            raise cls.refusal(name, value) from None

    def _value(self, number: float, resolution: float) -> datetime:
        day = timedelta(days=round(number) if resolution > 1e-5 else number)
        return datetime(1970, 1, 1) + day

    @classmethod
    def _floats(cls, values: pa.Array) -> NDArray[np.float64]:
        return values.cast(pa.int64()).to_numpy(zero_copy_only=False) / 86_400e6  # type: ignore[no-any-return]


class IgnoredColumn(Column):
    """A column that is not used. It may contain anything."""

    arrow: ClassVar[pa.DataType] = pa.null()
    expected: ClassVar[str] = "anything"
    type: Literal["ignore"] = "ignore"

    @property
    def width(self) -> int:
        """0: nothing is encoded."""
        return 0

    @classmethod
    def fit(cls, name: str, column: pa.Array) -> Self:  # noqa: ARG003
        """Return the column; there is nothing to learn."""
        return cls(name=name)

    def encode(self, column: pa.Array) -> Encoded:
        """Return an array without columns: (n, 0)."""
        return np.zeros((len(column), 0), np.float32)

    @classmethod
    def convert(cls, name: str, column: pa.Array) -> pa.Array:  # noqa: ARG003
        """Replace all values by nulls."""
        return pa.nulls(len(column))

    @classmethod
    def accept(cls, name: str, value: Any) -> None:
        """Replace the value by None."""
