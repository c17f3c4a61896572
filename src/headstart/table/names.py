"""Names of rows and features: the only way a user addresses them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from headstart.errors import InputError, UnknownNameError, did_you_mean, listed


def as_name(value: object, what: str = "name") -> str:
    """Turn what a user or a file calls a row or feature into its name, a string.

    Whole numbers are common ids, so 17, 17.0 and "17" are one name.

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
    raise InputError(f"{value!r} cannot be a {what}; names are non-empty text or whole numbers")


class Names(Sequence[str]):
    """An immutable, ordered set of names with fast look-up.

    >>> films = Names(["Alien", "Brazil"], "feature")
    >>> films.positions(["Brazil"])
    array([1])
    >>> films.position("Alein")
    Traceback (most recent call last):
    headstart.errors.UnknownNameError: unknown feature 'Alein'; did you mean 'Alien'?
    """

    def __init__(self, names: Iterable[str], what: str) -> None:
        self._names = tuple(names)
        self.what = what

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
        """Return where one name stands."""
        return int(self.positions([name])[0])

    def positions(self, names: Iterable[object]) -> NDArray[np.int64]:
        """Return where these names stand; an unknown one is an error that names it."""
        wanted = [as_name(name, self.what) for name in names]
        try:
            return np.array([self._index[name] for name in wanted], dtype=np.int64)
        except KeyError:
            unknown = [name for name in wanted if name not in self._index]
        if len(unknown) == 1:
            hint = did_you_mean(unknown[0], self._names if len(self) <= 20_000 else ())
            raise UnknownNameError(f"unknown {self.what} {unknown[0]!r}{hint}")
        raise UnknownNameError(f"{len(unknown)} unknown {self.what}s: {listed(unknown)}")

    def take(self, positions: NDArray[np.int64]) -> Names:
        """Return the names at these positions, in that order."""
        return Names([self._names[i] for i in positions], self.what)
