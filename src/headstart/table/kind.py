"""The kind of a feature: its possible values, and their scale in models."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum

from headstart.errors import InputError, did_you_mean


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
