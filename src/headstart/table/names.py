"""Names of rows and features. Users address rows and features by name only."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from headstart.errors import InputError, UnknownNameError, did_you_mean, listed

MAX_SUGGESTIONS = 20_000  # a similar name is searched only in shorter lists: the search is slow


def as_name(value: object, noun: str = "name") -> str:
    """Convert the identifier of a row or feature to its name, a string.

    Whole numbers are common identifiers, so 17, 17.0 and "17" are the same name.

    >>> as_name(17), as_name(17.0), as_name("u17")
    ('17', '17', 'u17')
    """
    if isinstance(value, str):
        if value:
            return value
    elif isinstance(value, (bool, np.bool_)) or value is None:
        pass
    elif isinstance(value, (int, float, np.integer, np.floating)) and value == value // 1:
        return str(int(value))
    raise InputError(f"{value!r} cannot be a {noun}; names are non-empty text or whole numbers")


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
        requested = [as_name(name, self.noun) for name in names]
        try:
            return np.array([self._index[name] for name in requested], dtype=np.int64)
        except KeyError:
            unknown = [name for name in requested if name not in self._index]
        if len(unknown) == 1:
            hint = did_you_mean(unknown[0], self._names if len(self) <= MAX_SUGGESTIONS else ())
            raise UnknownNameError(f"unknown {self.noun} {unknown[0]!r}{hint}")
        raise UnknownNameError(f"{len(unknown)} unknown {self.noun}s: {listed(unknown)}")

    def take(self, positions: NDArray[np.int64]) -> Names:
        """Return the names at these positions, in this order."""
        return Names([self._names[i] for i in positions], self.noun)
