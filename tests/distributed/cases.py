"""Tables in folders of Parquet files whose rows cross files, and what is fitted to them."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from tests.limits import limits

_FEW = {"name": "factorisation", "sweeps": 6}
BAYES = {"adapter": "bayes", "backbone": _FEW}
# Networks read the signature, whose columns have the sign that rounding gives them: without it, they agree.
NETWORKS = {
    "adapter": "chn-bayes",
    "backbone": {**_FEW, "signature": 0},
    "metatraining": {"epochs": 2},
}
CASES: dict[str, dict[str, Any]] = {
    "ratings": BAYES,
    "binary": BAYES,
    "reals": BAYES,  # each feature with its own scale, and some outliers
    "mixed": BAYES,
    "clicks": BAYES,
    "weights": BAYES,  # of observations
    "large": BAYES,  # treated as if it were too large for anything to be held at once
    "networks": NETWORKS,
    "networks-blended": {**NETWORKS, "adapter": "chn-bayes-blend"},
    "binary-blended": {**NETWORKS, "adapter": "chn-bayes-blend"},
    "judged": {"adapter": "auto", "backbone": _FEW},
}
KINDS = {"clicks": "click"}  # inferred in the other cases
WEIGHT = {"weights": "weight"}  # the column of weights
LOWERED = {
    "signature_quantile_rows": 50,
    "signature_shrinkage_rows": 40,
    "ridge_lines": 45,
    "numbers_drawn_per_block": 64,
    "noise_observations": 200,
    "cross_fit_numbers": 2**14,
    "cross_fit_observations": 16,
    "gathered_observations_per_block": 100,
    "bytes_sent_per_block": 1000,
}


# Fewer repetitions of the same work, in all cases.
FEWER = {
    "ridge_strengths": torch.tensor([0.1, 1.0], dtype=torch.float64),
    "cross_fit_rounds": 2,
    "cross_fit_folds": 3,
    "judge_folds": 2,
}

# Several processes, each of which has some rows only, leave out the local part of new features and the
# calibration of known features on held-out rows. So does the one process that they are compared with.
OF_ONE_PROCESS = {"local_harm": -1e9, "local_margin": 1e9, "held_out_rows": 0}


def as_tested(case: str) -> AbstractContextManager[None]:
    """Repeat less, and take the large case for large, so that samples are drawn and blocks are small."""
    return limits(**FEWER, **OF_ONE_PROCESS, **LOWERED if case == "large" else {})


def make_folder(case: str, folder: Path, rows: int = 60, features: int = 16) -> Path:
    """Write the table of a case, its lines in any order, to four files of two row groups each."""
    rng = np.random.default_rng(len(case))
    truth = rng.normal(size=(rows, 3)) @ rng.normal(size=(3, features)) + rng.normal(size=features)
    truth = truth + 0.3 * rng.normal(size=truth.shape)
    ratings = np.clip(np.round(truth + 3), 1, 5)
    values = {"binary": (truth > 0) * 1.0, "reals": truth * np.exp(2 * rng.normal(size=features))}.get(
        case.removesuffix("-blended"), ratings
    )
    if case == "mixed":
        kind = np.arange(features) % 3
        values = np.where(kind == 0, truth, np.where(kind == 1, (truth > 0) * 1.0, ratings))
    seen = rng.random(truth.shape) < 0.15 + 0.6 * rng.random(rows)[:, None]
    line, column = np.nonzero(seen)
    order = rng.permutation(len(line))
    line, column = line[order], column[order]
    observed = values[line, column]
    if case == "reals":
        observed[::97] *= 1e4
    table = pa.table(
        {
            "row": [f"row {i}" if i % 2 else str(i) for i in line],
            "feature": [f"feature {j}" for j in column],
            "value": observed,
        }
    )
    if case in WEIGHT:
        table = table.append_column(WEIGHT[case], pa.array(np.exp(rng.normal(size=len(table)))))
    folder.mkdir(parents=True)
    size = -(-len(table) // 4)
    for number in range(4):
        part = table.slice(number * size, size)
        pq.write_table(part, folder / f"part-{number}.parquet", row_group_size=-(-size // 2))
    return folder


def make_metadata(path: Path, features: int = 16) -> Path:
    """Write metadata of the features, and of one that nobody has observed."""
    numbers = np.random.default_rng(0).random(features + 1)
    names = [f"feature {j}" for j in range(features + 1)]
    pq.write_table(pa.table({"feature": names, "year": numbers}), path)
    return path
