"""Scoring on Ray writes the same files as here. Ray runs once for all tests, with two workers."""

from __future__ import annotations

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

from headstart import InputError, UnknownNameError
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
def test_files_are_the_same_as_without_ray(saved: Path, tmp_path: Path, cells: pa.Table, ray: Any) -> None:
    pq.write_table(cells, tmp_path / "cells.parquet")
    score(saved, tmp_path / "here", pairs=tmp_path / "cells.parquet", partition_size=90, quiet=True)
    asked = ("--pairs", tmp_path / "cells.parquet", "--partition-size", 90, "--out", tmp_path / "there")
    done = run("predict", saved, "--engine", "ray", "--workers", 2, *asked)
    assert done.returncode == 0, done.stderr
    assert "wrote 500 predictions in 6 files to " in done.stdout
    assert len(contents(tmp_path / "here")) == 6
    assert contents(tmp_path / "there") == contents(tmp_path / "here")


@needs_ray
def test_an_interrupted_run_goes_on_by_either_engine(saved: Path, tmp_path: Path, ray: Any) -> None:
    settings: dict[str, Any] = {"partition_size": 20, "quiet": True}
    score(saved, tmp_path / "out", **settings)
    before = contents(tmp_path / "out")
    for number in (1, 2, 4, 5, 8):
        (tmp_path / "out" / f"part-{number:06d}.parquet").unlink()
    assert score(saved, tmp_path / "out", engine="ray", workers=2, **settings).found == 5
    assert contents(tmp_path / "out") == before


@needs_ray
def test_the_error_of_a_worker_arrives_as_it_is(
    saved: Path, tmp_path: Path, cells: pa.Table, ray: Any
) -> None:
    wrong = pa.concat_tables([cells, pa.table({"row": ["u1"], "feature": ["f1000"]})])
    with pytest.raises(UnknownNameError, match="the frame: unknown feature 'f1000'"):
        score(saved, tmp_path / "out", pairs=wrong, engine="ray", workers=1, partition_size=250, quiet=True)


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
