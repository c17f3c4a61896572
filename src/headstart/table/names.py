"""Names of rows and features: their normal form, look-up and numbering."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import DTypeLike, NDArray

from headstart.errors import InputError, UnknownNameError, did_you_mean, join_names

MAX_SUGGESTIONS = 20_000  # a similar name is searched only in lists up to this length: the search is slow

MAX_BITS = 4096  # of a whole number that is a name; Python does not print much longer ones

_WHOLE_NUMBER = re.compile(r"(-?[0-9]+)\.0*")


def as_name(value: object, noun: str = "name") -> str:
    """Convert the identifier of a row, feature or column to its name, a string.

    Every name passes through this function. Spaces around a name are removed, and its Unicode form becomes
    NFC. Whole numbers are common identifiers, so 17, 17.0, "17" and "17.0" are
    the same name.

    >>> as_name(17), as_name("17.0"), as_name(" u17 "), as_name("Ame\u0301lie") == "Am\u00e9lie"
    ('17', '17', 'u17', True)
    """
    if isinstance(value, str):
        return value if value.isascii() and value.isalnum() else _normalise(value, noun)
    if isinstance(value, (bool, np.bool_)) or value is None:
        pass
    elif isinstance(value, (int, np.integer)) and not isinstance(value, np.timedelta64):
        if int(value).bit_length() > MAX_BITS:
            raise InputError(f"a whole number of more than {MAX_BITS} bits cannot be a {noun}; use text")
        return str(int(value))
    elif isinstance(value, (float, np.floating)) and value == value // 1:
        if abs(float(value)) >= exact_limit(value.dtype if isinstance(value, np.floating) else np.float64):
            raise InputError(
                f"{display_name(value)} cannot be a {noun}: decimal numbers of this size do not have all "
                "digits, so that different identifiers would become the same; use whole numbers or text"
            )
        return str(int(value))
    raise InputError(f"{display_name(value)} cannot be a {noun}; names are non-empty text or whole numbers")


def exact_limit(dtype: DTypeLike) -> float:
    """Return the largest n such that this type of float represents all whole numbers up to n.

    >>> exact_limit(np.float64) == 2**53
    True
    """
    return float(2.0 ** (np.finfo(np.dtype(dtype)).nmant + 1))


def display_name(value: object) -> str:
    """Return a value as text for a message, shortened."""
    try:
        text = repr(value.item() if isinstance(value, np.generic) else value)
    except Exception:  # the text of any object may fail
        text = f"an object of the type {type(value).__name__}"
    return text if len(text) <= 100 else text[:100] + "…"


def display_spelling(value: object) -> str:
    """Return a name for a message; another Unicode form of the same name looks different.

    >>> display_spelling("Ame\u0301lie"), display_spelling("Am\u00e9lie"), display_spelling(7)
    ("'Ame\\\\u0301lie'", "'Amélie'", '7')
    """
    other_form = isinstance(value, str) and not unicodedata.is_normalized("NFC", value)
    return ascii(value) if other_form else repr(value)


def _normalise(text: str, noun: str) -> str:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InputError(
                f"{text!r} cannot be a {noun}: it has bytes that are not valid UTF-8; correct its encoding"
            ) from None
        text = unicodedata.normalize("NFC", text)
    name = text.strip()
    if not name:
        raise InputError(f"{text!r} cannot be a {noun}; names are non-empty text or whole numbers")
    if "." in name and (whole := _WHOLE_NUMBER.fullmatch(name)):
        return str(whole[1]) if whole[1] != "-0" else "0"
    return name


class Names(Sequence[str]):
    """An immutable, ordered set of names with fast look-up.

    >>> films = Names(["Alien", "Brazil"], "feature")
    >>> films.positions(["Brazil"])
    array([1])
    >>> films.position("Alein")
    Traceback (most recent call last):
    headstart.errors.UnknownNameError: unknown feature 'Alein'; did you mean 'Alien'?
    """

    def __init__(self, names: Iterable[str], noun: str) -> None:
        self._names = tuple(names)
        self.noun = noun  # "row" or "feature", for messages

    @cached_property
    def _index(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self._names)}

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, position):  # type: ignore[no-untyped-def]  # int -> str, slice -> tuple
        return self._names[position]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, Hashable) and name in self._index

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Names) and self._names == other._names

    def __hash__(self) -> int:
        return hash(self._names)

    def __repr__(self) -> str:
        return f"Names({join_names(self._names)})"

    def position(self, name: object) -> int:
        """Return the position of one name."""
        return int(self.positions([name])[0])

    def positions(self, names: Iterable[object]) -> NDArray[np.int64]:
        """Return the positions of names: (n,). An unknown name raises ``UnknownNameError``."""
        # Most names are in their normal form already: looking them up first is faster than normalising.
        index, names = self._index, list(names)
        try:
            return np.array([index[name] for name in names], dtype=np.int64)  # type: ignore[index]
        except (KeyError, TypeError):
            requested = [
                name if isinstance(name, str) and name in index else as_name(name, self.noun)
                for name in names
            ]
        try:
            return np.array([index[name] for name in requested], dtype=np.int64)
        except KeyError:
            unknown = [name for name in requested if name not in index]
        if len(unknown) == 1:
            hint = did_you_mean(unknown[0], self._names if len(self) <= MAX_SUGGESTIONS else ())
            raise UnknownNameError(f"unknown {self.noun} {unknown[0]!r}{hint}")
        raise UnknownNameError(f"{len(unknown)} unknown {self.noun}s: {join_names(unknown)}")

    def take(self, positions: NDArray[np.int64]) -> Names:
        """Return the names at these positions, in this order."""
        return Names([self._names[i] for i in positions], self.noun)


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
        self._spellings: dict[str, dict[str, None]] = {}  # in order, of names that had another form

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
                f"{place(0)}: {display_name(column[0].as_py())} cannot be a {self.noun};"
                " names are non-empty text or whole numbers"
            )
        if pa.types.is_float16(column.type):
            column = column.cast(pa.float32())  # exact for whole numbers
        dictionary = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        indices = dictionary.indices.to_numpy()
        numbers = self._numbers
        names, values = _whole_numbers(dictionary.dictionary), []
        if names is None:
            values = _to_list(dictionary.dictionary, self.noun)
            names = None if self._spellings else _if_normal(values)
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
        """The spellings of each name that has several, for messages."""
        return {
            name: " and ".join(map(display_spelling, written))
            for name, written in self._spellings.items()
            if len(written) > 1
        }

    def notes(self) -> list[str]:
        """Return notes on names that were normalised, and on names with several spellings."""
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
                f" {len(one)} ({display_spelling(one[0][0])} to {one[0][1]!r}{more})"
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
        return list(values.to_numpy(zero_copy_only=False))  # numpy numbers, whose type tells their precision
    try:
        return values.to_pylist()  # type: ignore[no-any-return]
    except UnicodeDecodeError as error:
        raise InputError(
            f"the name of a {noun} is not valid UTF-8 text: {error.object!r}; correct its encoding"
        ) from None


def _if_normal(values: list[Any]) -> list[str] | None:
    """Return the values if all are texts that ``as_name`` would not change, else None.

    This is much faster than to call ``as_name`` for each.
    """
    if not all(isinstance(value, str) and value.isascii() for value in values):
        return None
    normal = all(values) and values == list(map(str.strip, values)) and "." not in "".join(values)
    return values if normal else None


def _whole_numbers(values: pa.Array) -> list[str] | None:
    """Convert an array of whole numbers to names, as ``as_name`` does; return None for other values."""
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
    """Return the key by which ``sorted_names`` sorts."""
    decimal = name.isdecimal()
    return not decimal, len(name) if decimal else 0, name


def sorted_names(names: Iterable[str]) -> list[str]:
    """Sort names: whole numbers first, by size. The result does not depend on the order of the lines.

    >>> sorted_names(["b", "10", "9", "a"])
    ['9', '10', 'a', 'b']
    """
    unique = sorted(set(names))
    return sorted(filter(str.isdecimal, unique), key=len) + [name for name in unique if not name.isdecimal()]
