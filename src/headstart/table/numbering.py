"""Numbers for the names of rows and features, in the order in which a source contains them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headstart.errors import InputError
from headstart.table.names import as_name, exact_limit, shown, spelled


class NameNumbering:
    """Numbers names in the order of their first appearance, batch by batch.

    Python code runs once per distinct value of a batch, not once per record.

    >>> numbering = NameNumbering("row")
    >>> numbering.number(pa.array([17, 4, 17])), numbering.number(pa.array(["u1", " 4"]))
    (array([0, 1, 0], dtype=int32), array([2, 1], dtype=int32))
    >>> numbering.names
    ['17', '4', 'u1']
    >>> numbering.notes()
    ["rows that are written in several ways, each read as one row: 1 ('4' and ' 4')"]
    """

    def __init__(self, noun: str) -> None:
        self.noun = noun  # "row" or "feature", for messages
        self._numbers: dict[str, int] = {}
        self._spellings: dict[str, dict[str, None]] = {}  # in order, of names that had to be tidied

    @property
    def names(self) -> list[str]:
        """The names so far. The number of a name is its position in this list."""
        return list(self._numbers)

    def number(self, column: pa.Array, place: Callable[[int], str] = str) -> NDArray[np.int32]:
        """Return the number of each name: (n,). ``place(i)`` describes record ``i`` in error messages."""
        if column.null_count:
            first_null = int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
            raise InputError(f"{place(first_null)}: the name of the {self.noun} is missing")
        if pa.types.is_nested(column.type):
            raise InputError(
                f"{place(0)}: {shown(column[0].as_py())} cannot be a {self.noun};"
                " names are non-empty text or whole numbers"
            )
        if pa.types.is_float16(column.type):
            column = column.cast(pa.float32())  # whole numbers in it are exact
        dictionary = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        indices = dictionary.indices.to_numpy()
        numbers = self._numbers
        names, values = _whole_numbers(dictionary.dictionary), []
        if names is None:
            values = _to_list(dictionary.dictionary, self.noun)
            names = None if self._spellings else _tidy_texts(values)
        if names is None:
            distinct = []
            for position, value in enumerate(values):
                try:
                    distinct.append(self._number(value))
                except InputError as error:
                    first = int(np.argmax(indices == position))
                    raise InputError(f"{place(first)}: {error}") from None
        else:
            distinct = [numbers.setdefault(name, len(numbers)) for name in names]
        return np.asarray(np.array(distinct, dtype=np.int32)[indices])

    @property
    def spellings(self) -> dict[str, str]:
        """How the names are written that are written in several ways, for messages."""
        return {
            name: " and ".join(map(spelled, written))
            for name, written in self._spellings.items()
            if len(written) > 1
        }

    def notes(self) -> list[str]:
        """Say which names were tidied, and which of them were written in several ways."""
        several = list(self.spellings.values())
        one = [(next(iter(written)), name) for name, written in self._spellings.items() if len(written) == 1]
        notes = []
        if several:
            more = ", …" if len(several) > 1 else ""
            notes.append(
                f"{self.noun}s that are written in several ways, each read as one {self.noun}:"
                f" {len(several)} ({several[0]}{more})"
            )
        if one:
            more = ", …" if len(one) > 1 else ""
            notes.append(
                f"names of {self.noun}s that were tidied (spaces around, Unicode form, decimal point):"
                f" {len(one)} ({spelled(one[0][0])} to {one[0][1]!r}{more})"
            )
        return notes

    def _number(self, value: object) -> int:
        name = as_name(value, self.noun)
        if isinstance(value, str):
            if value != name:
                first = {name: None} if name in self._numbers else {}
                self._spellings.setdefault(name, first)[value] = None
            elif name in self._spellings:
                self._spellings[name][name] = None
        return self._numbers.setdefault(name, len(self._numbers))


def _to_list(values: pa.Array, noun: str) -> list[Any]:
    if pa.types.is_floating(values.type):
        return list(values.to_numpy(zero_copy_only=False))  # numbers that remember how exact they are
    try:
        return values.to_pylist()  # type: ignore[no-any-return]
    except UnicodeDecodeError as error:
        raise InputError(
            f"the name of a {noun} is not valid UTF-8 text: {error.object!r}; correct its encoding"
        ) from None


def _tidy_texts(values: list[Any]) -> list[str] | None:
    """Return the values if all are texts that ``as_name`` would not change; this is much faster."""
    if not all(isinstance(value, str) and value.isascii() for value in values):
        return None
    tidy = all(values) and values == list(map(str.strip, values)) and "." not in "".join(values)
    return values if tidy else None


def _whole_numbers(values: pa.Array) -> list[str] | None:
    """Convert distinct whole numbers to names as ``as_name`` does, but at once; None for other values."""
    arrow_type = values.type
    if pa.types.is_integer(arrow_type):
        return values.cast(pa.string()).to_pylist()  # type: ignore[no-any-return]
    if pa.types.is_floating(arrow_type) and pc.all(pc.equal(values, pc.round(values))).as_py():
        limit = exact_limit(arrow_type.to_pandas_dtype())
        doubles = values.cast(pa.float64())
        if pc.all(pc.less(pc.abs(doubles), limit)).as_py():
            return doubles.cast(pa.int64()).cast(pa.string()).to_pylist()  # type: ignore[no-any-return]
    return None


def sort_key(name: str) -> tuple[bool, int, str]:
    """What ``sorted_names`` sorts by."""
    decimal = name.isdecimal()
    return not decimal, len(name) if decimal else 0, name


def sorted_names(names: Iterable[str]) -> list[str]:
    """Sort names: whole numbers first, by size. The result does not depend on the order of the lines.

    >>> sorted_names(["b", "10", "9", "a"])
    ['9', '10', 'a', 'b']
    """
    unique = sorted(set(names))
    return sorted(filter(str.isdecimal, unique), key=len) + [name for name in unique if not name.isdecimal()]
