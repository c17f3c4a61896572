"""Write a report of all runs of a folder.

python benchmarks/generality/report.py --out DIR [--add DIR]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from generality.heatmap import heatmap
from generality.methods import REFERENCES
from generality.summary import MAIN, Place, Summary
from generality.tables import TABLES
from headstart.files import write_bytes

TESTS = {
    "features": "New features, by shots",
    "rows": "Held-out rows, by observations of known features",
    "both": "New features of 4 shots at held-out rows of 4 observations",
}
COVERAGE = tuple(f"coverage_{level}" for level in (50, 80, 90, 99))


def publish(out: Path, *others: Path) -> None:
    """Write ``report.md``, ``summary.json`` and a heat map for every Headstart that was run."""
    summary = Summary.of(out, *others)
    if not summary.records:
        return
    own = [method for method in summary.methods if method not in REFERENCES]
    lines = ["# The default on tables of every shape", "", *_intro(summary)]
    for method in own:
        write_bytes(out / f"{method}.png", heatmap(summary, method))
        lines += ["", f"![{method} against the best reference]({method}.png)"]
    for test, title in TESTS.items():
        if not summary.places(test):
            continue
        lines += ["", f"## {title}", "", *_ranks(summary, test, own)]
        for metric in MAIN:
            lines += _scores(summary, test, metric, own)
    lines += _coverage(summary, own) + _variants(summary, own) + _seconds(summary) + _failures(summary)
    write_bytes(out / "report.md", ("\n".join(lines) + "\n").encode())
    write_bytes(out / "summary.json", (json.dumps(as_json(summary, own), indent=1) + "\n").encode())


def as_json(summary: Summary, own: list[str]) -> dict[str, object]:
    """Return the content of the report as plain JSON."""
    places = []
    for place, scores in summary.scores.items():
        best = summary.best_reference(place) if place.metric in MAIN else None
        gains = {m: summary.gain(place, m) for m in own} if best else {}
        places.append({**place._asdict(), "scores": scores, "best_reference": best, "gain": gains})
    return {
        "format": 1,
        "mean_ranks": {test: summary.mean_ranks(test) for test in TESTS},
        "bars": {method: {test: bars(summary, test, method) for test in TESTS} for method in own},
        "places": places,
    }


def bars(summary: Summary, test: str, method: str) -> dict[str, int]:
    """Count the places at which a method passes the bars."""
    places = summary.places(test)
    judged = [within for place in places if (within := summary.within(place, method)) is not None]
    behind = sum(summary.behind_biases(place, method) for place in places)
    return {"places": len(judged), "within": sum(judged), "behind_biases": behind}


def _intro(summary: Summary) -> list[str]:
    splits = sorted({record["split"] for record in summary.records})
    lines = [f"Means over splits {', '.join(map(str, splits))}. Tables:", ""]
    return lines + [f"- **{name}**: {TABLES[name].about}" for name in summary.tables if name in TABLES]


def _ranks(summary: Summary, test: str, own: list[str]) -> list[str]:
    ranks = summary.mean_ranks(test)
    lines = [_row("method", "mean rank", "within 0.5 % or 0.004 of the best reference", "behind biases")]
    lines.append("|---|---:|---:|---:|")
    for method in sorted(ranks, key=lambda name: ranks[name]):
        kept = bars(summary, test, method) if method in own else None
        told = (f"{kept['within']} of {kept['places']}", kept["behind_biases"]) if kept else ("", "")
        lines.append(_row(method, f"{ranks[method]:.2f}", *told))
    return lines


def _scores(summary: Summary, test: str, metric: str, own: list[str]) -> list[str]:
    """Return one line per table and method; the best of each table and k in bold, ✗ where a bar is missed."""
    places = [place for place in summary.places(test) if place.metric == metric]
    if not places:
        return []
    shots = sorted({place.shots for place in places})
    lines = ["", f"### {metric.upper()}", "", _row("table", "method", *shots)]
    lines.append("|---|---|" + "---:|" * len(shots))
    for table in summary.tables:
        here = {place.shots: place for place in places if place.table == table}
        for method in summary.methods if here else ():
            if not any(method in summary.scores[place] for place in here.values()):
                continue
            cells = [_cell(summary, here.get(k), method, method in own) for k in shots]
            lines.append(_row(table, method, *cells))
    return lines


def _cell(summary: Summary, place: Place | None, method: str, judged: bool) -> str:
    if place is None or method not in summary.scores[place]:
        return ""
    scores = summary.scores[place]
    best = (max if place.metric == "auroc" else min)(scores.values())
    text = f"{scores[method]:.4g}" if place.metric == "rmse" else f"{scores[method]:.3f}"
    text = f"**{text}**" if scores[method] == best else text
    missed = judged and (summary.within(place, method) is False or summary.behind_biases(place, method))
    return f"{text} ✗" if missed else text


def _coverage(summary: Summary, own: list[str]) -> list[str]:
    """Return the coverage of the intervals in percent: mean over shots, and range for the 90 % level."""
    lines = [
        "",
        "## Coverage of intervals, %",
        "",
        _row("table", "method", "test", 50, 80, 90, 99, "90: least–most"),
    ]
    lines.append("|---|---|---|---:|---:|---:|---:|---:|")
    for table in summary.tables:
        for method in own:
            for test in TESTS:
                found = {
                    metric: [
                        100 * summary.scores[place][method]
                        for place in summary.places(test, metrics=(metric,))
                        if place.table == table and method in summary.scores[place]
                    ]
                    for metric in COVERAGE
                }
                if found["coverage_90"]:
                    ends = f"{min(found['coverage_90']):.0f}–{max(found['coverage_90']):.0f}"
                    means = [f"{np.mean(found[metric]):.1f}" for metric in COVERAGE]
                    lines.append(_row(table, method, test, *means, ends))
    return lines


def _variants(summary: Summary, own: list[str]) -> list[str]:
    """Compare tables with noise as metadata, and with shuffled metadata, with the unchanged tables."""
    lines: list[str] = []
    for variant, title in (("noise", "100 columns of noise as metadata"), ("shuffled", "Shuffled metadata")):
        places = summary.places("features", variant)
        if not places:
            continue
        shots = sorted({place.shots for place in places})
        lines += ["", f"## {title}: gain on the plain table, % or hundredths", ""]
        lines += [_row("table", "method", *shots), "|---|---|" + "---:|" * len(shots)]
        for table, metric in dict.fromkeys((place.table, place.metric) for place in places):
            for method in own:
                gains = [_gain_on_plain(summary, table, variant, metric, k, method) for k in shots]
                if any(gain is not None for gain in gains):
                    told = ("" if gain is None else f"{gain:+.1f}" for gain in gains)
                    lines.append(_row(f"{table} ({metric.upper()})", method, *told))
    return lines


def _gain_on_plain(
    summary: Summary, table: str, variant: str, metric: str, shots: int, method: str
) -> float | None:
    place = Place(table, variant, "features", metric, shots)
    plain = summary.scores.get(place._replace(variant="plain"), {}).get(method)
    return None if plain is None or place not in summary.scores else summary.gain(place, method, plain)


def _seconds(summary: Summary) -> list[str]:
    methods = summary.methods
    taken: dict[tuple[str, str], list[float]] = defaultdict(list)
    for record in summary.records:
        if record["variant"] == "plain" and "fit_seconds" in record:
            taken[record["table"], record["method"]].append(record["fit_seconds"])
    lines = ["", "## Seconds to fit", "", _row("table", *methods), "|---|" + "---:|" * len(methods)]
    for table in summary.tables:
        found = [taken.get((table, method)) for method in methods]
        lines.append(_row(table, *("" if times is None else f"{np.mean(times):.1f}" for times in found)))
    return lines


def _failures(summary: Summary) -> list[str]:
    failed = [record for record in summary.records if "error" in record]
    lines = ["", "## Failed runs", ""] if failed else []
    return lines + [
        f"- {r['table']} {r['variant']} {r['method']} split {r['split']}: `{r['error'][:300]}`"
        for r in failed
    ]


def _row(*cells: object) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--add", type=Path, action="append", default=[], help="further folders of runs")
    options = parser.parse_args()
    publish(options.out, *options.add)
