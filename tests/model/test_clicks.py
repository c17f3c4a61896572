"""Models of clicks: reading, new features and rows, observing, saving, errors."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from headstart import Headstart, HeadstartError, InputError, Table
from headstart.datasets import synthetic_clicks
from headstart.evaluate import Benchmark, BenchmarkConfig


@pytest.fixture(scope="module")
def table() -> Table:
    return synthetic_clicks(80, 40, density=0.25)


@pytest.fixture
def model(table) -> Headstart:
    return Headstart(quiet=True).fit(table.with_features(table.features[:32]))


def test_a_file_of_clicks_needs_no_values():
    lines = pa.table({"row": [*"aabbc"], "feature": [*"xxxyz"]})
    table = Table.read(lines, kinds="click")
    assert table.observations_of("x") == {"a": 2.0, "b": 1.0}  # repeated clicks add up
    assert any("added up" in note for note in table.notes)
    with pytest.raises(HeadstartError, match=r"no column 'value'.*kinds='click'"):
        Table.read(lines)


def test_ones_are_not_taken_for_binary(table):
    lines = {"row": [table.rows[int(i)] for i in table.row_index],
             "feature": [table.features[int(j)] for j in table.feature_index],
             "value": np.ones(len(table))}  # fmt: skip
    with pytest.raises(InputError, match=r"every value is 1.*kinds='click'"):
        Table.read(pa.table(lines))
    assert Table.read(pa.table(lines), kinds="click").kinds == table.kinds


@pytest.mark.parametrize("value", [0.0, -1.0])
def test_a_click_table_with_zeros_is_refused(value):
    lines = pa.table({"row": [*"ab"], "feature": [*"xy"], "value": [value, 1.0]})
    with pytest.raises(InputError, match="must be a number above 0; cells without a click are left out"):
        Table.read(lines, kinds="click")


@pytest.mark.parametrize("exposure", ["0", "1.5", "nan", "-0.1"])
def test_an_exposure_is_a_share(model, exposure):
    with pytest.raises(InputError, match="exposure of clicks must be above 0 and at most 1"):
        model.add_feature("new", kind=f"click:{exposure}")
    assert "new" not in model.features


def test_predictions_are_probabilities_that_fit_the_share_of_clicks(model, table):
    prediction = model.predict()
    low, high = prediction.interval(0.9)
    assert ((prediction.mean >= 0) & (prediction.mean <= 1)).all()
    assert ((low <= prediction.mean) & (prediction.mean <= high)).all()
    known = table.with_features(table.features[:32])
    assert prediction.mean.mean() == pytest.approx(known.density, rel=0.35)


def test_exposure_scales_a_new_feature(model, table):
    readers = dict(list(table.observations_of(table.features[35]).items())[:3])
    before = model.predict(features=model.features[:5]).mean
    for name, kind in (("fresh", "click:0.02"), ("old", "click:1")):
        model.add_feature(name, observations=readers, kind=kind)
    assert str(model.feature("fresh").kind) == "click:0.02"
    assert model.predict(features=["fresh"]).mean.mean() > model.predict(features=["old"]).mean.mean()
    assert np.array_equal(model.predict(features=model.features[:5]).mean, before)
    assert len(model.recommend(model.rows[0], n=40)) > 5  # exposures do not make features incomparable


def test_observing_and_saving_agree(model, table, tmp_path):
    model.add_feature("fresh", kind="click:0.3")
    path = tmp_path / "clicks.headstart"
    model.save(path)
    loaded = Headstart.load(path)
    for each in (model, loaded):
        each.observe([(each.rows[1], "fresh", 1.0), (each.rows[2], each.features[3], 4.0)])
        each.add_rows({"newcomer": {each.features[0]: 1, each.features[1]: 2}})
        each.observe_feature("fresh", {each.rows[4]: 1})
    np.testing.assert_allclose(loaded.predict().mean, model.predict().mean, atol=1e-6)
    loaded.save(path)
    np.testing.assert_allclose(Headstart.load(path).predict().mean, model.predict().mean, atol=1e-6)
    assert str(Headstart.load(path).feature("fresh").kind) == "click:0.3"


def test_a_bad_click_changes_nothing(model):
    before = model.predict().mean
    for value in (0, -2, float("nan")):
        with pytest.raises(InputError):
            model.observe([(model.rows[0], model.features[0], value)])
    assert np.array_equal(model.predict().mean, before)


def test_no_warning_of_surprising_clicks(model, recwarn):
    model.observe([(row, model.features[0], 50.0) for row in model.rows[:10]])
    assert not recwarn.list


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"adapter": "chn"}, "adapter 'chn' cannot learn from clicks"),
     ({"adapter": "chn-bayes"}, "adapter 'chn-bayes' cannot learn from clicks"),
     ({"adapter": "bayes", "backbone": "pvae"}, "backbone 'pvae' cannot learn from clicks")],
)  # fmt: skip
def test_parts_that_read_ones_alone_are_refused(table, settings, message):
    with pytest.raises(InputError, match=message):
        Headstart(quiet=True, **settings).fit(table)


def test_clicks_beside_other_kinds(table):
    rng = np.random.default_rng(0)
    lines = {"row": [table.rows[int(i)] for i in table.row_index],
             "feature": [table.features[int(j)] for j in table.feature_index],
             "value": np.ones(len(table))}  # fmt: skip
    stars = [(row, f"stars {j}", float(rng.integers(1, 6))) for row in table.rows for j in range(4)]
    for column, values in zip(lines, zip(*stars, strict=True), strict=True):
        lines[column] = [*lines[column], *values]
    kinds = {None: "click"} | {f"stars {j}": "rating:1:5" for j in range(4)}
    mixed = Headstart(quiet=True, adapter="bayes").fit(Table.read(pa.table(lines), kinds=kinds))
    prediction = mixed.predict()
    assert np.isfinite(prediction.mean).all()
    stars_mean = mixed.predict(features=["stars 0"]).mean
    assert ((stars_mean >= 1) & (stars_mean <= 5)).all()


def test_a_benchmark_of_clicks_scores_rankings(table, tmp_path):
    config = BenchmarkConfig(methods=("auto", "popularity", "als"), shots=(0, 4), splits=1, test_share=0.2)
    results = Benchmark(table, config).run(tmp_path / "out")
    assert set(results.metrics) == {
        "ndcg@10",
        "ndcg@50",
        "recall@10",
        "recall@50",
        "map",
        "mrr",
        "coverage@10",
    }
    assert set(results.curves("ndcg@10")) == set(config.methods)


@pytest.mark.parametrize("density", [0.8, 0.95])
def test_probabilities_of_almost_certain_clicks(density):
    latent = np.random.default_rng(0).normal(size=(2, 40, 12)).sum(0)
    row, feature = np.nonzero(latent < np.quantile(latent, density))
    lines = pa.table({"row": [f"u{i}" for i in row], "feature": [f"f{j}" for j in feature]})
    model = Headstart(quiet=True).fit(lines, kinds="click")
    model.add_features({"new": {}, "clicked": {"observations": {"u0": 1, "u1": 1}}})
    prediction = model.predict()
    assert ((prediction.mean > 0) & (prediction.mean < 1)).all()
    assert prediction.mean.mean() == pytest.approx(density, abs=0.2)


@pytest.mark.parametrize("kind", ["real", "rating:1:5", "binary"])
def test_a_single_click_feature_beside_others(kind):
    """Whichever features the judge holds out, some clicks are left to learn from."""
    latent = np.random.default_rng(0).normal(size=(40, 13))
    others = {"real": latent, "rating:1:5": np.clip(np.round(3 + latent), 1, 5), "binary": latent > 0}[kind]
    columns = {f"f{j}": others[:, j].astype(float) for j in range(12)}
    columns["clicked"] = [1.0 if x > 0 else None for x in latent[:, 12]]
    frame = pa.table({"row": [f"u{i}" for i in range(40)], **columns})
    model = Headstart(quiet=True).fit(frame, kinds={None: kind, "clicked": "click"})
    chances = model.predict(features=["clicked"]).mean
    assert ((chances >= 0) & (chances <= 1)).all()
    empty = frame.set_column(13, "clicked", pa.array([None] * 40, pa.float64()))
    with pytest.raises(InputError, match="no feature of the kind click has clicks to learn from: 'clicked'"):
        Headstart(quiet=True).fit(empty, kinds={None: kind, "clicked": "click"})
