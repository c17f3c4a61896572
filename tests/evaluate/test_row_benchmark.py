"""Accuracy by observations of the row, through the whole benchmark."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.limits import watch

from headstart import Headstart
from headstart.datasets import synthetic_mixed, synthetic_ratings
from headstart.errors import InputError
from headstart.evaluate import Benchmark, BenchmarkConfig, KShotTest, Results, RowTest
from headstart.evaluate.splits import split_rows
from headstart.table.kinds import KindType
from headstart.training.table_inputs import feature_batch, hide_scales

SHOTS, ROW_SHOTS = (0, 2, 5), (0, 1, 4)


def config(**settings) -> BenchmarkConfig:
    chosen = {"methods": ("bayes", "mean"), "shots": SHOTS, "splits": 1, "row_shots": ROW_SHOTS}
    return BenchmarkConfig(**{**chosen, "test_rows": 0.2, "metatraining": {"epochs": 2}, **settings})


class Spied:
    """One benchmark with what it trained on and what it predicted."""

    def __init__(self, table, settings, out) -> None:
        self.benchmark = Benchmark(table, settings)
        with watch("scores") as scores, watch("benchmark trainings") as trainings:
            self.results = self.benchmark.run(out)
        self.truths, self.means = ([call.arguments[i] for call in scores] for i in range(2))
        self.trained = [call.arguments[0] for call in trainings]
        seed, split = settings.seed, self.benchmark.splits[0]
        kept, away = split_rows(table, self.benchmark.rows[0])
        self.kept = hide_scales(kept, split.train)
        self.away = replace(away, kinds=self.kept.kinds)
        self.known = self.away.with_features(split.train)
        self.test = RowTest(self.known, self.known.kinds, self.benchmark.config.row_shots, seed)
        self.new = self.kept.with_features(split.meta_test)
        self.features = KShotTest(feature_batch(self.new), self.new.kinds, settings.shots, seed)

    def described(self, shots: int) -> dict[str, dict[str, float]]:
        """The observations that describe each tested row, by names."""
        given = {self.known.rows[row]: {} for row in self.test.rows.tolist()}
        cells = self.test.context(shots)
        for line, feature in zip(cells.lines.tolist(), cells.index.tolist(), strict=True):
            row, name = self.known.rows[int(self.test.rows[line])], self.known.features[feature]
            given[row][name] = self.known.observations_of(name)[row]
        return given


@pytest.fixture(scope="module", params=["ratings", "mixed"])
def spied(request, tmp_path_factory):
    table = synthetic_ratings(60, 40, 0.4) if request.param == "ratings" else synthetic_mixed(60, 30)
    return Spied(table, config(test_share=0.2), tmp_path_factory.mktemp("rows") / "out")


def test_there_is_one_record_per_test_number_and_metric(spied):
    results = spied.results
    assert (results.shots, results.row_shots, results.shots_of("both")) == ([0, 2, 5], [0, 1, 4], [4])
    metrics = results.metrics_of("rows")
    assert {"rmse", "coverage_90"} <= set(metrics)
    keys = [(run.method, run.shots, run.row_shots, run.metric) for run in results.runs if run.test == "rows"]
    assert keys == [(m, None, r, n) for m in ("bayes", "mean") for r in ROW_SHOTS for n in metrics]
    assert len({run.targets for run in results.runs if run.test == "rows" and run.metric == "rmse"}) == 1
    assert {run.ms_per_feature for run in results.runs if run.test != "features"} == {None}
    facts = results.data["splits"][0]
    assert facts["tested_rows"] == len(spied.test)
    assert facts["tested_rows"] + facts["left_out_rows"] == 12
    assert (results.settings["test_rows"], results.settings["row_shots"]) == (0.2, [0, 1, 4])


def test_no_held_out_row_is_part_of_training(spied):
    held_out = set(spied.away.rows)
    assert len(held_out) == 12
    for table in spied.trained:
        assert not held_out & set(table.rows)
        assert len(table.rows) == 48


@pytest.mark.parametrize("method", ["bayes", "mean"])
def test_scores_are_those_of_a_model_that_is_asked_cell_by_cell(spied, method):
    """A fitted model predicts the same rows from the same observations, and new features of theirs."""
    train = spied.benchmark.splits[0].train
    model = Headstart(adapter=method, metatraining={"epochs": 2}, random_state=0, quiet=True)
    model.fit(spied.kept.with_features(train))
    test, known = spied.test, spied.known
    low, high = (np.array([getattr(kind, end) for kind in spied.away.kinds]) for end in ("low", "high"))
    place = list(model.features)
    first = 0 if method == "bayes" else len(SHOTS) + len(ROW_SHOTS) + 1
    for step, shots in enumerate(ROW_SHOTS):
        said = model.predict(rows=spied.described(shots))
        wanted = [
            said.mean[int(row), place.index(known.features[int(test.features[line])])]
            for line, row in zip(test.lines, test.targets.index, strict=True)
        ]
        number = first + len(SHOTS) + step
        features = train[test.features.numpy()][test.lines.numpy()]
        means = np.clip(spied.means[number], low[features], high[features])  # as the model does
        assert np.allclose(means, wanted, rtol=1e-3, atol=1e-3)
        truth = [
            known.observations_of(known.features[int(test.features[line])])[known.rows[int(test.rows[row])]]
            for line, row in zip(test.lines, test.targets.index, strict=True)
        ]
        assert np.allclose(spied.truths[number], truth, atol=1e-4)
        number_kind = (test.kinds != KindType.BINARY).numpy()
        error = (spied.means[number] - np.array(truth))[number_kind]
        run = next(
            run
            for run in spied.results.runs
            if (run.test, run.method, run.n_observations, run.metric) == ("rows", method, shots, "rmse")
        )
        assert run.value == pytest.approx(np.sqrt((error**2).mean()), rel=1e-4)
        assert (run.features, run.targets) == (len(np.unique(features[number_kind])), number_kind.sum())


def test_both_few_are_new_features_of_a_model_at_rows_it_has_not_seen(spied):
    model = Headstart(adapter="bayes", metatraining={"epochs": 2}, random_state=0, quiet=True)
    model.fit(spied.kept.with_features(spied.benchmark.splits[0].train))
    rows, new = spied.described(4), spied.new
    metadata = [{}] * len(new.features) if new.metadata is None else new.metadata.to_pylist()
    context = spied.features.context(4).cells
    wanted = []
    for line, position in enumerate(spied.features.features.tolist()):
        name, own = new.features[position], context.lines == line
        seen = new.observations_of(name)
        shown = {new.rows[row]: seen[new.rows[row]] for row in context.index[own].tolist()}
        assert len(shown) == 4
        kind = {KindType.REAL: "real"}.get(new.kinds[position].type, new.kinds[position])
        model.add_feature(name, kind=kind, metadata=metadata[position], observations=shown)
        said = model.predict(rows=rows, features=[name])
        targets = spied.away.observations_of(name)
        wanted += [(said[row, name][0], targets[row], kind) for row in rows if row in targets]
    number = len(SHOTS) + len(ROW_SHOTS)
    ends = [(-np.inf, np.inf) if kind == "real" else (kind.low, kind.high) for *_, kind in wanted]
    means = np.clip(spied.means[number], *np.array(ends).T)
    assert np.allclose(means, [mean for mean, *_ in wanted], rtol=1e-3, atol=1e-3)
    assert np.allclose(spied.truths[number], [truth for _, truth, _ in wanted], atol=1e-4)


def test_values_outside_contexts_change_no_prediction(spied, tmp_path):
    """All that held-out rows observed, save what describes them, is changed: nothing else changes a bit."""
    table, test = spied.benchmark.table, spied.test
    train, away = spied.benchmark.splits[0].train, spied.benchmark.rows[0]
    cells = test.context(4)
    shown = {
        (int(away[test.rows[line]]), int(train[feature]))
        for line, feature in zip(cells.lines.tolist(), cells.index.tolist(), strict=True)
    }
    secret = np.isin(table.row_index, away) & np.array(
        [pair not in shown for pair in zip(table.row_index, table.feature_index, strict=True)]
    )
    kinds = table.kinds.types[table.feature_index]
    forged = np.where(kinds == KindType.BINARY, 1 - table.values, 6 - table.values)
    forged = np.where(kinds == KindType.REAL, -99 - table.values, forged)
    other = replace(table, values=np.where(secret, forged, table.values))
    again = Spied(other, config(test_share=0.2), tmp_path / "out")
    assert all(np.array_equal(one, two) for one, two in zip(spied.means, again.means, strict=True))
    per_method = len(SHOTS) + len(ROW_SHOTS) + 1
    for number, (one, two) in enumerate(zip(spied.truths, again.truths, strict=True)):
        assert np.array_equal(one, two) == (number % per_method < len(SHOTS))


def test_the_test_of_features_is_that_of_a_table_without_the_rows(spied, tmp_path):
    """With the same features held out, it does not matter that there were other rows."""
    split = spied.benchmark.splits[0]
    alone = Benchmark(split_rows(spied.benchmark.table, spied.benchmark.rows[0])[0],
                      config(test_rows=0, test_share=0.2))  # fmt: skip
    assert np.array_equal(alone.splits[0].meta_test, split.meta_test)
    results = alone.run(tmp_path / "out")
    assert results.row_shots == []
    ours = [run for run in spied.results.runs if run.test == "features"]
    assert [(r.method, r.shots, r.metric, r.value) for r in ours] == [
        (r.method, r.shots, r.metric, r.value) for r in results.runs
    ]


def test_methods_do_not_depend_on_each_other(tmp_path):
    table = synthetic_ratings(60, 40, 0.4)
    one, two = (
        Benchmark(table, config(methods=methods)).run(tmp_path / methods[0])
        for methods in (("knn-1", "mean"), ("mean", "knn-1"))
    )
    for test in ("rows", "both"):
        assert one.curves("rmse", test) == two.curves("rmse", test)
    rows = one.curves("rmse", "rows")
    assert rows["mean"] == rows["knn-1"]  # both keep the backbone's heads of known features
    assert one.curves("rmse", "both")["mean"] != one.curves("rmse", "both")["knn-1"]


def test_a_benchmark_without_rows_has_the_settings_of_earlier_ones(tmp_path):
    settings = config(test_rows=0).to_json()
    assert not {"test_rows", "row_shots"} & set(settings)
    assert config().to_json()["test_rows"] == 0.2
    table = synthetic_ratings(60, 40, 0.4)
    Benchmark(table, config(methods=("mean",), test_rows=0)).run(tmp_path / "out")
    with pytest.raises(InputError, match=r"other settings \(test_rows = null, now 0.2\)"):
        Benchmark(table, config(methods=("mean",))).run(tmp_path / "out")


def test_rows_that_are_too_short_are_left_out_and_counted(tmp_path, limits):
    """Half of the rows have enough observations, but those held out may not: then features are tested."""
    table = synthetic_ratings(20, 40, 0.3)
    short = draw_shortest(table)
    limits(draw_rows_held_out=lambda *_: short)
    results = Benchmark(table, config(methods=("mean",), row_shots=(0, 9))).run(tmp_path / "out")
    facts = results.data["splits"][0]
    assert (facts["tested_rows"], facts["left_out_rows"]) == (0, 2)
    assert (results.row_shots, results.shots) == ([], [0, 2, 5])
    assert Results.load(tmp_path / "out" / "results.json") == results


def draw_shortest(table):
    counts = np.bincount(table.row_index, minlength=len(table.rows))
    shortest = np.sort(np.argsort(counts, kind="stable")[:2])
    assert counts[shortest].max() <= 9  # or this shows nothing
    return shortest


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"test_rows": -0.1}, "'test_rows': Input should be greater than or equal to 0; got -0.1"),
        ({"test_rows": 1.0}, "'test_rows': Input should be less than 1; got 1.0"),
        ({"test_rows": 0.001}, r"test_rows 0\.001: of 60 rows with observations none is held out"),
        ({"test_rows": 0.99}, "only 1 are left to train on"),
        ({"row_shots": (100,)}, "row_shots 100 leave nothing to test on"),
        ({"row_shots": ()}, "different whole numbers"),
        ({"test_rows": 0.9, "shots": (0, 6)}, "in the rows that are not held out; use shots below"),
    ],
)
def test_bad_input_is_refused_before_any_training(settings, message):
    with pytest.raises(InputError, match=message):
        Benchmark(synthetic_ratings(60, 40, 0.4), config(**settings))
