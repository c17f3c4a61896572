"""What predict returns: a distribution for every cell asked for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headstart.errors import InputError
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
        if not isinstance(level, (int, float)) or not 0 < level < 1:
            raise InputError(f"an interval's level must lie between 0 and 1; got {level!r}")
        from scipy.special import ndtri  # imported here: few uses of a model need SciPy

        reach = ndtri(0.5 + level / 2) * self.std
        if (
            self.reach is not None
        ):  # by which intervals of other levels are wider or narrower than the normal's
            reach = reach * np.array([np.interp(level, LEVELS, own) for own in self.reach])
        lows = np.array([kind.low for kind in self.kinds])
        highs = np.array([kind.high for kind in self.kinds])
        low, high = np.clip(self.mean - reach, lows, highs), np.clip(self.mean + reach, lows, highs)
        binary = self.kinds.types == KindType.BINARY
        tail = 0.5 - level / 2
        low[:, binary] = self.mean[:, binary] > 1 - tail
        high[:, binary] = self.mean[:, binary] >= tail
        return low, high

    def to_arrow(self, level: float = 0.9) -> pa.Table:
        """Long form, one line per cell: row, feature, mean, std, low, high."""
        low, high = self.interval(level)
        rows, features = len(self.rows), len(self.features)
        return pa.table(
            {
                "row": pa.DictionaryArray.from_arrays(
                    np.repeat(np.arange(rows, dtype=np.int32), features),
                    pa.array(list(self.rows), pa.string()),
                ),
                "feature": pa.DictionaryArray.from_arrays(
                    np.tile(np.arange(features, dtype=np.int32), rows),
                    pa.array(list(self.features), pa.string()),
                ),
                "mean": self.mean.ravel(),
                "std": self.std.ravel(),
                "low": low.ravel(),
                "high": high.ravel(),
            }
        )

    def __repr__(self) -> str:
        return f"Prediction({len(self.rows)} rows × {len(self.features)} features)"
