"""The base class of metadata columns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Literal, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headstart.config import Config
from headstart.errors import InputError
from headstart.progress import Reporter
from headstart.table.encoders import EncoderLike

Encoded = NDArray[np.float32]


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
        """Return how many numbers per feature this column gives."""

    @property
    def takes(self) -> Literal["function", "folder"] | None:
        """Return what encodes this column and is not a part of it, if anything: its vectors cost time."""
        return None

    @property
    def spec(self) -> str:
        """Return the type as it is given to ``MetadataSchema.fit``: ``number``, ``text:128``."""
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
        """Fit to the column of a table, and encode it too where the work is then done anyway.

        ``argument`` is what follows the colon in a type such as ``text:128``; ``encoder`` is what the user
        gave for this column.
        """
        if argument:
            raise InputError(
                f"metadata column {name!r}: only text takes a size or a model, as text:128 or"
                f" text:all-MiniLM-L6-v2; got {argument!r}"
            )
        if encoder is not None:
            raise InputError(f"metadata column {name!r}: a column with an encoder has the type custom")
        return cls.fit(name, cls.convert(name, column)), None

    def encode_using(self, column: pa.Array, encoder: EncoderLike | None, reporter: Reporter) -> Encoded:  # noqa: ARG002
        """Encode the column of a table, with what the user gave to encode this column: (n, width)."""
        return self.encode(self.convert(self.name, column))

    def encode_values(self, values: list[Any], encoder: EncoderLike | None, reporter: Reporter) -> Encoded:
        """Encode values of records, None if missing: (n, width)."""
        accepted = [None if value is None else self.accept(self.name, value) for value in values]
        return self.encode_using(pa.array(accepted, self.arrow), encoder, reporter)

    @classmethod
    def refusal(cls, name: str, value: object) -> InputError:
        """Return the error for an invalid value."""
        prefix = "text " if isinstance(value, str) else ""
        shown = repr(value) if len(repr(value)) <= 60 else repr(value)[:60] + "…"
        return InputError(f"metadata {name!r} must be {cls.expected}; got {prefix}{shown}")

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
    if isinstance(value, (int, float, np.number)) and np.isfinite(value):
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
