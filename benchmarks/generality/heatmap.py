"""Draw heat maps: Headstart compared with the best reference, and its parts."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import matplotlib
import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from generality.summary import ALLOWED, Summary

_LIMIT = 5.0  # where colours end
_PANELS = {
    "features": "New features, by shots",
    "rows": "Held-out rows, by observations",
    "both": "Both, 4 & 4",
}


def heatmap(summary: Summary, method: str) -> bytes:
    """Draw a PNG with one line per table and one column per shots; + is better than the best reference."""
    lines = list(
        dict.fromkeys((place.table, place.metric) for test in _PANELS for place in summary.places(test))
    )
    order = {table: i for i, table in enumerate(summary.tables)}
    lines.sort(key=lambda line: (line[1] == "auroc", order[line[0]]))
    panels = {_PANELS[test]: _grid(summary, method, test, lines) for test in _PANELS}
    splits = len({record["split"] for record in summary.records})
    title = (
        f"{method} against the best of the references at each place "
        f"({splits} split{'s' if splits > 1 else ''})\n"
        "+ is better: % of RMSE, hundredths of AUROC; boxed and bold: behind by more than 0.5 % or 0.004; "
        "· not measured"
    )
    return draw(panels, lines, title, "worse  ←  best reference  →  better")


def draw(
    panels: dict[str, tuple[list[int], np.ndarray[Any, Any]]],
    lines: list[tuple[str, str]],
    title: str,
    legend: str,
) -> bytes:
    """Draw a PNG with one line per table.

    ``panels`` have, by title, the numbers of observations of their columns and the gains (lines, columns).
    ``lines`` are pairs of a table and its metric; ``legend`` describes the colours.
    """
    panels = {name: found for name, found in panels.items() if found[1].size}
    widths = [found[1].shape[1] for found in panels.values()]
    figure = Figure(figsize=(3.4 + 0.62 * sum(widths), 2.4 + 0.3 * len(lines)), layout="constrained")
    axes = np.atleast_1d(figure.subplots(1, len(panels), sharey=True, width_ratios=widths))
    # Without its darkest ends, so that numbers stay readable in black.
    shades = matplotlib.colormaps["RdBu"](np.linspace(0.2, 0.8, 256))
    colours = ListedColormap(shades).with_extremes(bad="white")
    for axis, (name, (shots, values)) in zip(axes, panels.items(), strict=True):
        drawn = axis.imshow(
            np.ma.masked_invalid(np.maximum(values, -1e9)),
            cmap=colours,
            vmin=-_LIMIT,
            vmax=_LIMIT,
            aspect="auto",
        )
        axis.set_title(name, fontsize=10)
        axis.set_xticks(range(len(shots)), [str(k) for k in shots])
        axis.tick_params(length=0)
        for (i, j), value in np.ndenumerate(values):
            _write(axis, i, j, value, lines[i][1])
    axes[0].set_yticks(range(len(lines)), [f"{table} ({metric.upper()})" for table, metric in lines])
    bar = figure.colorbar(drawn, ax=list(axes), shrink=0.6, pad=0.01, extend="both")
    bar.set_label(legend, fontsize=9)
    figure.suptitle(title, fontsize=11)
    file = BytesIO()
    figure.savefig(file, format="png", dpi=130)
    return file.getvalue()


def _grid(
    summary: Summary, method: str, test: str, lines: list[tuple[str, str]]
) -> tuple[list[int], np.ndarray[Any, Any]]:
    """Return the shots of a test and the gains (lines, shots); NaN: not measured, -inf: the run failed."""
    places = summary.places(test)
    shots = sorted({place.shots for place in places})
    values = np.full((len(lines), len(shots)), np.nan)
    for place in places:
        gain = summary.gain(place, method)
        if gain is None and summary.failed(place, method):
            gain = -np.inf
        if gain is not None:
            values[lines.index((place.table, place.metric)), shots.index(place.shots)] = gain
    return shots, values


def _write(axis: Any, line: int, column: int, value: float, metric: str) -> None:
    if np.isnan(value):
        axis.text(column, line, "·", ha="center", va="center", fontsize=8, color="grey")
        return
    text = f"{value:+.1f}" if abs(value) < 99.5 else f"{value:+.0f}" if abs(value) < 9999 else "<-9999"
    text = "failed" if np.isinf(value) else text
    missed = value < -ALLOWED[metric]
    axis.text(
        column, line, text.replace("-", "−"), ha="center", va="center", fontsize=8,
        weight="bold" if missed else "normal",
    )  # fmt: skip
    if missed:
        axis.add_patch(Rectangle((column - 0.45, line - 0.42), 0.9, 0.84, fill=False, lw=0.9))
