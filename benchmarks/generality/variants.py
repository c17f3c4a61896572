"""Variants of a table with uninformative metadata: added noise, or shuffled lines."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from generality.tables import described
from headstart import Table
from headstart.errors import InputError

VARIANTS = ("plain", "noise", "shuffled")
NOISE = 100  # columns


def varied(table: Table, variant: str, seed: int = 0) -> Table:
    """Return the table in this variant; ``plain`` is the unchanged table."""
    if variant == "plain":
        return table
    generator = np.random.default_rng(1000 + seed)
    if variant == "noise":
        names, numbers = list(table.features), generator.normal(size=(NOISE, len(table.features)))
        return described(
            table,
            {
                f"noise {i:02d}": dict(zip(names, line.tolist(), strict=True))
                for i, line in enumerate(numbers)
            },
        )
    if variant != "shuffled":
        raise InputError(f"unknown variant {variant!r}; one of {', '.join(VARIANTS)}")
    if table.metadata is None:
        raise InputError("there is no metadata to shuffle")
    return replace(table, metadata=table.metadata.take(pa.array(generator.permutation(len(table.features)))))
