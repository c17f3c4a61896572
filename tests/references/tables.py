"""Small made-up tables, the same on every machine."""

from __future__ import annotations

from datetime import date, timedelta

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headstart import Table
from headstart.datasets import synthetic_mixed


def two_tastes() -> tuple[NDArray[np.float64], NDArray[np.bool_], pa.Table]:
    """Make outputs of two tastes (40, 14), which are observed, and metadata that tells of features."""
    random = np.random.default_rng(0)
    angle = random.permutation(14) * 2 * np.pi / 14
    taste, trait = random.normal(size=(40, 2)), 1.2 * np.column_stack([np.cos(angle), np.sin(angle)])
    outputs = taste @ trait.T + 0.5 * random.normal(size=14) + 0.3 * random.normal(size=(40, 14))
    metadata = pa.table(
        {
            "feature": [f"f{j:02}" for j in range(14)],
            "genre": np.where(trait[:, 0] > 0, "drama", "comedy"),
            "year": 2000 + np.round(10 * trait[:, 1]),
        }
    )
    return outputs, random.random(outputs.shape) < 0.8, metadata


def long_form(values: NDArray[np.float64], observed: NDArray[np.bool_]) -> pa.Table:
    """List the observed values, one a line."""
    row, feature = np.nonzero(observed)
    names = {"row": [f"u{i:02}" for i in row], "feature": [f"f{j:02}" for j in feature]}
    return pa.table({**names, "value": values[row, feature]})


def stars() -> tuple[pa.Table, pa.Table]:
    """Make ratings of 1 to 5 in the long form, and metadata of features."""
    outputs, observed, metadata = two_tastes()
    return long_form(np.clip(np.round(3 + outputs), 1, 5), observed), metadata


def ratings() -> Table:
    """Read ratings with metadata of features."""
    observations, metadata = stars()
    return Table.read(observations, metadata=metadata, kinds="rating:1:5", quiet=True)


def binary() -> Table:
    """Read zeros and ones with metadata of features."""
    outputs, observed, metadata = two_tastes()
    observations = long_form(1.0 * (outputs > 0.1), observed)
    return Table.read(observations, metadata=metadata, kinds="binary", quiet=True)


def mixed() -> Table:
    """Read binary features, ratings and reals in turn."""
    return synthetic_mixed(40, 15, 0.6)


def real_columns() -> NDArray[np.float64]:
    """Make numbers of two hidden traits (40, 14); each column has a center and a scale of its own."""
    random = np.random.default_rng(1)
    scale = 10 ** random.uniform(-2, 3, 14)
    shared = random.normal(size=(40, 2)) @ random.normal(size=(2, 14))
    return scale * (random.normal(size=14) + shared + 0.4 * random.normal(size=(40, 14)))


def reals() -> Table:
    """Read real features in the wide form, every cell observed."""
    frame = {"row": [f"u{i:02}" for i in range(40)]}
    frame |= {f"lab{j:02}": column for j, column in enumerate(real_columns().T)}
    return Table.read(pa.table(frame), kinds="real", quiet=True)


def dated() -> Table:
    """Read ratings that were made on days of one year, with metadata of features and of rows."""
    observations, metadata = stars()
    days = [date(2023, 1, 1) + timedelta(days=37 * i % 365) for i in range(len(observations))]
    rows = pa.table({"row": [f"u{i:02}" for i in range(40)], "age": [18 + 7 * i % 50 for i in range(40)]})
    return Table.read(
        observations.append_column("when", pa.array(days)),
        metadata=metadata,
        row_metadata=rows,
        time="when",
        kinds="rating:1:5",
        quiet=True,
    )


def eight_features() -> Table:
    """Read sixteen rows of eight features with a label each: the table of the stored folders."""
    random = np.random.default_rng(0)
    taste, trait = random.normal(size=(16, 2)), random.normal(size=(9, 2))
    kindness, quality = random.normal(size=(16, 1)), random.normal(size=9)
    values = np.clip(np.round(3 + 0.7 * kindness + 0.7 * quality + 0.5 * taste @ trait.T), 1, 5)
    observed = random.random((16, 9)) < 0.5
    observed[:, 0] = False
    row, feature = np.nonzero(observed)
    names = {"row": [f"u{i}" for i in row], "feature": [f"f{j}" for j in feature]}
    metadata = pa.table({"feature": [f"f{j}" for j in range(1, 9)], "genre": list("abacabca")})
    observations = pa.table({**names, "value": values[row, feature]})
    return Table.read(observations, metadata=metadata, kinds="rating:1:5", quiet=True)
