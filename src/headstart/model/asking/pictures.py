"""Small pictures of predictions and explanations. They need matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headstart.errors import InputError
from headstart.evaluate.plots import MissingMatplotlibError

if TYPE_CHECKING:
    from headstart.model.asking.explanation import Explanation
    from headstart.model.asking.prediction import Prediction

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
