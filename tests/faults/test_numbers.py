"""Numbers: none too large to compute with, none that leaves a trace, intervals that stay honest."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from headstart.adapters.bayes import BayesHead
from headstart.core.types import FeatureBatch, Heads, OneHead, RowStates
from headstart.errors import InputError, NumericalError, SurpriseWarning
from headstart.model import Headstart
from headstart.table import Table
from tests.faults.models import fresh, table
from tests.states import snapshot

WAYS: dict[str, Callable[[Headstart, float], object]] = {
    "add_feature": lambda model, value: model.add_feature("new", observations={"u1": 1.0, "u3": value}),
    "observe": lambda model, value: model.observe_feature("f2", {"u1": 1.0, "u3": value}),
    "add_rows": lambda model, value: model.add_rows({"new u3": {"f1": 1.0, "f2": value}}),
    "predict": lambda model, value: model.predict({"u3": {"f1": 1.0, "f2": value}}),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("value", [1e19, -1e25, 1e39, 1e308])
def test_what_the_numbers_cannot_carry_is_refused(way: str, value: float) -> None:
    model = fresh("real")
    before = snapshot(model)
    with pytest.raises(InputError, match=r"u3'.*too large") as refusal:
        WAYS[way](model, value)
    assert f"{value:g}" in str(refusal.value)
    assert "'f2'" in str(refusal.value) or "'new'" in str(refusal.value)
    assert snapshot(model) == before


@pytest.mark.parametrize("value", [1e10, 1e16, -1e16])
def test_what_they_can_carry_gives_finite_numbers(value: float) -> None:
    for way in WAYS.values():
        model = fresh("real")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SurpriseWarning)
            way(model, value)
        found = model.predict()
        assert np.isfinite(found.mean).all()
        assert np.isfinite(found.std).all()


def test_a_table_of_too_large_a_value_is_refused() -> None:
    frame = {"row": ["a", "b", "c", "d"]} | {f"f{j}": [1.0, 2.0, 3.0, 4.0 + j] for j in range(5)}
    frame["f3"] = [1.0, 2.0, 1e39, 3.0]
    wide = Table.read(pa.table(frame), kinds="real:0:1")
    with pytest.raises(InputError, match=r"row 'c', feature 'f3': the value 1e\+39 is too large"):
        Headstart(adapter="bayes", quiet=True).fit(wide)


@pytest.mark.parametrize("kind", ["real", "rating"])
def test_a_correction_leaves_no_trace(kind: str) -> None:
    """In every stage: it was added right, streamed right, or wrong first and then corrected."""
    right = {"u1": 2.0, "u3": 4.0, "u5": 3.0, "u7": 1.0, "u9": 5.0}
    wrong = 1e16 if kind == "real" else 5.0
    model = fresh(kind)
    model.add_feature("right", observations=right)
    model.add_feature("streamed")
    for row, value in right.items():
        model.observe_feature("streamed", {row: value})
    model.add_feature("corrected", observations={**right, "u5": wrong})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SurpriseWarning)
        for row in right:
            model.observe_feature("corrected", {row: wrong})
        for row, value in right.items():
            model.observe_feature("corrected", {row: value})
    found = model.predict(features=["right", "streamed", "corrected"])
    for numbers in (found.mean, found.std):
        np.testing.assert_allclose(numbers[:, 1:], numbers[:, :1].repeat(2, axis=1), rtol=1e-9, atol=1e-9)


def own_scales(rows: int = 100, features: int = 30) -> tuple[Table, np.ndarray]:
    """Reals that each have a centre and a scale of their own, and what they depend on."""
    random = np.random.default_rng(7)
    traits = random.normal(size=(rows, 2))
    outputs = traits @ random.normal(size=(2, features)) + 0.5 * random.normal(size=(rows, features))
    values = outputs * np.exp(random.normal(size=features)) + 5 * random.normal(size=features)
    frame = {"row": [f"u{i}" for i in range(rows)]} | {f"f{j}": values[:, j] for j in range(features)}
    return Table.read(pa.table(frame), kinds="real"), traits


def test_the_scale_of_a_real_does_not_depend_on_the_order_of_its_values() -> None:
    """Added with 2 observations and given 58 more, it is as if all 60 had come at once; intervals hold."""
    data, traits = own_scales()
    model = Headstart(adapter="bayes", quiet=True).fit(data)
    random, held = np.random.default_rng(1), []
    for number in range(12):
        outputs = traits @ random.normal(size=2) + 0.5 * random.normal(size=len(traits))
        values = 5 * random.normal() + np.exp(random.normal()) * outputs
        every = {f"u{i}": values[i] for i in random.permutation(60)}
        model.add_feature(f"at once {number}", observations=every)
        streamed = f"streamed {number}"
        model.add_feature(streamed, observations=dict(list(every.items())[:2]))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SurpriseWarning)
            for row, value in list(every.items())[2:]:
                model.observe_feature(streamed, {row: value})
        found = model.predict(features=[f"at once {number}", streamed])
        assert np.array_equal(found.mean[:, 0], found.mean[:, 1])
        assert np.array_equal(found.std[:, 0], found.std[:, 1])
        low, high = found.interval(0.9)
        held.append((low[60:, 1] <= values[60:]) & (values[60:] <= high[60:, 1]))
    assert 0.82 < np.mean(held) < 0.97


def test_two_equal_values_do_not_mean_a_scale_of_one() -> None:
    """In other units everything is the same, so nothing is taken from the number 1."""
    data, _ = own_scales(rows=60, features=12)
    spreads = []
    for unit in (1.0, 1000.0):
        scaled = Table.read(
            pa.table(
                {
                    "row": [data.rows[i] for i in data.row_index],
                    "feature": [data.features[j] for j in data.feature_index],
                    "value": data.values * unit,
                }
            ),
            kinds="real",
        )
        model = Headstart(adapter="bayes", quiet=True).fit(scaled)
        model.add_feature("twice", observations={"u1": 5.0 * unit, "u2": 5.0 * unit})
        spreads.append(model.predict(features=["twice"]).std / unit)
        usual = np.median(model.predict(features=list(data.features)).std) / unit
        assert 0.05 * usual < np.median(spreads[-1]) < 20 * usual
    np.testing.assert_allclose(spreads[0], spreads[1], rtol=1e-2)


def shared_reals() -> Table:
    random = np.random.default_rng(3)
    outputs = random.normal(size=(40, 2)) @ random.normal(size=(2, 16)) + 0.5 * random.normal(size=(40, 16))
    frame = {"row": [f"u{i}" for i in range(40)]} | {f"f{j}": outputs[:, j] for j in range(16)}
    return Table.read(pa.table(frame), kinds="real:0:1")


def narrow_ratings() -> Table:
    random = np.random.default_rng(0)
    frame: dict[str, object] = {"row": [f"u{i}" for i in range(40)]}
    frame |= {f"f{j}": 50 + random.normal() + 0.3 * random.normal(size=40) for j in range(16)}
    return Table.read(pa.table(frame), kinds="rating:1:100")


SURPRISES: Mapping[str, tuple[Callable[[], Table], float, float]] = {
    "reals of one scale": (shared_reals, 0.3, 60.0),
    "reals of their own scales": (lambda: table("real"), 3.0, 900.0),
    "ratings": (narrow_ratings, 50.0, 95.0),
}


@pytest.mark.parametrize("of", SURPRISES)
def test_a_surprising_value_is_taken_said_once_and_widens_intervals(of: str) -> None:
    made, usual, far = SURPRISES[of]
    model = Headstart(adapter="bayes", quiet=True).fit(made())
    random = np.random.default_rng(0)
    model.add_feature("new", observations={f"u{i}": usual + 0.1 * random.normal() for i in range(20)})
    before = model.predict(features=["new"])
    with warnings.catch_warnings():
        warnings.simplefilter("error", SurpriseWarning)
        model.observe_feature("new", {"u30": float(before["u30", "new"][0])})
    calm = model.predict(features=["new"])
    with pytest.warns(SurpriseWarning) as caught:
        model.observe_feature("new", {"u31": far, "u32": usual})
    assert len(caught) == 1
    message = str(caught[0].message)
    assert f"feature 'new': the value {far:g} at row 'u31' lies" in message
    assert caught[0].filename == __file__
    assert model.feature("new").shots == 23
    after = model.predict(features=["new"])
    assert (after.std > calm.std).all()
    low, high = after.interval(0.9)
    assert ((high - low) >= np.subtract(*calm.interval(0.9)[::-1])).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error", SurpriseWarning)  # a correction is not surprising
        model.observe_feature("new", {"u31": usual})
    assert np.median(model.predict(features=["new"]).std) < 1.1 * np.median(calm.std)


def test_a_surprise_made_an_error_changes_nothing() -> None:
    model = fresh("real")
    model.add_feature("new", observations={f"u{i}": 3 + 0.1 * (i % 3) for i in range(20)})
    before = snapshot(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error", SurpriseWarning)
        with pytest.raises(SurpriseWarning):
            model.observe_feature("new", {"u31": 1e6})
    assert snapshot(model) == before


def test_ordinary_values_are_rarely_called_surprising() -> None:
    data, traits = own_scales()
    model = Headstart(adapter="bayes", quiet=True).fit(data)
    random = np.random.default_rng(2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", SurpriseWarning)
        for number in range(15):
            outputs = traits @ random.normal(size=2) + 0.5 * random.normal(size=len(traits))
            values = 5 * random.normal() + np.exp(random.normal()) * outputs
            model.add_feature(f"new{number}", observations={f"u{i}": values[i] for i in range(2)})
            for i in range(2, 20):
                model.observe_feature(f"new{number}", {f"u{i}": values[i]})
    assert len(caught) <= 1


@pytest.mark.parametrize("kind", ["rating:1:5", "real", "binary"])
@pytest.mark.parametrize("adapter", ["bayes", "auto"])
def test_a_table_of_one_row_is_fitted_or_refused(kind: str, adapter: str) -> None:
    values = {f"f{j}": [float(j % 2)] if kind == "binary" else [float(1 + j % 5)] for j in range(8)}
    one = Table.read(pa.table({"row": ["only"], **values}), kinds=kind)
    try:
        model = Headstart(adapter=adapter, quiet=True).fit(one)
    except InputError:
        return
    model.add_feature("new", observations={"only": 1})
    assert np.isfinite(model.predict().mean).all()


@pytest.mark.parametrize("rate", [10.0, 1e6, 1e30])
@pytest.mark.parametrize("part", ["metatraining", "pretraining"])
def test_an_absurd_learning_rate_is_said(rate: float, part: str) -> None:
    backbone, adapter = ("pvae", "mean") if part == "pretraining" else ("factorisation", "chn-bayes")
    model = Headstart(backbone, adapter, quiet=True, **{part: {"learning_rate": rate, "epochs": 4}})
    if rate == 10.0:  # it may get away with that
        with contextlib.suppress(NumericalError):
            model.fit(table("real"))
            assert np.isfinite(model.predict().mean).all()
        return
    with pytest.raises(NumericalError, match=re.escape(f"try a lower learning_rate than {rate:g}")):
        model.fit(table("real"))


def test_a_head_that_is_not_finite_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever an adapter makes of its numbers, a model does not take what it cannot predict with."""
    model = fresh("rating")
    before = snapshot(model)
    adapt = BayesHead.adapt

    def broken(self: BayesHead, batch: FeatureBatch, states: RowStates) -> Heads:
        heads = adapt(self, batch, states)
        return Heads(heads.weight * torch.nan, heads.bias, heads.covariance, heads.noise)

    adapt_sums = BayesHead.adapt_sums

    def broken_stack(self: BayesHead, *arguments: Any) -> OneHead:
        head = adapt_sums(self, *arguments)
        return head._replace(weight=head.weight * np.nan)

    monkeypatch.setattr(BayesHead, "adapt", broken)
    monkeypatch.setattr(BayesHead, "adapt_sums", broken_stack)
    with pytest.raises(NumericalError, match="feature 'new'"):
        model.add_feature("new", observations={"u1": 3})
    assert snapshot(model) == before
