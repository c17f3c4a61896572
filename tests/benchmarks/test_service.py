"""The benchmark of the service: each part on a small model."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

pytest.importorskip("fastapi", reason="the extra service is not installed")

from headstart.datasets import synthetic_ratings
from headstart.model import Headstart
from service import rebuild as rebuilding
from service.cost import cost
from service.grid import grid
from service.load import load
from service.rate import rate
from service.server import served


def test_a_rebuild_counts_all_features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(rebuilding.TABLES, "rating", lambda: synthetic_ratings(60, 20))
    found = rebuilding.rebuild(tmp_path, "rating", 25)
    assert found["features"] == 45
    assert found["seconds"] > 0


def test_requests_are_measured(tmp_path: Path) -> None:
    model = Headstart(adapter="bayes", quiet=True).fit(synthetic_ratings(60, 20))
    model.save(tmp_path / "m")
    with served(tmp_path) as server:
        assert rate(model, server, repeats=1)["ratio"] > 0
        assert {*cost(model, server, repeats=1)} > {"a prediction", "an observation"}
        assert grid(model, server, repeats=1)["cells"] == [len(model.rows), 20]
        (line,) = load(model, server, rates=(40,), seconds=0.5, repeats=1)
    assert line["answered"] > 0
    assert line["observations"] > 0
