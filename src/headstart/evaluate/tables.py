"""Results as tables of text: one line per method, one column per number of shots."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from headstart.evaluate.metrics import METRICS, Metric
from headstart.evaluate.timing import Timing

if TYPE_CHECKING:
    from headstart.evaluate.results import Curve, Results, Test

_TESTED = {
    "features": "",
    "rows": "New rows, by their observations: ",
    "both": "New features in new rows, by the observations of each: ",
}


@dataclass(frozen=True)
class TextTable:
    """A table of texts, to be shown as Markdown, as HTML or on a terminal."""

    title: str
    shots: list[int]
    cells: dict[str, list[str]]  # by method, one text per number of shots; empty if there is no value
    best: dict[int, str]  # by shots, the best method
    corner: str = "shots"  # what the numbers above the columns are

    def to_markdown(self) -> str:
        """Return a Markdown table with the best of each column in bold."""
        lines = [
            f"| {self.corner} | " + " | ".join(str(k) for k in self.shots) + " |",
            "|---|" + "---:|" * len(self.shots),
        ]
        for method, texts in self.cells.items():
            shown = [
                f"**{t}**" if t and self.best.get(k) == method else t
                for k, t in zip(self.shots, texts, strict=True)
            ]
            lines.append(f"| {markdown_text(method)} | " + " | ".join(shown) + " |")
        return "\n".join(lines)


def metric_table(results: Results, metric: str, test: Test = "features") -> TextTable:
    """Return the table of one metric in one test: mean ± 1σ over splits."""
    curves, kind = results.curves(metric, test), METRICS.get(metric, Metric(metric, "lower"))
    better = {"lower": "lower is better", "higher": "higher is better", "near": "0.9 is ideal"}[kind.better]
    shots = results.shots_of(test)
    digits = decimals(mean for curve in curves.values() for mean in curve.mean)
    cells = {method: _texts(curve, shots, digits) for method, curve in curves.items()}
    best = {}
    for k in shots:
        means = {m: dict(zip(c.shots, c.mean, strict=True)).get(k, math.nan) for m, c in curves.items()}
        if any(math.isfinite(mean) for mean in means.values()):
            best[k] = list(means)[kind.best(np.array(list(means.values())))]
    corner = "shots" if test == "features" else "observations"
    return TextTable(f"{_TESTED[test]}{kind.label} ({better})", shots, cells, best, corner)


def timing_table(timings: Sequence[Timing]) -> TextTable:
    """Return the table of times per feature: median over splits, fastest and slowest round."""
    shots = sorted({timing.shots for timing in timings})
    cells: dict[str, list[str]] = {}
    for method in dict.fromkeys(timing.method for timing in timings):
        texts = []
        for k in shots:
            rounds = [timing for timing in timings if timing.method == method and timing.shots == k]
            texts.append(_time_text(rounds) if rounds else "")
        cells[method] = texts
    return TextTable("Milliseconds per feature: median (fastest–slowest)", shots, cells, {})


def _time_text(timings: Sequence[Timing]) -> str:
    median = float(np.median([timing.ms_per_feature for timing in timings]))
    low, high = min(timing.low for timing in timings), max(timing.high for timing in timings)
    return f"{median:.2g} ({low:.2g}–{high:.2g})"


def decimals(values: Iterable[float]) -> int:
    """Return the number of decimals for values of this size: three for values from 0.1 to 10.

    >>> decimals([0.93, 1.04]), decimals([312.0]), decimals([0.004])
    (3, 1, 5)
    """
    largest = max((abs(value) for value in values), default=0.0)
    size = math.floor(math.log10(largest)) if largest > 0 else 0
    return max(0, 3 - size) if size >= 0 else min(8, max(3, 2 - size))


def markdown_text(text: object) -> str:
    """Escape the characters that have a meaning in Markdown.

    >>> print(markdown_text("a|b*c"))
    a\\|b\\*c
    """
    return "".join(f"\\{c}" if c in "\\`*_{}[]<>#|" else " " if c in "\r\n" else c for c in str(text))


def _texts(curve: Curve, shots: list[int], digits: int) -> list[str]:
    texts = {
        k: f"{mean:.{digits}f}" + ("" if sigma is None else f" ± {sigma:.{digits}f}")
        for k, mean, sigma in zip(curve.shots, curve.mean, curve.sigma, strict=True)
    }
    return [texts.get(k, "") for k in shots]
