"""Kinds of features: a margin with an affine scale, for one feature (``Kind``) or many (``Kinds``)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.errors import InputError, for_user, option_name
from headstart.table.cells import Floats
from headstart.table.margins import (
    BINARY,
    KIND_NAMES,
    KINDS,
    RATING,
    REAL,
    TOLERANCE,
    Category,
    KindType,
    Margin,
    exact_text,
    split_text,
)

__all__ = ["KINDS", "KIND_NAMES", "Kind", "KindType", "Kinds", "Margin"]


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


def is_value(value: object) -> bool:
    """Return whether an object has the type of an observed value: a number or a boolean.

    >>> is_value(3), is_value(np.float32(2.5)), is_value(np.timedelta64(3, "D")), is_value("3")
    (True, True, False, False)
    """
    return is_type_of_values(type(value))


def is_type_of_values(type_: type) -> bool:
    """Return whether objects of a type are values: see ``is_value``."""
    numbers = (bool, int, float, np.bool_, np.integer, np.floating)
    return issubclass(type_, numbers) and not issubclass(type_, np.timedelta64)


def column_name(feature: str, level: str) -> str:
    """Return the name of the column of one level of a category.

    >>> column_name("colour", "red"), split_column("colour=red")
    ('colour=red', ('colour', 'red'))
    """
    return f"{feature}={level}"


def split_column(name: str) -> tuple[str, str]:
    """Split the name of the column of one level into feature and level; a level has no equals sign."""
    feature, _, level = name.rpartition("=")
    return feature, level


def owner_of_column(name: str, kind: Kind) -> str:
    """Return the feature of a column: the category of the column of a level, or else the column itself."""
    return split_column(name)[0] if isinstance(kind.margin, Category) else name


def group_columns(names: Sequence[str], kinds: Kinds) -> NDArray[np.int64]:
    """Return the number of the feature of each column, in the order of first occurrence: (columns,).

    The columns of the levels of one category are one feature; any other column is a feature of its own.

    >>> group_columns(["a=x", "a=y", "b"], Kinds([Kind(Category()), Kind(Category()), Kind.binary()]))
    array([0, 0, 1])
    """
    if not any(isinstance(margin, Category) for margin in kinds.margins):
        return np.arange(len(names))
    numbers: dict[tuple[str, bool], int] = {}
    keys = (
        (split_column(name)[0], True) if isinstance(kind.margin, Category) else (name, False)
        for name, kind in zip(names, kinds, strict=True)
    )
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)


def feature_kinds(names: Sequence[str], kinds: Kinds) -> Kinds:
    """Return the kinds of features from those of columns: a category with its levels in place of its columns.

    >>> feature_kinds(["a=x", "a=y", "b"], Kinds([Kind(Category()), Kind(Category()), Kind.binary()]))
    Kinds(1 category:x,y, 1 binary)
    """
    if not any(isinstance(margin, Category) for margin in kinds.margins):
        return kinds
    groups = group_columns(names, kinds)
    _, first = np.unique(groups, return_index=True)
    levels: dict[int, list[str]] = {}
    for name, kind, group in zip(names, kinds, groups.tolist(), strict=True):
        if isinstance(kind.margin, Category):
            levels.setdefault(group, []).append(split_column(name)[1])
    return Kinds(
        Kind(Category(tuple(levels[group]))) if group in levels else kinds[int(column)]
        for group, column in enumerate(first)
    )


@dataclass(frozen=True)
class Kind:
    """The kind of one feature: ``binary``, ``rating:LOW:HIGH``, ``real``, ``count``, ``amount`` and so on.

    The margin converts values to numbers, and models work with ``(number - offset) / span``. This is 0 or 1
    for a binary feature, in [0, 1] for a rating, and has about unit variance for other features. The text
    form is used in files, in messages and on the command line. Use ``Kind.parse`` to create a kind, or
    ``Kind.binary``, ``Kind.rating`` or ``Kind.real``.

    Parameters
    ----------
    margin : Margin
        The possible values, and their numbers.
    first : float, default=0.0
        The smallest number of a binary feature or a rating; otherwise a typical number, the center.
    second : float, default=1.0
        The largest number of a binary feature or a rating; otherwise how far numbers spread, the scale.

    Examples
    --------
    >>> Kind.parse("rating:1:5")
    Kind('rating:1:5')
    >>> Kind.parse("rating:1:5").scale(4.0)
    0.75
    >>> round(Kind.parse("count:1:2:0.5").scale(0), 3)  # (log(0 + 1) - 2) / 0.5
    -4.0
    >>> Kind.parse("ratng")
    Traceback (most recent call last):
    headstart.errors.InputError: 'ratng' is not a kind (binary, rating, real, count, amount, ordinal, category, click); did you mean 'rating'?
    """  # noqa: E501 (the message of the example is one line)

    margin: Margin
    first: float = 0.0
    second: float = 1.0

    @classmethod
    def binary(cls) -> Kind:
        """Return the kind of values that are 0 or 1, such as wrong or right, absent or present."""
        return cls(BINARY)

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
        return cls(RATING, low, high)

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
        return cls(REAL).with_units(center, scale)

    @classmethod
    def parse(cls, text: str) -> Kind:
        """Read the text form.

        Parameters
        ----------
        text : str
            A name of ``KIND_NAMES`` with its parameters, such as ``binary``, ``rating:LOW:HIGH`` or
            ``real:CENTER:SCALE``. A rating needs its limits.

        Returns
        -------
        Kind
            The kind with this text form.

        Raises
        ------
        InputError
            If the text is not the text form of a kind.
        """
        name, parameters = split_text(str(text))
        try:
            margin, others = KINDS[name].parse(parameters)
            numbers = [float(parameter) for parameter in others]
        except InputError as error:
            raise InputError(f"kind {text!r}: {error}") from None
        except ValueError:
            raise InputError(f"kind {text!r}: only numbers can follow the name, as in rating:1:5") from None
        counts = (2,) if margin == RATING else (0, 2) if margin.type == KindType.REAL else (0,)
        if len(numbers) not in counts:
            raise InputError(f"kind {text!r}: write {' or '.join(KINDS[name].syntax)}")
        if not numbers:
            return cls(margin)
        return cls.rating(*numbers) if margin == RATING else cls(margin).with_units(*numbers)

    def with_units(self, center: float, scale: float) -> Kind:
        """Return the kind with this ``center`` and ``scale`` of its numbers."""
        if not (math.isfinite(center) and math.isfinite(scale) and scale > 0):
            raise InputError(
                f"a {self.name}'s center and scale must be finite, scale > 0; got {center!r}, {scale!r}"
            )
        return replace(self, first=center, second=scale)

    def shares_units(self, other: Kind | None) -> bool:
        """Return whether both kinds are modelled as reals with the same center and scale."""
        if other is None or self.type != KindType.REAL:
            return False
        return other.type == KindType.REAL and (self.first, self.second) == (other.first, other.second)

    @property
    def type(self) -> KindType:
        """The type of the model column."""
        return self.margin.type

    @property
    def name(self) -> str:
        """``binary``, ``rating``, ``real`` and so on."""
        return self.margin.name

    @property
    def offset(self) -> float:
        """The number that is 0 on the models' scale."""
        return self.first

    @cached_property
    def span(self) -> float:
        """The difference of numbers that is 1 on the models' scale."""
        return self.second if self.type == KindType.REAL else self.second - self.first

    @cached_property
    def low(self) -> float:
        """The smallest possible number."""
        return -math.inf if self.type == KindType.REAL else self.first

    @cached_property
    def high(self) -> float:
        """The largest possible number."""
        return math.inf if self.type == KindType.REAL else self.second

    @property
    def allowed(self) -> str:
        """The possible values in words, for messages: ``0 or 1``, ``from 1 to 5``."""
        limited = self.margin == RATING
        return f"from {exact_text(self.low)} to {exact_text(self.high)}" if limited else self.margin.allowed

    @property
    def option(self) -> str:
        """The text form without parameters that are computed from the data: ``real``, ``rating:1:5``."""
        return str(self) if self.margin == RATING else self.margin.option

    @property
    def short(self) -> str:
        """The option, with the number of levels in place of more than 20 of them."""
        levels = self.margin.level_names
        return self.option if len(levels) <= MAX_SHOWN else f"{self.name} of {len(levels)} levels"

    def allows(self, value: float) -> bool:
        """Return whether a value is possible."""
        return bool(self.margin.possible(value)) and (self.margin != RATING or self.low <= value <= self.high)

    def scale(self, value: float) -> float:
        """Convert a value to the models' scale."""
        return float((self.margin.to_number(value) - self.offset) / self.span)

    def __str__(self) -> str:
        if self.type != KindType.REAL and self.margin != RATING:
            return self.margin.family
        return f"{self.margin.family}:{exact_text(self.first)}:{exact_text(self.second)}"

    def __repr__(self) -> str:
        return f"Kind({str(self)!r})"


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
        The number of each feature that is 0 on the models' scale.
    spans : ndarray of shape (features,)
        The difference of each feature's numbers that is 1 on the models' scale.

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

    @classmethod
    def parse(cls, texts: Sequence[str]) -> Kinds:
        """Read the text forms of kinds, each distinct one once: see ``Kind.parse``."""
        parsed = {text: Kind.parse(text) for text in dict.fromkeys(texts)}
        return cls([parsed[text] for text in texts])

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
        return self.scale_numbers(self.numbers(values, features), features)

    def scale_numbers(self, numbers: Floats, features: NDArray[Any]) -> NDArray[np.float64]:
        """Convert numbers (n,) of ``features`` (n,) to the models' scale."""
        scaled: NDArray[np.float64] = (numbers - self.offsets[features]) / self.spans[features]
        return scaled

    @cached_property
    def margins(self) -> dict[Margin, NDArray[np.bool_]]:
        """The mask (features,) of the features of each margin."""
        codes: dict[Margin, int] = {}
        code = np.array([codes.setdefault(kind.margin, len(codes)) for kind in self._kinds], dtype=np.int64)
        return {margin: code == number for margin, number in codes.items()}

    @cached_property
    def lows(self) -> NDArray[np.float64]:
        """The smallest possible number of each feature: (features,)."""
        return np.array([kind.low for kind in self._kinds], dtype=np.float64)

    @cached_property
    def highs(self) -> NDArray[np.float64]:
        """The largest possible number of each feature: (features,)."""
        return np.array([kind.high for kind in self._kinds], dtype=np.float64)

    def numbers(self, values: Any, features: NDArray[Any]) -> Any:
        """Convert values (…, n) of ``features`` (n,) to numbers; see ``Margin``."""
        return self._convert(values, features, lambda margin, part: margin.to_number(part))

    def values(self, numbers: Any, features: NDArray[Any]) -> Any:
        """Convert numbers (…, n) of ``features`` (n,) to values; the inverse of ``numbers``."""
        return self._convert(numbers, features, lambda margin, part: margin.to_value(part))

    def moments(self, mean: Any, std: Any, features: NDArray[Any]) -> tuple[Any, Any]:
        """Return means and standard deviations (…, n) of values with Gaussian numbers."""
        if all(margin.identity for margin in self.margins):
            return mean, std
        mean, std = np.array(mean, np.float64), np.array(std, np.float64)
        for margin, mask in self.margins.items():
            if not margin.identity:
                of = mask[features]
                mean[..., of], std[..., of] = margin.moments(mean[..., of], std[..., of])
        return mean, std

    def values_within_limits(
        self, mean: NDArray[np.float64], std: float, features: NDArray[Any]
    ) -> NDArray[np.float64]:
        """Return the means (n,) of values whose numbers are clipped to the limits of their kinds.

        ``mean`` (n,) and ``std`` are on the models' scale.
        """
        numbers = np.clip(self.unscale(mean, features), self.lows[features], self.highs[features])
        return np.asarray(self.moments(numbers, self.spans[features] * std, features)[0])

    def _convert(self, array: Any, features: NDArray[Any], convert: Callable[[Margin, Any], Any]) -> Any:
        """Return a copy in which ``convert`` is applied to the entries (…, n) of each margin."""
        if all(margin.identity for margin in self.margins):
            return array
        converted = np.array(array, np.float64)
        for margin, mask in self.margins.items():
            if not margin.identity:
                converted[..., mask[features]] = convert(margin, converted[..., mask[features]])
        return converted

    def middle_real(self) -> Kind | None:
        """Return the real kind of the median center and scale; None if the reals share one or there are none.

        A new feature that is modelled as a real has these units until its own are known.
        """
        real = self.types == KindType.REAL
        offsets, spans = self.offsets[real], self.spans[real]
        if len(offsets) < 2 or (np.ptp(offsets) == 0 and np.ptp(spans) == 0):
            return None
        return Kind.real(float(np.median(offsets)), float(np.median(spans)))

    def unscale(self, scaled: NDArray[np.float64], features: NDArray[np.int64]) -> NDArray[np.float64]:
        """Convert numbers from the models' scale; the inverse of ``scale_numbers``."""
        return scaled * self.spans[features] + self.offsets[features]

    def impossible(self, values: Floats, features: NDArray[Any]) -> NDArray[np.bool_]:
        """Return which values (n,) their features, at these positions (n,), cannot have: (n,)."""
        possible = np.zeros(len(values), dtype=bool)
        for margin, mask in self.margins.items():
            of = mask[features]
            possible[of] = margin.possible(values[of])
            if margin == RATING:
                scaled = self.scale_numbers(values[of], features[of])
                possible[of] = (scaled >= -TOLERANCE) & (scaled <= 1 + TOLERANCE)
        return ~possible

    def summary(self) -> str:
        """Count the features of the five most frequent kinds: ``9066 rating:0.5:5``."""
        counts: dict[str, int] = {}
        for kind in self._kinds:
            counts[kind.short] = counts.get(kind.short, 0) + 1
        texts = [f"{count} {text}" for text, count in sorted(counts.items(), key=lambda kv: -kv[1])]
        more = [f"{len(texts) - 5} more kinds"] if len(texts) > 5 else []
        return ", ".join(texts[:5] + more)


MAX_SHOWN = 20  # features listed with a kind of their own, levels listed in a kind; others are counted


def kinds_as_option(names: Iterable[str], kinds: Iterable[Kind]) -> str:
    """Write the kinds of features as an argument or options: the most common kind, then the exceptions.

    Reals are written without center and scale, which are computed from the data again.

    >>> kinds_as_option(["a", "b", "c"], [Kind.real(5, 2), Kind.real(3, 2), Kind.binary()])
    "kinds={None: 'real', 'c': 'binary'}"
    """
    texts = [kind.option for kind in kinds]
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
