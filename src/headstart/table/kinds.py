"""Kinds of features: their possible values, and their scale in models."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.errors import InputError, did_you_mean, for_user, option_name
from headstart.table.cells import Floats

__all__ = ["KIND_NAMES", "Kind", "KindType", "Kinds"]


# The largest value on the models' scale. Models sum squares in float32, which ends at 3.4e38.
LARGEST = 1e17


def require_representable(values: Floats, scaled: NDArray[np.float64], where: Callable[[int], str]) -> None:
    """Raise an error for values that are too large for models.

    Parameters
    ----------
    values, scaled : ndarray of shape (n,)
        Values in the data's own units, and on the models' scale.
    where : callable
        Returns the row and feature of the value at a position, for the message.

    Raises
    ------
    InputError
        If a scaled value is too large. The message names the first one.

    Examples
    --------
    >>> require_representable(np.array([5.0, 1e39]), np.array([0.1, 2e37]), lambda i: f"row 'u{i}'")
    Traceback (most recent call last):
    headstart.errors.InputError: row 'u1': the value 1e+39 is too large to compute with: at most 1e+17 times the scale of its feature is possible; correct it or leave it out, or measure the feature in larger units
    """  # noqa: E501 (the message of the example is one line)
    with np.errstate(invalid="ignore"):
        wrong = ~(np.abs(scaled) <= LARGEST)
    if wrong.any():
        first = int(np.flatnonzero(wrong)[0])
        raise InputError(
            f"{where(first)}: the value {values[first]:g} is too large to compute with: at most {LARGEST:g} "
            "times the scale of its feature is possible; correct it or leave it out, or measure the feature "
            "in larger units"
        )


class KindType(IntEnum):
    """The types of kinds. Arrays and tensors contain these numbers."""

    BINARY = 0
    RATING = 1
    REAL = 2


KIND_NAMES = tuple(kind.name.lower() for kind in KindType)


@dataclass(frozen=True)
class Kind:
    """The kind of one feature: ``binary``, ``rating:LOW:HIGH`` or ``real:CENTER:SCALE``.

    Models work with ``(value - offset) / span``. This is 0 or 1 for a binary feature, in [0, 1] for a
    rating, and has about unit variance for a real feature. The text form is used in files, in messages
    and on the command line. Use ``Kind.binary``, ``Kind.rating``, ``Kind.real`` or ``Kind.parse`` to
    create a kind.

    Parameters
    ----------
    type : KindType
        Binary, rating or real.
    first : float, default=0.0
        The first number of the text form: LOW or CENTER.
    second : float, default=1.0
        The second number of the text form: HIGH or SCALE.

    Examples
    --------
    >>> Kind.parse("rating:1:5")
    Kind('rating:1:5')
    >>> Kind.parse("rating:1:5").scale(4.0)
    0.75
    >>> Kind.parse("ratng")
    Traceback (most recent call last):
    headstart.errors.InputError: 'ratng' is not a kind (binary, rating, real); did you mean 'rating'?
    """

    type: KindType
    first: float = 0.0
    second: float = 1.0

    @classmethod
    def binary(cls) -> Kind:
        """Return the kind of values that are 0 or 1, such as wrong or right, absent or present."""
        return cls(KindType.BINARY)

    @classmethod
    def rating(cls, low: float, high: float) -> Kind:
        """Return the kind of numbers between two fixed limits, such as 1 to 5 stars.

        Parameters
        ----------
        low, high : float
            The smallest and the largest possible value, ``low < high``.

        Raises
        ------
        InputError
            If a limit is not finite, or ``low`` is not smaller than ``high``.
        """
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise InputError(f"a rating's range must be two numbers LOW < HIGH; got {low!r} and {high!r}")
        return cls(KindType.RATING, low, high)

    @classmethod
    def real(cls, center: float = 0.0, scale: float = 1.0) -> Kind:
        """Return the kind of any finite number.

        Parameters
        ----------
        center : float, default=0.0
            A typical value, such as the mean.
        scale : float, default=1.0
            How far the values spread, such as their standard deviation; must be positive.

        Raises
        ------
        InputError
            If ``center`` or ``scale`` is not finite, or ``scale`` is not positive.
        """
        if not (math.isfinite(center) and math.isfinite(scale) and scale > 0):
            raise InputError(
                f"a real's center and scale must be finite, scale > 0; got {center!r}, {scale!r}"
            )
        return cls(KindType.REAL, center, scale)

    @classmethod
    def parse(cls, text: str) -> Kind:
        """Read the text form.

        Parameters
        ----------
        text : str
            ``binary``, ``rating:LOW:HIGH``, ``real`` or ``real:CENTER:SCALE``. A rating needs its limits.

        Returns
        -------
        Kind
            The kind with this text form.

        Raises
        ------
        InputError
            If the text is not the text form of a kind.
        """
        name, *parameters = str(text).split(":")
        if name not in KIND_NAMES:
            raise InputError(
                f"{text!r} is not a kind ({', '.join(KIND_NAMES)}){did_you_mean(name, KIND_NAMES)}"
            )
        try:
            numbers = [float(parameter) for parameter in parameters]
        except ValueError:
            raise InputError(f"kind {text!r}: only numbers can follow the name, as in rating:1:5") from None
        counts = {"binary": (0,), "rating": (2,), "real": (0, 2)}[name]
        if len(numbers) not in counts:
            raise InputError(f"kind {text!r}: write binary, rating:LOW:HIGH or real:CENTER:SCALE")
        if name == "binary":
            return cls.binary()
        return cls.rating(*numbers) if name == "rating" else cls.real(*numbers)

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
        """The difference, in the data's own units, that is 1 on the models' scale."""
        return self.second if self.type == KindType.REAL else self.second - self.first

    @property
    def low(self) -> float:
        """The smallest possible value."""
        return -math.inf if self.type == KindType.REAL else self.first

    @property
    def high(self) -> float:
        """The largest possible value."""
        return math.inf if self.type == KindType.REAL else self.second

    @property
    def allowed(self) -> str:
        """The possible values in words, for messages: ``0 or 1``, ``from 1 to 5``."""
        if self.type == KindType.BINARY:
            return "0 or 1"
        return (
            "any number" if self.type == KindType.REAL else f"from {_exact(self.low)} to {_exact(self.high)}"
        )

    def scale(self, value: float) -> float:
        """Convert a value to the models' scale."""
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
    """Return a short text that reads back as the same number."""
    short = f"{number:.12g}"
    return short if float(short) == number else repr(float(number))


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
        """Return the real kind of the median center and scale; None if the reals share one or there are none.

        A new real feature has this kind until its own center and scale are known.
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


MAX_SHOWN = 20  # features listed with a kind of their own; the others are counted


def kinds_as_option(names: Iterable[str], kinds: Iterable[Kind]) -> str:
    """Write the kinds of features as an argument or options: the most common kind, then the exceptions.

    Reals are written without center and scale, which are computed from the data again.

    >>> kinds_as_option(["a", "b", "c"], [Kind.real(5, 2), Kind.real(3, 2), Kind.binary()])
    "kinds={None: 'real', 'c': 'binary'}"
    """
    texts = [kind.name if kind.type == KindType.REAL else str(kind) for kind in kinds]
    usual = Counter(texts).most_common(1)[0][0]
    others = [(name, text) for name, text in zip(names, texts, strict=True) if text != usual]
    more = f" and {len(others) - MAX_SHOWN} more" if len(others) > MAX_SHOWN else ""
    return as_option({None: usual, **dict(others[:MAX_SHOWN])}) + more


def as_option(kinds: Mapping[str | None, str]) -> str:
    """Write kinds as an argument or as options.

    >>> as_option({"b": "real"}), as_option({None: "real"})
    ("kinds={'b': 'real'}", "kinds='real'")
    >>> from headstart.errors import command_line
    >>> with command_line():
    ...     as_option({None: "real", "the b": "rating:1:5"})
    "--kind real --kind 'the b=rating:1:5'"
    """
    options = [text if name is None else f"{name}={text}" for name, text in kinds.items()]
    value = kinds[None] if list(kinds) == [None] else dict(kinds)
    return for_user(option_name("kinds", value), " ".join(option_name("kinds", option) for option in options))
