"""Small fitted models for the fault tests, fitted once for all of a run."""

from __future__ import annotations

from copy import copy
from functools import cache

import numpy as np
import pyarrow as pa

from headstart.model import Headstart
from headstart.table import Table

ROWS, FEATURES = 40, 16


def table(kind: str, seed: int = 0) -> Table:
    """A made-up table of two traits: ratings, reals that each have a scale of their own, or 0 and 1."""
    random = np.random.default_rng(seed)
    outputs = random.normal(size=(ROWS, 2)) @ random.normal(size=(2, FEATURES))
    outputs += 0.5 * random.normal(size=(ROWS, FEATURES))
    values = {
        "rating": np.clip(np.round(3 + 0.8 * outputs), 1, 5),
        "real": outputs * np.exp(random.normal(size=FEATURES)) + 5 * random.normal(size=FEATURES),
        "binary": (outputs > 0).astype(float),
    }[kind]
    row, feature = np.nonzero(random.random((ROWS, FEATURES)) < 0.6)
    return Table.read(
        pa.table(
            {
                "row": [f"u{i}" for i in row],
                "feature": [f"f{j}" for j in feature],
                "value": values[row, feature],
            }
        ),
        kinds={"rating": "rating:1:5"}.get(kind, kind),
    )


@cache
def trained(kind: str) -> Headstart:
    return Headstart(adapter="bayes", quiet=True).fit(table(kind))


def fresh(kind: str = "rating") -> Headstart:
    """A model of one's own to change; what was trained is shared, and never changes."""
    return copy(trained(kind))
