"""What predict returns: a distribution for every cell asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headstart.errors import InputError
from headstart.model.asking.units import ends_of, interval
from headstart.table.kinds import Kinds, KindType
from headstart.table.names import Names
from headstart.training.calibration import LEVELS


@dataclass(frozen=True)
class Prediction:
    """Predicted values of some rows (down) at some features (across), in the data's own units.

    For a binary feature ``mean`` is the probability of 1.
    """

    rows: Names
    features: Names
    kinds: Kinds
    mean: NDArray[np.float64]  # (rows, features)
    std: NDArray[np.float64]  # (rows, features)
    reach: NDArray[np.float64] | None = None  # (features, levels): of intervals, relative to the normal's

    def __getitem__(self, cell: tuple[object, object]) -> tuple[float, float]:
        """Mean and standard deviation of one cell, by name: ``prediction["u1", "Dune 3"]``."""
        row, feature = self.rows.position(cell[0]), self.features.position(cell[1])
        return float(self.mean[row, feature]), float(self.std[row, feature])

    def interval(self, level: float = 0.9) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Low and high ends that hold the value with this probability: two of (rows, features).

        Symmetric around the mean, as wide as calibration found that it must be, cut off at a rating's ends;
        for a binary feature the quantiles, 0 or 1.
        """
        every = np.arange(len(self.features))
        return interval(self.mean, self.std, self.kinds, self.reach, level, every)

    def quantile(self, quantile: float) -> NDArray[np.float64]:
        """The value that each cell lies below with this probability: (rows, features).

        Calibrated as intervals are: ``interval(0.9)`` reaches from ``quantile(0.05)`` to ``quantile(0.95)``.
        For a binary feature it is 0 or 1.
        """
        number = isinstance(quantile, (int, float)) and not isinstance(quantile, bool)
        if not number or not 0 < quantile < 1:
            raise InputError(f"a quantile must lie between 0 and 1; got {quantile!r}")
        if quantile == 0.5:
            binary = self.kinds.types == KindType.BINARY
            return np.where(binary, self.mean >= 0.5, self.mean)
        return self.interval(abs(2 * quantile - 1))[int(quantile > 0.5)]

    def probability_above(self, value: float) -> NDArray[np.float64]:
        """The probability that each cell's value is greater than ``value``: (rows, features).

        For ratings and reals it is that of the distribution whose quantiles ``quantile`` gives. At or beyond
        a rating's ends it is 0 or 1.
        """
        if isinstance(value, bool) or not isinstance(value, (int, float, np.number)) or value != value:
            raise InputError(f"probability_above() takes a number; got {value!r}")
        from scipy.special import ndtr, ndtri

        # Half the probability of each level lies on either side of the mean; between levels the distance
        # from the mean is interpolated as intervals do it, and beyond the last one its factor stays.
        distance = (value - self.mean) / np.maximum(self.std, np.finfo(float).tiny)
        factors = np.ones((len(self.features), len(LEVELS))) if self.reach is None else self.reach
        levels = np.concatenate([np.linspace(0, 0.999, 400), 1 - np.logspace(-3, -12, 100)])
        normal = ndtri(0.5 + levels / 2)
        inside = np.empty_like(distance)
        for column, own in enumerate(factors):
            reach = np.maximum.accumulate(normal * np.interp(levels, LEVELS, own))
            z = np.interp(np.abs(distance[:, column]), reach, normal)
            inside[:, column] = np.where(distance[:, column] < 0, 1 - ndtr(-z), 1 - ndtr(z))
        lows, highs = ends_of(self.kinds)
        inside = np.where(value >= highs, 0.0, np.where(value < lows, 1.0, inside))
        chance = self.mean if 0 <= value < 1 else np.full_like(self.mean, float(value < 0))
        return np.where(self.kinds.types == KindType.BINARY, chance, inside)

    def to_pandas(self, level: float = 0.9) -> Any:
        """The long form as a pandas frame; pandas must be installed."""
        return self.to_arrow(level).to_pandas()

    def to_polars(self, level: float = 0.9) -> Any:
        """The long form as a polars frame; polars must be installed."""
        try:
            import polars  # type: ignore[import-not-found, unused-ignore]
        except ImportError:
            raise InputError("to_polars() needs polars, which is not installed; use to_arrow()") from None
        return polars.from_arrow(self.to_arrow(level))

    def plot(self, level: float = 0.9, ax: Any = None) -> Any:
        """Draw every cell's mean and interval, up to 60 cells; needs matplotlib.

        Parameters
        ----------
        level : float, default=0.9
            The probability that an interval contains the value.
        ax : matplotlib.axes.Axes, default=None
            Where to draw; a new figure by default.

        Returns
        -------
        matplotlib.axes.Axes
            The axes that were drawn on.
        """
        from headstart.model.asking.pictures import plot_prediction

        return plot_prediction(self, level, ax)

    def to_arrow(self, level: float = 0.9) -> pa.Table:
        """Long form, one line per cell: row, feature, mean, std, low, high."""
        low, high = self.interval(level)
        rows, features = len(self.rows), len(self.features)
        return pa.table(
            {
                "row": coded(self.rows, np.repeat(np.arange(rows), features)),
                "feature": coded(self.features, np.tile(np.arange(features), rows)),
                "mean": self.mean.ravel(),
                "std": self.std.ravel(),
                "low": low.ravel(),
                "high": high.ravel(),
            }
        )

    def __repr__(self) -> str:
        return f"Prediction({len(self.rows)} rows × {len(self.features)} features)"


def coded(names: Sequence[str], which: NDArray[np.integer]) -> pa.DictionaryArray:
    """The names at these positions, as a column whose dictionary holds each name once.

    Repeated names would leave random bytes in Parquet files.

    >>> coded(["a", "b", "a"], np.array([2, 1])).to_pylist()
    ['a', 'b']
    """
    every = pa.array(list(names), pa.string()).dictionary_encode()
    return pa.DictionaryArray.from_arrays(every.indices.to_numpy()[which], every.dictionary)
