"""Numbers for the names of rows and features, in the order in which a source contains them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headstart.errors import InputError
from headstart.table.names import as_name

_WHOLE_NUMBER = re.compile(r"-?\d+(\.0*)?")


class NameNumbering:
    """Numbers names in the order of their first appearance, batch by batch.

    Python code runs once per distinct value of a batch, not once per record.

    >>> numbering = NameNumbering("row")
    >>> numbering.number(pa.array([17, 4, 17])), numbering.number(pa.array(["u1", "4"]))
    (array([0, 1, 0], dtype=int32), array([2, 1], dtype=int32))
    >>> numbering.names
    ['17', '4', 'u1']
    """

    def __init__(self, noun: str) -> None:
        self.noun = noun  # "row" or "feature", for messages
        self._numbers: dict[str, int] = {}

    @property
    def names(self) -> list[str]:
        """The names so far. The number of a name is its position in this list."""
        return list(self._numbers)

    def number(self, column: pa.Array, place: Callable[[int], str] = str) -> NDArray[np.int32]:
        """Return the number of each name: (n,). ``place(i)`` describes record ``i`` in error messages."""
        if column.null_count:
            first_null = int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
            raise InputError(f"{place(first_null)}: the name of the {self.noun} is missing")
        dictionary = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        indices = dictionary.indices.to_numpy()
        numbers = self._numbers
        try:
            names = _as_names(dictionary.dictionary, self.noun)
        except _InvalidNameError as error:
            first = int(np.argmax(indices == error.position))
            raise InputError(f"{place(first)}: {error}") from None
        distinct = np.array([numbers.setdefault(name, len(numbers)) for name in names], dtype=np.int32)
        return np.asarray(distinct[indices])


class _InvalidNameError(InputError):
    position: int


def _as_names(values: pa.Array, noun: str) -> list[str]:
    """Convert distinct values to names as ``as_name`` does, without one call per value."""
    arrow_type = values.type
    if pa.types.is_integer(arrow_type):
        return values.cast(pa.string()).to_pylist()  # type: ignore[no-any-return]
    if pa.types.is_floating(arrow_type) and pc.all(pc.equal(values, pc.round(values))).as_py():
        doubles = values.cast(pa.float64())
        if pc.all(pc.less(pc.abs(doubles), 2.0**63)).as_py():
            return doubles.cast(pa.int64()).cast(pa.string()).to_pylist()  # type: ignore[no-any-return]
    names: list[object] = values.to_pylist()
    if (pa.types.is_string(arrow_type) or pa.types.is_large_string(arrow_type)) and "" not in names:
        return names  # type: ignore[return-value]
    for position, value in enumerate(names):
        try:
            names[position] = as_name(value, noun)
        except InputError as error:
            invalid = _InvalidNameError(str(error))
            invalid.position = position
            raise invalid from None
    return names  # type: ignore[return-value]


def drop_decimal_points(names: list[str]) -> list[str]:
    """Replace "17.0" by "17" if all names of a text file are whole numbers.

    >>> drop_decimal_points(["17.0", "4"]), drop_decimal_points(["17.0", "u4"])
    (['17', '4'], ['17.0', 'u4'])
    """
    if any("." in name for name in names) and all(map(_WHOLE_NUMBER.fullmatch, names)):
        return [name.partition(".")[0] for name in names]
    return names


def unique_names(names: Sequence[str]) -> tuple[list[str], NDArray[np.int64]]:
    """Return each name once, and the position of every given name in that list.

    >>> unique_names(["a", "b", "a"])
    (['a', 'b'], array([0, 1, 0]))
    """
    numbers: dict[str, int] = {}
    positions = np.array([numbers.setdefault(name, len(numbers)) for name in names], dtype=np.int64)
    return list(numbers), positions


def sorted_names(names: Iterable[str]) -> list[str]:
    """Sort names: whole numbers first, by size. The result does not depend on the order of the lines.

    >>> sorted_names(["b", "10", "9", "a"])
    ['9', '10', 'a', 'b']
    """
    unique = sorted(set(names))
    return sorted(filter(str.isdecimal, unique), key=len) + [name for name in unique if not name.isdecimal()]
