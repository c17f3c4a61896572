"""Training on another device: every tensor follows, the model is the same, and nothing is left there."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from sklearn.base import clone
from tests.limits import Limits
from tests.pretended import DEVICE, Pretended, Pretending, device_named
from tests.states import state_of
from tests.test_cli import run
from torch import Tensor, nn

from headstart import Headstart, InputError, Table
from headstart.adapters.base import ADAPTERS, adapter_config, adapter_names
from headstart.backbones.base import BACKBONES, backbone_config
from headstart.core.devices import compute_on, move, training_device
from headstart.core.networks import SharedDropout, batch_share
from headstart.datasets import synthetic_mixed, synthetic_ratings, synthetic_responses
from headstart.distributed import ProcessGroup, use_group
from headstart.errors import MemoryLimitError
from headstart.linalg.ragged import (
    TransposedSum,
    folded_sum,
    sampled_products,
    segment_sum,
    segment_weighted_sum,
)
from headstart.progress import Reporter
from headstart.table.cells import Cells
from headstart.training.judge import train_best
from headstart.training.recipe import Recipe

SMALL = {"name": "factorisation", "latent": 3, "signature": 2, "sweeps": 5}
BACKBONE: dict[str, dict[str, Any]] = {
    "factorisation": SMALL,
    "pvae": {"name": "pvae", "latent": 4, "decoder_layers": (6,), "encoder_layers": (8,)},
    "feedforward": {"name": "feedforward", "code": 4, "layers": (6,)},
}
QUICK = {"epochs": 1, "min_steps": 2}
without_card = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")


@pytest.fixture(autouse=True)
def _card(limits: Limits) -> Iterator[None]:
    """Let the name "card" be that of the pretended device, and let there be less to compute."""
    limits(ridge_strengths=torch.tensor([0.1, 1.0], dtype=torch.float64))
    limits(cross_fit_rounds=2, cross_fit_folds=3, judge_folds=1)
    with device_named("card"):
        yield


def ratings() -> Table:
    return synthetic_ratings(30, 12, 0.5)


def mixed() -> Table:
    return synthetic_mixed(30, 12)


def answers() -> Table:
    return synthetic_responses(30, 12)


def trained_there(table: Table, **settings: Any) -> Headstart:
    """Fit on the processor and on the pretended device; the two models predict the same."""
    settings = {"pretraining": QUICK, "metatraining": QUICK, "quiet": True, **settings}
    here = Headstart(**settings).fit(table)
    with Pretending():
        there = Headstart(**settings, device="card").fit(table)
    own, other = here.predict(), there.predict()
    assert np.allclose(own.mean, other.mean, rtol=1e-6, atol=1e-7)
    assert np.allclose(own.std, other.std, rtol=1e-6, atol=1e-7)
    assert there.info == here.info
    assert state_of(there).backbone.training is state_of(here).backbone.training is False
    found = list(tensors(state_of(there), set()))
    assert found
    assert not any(isinstance(each, Pretended) for each in found)
    assert not any(each.requires_grad for each in found)
    return there


def tensors(thing: Any, seen: set[int]) -> Iterator[Tensor]:
    """All tensors that can be reached from what a model holds."""
    if id(thing) in seen or isinstance(thing, (str, bytes, type)):
        return
    seen.add(id(thing))
    if isinstance(thing, Tensor):
        yield thing
    elif isinstance(thing, Mapping):
        for each in thing.values():
            yield from tensors(each, seen)
    elif isinstance(thing, (list, tuple, set)):
        for each in thing:
            yield from tensors(each, seen)
    elif isinstance(thing, nn.Module) or is_dataclass(thing) or hasattr(thing, "__dict__"):
        yield from tensors(vars(thing), seen)
        slots = [each.name for each in fields(thing)] if is_dataclass(thing) else []
        for name in slots:
            yield from tensors(getattr(thing, name, None), seen)


# -- whole fits -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "adapter"),
    [(ratings, "bayes"), (mixed, "bayes"), (answers, "bayes"), (mixed, "chn-bayes-blend")],
)
def test_the_factorisation_with_closed_forms_is_trained_there(table: Any, adapter: str) -> None:
    trained_there(table(), backbone=SMALL, adapter=adapter)


def one_of_each() -> list[str]:
    """A name of every adapter."""
    names = {ADAPTERS.part_of(adapter_config(name)): name for name in reversed(adapter_names())}
    assert set(names) == set(ADAPTERS.parts().values())
    return [name for name in names.values() if "bayes" not in name]


@pytest.mark.parametrize("name", [*one_of_each(), "maml-3"])
def test_every_adapter_is_trained_there(name: str) -> None:
    trained_there(ratings(), backbone=BACKBONE["feedforward"], adapter=name)


@pytest.mark.parametrize("name", sorted(BACKBONES.parts()))
def test_every_backbone_is_trained_there(name: str) -> None:
    trained_there(mixed(), backbone=BACKBONE[name], adapter="chn")


def test_the_judge_computes_there() -> None:
    model = trained_there(answers(), backbone=SMALL)
    assert len(state_of(model).judgement.candidates) == 2


def test_networks_are_chosen_there(limits: Limits) -> None:
    limits(meta_training_features=12, one_training_observations=0)
    model = trained_there(ratings(), backbone=SMALL)
    tried = {name.removesuffix(", with known heads") for name in state_of(model).judgement.candidates}
    assert tried == {"bayes", "chn-bayes"}


def test_features_that_are_sampled_are_trained_on_there(limits: Limits) -> None:
    limits(cross_fit_numbers=2**9)
    model = trained_there(ratings(), backbone=SMALL, adapter="bayes")
    assert state_of(model).knowledge.cross_fitted is not None


def test_features_of_their_own_teach_the_adapter_there() -> None:
    trained_there(ratings(), backbone=SMALL, adapter="chn-bayes", meta_share=0.4)


def test_old_observations_count_less_there() -> None:
    table = ratings()
    names = {
        "row": [table.rows[i] for i in table.row_index],
        "feature": [table.features[j] for j in table.feature_index],
        "value": table.values,
        "at": np.arange(len(table)) % 100.0,
    }
    timed = Table.read(pa.table(names), time="at", kinds="rating:1:5", quiet=True)
    trained_there(timed, backbone=SMALL, adapter="bayes", half_life=30)


# -- the model afterwards -------------------------------------------------------------------------


def test_the_model_lives_on_the_processor(tmp_path: Path) -> None:
    table = ratings()
    model = trained_there(table, backbone=SMALL, adapter="chn-bayes")
    plain = Headstart(SMALL, "chn-bayes", QUICK, QUICK, quiet=True).fit(table)
    for each in (model, plain):
        each.add_feature("new", observations={table.rows[0]: 5, table.rows[3]: 1})
        each.observe_feature(table.features[0], {table.rows[1]: 2})
        each.add_rows({"someone": {table.features[1]: 4}})
    assert np.allclose(model.predict().mean, plain.predict().mean, rtol=1e-6, atol=1e-7)
    model.save(tmp_path / "m")
    assert not any("card" in path.read_text() for path in (tmp_path / "m").glob("*.json"))
    loaded = Headstart.load(tmp_path / "m")
    assert loaded.device is None
    assert np.array_equal(loaded.predict().mean, model.predict().mean)
    again = loaded.refit().predict().mean
    loaded.device = "card"
    with Pretending():
        assert np.allclose(loaded.refit().predict().mean, again, rtol=1e-6, atol=1e-7)


def test_nothing_is_left_on_the_device() -> None:
    gc.collect()
    before = {id(each) for each in gc.get_objects() if type(each) is Pretended}
    model = trained_there(mixed(), backbone=SMALL, adapter="bayes")
    gc.collect()
    left = [each for each in gc.get_objects() if type(each) is Pretended and id(each) not in before]
    assert model.device == "card"
    # Small tables of indices by size, kept for the next training.
    assert all(each.numel() < 100 and each.dtype == torch.int64 for each in left)


@pytest.mark.parametrize("networks", [False, True])
def test_every_stage_computes_there(networks: bool, limits: Limits) -> None:
    """Sweeps, priors, heads as if new, the judge and networks: no matrix product is left behind."""
    limits(meta_training_features=12 if networks else 100, one_training_observations=0)
    recipe = Recipe(backbone=backbone_config(SMALL), metatraining=QUICK)
    with Pretending() as card:
        train_best(
            ratings(), np.arange(12), recipe, reporter=Reporter(quiet=True), checkpoint=lambda _: None,
            device=DEVICE,
        )  # fmt: skip
    assert card.products[True] > 100
    assert card.products[False] == 0


@pytest.mark.parametrize("backbone", ["factorisation", "pvae"])
def test_a_checkpoint_knows_no_device(backbone: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "backbone": BACKBONE[backbone], "adapter": "chn", "pretraining": QUICK, "metatraining": QUICK,
        "quiet": True,
    }  # fmt: skip
    table = ratings()
    with Pretending():
        there = Headstart(**settings, device="card").fit(table, checkpoint=tmp_path / "c")
        again = Headstart(**settings, device="card").fit(table, checkpoint=tmp_path / "c", resume=True)
    here = Headstart(**settings).fit(table, checkpoint=tmp_path / "c", resume=True)
    for each in (again, here):
        assert np.allclose(each.predict().mean, there.predict().mean, rtol=1e-6, atol=1e-7)


def test_sweeps_go_on_there(tmp_path: Path) -> None:
    table, settings = ratings(), {"backbone": SMALL, "adapter": "bayes", "quiet": True}
    with use_group(ProcessGroup(launched=True)):
        here = Headstart(**settings).fit(table)
        with Pretending():
            Headstart(**settings, device="card").fit(table, checkpoint=tmp_path / "c")
            there = Headstart(**settings, device="card").fit(table, checkpoint=tmp_path / "c", resume=True)
    assert np.allclose(here.predict().mean, there.predict().mean, rtol=1e-6, atol=1e-7)


# -- the setting ----------------------------------------------------------------------------------


def test_the_device_is_a_parameter_like_others() -> None:
    model = Headstart(device="cuda")
    assert model.get_params()["device"] == clone(model).device == "cuda"
    assert repr(model) == "Headstart(device='cuda')"
    assert Headstart().device is None


def test_the_processor_is_the_default() -> None:
    named, default = (
        Headstart(SMALL, "bayes", quiet=True, device=name).fit(ratings()).predict() for name in ("cpu", None)
    )
    assert np.array_equal(named.mean, default.mean)
    assert np.array_equal(named.std, default.std)


@without_card
def test_a_card_that_is_not_there_is_refused_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"device='cuda': this build of torch .* finds no CUDA device"):
        Headstart(device="cuda").fit(tmp_path)
    with pytest.raises(InputError, match=r"must be 'cpu' or 'cuda'.*got 'mps'"):
        Headstart(device="mps").fit(tmp_path)
    done = run("fit", tmp_path / "none.csv", "--out", tmp_path / "m", "--device", "cuda")
    assert done.returncode == 1
    assert "--device cuda: this build of torch" in done.stderr.replace("\n", " ")
    assert list(tmp_path.iterdir()) == []


def test_a_card_that_is_too_small_is_a_clear_error() -> None:
    model = Headstart(SMALL, "bayes", quiet=True, device="card")
    with (
        Pretending(full=True),
        pytest.raises(MemoryLimitError, match=r"not enough memory on meta to fit .* device='cpu'"),
    ):
        model.fit(ratings())


def test_each_process_has_a_card_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert training_device("cuda:1") == torch.device("cuda:1")
    with use_group(ProcessGroup(1, 2, launched=True)):
        assert training_device("cuda") == torch.device("cuda")
        with pytest.raises(InputError, match=r"device='cuda:1' would be the card of every process; .*'cuda'"):
            training_device("cuda:1")


# -- the parts ------------------------------------------------------------------------------------


def test_what_is_new_in_the_block_is_on_the_device() -> None:
    drawn = torch.rand(3, generator=torch.Generator().manual_seed(1))
    with Pretending():
        with compute_on(DEVICE):
            made = [torch.zeros(2), torch.tensor([1, 2]), torch.arange(3), torch.eye(2), torch.randn(1)]
            assert {each.device for each in made} == {DEVICE}
            assert made[1].tolist() == [1, 2]
            there = torch.rand(3, generator=torch.Generator().manual_seed(1))
            assert there.device == DEVICE
            assert torch.equal(there.cpu(), drawn)
            assert torch.ones(1, device="cpu").device.type == "cpu"
        assert torch.zeros(2).device.type == "cpu"
        with pytest.raises(RuntimeError, match="draw other random numbers"):
            there.bernoulli()


def test_what_is_there_already_is_not_moved() -> None:
    cells = Cells(torch.tensor([0, 1]), torch.tensor([0]), torch.ones(1), 1)
    assert move(cells, torch.device("cpu")) is cells
    assert move([cells, None, 3], torch.device("cpu")) == [cells, None, 3]


def test_dropout_is_drawn_by_the_processor() -> None:
    dropout, numbers = SharedDropout(0.5), torch.rand(8, 4) + 1
    with batch_share(0, 8, seed=3):
        here = dropout(numbers)
    assert 0 < int((here == 0).sum()) < here.numel()
    torch.testing.assert_close(here[here != 0], 2 * numbers[here != 0])
    with Pretending(), batch_share(0, 8, seed=3):
        there = dropout(numbers.to(DEVICE))
        assert there.device == DEVICE
        assert torch.allclose(there.cpu(), here)
    with batch_share(2, 8, seed=3):  # whoever has a part of the batch drops the same
        assert torch.equal(dropout(numbers[2:5]), here[2:5])


@pytest.mark.parametrize("dense_from", [0.0, 2.0])
def test_sparse_sums_and_their_gradients_are_the_same_there(dense_from: float, limits: Limits) -> None:
    limits(dense_from_density=dense_from)
    generator = torch.Generator().manual_seed(0)
    at = torch.nonzero(torch.rand(9, 7, generator=generator) < 0.3)
    cells = Cells.from_pairs(at[:, 0], at[:, 1], torch.rand(len(at), generator=generator), 9, 7)
    table, left = (torch.rand(n, 4, generator=generator, requires_grad=True) for n in (7, 9))
    here = _sums(cells, table, left)
    with Pretending():
        own = (each.detach().to(DEVICE).requires_grad_() for each in (table, left))
        there = [each.detach().cpu() for each in _sums(move(cells, DEVICE), *own)]
        turned = move(move(cells, DEVICE).transpose(), torch.device("cpu"))
    assert all(torch.allclose(one, two) for one, two in zip(here, there, strict=True))
    expected = cells.transpose()
    for part in ("indptr", "index", "values"):
        assert torch.equal(getattr(turned, part), getattr(expected, part))


def _sums(cells: Cells, table: Tensor, left: Tensor) -> list[Tensor]:
    """Every sum, and the gradients of all of them together."""
    total = torch.zeros_like(table)
    TransposedSum(cells).add(total, left.detach(), cells.values)
    found = [
        segment_weighted_sum(table, cells, cells.values),
        folded_sum(table, 2 * table - 1, cells),
        sampled_products(left, table, cells),
        segment_sum(table[cells.index], cells.indptr),
    ]
    gradients = torch.autograd.grad(sum((each**2).sum() for each in found), [table, left])
    return [total, *found, *gradients]
