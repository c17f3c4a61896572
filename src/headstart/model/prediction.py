"""Predict cells in the data's own units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.core.devices import move
from headstart.core.predictive import predict_cells, predict_grid
from headstart.core.types import RowStates
from headstart.display import MAX_LINES, table_html, text_table
from headstart.errors import InputError
from headstart.evaluate.plots import MissingMatplotlibError
from headstart.model.features import Feature
from headstart.model.state import ModelState
from headstart.table import Cells, Names
from headstart.table.kinds import Kinds, KindType
from headstart.training.calibration import LEVELS, USUAL_LEVEL, Calibration

if TYPE_CHECKING:
    from headstart.model.explanation import Explanation


Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Units:
    """What predictions of some features are brought to the data's own units by.

    The methods take cells of any shape (…, n); ``which`` (n,) are the positions of their features.
    """

    kinds: Kinds
    shots: Tensor  # (features,)
    factors: Tensor  # (features, levels): by what calibration multiplies intervals
    calibration: Calibration

    @classmethod
    def of(cls, fitted: ModelState, features: list[Feature]) -> Units:
        """The units of these features."""
        shots = torch.tensor([feature.shots for feature in features], dtype=torch.int64)
        factors = fitted.calibration.factor(shots, fitted.kinds_of(features)).double()
        return cls(Kinds([feature.kind for feature in features]), shots, factors, fitted.calibration)

    @property
    def reach(self) -> Numbers:
        """Of intervals of each level, relative to that of the usual level: (features, levels)."""
        return (self.factors / self.factors[:, USUAL_LEVEL, None]).numpy()

    def applied(self, mean: Tensor, std: Tensor, which: NDArray[np.int64]) -> tuple[Numbers, Numbers]:
        """Calibrated means and standard deviations, from those on the models' scale."""
        factor = self.factors[torch.from_numpy(which), USUAL_LEVEL]
        means: Numbers = mean.float().cpu().double().numpy()
        stds: Numbers = (factor * std.float().cpu()).float().double().numpy() * self.kinds.spans[which]
        binary = self.kinds.types[which] == KindType.BINARY
        if binary.any():
            shots = self.shots[torch.from_numpy(which[binary])]
            chances = self.calibration.probability(torch.from_numpy(means[..., binary]), shots).numpy()
            means[..., binary] = chances
            stds[..., binary] = np.sqrt(chances * (1 - chances))
        means = self.kinds.unscale(means, which)
        lows, highs = ends_of(self.kinds)
        return np.clip(means, lows[which], highs[which], out=means), stds


def ends_of(kinds: Kinds) -> tuple[Numbers, Numbers]:
    """The least and the largest value of each kind: two of (features,)."""
    return np.array([kind.low for kind in kinds]), np.array([kind.high for kind in kinds])


def interval(
    mean: Numbers,
    std: Numbers,
    kinds: Kinds,
    reach: Numbers | None,
    level: float,
    which: NDArray[np.int64],
) -> tuple[Numbers, Numbers]:
    """Low and high ends that hold the value with this probability: two of the shape of ``mean``.

    ``reach`` (features, levels) says how much wider intervals are than the normal's. The other parameters
    are as in ``Units``.
    """
    if not isinstance(level, (int, float)) or not 0 < level < 1:
        raise InputError(f"an interval's level must lie between 0 and 1; got {level!r}")
    from scipy.special import ndtri  # imported here: few uses of a model need SciPy

    half = ndtri(0.5 + level / 2) * std
    if reach is not None:  # by which intervals of other levels are wider or narrower than the normal's
        half = half * np.array([np.interp(level, LEVELS, own) for own in reach])[which]
    lows, highs = (ends[which] for ends in ends_of(kinds))
    low, high = np.clip(mean - half, lows, highs), np.clip(mean + half, lows, highs)
    binary, tail = kinds.types[which] == KindType.BINARY, 0.5 - level / 2
    low[..., binary] = mean[..., binary] > 1 - tail
    high[..., binary] = mean[..., binary] >= tail
    return low, high


@dataclass(frozen=True, repr=False)
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

    @property
    def _title(self) -> str:
        return f"Prediction({len(self.rows)} rows × {len(self.features)} features)"

    def _lines(self) -> tuple[list[str], list[list[str]]]:
        """Return the header and the lines of the first cells, as mean ± standard deviation."""
        more = ["…"] if len(self.features) > _SHOWN_FEATURES else []
        lines = [
            [row, *(f"{m:.4g} ± {s:.2g}" for m, s in zip(means, stds, strict=True)), *more]
            for row, means, stds in zip(
                list(self.rows)[:MAX_LINES],
                self.mean[:, :_SHOWN_FEATURES].tolist(),
                self.std[:, :_SHOWN_FEATURES].tolist(),
                strict=False,
            )
        ]
        return ["row", *list(self.features)[:_SHOWN_FEATURES], *more], lines

    def __repr__(self) -> str:
        header, lines = self._lines()
        more = [f"  … {len(self.rows) - MAX_LINES} more"] if len(self.rows) > MAX_LINES else []
        return "\n".join([self._title, *([text_table([header, *lines])] if self.mean.size else []), *more])

    def _repr_html_(self) -> str:
        return table_html(*self._lines(), self._title, total=len(self.rows))


def coded(names: Sequence[str], which: NDArray[np.integer]) -> pa.DictionaryArray:
    """The names at these positions, as a column whose dictionary holds each name once.

    Repeated names would leave random bytes in Parquet files.

    >>> coded(["a", "b", "a"], np.array([2, 1])).to_pylist()
    ['a', 'b']
    """
    every = pa.array(list(names), pa.string()).dictionary_encode()
    return pa.DictionaryArray.from_arrays(every.indices.to_numpy()[which], every.dictionary)


CPU = torch.device("cpu")

_SHOWN_FEATURES = 6  # columns of a printed prediction

_ROWS_AT_ONCE = 1024

_HEADS_AT_ONCE = 128  # whose cells are computed together, so that memory stays small


@torch.no_grad()
def predict_features(
    fitted: ModelState, rows: Names, states: RowStates, names: Sequence[Any], device: torch.device = CPU
) -> Prediction:
    """Predict the features of these names at rows of these states; the device computes."""
    features, heads = fitted.catalogue.take(names)
    units, types = Units.of(fitted, features), fitted.kinds_of(features).to(device)
    which, heads = np.arange(len(features)), move(heads, device)
    mean, std = np.empty((2, len(rows), len(features)))
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        part = slice(start, start + _ROWS_AT_ONCE)
        some = move(states.take(part), device)
        predictive = predict_grid(heads, some, types, fitted.knowledge.likelihood)
        mean[part], std[part] = units.applied(predictive.mean, predictive.std, which)
    columns = Names([feature.name for feature in features], "feature")
    return Prediction(rows, columns, units.kinds, mean, std, units.reach)


@torch.no_grad()
def predict_pairs(
    fitted: ModelState,
    rows: NDArray[np.int64],
    names: Sequence[Any],
    which: NDArray[np.int64],
    level: float,
    device: torch.device = CPU,
) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Predict single cells, as ``predict_features`` does, without the other cells of their rows.

    Cell i is that of the row at the position ``rows[i]`` and of the feature ``names[which[i]]``. Returned
    are the mean, the standard deviation, and the low and high end of the interval: four of (n,).
    """
    mean, std, low, high = found = np.empty((4, len(rows)))
    order = np.argsort(which, kind="stable")
    starts = np.searchsorted(which[order], np.arange(len(names) + 1))
    for first in range(0, len(names), _HEADS_AT_ONCE):
        last = min(first + _HEADS_AT_ONCE, len(names))
        here = order[starts[first] : starts[last]]
        features, heads = fitted.catalogue.take(names[first:last])
        own, index = np.unique(rows[here], return_inverse=True)
        indptr, at = (torch.from_numpy(each).to(device) for each in (starts[first : last + 1], index))
        cells = Cells(indptr - indptr[0], at, torch.zeros(len(here), device=device), len(own))
        heads = move(heads.to(torch.float64), device)
        states = move(fitted.roster.take(own).to(torch.float64), device)
        types, likelihood = fitted.kinds_of(features).to(device), fitted.knowledge.likelihood
        predictive = predict_cells(heads, states, cells, types, likelihood)
        units, column = Units.of(fitted, features), which[here] - first
        mean[here], std[here] = units.applied(predictive.mean, predictive.std, column)
        low[here], high[here] = interval(mean[here], std[here], units.kinds, units.reach, level, column)
    return found[0], found[1], found[2], found[3]


_MOST = 60  # lines of a picture

_UP, _DOWN, _INK = "#0072B2", "#D55E00", "#222222"


def plot_prediction(prediction: Prediction, level: float, ax: Any) -> Any:
    """Draw each cell as a point with its interval, one line per cell."""
    cells = prediction.mean.size
    if cells > _MOST:
        raise InputError(f"a picture holds up to {_MOST} cells; this prediction has {cells}: ask for fewer")
    lines = prediction.to_arrow(level).to_pylist()
    ax = _axes(ax, len(lines))
    for at, line in enumerate(lines):
        ax.plot([line["low"], line["high"]], [at, at], color=_UP, linewidth=2)
        ax.plot([line["mean"]], [at], "o", color=_INK, markersize=5)
    _label(ax, [_text(f"{line['row']} · {line['feature']}") for line in lines])
    ax.set_xlabel(f"mean and {level:.0%} interval")
    return ax


def plot_explanation(explanation: Explanation, most: int, ax: Any) -> Any:
    """Draw what each part adds, from the baseline to the prediction."""
    parts = explanation.largest(most)
    ax = _axes(ax, len(parts) + 2)
    at, value = 1, explanation.baseline
    ax.axvline(explanation.baseline, color="#bbbbbb", linewidth=1)
    for part in parts:
        ax.barh(at, part.value, left=value, color=_UP if part.value >= 0 else _DOWN)
        value, at = value + part.value, at + 1
    ax.use_sticky_edges = False  # or the first and last bar would lie on the frame
    ax.margins(x=0.08)
    ends = (0, explanation.baseline), (at, explanation.output)
    for place, end in ends:
        ax.plot([end], [place], "D", color=_INK, markersize=6)
    texts = [f"baseline {explanation.baseline:.3g}", *(part.label for part in parts)]
    _label(ax, [_text(text) for text in [*texts, f"prediction {explanation.output:.3g}"]])
    ax.set_xlabel(explanation.unit)
    ax.set_title(_text(f"{explanation.row} · {explanation.feature}"))
    return ax


def _axes(ax: Any, lines: int) -> Any:
    if ax is not None:
        return ax
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingMatplotlibError from None
    figure = Figure(figsize=(7, 1.2 + 0.3 * max(1, lines)), layout="constrained")
    return figure.subplots()


def _label(ax: Any, texts: list[str]) -> None:
    ax.set_yticks(range(len(texts)), texts)
    ax.invert_yaxis()
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)


def _text(text: str) -> str:
    """A dollar sign in a name is no formula."""
    return text.replace("$", r"\$")
