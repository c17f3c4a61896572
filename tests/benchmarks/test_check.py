"""The comparison of hot paths with stored ratios."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CHECK = runpy.run_path(str(ROOT / "benchmarks/check.py"))


def work(size: int) -> int:
    return sum(place * place for place in range(size))


def test_a_ratio_is_the_time_of_a_path_in_yardsticks() -> None:
    paths = {"same": lambda: work(100_000), "longer": lambda: work(400_000)}
    ratios = CHECK["measure"](paths, lambda: work(100_000), 5)
    assert ratios["same"] == pytest.approx(1, rel=0.4)
    assert ratios["longer"] == pytest.approx(4, rel=0.4)


def test_only_a_path_beyond_the_tolerance_is_reported() -> None:
    expected = {"a": 1.0, "b": 1.0, "c": 1.0}
    assert CHECK["slower"]({"a": 1.4, "b": 1.6, "c": 0.2}, expected) == ["b"]


def test_every_hot_path_runs_and_has_a_stored_ratio(tmp_path: Path) -> None:
    CHECK["ratings"].__globals__.update(ROWS=400, FEATURES=60, OBSERVATIONS=6000)
    paths = CHECK["hot_paths"](tmp_path)
    for path in paths.values():
        path()
    stored = json.loads((ROOT / "benchmarks/check.json").read_text(encoding="utf-8"))
    assert stored.keys() == paths.keys()
    assert all(ratio > 0 for ratio in stored.values())
