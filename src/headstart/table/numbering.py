"""Names met while reading, numbered in the order they come."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headstart.errors import InputError
from headstart.table.names import as_name

_WHOLE = re.compile(r"-?\d+(\.0*)?")


class NameCoder:
    """Turns columns of names into codes, batch after batch; only distinct values touch Python.

    >>> coder = NameCoder("row")
    >>> coder.encode(pa.array([17, 4, 17])), coder.encode(pa.array(["u1", "4"]))
    (array([0, 1, 0], dtype=int32), array([2, 1], dtype=int32))
    >>> coder.names
    ['17', '4', 'u1']
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self._codes: dict[str, int] = {}

    @property
    def names(self) -> list[str]:
        """The names met so far; a code is a position in them."""
        return list(self._codes)

    def encode(self, column: pa.Array, place: Callable[[int], str] = str) -> NDArray[np.int32]:
        """Return the code of each name: (n,). ``place`` says where the i-th one stands, for errors."""
        if column.null_count:
            missing = int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
            raise InputError(f"{place(missing)}: the name of the {self.what} is missing")
        encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        index = encoded.indices.to_numpy()
        codes = self._codes
        try:
            met = [codes.setdefault(name, len(codes)) for name in _texts(encoded.dictionary, self.what)]
        except _NotNameError as error:
            first = int(np.argmax(index == error.position))
            raise InputError(f"{place(first)}: {error}") from None
        return np.asarray(np.array(met, dtype=np.int32)[index])


class _NotNameError(InputError):
    position: int


def _texts(values: pa.Array, what: str) -> list[str]:
    """Bring distinct values to names, by the rules of ``as_name``, without a call a value."""
    kind = values.type
    if pa.types.is_integer(kind):
        return values.cast(pa.string()).to_pylist()  # type: ignore[no-any-return]
    if pa.types.is_floating(kind) and pc.all(pc.equal(values, pc.round(values))).as_py():
        exact = values.cast(pa.float64())
        if pc.all(pc.less(pc.abs(exact), 2.0**63)).as_py():
            return exact.cast(pa.int64()).cast(pa.string()).to_pylist()  # type: ignore[no-any-return]
    found: list[object] = values.to_pylist()
    if (pa.types.is_string(kind) or pa.types.is_large_string(kind)) and "" not in found:
        return found  # type: ignore[return-value]
    for position, value in enumerate(found):
        try:
            found[position] = as_name(value, what)
        except InputError as error:
            told = _NotNameError(str(error))
            told.position = position
            raise told from None
    return found  # type: ignore[return-value]


def without_points(names: list[str]) -> list[str]:
    """Read "17.0" as 17 where a text file holds only whole numbers for names.

    >>> without_points(["17.0", "4"]), without_points(["17.0", "u4"])
    (['17', '4'], ['17.0', 'u4'])
    """
    if any("." in name for name in names) and all(map(_WHOLE.fullmatch, names)):
        return [name.partition(".")[0] for name in names]
    return names


def merged(names: Sequence[str]) -> tuple[list[str], NDArray[np.int64]]:
    """Return each name once, and where among these each of the given ones stands.

    >>> merged(["a", "b", "a"])
    (['a', 'b'], array([0, 1, 0]))
    """
    where: dict[str, int] = {}
    positions = np.array([where.setdefault(name, len(where)) for name in names], dtype=np.int64)
    return list(where), positions


def in_order(names: Iterable[str]) -> list[str]:
    """Sort names, whole numbers first and by size, so that the order of lines in a file has no say.

    >>> in_order(["b", "10", "9", "a"])
    ['9', '10', 'a', 'b']
    """
    every = sorted(set(names))
    return sorted(filter(str.isdecimal, every), key=len) + [name for name in every if not name.isdecimal()]
