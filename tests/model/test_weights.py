"""Weights of observations: an observation of the weight 2 counts as two observations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from tests.adapters.conftest import Tiny
from tests.adapters.conftest import tiny as tiny  # a fixture
from tests.limits import Limits
from tests.model.conftest import CLOSED, ratings_table

from headstart.adapters import adapter_config, build_adapter
from headstart.core.likelihood import Likelihood, LikelihoodConfig
from headstart.core.predictive import Predictive
from headstart.errors import InputError, UnknownNameError
from headstart.evaluate.metrics import score
from headstart.model import Headstart
from headstart.model.saving.export import long_form
from headstart.table import Table
from headstart.table.cells import Cells
from headstart.table.kinds import KindType
from headstart.training.calibration import Calibration, Outcome
from headstart.training.comparison import FeatureErrors


def weighted_frame(seed: int = 0) -> pa.Table:
    frame = long_form(ratings_table())
    weights = np.random.default_rng(seed).gamma(2.0, 0.5, len(frame))
    return frame.append_column("w", pa.array(weights))


@cache
def fitted(weight: str | None = "w", adapter: str = "bayes") -> Headstart:
    return Headstart(adapter=adapter, quiet=True).fit(weighted_frame(), weight=weight, kinds="rating:1:5")


def fresh() -> Headstart:
    return Headstart.from_state(fitted().state)


def same(one: Headstart, other: Headstart) -> None:
    np.testing.assert_array_equal(one.predict().mean, other.predict().mean)
    np.testing.assert_array_equal(one.predict().std, other.predict().std)


# -- reading -----------------------------------------------------------------------------------------


def test_weights_are_read_with_their_observations(tmp_path: Path) -> None:
    frame = pa.table({"row": [*"bab"], "feature": [*"xxy"], "value": [1, 2, 3], "w": [0.5, 2.0, 1.0]})
    table = Table.read(frame, weight="w", kinds="rating:1:5")
    assert table.weights is not None
    assert table.weights.tolist() == [2.0, 0.5, 1.0]  # sorted by row and feature
    assert "weights: 0.5 to 2, mean 1.167" in table.describe()
    frame.to_pandas().to_csv(tmp_path / "t.csv", index=False)
    assert Table.read(tmp_path / "t.csv", weight="w", kinds="rating:1:5") == table
    assert Table.read(frame, kinds="rating:1:5").weights is None
    assert table.fingerprint() != Table.read(frame, kinds="rating:1:5").fingerprint()
    assert table.with_features(["x"]).weights.tolist() == [2.0, 0.5]


def test_weights_of_the_wide_form_belong_to_rows() -> None:
    frame = pd.DataFrame({"row": [*"ab"], "x": [1.0, 2.0], "y": [3.0, None], "w": [0.5, 2.0]})
    table = Table.read(frame, weight="w", kinds="rating:1:5")
    assert list(table.features) == ["x", "y"]
    assert table.weights.tolist() == [0.5, 0.5, 2.0]


def test_large_weights_get_a_note() -> None:
    frame = pa.table({"row": [*"ab"], "feature": [*"xx"], "value": [1, 2], "w": [900.0, 1100.0]})
    notes = Table.read(frame, weight="w", kinds="rating:1:5").notes
    assert any("divide survey weights by their mean" in note for note in notes)


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("nan"), float("inf"), None, 1e12])
@pytest.mark.parametrize("form", ["long", "wide"])
def test_impossible_weights_are_refused(wrong: float | None, form: str) -> None:
    lines = {"row": [*"ab"], "feature": [*"xx"], "value": [1.0, 2.0]}
    frame = lines if form == "long" else {"row": [*"ab"], "x": [1.0, 2.0]}
    with pytest.raises(InputError, match=r"the weight of row 'b', feature 'x' is .*above 0"):
        Table.read(pa.table({**frame, "w": [1.0, wrong]}), weight="w", kinds="rating:1:5")


def test_columns_of_weights_that_do_not_fit() -> None:
    frame = pa.table({"row": [*"ab"], "feature": [*"xx"], "value": [1.0, 2.0], "w": ["a", "b"]})
    with pytest.raises(InputError, match="'w' contains text"):
        Table.read(frame, weight="w")
    with pytest.raises(UnknownNameError, match="no column 'wight'"):
        Table.read(frame, weight="wight")
    with pytest.raises(InputError, match="another role"):
        Table.read(frame, weight="value")


def test_repeated_observations_with_weights() -> None:
    frame = pa.table({"row": [*"aa"], "feature": [*"xx"], "value": [1.0, 4.0], "w": [1.0, 2.0]})
    with pytest.raises(InputError, match="observed twice"):
        Table.read(frame, weight="w", kinds="rating:1:5")
    last = Table.read(frame, weight="w", kinds="rating:1:5", duplicates="last")
    assert (last.values.tolist(), last.weights.tolist()) == ([4.0], [2.0])
    mean = Table.read(frame, weight="w", kinds="rating:1:5", duplicates="mean")
    assert (mean.values.tolist(), mean.weights.tolist()) == ([3.0], [1.5])
    equal = frame.set_column(2, "value", pa.array([4.0, 4.0]))
    with pytest.raises(InputError, match="with the weights 1 and 2"):
        Table.read(equal, weight="w", kinds="rating:1:5")


# -- heads, losses, calibration and metrics: weight 2 is counted twice ---------------------------------


def repeated(cells: Cells, weights: torch.Tensor) -> Cells:
    """The observations, each as often as its whole weight says."""
    times = weights.long()
    lines, index, values = (
        torch.repeat_interleave(part, times) for part in (cells.lines, cells.index, cells.values)
    )
    return Cells.from_pairs(lines, index, values, len(cells), cells.width)


@pytest.mark.parametrize("name", ["bayes", "chn-bayes", "chn", "mean", "train-5"])
@pytest.mark.parametrize("link", ["sigmoid", "identity"])
@pytest.mark.parametrize("vague", [True, False])
def test_heads_count_an_observation_as_often_as_its_weight(
    name: str, link: str, vague: bool, tiny: Callable[..., Tiny]
) -> None:
    both = (KindType.BINARY, KindType.RATING)
    world = tiny(known=both * 4, new=both * 3, link=link, vague=vague)
    torch.manual_seed(0)
    adapter = build_adapter(adapter_config(name), world.knowledge).eval()
    states, cells = adapter.refine(world.knowledge.states), world.batch.cells
    if name.startswith("train"):  # the head to start from is a hash of the context: take any
        adapter._start.adapt = lambda batch, states: world.knowledge.heads.detach().take(torch.arange(6))
    weights = torch.randint(1, 4, (len(cells.index),), generator=torch.Generator().manual_seed(1)).float()
    heads = adapter.adapt(world.batch.observing(replace(cells, weights=weights)), states)
    expected = adapter.adapt(world.batch.observing(repeated(cells, weights)), states)
    for part, expected_part in zip(heads.parts(), expected.parts(), strict=True):
        torch.testing.assert_close(part, expected_part, rtol=1e-4, atol=1e-5)
    ones = adapter.adapt(world.batch.observing(replace(cells, weights=torch.ones(len(cells.index)))), states)
    for part, expected_part in zip(ones.parts(), adapter.adapt(world.batch, states).parts(), strict=True):
        torch.testing.assert_close(part, expected_part, rtol=1e-6, atol=1e-7)


COUNTS = arrays(np.int64, 24, elements=st.integers(1, 3))
SHARES = arrays(np.float64, 24, elements=st.sampled_from([0.1, 0.2, 0.4, 0.5, 0.7, 0.9]))


@given(COUNTS, SHARES)
@settings(max_examples=25, deadline=None)
def test_metrics_count_a_target_as_often_as_its_weight(times: np.ndarray, mean: np.ndarray) -> None:
    random = np.random.default_rng(0)
    lines, kinds = np.repeat(np.arange(4), 6), np.repeat([0, 1, 0, 1], 6)
    truth, std = random.integers(0, 2, 24).astype(float), random.random(24)
    weighted = score(truth, mean, lines, kinds, std, weights=times.astype(float))
    parts = [np.repeat(part, times) for part in (truth, mean, lines, kinds, std)]
    expected = score(*parts)
    assert weighted.keys() == expected.keys()
    for name, value in weighted.items():
        assert value.value == pytest.approx(expected[name].value, rel=1e-12), name
    halves = score(truth, mean, lines, kinds, std, weights=times / 2)
    assert halves["rmse"].value == pytest.approx(expected["rmse"].value)


def outcome(times: np.ndarray | None, *, binary: bool) -> Outcome:
    random = np.random.default_rng(3)
    feature = torch.arange(400) % 20
    logits, variance = torch.from_numpy(random.normal(0.5, 0.3, 400)), torch.full((400,), 0.02).double()
    truth = torch.from_numpy(random.integers(0, 2, 400) if binary else random.normal(0.5, 0.4, 400)).double()
    kinds = torch.full((400,), int(KindType.BINARY if binary else KindType.RATING))
    likelihood = Likelihood(LikelihoodConfig(rating_link="identity"))
    predictive = Predictive(logits, variance, variance, kinds, likelihood)
    whole = Outcome(predictive, truth, feature, torch.full((400,), binary))
    if times is None:
        return whole
    repeats = torch.from_numpy(times)
    parts = (torch.repeat_interleave(part, repeats) for part in (logits, variance, variance, kinds))
    others = (torch.repeat_interleave(part, repeats) for part in (truth, feature, whole.binary))
    return Outcome(Predictive(*parts, likelihood), *others)


@pytest.mark.parametrize("binary", [True, False])
def test_judge_and_calibration_count_a_target_as_often_as_its_weight(binary: bool) -> None:
    times = np.random.default_rng(4).integers(1, 4, 400)
    weighted = replace(outcome(None, binary=binary), weights=torch.from_numpy(times).double())
    expected = outcome(times, binary=binary)
    one, other = FeatureErrors.of(weighted), FeatureErrors.of(expected)
    assert one.mean == pytest.approx(other.mean)
    assert one.standard_error == pytest.approx(other.standard_error)
    by_weight, by_repeating = (
        Calibration.fit({4: part}, (4,), by_level=True) for part in (weighted, expected)
    )
    torch.testing.assert_close(by_weight.slopes, by_repeating.slopes)
    torch.testing.assert_close(by_weight.shifts, by_repeating.shifts)
    # The ranks of quantiles are rounded to whole observations, which are not the same ones.
    torch.testing.assert_close(by_weight.factors, by_repeating.factors, rtol=0.03, atol=0)
    equal = replace(outcome(None, binary=binary), weights=torch.full((400,), 0.3).double())
    plain, scaled = (
        Calibration.fit({4: part}, (4,), by_level=True) for part in (outcome(None, binary=binary), equal)
    )
    torch.testing.assert_close(scaled.factors, plain.factors)


# -- models ------------------------------------------------------------------------------------------


def test_weights_of_one_change_nothing_bit_for_bit() -> None:
    frame = weighted_frame()
    ones = frame.set_column(3, "w", pa.array(np.ones(len(frame))))
    same(Headstart(**CLOSED).fit(ones, weight="w", kinds="rating:1:5"), fitted(weight=None))


def test_weights_change_the_model() -> None:
    assert np.abs(fitted().predict().mean - fitted(weight=None).predict().mean).max() > 1e-3


def test_heads_are_those_of_a_weighted_regression() -> None:
    """Compute the head of a feature by its definition, one observation after the other."""
    model = fresh()
    model.observe([("u1", "f1", 4)], weight=3)
    feature, held = model.state.feature_store["f1"], model.state
    assert feature.weights[feature.rows.searchsorted(held.rows.position("u1"))] == 3
    states = held.row_store.take(feature.rows, "reference")
    scaled = (feature.values - feature.kind.offset) / feature.kind.span
    batch, _ = held.adapter_inputs([feature], "reference")
    noise = held.adapter._noise(states, batch).double().numpy()
    rows = np.concatenate([states.activation.numpy(), np.ones((len(scaled), 1))], axis=1).astype(np.float64)
    prior = held.adapter.prior
    root = prior.root(torch.float64).detach().numpy()
    assert not held.adapter.mixes_priors
    precision = np.linalg.inv(root @ root.T)
    linear = precision @ prior.known_means[held.feature_store.number("f1"), 0].double().numpy()
    for row, value, weight, variance in zip(rows, scaled, feature.weights, noise, strict=True):
        precision = precision + weight / variance * np.outer(row, row)
        linear = linear + weight / variance * value * row
    head = held.feature_store.take(["f1"])[1]
    np.testing.assert_allclose(
        head.weight[0].numpy(), np.linalg.solve(precision, linear)[:-1], rtol=1e-3, atol=1e-4
    )


def test_one_is_as_among_many(limits: Limits) -> None:
    one, many, together = fresh(), fresh(), fresh()
    stream = [(("u1", "f0", 1), 2.0), (("u5", "f3", 1), 0.5), (("u1", "f0", 3), 1.0), (("u7", "f9", 5), 4.0)]
    for each, weight in stream:
        one.observe([each], weight=weight)
    limits(computed_one_by_one=0)
    for each, weight in stream:
        many.observe([each], weight=weight)
    together.observe([each for each, _ in stream[1:]], weight=[weight for _, weight in stream[1:]])
    for model in (many, together):
        np.testing.assert_allclose(one.predict().mean, model.predict().mean, rtol=2e-5)
        assert one.table() == model.table()


def test_a_frame_a_list_and_a_number_are_the_same(tmp_path: Path) -> None:
    frame = pd.DataFrame({"row": ["u1", "u2"], "feature": ["f1", "f1"], "value": [5, 1], "w": [2.0, 0.5]})
    frame.to_csv(tmp_path / "t.csv", index=False)
    by_frame, by_file, by_list, one_by_one = (fresh() for _ in range(4))
    by_frame.observe(frame, weight="w")
    by_file.observe(tmp_path / "t.csv", weight="w")
    by_list.observe([("u1", "f1", 5), ("u2", "f1", 1)], weight=[2.0, 0.5])
    one_by_one.observe_feature("f1", {"u1": 5}, weight=2.0, update="both")
    one_by_one.observe_row("u2", {"f1": 1}, weight=0.5, update="both")
    for other in (by_file, by_list, one_by_one):
        same(by_frame, other)
    assert by_frame.table().weights is not None


@pytest.mark.parametrize("wrong", [0, -1, float("nan"), "heavy", [1.0, 2.0], [None]])
def test_observe_refuses_impossible_weights(wrong: object) -> None:
    model = fresh()
    before = model.state
    with pytest.raises((InputError, UnknownNameError), match="weight"):
        model.observe([("u1", "f1", 5)], weight=wrong)
    assert model.state is before


def test_parts_without_weights_are_refused() -> None:
    frame = weighted_frame()
    for wrong in ({"adapter": "knn-5"}, {"adapter": "bayes", "backbone": "pvae"}):
        with pytest.raises(InputError, match="weight"):
            Headstart(**wrong, quiet=True).fit(frame, weight="w", kinds="rating:1:5")
    unweighted = Headstart(adapter="knn-5", quiet=True).fit(frame, kinds="rating:1:5")
    unweighted.add_feature("new")
    with pytest.raises(InputError, match="all count alike"):
        unweighted.observe_feature("new", {"u1": 5}, weight=2.0)


def test_saved_folder_journal_and_refit_keep_weights(tmp_path: Path) -> None:
    path = tmp_path / "m"
    fresh().save(path)
    with Headstart.updating(path) as model:
        model.observe([("u1", "f1", 5), ("u2", "f2", 1)], weight=[2.0, 0.5])
        model.add_rows({"new": {"f1": 3}})
    loaded = Headstart.load(path)
    same(loaded, model)
    assert loaded.table() == model.table()
    loaded.save(tmp_path / "copy")  # without a journal
    copy = Headstart.load(tmp_path / "copy")
    same(copy, model)
    copy.observe([("u3", "f1", 2)])
    loaded.observe([("u3", "f1", 2)])
    same(copy, loaded)
    table = model.table()
    cell = (table.row_index == table.rows.position("u1")) & (
        table.feature_index == table.features.position("f1")
    )
    assert table.weights[cell].tolist() == [2.0]
    refitted, expected = model.refit(), Headstart(**CLOSED).fit(model.table())
    np.testing.assert_allclose(refitted.predict().mean, expected.predict().mean, rtol=1e-6)


def test_weights_and_a_half_life_multiply(tmp_path: Path) -> None:
    frame = weighted_frame().append_column("t", pa.array(np.arange(len(weighted_frame())) % 90))
    model = Headstart(**CLOSED, half_life=30).fit(frame, weight="w", time="t", kinds="rating:1:5")
    feature = model.state.feature_store["f1"]
    aged = 2.0 ** ((feature.times - 89) / 30)
    weights = model.state.batch_of([feature]).cells.weights
    np.testing.assert_allclose(weights.numpy(), feature.weights * aged, rtol=1e-6)
    model.observe([("u1", "f1", 5, 100)], weight=2)
    model.save(tmp_path / "m")
    same(Headstart.load(tmp_path / "m"), model)


@pytest.mark.parametrize("adapter", ["auto", "chn-bayes"])
def test_other_adapters_take_weights(adapter: str) -> None:
    model = Headstart(adapter=adapter, quiet=True, metatraining={"epochs": 2})
    model.fit(weighted_frame(), weight="w", kinds="rating:1:5")
    assert np.isfinite(model.predict().mean).all()
    assert model.state.table_weights is not None


def test_evaluate_weighs_its_targets() -> None:
    frame = weighted_frame()
    new = frame.append_column("n", pa.array([f"n{name}" for name in frame["feature"].to_pylist()]))
    ones = pa.table({"row": new["row"], "feature": new["n"], "value": new["value"], "w": new["w"]})
    options = {"kinds": "rating:1:5", "shots": (0,)}
    weighted, plain = (fitted().evaluate(ones, **options, **more) for more in ({"weight": "w"}, {}))
    assert weighted.runs[0].value != plain.runs[0].value
    truth = Table.read(ones, kinds="rating:1:5", weight="w")
    assert weighted.runs[0].targets == len(truth)
