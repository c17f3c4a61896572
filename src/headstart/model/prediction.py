"""Predict cells in the data's own units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.core.devices import move
from headstart.core.predictive import predict_cell, predict_cells, predict_grid
from headstart.core.types import OneHead, OneState, RowStates
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

_LEAST_CHANCE = 1e-4  # probabilities are kept this far from 0 and 1 before they are calibrated


# -- calibration and units, elementwise: for arrays of cells and for the numbers of a single cell -----


def _to_units(mean: Any, std: Any, factor: Any, kind: Any) -> tuple[Any, Any]:
    """Convert a Gaussian prediction to the data's own units; ``kind`` has offset, span, low and high."""
    std = _rounded(factor * _rounded(std)) * kind.span
    return np.minimum(np.maximum(_rounded(mean) * kind.span + kind.offset, kind.low), kind.high), std


def _calibrate_probability(chance: Any, slope: Any, shift: Any) -> tuple[Any, Any]:
    """Return the calibrated probability of 1, and its standard deviation."""
    chance = np.minimum(np.maximum(_rounded(chance), _LEAST_CHANCE), 1 - _LEAST_CHANCE)
    logit = np.log(chance / (1 - chance)) * slope + shift
    mean = 1 / (1 + np.exp(-logit))
    return mean, np.sqrt(mean * (1 - mean))


def _interval_ends(mean: Any, half: Any, kind: Any) -> tuple[Any, Any]:
    """Return the ends of an interval around the mean, cut off at the ends of the kind."""
    low = np.minimum(np.maximum(mean - half, kind.low), kind.high)
    return low, np.minimum(np.maximum(mean + half, kind.low), kind.high)


def _binary_ends(chance: Any, level: float) -> tuple[Any, Any]:
    """Return the quantiles of a binary value, 0 or 1."""
    tail = 0.5 - level / 2
    return chance > 1 - tail, chance >= tail


def _rounded(numbers: Any) -> Any:
    """Round to single precision, so that rounding errors of the computation do not show."""
    return np.float32(numbers).astype(np.float64)


def _normal_half_width(level: float) -> float:
    """Return the half width of the normal distribution's interval of this level."""
    from scipy.special import ndtri  # imported here: few uses of a model need SciPy

    return float(ndtri(0.5 + level / 2))


class _KindArrays(NamedTuple):
    """Offsets, spans and ends of kinds, at each cell."""

    offset: Numbers
    span: Numbers
    low: Numbers
    high: Numbers


@dataclass(frozen=True)
class Units:
    """The data's own units of some features, and the calibration of their predictions.

    The methods take cells of any shape (…, n); ``which`` (n,) are the positions of their features.
    """

    kinds: Kinds
    factors: Numbers  # (features, levels): of the widths of intervals
    slopes: Numbers  # (features,): of the logits of probabilities
    shifts: Numbers  # (features,)

    @classmethod
    def of(cls, fitted: ModelState, features: list[Feature]) -> Units:
        """Return the units of ``features``."""
        shots = torch.tensor([feature.shots for feature in features], dtype=torch.int64)
        factors = fitted.calibration.factor(shots, fitted.kinds_of(features))
        slopes, shifts = fitted.calibration.logit_terms(shots)
        kinds = Kinds([feature.kind for feature in features])
        return cls(kinds, *(part.double().numpy() for part in (factors, slopes, shifts)))

    @property
    def reach(self) -> Numbers:
        """Widths of intervals of each level, relative to that of the usual level: (features, levels)."""
        return self.factors / self.factors[:, USUAL_LEVEL, None]

    def apply(self, mean: Tensor, std: Tensor, which: NDArray[np.int64]) -> tuple[Numbers, Numbers]:
        """Calibrate means and standard deviations on the models' scale, and convert them to units."""
        scaled_mean, scaled_std = (part.float().cpu().numpy() for part in (mean, std))
        factor = self.factors[which, USUAL_LEVEL]
        means, stds = _to_units(scaled_mean, scaled_std, factor, _arrays_of(self.kinds, which))
        binary = self.kinds.types[which] == KindType.BINARY
        if binary.any():
            at = which[binary]
            means[..., binary], stds[..., binary] = _calibrate_probability(
                scaled_mean[..., binary], self.slopes[at], self.shifts[at]
            )
        return means, stds


def _arrays_of(kinds: Kinds, which: NDArray[np.int64]) -> _KindArrays:
    low, high = ends_of(kinds)
    return _KindArrays(kinds.offsets[which], kinds.spans[which], low[which], high[which])


def ends_of(kinds: Kinds) -> tuple[Numbers, Numbers]:
    """Return the smallest and the largest value of each kind: two of (features,)."""
    return np.array([kind.low for kind in kinds]), np.array([kind.high for kind in kinds])


def interval(
    mean: Numbers,
    std: Numbers,
    kinds: Kinds,
    reach: Numbers | None,
    level: float,
    which: NDArray[np.int64],
) -> tuple[Numbers, Numbers]:
    """Return the ends of intervals that contain the value with probability ``level``: two like ``mean``.

    ``reach`` (features, levels) is the width of intervals relative to the normal distribution's. The other
    parameters are as in ``Units``.
    """
    if not isinstance(level, (int, float)) or not 0 < level < 1:
        raise InputError(f"an interval's level must lie between 0 and 1; got {level!r}")
    half = _normal_half_width(level) * std
    if reach is not None:
        half = half * np.array([np.interp(level, LEVELS, widths) for widths in reach])[which]
    low, high = _interval_ends(mean, half, _arrays_of(kinds, which))
    binary = kinds.types[which] == KindType.BINARY
    low[..., binary], high[..., binary] = _binary_ends(mean[..., binary], level)
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


class CellPrediction(NamedTuple):
    """The prediction of one cell, in the data's own units."""

    mean: float
    std: float
    low: float
    high: float


def predict_one_cell(fitted: ModelState, row: str, name: str, level: float) -> CellPrediction:
    """Predict one cell in numpy; equal to ``predict_features`` up to rounding.

    Parameters
    ----------
    fitted : ModelState
        The model.
    row, name : str
        A row and a feature of the model.
    level : float
        The probability that the interval contains the value.
    """
    feature, likelihood = fitted.catalogue[name], fitted.knowledge.likelihood
    kind = fitted.kind_of(feature)
    activation, *rest = fitted.roster.head_inputs(np.array([fitted.rows.position(row)]), "current")
    state = OneState(activation[:0], activation[:0], activation[0], *(part[0] for part in rest))
    mean, std = predict_cell(_head_of(fitted, name, kind), state, kind, likelihood)
    factors, slope, shift = _calibration_at(_Identity(fitted.calibration), feature.shots, kind)
    if feature.kind.type == KindType.BINARY:
        mean, std = _calibrate_probability(mean, slope, shift)
        low, high = _binary_ends(mean, level)
    else:
        mean, std = _to_units(mean, std, factors[USUAL_LEVEL], feature.kind)
        width = float(np.interp(level, LEVELS, factors)) / factors[USUAL_LEVEL]
        low, high = _interval_ends(mean, _cached_half_width(level) * std * width, feature.kind)
    return CellPrediction(float(mean), float(std), float(low), float(high))


def _head_of(fitted: ModelState, name: str, kind: int) -> OneHead:
    """Return the head of a feature; without a covariance it is certain, and its noise is the usual one."""
    (slot,) = fitted.catalogue.slots([name])
    parts = [part[slot] for part in fitted.catalogue.stored_arrays]
    if len(parts) == 4:
        return OneHead(*parts)
    size = len(parts[0]) + 1
    covariance = parts[2] if len(parts) > 2 else np.zeros(size * (size + 1) // 2)
    noise = fitted.knowledge.likelihood.noise(torch.tensor(kind)).detach()
    return OneHead(parts[0], parts[1], covariance, float(noise))


class _Identity:
    """A calibration as the key of a cache: the same for all states of one fitted model."""

    def __init__(self, calibration: Calibration) -> None:
        self.calibration = calibration

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and other.calibration is self.calibration

    def __hash__(self) -> int:
        return id(self.calibration)


@lru_cache(maxsize=4096)
def _calibration_at(key: _Identity, shots: int, kind: int) -> tuple[list[float], float, float]:
    """Return the factors of all levels, slope and shift, for one feature."""
    each = torch.tensor([shots])
    factors = key.calibration.factor(each, torch.tensor([kind]))[0].double().tolist()
    slope, shift = (float(part) for part in key.calibration.logit_terms(each))
    return factors, slope, shift


_cached_half_width = lru_cache(maxsize=64)(_normal_half_width)

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
        mean[part], std[part] = units.apply(predictive.mean, predictive.std, which)
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
        mean[here], std[here] = units.apply(predictive.mean, predictive.std, column)
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
