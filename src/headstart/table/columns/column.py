"""What a metadata column is, whatever its type."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headstart.config import Config
from headstart.errors import InputError

Encoded = NDArray[np.float32]


class Column(Config, ABC):
    """One column of metadata, fitted, and able to turn values into numbers.

    Tables come in through ``convert`` and records through ``accept``; from there both go one way,
    as Arrow arrays of the type ``arrow``.
    """

    arrow: ClassVar[pa.DataType]
    wanted: ClassVar[str]  # how messages call what is expected

    name: str

    @property
    @abstractmethod
    def width(self) -> int:
        """How many numbers a feature gets from this column."""

    @classmethod
    @abstractmethod
    def fit(cls, name: str, column: pa.Array) -> Self:
        """Learn from a column of type ``arrow``."""

    @abstractmethod
    def encode(self, column: pa.Array) -> Encoded:
        """Turn a column of type ``arrow`` into numbers: (n, width). Missing values are normal."""

    @classmethod
    @abstractmethod
    def accept(cls, name: str, value: Any) -> Any:
        """Bring one value of a record to what ``arrow`` holds."""

    @classmethod
    def convert(cls, name: str, column: pa.Array) -> pa.Array:
        """Bring a table's column to ``arrow``; values that do not fit are an error."""
        if column.type == cls.arrow or column.null_count == len(column):
            return pa.nulls(len(column), cls.arrow) if column.null_count == len(column) else column
        raise cls.refusal(name, column.drop_null()[0].as_py())

    @classmethod
    def refusal(cls, name: str, value: object) -> InputError:
        """The error for a value that does not fit."""
        what = "text " if isinstance(value, str) else ""
        shown = repr(value) if len(repr(value)) <= 60 else repr(value)[:60] + "…"
        return InputError(f"metadata {name!r} must be {cls.wanted}; got {what}{shown}")

    def describe(self) -> str:
        """Name and type: ``year: number``."""
        return f"{self.name}: {self.model_dump()['type']}"


def missing(value: object) -> bool:
    """Whether a value says that nothing is known: None, NaN, NaT or the NA of pandas.

    >>> missing(None), missing(float("nan")), missing(np.datetime64("NaT")), missing(False)
    (True, True, True, False)
    """
    if value is None:
        return True
    differs: object = value != value  # of all values, only these are not equal to themselves
    if isinstance(differs, (bool, np.bool_)):
        return bool(differs)
    return differs is value  # as pandas answers whether NA differs from NA


def category(value: object) -> str | None:
    """Write a category or label as text: 3, 3.0 and "3" are one. What cannot be one gives None.

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


def mapped(column: pa.Array, text: Callable[[object], str | None]) -> pa.Array:
    """Apply ``text`` to a column, once a distinct value."""
    encoded = column.dictionary_encode()
    return pa.array([text(value) for value in encoded.dictionary.to_pylist()], pa.string()).take(
        encoded.indices
    )


def most_frequent(texts: pa.Array, limit: int) -> tuple[str, ...]:
    """The most frequent of these texts, in alphabetical order."""
    counted = pc.value_counts(texts.drop_null())
    pairs = zip(counted.field(1).to_pylist(), counted.field(0).to_pylist(), strict=True)
    return tuple(sorted(text for _, text in sorted(pairs, key=lambda pair: (-pair[0], pair[1]))[:limit]))


def hot(lines: NDArray[np.int64], texts: pa.Array, known: tuple[str, ...], height: int) -> Encoded:
    """Set a one at (line, position in ``known``) for every text that is known: (height, known)."""
    result = np.zeros((height, len(known)), np.float32)
    found = pc.index_in(texts, value_set=pa.array(known, pa.string()))
    there = found.is_valid().to_numpy(zero_copy_only=False)
    result[lines[there], found.drop_null().to_numpy()] = 1.0
    return result
