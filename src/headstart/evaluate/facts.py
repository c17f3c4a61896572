"""Facts about the data of a benchmark, as its results show them."""

from __future__ import annotations

from typing import Any

import numpy as np

from headstart.evaluate.kshot import KShotTest
from headstart.evaluate.row_scoring import HeldOutRows
from headstart.evaluate.splits import FeatureSplit
from headstart.table import Table


def table_facts(table: Table, name: str) -> dict[str, Any]:
    """Return the size and the contents of a table as plain JSON."""
    rows, features = table.shape
    return {
        "name": name,
        "rows": rows,
        "features": features,
        "observations": int(np.sum(table.counts)),
        "density": float(table.density),
        "kinds": table.kinds.summary(),
        "metadata": [] if table.metadata is None else list(table.metadata.column_names),
        "fingerprint": table.fingerprint(),
    }


def split_facts(split: FeatureSplit, test: KShotTest, away: int, rows: HeldOutRows | None) -> dict[str, int]:
    """Return how many features each part has and, if ``away`` rows are held out, how many are tested."""
    facts = {
        "train": len(split.train),
        "meta_train": len(split.meta_train),
        "meta_test": len(split.meta_test),
        "tested": len(test),
        "left_out": test.left_out,
    }
    if away:
        tested = 0 if rows is None else len(rows.rows)
        facts |= {"tested_rows": tested, "left_out_rows": away - tested}
    return facts
