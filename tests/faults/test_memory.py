"""Too little memory: a clear error, and nothing has changed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from headstart import Headstart, HeadstartError, MemoryLimitError, Table
from headstart.backbones import factorisation_fit as sweeping
from tests.model.conftest import ratings_table

TORCH = "[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you tried"


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError(TORCH)])
def test_a_fit_without_memory_says_what_to_lower(
    error: Exception, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    table = ratings_table(30, 12)
    model = Headstart(adapter="bayes", quiet=True).fit(table)
    before = model.predict().mean

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(sweeping, "sweep_rows", fail)
    message = r"not enough memory to fit 30 rows × 12 features with .*; fit fewer rows.*'latent': 8"
    with pytest.raises(MemoryLimitError, match=message) as caught:
        model.fit(table, checkpoint=tmp_path / "progress")
    assert isinstance(caught.value, HeadstartError)
    assert isinstance(caught.value, MemoryError)
    np.testing.assert_array_equal(model.predict().mean, before)
    monkeypatch.undo()
    model.fit(table, checkpoint=tmp_path / "progress", resume=True)


def test_another_error_of_torch_is_not_a_lack_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        torch.zeros(2) @ torch.zeros(3)

    monkeypatch.setattr(sweeping, "sweep_rows", fail)
    with pytest.raises(RuntimeError, match="size") as caught:
        Headstart(adapter="bayes", quiet=True).fit(ratings_table(30, 12))
    assert not isinstance(caught.value, HeadstartError)


def test_a_table_without_memory_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("headstart.table.reading.sort_observations", fail)
    with pytest.raises(MemoryLimitError, match="not enough memory to read the table"):
        Table.read(pa.table({"row": ["a"], "feature": ["x"], "value": [1]}))
