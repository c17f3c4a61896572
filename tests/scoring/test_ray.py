"""Scoring on Ray writes the same files as here. Ray runs once for all tests, with two workers."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.scoring.conftest import contents
from tests.test_cli import run

from headstart import InputError
from headstart import scoring_ray as cluster
from headstart.scoring import Scorer, score

needs_ray = pytest.mark.skipif(
    find_spec("ray") is None, reason="Ray is not installed; install the extra 'ray' to test scoring on it"
)


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    import ray

    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=100 << 20,
        configure_logging=False,
    )
    yield ray
    ray.shutdown()


@needs_ray
def test_ray_goes_on_with_a_run_and_writes_the_same_files(
    saved: Path, tmp_path: Path, cells: pa.Table, ray: Any
) -> None:
    """What one engine has begun the other finishes; the errors of workers are tested by a stand-in."""
    pq.write_table(cells, tmp_path / "cells.parquet")
    score(saved, tmp_path / "here", pairs=tmp_path / "cells.parquet", partition_size=90, quiet=True)
    before = contents(tmp_path / "here")
    assert len(before) == 6
    there = shutil.copytree(tmp_path / "here", tmp_path / "there")
    for number in (0, 1, 3, 4, 5):
        (there / f"part-{number:06d}.parquet").unlink()
    asked = ("--pairs", tmp_path / "cells.parquet", "--partition-size", 90, "--out", there)
    done = run("predict", saved, "--engine", "ray", "--workers", 2, *asked)
    assert done.returncode == 0, done.stderr
    assert "wrote 500 predictions in 6 files" in done.stdout
    assert "1 of them from an earlier run" in done.stdout.replace("\n", " ")
    assert contents(there) == before


@needs_ray
def test_a_scorer_is_a_step_of_any_pipeline(saved: Path, ray: Any) -> None:
    rows = pa.table({"row": [f"u{i}" for i in range(50)]})
    steps = ray.data.from_arrow(rows).map_batches(
        Scorer,
        fn_constructor_args=(str(saved),),
        fn_constructor_kwargs={"top": 2},
        batch_format="pyarrow",
        batch_size=20,
        compute=ray.data.ActorPoolStrategy(size=1),
    )
    found = pa.concat_tables(ray.get(steps.to_arrow_refs())).select(["feature", "score"])
    expected = Scorer(saved, top=2)(rows).select(["feature", "score"])
    assert sorted(map(str, found.to_pylist())) == sorted(map(str, expected.to_pylist()))


def test_without_ray_the_error_says_what_to_install(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setitem(sys.modules, "ray.data", None)
    with pytest.raises(InputError, match=r"pip install 'headstart\[ray\]', or use engine='local'"):
        score(saved, tmp_path / "out", engine="ray")
    assert not (tmp_path / "out").exists()
    assert cluster.__name__ in sys.modules  # which is imported without Ray
