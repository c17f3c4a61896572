"""Too little memory: a clear error, and nothing has changed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import pyarrow.csv
import pytest
import torch

from headstart import Headstart, HeadstartError, MemoryLimitError, Table
from headstart.adapters import ADAPTERS
from headstart.adapters.bayes import BayesConfig, BayesHead
from tests.model.conftest import ratings_table
from tests.stand_ins import registered

TORCH = "[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you tried"


class FailingConfig(BayesConfig):
    name: Literal["failing"] = "failing"  # type: ignore[assignment]


class Failing(BayesHead):
    """An adapter whose training fails."""

    config_type: ClassVar[type[BayesConfig]] = FailingConfig
    error: ClassVar[Exception | None] = None

    def prepare(self, *given: object) -> None:
        if self.error is not None:
            raise self.error
        super().prepare(*given)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def failing() -> Iterator[None]:
    with registered(ADAPTERS, Failing):
        yield
    Failing.error = None


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError(TORCH)])
def test_a_fit_without_memory_says_what_to_lower(error: Exception, tmp_path: Path) -> None:
    table = ratings_table(30, 12)
    model = Headstart(adapter="failing", quiet=True).fit(table)
    before = model.predict().mean
    Failing.error = error
    message = r"not enough memory to fit 30 rows × 12 features with .*; fit fewer rows.*'latent': 8"
    with pytest.raises(MemoryLimitError, match=message) as caught:
        model.fit(table, checkpoint=tmp_path / "progress")
    assert isinstance(caught.value, HeadstartError)
    assert isinstance(caught.value, MemoryError)
    np.testing.assert_array_equal(model.predict().mean, before)
    Failing.error = None
    model.fit(table, checkpoint=tmp_path / "progress", resume=True)


def test_another_error_of_torch_is_not_a_lack_of_memory() -> None:
    with pytest.raises(RuntimeError) as theirs:
        torch.zeros(2) @ torch.zeros(3)
    Failing.error = theirs.value
    with pytest.raises(RuntimeError, match="size") as caught:
        Headstart(adapter="failing", quiet=True).fit(ratings_table(30, 12))
    assert not isinstance(caught.value, HeadstartError)


def test_a_table_without_memory_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    (tmp_path / "t.csv").write_text("row,feature,value\na,x,1\n")
    monkeypatch.setattr(pyarrow.csv, "open_csv", fail)
    with pytest.raises(MemoryLimitError, match="not enough memory to read the table"):
        Table.read(tmp_path / "t.csv")
