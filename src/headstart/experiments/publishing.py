"""What an experiment leaves for people to look at, and for others to compute with."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from html import escape
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headstart.evaluate.plots import plot_panels
from headstart.evaluate.report import markdown_report, numbers, page, picture, table_section
from headstart.evaluate.tables import TextTable, markdown_text, timing_table
from headstart.evaluate.timing import Timing
from headstart.experiments.catalogue import Experiment
from headstart.experiments.showing import Shown, panels
from headstart.storage import write_bytes, write_json

PAPER_RATIOS = {"knn-10": (3.5, 3.5, 3.4), "train-10": (3.6, 4.6, 5.4)}  # of Table 1, at 1, 4 and 16 shots


def publish(folder: Path, experiment: Experiment, parts: Sequence[Shown], settings: dict[str, Any]) -> None:
    """Write the picture, the reports, the numbers of each study, and the exact settings and versions."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = panels(experiment, parts)
    light, dark = (plot_panels(drawn, dark=dark) for dark in (False, True))
    write_bytes(folder / "picture.png", light)
    write_bytes(folder / "report.html", _html(experiment, parts, picture(light, dark)).encode())
    write_bytes(folder / "report.md", _markdown(experiment, parts).encode())
    for study, results, timings in parts:
        results.save(folder / f"results-{study}.json")
        write_json(folder / f"timing-{study}.json", [timing.model_dump(mode="json") for timing in timings])
    write_json(folder / "settings.json", settings)


def versions() -> dict[str, Any]:
    """What the numbers were computed with."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "headstart": version("headstart"),
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
    }


def ratio_table(timings: Sequence[Timing], to: str = "chn") -> TextTable:
    """How many times as long as ``to`` each other method takes, and what the paper's Table 1 says."""
    shots = sorted({timing.shots for timing in timings})
    medians: dict[tuple[str, int], float] = {
        (method, k): float(
            np.median([t.ms_per_feature for t in timings if (t.method, t.shots) == (method, k)])
        )
        for method, k in {(timing.method, timing.shots): None for timing in timings}
    }
    cells = {}
    for method in dict.fromkeys(timing.method for timing in timings):
        if method != to:
            cells[method] = [f"{medians[method, k] / medians[to, k]:.1f}" for k in shots]
        if method in PAPER_RATIOS and shots == [1, 4, 16]:
            cells[f"{method}, the paper"] = [f"{ratio:.1f}" for ratio in PAPER_RATIOS[method]]
    return TextTable(f"Time over that of {to}", shots, cells, {})


def _html(experiment: Experiment, parts: Sequence[Shown], drawn: str) -> str:
    sections = [*(f'<p class="lead">{escape(_note(part))}</p>' for part in parts), drawn]
    for part in parts:
        if len(parts) > 1:
            sections.append(f"<h1>{escape(str(part.results.data['name']))}</h1>")
        sections += [table_section(table) for table in _first(experiment, part)]
        sections += numbers(part.results, part.timings)
    return page(experiment.title, sections)


def _markdown(experiment: Experiment, parts: Sequence[Shown]) -> str:
    texts = [f"# {markdown_text(experiment.title)}", "![](picture.png)"]
    for part in parts:
        texts.append(markdown_text(_note(part)))
        for table in _first(experiment, part):
            texts += [f"## {table.title}", table.to_markdown()]
        texts.append(markdown_report(part.results, part.timings, str(part.results.data["name"])))
    return "\n\n".join(texts)


def _first(experiment: Experiment, part: Shown) -> list[TextTable]:
    """The tables that are the experiment's point, where the numbers by shots are not."""
    return [timing_table(part.timings), ratio_table(part.timings)] if experiment.shows == "times" else []


def _note(part: Shown) -> str:
    return str(part.results.data.get("note", ""))
