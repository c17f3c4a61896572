"""A model fitted by several processes is the one that a single process fits, up to rounding."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headstart import Headstart, InputError, Table
from headstart.distributed import process_group
from headstart.files import TensorLayout, order_tensors, read_tensors, write_tensors
from headstart.model.fitting import require_shardable
from headstart.table.sources import Source, open_source
from tests.distributed.cases import CASES, KINDS, WEIGHT, as_tested, make_folder, make_metadata
from tests.test_cli import run as run_command

HERE = Path(__file__).parents[2]
ENVIRONMENT = {
    **{name: text for name, text in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")},
    "PYTHONPATH": f"{HERE / 'src'}{os.pathsep}{HERE}",
    "OMP_NUM_THREADS": "1",
}


def torchrun(processes: int, *arguments: object) -> subprocess.Popen[str]:
    start = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes)]
    return subprocess.Popen(
        [*start, *map(str, arguments)],
        env=ENVIRONMENT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=HERE,
    )


def run(processes: int, *arguments: object) -> tuple[int, str]:
    process = torchrun(processes, *arguments)
    output, errors = process.communicate(timeout=240)
    return process.returncode, output + errors


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tables of all cases."""
    root = tmp_path_factory.mktemp("together")
    for case in CASES:
        make_folder(case, root / case)
    make_metadata(root / "metadata.parquet")
    return root


@pytest.fixture(scope="module")
def root(tables: Path) -> Path:
    """The same with the models that three processes fitted to them."""
    status, said = run(3, Path(__file__).with_name("worker.py"), tables)
    assert status == 0, said
    return tables


def single(root: Path, case: str) -> Headstart:
    with as_tested(case):
        metadata = root / "metadata.parquet" if case == "judged" else None
        table = Table.read(
            root / case, metadata=metadata, kinds=KINDS.get(case), weight=WEIGHT.get(case), quiet=True
        )
        return Headstart(quiet=True, **CASES[case]).fit(table)


def require_same(one: Headstart, other: Headstart) -> None:
    """The same names, observations and facts, and the same predictions up to rounding."""
    assert list(one.rows) == list(other.rows)
    assert one.features == other.features
    table, same = one.table(), other.table()
    assert np.array_equal(table.row_index, same.row_index)
    assert np.array_equal(table.feature_index, same.feature_index)
    np.testing.assert_allclose(table.values, same.values, rtol=1e-6)
    assert (table.weights is None) == (same.weights is None)
    if table.weights is not None:
        np.testing.assert_allclose(table.weights, same.weights)
    for name in one.features:
        ours, theirs = one.feature(name), other.feature(name)
        assert (ours.shots, ours.observations) == (theirs.shots, theirs.observations)
    for model in (one, other):
        model.add_feature("new", observations={model.rows[i]: 1.0 for i in (0, 5, 9)})
        model.add_rows({"someone": {model.features[0]: 1.0, model.features[3]: 1.0}})
    ours, theirs = one.predict(), other.predict()
    unit = np.abs(ours.mean).std(0) + ours.std.mean(0)
    assert (np.abs(ours.mean - theirs.mean) / unit).max() < 1e-3
    assert (np.abs(ours.std - theirs.std) / unit).max() < 1e-3


@pytest.mark.parametrize("case", CASES)
def test_three_processes_fit_the_model_of_one(root: Path, case: str, tmp_path: Path) -> None:
    model, expected = Headstart.load(root / f"{case}.model"), single(root, case)
    expected.save(tmp_path / "expected")
    assert model.get_params() == Headstart.load(tmp_path / "expected").get_params()
    if case == "judged":
        assert model.info.chosen == expected.info.chosen
        assert model.info.errors
        for ours, theirs in zip(model.info.errors, expected.info.errors, strict=True):
            assert ours.error == pytest.approx(theirs.error, rel=1e-3)
    require_same(model, expected)


def test_processes_train_on_devices_of_their_own(root: Path) -> None:
    cases = ["large", "mixed", "networks"]
    status, said = run(2, Path(__file__).with_name("worker.py"), root, *cases)
    assert status == 0, said
    for case in cases:
        require_same(Headstart.load(root / f"{case}-there.model"), single(root, case))


def fit_command(root: Path, out: Path, *more: object) -> list[object]:
    keep_often = ("--set", "pretraining.checkpoint_seconds=0", "--set", "backbone.sweeps=6")
    return [
        "-m",
        "headstart",
        "fit",
        root / "ratings",
        "--out",
        out,
        "--adapter",
        "bayes",
        *keep_often,
        *more,
    ]


def kill_one(process: subprocess.Popen[str], progress: Path) -> None:
    """Kill one of the processes that ``torchrun`` started, as soon as there is progress that is new."""
    before = progress.stat().st_mtime_ns if progress.exists() else None
    until = time.monotonic() + 120
    while not progress.exists() or progress.stat().st_mtime_ns == before:
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.002)
    children = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=True)
    os.kill(int(children.stdout.split()[-1]), signal.SIGKILL)


def test_lost_processes_leave_a_checkpoint_for_any_number_of_others(tables: Path, tmp_path: Path) -> None:
    out, progress = tmp_path / "m", tmp_path / "m.checkpoint" / "backbone.safetensors"
    process = torchrun(3, *fit_command(tables, out))
    kill_one(process, progress)
    _, errors = process.communicate(timeout=120)
    assert process.returncode != 0
    assert "run the same command with --resume" in errors or "SIGKILL" in errors
    assert not out.exists()
    refused = run_command(*fit_command(tables, out, "--resume", "--seed", "1")[2:])
    assert refused.returncode == 1
    assert "a fit with other data or settings" in refused.stderr
    # Two go on, and after one of them is lost too, torchrun starts them again by itself.
    process = torchrun(2, "--standalone", "--max-restarts", "1", *fit_command(tables, out, "--resume"))
    kill_one(process, progress)
    output, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    assert "starting from scratch" not in output + errors
    assert not progress.parent.exists()
    require_same(Headstart.load(out), Headstart(quiet=True, **CASES["ratings"]).fit(tables / "ratings"))


def test_what_cannot_be_shared_is_refused_once(tables: Path, tmp_path: Path) -> None:
    status, said = run(2, *fit_command(tables, tmp_path / "m", "--half-life", "3 days"))
    assert status != 0
    assert said.count("--half-life is not supported under torchrun") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"backbone": "pvae"}, "the backbone 'pvae' is trained by one process"),
        ({"adapter": "knn-10"}, "the adapter 'knn' is trained by one process"),
        ({"adapter": "bayes", "meta_share": 0.3}, "meta_share= is not supported under torchrun"),
    ],
)
def test_parts_that_need_all_rows_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        require_shardable(Headstart(**settings).checked_settings())


def test_only_parquet_is_read_in_parts(tmp_path: Path) -> None:
    path = tmp_path / "values.csv"
    path.write_text("row,feature,value\na,x,1\n")
    with pytest.raises(InputError, match=r"values\.csv cannot be read by several processes"):
        open_source(path).part(0, 2)


def test_the_parts_of_a_folder_are_all_of_it_in_order(tmp_path: Path) -> None:
    source = open_source(make_folder("ratings", tmp_path / "ratings"))

    def lines(given: Source) -> list[Any]:
        return [line for batch in given.batches(["row", "feature"], ["value"]) for line in batch.to_pylist()]

    for processes in (1, 2, 3, 5, 11):
        parts = [lines(source.part(rank, processes)) for rank in range(processes)]
        assert [line for part in parts for line in part] == lines(source)
        assert processes > 8 or all(len(part) < len(lines(source)) or processes == 1 for part in parts)


def test_a_file_written_in_pieces_is_read_as_one(tmp_path: Path) -> None:
    tensors = {
        "a": torch.arange(6.0).reshape(3, 2),
        "b": torch.tensor([True, False]),
        "c": torch.arange(5),
        "d": torch.zeros(0, 4),
        "e": torch.tensor(2.5, dtype=torch.float64),
    }
    layouts = {name: TensorLayout(each.dtype, tuple(each.shape)) for name, each in tensors.items()}
    pieces = [part for name in order_tensors(layouts) for part in _pieces(tensors[name])]
    digest, size = write_tensors(tmp_path / "file.safetensors", layouts, pieces)
    content = (tmp_path / "file.safetensors").read_bytes()
    assert (hashlib.sha256(content).hexdigest(), len(content)) == (digest, size)
    read, facts = read_tensors(tmp_path / "file.safetensors")
    assert facts is None
    assert {name: each.tolist() for name, each in read.items()} == {
        name: each.tolist() for name, each in tensors.items()
    }
    with pytest.raises(RuntimeError, match="bytes were given"):
        write_tensors(tmp_path / "other.safetensors", layouts, pieces[:-1])
    assert not (tmp_path / "other.safetensors").exists()


def _pieces(tensor: torch.Tensor) -> list[torch.Tensor]:
    return [tensor[:1], tensor[1:]] if tensor.dim() else [tensor]


def test_by_itself_a_process_changes_nothing() -> None:
    numbers = torch.arange(3.0)
    assert process_group().is_single
    assert process_group().is_main
    assert not process_group().launched
    assert process_group().all_reduce_sum(numbers) is numbers
    assert process_group().all_gather(numbers) is numbers
    assert process_group().span(3) == (0, 3)
    assert process_group().all_gather_texts(["a"]) == [["a"]]
    assert process_group().all_or_none(lambda: 5) == 5
