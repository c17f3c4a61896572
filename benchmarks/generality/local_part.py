"""Compare the default with and without the local part of new features, on the same fits.

    python benchmarks/generality/local_part.py --out FILE --data DIR

Each fit is scored twice: unchanged, and with the local part removed. The ranking of binary values and the
errors of numbers do not depend on the calibration, which stays the same. Finished splits in ``--out`` are not
repeated.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from generality.methods.own import HeadstartMethod
from generality.scoring import scored
from generality.tables import TABLES
from generality.trial import Trial
from headstart import Headstart

METRICS = ("auroc", "rmse")


def scores_of(method: HeadstartMethod, trial: Trial) -> dict[str, dict[str, float]]:
    """Return the scores of new features by metric and shots."""
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for test in scored(method, trial, rows=False):
        for metric in METRICS:
            if metric in test["scores"]:
                found[metric][str(test["shots"])] = test["scores"][metric]
    return found


def run(table: str, split: int, data: Path | None) -> dict[str, object]:
    """Fit the default once, and score it with and without its local part."""
    trial, method = Trial.of(TABLES[table].load(data), split), HeadstartMethod()
    method.fit(trial)
    model = method.model
    record = {"table": table, "split": split, "chosen": model.info.chosen, "with": scores_of(method, trial)}
    method.adapt(trial.context(0))  # removes the features of the last test
    method.model = Headstart(**model.get_params())
    method.model.fitted_ = replace(model.fitted_, local=None)
    return {**record, "without": scores_of(method, trial)}


def table_of(records: list[dict]) -> str:
    """Return the means over splits as a Markdown table."""
    lines = [
        "| table | metric | splits with a local part | k | without | with |",
        "|---|---|---|---|---|---|",
    ]
    by_table = defaultdict(list)
    for record in records:
        by_table[record["table"]].append(record)
    for table, found in by_table.items():
        metric = next(metric for metric in METRICS if metric in found[0]["with"])
        used = sum("neighbours" in (record["chosen"] or "") for record in found)
        for shots in found[0]["with"][metric]:
            parts = [np.mean([record[key][metric][shots] for record in found]) for key in ("without", "with")]
            lines.append(
                f"| {table} | {metric} | {used} of {len(found)} | {shots} | {parts[0]:.4f} | {parts[1]:.4f} |"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="a file of JSON lines")
    parser.add_argument("--data", type=Path, help="the data folder (else HEADSTART_DATA)")
    parser.add_argument("--tables", default="neuropathic,hfi,bfi,votes,meats,permeability,caravan,eedi")
    parser.add_argument("--splits", default="0,1,2,3,4", help="0 to 4 are reported, develop on 100 and up")
    options = parser.parse_args()
    lines = options.out.read_text().splitlines() if options.out.exists() else []
    records = [json.loads(line) for line in lines]
    done = {(record["table"], record["split"]) for record in records}
    for split in (int(seed) for seed in options.splits.split(",")):
        for table in options.tables.split(","):
            if (table, split) not in done:
                records.append(run(table, split, options.data))
                with options.out.open("a") as file:
                    file.write(json.dumps(records[-1]) + "\n")
    print(table_of(records))


if __name__ == "__main__":
    main()
