"""What values a feature takes, and how they are brought to the scale models work on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from headstart.errors import InputError, did_you_mean


class KindType(IntEnum):
    """The types of kinds there are; tensors hold them as these numbers."""

    BINARY = 0
    RATING = 1
    REAL = 2


KIND_NAMES = tuple(kind.name.lower() for kind in KindType)

TOLERANCE = 1e-9  # how far beyond its ends, on the models' scale, a rating may be by rounding


@dataclass(frozen=True)
class Kind:
    """The kind of one feature: ``binary``, ``rating:LOW:HIGH`` or ``real:CENTER:SCALE``.

    Models see ``(value - offset) / span``: 0/1 for binary, [0, 1] for a rating, about unit
    variance for a real. The text form is the one used in files, messages and on the command line.

    >>> Kind.parse("rating:1:5")
    Kind('rating:1:5')
    >>> Kind.parse("rating:1:5").scale(4.0)
    0.75
    >>> Kind.parse("ratng")
    Traceback (most recent call last):
    headstart.errors.InputError: 'ratng' is not a kind (binary, rating, real); did you mean 'rating'?
    """

    type: KindType
    first: float = 0.0  # the numbers of the text form: LOW and HIGH, or CENTER and SCALE
    second: float = 1.0

    @classmethod
    def binary(cls) -> Kind:
        """0 or 1: right or wrong, present or absent."""
        return cls(KindType.BINARY)

    @classmethod
    def rating(cls, low: float, high: float) -> Kind:
        """A number between two fixed ends, such as 1 to 5 stars."""
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise InputError(f"a rating's range must be two numbers LOW < HIGH; got {low!r} and {high!r}")
        return cls(KindType.RATING, low, high)

    @classmethod
    def real(cls, center: float = 0.0, scale: float = 1.0) -> Kind:
        """Any number; ``center`` and ``scale`` say where its values lie and how far they spread."""
        if not (math.isfinite(center) and math.isfinite(scale) and scale > 0):
            raise InputError(
                f"a real's center and scale must be finite, scale > 0; got {center!r}, {scale!r}"
            )
        return cls(KindType.REAL, center, scale)

    @classmethod
    def parse(cls, text: str) -> Kind:
        """Read the text form. ``rating`` needs its ends, which only data or the user can give."""
        name, *numbers = str(text).split(":")
        if name not in KIND_NAMES:
            raise InputError(
                f"{text!r} is not a kind ({', '.join(KIND_NAMES)}){did_you_mean(name, KIND_NAMES)}"
            )
        try:
            ends = [float(number) for number in numbers]
        except ValueError:
            raise InputError(f"kind {text!r}: what follows ':' must be numbers, as in rating:1:5") from None
        wanted = {"binary": (0,), "rating": (2,), "real": (0, 2)}[name]
        if len(ends) not in wanted:
            raise InputError(f"kind {text!r}: write binary, rating:LOW:HIGH or real:CENTER:SCALE")
        if name == "binary":
            return cls.binary()
        return cls.rating(*ends) if name == "rating" else cls.real(*ends)

    @property
    def name(self) -> str:
        """``binary``, ``rating`` or ``real``."""
        return self.type.name.lower()

    @property
    def offset(self) -> float:
        """The value that is 0 on the models' scale."""
        return self.first

    @property
    def span(self) -> float:
        """How much in the data's own units is 1 on the models' scale."""
        return self.second if self.type == KindType.REAL else self.second - self.first

    @property
    def low(self) -> float:
        """The smallest value there can be."""
        return -math.inf if self.type == KindType.REAL else self.first

    @property
    def high(self) -> float:
        """The largest value there can be."""
        return math.inf if self.type == KindType.REAL else self.second

    @property
    def allowed(self) -> str:
        """Which values there can be, in words: ``0 or 1``, ``from 1 to 5``."""
        if self.type == KindType.BINARY:
            return "0 or 1"
        return (
            "any number" if self.type == KindType.REAL else f"from {_exact(self.low)} to {_exact(self.high)}"
        )

    def scale(self, value: float) -> float:
        """Bring a value to the models' scale."""
        return (value - self.offset) / self.span

    def __str__(self) -> str:
        return (
            self.name
            if self.type == KindType.BINARY
            else f"{self.name}:{_exact(self.first)}:{_exact(self.second)}"
        )

    def __repr__(self) -> str:
        return f"Kind({str(self)!r})"


def _exact(number: float) -> str:
    """Write a number as short as can be read back the same."""
    short = f"{number:.12g}"
    return short if float(short) == number else repr(float(number))


class Kinds(Sequence[Kind]):
    """The kinds of a table's features, in order, with the arrays that vectorised code needs.

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
        found = self._kinds[position]
        return Kinds(found) if isinstance(position, slice) else found

    def __iter__(self) -> Iterator[Kind]:
        return iter(self._kinds)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Kinds) and self._kinds == other._kinds

    def __hash__(self) -> int:
        return hash(self._kinds)

    def __repr__(self) -> str:
        return f"Kinds({self.summary()})"

    def take(self, positions: NDArray[np.int64]) -> Kinds:
        """Return the kinds at these positions."""
        return Kinds([self._kinds[i] for i in positions])

    def scale(self, values: NDArray[np.float64], features: NDArray[np.int64]) -> NDArray[np.float64]:
        """Bring ``values`` of the features at these positions to the models' scale."""
        return (values - self.offsets[features]) / self.spans[features]

    def unscale(self, scaled: NDArray[np.float64], features: NDArray[np.int64]) -> NDArray[np.float64]:
        """Bring values of the features at these positions from the models' scale to the data's own units."""
        return scaled * self.spans[features] + self.offsets[features]

    def impossible(self, values: NDArray[np.float64], features: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether the features at these positions can not have these ``values``: (n,)."""
        scaled, types = self.scale(values, features), self.types[features]
        bit = (scaled == 0) | (scaled == 1)
        inside = (scaled >= -TOLERANCE) & (scaled <= 1 + TOLERANCE)
        return np.asarray((types != KindType.REAL) & ~np.where(types == KindType.BINARY, bit, inside))

    def summary(self, limit: int = 5) -> str:
        """Count the features of each kind, commonest first: ``9066 rating:0.5:5``."""
        counts: dict[str, int] = {}
        for kind in self._kinds:
            text = str(kind) if kind.type != KindType.REAL else "real"
            counts[text] = counts.get(text, 0) + 1
        told = [f"{count} {text}" for text, count in sorted(counts.items(), key=lambda kv: -kv[1])]
        more = [f"{len(told) - limit} more kinds"] if len(told) > limit else []
        return ", ".join(told[:limit] + more)
