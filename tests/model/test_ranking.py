"""Rankings: against predictions of everything, ties, what is left out, and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from tests.model.conftest import CLOSED, ratings_table
from tests.states import state_of

from headstart.core.predictive import predict_grid
from headstart.errors import InputError, UnknownNameError
from headstart.model import Headstart
from headstart.model.ranking import top_candidates
from headstart.table import Table

Fresh = Callable[..., Headstart]


def mixed_table(kind: str, rows: int = 50, features: int = 16, seed: int = 0) -> Table:
    """Reals of one scale, answers of 0 and 1, or both."""
    random = np.random.default_rng(seed)
    values = random.normal(size=(rows, 3)) @ random.normal(size=(3, features)) * 30 + 1000
    binary = np.arange(features) % 2 == 0 if kind == "mixed" else np.full(features, kind == "binary")
    values = np.where(binary, values > 1000, values)
    row, feature = np.nonzero(random.random(values.shape) < 0.5)
    long = pa.table(
        {"row": [f"u{i}" for i in row], "feature": [f"f{j}" for j in feature], "value": values[row, feature]}
    )
    kinds = {f"f{j}": "binary" if binary[j] else "real:1000:50" for j in range(features)}
    return Table.read(long, kinds=kinds)


@pytest.fixture(scope="module")
def models() -> dict[str, Headstart]:
    return {kind: Headstart(**CLOSED).fit(mixed_table(kind)) for kind in ("real", "binary", "mixed")}


def observed(model: Headstart, row: str) -> set[str]:
    return set(model.row(row).observations)


def test_features_come_in_the_order_of_their_predictions(fresh: Fresh) -> None:
    model = fresh(adapter="able")
    model.add_feature("new", {"year": 1990}, {"u3": 5})
    model.observe_feature("f5", {"u7": 4})
    everything = model.predict(["u3", "u7", "u8"])
    for line, row in enumerate(everything.rows):
        mean = dict(zip(everything.features, everything.mean[line], strict=True))
        left = [name for name in model.features if name not in observed(model, row)]
        assert model.recommend(row, 7).names == tuple(sorted(left, key=lambda name: -mean[name])[:7])
        every = model.recommend(row, 99, exclude_observed=False)
        np.testing.assert_allclose(every.mean, sorted(mean.values(), reverse=True), rtol=1e-6)
        np.testing.assert_allclose(every.mean, [mean[name] for name in every.names], rtol=1e-6)
        # Scores are not cut off at the ends, so that what lies beyond is in order too.
        np.testing.assert_allclose(np.clip(every.score, 1, 5), every.mean, rtol=1e-5)
        assert (np.diff(every.score) <= 0).all()
    assert "f5" not in model.recommend("u7", 100).names
    assert "new" not in model.recommend("u3", 100).names
    several = model.recommend_many(["u3", "u7"], 4)
    assert {row: ranking.names for row, ranking in several.items()} == {
        row: model.recommend(row, 4).names for row in ("u3", "u7")
    }


def test_rows_come_in_the_order_of_their_predictions(fresh: Fresh) -> None:
    model = fresh(adapter="able")
    model.add_feature("new", {"year": 1990}, {"u3": 3, "u9": 2})
    everyone = model.predict(features=["new"])
    mean = dict(zip(everyone.rows, everyone.mean[:, 0], strict=True))
    below = {row: value for row, value in mean.items() if value < 4.9}  # at the end many are alike
    order = sorted(below, key=lambda row: -mean[row])
    found = model.audience("new", 12, rows=list(below), exclude_observed=False)
    assert found.names == tuple(order[:12])
    assert set(model.audience("new", 500).names) == set(model.rows) - {"u3", "u9"}
    few = model.audience("new", 2, rows=["u3", "u5", "u6"])
    assert set(few.names) == {"u5", "u6"}
    low, high = model.predict(list(few.names), ["new"]).interval(0.9)
    assert few.low.tolist() == low[:, 0].tolist()
    assert few.high.tolist() == high[:, 0].tolist()


@pytest.mark.parametrize("quantile", [0.6, 0.9, 0.97])
def test_the_upper_quantile_is_the_end_of_an_interval(models: dict[str, Headstart], quantile: float) -> None:
    model = models["real"]
    everything = model.predict()
    high = everything.interval(2 * quantile - 1)[1]
    found = model.recommend("u4", 30, exclude_observed=False, by="upper", quantile=quantile)
    line = high[everything.rows.position("u4")]
    assert found.names == tuple(everything.features[i] for i in np.argsort(-line))
    np.testing.assert_allclose(found.score, np.sort(line)[::-1], rtol=1e-6)
    rows = model.audience("f3", 50, exclude_observed=False, by="upper", quantile=quantile)
    np.testing.assert_allclose(
        rows.score, np.sort(high[:, everything.features.position("f3")])[::-1], rtol=1e-6
    )


def test_a_binary_feature_goes_by_its_probability(models: dict[str, Headstart]) -> None:
    model = models["binary"]
    everything = model.predict(["u4"])
    found = model.recommend("u4", 30, exclude_observed=False)
    assert found.names == tuple(everything.features[i] for i in np.argsort(-everything.mean[0]))
    np.testing.assert_allclose(found.score, np.sort(everything.mean[0])[::-1], rtol=1e-5)
    upper = model.recommend("u4", 30, exclude_observed=False, by="upper")
    fitted = state_of(model)
    features, heads = fitted.feature_store.take(upper.names)
    state = fitted.states.take(torch.tensor([model.rows.position("u4")]))
    grid = predict_grid(heads, state, fitted.kinds_of(features), fitted.knowledge.likelihood)
    logit = grid.logits + 1.2815515655446004 * grid.variance.sqrt()
    chance = torch.sigmoid(logit / torch.sqrt(1 + torch.pi / 8 * grid.noise))
    shots = torch.tensor([feature.shots for feature in features])
    slow = fitted.calibration.probability(chance, grid.std, shots)[0].numpy()
    np.testing.assert_allclose(upper.score, slow, rtol=1e-6)
    assert (np.diff(upper.score) <= 0).all()
    assert (upper.score > upper.mean).all()


def test_information_about_a_row_is_chosen_as_by_brute_force(models: dict[str, Headstart]) -> None:
    model = models["mixed"]
    fitted = state_of(model)
    features, heads = fitted.feature_store.take(model.features)
    state = fitted.states.take(torch.tensor([model.rows.position("u4")]))
    grid = predict_grid(heads, state, fitted.kinds_of(features), fitted.knowledge.likelihood)
    own = state.variance[0].double().numpy()
    weight = heads.weight.double().numpy()
    row = np.append(state.activation[0].double().numpy(), 1.0)
    head = np.array([row @ each.double().numpy() @ row for each in heads.covariances(len(row))])
    noise = grid.output_noise()[0].numpy() + head
    left = [i for i, name in enumerate(model.features) if name not in observed(model, "u4")]
    chosen: list[int] = []

    def remaining(seen: list[int]) -> float:
        precision = np.diag(1 / own) + sum(np.outer(weight[i], weight[i]) / noise[i] for i in seen)
        return float(np.trace(np.linalg.inv(precision) @ (weight.T @ weight / len(weight))))

    for _ in range(4):
        chosen.append(min((i for i in left if i not in chosen), key=lambda i: remaining([*chosen, i])))
    found = model.recommend("u4", 4, by="information")
    assert found.names == tuple(model.features[i] for i in chosen)
    falls = -np.diff([remaining(chosen[:k]) for k in range(5)])
    np.testing.assert_allclose(found.score, falls, rtol=1e-5)


def test_an_audience_by_information_is_what_suggest_names(fresh: Fresh) -> None:
    model = fresh(adapter="able")
    model.add_feature("new", {"year": 1990}, {"u3": 5})
    assert list(model.audience("new", 6, by="information").names) == model.suggest("new", n=6)
    rows = ["u1", "u2", "u3", "u4"]
    assert list(model.audience("new", 6, rows, by="information").names) == model.suggest("new", 6, rows)


def test_a_row_may_be_given_by_its_observations(fresh: Fresh) -> None:
    model = fresh(adapter="able")
    given = {"f1": 5, "f2": 1, "f7": 4}
    mean = model.predict({"guest": given}).mean[0]
    order = [model.features[i] for i in np.argsort(-mean, kind="stable") if model.features[i] not in given]
    own = model.recommend(given, 5)
    assert own.names == tuple(order[:5])
    names, values = list(given), list(given.values())
    as_frames = [
        pd.Series(given),
        pd.DataFrame({"feature": names, "value": values}),
        pl.DataFrame({"film": names, "stars": values}),
        pa.table({"feature": names, "value": values}),
    ]
    for frame in as_frames:
        assert model.recommend(frame, 5).names == own.names
    assert model.recommend_many({"guest": given, "other": {}}, 5)["guest"].names == own.names
    assert len(model.recommend({}, 3)) == 3
    long = pd.DataFrame({"row": ["guest"] * 3, "feature": names, "value": values})
    assert model.recommend_many(long, 5)["guest"].names == own.names
    np.testing.assert_array_equal(model.predict(long).mean[0], mean)


def test_ties_come_in_the_order_of_the_model(fresh: Fresh) -> None:
    """More features alike than are kept beyond those asked for: each is as good, so the first come first."""
    model = fresh(adapter="able")
    names = [f"blank {i:03d}" for i in range(80)]
    model.add_features({name: {"metadata": {"year": 2003}} for name in names})
    assert model.recommend("u1", 5, features=names[::-1]).names == tuple(names[:5])
    model.observe_feature(names[2], {"u9": 1})
    model.remove_feature(names[0])
    best = model.recommend("u1", 4, features=[name for name in names if name not in (names[0], names[2])])
    assert best.names == (names[1], names[3], names[4], names[5])


def test_features_of_different_kinds_are_not_compared_unasked(models: dict[str, Headstart]) -> None:
    model = models["mixed"]
    with pytest.raises(InputError, match=r"'f0' is binary and 'f1' is real.*mixed_kinds=True"):
        model.recommend("u1")
    assert set(model.recommend("u1", 99, features=["f0", "f2"], exclude_observed=False).names) == {"f0", "f2"}
    found = model.recommend("u1", 99, exclude_observed=False, mixed_kinds=True)
    prediction = model.predict(["u1"], list(found.names))
    scaled = prediction.kinds.scale(prediction.mean[0], np.arange(len(found)))
    np.testing.assert_allclose(found.score, scaled, rtol=1e-5, atol=1e-6)
    assert (np.diff(found.score) <= 0).all()


def test_bad_questions_are_refused(fresh: Fresh) -> None:
    model = fresh(adapter="able")
    for ask in (model.recommend, lambda _, n: model.audience("f1", n)):
        for n in (0, -1, True, 2.5, "3", None):
            with pytest.raises(InputError, match="whole number n from 1 up"):
                ask("u1", n)  # type: ignore[arg-type]
    with pytest.raises(UnknownNameError, match="unknown row 'u999'"):
        model.recommend("u999")
    with pytest.raises(UnknownNameError, match="unknown feature 'f99'"):
        model.audience("f99")
    with pytest.raises(UnknownNameError, match="unknown feature 'f99'"):
        model.recommend("u1", features=["f99"])
    with pytest.raises(UnknownNameError, match="unknown feature 'f99'"):
        model.recommend({"f99": 3})
    for several in ([], ["u1", "u2"], {"guest": {"f1": 3}}):
        with pytest.raises(InputError, match=r"recommend_many\(\) takes several"):
            model.recommend(several)
    assert model.recommend_many([]) == {}
    with pytest.raises(InputError, match=r"must be one of.*did you mean 'upper'"):
        model.recommend("u1", by="uper")  # type: ignore[arg-type]
    for quantile in (0.4, 1.0, "x", True):
        with pytest.raises(InputError, match="quantile"):
            model.audience("f1", by="upper", quantile=quantile)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="level must lie between"):
        model.recommend("u1", level=2)
    assert len(model.recommend("u1", features=[])) == 0
    assert len(model.audience("f1", rows=[])) == 0


def test_what_other_parts_do_not_know_is_said(fresh: Fresh) -> None:
    model = fresh("pvae", "chn")
    with pytest.raises(InputError, match=r"does not hold which rows.*exclude_observed=False"):
        model.recommend("u1")
    assert len(model.recommend("u1", 3, exclude_observed=False)) == 3
    with pytest.raises(InputError, match="backbone='factorisation'"):
        model.recommend("u1", by="information", exclude_observed=False)
    with pytest.raises(InputError, match="adapter='bayes'"):
        model.audience("f1", by="information", exclude_observed=False)


def test_a_ranking_can_be_read(fresh: Fresh) -> None:
    found = fresh(adapter="able").recommend("u1", 3)
    assert repr(found).splitlines()[0] == "3 features for row 'u1', by mean"
    assert len(repr(found).splitlines()) == 4
    assert [each.name for each in found] == list(found.names)
    assert found[0].mean == found.mean[0]
    assert found.to_arrow().column_names == ["feature", "score", "mean", "std", "low", "high"]
    assert found.to_pandas()["feature"].tolist() == list(found.names)


@pytest.mark.parametrize("seed", range(5))
def test_the_leading_candidates_hold_the_best(seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    values = torch.randn(3, 3000, generator=random)
    values[1] = values[1].round(decimals=1)  # many ties
    values[2, torch.rand(3000, generator=random) < 0.999] = -torch.inf  # hardly any left

    found = top_candidates(lambda part: values[:, part], 3, 3000, 10)
    for line, near in enumerate(found):
        finite = int(values[line].isfinite().sum())
        best = values[line].sort(descending=True).values[: min(10, finite)]
        at_least = torch.nonzero(values[line] >= best[-1])[:, 0]
        assert set(at_least.tolist()) <= set(near.tolist())
        assert bool(values[line, near].isfinite().all())


def test_listings_follow_every_change(fresh: Fresh) -> None:
    model = fresh(adapter="able")
    random = np.random.default_rng(0)
    for step in range(40):
        name = f"n{step % 7}"
        if name not in model.features:
            model.add_feature(name)
        model.observe_feature(name, {f"u{random.integers(200)}": 3})
        if step % 9 == 8:
            model.remove_feature(name)
        row = f"u{step}"
        listed = model.recommend(row, 99)
        assert set(listed.names) == set(model.features) - observed(model, row)
        np.testing.assert_allclose(listed.mean, model.predict([row], listed.names).mean[0], rtol=1e-5)
        every = model.recommend(row, 99, exclude_observed=False)
        assert set(every.names) == set(model.features)


def test_a_table_of_ratings_serves_too() -> None:
    model = Headstart(**CLOSED).fit(ratings_table(rows=20, features=8))
    assert len(model.recommend("u1", 99, exclude_observed=False)) == 8


def test_an_audience_after_changes_is_that_of_the_present_states(fresh: Fresh) -> None:
    """States are read as they lie, and some of those no longer belong to any row."""
    model = fresh(adapter="able")
    model.observe([("u1", "f1", 5), ("u2", "f3", 1)])
    model.add_rows({"x": {"f1": 5, "f2": 4}, "y": {}})
    model.observe([("x", "f5", 5)])
    told = model.audience("f7", n=len(model.rows), exclude_observed=False)
    means = model.predict(features=["f7"]).mean[:, 0]
    assert sorted(told.names) == sorted(model.rows)
    np.testing.assert_allclose(told.mean, np.sort(means)[::-1], rtol=1e-6)
    few = model.audience("f7", n=3, rows=["x", "u1", "u2"])
    assert set(few.names) <= {"x", "u1", "u2"}
