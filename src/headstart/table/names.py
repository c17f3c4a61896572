"""Names of rows and features. Users address rows and features by name only."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Hashable, Iterable, Iterator, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import DTypeLike, NDArray

from headstart.errors import InputError, UnknownNameError, did_you_mean, listed

MAX_SUGGESTIONS = 20_000  # a similar name is searched only in shorter lists: the search is slow
MAX_BITS = 4096  # of a whole number that is a name; Python does not print much longer ones
_WHOLE_NUMBER = re.compile(r"(-?[0-9]+)\.0*")


def as_name(value: object, noun: str = "name") -> str:
    """Convert the identifier of a row, feature or column to its name, a string.

    This is the one place where names are made equal. Spaces around a name do not count, nor does its
    Unicode form (it becomes NFC). Whole numbers are common identifiers, so 17, 17.0, "17" and "17.0" are
    the same name.

    >>> as_name(17), as_name("17.0"), as_name(" u17 "), as_name("Ame\u0301lie") == "Am\u00e9lie"
    ('17', '17', 'u17', True)
    """
    if isinstance(value, str):
        return _tidied(value, noun)
    if isinstance(value, (bool, np.bool_)) or value is None:
        pass
    elif isinstance(value, (int, np.integer)):
        if int(value).bit_length() > MAX_BITS:
            raise InputError(f"a whole number of more than {MAX_BITS} bits cannot be a {noun}; use text")
        return str(int(value))
    elif isinstance(value, (float, np.floating)) and value == value // 1:
        if abs(float(value)) >= exact_limit(value.dtype if isinstance(value, np.floating) else np.float64):
            raise InputError(
                f"{shown(value)} cannot be a {noun}: decimal numbers of this size do not have all digits, so"
                " that different identifiers would become the same; use whole numbers or text"
            )
        return str(int(value))
    raise InputError(f"{shown(value)} cannot be a {noun}; names are non-empty text or whole numbers")


def exact_limit(dtype: DTypeLike) -> float:
    """Return the size from which on decimal numbers of this type skip whole numbers.

    >>> exact_limit(np.float64) == 2**53
    True
    """
    return float(2.0 ** (np.finfo(np.dtype(dtype)).nmant + 1))


def shown(value: object) -> str:
    """Return a value as text for a message, shortened."""
    text = repr(value.item() if isinstance(value, np.generic) else value)
    return text if len(text) <= 100 else text[:100] + "…"


def spelled(value: object) -> str:
    """Return a spelling of a name for a message, such that another Unicode form looks different.

    >>> spelled("Ame\u0301lie"), spelled("Am\u00e9lie"), spelled(7)
    ("'Ame\\\\u0301lie'", "'Amélie'", '7')
    """
    other_form = isinstance(value, str) and not unicodedata.is_normalized("NFC", value)
    return ascii(value) if other_form else repr(value)


def _tidied(text: str, noun: str) -> str:
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
        return f"Names({listed(self._names)})"

    def position(self, name: object) -> int:
        """Return the position of one name."""
        return int(self.positions([name])[0])

    def positions(self, names: Iterable[object]) -> NDArray[np.int64]:
        """Return the positions of names: (n,). An unknown name raises ``UnknownNameError``."""
        # A name is first looked for as it is: that is fast, and finds names of models saved before names
        # were tidied.
        index = self._index
        requested = [
            name if isinstance(name, str) and name in index else as_name(name, self.noun) for name in names
        ]
        try:
            return np.array([index[name] for name in requested], dtype=np.int64)
        except KeyError:
            unknown = [name for name in requested if name not in index]
        if len(unknown) == 1:
            hint = did_you_mean(unknown[0], self._names if len(self) <= MAX_SUGGESTIONS else ())
            raise UnknownNameError(f"unknown {self.noun} {unknown[0]!r}{hint}")
        raise UnknownNameError(f"{len(unknown)} unknown {self.noun}s: {listed(unknown)}")

    def take(self, positions: NDArray[np.int64]) -> Names:
        """Return the names at these positions, in this order."""
        return Names([self._names[i] for i in positions], self.noun)
