"""Plot a metric of each method by the number of shots (extra ``plots``)."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from headstart.errors import HeadstartError, InputError, did_you_mean
from headstart.evaluate.metrics import MAIN_METRICS, Metric, metric_of
from headstart.evaluate.results import Curve, Results, Test

if TYPE_CHECKING:
    from matplotlib.axes import Axes


# The palette of Okabe and Ito, which colour-blind readers can distinguish, and a grey. Its yellow is too
# pale on white: there ``Theme.extra`` is a dark red. Methods also differ in marker and dashes.
_COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F")

_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")

# Families of methods with a colour and a marker of their own, the same in every picture: their numbers in
# ``_COLOURS``, extended by the theme's two colours, and in ``_MARKERS``. Other families get the free ones.
_FAMILIES = {
    "chn": (0, 0),
    "chn-train": (0, 9),
    "chn-bayes": (8, 8),
    "headstart": (8, 7),
    "auto": (8, 7),
    "bayes": (5, 2),
    "mean": (2, 2),
    "mean-head": (3, 3),
    "mean-head-matching": (5, 5),
    "knn": (1, 1),
    "train": (4, 4),
    "maml": (7, 6),
    "random": (6, 8),
    "row-column-means": (2, 4),
    "als-values": (3, 5),
}

_DASHES = ((), (4, 1.2), (1.2, 1.2), (5, 1.2, 1.2, 1.2), (8, 2), (3, 1, 1, 1, 1, 1))


@dataclass(frozen=True)
class Theme:
    """The colours of background, text and grid, and one further colour of lines."""

    paper: str
    ink: str
    faint: str
    extra: str


LIGHT = Theme("#ffffff", "#222222", "#dddddd", "#882255")

DARK = Theme("#16181c", "#e6e6e6", "#3a3d44", "#F0E442")


@dataclass(frozen=True)
class Style:
    """Colour, marker and dashes of the curve of one method."""

    colour: str
    marker: str
    dashes: tuple[float, ...]

    def line(self, theme: Theme) -> dict[str, Any]:
        """Return the arguments of ``Axes.plot`` that draw in this style."""
        return {
            "color": self.colour,
            "marker": self.marker,
            "markersize": 9 if self.marker == "*" else 5,  # a star has little area
            "markeredgecolor": theme.paper,
            "markeredgewidth": 0.4,
            "linewidth": 1.6,
            "dashes": self.dashes or (None, None),
        }


def styles_of(methods: Sequence[str], theme: Theme) -> dict[str, Style]:
    """Return a style per method; methods such as knn-1 and knn-5 share colour and marker.

    The methods of this package have the same style in every picture. Other methods get styles that are not
    used yet, in the order of their names, so that the same methods look the same in every picture.
    """
    families: dict[str, list[str]] = {}
    for method in methods:
        families.setdefault(re.sub(r"-\d+$", "", method), []).append(method)
    colours = (*_COLOURS, theme.extra, theme.ink)
    looks = {family: look for family, look in _FAMILIES.items() if family in families}
    others = sorted(set(families) - set(looks))
    used = {colour for colour, _ in looks.values()}
    order = (*range(1, len(colours)), 0)  # the colour of the hypernetwork last
    free = [i for i in order if i not in used] or list(order)
    looks |= {family: (free[i % len(free)], i % len(_MARKERS)) for i, family in enumerate(others)}
    return {
        method: Style(colours[looks[family][0]], _MARKERS[looks[family][1]], _DASHES[j % len(_DASHES)])
        for family, members in families.items()
        for j, method in enumerate(members)
    }


_LABEL_HEIGHT = 12.5  # points between the middles of two labels

_SHOTS = "shots: observations of the new feature  (log scale)"

_PANELS: dict[Test, tuple[str, str]] = {  # title and axis of the panel of each test
    "features": ("New features", _SHOTS),
    "rows": ("New rows", "observations of the new row  (log scale)"),
}


class MissingMatplotlibError(HeadstartError, ImportError):
    """A picture needs matplotlib, which is not installed."""

    def __init__(self) -> None:
        super().__init__(
            "pictures need matplotlib, which is not installed; run: pip install 'headstart[plots]'"
        )


@dataclass(frozen=True)
class Panel:
    """One part of a picture: curves of a metric over whole numbers from 0 up, on a log scale."""

    curves: dict[str, Curve]
    metric: Metric
    title: str = ""
    axis: str = _SHOTS


def plot_kshot(results: Results, metrics: Sequence[str] | None = None, *, dark: bool = False) -> bytes:
    """Draw one panel per metric, with one curve per method and a ±1σ band over splits.

    If rows were held out, each metric has a second panel, by the observations of the row.

    Parameters
    ----------
    results : Results
        The numbers to draw.
    metrics : sequence of str, optional
        Names of the metrics, see ``METRICS``. By default those of ``MAIN_METRICS``, if the
        results have them.
    dark : bool
        Whether to draw on a dark background.

    Returns
    -------
    bytes
        A PNG file. The same results always give the same bytes.

    Raises
    ------
    InputError
        If the results do not have one of the metrics, or no numbers at all.
    MissingMatplotlibError
        If matplotlib is not installed (``pip install 'headstart[plots]'``).

    Examples
    --------
    >>> from headstart.evaluate import Run
    >>> run = Run(split=0, method="mean", shots=4, metric="rmse", value=1.0, features=3, targets=30)
    >>> plot_kshot(Results(data={}, settings={}, runs=[run]))[:4]
    b'\x89PNG'
    """
    available = results.metrics
    chosen = list(metrics) if metrics else [name for name in MAIN_METRICS if name in available]
    chosen = chosen or available[:1]
    for name in chosen:
        if name not in available:
            raise InputError(f"the results have no metric {name!r}{did_you_mean(name, available)}")
    if not chosen:
        raise InputError("the results hold no numbers, so there is nothing to draw")
    if not results.row_shots:
        return plot_panels([_panel(results, name, "features") for name in chosen], dark=dark)
    tested = [(name, test) for name in chosen for test in _PANELS if name in results.metrics_of(test)]
    return plot_panels(
        [_panel(results, name, test) for name, test in tested], dark=dark, columns=len(_PANELS)
    )


def _panel(results: Results, name: str, test: Test) -> Panel:
    title, axis = _PANELS[test] if results.row_shots else ("", _SHOTS)
    return Panel(results.curves(name, test), metric_of(name), title, axis)


def plot_panels(
    panels: Sequence[Panel],
    *,
    dark: bool = False,
    columns: int | None = None,
    styles: Mapping[str, Style] | None = None,
) -> bytes:
    """Draw panels and return a PNG; a method has the same style in all of them.

    The panels are side by side, or in lines of ``columns`` panels. ``styles`` has the styles of methods that
    have none of their own in this module.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingMatplotlibError from None
    theme = DARK if dark else LIGHT
    names = list(dict.fromkeys(name for panel in panels for name in panel.curves))
    height = max(4.6, (len(names) * _LABEL_HEIGHT * 1.25) / 72 + 1.1)
    columns = columns or len(panels)
    lines = math.ceil(len(panels) / columns)
    size = (7.6 * columns, height * lines)
    figure = Figure(figsize=size, dpi=150, facecolor=theme.paper, layout="constrained")
    FigureCanvasAgg(figure)
    chosen = {**styles_of(names, theme), **(styles or {})}
    for number, panel in enumerate(panels, start=1):
        axes = figure.add_subplot(lines, columns, number, facecolor=theme.paper)
        _draw(axes, panel, chosen, theme, height)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", facecolor=theme.paper, metadata={"Software": None})
    return buffer.getvalue()


def _draw(axes: Axes, panel: Panel, styles: dict[str, Style], theme: Theme, height: float) -> None:
    curves, metric = panel.curves, panel.metric
    shots = sorted({k for curve in curves.values() for k in curve.shots})
    low, high = _limits(curves, metric)
    axes.set_ylim(low, high)
    for method, curve in curves.items():
        style, x, mean = styles[method], _position(curve.shots), np.array(curve.mean)
        axes.plot(x, mean, **style.line(theme))
        if any(sigma is not None for sigma in curve.sigma):
            sigma = np.array([sigma or 0.0 for sigma in curve.sigma])
            axes.fill_between(x, mean - sigma, mean + sigma, color=style.colour, alpha=0.13, linewidth=0)
    _label_ends(axes, curves, styles, theme, height)
    axes.set_ylabel(f"{metric.label}  ({metric.direction})", color=theme.ink)
    axes.set_xlabel(panel.axis, color=theme.ink)
    axes.set_title(panel.title, color=theme.ink, fontsize=11, loc="left")
    axes.set_xticks(_position(shots), [str(k) for k in shots])
    axes.tick_params(colors=theme.ink, length=3)
    axes.grid(axis="y", color=theme.faint, linewidth=0.7)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(theme.faint)


def _position(shots: Sequence[int]) -> NDArray[np.float64]:
    """Return the positions of shots on the axis: one step per doubling, and 0 one step before 1."""
    k = np.asarray(shots, dtype=np.float64)
    return np.where(k > 0, np.log2(np.maximum(k, 1)) + 1, 0.0)


def _limits(curves: dict[str, Curve], metric: Metric) -> tuple[float, float]:
    """Return limits that show the good methods; much worse methods may lie outside."""
    means = np.concatenate([np.array(curve.mean) for curve in curves.values()])
    lows = [m - (s or 0) for c in curves.values() for m, s in zip(c.mean, c.sigma, strict=True)]
    highs = [m + (s or 0) for c in curves.values() for m, s in zip(c.mean, c.sigma, strict=True)]
    low, high = min(lows), max(highs)
    width = 3 * abs(float(np.median(means)) - (low if metric.better == "lower" else high))
    if metric.better != "near" and 0 < 1.5 * width < high - low:
        low, high = (low, low + width) if metric.better == "lower" else (high - width, high)
    margin = 0.04 * (high - low) or 0.05 * abs(high) or 0.05
    return low - margin, high + margin


def _label_ends(
    axes: Axes, curves: dict[str, Curve], styles: dict[str, Style], theme: Theme, height: float
) -> None:
    """Write the name of each method next to the end of its curve; names do not overlap.

    ``height`` is the height of the panel in inches.
    """
    low, high = axes.get_ylim()
    # Points per unit of the axis. The height of the axes is an estimate, exact enough for labels.
    per_unit = (height * 72 - 70) / (high - low)
    ends = {method: curve.mean[-1] for method, curve in curves.items()}
    methods = sorted(ends, key=lambda method: ends[method])
    wanted = np.clip([ends[method] for method in methods], low, high) * per_unit
    placed = _separate(wanted, _LABEL_HEIGHT, low * per_unit, high * per_unit) / per_unit
    right = max(float(_position(curve.shots)[-1]) for curve in curves.values())
    size = (right + 0.5) / 8  # the width of labels does not depend on the number of shots
    for method, y in zip(methods, placed, strict=True):
        style, x, end = styles[method], float(_position(curves[method].shots)[-1]), ends[method]
        outside = "" if low <= end <= high else f" {'↑' if end > high else '↓'} {end:.3g}"
        start, middle, stop = (right + size * at for at in (0.5, 0.95, 1.4))
        axes.plot(
            [x + 0.1 * size, start],
            [min(max(end, low), high), y],
            color=style.colour,
            linewidth=0.7,
            alpha=0.6,
            clip_on=False,
        )
        axes.plot([start, middle, stop], [y] * 3, clip_on=False, markevery=[1], **style.line(theme))
        axes.text(stop + 0.1 * size, y, method + outside, color=theme.ink, fontsize=9, va="center_baseline")
    axes.set_xlim(-0.25, right + 0.12)
    axes.set_ylim(low, high)


def _separate(wanted: NDArray[np.float64], gap: float, low: float, high: float) -> NDArray[np.float64]:
    """Move ascending positions at least ``gap`` apart within the limits, by the least sum of squares.

    >>> _separate(np.array([1.0, 1.2, 5.0]), 1.0, 0.0, 10.0).tolist()
    [0.6, 1.6, 5.0]
    """
    from scipy.optimize import isotonic_regression  # imported here: few uses of the package need SciPy

    if len(wanted) == 0:
        return np.zeros(0)
    gap = min(gap, (high - low) / max(1, len(wanted) - 1))
    # After subtracting the gaps, positions only have to be ascending.
    ascending = isotonic_regression(wanted - gap * np.arange(len(wanted))).x
    ascending = np.clip(ascending, low, math.nextafter(high - gap * (len(wanted) - 1), math.inf))
    return np.asarray(np.round(ascending + gap * np.arange(len(wanted)), 9))
