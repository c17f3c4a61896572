"""Pictures of predictions and explanations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headstart.errors import InputError
from headstart.evaluate.plots import MissingMatplotlibError

if TYPE_CHECKING:
    from headstart.model.explanation import Explanation
    from headstart.model.prediction import Prediction

_MAX_PLOTTED = 60  # cells of a plot

_UP, _DOWN, _INK = "#0072B2", "#D55E00", "#222222"  # the colours of plots


def plot_prediction(prediction: Prediction, level: float, ax: Any) -> Any:
    """Draw each cell as a point with its interval, one line per cell."""
    cells = prediction.mean.size
    if cells > _MAX_PLOTTED:
        raise InputError(
            f"a picture holds up to {_MAX_PLOTTED} cells; this prediction has {cells}: ask for fewer"
        )
    lines = prediction.to_arrow(level).to_pylist()
    ax = _axes(ax, len(lines))
    for height, line in enumerate(lines):
        ax.plot([line["low"], line["high"]], [height, height], color=_UP, linewidth=2)
        ax.plot([line["mean"]], [height], "o", color=_INK, markersize=5)
    _label(ax, [_escape(f"{line['row']} · {line['feature']}") for line in lines])
    ax.set_xlabel(f"mean and {level:.0%} interval")
    return ax


def plot_explanation(explanation: Explanation, n: int, ax: Any) -> Any:
    """Draw the ``n`` largest contributions as bars, from the baseline to the prediction."""
    parts = explanation.largest(n)
    ax = _axes(ax, len(parts) + 2)
    value = explanation.baseline
    ax.axvline(explanation.baseline, color="#bbbbbb", linewidth=1)
    for height, part in enumerate(parts, start=1):
        ax.barh(height, part.value, left=value, color=_UP if part.value >= 0 else _DOWN)
        value += part.value
    ax.use_sticky_edges = False  # keeps the first and last bar off the frame
    ax.margins(x=0.08)
    for height, end in ((0, explanation.baseline), (len(parts) + 1, explanation.output)):
        ax.plot([end], [height], "D", color=_INK, markersize=6)
    texts = [f"baseline {explanation.baseline:.3g}", *(part.label for part in parts)]
    _label(ax, [_escape(text) for text in [*texts, f"prediction {explanation.output:.3g}"]])
    ax.set_xlabel(explanation.unit)
    row, feature = (
        explanation.row_title or explanation.row,
        explanation.feature_title or explanation.feature,
    )
    ax.set_title(_escape(f"{row} · {feature}"))
    return ax


def _axes(ax: Any, lines: int) -> Any:
    """Return ``ax``, or the axes of a new figure with room for ``lines``."""
    if ax is not None:
        return ax
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingMatplotlibError from None
    figure = Figure(figsize=(7, 1.2 + 0.3 * max(1, lines)), layout="constrained")
    return figure.subplots()


def _label(ax: Any, texts: list[str]) -> None:
    """Label the lines from top to bottom."""
    ax.set_yticks(range(len(texts)), texts)
    ax.invert_yaxis()
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)


def _escape(text: str) -> str:
    """Escape dollar signs, which matplotlib would read as formulas."""
    return text.replace("$", r"\$")
