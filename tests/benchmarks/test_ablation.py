"""Ablations and rivals: formulas against loops, the contract of adapters, and the tables of the page."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.stand_ins import registered
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from ablation.prequential import BINS, LENGTH, Stream, order_observations, stream
from ablation.protocol import RESULTS, Split
from ablation.report import PAGE, filled, table
from ablation.rivals import AttentiveHeads, register_rivals
from headstart.adapters import ADAPTERS, Adapter, adapter_config, build_adapter
from headstart.backbones.base import backbone_config
from headstart.core import FeatureBatch, Heads, RowStates, predict_cells
from headstart.core.types import Knowledge
from headstart.datasets import synthetic_ratings, synthetic_responses
from headstart.experiments.presets import PAPER, Preset
from headstart.table import Table
from headstart.testing import ADAPTER_CHECKS, Fixture, train_fixture
from headstart.training.table_inputs import feature_batch

RIVALS = ("cnp", "anp", "dropoutnet", "mwuf")

SMALL = {
    "name": "pvae",
    "embedding": 4,
    "set_size": 5,
    "encoder_layers": [8],
    "latent": 3,
    "decoder_layers": [6],
}


def trained(adapter: str, table: str = "ratings") -> Fixture:
    return train_fixture(table, adapter_config(adapter), backbone_config(SMALL))


@pytest.fixture(scope="module")
def rivals() -> Iterator[None]:
    with registered(ADAPTERS):
        register_rivals()
        yield


@pytest.fixture(scope="module", params=RIVALS)
def fixture(request, rivals) -> Fixture:
    torch.manual_seed(0)
    return trained(request.param)


def test_rivals_keep_the_contract(fixture) -> None:
    with torch.no_grad():
        for check in ADAPTER_CHECKS:
            check(fixture)


def test_rivals_are_their_formulas(fixture) -> None:
    """One feature and one target at a time, as in the papers."""
    adapter, batch, knowledge = fixture.adapter, fixture.new, fixture.knowledge
    with torch.no_grad():
        states = adapter.refine(knowledge.states)
        heads = adapter.adapt(batch, states)
        predicted = predict_cells(heads, states, batch.cells, batch.kinds, knowledge.likelihood).logits
        position = 0
        for n in range(len(batch)):
            one = batch.take(torch.tensor([n]))
            described = adapter.h(one.metadata[0])
            context = list(zip(one.cells.index.tolist(), one.cells.values.tolist(), strict=True))
            for row in one.cells.index.tolist():
                expected = FORMULAS[adapter.config.name](adapter, knowledge, described, context, row)
                torch.testing.assert_close(predicted[position], expected, rtol=1e-4, atol=1e-5)
                position += 1
    assert position > 10


Context = list[tuple[int, float]]


def _cnp(adapter: Adapter, knowledge: Knowledge, described: Tensor, context: Context, row: int) -> Tensor:
    code = knowledge.states.code
    embedded = [adapter.e(torch.cat([code[i], torch.tensor([x])])) for i, x in context]
    r = torch.stack(embedded).mean(0)
    return adapter.to_output(adapter.to_hidden(torch.cat([r, described, code[row]])).relu())[0]


def _anp(adapter: Adapter, knowledge: Knowledge, described: Tensor, context: Context, row: int) -> Tensor:
    code = knowledge.states.code
    scores = torch.stack([adapter.query(code[row]) @ adapter.key(code[i]) for i, _ in context])
    weights = torch.softmax(scores / adapter.config.encoding**0.5, dim=0)
    embedded = [adapter.e(torch.cat([code[i], torch.tensor([x])])) for i, x in context]
    r = sum(w * e for w, e in zip(weights, embedded, strict=True))
    of_metadata = adapter.of_metadata(torch.cat([described, torch.ones(1)]))
    return adapter.to_output((adapter.of_row(code[row]) + adapter.of_context(r) + of_metadata).relu())[0]


def _dropoutnet(
    adapter: Adapter, knowledge: Knowledge, described: Tensor, context: Context, row: int
) -> Tensor:
    code, mean = knowledge.states.code, knowledge.cells.values.mean()
    preferences = sum((x - mean) * code[i] for i, x in context) / len(context)
    theta = adapter.net(torch.cat([preferences, described]))
    return theta[:-1] @ knowledge.states.activation[row] + theta[-1]


def _mwuf(adapter: Adapter, knowledge: Knowledge, described: Tensor, context: Context, row: int) -> Tensor:
    code, mean, d = knowledge.states.code, knowledge.cells.values.mean(), knowledge.states.activation
    theta = torch.cat([knowledge.heads.weight.mean(0), knowledge.heads.bias.mean()[None]]).requires_grad_()
    optimiser = torch.optim.Adam([theta], lr=adapter.config.learning_rate)
    kinds = torch.ones(1, dtype=torch.int64)  # ratings
    for _ in range(adapter.config.steps):
        with torch.enable_grad():
            logits = torch.stack([theta[:-1] @ d[i] + theta[-1] for i, _ in context])
            values = torch.tensor([x for _, x in context])
            loss = knowledge.likelihood.nll(logits, values, kinds.expand(len(context))).mean()
            optimiser.zero_grad()
            loss.backward()
        optimiser.step()
    users = [torch.cat([code[i], (x - mean) * code[i]]) for i, x in context]
    shift = adapter.shift(torch.stack(users).mean(0))
    warm = adapter.scale(torch.cat([described, torch.ones(1)])) * theta.detach() + shift
    return warm[:-1] @ d[row] + warm[-1]


FORMULAS = {"cnp": _cnp, "anp": _anp, "dropoutnet": _dropoutnet, "mwuf": _mwuf}


class Remembering(Adapter):
    """Predict the mean of the context: the slow check of a stream."""

    def adapt(self, batch: FeatureBatch, states: RowStates) -> Heads:
        sums = torch.bincount(batch.cells.lines, batch.cells.values, len(batch)).float()
        return Heads(torch.zeros(len(batch), states.activation.shape[1]), sums / batch.shots.clamp(min=1))


def test_a_stream_predicts_each_observation_from_those_before_it() -> None:
    table = synthetic_responses(200, 8, 0.8)
    fixture = trained("mean", "binary")
    batch = order_observations(feature_batch(table), seed=1)
    states = RowStates(torch.zeros(200, 1), torch.zeros(200, 1), torch.zeros(200, 2))
    knowledge = replace(fixture.knowledge, states=states)
    adapter = Remembering(adapter_config("mean"), knowledge)
    result = stream(adapter, knowledge, batch)
    assert result.mean.shape == (LENGTH, len(batch))
    for n in range(len(batch)):
        values = batch.cells.take(torch.tensor([n])).values.numpy()
        np.testing.assert_array_equal(result.truth[:, n], values[:LENGTH])
        for arrived in (0, 1, 5, LENGTH - 1):
            mean = values[:arrived].mean() if arrived else 0.0
            assert result.mean[arrived, n] == pytest.approx(1 / (1 + np.exp(-mean)), abs=1e-6)
    assert list(result.scores("auroc")) == list(BINS[:-1])
    known = Stream(np.array([[0.0, 1.0]] * LENGTH), np.array([[0.0, 0.0]] * LENGTH))
    assert known.scores("rmse")[8] == pytest.approx(np.sqrt(0.5))


def small(preset: Preset) -> Preset:
    quick = preset.quick()
    return quick.revised(backbone=backbone_config(SMALL))


def test_a_split_trains_on_part_of_the_tasks_and_scores_the_same_test() -> None:
    data: Table = synthetic_ratings(60, 60, 0.6)
    preset = small(PAPER["movielens"])
    split = Split.prepare(data, preset, 0, shots=(0, 2))
    all_tasks, few = (split.train(preset.chn, features=n) for n in (None, 4))
    assert set(split.score(all_tasks, "rmse")) == {0, 2}
    assert split.score(all_tasks, "rmse") != split.score(few, "rmse")
    assert split.score(few, "rmse") == split.score(split.train(preset.chn, features=4), "rmse")


def test_the_tables_of_the_page_are_those_of_the_results() -> None:
    page = PAGE.read_text()
    assert filled(page) == page
    names = {path.stem for path in RESULTS.glob("*.json")}
    assert all(f"<!-- {name} -->" in page for name in names)
    for name in names:
        assert "settings" in json.loads((RESULTS / f"{name}.json").read_text())


def test_an_incomplete_split_is_left_out() -> None:
    records = [
        {"split": split, "variant": variant, "shots": 0, "value": 0.5 + split}
        for split, variant in ((0, "a"), (0, "b"), (1, "a"))
    ]
    assert "1 split" in table({"study": "", "metric": "rmse", "records": records})


def test_attentive_heads_hold_a_bounded_context(rivals) -> None:
    fixture = trained("anp")
    config = fixture.adapter.config.revised(most=1)
    short = build_adapter(config, fixture.knowledge)
    states = short.refine(fixture.knowledge.states)
    assert isinstance(fixture.adapter.adapt(fixture.new, states), AttentiveHeads)
    with pytest.raises(ValueError, match="contexts of more than 1 observations"):
        short.adapt(fixture.new, states)
