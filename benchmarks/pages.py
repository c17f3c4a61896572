"""Make all tables and pictures of the documentation that come from shipped results.

    make tables

``results_page.py`` makes those of ``docs/results.md``, and ``ablation/report.py`` those of
``docs/ablations.md``; this script calls both, and makes the tables of ``docs/imputation.md``,
``docs/living.md``, ``docs/benchmark.md`` and ``docs/generality.md`` from the files that their benchmarks
wrote. Each table stands between two comments.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import results_page
from ablation import report as ablations
from generality import parts
from imputation import report as imputation_report

ROOT = Path(__file__).resolve().parents[1]
BENCHMARKS = ROOT / "benchmarks"
_TABLE = re.compile(r"<!-- table: ([\w-]+) -->\n.*?<!-- end -->", re.S)


def living_table() -> str:
    """Return the errors of frozen, living and refitted models in a stream."""
    lines = ["| | arrived | frozen | living | refit | living / refit |", "|---|---|---|---|---|---|"]
    for name, title in (("movielens", "MovieLens-1M"), ("elearning", "Eedi")):
        steps = read(BENCHMARKS / "living_results" / f"living-{name}.json")["stream"]
        for step in steps[1:]:
            errors = " | ".join(f"{step[key]:.4f}" for key in ("frozen", "living", "refit", "living / refit"))
            lines.append(f"| {title} | {step['share']:.0%} | {errors} |".replace("%", " %"))
            title = ""
    return "\n".join(lines).replace("|  |", "| |")


CALLS = {  # of the table of verbs, with their names in its files
    "`predict`, one cell": "predict, 1 cell",
    "`predict`, one row × all 3,706 features": "predict, 1 row × all features",
    "`recommend`, 10 of all features": "recommend, 10 of all features",
    "`add_feature`, no observations": "add_feature, 0 observations",
    "… 1 observation": "add_feature, 1 observations",
    "… 16 observations": "add_feature, 16 observations",
    "… 128 observations": "add_feature, 128 observations",
    "`add_features`, 100 of 16 observations each": "add_features, 100 of 16",
    "`observe`, one triple": "observe, 1 triple",
    "`observe`, 100 triples at once": "observe, 100 triples",
}


def verbs_table() -> str:
    """Return the times of verbs on the default model, beside their yardsticks and the model "bayes"."""
    default, bayes = (
        read(BENCHMARKS / "verbs_results" / f"movielens-1m{name}.json")["milliseconds"]
        for name in ("", "-bayes")
    )
    lines = ["| call | least | median | yardstick | ratio of medians | median, `bayes` |"]
    lines.append("|---|---:|---:|---:|---:|---:|")
    for title, name in CALLS.items():
        times = default[name]
        shown = [milliseconds(times[key]) for key in ("least", "median", "yardstick")]
        cells = [*shown, f"{times['ratio']:.1f}", milliseconds(bayes[name]["median"])]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def milliseconds(time: float) -> str:
    """Return a time with two decimals below 10 ms, and without above.

    >>> milliseconds(0.296), milliseconds(17.6)
    ('0.30', '18')
    """
    return f"{time:.2f}" if time < 10 else f"{time:.0f}"


def imputation_tables() -> str:
    """Return the errors and coverage of imputers."""
    return imputation_report(read(BENCHMARKS / "imputation_results" / "imputation.json")).strip()


def parts_table(part: str, test: str) -> str:
    """Return the gain by a part of the default in one test."""
    return parts.gain_table(parts.read_results(), part, test)


PAGES: dict[str, dict[str, Callable[[], str]]] = {
    "imputation.md": {"imputation": imputation_tables},
    "living.md": {"stream": living_table},
    "benchmark.md": {"verbs": verbs_table},
    "generality.md": {
        f"parts-{part}-{test}": partial(parts_table, part, test) for part, test in parts.PANELS
    },
}


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def filled(text: str, tables: dict[str, Callable[[], str]]) -> str:
    """Return the ``text`` of a page with its tables."""
    return _TABLE.sub(lambda found: f"<!-- table: {found[1]} -->\n{tables[found[1]]()}\n<!-- end -->", text)


def main() -> None:
    results_page.main()
    ablations.main()
    for name, tables in PAGES.items():
        page = ROOT / "docs" / name
        page.write_text(filled(page.read_text(encoding="utf-8"), tables), encoding="utf-8")
    (ROOT / "docs/images/results/parts.png").write_bytes(parts.picture(parts.read_results()))


if __name__ == "__main__":
    main()
