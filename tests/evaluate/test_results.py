from __future__ import annotations

import json

import numpy as np
import pytest

from headstart.errors import InputError
from headstart.evaluate import results
from headstart.evaluate.kshot import KShotTest
from headstart.evaluate.metrics import METRICS
from headstart.evaluate.results import BATCH, Results, Run, Timing, metric_table, time_adapters, timing_table

RECORD = {
    "split": 0,
    "method": "chn",
    "shots": 4,
    "row_shots": None,
    "metric": "rmse",
    "value": 0.93,
    "features": 274,
    "targets": 92257,
    "ms_per_feature": 0.8,
}
EMPTY = {"format": 1, "data": {}, "settings": {}}


def test_the_file_has_the_documented_format(worlds, tmp_path):
    Results(data={"rows": 2}, settings={"seed": 0}, runs=[Run(**RECORD)]).save(tmp_path / "results.json")
    assert json.loads((tmp_path / "results.json").read_text()) == {
        "format": 2,
        "data": {"rows": 2},
        "settings": {"seed": 0},
        "runs": [RECORD],
    }


def test_what_is_saved_is_loaded(worlds, tmp_path):
    results = worlds.some_results(["chn", "mean"])
    results.save(tmp_path / "results.json")
    assert Results.load(tmp_path / "results.json") == results
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not JSON"),
        ("[1]", "no number 'format'"),
        ('{"data": {}}', "no number 'format'"),
        ('{"format": 3}', "has format 3; this version of Headstart reads up to 2"),
        ('{"format": 1, "data": {}, "settings": {}}', "damaged at 'runs'"),
        (json.dumps({**EMPTY, "runs": [{**RECORD, "value": "x"}]}), r"'runs.0.value'"),
        (json.dumps({**EMPTY, "runs": [{**RECORD, "what": 1}]}), r"'runs.0.what'"),
    ],
)
def test_a_bad_file_is_refused_with_what_is_wrong(tmp_path, content, message):
    path = tmp_path / "results.json"
    path.write_text(content)
    with pytest.raises(InputError, match=message):
        Results.load(path)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"cannot read results .*gone.json"):
        Results.load(tmp_path / "gone.json")


def test_merging_puts_runs_in_one_order(worlds):
    results = worlds.some_results(["chn", "mean"])
    parts = [[run for run in reversed(results.runs) if run.split == s] for s in (2, 0, 1)]
    assert Results.from_splits(results.data, results.settings, parts) == results


def test_curves_are_mean_and_sample_deviation_over_splits(worlds):
    results = worlds.some_results(["chn", "mean"], splits=3)
    values = [r.value for r in results.runs if (r.method, r.shots, r.metric) == ("mean", 4, "mae")]
    curve = results.curves("mae")["mean"]
    at = curve.shots.index(4)
    assert curve.mean[at] == pytest.approx(np.mean(values))
    assert curve.sigma[at] == pytest.approx(np.std(values, ddof=1))
    assert worlds.some_results(["chn"], splits=1).curves("rmse")["chn"].sigma == [None] * 4


def test_tables_point_out_the_best_of_each_column(worlds):
    table = metric_table(worlds.some_results(["mean", "chn"]), "rmse")
    assert table.title == "RMSE (lower is better)"
    assert set(table.best.values()) == {"mean"}
    assert table.to_markdown().splitlines()[0] == "| shots | 0 | 1 | 4 | 16 |"
    assert "**1.0" in table.to_markdown().splitlines()[2]
    higher = metric_table(worlds.some_results(["mean", "chn"], metrics=("auroc",)), "auroc")
    assert set(higher.best.values()) == {"chn"}


def test_a_method_without_some_shots_leaves_its_cells_empty(worlds):
    full = worlds.some_results(["chn", "mean"], splits=1)
    runs = [run for run in full.runs if (run.method, run.shots) != ("mean", 0)]
    table = metric_table(Results(data={}, settings={}, runs=runs), "rmse")
    assert table.cells["mean"][0] == ""
    assert table.best[0] == "chn"


def test_every_metric_gets_a_markdown_table(worlds):
    text = worlds.some_results(["chn"], metrics=tuple(METRICS)).to_markdown()
    for metric in METRICS.values():
        assert f"## {metric.label} (" in text


def test_times_show_median_and_spread():
    timings = [Timing(method="chn", shots=4, ms_per_feature=ms, low=0.5, high=2.0) for ms in (1.0, 1.2, 1.1)]
    assert timing_table(timings).cells == {"chn": ["1.1 (0.5–2)"]}


def test_files_of_the_first_format_load(tmp_path):
    old = {name: value for name, value in RECORD.items() if name != "row_shots"}
    (tmp_path / "old.json").write_text(json.dumps({**EMPTY, "runs": [old]}))
    results = Results.load(tmp_path / "old.json")
    assert results.runs == [Run(**RECORD)]
    assert (results.shots, results.row_shots, results.metrics_of("rows")) == ([4], [], [])
    assert results.curves("rmse", "rows") == {}
    results.save(tmp_path / "new.json")
    assert json.loads((tmp_path / "new.json").read_text())["format"] == 2
    assert Results.load(tmp_path / "new.json") == results


def test_the_tests_of_features_and_rows_are_kept_apart(worlds, tmp_path):
    plain = worlds.some_results(["chn", "mean"])
    results = worlds.some_results(["chn", "mean"], row_shots=(0, 4, 8))
    assert (results.shots, results.row_shots, results.shots_of("both")) == ([0, 1, 4, 16], [0, 4, 8], [4])
    assert results.metrics == plain.metrics
    values = [r.value for r in results.runs if (r.method, r.row_shots, r.shots) == ("mean", 4, None)
              and r.metric == "rmse"]  # fmt: skip
    assert results.curves("rmse", "rows")["mean"].mean[1] == pytest.approx(np.mean(values))
    both = [r.value for r in results.runs if (r.method, r.row_shots, r.shots) == ("mean", 4, 4)
            and r.metric == "rmse"]  # fmt: skip
    assert results.curves("rmse", "both")["mean"].mean == [pytest.approx(np.mean(both))]
    features = [r.value for r in results.runs if (r.method, r.row_shots, r.shots) == ("mean", None, 4)
                and r.metric == "rmse"]  # fmt: skip
    assert results.curves("rmse")["mean"].mean[2] == pytest.approx(np.mean(features))
    results.save(tmp_path / "results.json")
    assert Results.load(tmp_path / "results.json") == results
    assert Results.from_splits(results.data, results.settings, [reversed(results.runs)]) == results


def test_tables_of_rows_say_what_they_are(worlds):
    results = worlds.some_results(["mean", "chn"], row_shots=(0, 4))
    table = metric_table(results, "rmse", "rows")
    assert table.title == "New rows, by their observations: RMSE (lower is better)"
    assert table.to_markdown().splitlines()[0] == "| observations | 0 | 4 |"
    both = metric_table(results, "rmse", "both")
    assert both.title == "New features in new rows, by the observations of each: RMSE (lower is better)"
    assert both.shots == [4]
    text = results.to_markdown()
    assert all(f"## {each.title}" in text for each in (table, both, metric_table(results, "mae", "rows")))


def test_a_run_is_of_something_new(tmp_path):
    with pytest.raises(ValueError, match="shots, row_shots or both"):
        Run(**{**RECORD, "shots": None})
    (tmp_path / "bad.json").write_text(json.dumps({**EMPTY, "runs": [{**RECORD, "shots": None}]}))
    with pytest.raises(InputError, match=r"damaged at 'runs.0'"):
        Results.load(tmp_path / "bad.json")


def test_adapters_take_turns_in_full_batches_after_a_warm_up(worlds, monkeypatch):
    world = worlds.knowledge()
    test = KShotTest(*worlds.held_out(), [0, 4], seed=0)
    adapters = {name: worlds.Ridge(worlds.RidgeConfig(), world) for name in ("a", "b")}
    order = []
    for name, adapter in adapters.items():
        adapt = adapter.adapt
        monkeypatch.setattr(
            adapter, "adapt", lambda batch, states, n=name, f=adapt: (order.append(n), f(batch, states))[1]
        )
    contexts = {k: test.context(k) for k in test.shots}
    timings = time_adapters(adapters, contexts, world.states, rounds=3)
    assert "".join(order) == "ab" * 2 * (1 + 3)
    assert adapters["a"].calls == [BATCH] * 8
    assert [(t.method, t.shots) for t in timings] == [("a", 0), ("a", 4), ("b", 0), ("b", 4)]
    assert all(0 < t.low <= t.ms_per_feature <= t.high for t in timings)


def test_a_time_is_the_median_round_of_processor_time_divided_by_the_features_of_a_batch(worlds, monkeypatch):
    """Table 1: each round takes the seconds of a list on a made-up clock; the first only warms up."""
    world = worlds.knowledge()
    test = KShotTest(*worlds.held_out(), [4], seed=0)
    adapter = worlds.Ridge(worlds.RidgeConfig(), world)
    now, seconds = [0.0], iter([9.0, 0.3, 0.1, 0.5])

    def adapt(batch, states):
        now[0] += next(seconds)

    monkeypatch.setattr(adapter, "adapt", adapt)
    monkeypatch.setattr(results.time, "process_time", lambda: now[0])
    monkeypatch.setattr(results.torch, "get_num_threads", lambda: 1)
    (timing,) = time_adapters({"a": adapter}, {4: test.context(4)}, world.states, rounds=3)
    expected = [1000 * s / 128 for s in (0.3, 0.1, 0.5)]
    assert [timing.ms_per_feature, timing.low, timing.high] == pytest.approx(expected)
