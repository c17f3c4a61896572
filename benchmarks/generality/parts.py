"""Measure the contribution of each part of the default, by leaving it out.

    python benchmarks/generality/parts.py --out FILE --data DIR
    python benchmarks/generality/parts.py --picture docs/images/results/parts.png

The parts are the local part of predictions, the local part of known features alone, the kernels of metadata,
and the network that gives local parts their prior (without it all weights have the same prior variance). A
fit without the local part would have the same backbone and heads, so the fitted default is scored again
without it; the errors of numbers and the ranking of binary values do not depend on the calibration, which
stays the same. Without kernels or network the default is fitted again, with its judge. Finished splits in
``--out`` are not repeated.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from generality.heatmap import draw
from generality.methods.own import HeadstartMethod
from generality.scoring import scored
from generality.tables import TABLES
from generality.trial import Trial
from headstart import Headstart

METRICS = ("auroc", "rmse")
RESULTS = Path(__file__).resolve().parent / "parts_results" / "parts.jsonl"
WITHOUT = {
    "local": "the local part",
    "known": "the local part of known features",
    "kernels": "kernels of metadata",
    "network": "the shared network",
}
Scores = dict[str, dict[str, float]]  # by test, then by number of observations


def scores_of(method: HeadstartMethod, trial: Trial, metric: str | None) -> tuple[str, Scores]:
    """Return the scores of new features and held-out rows by one metric, by default the first there is."""
    tests = list(scored(method, trial))
    metric = metric or next(m for m in METRICS if any(m in test["scores"] for test in tests))
    found: Scores = defaultdict(dict)
    for test in tests:
        if metric in test["scores"]:
            found[test["test"]][str(test["shots"])] = test["scores"][metric]
    return metric, dict(found)


def changed(method: HeadstartMethod, trial: Trial, **changes: Any) -> HeadstartMethod:
    """Return the fitted method with other parts of its model, without the features of the last test."""
    method.adapt(trial.context(0))
    for name in list(method._added):
        method.model.remove_feature(name)
    method._added = []
    other = HeadstartMethod(**method.settings)
    vars(other).update(vars(method))
    other.model = Headstart(**method.model.get_params())
    other.model.fitted_ = replace(method.model.fitted_, **changes)
    other._added = []
    return other


@contextmanager
def without(part: str) -> Iterator[None]:
    """Leave out the kernels or the network in all fits of the ``with`` block."""
    if part == "kernels":
        with patch("headstart.adapters.head_prior._MAX_KERNELS", -1):
            yield
    else:
        same = patch("headstart.core.neighbours.relative_variance", lambda inputs, _: np.ones(len(inputs)))
        with same:
            yield


def run(table: str, split: int, data: Path | None, parts: list[str]) -> dict[str, Any]:
    """Fit the default, and score it with all parts and without each of ``parts``."""
    trial, method = Trial.of(TABLES[table].load(data), split), HeadstartMethod()
    method.fit(trial)
    metric, scores = scores_of(method, trial, None)
    record = {
        "table": table,
        "split": split,
        "metric": metric,
        "chosen": method.model.info.chosen,
        "default": scores,
    }
    for part in parts:
        if part == "local":
            other = changed(method, trial, local=None)
        elif part == "known":
            other = changed(method, trial, known_weights=None)
        elif part == "kernels" and trial.known.metadata is None:
            record[part] = scores
            continue
        else:
            other = HeadstartMethod()
        with without(part):
            if part not in ("local", "known"):
                other.fit(trial)
            record[part] = scores_of(other, trial, metric)[1]
    return record


def gains(records: list[dict[str, Any]], part: str, test: str) -> dict[str, dict[int, float]]:
    """Return the gain by a part, by table and number of observations: means over splits.

    It is in per cent of the RMSE without the part, or in hundredths of AUROC; positive is better.
    """
    found: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        for shots, score in record.get(part, {}).get(test, {}).items():
            default = record["default"][test][shots]
            gain = default - score if record["metric"] == "auroc" else 1 - default / score
            found[record["table"]][int(shots)].append(100 * gain)
    return {table: {shots: float(np.mean(each)) for shots, each in by.items()} for table, by in found.items()}


TESTS = {"features": "new features", "rows": "held-out rows"}
PANELS = (("local", "features"), ("local", "rows"), ("kernels", "features"), ("network", "features"))


def picture(records: list[dict[str, Any]]) -> bytes:
    """Draw the gains by each part as a heat map."""
    tables = sorted({(record["metric"] == "auroc", record["table"]) for record in records})
    panels = {}
    for part, test in PANELS:
        found = gains(records, part, test)
        shots = sorted({k for by in found.values() for k in by})
        values = np.array([[found.get(table, {}).get(k, np.nan) for k in shots] for _, table in tables])
        title = f"{WITHOUT[part].capitalize()}:\n{TESTS[test]}, by observations"
        panels[title] = (shots, values.reshape(len(tables), len(shots)))
    splits = sorted({record["split"] for record in records})
    lines = [(table, "auroc" if binary else "rmse") for binary, table in tables]
    return draw(
        panels,
        lines,
        f"Gain of the default by each of its parts, against the default without it (development splits "
        f"{', '.join(map(str, splits))})\n+ is better with the part: % of RMSE, hundredths of AUROC; boxed "
        "and bold: worse by more than 0.5 % or 0.004; · not measured",
        "worse  ←  with the part  →  better",
    )


def gain_table(records: list[dict[str, Any]], part: str, test: str) -> str:
    """Return the gains by a part as a Markdown table."""
    found = gains(records, part, test)
    metrics = {record["table"]: record["metric"] for record in records}
    shots = sorted({k for by in found.values() for k in by})
    lines = [
        f"| {TESTS[test]} | | {' | '.join(map(str, shots))} |",
        f"|---|---|{'---:|' * len(shots)}",
    ]
    for table in sorted(found, key=lambda name: (metrics[name] == "auroc", name)):
        numbers = [found[table].get(k) for k in shots]
        if not any(number is not None and abs(number) >= 0.05 for number in numbers):
            continue
        cells = [
            "–" if n is None else f"{n:+.1f}".replace("+0.0", "0.0").replace("-0.0", "0.0") for n in numbers
        ]
        cells = [cell.replace("-", "−") for cell in cells]
        lines.append(f"| {table} | {metrics[table].upper()} | {' | '.join(cells)} |")
    return "\n".join(lines)


def read_results(path: Path = RESULTS) -> list[dict[str, Any]]:
    """Return the records of finished splits."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS, help="a file of JSON lines")
    parser.add_argument("--data", type=Path, help="the data folder (else HEADSTART_DATA)")
    parser.add_argument("--tables", default="hfi,votes,brca,bodies,anger,bfi,crises")
    parser.add_argument("--splits", default="100", help="0 to 4 are reported, develop on 100 and up")
    parser.add_argument("--parts", default=",".join(WITHOUT), help="to leave out, one after the other")
    parser.add_argument(
        "--picture", type=Path, help="draw the results of --out to this file, and fit nothing"
    )
    options = parser.parse_args()
    records = read_results(options.out)
    if options.picture is not None:
        options.picture.write_bytes(picture(records))
        return
    done = {(record["table"], record["split"]) for record in records}
    for split in (int(seed) for seed in options.splits.split(",")):
        for table in options.tables.split(","):
            if (table, split) not in done:
                records.append(run(table, split, options.data, options.parts.split(",")))
                options.out.parent.mkdir(parents=True, exist_ok=True)
                with options.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(records[-1]) + "\n")
    for part, test in PANELS:
        print(f"\nwithout {WITHOUT[part]}\n{gain_table(records, part, test)}")


if __name__ == "__main__":
    main()
