"""The predictions of cells that a user holds, in the data's own units: ``Prediction``.

Means, intervals, quantiles and draws of values, the probabilities of levels, and tables of them.
``cell_predictions`` computes a ``Prediction`` from a model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headstart.display import MAX_LINES, table_html, text_table
from headstart.errors import InputError, guard_methods, option_name
from headstart.model.plots import plot_prediction
from headstart.table import Names
from headstart.table.arrow_columns import dictionary_column, number_column, text_column
from headstart.table.kinds import Kind, Kinds, KindType, column_name
from headstart.table.margins import RATING, Category, Ordinal, grid_of
from headstart.training.calibration import LEVELS

if TYPE_CHECKING:
    from headstart.model.features import Feature, FeatureStore
    from headstart.table import Table

Numbers = NDArray[np.float64]

_MAX_COLUMNS = 6  # features of a printed prediction


def interval_ends(mean: Any, half_width: Any, kind: Any) -> tuple[Any, Any]:
    """Return the ends of an interval around the mean, clipped at the limits of the kind."""
    low = np.minimum(np.maximum(mean - half_width, kind.low), kind.high)
    return low, np.minimum(np.maximum(mean + half_width, kind.low), kind.high)


def binary_ends(probability: Any, level: float) -> tuple[Any, Any]:
    """Return the quantiles of a binary value that contain it with probability ``level``, each 0 or 1.

    A category has no quantiles: NaN stays NaN.
    """
    tail, missing = 0.5 - level / 2, probability * 0.0
    return (probability > 1 - tail) + missing, (probability >= tail) + missing


MAX_LEVEL = 1 - 1e-9  # nothing is known of tails beyond, and an interval of nearly 1 would be infinite


def require_level(level: object) -> None:
    """Raise an error if ``level`` is not the probability of an interval."""
    if not _is_share(level):
        raise InputError(f"an interval's level must lie between 0 and 1; got {level!r}")
    if level > MAX_LEVEL:  # type: ignore[operator]
        raise InputError(f"an interval's level must be at most 0.999999999; got {level!r}")


def _is_share(value: Any) -> bool:
    number = isinstance(value, (int, float, np.floating)) and not isinstance(value, bool)
    return number and bool(0 < value < 1)


def normal_half_width(level: float) -> float:
    """Return the half-width of the interval of probability ``level`` of the standard normal distribution."""
    return NormalDist().inv_cdf(0.5 + level / 2)


class _KindArrays(NamedTuple):
    """The offsets, spans and limits of the kinds of cells."""

    offset: Numbers
    span: Numbers
    low: Numbers
    high: Numbers


def kind_arrays(kinds: Kinds, which: NDArray[np.int64]) -> _KindArrays:
    """Return the offsets, spans and limits of the kinds of the features ``which`` (n,): (n,) each."""
    parts = kinds.offsets, kinds.spans, kinds.lows, kinds.highs
    return _KindArrays(*(part[which] for part in parts))


def at_level(widths: Numbers, level: float) -> Numbers:
    """Interpolate ``widths`` (…, levels) between ``LEVELS``, constantly beyond them: (…).

    An interval is at least as wide as those of lower levels.

    >>> round(float(at_level(np.array([1.0, 1.0, 1.0, 1.0, 0.1]), 0.99) * normal_half_width(0.99)), 6)
    1.959964
    """
    right = min(max(int(np.searchsorted(LEVELS, level)), 1), len(LEVELS) - 1)
    share = (level - LEVELS[right - 1]) / (LEVELS[right] - LEVELS[right - 1])
    left_widths, right_widths = widths[..., right - 1], widths[..., right]
    interpolated = left_widths + min(max(share, 0.0), 1.0) * (right_widths - left_widths)
    lower = int(np.searchsorted(_LOWER_LEVELS, level - _SAME_LEVEL))
    if lower == 0:
        return interpolated
    return np.maximum(interpolated, _widest(widths)[..., lower - 1] / normal_half_width(level))


# Levels between which intervals are compared with those of lower levels.
_LOWER_LEVELS = np.linspace(LEVELS[0], LEVELS[-1], 50)
_LOWER_HALF_WIDTHS = np.array([normal_half_width(level) for level in _LOWER_LEVELS])
_LOWER_SHARES = np.stack([np.interp(_LOWER_LEVELS, LEVELS, unit) for unit in np.eye(len(LEVELS))])
_SAME_LEVEL = 1e-6  # a smaller difference of levels is rounding


def _widest(widths: Numbers) -> Numbers:
    """Return the largest half-width of the intervals up to each of ``_LOWER_LEVELS``: (…, levels)."""
    return np.maximum.accumulate(widths @ _LOWER_SHARES * _LOWER_HALF_WIDTHS, axis=-1)


def interval(
    mean: Numbers,
    std: Numbers,
    kinds: Kinds,
    interval_factors: Numbers | None,
    level: float,
    which: NDArray[np.int64],
) -> tuple[Numbers, Numbers]:
    """Return the ends of intervals that contain the value with probability ``level``.

    Parameters
    ----------
    mean, std : ndarray of shape (…, n)
        The predicted means and standard deviations of numbers.
    kinds : Kinds
        The kinds of the features.
    interval_factors : ndarray of shape (features, levels) or None
        The widths of intervals relative to the normal distribution, at ``LEVELS``.
    level : float
        The probability.
    which : ndarray of shape (n,)
        The features of the cells.

    Returns
    -------
    low, high : ndarray of shape (…, n)
        The ends of the intervals.
    """
    require_level(level)
    half_width = normal_half_width(level) * std
    if interval_factors is not None:
        half_width = half_width * at_level(interval_factors, level)[which]
    low, high = interval_ends(mean, half_width, kind_arrays(kinds, which))
    binary = kinds.types[which] == KindType.BINARY
    low[..., binary], high[..., binary] = binary_ends(mean[..., binary], level)
    return kinds.values(low, which), kinds.values(high, which)


@guard_methods
@dataclass(frozen=True, repr=False)
class Prediction:
    """Predictions of some rows at some features, in the data's own units.

    ``prediction["u1", "Dune 3"]`` is the mean and the standard deviation of one cell. A category, whose
    levels have no order, has no mean, standard deviation and interval: they are NaN. ``probabilities`` has
    the probabilities of its levels, and ``labels`` the most probable one.

    Attributes
    ----------
    rows, features : Names
        The names of the rows and features.
    kinds : Kinds
        The kinds of the features.
    center, scale : ndarray of shape (rows, features)
        The calibrated mean and standard deviation of every cell's number, which is the value itself unless
        the kind has another margin (``Margin``). For a binary feature the mean is the probability of 1.
    interval_factors : ndarray of shape (features, levels) or None
        The widths of intervals relative to the normal distribution, for the levels of the calibration.
    observed : sequence of ndarray
        The numbers that each feature has observed, from which ``probabilities`` knows its usual values; empty
        if they are not known.
    chances : mapping of int to ndarray of shape (rows, levels)
        The probabilities of the levels of each category, by the position of the feature.
    not_applicable : ndarray of shape (rows, features) or None
        The cells whose feature does not apply to their row: all their numbers are NaN. None: no cell.
    """

    rows: Names
    features: Names
    kinds: Kinds
    center: NDArray[np.float64]
    scale: NDArray[np.float64]
    interval_factors: NDArray[np.float64] | None = None
    observed: Sequence[NDArray[np.float64]] = field(default=(), repr=False)
    chances: Mapping[int, NDArray[np.float64]] = field(default_factory=dict, repr=False)
    not_applicable: NDArray[np.bool_] | None = field(default=None, repr=False)

    @property
    def mean(self) -> NDArray[np.float64]:
        """The mean of every cell's value: (rows, features). For a binary feature, the probability of 1."""
        return self._moments[0]

    @property
    def std(self) -> NDArray[np.float64]:
        """The standard deviation of every cell's value: (rows, features)."""
        return self._moments[1]

    @cached_property
    def _moments(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        mean, std = self.kinds.moments(self.center, self.scale, np.arange(len(self.features)))
        return self._applicable(mean), self._applicable(std)

    def _applicable(self, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return numbers (…, rows, features) with NaN at the cells that are not applicable."""
        return numbers if self.not_applicable is None else np.where(self.not_applicable, np.nan, numbers)

    def __getitem__(self, cell: tuple[object, object]) -> tuple[float, float]:
        """Return the mean and standard deviation of one cell, given by a row and a feature."""
        if not (isinstance(cell, tuple) and len(cell) == 2):
            raise InputError(
                f"a cell is a row and a feature, as prediction['u17', 'Alien']; got {type(cell).__name__}"
            )
        row, feature = self.rows.position(cell[0]), self.features.position(cell[1])
        return float(self.mean[row, feature]), float(self.std[row, feature])

    def interval(self, level: float = 0.9) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the ends of intervals that contain the value with probability ``level``.

        Intervals are calibrated, and clipped at the limits of a rating. They are symmetric around the mean
        for ratings and reals, and right-skewed for counts and amounts. For a binary feature the ends are
        quantiles, 0 or 1. For an ordinal feature they are those of the fewest consecutive levels whose
        ``probabilities`` add up to ``level`` or more: as levels are few, such an interval contains the value
        more often than it says.

        Returns
        -------
        low, high : ndarray of shape (rows, features)
            The ends of the intervals.
        """
        low, high = self._quantiles(level)
        for position, kind in enumerate(self.kinds):
            if isinstance(kind.margin, Ordinal):
                chances = self.probabilities(self.features[position])
                ends = fewest_levels(np.array(kind.margin.levels), chances, level)
                low[:, position], high[:, position] = ends
        return self._applicable(low), self._applicable(high)

    def _quantiles(self, level: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the quantiles at 0.5 - level / 2 and 0.5 + level / 2 of every cell's value."""
        which = np.arange(len(self.features))
        return interval(self.center, self.scale, self.kinds, self.interval_factors, level, which)

    def quantile(self, quantile: float) -> NDArray[np.float64]:
        """Return the quantile of every cell's value: (rows, features).

        Quantiles have the calibration of intervals: ``interval(0.9)`` is ``quantile(0.05)`` and
        ``quantile(0.95)``, except for an ordinal feature. For a binary feature a quantile is 0 or 1.
        """
        if not _is_share(quantile):
            raise InputError(f"a quantile must lie between 0 and 1; got {quantile!r}")
        if abs(2 * quantile - 1) > MAX_LEVEL:
            raise InputError(f"a quantile must be at least 5e-10 away from 0 and 1; got {quantile!r}")
        if quantile == 0.5:
            binary = self.kinds.types == KindType.BINARY
            median = np.where(binary & np.isfinite(self.center), self.center >= 0.5, self.center)
            return self._applicable(np.asarray(self.kinds.values(median, np.arange(len(self.features)))))
        return self._applicable(self._quantiles(abs(2 * quantile - 1))[int(quantile > 0.5)])

    def probability_above(self, value: float) -> NDArray[np.float64]:
        """Return the probability that each cell's value is greater than ``value``: (rows, features).

        For all kinds but binary it is the inverse of ``quantile``. At and beyond the limits of a rating it is
        0 or 1.
        """
        if isinstance(value, bool) or not isinstance(value, (int, float, np.number)) or value != value:
            raise InputError(f"probability_above() takes a number; got {value!r}")
        above = self._above(np.array([kind.margin.edge(float(value)) for kind in self.kinds]))
        binary = self.center if 0 <= value < 1 else float(value < 0) + 0.0 * self.center
        return self._applicable(np.where(self.kinds.types == KindType.BINARY, binary, above))

    def take_features(self, positions: NDArray[np.int64]) -> Prediction:
        """Return the prediction of the features at these positions."""
        return replace(
            self,
            features=self.features.take(positions),
            kinds=self.kinds.take(positions),
            center=self.center[:, positions],
            scale=self.scale[:, positions],
            interval_factors=None if self.interval_factors is None else self.interval_factors[positions],
            observed=_take_observed(self.observed, positions),
            chances={new: self.chances[old] for new, old in enumerate(positions) if old in self.chances},
            not_applicable=None if self.not_applicable is None else self.not_applicable[:, positions],
        )

    def levels(self, feature: object) -> list[str | float]:
        """Return the levels of a feature, in the order of ``probabilities``.

        Parameters
        ----------
        feature : str or int
            A feature of the prediction.
        """
        position, levels, _ = self._levels_of(feature, None)
        margin = self.kinds[position].margin
        return list(margin.names) if isinstance(margin, Category) else [margin.label(x) for x in levels]

    def probabilities(self, feature: object, values: Sequence[float] | None = None) -> NDArray[np.float64]:
        """Return the probability of every level of a feature at every row; they add up to 1.

        The distribution of an ordinal feature or a rating is that of ``quantile``, multiplied by the ratio
        of the frequencies of the levels in the feature's own observations to those of a Gaussian variable:
        so a question that is answered only with 1 or 5 has little probability around 3.

        Parameters
        ----------
        feature : str or int
            A feature of the prediction.
        values : list of float, default=None
            The possible values of a rating or count; by default the whole numbers between the limits of a
            rating, or the grid of observed ratings, such as half stars. Other kinds have their own levels.

        Returns
        -------
        ndarray of shape (rows, levels)
            The probabilities, in the order of ``levels``.
        """
        position, _, edges = self._levels_of(feature, values)
        if position in self.chances:
            return self.chances[position]
        if self.kinds.types[position] == KindType.BINARY:
            return np.stack([1 - self.center[:, position], self.center[:, position]], axis=1)
        part = self.take_features(np.array([position]))
        above = [part._above(np.array([edge]))[:, 0] for edge in edges]
        tails = np.stack([np.ones(len(self.rows)), *above, np.zeros(len(self.rows))], axis=1)
        chances = np.maximum(-np.diff(tails, axis=1), MIN_CHANCE)
        if len(self.observed):
            chances = chances * level_ratios(self.observed[position], edges)
        chances = np.asarray(chances / chances.sum(axis=1, keepdims=True))
        return chances if self.not_applicable is None else part._applicable(chances)

    def labels(self, feature: object) -> list[str | float]:
        """Return the most probable level of a feature at every row, or "not applicable".

        Parameters
        ----------
        feature : str or int
            A feature of the prediction with levels: a category, ordinal or binary feature, or a rating.
        """
        levels, chances = self.levels(feature), self.probabilities(feature)
        best = [(line.argmax(), np.isfinite(line).all()) for line in chances]
        return [levels[position] if known else NOT_APPLICABLE for position, known in best]

    @property
    def labelled(self) -> list[str]:
        """The features whose values are labels: categories, and ordinal and binary features with labels."""
        return [
            name
            for position, (name, kind) in enumerate(zip(self.features, self.kinds, strict=True))
            if position in self.chances or kind.margin.labels
        ]

    def _levels_of(
        self, feature: object, values: Sequence[float] | None
    ) -> tuple[int, list[float], list[float]]:
        """Return the position of a feature, its levels, and the numbers between two levels."""
        position = self.features.position(feature)
        kind = self.kinds[position]
        if values is not None and position in self.chances:
            raise InputError(
                f"feature {self.features[position]!r} is a category with its own levels: leave out "
                f"{option_name('values')}"
            )
        if values is not None:
            levels = sorted(float(value) for value in values)
        elif kind.margin.levels:
            levels = list(kind.margin.levels)
        elif not (levels := self._grid(position)):
            raise InputError(
                f"feature {self.features[position]!r} is {kind}: give the values whose probabilities to "
                "compute, as values=[0, 1, 2]"
            )
        if kind.margin.identity:  # a number counts for the nearest value
            return position, levels, ((np.array(levels[1:]) + levels[:-1]) / 2).tolist()
        return position, levels, [kind.margin.edge(level) for level in levels[:-1]]

    def _grid(self, position: int) -> list[float]:
        """Return the possible values of a rating; empty if they are a continuum, and for other kinds.

        They are whole numbers, or the grid of the values that features of its kind have observed.
        """
        kind = self.kinds[position]
        if kind.margin != RATING:
            return []
        observed = np.empty(0)
        if isinstance(self.observed, ObservedValues):
            observed = self.observed.of_kind(kind, position)
        elif len(self.observed):
            same = [self.observed[i] for i, other in enumerate(self.kinds) if other == kind]
            observed = np.concatenate(same)
        if kind.span <= MAX_LEVELS and float(kind.low).is_integer() and not (observed % 1).any():
            return [float(value) for value in np.arange(kind.low, kind.high + 0.5)]
        enough = len(observed) >= _ENOUGH_VALUES
        return grid_of(observed, kind.low, kind.high).tolist() if enough else []

    def _above(self, edges: Numbers) -> NDArray[np.float64]:
        """Return the probability that each cell's number is greater than the ``edges`` (features,)."""
        from scipy.special import ndtr, ndtri

        # The distance of the edge from the mean is converted to standard normal units z, by the half-widths
        # of intervals at many levels.
        with np.errstate(over="ignore"):  # infinitely many deviations from the mean
            distance = (edges - self.center) / np.maximum(self.scale, np.finfo(float).tiny)
        factors = (
            np.ones((len(self.features), len(LEVELS)))
            if self.interval_factors is None
            else self.interval_factors
        )
        levels = np.concatenate([np.linspace(0, 0.999, 400), 1 - np.logspace(-3, -12, 100)])
        normal = ndtri(0.5 + levels / 2)
        above = np.empty_like(distance)
        for column, widths in enumerate(factors):
            half_widths = np.maximum.accumulate(normal * np.interp(levels, LEVELS, widths))
            z = np.interp(np.abs(distance[:, column]), half_widths, normal)
            above[:, column] = np.where(distance[:, column] < 0, 1 - ndtr(-z), 1 - ndtr(z))
        return np.where(edges >= self.kinds.highs, 0.0, np.where(edges < self.kinds.lows, 1.0, above))

    def sample(self, n: int = 1, random_state: int = 0) -> NDArray[np.float64]:
        """Draw ``n`` values of every cell, independently of each other: (n, rows, features).

        A draw of a category is the position of a level in ``levels``. ``Headstart.sample`` draws cells
        jointly.
        """
        if isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n < 1:
            raise InputError(f"sample() takes a whole number n from 1 up; got {n!r}")
        return self.values_at(np.random.default_rng(random_state).random((int(n), *self.center.shape)))

    def values_at(self, uniform: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return possible values of all cells, their quantiles at ``uniform``: (…, rows, features).

        Quantiles have the calibration of intervals. Levels, and the grid of observed ratings, have their
        ``probabilities``; a click is 1, no click 0.
        """
        from scipy.special import ndtri

        levels = np.abs(2 * uniform - 1)
        half_width = ndtri(0.5 + levels / 2) * self.scale
        if self.interval_factors is not None:
            lower = np.searchsorted(_LOWER_LEVELS, levels - _SAME_LEVEL)
            for column, widths in enumerate(self.interval_factors):
                half_width[..., column] *= np.interp(levels[..., column], LEVELS, widths)
                least = np.append(0.0, _widest(widths))[lower[..., column]] * self.scale[..., column]
                half_width[..., column] = np.maximum(half_width[..., column], least)
        which = np.arange(len(self.features))
        low, high = interval_ends(self.center, half_width, kind_arrays(self.kinds, which))
        drawn = self.kinds.values(np.where(uniform < 0.5, low, high), which)
        events = np.isin(self.kinds.types, (KindType.BINARY, KindType.CLICK))
        drawn = np.where(events, uniform >= 1 - self.center, drawn)
        for position, name in enumerate(self.features):
            values = np.array(self._values_drawn(position))
            if len(values):
                below = self.probabilities(name).cumsum(axis=1)[:, :-1]
                at = sum(uniform[..., position] >= edge for edge in below.T)
                drawn[..., position] = values[at]
        return self._applicable(drawn)

    def _values_drawn(self, position: int) -> list[float]:
        """Return the values of a feature that are drawn by their probabilities; empty if there are none."""
        margin = self.kinds[position].margin
        if position in self.chances:
            return np.arange(float(self.chances[position].shape[1])).tolist()
        if isinstance(margin, Ordinal):
            return list(margin.levels)
        return self._grid(position) if len(self.observed) else []

    def to_pandas(self, level: float = 0.9) -> Any:
        """Return the long form as a pandas frame; pandas must be installed."""
        return self.to_arrow(level).to_pandas()

    def to_polars(self, level: float = 0.9) -> Any:
        """Return the long form as a polars frame; polars must be installed."""
        try:
            import polars  # type: ignore[import-not-found, unused-ignore]
        except ImportError:
            raise InputError("to_polars() needs polars, which is not installed; use to_arrow()") from None
        return polars.from_arrow(self.to_arrow(level))

    def plot(self, level: float = 0.9, ax: Any = None) -> Any:
        """Draw the mean and interval of every cell, up to 60 cells; needs matplotlib.

        Parameters
        ----------
        level : float, default=0.9
            The probability that an interval contains the value.
        ax : matplotlib.axes.Axes, default=None
            The axes to draw on; a new figure by default.

        Returns
        -------
        matplotlib.axes.Axes
            The axes with the plot.
        """
        return plot_prediction(self, level, ax)

    def to_arrow(self, level: float = 0.9) -> pa.Table:
        """Return the long form, one line per cell: row, feature, mean, std, low, high.

        If some features have labels, also the most probable label (``label``) and its ``probability``.
        """
        low, high = self.interval(level)
        rows, features = len(self.rows), len(self.features)
        return pa.table(
            {
                "row": dictionary_column(self.rows, np.repeat(np.arange(rows), features)),
                "feature": dictionary_column(self.features, np.tile(np.arange(features), rows)),
                "mean": number_column(self.mean.ravel()),
                "std": number_column(self.std.ravel()),
                "low": number_column(low.ravel()),
                "high": number_column(high.ravel()),
                **self._label_columns(),
            }
        )

    def to_wide(self, observed: Table | Mapping[str, Mapping[str, float]] | None = None) -> pa.Table:
        """Return the wide form: a column ``row``, and one column per feature with the means.

        A category has its most probable level.

        Parameters
        ----------
        observed : Table or dict, default=None
            Observations, such as ``model.table()`` or ``{row: {feature: value}}``. Their cells have the
            observed values.

        Examples
        --------
        >>> from headstart import Headstart
        >>> from headstart.datasets import synthetic_ratings
        >>> table = synthetic_ratings(rows=60, features=20, density=0.5)
        >>> model = Headstart(adapter="bayes", quiet=True).fit(table)
        >>> filled = model.predict(["row 1", "row 0"], ["film 3", "film 2"]).to_wide(observed=table)
        >>> filled["row"].to_pylist(), filled.column_names
        (['row 1', 'row 0'], ['row', 'film 3', 'film 2'])
        """
        values = self.mean.copy()
        if isinstance(observed, Mapping):
            for line, row in enumerate(self.rows):
                values_of_row = observed.get(row, {})
                for column, feature in enumerate(self.features):
                    if column not in self.chances:
                        values[line, column] = values_of_row.get(feature, values[line, column])
        elif observed is not None:
            lines, columns = (
                np.array([ours.position(name) if name in ours else -1 for name in theirs], dtype=np.int64)
                for ours, theirs in ((self.rows, observed.rows), (self.features, observed.features))
            )
            at = lines[observed.row_index], columns[observed.feature_index]
            inside = (at[0] >= 0) & (at[1] >= 0)
            values[at[0][inside], at[1][inside]] = observed.values[inside]
        arrays = [text_column(self.rows), *map(number_column, values.T)]
        for position in self.chances:
            arrays[position + 1] = text_column(self._wide_labels(position, observed))
        return pa.table(arrays, names=["row", *self.features])

    def _wide_labels(
        self, position: int, observed: Table | Mapping[str, Mapping[str, float]] | None
    ) -> list[str]:
        """Return the levels of a category in the wide form: observed ones, or else the most probable."""
        name = self.features[position]
        labels = dict(zip(self.rows, map(str, self.labels(name)), strict=True))
        if isinstance(observed, Mapping):
            labels |= {
                row: str(values[name]) for row, values in observed.items() if name in values and row in labels
            }
        elif observed is not None:
            for level in map(str, self.levels(name)):
                if (column := column_name(name, level)) in observed.features:
                    answers = observed.observations_of(column).items()
                    labels |= {row: level for row, value in answers if value == 1 and row in labels}
        return [labels[row] for row in self.rows]

    def _label_columns(self) -> dict[str, pa.Array]:
        """Return the most probable label of each cell and its probability; nothing without labels.

        The label of a cell that is not applicable says so, also without other labels.
        """
        if not (names := self.labelled) and self.not_applicable is None:
            return {}
        labels = np.full((len(self.rows), len(self.features)), None, dtype=object)
        best = np.full(labels.shape, np.nan)
        for name in names:
            position = self.features.position(name)
            labels[:, position], best[:, position] = self.labels(name), self.probabilities(name).max(axis=1)
        if self.not_applicable is not None:
            labels[self.not_applicable] = NOT_APPLICABLE
        missing = np.isnan(best.ravel())
        return {
            "label": text_column(labels.ravel().tolist()),
            "probability": pa.array(best.ravel(), mask=missing),
        }

    def probabilities_to_arrow(self) -> pa.Table:
        """Return one line per cell and level of features with labels: row, feature, level, probability."""
        parts = [pa.schema(_LEVEL_FIELDS).empty_table()]
        for name in self.labelled:
            levels, rows = [str(level) for level in self.levels(name)], list(self.rows)
            columns = [
                np.repeat(rows, len(levels)).tolist(),
                [name] * (len(rows) * len(levels)),
                levels * len(rows),
                self.probabilities(name).ravel(),
            ]
            parts.append(pa.table(columns, schema=pa.schema(_LEVEL_FIELDS)))
        return pa.concat_tables(parts)

    @property
    def _title(self) -> str:
        return f"Prediction({len(self.rows)} rows × {len(self.features)} features)"

    def _lines(self) -> tuple[list[str], list[list[str]]]:
        """Return the header and the lines of the first cells.

        A cell is the mean ± the standard deviation, of a feature with labels the most probable one.
        """
        more = ["…"] if len(self.features) > _MAX_COLUMNS else []
        shown = self.take_features(np.arange(min(len(self.features), _MAX_COLUMNS)))
        means, stds = shown.mean[:MAX_LINES].tolist(), shown.std[:MAX_LINES].tolist()
        cells = [
            [f"{m:.4g} ± {s:.2g}" for m, s in zip(*pair, strict=True)]
            for pair in zip(means, stds, strict=True)
        ]
        for name in shown.labelled:
            position, chances = shown.features.position(name), shown.probabilities(name)[:MAX_LINES]
            for line, label in enumerate(shown.labels(name)[:MAX_LINES]):
                cells[line][position] = f"{label} ({chances[line].max():.0%})"
        if shown.not_applicable is not None:
            for line, position in np.argwhere(shown.not_applicable[:MAX_LINES]):
                cells[line][position] = NOT_APPLICABLE
        lines = [[row, *cell, *more] for row, cell in zip(self.rows, cells, strict=False)]
        return ["row", *list(self.features)[:_MAX_COLUMNS], *more], lines

    def __repr__(self) -> str:
        header, lines = self._lines()
        more = [f"  … {len(self.rows) - MAX_LINES} more"] if len(self.rows) > MAX_LINES else []
        return "\n".join([self._title, *([text_table([header, *lines])] if self.mean.size else []), *more])

    def _repr_html_(self) -> str:
        return table_html(*self._lines(), self._title, total=len(self.rows))


_LEVEL_FIELDS = [
    ("row", pa.string()),
    ("feature", pa.string()),
    ("level", pa.string()),
    ("probability", pa.float64()),
]

NOT_APPLICABLE = "not applicable"  # in place of the prediction of a cell

MAX_LEVELS = 20  # steps of a rating whose values are taken for whole numbers

_ENOUGH_VALUES = 30  # observed ratings that show on which grid they are

_FEATURES_READ = 100  # features whose observed ratings are read for their grid

_ROUNDING = 1e-9  # of a sum of probabilities

MIN_CHANCE = 1e-9  # of a level, before the probabilities are divided by their sum

USUAL_OBSERVATIONS = 10.0  # as if this number of observations had been made with the expected frequencies


class ObservedValues(Sequence[NDArray[np.float64]]):
    """The values of each feature, which are read only where they are needed."""

    def __init__(self, features: Sequence[Feature], store: FeatureStore) -> None:
        self._features, self._store = features, store

    def __len__(self) -> int:
        return len(self._features)

    def __getitem__(self, position):  # type: ignore[no-untyped-def]  # int -> array
        return self._features[position].values

    def take(self, positions: NDArray[np.int64]) -> ObservedValues:
        """Return the values of the features at these ``positions``."""
        return ObservedValues([self._features[position] for position in positions], self._store)

    def of_kind(self, kind: Kind, position: int) -> NDArray[np.float64]:
        """Return values of this kind: of the feature at ``position`` and of some features of the model."""
        others = (self._store[name] for name in islice(self._store, _FEATURES_READ))
        return np.concatenate([self[position], *(other.values for other in others if other.kind == kind)])

    def __reduce__(self) -> tuple[object, ...]:
        return list, (list(self),)


def _take_observed(
    observed: Sequence[NDArray[np.float64]], positions: NDArray[np.int64]
) -> Sequence[NDArray[np.float64]]:
    """Return the values of the features at these ``positions``."""
    if isinstance(observed, ObservedValues):
        return observed.take(positions)
    return [observed[position] for position in positions] if len(observed) else ()


def level_ratios(observed: Numbers, edges: Sequence[float]) -> Numbers:
    """Return the ratio of observed to expected frequencies of each level: (levels,).

    The expected frequencies are those of a Gaussian variable with the mean and variance of the observations.

    Parameters
    ----------
    observed : ndarray of shape (n,)
        The numbers of a feature's observations.
    edges : sequence of float
        The numbers between two levels, ascending.
    """
    from scipy.special import ndtr

    if len(observed) < 2 or np.ptp(observed) == 0:
        return np.ones(len(edges) + 1)
    tails = ndtr((np.array(edges) - observed.mean()) / observed.std())
    expected = np.maximum(np.diff(np.concatenate([[0.0], tails, [1.0]])), MIN_CHANCE)
    counts = np.bincount(np.searchsorted(edges, observed), minlength=len(edges) + 1)
    shares = (counts + USUAL_OBSERVATIONS * expected) / (len(observed) + USUAL_OBSERVATIONS)
    return shares / expected


def fewest_levels(levels: Numbers, chances: Numbers, level: float) -> tuple[Numbers, Numbers]:
    """Return the first and the last of the fewest consecutive levels with a probability of ``level`` or more.

    Of equally many levels, the most probable ones are chosen.

    Parameters
    ----------
    levels : ndarray of shape (levels,)
        The levels, ascending.
    chances : ndarray of shape (rows, levels)
        Their probabilities, which add up to 1.
    level : float
        The probability.

    Examples
    --------
    >>> fewest_levels(np.array([1.0, 2.0, 3.0]), np.array([[0.05, 0.8, 0.15], [0.92, 0.08, 0.0]]), 0.9)
    (array([2., 1.]), array([3., 1.]))
    """
    below = np.concatenate([np.zeros((len(chances), 1)), chances.cumsum(axis=1)], axis=1)
    first = np.zeros(len(chances), dtype=np.int64)
    last = first + len(levels) - 1
    for count in range(len(levels) - 1, 0, -1):  # shorter runs replace longer ones
        inside = below[:, count:] - below[:, :-count]
        start = inside.argmax(axis=1)
        enough = inside.max(axis=1) >= level - _ROUNDING
        first, last = np.where(enough, start, first), np.where(enough, start + count - 1, last)
    return levels[first], levels[last]
