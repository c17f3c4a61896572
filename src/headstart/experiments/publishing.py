"""The files of an experiment: picture, reports, numbers and settings."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headstart import __version__
from headstart.evaluate.plots import MissingMatplotlibError, plot_panels
from headstart.evaluate.report import NO_PICTURE, markdown_report, note, numbers, page, picture, table_section
from headstart.evaluate.tables import TextTable, markdown_text, timing_table
from headstart.evaluate.timing import Timing
from headstart.experiments.catalogue import Experiment
from headstart.experiments.showing import Shown, panels
from headstart.storage import write_bytes, write_json

PAPER_RATIOS = {"knn-10": (3.5, 3.5, 3.4), "train-10": (3.6, 4.6, 5.4)}  # from Table 1, at 1, 4 and 16 shots


def publish(folder: Path, experiment: Experiment, parts: Sequence[Shown], settings: dict[str, Any]) -> None:
    """Write the picture, the reports, the numbers of each study, the settings and the versions.

    Without matplotlib, the reports have a note instead of the picture.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        light, dark = (plot_panels(panels(experiment, parts), dark=dark) for dark in (False, True))
    except MissingMatplotlibError:
        (folder / "picture.png").unlink(missing_ok=True)
        html, markdown = note(NO_PICTURE), markdown_text(NO_PICTURE)
    else:
        write_bytes(folder / "picture.png", light)
        html, markdown = picture(light, dark), "![](picture.png)"
    write_bytes(folder / "report.html", _html(experiment, parts, html).encode())
    write_bytes(folder / "report.md", _markdown(experiment, parts, markdown).encode())
    for study, results, timings in parts:
        results.save(folder / f"results-{study}.json")
        write_json(folder / f"timing-{study}.json", [timing.model_dump(mode="json") for timing in timings])
    write_json(folder / "settings.json", settings)


def versions() -> dict[str, Any]:
    """Return the versions and the machine that the numbers were computed with."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "headstart": __version__,
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
    }


def ratio_table(timings: Sequence[Timing], to: str = "chn") -> TextTable:
    """Return the times of the methods divided by those of ``to``, and the same ratios in the paper."""
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
    return TextTable(f"Time divided by the time of {to}", shots, cells, {})


def _html(experiment: Experiment, parts: Sequence[Shown], drawn: str) -> str:
    sections = [*(note(_data_note(part)) for part in parts), drawn]
    for part in parts:
        if len(parts) > 1:
            sections.append(f"<h1>{escape(str(part.results.data['name']))}</h1>")
        sections += [table_section(table) for table in _first(experiment, part)]
        sections += numbers(part.results, part.timings)
    return page(experiment.title, sections)


def _markdown(experiment: Experiment, parts: Sequence[Shown], drawn: str) -> str:
    texts = [f"# {markdown_text(experiment.title)}", drawn]
    for part in parts:
        texts.append(markdown_text(_data_note(part)))
        for table in _first(experiment, part):
            texts += [f"## {table.title}", table.to_markdown()]
        texts.append(markdown_report(part.results, part.timings, str(part.results.data["name"])))
    return "\n\n".join(texts)


def _first(experiment: Experiment, part: Shown) -> list[TextTable]:
    """The tables to show first: the times, in an experiment about times."""
    return [timing_table(part.timings), ratio_table(part.timings)] if experiment.shows == "times" else []


def _data_note(part: Shown) -> str:
    return str(part.results.data.get("note", ""))
