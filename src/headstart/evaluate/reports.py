"""Report the results of a benchmark as text tables, Markdown and HTML."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from headstart.evaluate.metrics import MAIN_METRICS
from headstart.evaluate.plots import MissingMatplotlibError, plot_kshot
from headstart.evaluate.results import (
    TESTS,
    Results,
    TextTable,
    Timing,
    markdown_text,
    metric_table,
    timing_table,
)

_STYLE = """
:root { color-scheme: light dark; --paper: #ffffff; --ink: #222222; --soft: #666666; --line: #dddddd;
  --best: #e3f1ea; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #16181c; --ink: #e6e6e6; --soft: #a2a6ad; --line: #3a3d44; --best: #1d3a2e; } }
body { background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif;
  max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.7rem; margin-bottom: 0; }
h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
p.lead, caption, footer { color: var(--soft); }
img { width: 100%; height: auto; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .5rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th:first-child { text-align: left; position: sticky; left: 0; background: var(--paper); }
thead th { border-bottom: 2px solid var(--line); }
tbody th { font-weight: normal; }
td.best { background: var(--best); font-weight: 600; }
.facts td { text-align: left; white-space: normal; overflow-wrap: anywhere; }
.facts th { vertical-align: top; }
details { margin: .8rem 0; }
summary { cursor: pointer; }
"""

NO_PICTURE = "There is no picture, because matplotlib is not installed; run: pip install 'headstart[plots]'."


def html_report(
    results: Results, timings: Sequence[Timing] = (), title: str = "Benchmark", first: Sequence[str] = ()
) -> str:
    """Return a page with the picture, the numbers, the data and the settings.

    Parameters
    ----------
    results : Results
        The numbers to show.
    timings : sequence of Timing
        Times to show as a table; none by default.
    title : str
        The heading of the page.
    first : sequence of str
        Sections of HTML to show before the picture, such as a model card.

    Returns
    -------
    str
        An HTML page that needs no other file. Without matplotlib, a note replaces the picture.
    """
    try:
        picture_section = picture(*(plot_kshot(results, dark=dark) for dark in (False, True)))
    except MissingMatplotlibError:
        picture_section = note(NO_PICTURE)
    return page(title, [*first, note(lead(results)), picture_section, *numbers(results, timings)])


def note(text: str) -> str:
    """Return a section with one paragraph of text."""
    return f'<p class="lead">{escape(text)}</p>'


def page(title: str, sections: Sequence[str], footer: str | None = None) -> str:
    """Return an HTML page of ``sections`` that needs no other file; by default shots are explained below."""
    text = EXPLANATION if footer is None else footer
    explained = f"<footer><p>{escape(text)}</p></footer>"
    body = "\n".join([f"<h1>{escape(title)}</h1>", *sections, explained])
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def numbers(results: Results, timings: Sequence[Timing] = ()) -> list[str]:
    """Return the sections with the numbers, the data and the settings."""
    shown: list[str] = []
    folded: list[str] = []
    for test in TESTS:
        metrics = results.metrics_of(test)
        main = [name for name in MAIN_METRICS if name in metrics] or metrics[:1]
        shown += [table_section(metric_table(results, name, test)) for name in main]
        rest = [name for name in metrics if name not in main]
        folded += [table_section(metric_table(results, name, test), folded=True) for name in rest]
    explained = [note(ROW_EXPLANATION)] if results.row_shots else []
    sections = [*shown, *explained, *folded]
    if timings:
        sections.append(table_section(timing_table(timings), folded=True))
    return [*sections, *(f"<h2>{heading}</h2>\n{_facts(facts)}" for heading, facts in _groups(results))]


def markdown_report(results: Results, timings: Sequence[Timing] = (), title: str = "Benchmark") -> str:
    """Return the numbers, the data and the settings as Markdown.

    Parameters
    ----------
    results : Results
        The numbers to show.
    timings : sequence of Timing
        Times to show as a table; none by default.
    title : str
        The heading of the report.

    Returns
    -------
    str
        Markdown with one table per test and metric.
    """
    parts = [f"# {markdown_text(title)}", markdown_text(lead(results)), results.to_markdown()]
    if results.row_shots:
        parts.append(ROW_EXPLANATION)
    if timings:
        table = timing_table(timings)
        parts += [f"## {table.title}", table.to_markdown()]
    for heading, facts in _groups(results):
        lines = [
            f"- {markdown_text(name)}: {markdown_text(_value_text(value))}" for name, value in facts.items()
        ]
        parts += [f"## {heading}", "\n".join(lines)]
    return "\n\n".join([*parts, EXPLANATION]) + "\n"


EXPLANATION = (
    "Shots are the observations of a new feature that a method can use. At every number of shots, every "
    "method is scored on the same cells: all observations of a held-out feature that come after its largest "
    "context. σ is the sample standard deviation over splits of the features."
)

ROW_EXPLANATION = (
    "New rows are held out from all training. The context of a row are some of its observations of known "
    "features. At every number of them, it is scored on the same cells: all observations that come after its "
    "largest context. New features in new rows have as many shots as the row has observations. Methods that "
    "keep the backbone's heads of known features make the same predictions of them."
)


def _groups(results: Results) -> list[tuple[str, Mapping[str, Any]]]:
    """Return data, settings and used settings, each with its heading."""
    chosen = {name: value for name, value in results.settings.items() if name != "used"}
    used = results.settings.get("used")
    groups: list[tuple[str, Mapping[str, Any]]] = [("Data", results.data), ("Settings", chosen)]
    return [*groups, ("Settings used", used)] if used else groups


def lead(results: Results) -> str:
    """Return one sentence about the data and the splits."""
    over = f"mean ± 1σ over {results.splits} splits" if results.splits > 1 else "one split"
    left_out = [int(split.get("left_out", 0)) for split in results.data.get("splits", [])]
    name = results.data.get("name", "Table")
    if not any(left_out):
        return f"{name}: {over}."
    average = sum(left_out) // len(left_out)
    return f"{name}: {over}; {average} features per split are left out (too few observations)."


def picture(light: bytes, dark: bytes) -> str:
    """Return a section with a picture; ``light`` and ``dark`` are PNG files for light and dark pages."""
    light_url, dark_url = ("data:image/png;base64," + base64.b64encode(png).decode() for png in (light, dark))
    return (
        f'<picture><source media="(prefers-color-scheme: dark)" srcset="{dark_url}">'
        f'<img src="{light_url}" alt="Metrics of each method by observations; the tables below have them">'
        "</picture>"
    )


def table_section(table: TextTable, *, folded: bool = False) -> str:
    """Return a section with one table; a ``folded`` table opens with a click."""
    head = "".join(f'<th scope="col">{k}</th>' for k in table.shots)
    rows = "\n".join(
        f'<tr><th scope="row">{escape(method)}</th>'
        + "".join(
            f'<td class="best">{escape(text)}</td>'
            if table.best.get(k) == method
            else f"<td>{escape(text)}</td>"
            for k, text in zip(table.shots, texts, strict=True)
        )
        + "</tr>"
        for method, texts in table.cells.items()
    )
    shown = (
        f'<div class="scroll"><table>\n<thead><tr><th scope="col">{table.corner}</th>{head}</tr></thead>\n'
        f"<tbody>\n{rows}\n</tbody></table></div>"
    )
    title = escape(table.title)
    return (
        f"<details><summary>{title}</summary>\n{shown}</details>" if folded else f"<h2>{title}</h2>\n{shown}"
    )


def _facts(facts: Mapping[str, Any]) -> str:
    rows = "\n".join(
        f'<tr><th scope="row">{escape(str(name))}</th><td>{escape(_value_text(value))}</td></tr>'
        for name, value in facts.items()
    )
    return f'<table class="facts"><tbody>\n{rows}\n</tbody></table>'


def _value_text(value: object) -> str:
    """Return a value as text: lists separated by commas, mappings as name = value."""
    if value is None:
        return "none"
    if isinstance(value, Mapping):
        return "; ".join(f"{name} = {_value_text(part)}" for name, part in value.items())
    if isinstance(value, list | tuple):
        joint = " / " if any(isinstance(part, Mapping) for part in value) else ", "
        return joint.join(_value_text(part) for part in value)
    return value if isinstance(value, str) else json.dumps(value)
