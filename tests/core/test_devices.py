"""Predictions are computed on the device that is asked for: every tensor follows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from tests.model.conftest import able, ratings_table
from tests.model.test_prediction import mixed_table
from tests.pretended import DEVICE, Pretending, device_named
from tests.states import state_of
from tests.test_cli import run

from headstart import Headstart, InputError
from headstart.core.devices import device_of
from headstart.model.cell_predictions import predict_features, predict_pairs
from headstart.scoring import Scorer, score

without_card = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")


def test_the_pretended_device_finds_what_was_left_behind() -> None:
    with Pretending():
        there = torch.arange(6.0).reshape(2, 3).to(DEVICE)
        assert {each.device for each in (there @ there.T, there.new_zeros(2), there[0])} == {DEVICE}
        assert torch.zeros(2, device=there.device).device == DEVICE
        assert there.cpu().numpy().tolist() == there.tolist() == [[0, 1, 2], [3, 4, 5]]
        assert float(there.sum()) == 15
        assert there[torch.tensor([1])].tolist() == [[3, 4, 5]]
        with pytest.raises(RuntimeError, match="expected all tensors to be on the same device"):
            there + torch.ones(3)
        with pytest.raises(RuntimeError, match="expected all tensors to be on the same device"):
            there.index_select(0, torch.tensor([1]))
        with pytest.raises(RuntimeError):
            there.numpy()


@pytest.mark.parametrize(("backbone", "adapter"), [("factorisation", "bayes"), ("pvae", "mean-head")])
def test_cells_of_all_kinds_are_computed_there(backbone: str, adapter: str) -> None:
    quick = {"epochs": 1}
    model = Headstart(backbone, adapter, quick, quick, quiet=True).fit(mixed_table("mixed"))
    fitted, names = state_of(model), list(model.features)
    random = np.random.default_rng(1)
    rows, which = random.integers(0, len(model.rows), 300), random.integers(0, len(names), 300)
    here = predict_features(fitted, fitted.rows, fitted.states, names)
    few = predict_features(fitted, fitted.rows, fitted.states, names[:2])
    pairs = predict_pairs(fitted, rows, names, which, 0.9)
    with Pretending():
        there = predict_features(fitted, fitted.rows, fitted.states, names, DEVICE)
        few_there = predict_features(fitted, fitted.rows, fitted.states, names[:2], DEVICE)
        pairs_there = predict_pairs(fitted, rows, names, which, 0.9, DEVICE)
    for own, other in ((here, there), (few, few_there)):
        assert np.array_equal(own.mean, other.mean)
        assert np.array_equal(own.std, other.std)
    assert all(np.array_equal(own, other) for own, other in zip(pairs, pairs_there, strict=True))


def test_a_scorer_computes_on_its_device(tmp_path: Path) -> None:
    able().save(tmp_path / "m")
    rows = pa.table({"row": ["u1", "u7"]})
    cells = rows.append_column("feature", pa.array(["f3", "f1"]))
    here = [Scorer(tmp_path / "m")(rows), Scorer(tmp_path / "m")(cells), Scorer(tmp_path / "m", top=3)(rows)]
    with device_named("card"), Pretending() as card:
        there = [Scorer(tmp_path / "m", device="card")(each) for each in (rows, cells)]
        there.append(Scorer(tmp_path / "m", top=3, device="card")(rows))
    assert card.products[True] > 0
    assert all(own.equals(other) for own, other in zip(here, there, strict=True))


@pytest.mark.parametrize("name", [None, "cpu", "cpu:0"])
def test_the_processor_is_always_there(name: str | None) -> None:
    assert device_of(name).type == "cpu"


@without_card
@pytest.mark.parametrize("name", ["cuda", "cuda:1"])
def test_a_card_that_is_not_there_is_a_clear_error(name: str, tmp_path: Path) -> None:
    Headstart(adapter="bayes", quiet=True).fit(ratings_table()).save(tmp_path / "m")
    message = f"device='{name}': this build of torch .* finds no CUDA device; .*device='cpu'"
    with pytest.raises(InputError, match=message):
        score(tmp_path / "m", tmp_path / "out", device=name)
    assert not (tmp_path / "out").exists()
    done = run("predict", tmp_path / "m", "--engine", "local", "--out", tmp_path / "out", "--device", name)
    assert done.returncode == 1
    assert f"--device {name}: this build of torch" in done.stderr.replace("\n", " ")


@pytest.mark.parametrize("name", ["gpu", "meta", "mps:x", 3, "vulkan"])
def test_what_is_no_device_is_refused(name: object) -> None:
    with pytest.raises(InputError, match=r"must be 'cpu' or 'cuda'.*got"):
        device_of(name)
