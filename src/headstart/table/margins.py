"""Margins of kinds: which values a kind has, and the numbers that models describe in their place.

A ``Margin`` maps the values of a kind to numbers, which models describe by one of four types of columns
(``KindType``). ``KINDS`` lists the kinds: to add one, write a margin.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from headstart.errors import InputError, did_you_mean
from headstart.table.cells import Floats
from headstart.table.shards import gather, global_max, global_sum


class KindType(IntEnum):
    """The types of model columns: every kind is modelled as one of them. Arrays contain the numbers."""

    BINARY = 0
    RATING = 1
    REAL = 2
    CLICK = 3


VALUE_TYPES = 3  # the first types, whose cells without a value are unknown; all types but clicks

ROUNDING = 1e-6  # of values on a grid, relative to its range; values may come in single precision

TOLERANCE = 1e-9  # rounding error allowed beyond the limits of a rating, relative to its range


@dataclass(frozen=True)
class Margin:
    """The values of a kind, and the monotone function that maps them to numbers.

    Models describe numbers, as one of four types. A subclass is one kind: it defines its name, its type and,
    unless numbers are the values themselves, the function and its inverse. ``KINDS`` lists the subclasses.
    """

    name: ClassVar[str]
    type: ClassVar[KindType]
    syntax: ClassVar[tuple[str, ...]]  # the text forms, for messages
    identity: ClassVar[bool] = True  # whether numbers are the values themselves

    @classmethod
    def parse(cls, parameters: list[str]) -> tuple[Margin, list[str]]:
        """Read a margin from the first ``parameters`` of a text form; return it and the other parameters."""
        return cls(), parameters

    @property
    def text(self) -> str:
        """The parameters in the text form, with a colon before each."""
        return ""

    @property
    def family(self) -> str:
        """The text form without the affine scale, from which ``parse`` makes the margin again."""
        return self.name + self.text

    @property
    def option(self) -> str:
        """The text form without parameters that are computed from the data."""
        return self.family

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of the values, in the order of ``levels``; empty if values are plain numbers."""
        return ()

    @property
    def levels(self) -> tuple[float, ...]:
        """The possible values in ascending order, if they are few; otherwise empty."""
        return ()

    @property
    def level_names(self) -> tuple[str, ...]:
        """The levels that a text form can list, as texts; empty if none are known."""
        return ()

    def label(self, value: float) -> str | float:
        """Return the label of a value, or the value itself without labels."""
        return self.labels[self.levels.index(value)] if self.labels and value in self.levels else value

    def value(self, label: object) -> float | None:
        """Return the value with this label; None if there is none."""
        text = str(label).strip()
        return self.levels[self.labels.index(text)] if text in self.labels else None

    @property
    def is_complete(self) -> bool:
        """Whether all parameters are known; otherwise ``learn`` finds them."""
        return True

    def learn(self, features: NDArray[Any], values: Floats, count: int) -> Margin:  # noqa: ARG002
        """Learn the parameters from the ``values`` (n,) of ``features`` (n,); ``count`` features exist."""
        return self

    @property
    def unit(self) -> str | None:
        """The unit of numbers, in which predictions are explained; None: that of the values themselves."""
        return None

    def to_number(self, values: Any) -> Any:
        """Convert values to numbers."""
        return values

    def to_value(self, numbers: Any) -> Any:
        """Convert numbers to the nearest possible values; the inverse of ``to_number``."""
        return numbers

    def unrounded(self, numbers: Any) -> Any:
        """Convert numbers to the units of values, without rounding or limits: strictly increasing."""
        return numbers

    def edge(self, value: float) -> float:
        """Return the number above which ``to_value`` is greater than ``value``."""
        return value

    def moments(self, mean: Any, std: Any) -> tuple[Any, Any]:
        """Return mean and standard deviation of the value of a Gaussian number with this mean and std."""
        return mean, std

    @property
    def allowed(self) -> str:
        """The possible values in words, for messages."""
        return "any number"

    def possible(self, values: Any) -> Any:
        """Return which ``values`` are possible, apart from the limits of the kind."""
        return np.full(np.shape(values), True)


@dataclass(frozen=True)
class Binary(Margin):
    """Values 0 and 1, such as wrong or right, absent or present, with or without labels.

    Parameters
    ----------
    labels_ : tuple of str, default=()
        The labels of 0 and 1.
    """

    name = "binary"
    type = KindType.BINARY
    syntax = ("binary", "binary:NO,YES")
    levels = (0.0, 1.0)
    labels_: tuple[str, ...] = ()

    @classmethod
    def parse(cls, parameters: list[str]) -> tuple[Margin, list[str]]:
        """Read the two labels."""
        labels = parse_levels(parameters[0]) if parameters else ()
        if labels and len(labels) != 2:
            raise InputError(f"binary has two labels, as in binary:no,yes; got {parameters[0]!r}")
        return cls(labels), parameters[1:]

    @property
    def text(self) -> str:
        """The labels."""
        return f":{write_levels(self.labels_)}" if self.labels_ else ""

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of 0 and 1."""
        return self.labels_

    @property
    def allowed(self) -> str:
        """The possible values in words."""
        return " or ".join(repr(label) for label in self.labels) or "0 or 1"

    def possible(self, values: Any) -> Any:
        """Return which values are 0 or 1."""
        return (values == 0) | (values == 1)


@dataclass(frozen=True)
class Rating(Margin):
    """Numbers between two fixed limits, such as 1 to 5 stars."""

    name = "rating"
    type = KindType.RATING
    syntax = ("rating:LOW:HIGH",)


@dataclass(frozen=True)
class Real(Margin):
    """Any finite numbers."""

    name = "real"
    type = KindType.REAL
    syntax = ("real", "real:CENTER:SCALE")


@dataclass(frozen=True)
class Click(Margin):
    """Numbers above 0 that are recorded only where something happened: clicks, purchases, views.

    A cell without a value is a weak zero. The value, such as a number of clicks or a time, is the confidence
    in the click: 1 is a usual one, 3 counts twice, 7 three times. Predictions are probabilities of a click.

    Parameters
    ----------
    exposure : float, default=nan
        For a new feature, the fraction of its zeros that count: 1 if it has been shown as long as known
        features, less if it is newer. By default it is estimated from the number of its clicks.
    """

    name = "click"
    type = KindType.CLICK
    syntax = ("click", "click:EXPOSURE")
    exposure: float = field(default=math.nan, compare=False)

    @classmethod
    def parse(cls, parameters: list[str]) -> tuple[Margin, list[str]]:
        """Read the exposure."""
        if not parameters:
            return cls(), []
        exposure = float(parameters[0])
        if not 0 < exposure <= 1:
            raise InputError(f"the exposure of clicks must be above 0 and at most 1; got {parameters[0]!r}")
        return cls(exposure), parameters[1:]

    @property
    def text(self) -> str:
        """The exposure, if it is given."""
        return "" if math.isnan(self.exposure) else f":{exact_text(self.exposure)}"

    @property
    def allowed(self) -> str:
        """The possible values in words."""
        return "a number above 0; cells without a click are left out"

    def possible(self, values: Any) -> Any:
        """Return which values are above 0."""
        return np.isfinite(values) & (values > 0)


@dataclass(frozen=True)
class Amount(Margin):
    """Numbers from 0 up over orders of magnitude, such as prices, durations and concentrations.

    The number of a value x is log(x + shift), so that predictions are right-skewed and never negative.

    Parameters
    ----------
    shift : float, default=nan
        The number that is added to values. By default it is learned from the data: of some shifts the one
        with the highest likelihood if log(x + shift) is Gaussian in each feature.
    """

    name = "amount"
    type = KindType.REAL
    syntax = ("amount", "amount:SHIFT", "amount:SHIFT:CENTER:SCALE")
    identity = False
    shift: float = math.nan

    @classmethod
    def parse(cls, parameters: list[str]) -> tuple[Margin, list[str]]:
        """Read the shift."""
        if not parameters:
            return cls(), []
        shift = float(parameters[0])
        if not (math.isfinite(shift) and shift >= 0):
            raise InputError(f"the shift of {cls.name} must be a number from 0 up; got {parameters[0]!r}")
        return cls(shift), parameters[1:]

    @property
    def option(self) -> str:
        """The name."""
        return self.name

    @property
    def text(self) -> str:
        """The shift, if it is known."""
        return f":{exact_text(self.shift)}" if self.is_complete else ""

    @property
    def is_complete(self) -> bool:
        """Whether the shift is known."""
        return not math.isnan(self.shift)

    def learn(self, features: NDArray[Any], values: Floats, count: int) -> Margin:
        """Return the margin with the most likely of the shifts that fit the smallest values."""
        return self if self.is_complete else replace(self, shift=likely_shift(features, values, count)[0])

    @property
    def unit(self) -> str:
        """The logarithm."""
        return f"log({self.name}{f' + {self.shift:g}' if self.shift else ''})"

    def to_number(self, values: Any) -> Any:
        """Return log(values + shift)."""
        with np.errstate(divide="ignore", invalid="ignore"):  # impossible values are found elsewhere
            return np.log(values + self.shift)

    def unrounded(self, numbers: Any) -> Any:
        """Return exp(numbers) - shift."""
        with np.errstate(over="ignore"):
            return np.exp(numbers) - self.shift

    def to_value(self, numbers: Any) -> Any:
        """Return exp(numbers) - shift, at least 0, rounded to 12 significant digits."""
        values = np.clip(self.unrounded(numbers), 0.0, LARGEST_VALUE)
        digits = 11 - np.floor(np.log10(np.clip(values + self.shift, 1e-290, 1e290)))
        return _round_to(values, digits)

    def edge(self, value: float) -> float:
        """Return log(value + shift); minus infinity below 0."""
        return math.log(value + self.shift) if value >= 0 and value + self.shift > 0 else -math.inf

    def moments(self, mean: Any, std: Any) -> tuple[Any, Any]:
        """Return the mean of the central 90 % of a shifted log-normal value, and its standard deviation."""
        variance = np.square(np.minimum(std, MAX_LOG_DEVIATION))
        deviation = np.exp(np.minimum(mean + variance / 2, MAX_LOG)) * np.sqrt(np.expm1(variance))
        return central_mean(mean, std, self.shift), deviation

    @property
    def allowed(self) -> str:
        """The possible values in words."""
        return "a number above 0" if self.shift == 0 else "a number from 0 up"

    def possible(self, values: Any) -> Any:
        """Return which values have a logarithm."""
        return np.isfinite(values) & (values >= 0) & ((values > 0) | (self.shift != 0))


@dataclass(frozen=True)
class Count(Amount):
    """Whole numbers from 0 up, over any range; the number of a count x is log(x + shift)."""

    name = "count"
    syntax = ("count", "count:SHIFT", "count:SHIFT:CENTER:SCALE")

    def to_value(self, numbers: Any) -> Any:
        """Return the nearest whole number from 0 up."""
        return np.clip(np.round(self.unrounded(numbers)), 0.0, LARGEST_VALUE)

    def moments(self, mean: Any, std: Any) -> tuple[Any, Any]:
        """Return the mean of the central 90 % of the count, and its standard deviation.

        Small counts are summed by their probabilities; above them rounding is left out.
        """
        scale = np.maximum(std, np.finfo(float).tiny)
        above = [central_share((self.edge(count) - mean) / scale) for count in range(SMALL_COUNT)]
        return sum(above) + central_mean(mean, std, self.shift + SMALL_COUNT), super().moments(mean, std)[1]

    def edge(self, value: float) -> float:
        """Return the number of the middle between two counts."""
        return math.log(math.floor(value) + 0.5 + self.shift) if value >= 0 else -math.inf

    @property
    def allowed(self) -> str:
        """The possible values in words."""
        return "a whole number from 0 up"

    def possible(self, values: Any) -> Any:
        """Return which values are whole numbers from 0 up."""
        return super().possible(values) & (values == np.round(values))


MAX_ORDINAL = 100  # levels of ordinal that are not named

SMALL_COUNT = 10  # below, the probability of each count is computed

LARGEST_VALUE = float(np.finfo(float).max)  # in place of an infinite end of an interval

MAX_LOG = 230.0  # the largest logarithm of a value: squares must not overflow

MAX_LOG_DEVIATION = 10.0  # of the logarithm of a value

CENTRAL, CENTRAL_QUANTILE = 0.9, 1.6448536269514722  # the share of a distribution whose mean is predicted


def central_mean(mean: Any, std: Any, shift: float) -> Any:
    """Return the mean of max(x - shift, 0) over the central 90 % of a log-normal x.

    ``mean`` and ``std`` are the moments of log x. The mean over all x depends on a tail that few data
    determine.
    """
    from scipy.special import ndtr

    std = np.clip(std, 1e-12, MAX_LOG_DEVIATION)
    zero = (math.log(shift) - mean) / std if shift > 0 else -np.inf
    first = np.clip(zero, -CENTRAL_QUANTILE, CENTRAL_QUANTILE)  # the quantile from which x > shift
    values = np.exp(np.minimum(mean + std**2 / 2, MAX_LOG))
    values = values * (ndtr(CENTRAL_QUANTILE - std) - ndtr(first - std))
    return np.maximum(values - shift * (ndtr(CENTRAL_QUANTILE) - ndtr(first)), 0.0) / CENTRAL


def central_share(distance: Any) -> Any:
    """Return the share of the central 90 % of a standard normal variable that is above ``distance``."""
    from scipy.special import ndtr

    inside = np.clip(distance, -CENTRAL_QUANTILE, CENTRAL_QUANTILE)
    return (ndtr(CENTRAL_QUANTILE) - ndtr(inside)) / CENTRAL


def _round_to(values: Any, digits: Any) -> Any:
    """Round to ``digits`` after the decimal point, which may be negative."""
    factor = 10.0 ** np.clip(digits, -290, 290)
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = np.round(values * factor) / factor
    return np.where(np.isfinite(rounded), rounded, values)


@dataclass(frozen=True)
class Ordinal(Margin):
    """Ordered answers, as labels or numbers, such as never, sometimes, often.

    The value of a label is its position from 1; numbers are their own values. The number of a level is its
    score, from 0 for the first to 1 for the last level. A Gaussian number becomes the level with the nearest
    score.

    Parameters
    ----------
    names : tuple of str, default=()
        The levels, in order. By default all values of the data.
    scores : tuple of float, default=()
        The scores. By default they are learned from the data: the means of a standard normal variable
        between its quantiles at the cumulative shares of the levels.
    """

    name = "ordinal"
    type = KindType.RATING
    syntax = ("ordinal", "ordinal:LEVEL,LEVEL,LEVEL")
    identity = False
    names: tuple[str, ...] = ()
    scores: tuple[float, ...] = ()

    @classmethod
    def parse(cls, parameters: list[str]) -> tuple[Margin, list[str]]:
        """Read the levels and the scores."""
        if not parameters:
            return cls(), []
        names = parse_levels(parameters[0])
        scores = tuple(float(score) for score in parameters[1].split(",")) if len(parameters) > 1 else ()
        if len(names) < 2 or (scores and (len(scores) != len(names) or not (np.diff(scores) > 0).all())):
            raise InputError("ordinal needs two levels or more, with ascending scores if any")
        margin = cls(names, scores)
        if not margin.labels and not (np.diff(margin.levels) > 0).all():
            raise InputError(f"the levels of ordinal must ascend; got {parameters[0]!r}")
        return margin, parameters[2:]

    @property
    def text(self) -> str:
        """The levels and scores, if they are known."""
        levels = f":{write_levels(self.names)}" if self.names else ""
        return levels + (":" + ",".join(map(exact_text, self.scores)) if self.scores else "")

    @property
    def option(self) -> str:
        """The text form without scores."""
        return f"{self.name}:{write_levels(self.names)}" if self.names else self.name

    @property
    def level_names(self) -> tuple[str, ...]:
        """The levels."""
        return self.names

    @property
    def is_complete(self) -> bool:
        """Whether the scores are known."""
        return bool(self.scores)

    @property
    def labels(self) -> tuple[str, ...]:
        """The levels, unless all of them are numbers."""
        return () if _numbers_of(self.names) else self.names

    @property
    def levels(self) -> tuple[float, ...]:
        """The levels as numbers, or the positions of labels from 1."""
        return _numbers_of(self.names) or tuple(float(i + 1) for i in range(len(self.names)))

    def learn(self, features: NDArray[Any], values: Floats, count: int) -> Margin:
        """Return the margin with scores learned from the shares of the levels in all ``values``."""
        if self.is_complete:
            return self
        if not self.names:
            distinct = np.unique(gather(np.unique(values).astype(np.float64)))
            if not 2 <= len(distinct) <= MAX_ORDINAL:
                raise InputError(
                    f"ordinal needs 2 to {MAX_ORDINAL} different values; the data has {len(distinct)}: name "
                    "the levels, as in ordinal:never,sometimes,often"
                )
            return Ordinal(tuple(map(exact_text, distinct.tolist()))).learn(features, values, count)
        levels = np.array(self.levels)
        counts = np.bincount(np.searchsorted(levels, values), minlength=len(levels))[: len(levels)]
        return replace(self, scores=normal_scores(global_sum(counts)))

    @property
    def edges(self) -> NDArray[np.float64]:
        """The numbers between two levels: (levels - 1,)."""
        scores = np.array(self.scores)
        return np.asarray((scores[1:] + scores[:-1]) / 2)

    @property
    def unit(self) -> str:
        """The score."""
        return "scores of levels"

    def to_number(self, values: Any) -> Any:
        """Return the scores."""
        levels, scores = np.array(self.levels), np.array(self.scores)
        return scores[np.minimum(np.searchsorted(levels, values), len(levels) - 1)]

    def to_value(self, numbers: Any) -> Any:
        """Return the levels with the nearest scores."""
        return np.array(self.levels)[np.searchsorted(self.edges, numbers)]

    def unrounded(self, numbers: Any) -> Any:
        """Interpolate between the levels."""
        scores, levels = np.array(self.scores), np.array(self.levels)
        beyond = np.minimum(numbers, 0.0) + np.maximum(numbers - 1.0, 0.0)  # keeps the order beyond the ends
        return np.interp(numbers, scores, levels) + beyond * (levels[-1] - levels[0])

    def edge(self, value: float) -> float:
        """Return the number between the last level up to ``value`` and the next one."""
        below = int(np.searchsorted(self.levels, value, side="right"))
        return float(np.concatenate([[-np.inf], self.edges, [np.inf]])[below])

    def moments(self, mean: Any, std: Any) -> tuple[Any, Any]:
        """Return mean and standard deviation of the level."""
        from scipy.special import ndtr

        levels, scale = np.array(self.levels), np.maximum(std, np.finfo(float).tiny)
        first, second = np.full(np.shape(mean), levels[0]), np.full(np.shape(mean), levels[0] ** 2)
        for edge, lower, upper in zip(self.edges, levels[:-1], levels[1:], strict=True):
            above = ndtr((mean - edge) / scale)
            first, second = first + (upper - lower) * above, second + (upper**2 - lower**2) * above
        return first, np.sqrt(np.maximum(second - first**2, 0.0))

    @property
    def allowed(self) -> str:
        """The levels in words."""
        return f"one of {', '.join(self.names)}"

    def possible(self, values: Any) -> Any:
        """Return which values are levels; all of them if the levels are not known yet."""
        return np.isin(values, self.levels) if self.names else np.full(np.shape(values), True)


@dataclass(frozen=True)
class Category(Margin):
    """Unordered options, such as A, B, C, D.

    A feature of this kind becomes one binary column per level, whose name is ``FEATURE=LEVEL``: 1 at the rows
    with this level, 0 at the rows with another level. The predicted probabilities of the levels add up to 1.

    Parameters
    ----------
    names : tuple of str, default=()
        The levels. By default all values of a feature. Columns have no levels.
    """

    name = "category"
    type = KindType.BINARY
    syntax = ("category", "category:LEVEL,LEVEL")
    levels = (0.0, 1.0)
    names: tuple[str, ...] = ()

    @classmethod
    def parse(cls, parameters: list[str]) -> tuple[Margin, list[str]]:
        """Read the levels."""
        return cls(parse_levels(parameters[0]) if parameters else ()), parameters[1:]

    @property
    def text(self) -> str:
        """The levels."""
        return f":{write_levels(self.names)}" if self.names else ""

    @property
    def level_names(self) -> tuple[str, ...]:
        """The levels."""
        return self.names

    @property
    def allowed(self) -> str:
        """The levels in words."""
        return f"one of {', '.join(self.names)}" if self.names else "0 or 1"

    def possible(self, values: Any) -> Any:
        """Return which values of a column are 0 or 1."""
        return (values == 0) | (values == 1)


def normal_scores(counts: NDArray[Any]) -> tuple[float, ...]:
    """Return the scores of levels that were observed ``counts`` (levels,) times, from 0 to 1.

    They are the means of a standard normal variable between its quantiles at the cumulative shares.

    >>> [round(score, 2) for score in normal_scores(np.array([10, 10, 10, 10]))]
    [0.0, 0.37, 0.63, 1.0]
    """
    from scipy.special import ndtri

    shares = (counts + 0.5) / (counts + 0.5).sum()
    cuts = ndtri(np.clip(np.cumsum(shares)[:-1], 1e-12, 1 - 1e-12))
    density = np.concatenate([[0.0], np.exp(-(cuts**2) / 2), [0.0]])
    means = -np.diff(density) / shares
    return tuple(((means - means[0]) / (means[-1] - means[0])).tolist())


MAX_STEPS = 100  # of a grid; values on a finer one are taken for a continuum


def grid_of(values: Floats, low: float, high: float) -> NDArray[np.float64]:
    """Return the coarsest grid from ``low`` to ``high`` with all ``values``; empty if it is too fine.

    >>> grid_of(np.array([2.0, 5.0, 4.0]), 1.0, 5.0), grid_of(np.array([1.0, 2.5]), 0.5, 2.5)
    (array([1., 2., 3., 4., 5.]), array([0.5, 1. , 1.5, 2. , 2.5]))
    >>> grid_of(np.array([1.37, 2.2, 4.718]), 1.0, 5.0)
    array([], dtype=float64)
    """
    shares = (np.unique(values.astype(np.float64)) - low) / (high - low)
    steps = np.arange(1, MAX_STEPS + 1)
    off = np.abs(shares - np.round(shares * steps[:, None]) / steps[:, None]).max(axis=1, initial=0.0)
    fits = off <= ROUNDING
    if not fits.any() or not len(shares):
        return np.empty(0)
    return np.linspace(low, high, int(steps[fits.argmax()]) + 1)


def parse_levels(text: str) -> tuple[str, ...]:
    """Read levels separated by commas, or a JSON list of texts.

    >>> parse_levels("no, yes"), parse_levels('["a, b", "c"]')
    (('no', 'yes'), ('a, b', 'c'))
    """
    try:
        levels = json.loads(text) if text.startswith("[") else text.split(",")
    except ValueError:
        raise InputError(f'the levels {text!r} are not a list such as ["A", "B"]') from None
    names = tuple(str(level).strip() for level in levels)
    if not all(names) or len(set(names)) < len(names):
        raise InputError(f"the levels {text!r} must be different texts, none of them empty")
    return names


def write_levels(names: Sequence[str]) -> str:
    """Write levels so that ``parse_levels`` reads them."""
    simple = all(not set(name) & set(',:["') and name == name.strip() for name in names)
    return ",".join(names) if simple else json.dumps(list(names), ensure_ascii=False)


@lru_cache(maxsize=1024)
def _numbers_of(names: tuple[str, ...]) -> tuple[float, ...]:
    """Return the names as numbers; empty if one of them is not a number."""
    try:
        return tuple(float(name) for name in names)
    except ValueError:
        return ()


# The kinds. To add one, write a subclass of ``Margin`` and name it here.
KINDS: dict[str, type[Margin]] = {
    kind.name: kind for kind in (Binary, Rating, Real, Count, Amount, Ordinal, Category, Click)
}

KIND_NAMES = tuple(KINDS)

BINARY, RATING, REAL = Binary(), Rating(), Real()


@lru_cache(maxsize=1024)
def margin_of(family: str) -> Margin:
    """Return the margin whose ``family`` is this text."""
    name, parameters = split_text(family)
    return KINDS[name].parse(parameters)[0]


def split_text(text: str) -> tuple[str, list[str]]:
    """Split a text form into the name of the kind and its parameters.

    >>> split_text("rating:1:5"), split_text('category:["a:b","c"]')
    (('rating', ['1', '5']), ('category', ['["a:b","c"]']))
    """
    name, colon, rest = text.partition(":")
    if name not in KINDS:
        raise InputError(f"{text!r} is not a kind ({', '.join(KINDS)}){did_you_mean(name, KINDS)}")
    end = rest.rfind("]") + 1 if rest.startswith("[") else 0
    if end:
        return name, [rest[:end], *rest[end:].split(":")[1:]]
    return name, rest.split(":") if colon else []


def exact_text(number: float) -> str:
    """Return a short text that reads back as the same number."""
    short = f"{number:.12g}"
    return short if float(short) == number else repr(float(number))


SHIFTS = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)  # in units of the smallest positive value


def likely_shift(
    features: NDArray[Any], values: Floats, count: int, *, zeros: bool = False
) -> tuple[float, float]:
    """Return the most likely shift c of log(x + c), and its log-likelihood per observation less that of x.

    The likelihood takes log(x + c), or x itself, for Gaussian in each feature, with the center and scale of
    the feature.

    Parameters
    ----------
    features : ndarray of shape (n,)
        The feature of each value.
    values : ndarray of shape (n,)
        Values from 0 up.
    count : int
        The number of features.
    zeros : bool, default=False
        Whether 0 is possible also if no value is 0, so that the shift is above 0.
    """
    values = np.asarray(values, np.float64)
    positive = values > 0
    least = -float(global_max(np.array([-values[positive].min() if positive.any() else -np.inf]))[0])
    if not np.isfinite(least):
        return 1.0, 0.0
    zeros = zeros or bool(global_sum(np.array([(~positive).sum()]))[0])
    numbers = global_sum(np.bincount(features, minlength=count)).astype(np.float64)
    total = numbers.sum()

    def log_likelihood(transformed: NDArray[np.float64], log_slopes: float) -> float:
        sums = np.bincount(features, transformed, count)
        means = (global_sum(sums) / np.maximum(numbers, 1))[features]
        squares = global_sum(np.bincount(features, (transformed - means) ** 2, count))
        # One observation of the pooled variance, so that a feature of equal values has a finite likelihood.
        variance = (squares + squares.sum() / total) / (numbers + 1)
        return float(-0.5 * (numbers * np.log(np.maximum(variance, 1e-300))).sum() + log_slopes)

    shifts = [least * share for share in SHIFTS]
    if not zeros:
        shifts.insert(0, 0.0)
    likelihoods = {}
    for shift in shifts:
        logs = np.log(values + shift)
        likelihoods[shift] = log_likelihood(logs, -float(global_sum(np.array([logs.sum()]))[0]))
    best = max(likelihoods, key=lambda shift: likelihoods[shift])
    return best, (likelihoods[best] - log_likelihood(values, 0.0)) / max(total, 1.0)
