"""A saved model, and records to predict by it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.model.conftest import able


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("scoring") / "model"
    able().save(path)
    return path


@pytest.fixture(scope="session")
def cells() -> pa.Table:
    """Cells in no order, some of them several times."""
    random, model = np.random.default_rng(3), able()
    return pa.table(
        {"row": random.choice(list(model.rows), 500), "feature": random.choice(list(model.features), 500)}
    )


def contents(folder: Path) -> dict[str, bytes]:
    """All files of predictions, byte for byte."""
    return {path.name: path.read_bytes() for path in sorted(folder.glob("part-*"))}
