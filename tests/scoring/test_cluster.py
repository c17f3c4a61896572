"""How Ray is started, asked and ended, by a stand-in that computes here."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from tests.pretended import device_named
from tests.scoring.conftest import contents

from headstart import Headstart, HeadstartError, UnknownNameError
from headstart.scoring import Worker, score


class RayError(Exception):
    pass


class StandIn:
    """As much of Ray as scoring needs."""

    def __init__(self, runs: bool = False, failing: BaseException | None = None) -> None:
        self.said: list[object] = []
        self.is_initialized = lambda: runs
        self.failing = failing
        self.exceptions = SimpleNamespace(RayError=RayError)
        self.data = SimpleNamespace(from_items=self._items, ActorPoolStrategy=lambda size: size)

    def init(self, **settings: Any) -> None:
        self.said.append("init")
        if isinstance(self.failing, ConnectionError):
            raise self.failing

    def shutdown(self) -> None:
        self.said.append("shutdown")

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 3.0}

    def _items(self, items: list[dict[str, int]], override_num_blocks: int) -> Any:
        def map_batches(
            function: Any, fn_constructor_args: tuple[Any, ...], compute: int, **settings: Any
        ) -> Any:
            self.said.append(("workers", compute, settings["num_gpus"]))
            workers = [function(*fn_constructor_args) for _ in range(compute)]

            def rows() -> Any:
                for place, item in enumerate(items):
                    if place == 2 and self.failing is not None:
                        raise self.failing
                    answer = workers[place % compute]({"partition": np.array([item["partition"]])})
                    yield {name: each[0] for name, each in answer.items()}

            return SimpleNamespace(iter_rows=rows)

        return SimpleNamespace(map_batches=map_batches, context=SimpleNamespace())


def asked(monkeypatch: pytest.MonkeyPatch, ray: StandIn) -> StandIn:
    """Let this be what is imported as Ray."""
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setitem(sys.modules, "ray.data", ray.data)
    return ray


@pytest.mark.parametrize("runs", [False, True])
def test_ray_is_started_unless_it_runs(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: bool
) -> None:
    ray = asked(monkeypatch, StandIn(runs))
    score(saved, tmp_path / "here", top=2, partition_size=60, quiet=True)
    score(saved, tmp_path / "there", top=2, partition_size=60, engine="ray", quiet=True)
    assert contents(tmp_path / "there") == contents(tmp_path / "here")
    workers = ("workers", 3, None)  # as many as there are processors
    assert ray.said == ([workers] if runs else ["init", workers, "shutdown"])


def test_no_more_workers_than_partitions_and_a_card_for_each(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = asked(monkeypatch, StandIn(runs=True))
    with device_named("cuda", torch.device("cpu")):
        score(saved, tmp_path / "out", partition_size=100, engine="ray", workers=8, device="cuda", quiet=True)
    assert ray.said == [("workers", 2, 1)]


def test_what_ray_had_written_stays_when_it_stops(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {"top": 2, "partition_size": 40, "engine": "ray", "quiet": True}
    ray = asked(monkeypatch, StandIn(failing=RayError("first\nthe node was lost")))
    with pytest.raises(HeadstartError, match=r"Ray stopped .*the node was lost.*; finished files stay"):
        score(saved, tmp_path / "out", **settings)
    assert ray.said[-1] == "shutdown"
    assert len(contents(tmp_path / "out")) == 2
    ray.failing = None
    assert score(saved, tmp_path / "out", **settings).found == 2


def test_a_cluster_that_cannot_be_reached_is_said(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked(monkeypatch, StandIn(failing=ConnectionError("nobody there")))
    with pytest.raises(HeadstartError, match="Ray cannot be started or reached: nobody there"):
        score(saved, tmp_path / "out", engine="ray", quiet=True)


def test_files_that_land_elsewhere_are_noticed(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked(monkeypatch, StandIn(runs=True))
    monkeypatch.setattr(Worker, "write", lambda self, number: None)
    with pytest.raises(HeadstartError, match="name a folder that all machines of the cluster share"):
        score(saved, tmp_path / "out", engine="ray", quiet=True)


def test_a_worker_that_cannot_open_the_model_says_why(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = asked(monkeypatch, StandIn(runs=True))
    copy = shutil.copytree(saved, tmp_path / "model")

    def change_meanwhile() -> dict[str, float]:
        with Headstart.updating(copy) as model:
            model.add_feature("meanwhile")
        return {"CPU": 1.0}

    ray.cluster_resources = change_meanwhile  # type: ignore[method-assign]
    with pytest.raises(HeadstartError, match="has changed since scoring began"):
        score(copy, tmp_path / "out", engine="ray", quiet=True)


def test_the_error_of_a_worker_arrives_as_it_is(
    saved: Path, tmp_path: Path, cells: pa.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked(monkeypatch, StandIn(runs=True))
    wrong = pa.concat_tables([cells, pa.table({"row": ["u1"], "feature": ["f1000"]})])
    with pytest.raises(UnknownNameError, match="the frame: unknown feature 'f1000'"):
        score(saved, tmp_path / "out", pairs=wrong, engine="ray", workers=1, partition_size=250, quiet=True)
