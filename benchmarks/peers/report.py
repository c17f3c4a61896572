"""Report the finished runs of a folder by tables and pictures."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from headstart.datasets import DATASETS
from headstart.evaluate.metrics import METRICS
from headstart.evaluate.plots import Panel, plot_panels
from headstart.evaluate.results import Results, Run, markdown_text, metric_table
from headstart.files import write_bytes

SHOWN = (
    "rmse", "rmse_per_feature", "coverage_90", "auroc", "auroc_per_feature", "log_loss", "ece",
)  # fmt: skip
MAIN = ("rmse", "rmse_per_feature", "auroc", "auroc_per_feature")


def finished(out: Path) -> list[dict[str, Any]]:
    """Return all runs of a folder."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(out.glob("*/*/split-*.json"))]


def results_of(records: list[dict[str, Any]], part: int, order: tuple[str, ...]) -> Results:
    """Return the results of one data set and part, with methods in this order."""
    runs = [[Run(**run) for run in record["parts"].get(str(part), [])] for record in records]
    return Results.from_splits({}, {"methods": list(order)}, runs)


def publish(out: Path, order: tuple[str, ...]) -> None:
    """Write ``summary.md`` and a picture for each data set."""
    by_set: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for record in finished(out):
        by_set[record["set"]].append(record)
    lines = ["# Peers, side by side", "", "Mean ± 1σ over splits; the best mean of each column in bold."]
    for name, records in by_set.items():
        lines += ["", f"## {DATASETS[name].title if name in DATASETS else name}", "", *_times(records, order)]
        for part in sorted({int(part) for record in records for part in record["parts"]}):
            results = results_of(records, part, order)
            after = f"targets after {part} observations"
            for metric in (metric for metric in SHOWN if metric in results.metrics):
                table = metric_table(results, metric)
                lines += ["", f"### {table.title}, {after}", "", table.to_markdown()]
        # The last part has all shots.
        drawn = [metric for metric in MAIN if metric in results.metrics]
        panels = [Panel(results.curves(metric), METRICS[metric], after) for metric in drawn]
        write_bytes(out / f"{name}.png", plot_panels(panels))
    write_bytes(out / "summary.md", ("\n".join(lines) + "\n").encode())


def _times(records: list[dict[str, Any]], order: tuple[str, ...]) -> list[str]:
    """Return one line per method: splits, seconds to fit, milliseconds to adapt to a feature, settings."""
    lines = [
        "| method | splits | fit, s | ms a new feature, fewest and most shots | settings |",
        "|---|---:|---:|---:|---|",
    ]
    present = {record["method"] for record in records}
    for method in [*(m for m in order if m in present), *sorted(present - set(order))]:
        mine = [record for record in records if record["method"] == method]
        by_shots: dict[int, list[float]] = defaultdict(list)
        for run in (run for record in mine for runs in record["parts"].values() for run in runs):
            by_shots[run["shots"]].append(run["ms_per_feature"])
        ms = [float(np.median(by_shots[k])) for k in (min(by_shots), max(by_shots))]
        settings = ", ".join(f"{name} {value}" for name, value in mine[0]["settings"].items())
        fit = float(np.mean([record["fit_seconds"] for record in mine]))
        cells = (markdown_text(method), len(mine), f"{fit:.3g}", f"{ms[0]:.3g} to {ms[1]:.3g}")
        lines.append("| " + " | ".join(map(str, (*cells, markdown_text(settings)))) + " |")
    return lines
