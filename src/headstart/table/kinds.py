"""The kinds of all features of a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.table.compact import Floats
from headstart.table.kind import KIND_NAMES, Kind, KindType

__all__ = ["KIND_NAMES", "Kind", "KindType", "Kinds"]

TOLERANCE = 1e-9  # rounding error allowed beyond the limits of a rating, on the models' scale


class Kinds(Sequence[Kind]):
    """The kinds of a table's features, in their order, also as arrays.

    Parameters
    ----------
    kinds : iterable of Kind
        One kind per feature.

    Attributes
    ----------
    types : ndarray of shape (features,)
        The ``KindType`` of each kind, as int64.
    offsets : ndarray of shape (features,)
        The value of each feature that is 0 on the models' scale.
    spans : ndarray of shape (features,)
        The difference in each feature's own units that is 1 on the models' scale.

    Examples
    --------
    >>> kinds = Kinds([Kind.binary(), Kind.rating(1, 5)])
    >>> kinds.scale(np.array([1.0, 4.0]), np.array([0, 1]))
    array([1.  , 0.75])
    >>> kinds.impossible(np.array([1.0, 6.0]), np.array([0, 1]))
    array([False,  True])
    """

    def __init__(self, kinds: Iterable[Kind]) -> None:
        self._kinds = tuple(kinds)
        self.types: NDArray[np.int64] = np.array([kind.type for kind in self._kinds], dtype=np.int64)
        self.offsets: NDArray[np.float64] = np.array([kind.offset for kind in self._kinds], dtype=np.float64)
        self.spans: NDArray[np.float64] = np.array([kind.span for kind in self._kinds], dtype=np.float64)

    def __len__(self) -> int:
        return len(self._kinds)

    def __getitem__(self, position):  # type: ignore[no-untyped-def]  # int -> Kind, slice -> Kinds
        return Kinds(self._kinds[position]) if isinstance(position, slice) else self._kinds[position]

    def __iter__(self) -> Iterator[Kind]:
        return iter(self._kinds)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Kinds) and self._kinds == other._kinds

    def __hash__(self) -> int:
        return hash(self._kinds)

    def __repr__(self) -> str:
        return f"Kinds({self.summary()})"

    def take(self, positions: NDArray[np.int64]) -> Kinds:
        """Return the kinds at these positions, in this order."""
        return Kinds([self._kinds[i] for i in positions])

    def scale(self, values: Floats, features: NDArray[Any]) -> NDArray[np.float64]:
        """Convert values to the models' scale.

        Parameters
        ----------
        values : ndarray of shape (n,)
            Values in the data's own units.
        features : ndarray of shape (n,)
            The position of each value's feature.

        Returns
        -------
        ndarray of shape (n,)
            The values on the models' scale.
        """
        scaled: NDArray[np.float64] = (values - self.offsets[features]) / self.spans[features]
        return scaled

    def middle_real(self) -> Kind | None:
        """The real kind in the middle of those there are; None where the reals share one, or there are none.

        A new real feature is given in these units until its own center and scale are known.
        """
        real = self.types == KindType.REAL
        offsets, spans = self.offsets[real], self.spans[real]
        if len(offsets) < 2 or (np.ptp(offsets) == 0 and np.ptp(spans) == 0):
            return None
        return Kind.real(float(np.median(offsets)), float(np.median(spans)))

    def unscale(self, scaled: NDArray[np.float64], features: NDArray[np.int64]) -> NDArray[np.float64]:
        """Convert values from the models' scale to the data's own units; the inverse of ``scale``."""
        return scaled * self.spans[features] + self.offsets[features]

    def impossible(self, values: Floats, features: NDArray[Any]) -> NDArray[np.bool_]:
        """Return which values (n,) their features, at these positions (n,), cannot have: (n,)."""
        scaled, types = self.scale(values, features), self.types[features]
        zero_or_one = (scaled == 0) | (scaled == 1)
        inside = (scaled >= -TOLERANCE) & (scaled <= 1 + TOLERANCE)
        possible = np.where(types == KindType.BINARY, zero_or_one, inside)
        return np.asarray((types != KindType.REAL) & ~possible)

    def summary(self, limit: int = 5) -> str:
        """Count the features of each kind, most frequent first: ``9066 rating:0.5:5``."""
        counts: dict[str, int] = {}
        for kind in self._kinds:
            text = str(kind) if kind.type != KindType.REAL else "real"
            counts[text] = counts.get(text, 0) + 1
        texts = [f"{count} {text}" for text, count in sorted(counts.items(), key=lambda kv: -kv[1])]
        more = [f"{len(texts) - limit} more kinds"] if len(texts) > limit else []
        return ", ".join(texts[:limit] + more)
