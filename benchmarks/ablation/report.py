"""Write the tables of ``docs/ablations.md`` from the files in ``results/``.

    python benchmarks/ablation/report.py

A table replaces the lines between ``<!-- NAME -->`` and ``<!-- end -->``; NAME is that of a result file.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from ablation.protocol import RESULTS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "ablations.md"

# The variant that others are compared with, by study; by default the first.
REFERENCES = {
    "sizes of f and g": "as in the paper",
    "range of k": "0 to 32",
    "KL weight": "1",
    "prequential": "CHN on the P-VAE",
}

_TABLE = re.compile(r"<!-- ([\w-]+) -->\n.*?<!-- end -->", re.DOTALL)


def table(results: dict[str, Any]) -> str:
    """Return the scores of the reference, and the paired differences of all other variants, as Markdown.

    Scores are means over splits, with the standard deviation over splits; differences are those of the same
    split.

    >>> records = [{"split": s, "variant": v, "shots": 0, "value": x}
    ...            for s, v, x in ((0, "a", 0.5), (1, "a", 0.7), (0, "b", 0.6), (1, "b", 0.7))]
    >>> print(table({"study": "", "metric": "auroc", "records": records}))
    | AUROC, 2 splits | 0 |
    |---|---:|
    | a | 0.600 ± 0.141 |
    | b | +0.050 ± 0.071 |
    """
    scores: dict[str, dict[int, dict[int, float]]] = {}
    for record in results["records"]:
        by_shots = scores.setdefault(record["variant"], {})
        by_shots.setdefault(record["shots"], {})[record["split"]] = record["value"]
    complete = set.intersection(*({*next(iter(by_shots.values()))} for by_shots in scores.values()))
    splits = sorted(complete)  # measured for all variants
    reference = REFERENCES.get(results["study"], next(iter(scores)))
    if results["study"] == "meta-training features":
        reference = max(scores, key=int)
    shots = list(scores[reference])
    count = f"{len(splits)} splits" if len(splits) > 1 else "1 split"
    lines = [f"| {results['metric'].upper()}, {count} | " + " | ".join(map(str, shots)) + " |"]
    lines.append("|---|" + "---:|" * len(shots))
    for variant, by_shots in scores.items():
        cells = []
        for k in shots:
            values = np.array([by_shots[k][split] for split in splits])
            if variant == reference:
                cells.append(_spread(values, ".3f"))
            else:
                cells.append(_spread(values - [scores[reference][k][split] for split in splits], "+.3f"))
        lines.append(f"| {variant} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _spread(values: np.ndarray, form: str) -> str:
    """Return mean and standard deviation of the values of splits as text."""
    mean = f"{values.mean():{form}}".replace("-0.000", "0.000").replace("+0.000", "0.000").replace("-", "−")
    return mean if len(values) == 1 else f"{mean} ± {values.std(ddof=1):.3f}"


def filled(page: str, folder: Path = RESULTS) -> str:
    """Return the page with all tables made from the files in ``folder``."""

    def replacement(match: re.Match[str]) -> str:
        results = json.loads((folder / f"{match[1]}.json").read_text())
        return f"<!-- {match[1]} -->\n{table(results)}\n<!-- end -->"

    return _TABLE.sub(replacement, page)


def main() -> None:
    """Write the page with its tables."""
    PAGE.write_text(filled(PAGE.read_text()))


if __name__ == "__main__":
    main()
