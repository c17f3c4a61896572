from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
from tests.stand_ins import registered, training_steps

from headstart.adapters import ADAPTERS, AdapterConfig
from headstart.adapters.baselines import MeanConfig, MeanOfContext
from headstart.backbones.factorisation import FactorisationConfig
from headstart.backbones.feedforward import FeedForwardConfig
from headstart.backbones.pvae import PVAEConfig
from headstart.core.predictive import Predictive
from headstart.core.types import FeatureBatch, Heads, RowStates
from headstart.datasets import synthetic_mixed, synthetic_ratings, synthetic_responses
from headstart.errors import InputError, UnknownNameError
from headstart.evaluate import Benchmark, BenchmarkConfig, Results
from headstart.evaluate.kshot import KShotTest
from headstart.table.kinds import KindType
from headstart.training.table_inputs import feature_batch

METHODS = ("chn-bayes", "bayes", "chn", "mean", "knn-1", "train-1")
QUICK = {"pretraining": {"epochs": 2}, "metatraining": {"epochs": 2}, "test_rows": 0}  # see test_rows.py


@pytest.fixture(scope="module")
def table():
    return synthetic_ratings(60, 40, 0.4)


def config(**settings) -> BenchmarkConfig:
    return BenchmarkConfig(**{"methods": METHODS, "shots": (0, 2, 5), "splits": 2, **QUICK, **settings})


def timeless(results: Results) -> list[dict[str, object]]:
    return [run.model_dump(exclude={"ms_per_feature"}) for run in results.runs]


@pytest.fixture(scope="module")
def finished(table, tmp_path_factory):
    out = tmp_path_factory.mktemp("benchmark") / "out"
    return Benchmark(table, config(), name="made up").run(out), out


def written(folder: Path) -> dict[str, int]:
    """When each finished split was written."""
    return {path.name: path.stat().st_mtime_ns for path in sorted((folder / "splits").glob("*.json"))}


class InterruptedConfig(MeanConfig):
    name: Literal["interrupted"] = "interrupted"  # type: ignore[assignment]


class Interrupted(MeanOfContext):
    """An adapter whose use can be interrupted."""

    config_type: ClassVar[type[AdapterConfig]] = InterruptedConfig
    uses: ClassVar[list[int]] = [0]
    interrupted_at: ClassVar[int | None] = None

    def adapt(self, batch: FeatureBatch, states: RowStates) -> Heads:
        self.uses[0] += 1
        if self.uses[0] == self.interrupted_at:
            raise KeyboardInterrupt
        return super().adapt(batch, states)


def test_there_is_one_record_per_split_method_shots_and_metric(finished):
    results, _ = finished
    keys = [(run.split, run.method, run.shots, run.metric) for run in results.runs]
    metrics = ("rmse", "rmse_per_feature", "mae", "mae_per_feature", "coverage_90")
    assert keys == [(s, m, k, n) for s in (0, 1) for m in METHODS for k in (0, 2, 5) for n in metrics]
    assert all(run.ms_per_feature > 0 for run in results.runs)
    assert {run.features for run in results.runs} == {4}  # each k and method on the same cells
    for split in (0, 1):
        assert len({run.targets for run in results.runs if run.split == split}) == 1
    facts = results.data["splits"][0]
    assert facts == {"split": 0, "train": 36, "meta_train": 36, "meta_test": 4, "tested": 4, "left_out": 0}


def test_the_papers_disjoint_split_stays_available(table, finished, tmp_path):
    disjoint = config(meta_share=1 / 3, methods=("mean", "bayes"))
    results = Benchmark(table, disjoint).run(tmp_path / "out")
    facts = results.data["splits"][0]
    assert facts == {"split": 0, "train": 24, "meta_train": 12, "meta_test": 4, "tested": 4, "left_out": 0}
    ours, theirs = (
        {(run.split, run.shots): (run.features, run.targets) for run in every.runs if run.method == "mean"}
        for every in (results, finished[0])
    )
    assert ours == theirs  # the features tested are the same either way


def test_everything_is_written(finished):
    results, out = finished
    assert Results.load(out / "results.json") == results
    assert {path.name for path in out.iterdir()} == {
        "benchmark.json", "kshot.png", "report.html", "results.json", "results.md", "splits", "timing.json",
    }  # fmt: skip
    assert sorted(path.name for path in (out / "splits").iterdir()) == ["0.json", "1.json"]
    assert "made up" in (out / "report.html").read_text()
    timings = json.loads((out / "timing.json").read_text())
    assert len(timings) == 2 * len(METHODS) * 3
    assert results.settings["backbone"]["name"] == "factorisation"


def test_one_seed_gives_one_result(table, finished, tmp_path):
    again = Benchmark(table, config(), name="made up").run(tmp_path / "out")
    assert timeless(again) == timeless(finished[0])
    assert (again.data, again.settings) == (finished[0].data, finished[0].settings)


def test_finished_splits_are_kept_and_not_run_again(table, tmp_path, monkeypatch):
    out = tmp_path / "out"
    with registered(ADAPTERS, Interrupted):
        quick = config(methods=("mean", "interrupted"))
        whole = Benchmark(table, quick).run(tmp_path / "whole")
        monkeypatch.setattr(Interrupted, "interrupted_at", 2 * Interrupted.uses[0] - 1)  # in the second split
        with pytest.raises(KeyboardInterrupt):
            Benchmark(table, quick).run(out)
        assert not (out / "results.json").exists()
        first = written(out)
        assert list(first) == ["0.json"]
        results = Benchmark(table, quick).run(out)
        assert timeless(results) == timeless(whole)
        both = written(out)
        assert list(both) == ["0.json", "1.json"]
        assert both["0.json"] == first["0.json"]
        Benchmark(table, quick).run(out)
        assert written(out) == both
        more = Benchmark(table, quick.revised(splits=3)).run(out)
        assert list(written(out)) == ["0.json", "1.json", "2.json"]
        assert written(out).items() > both.items()
        assert more.splits == 3


@pytest.mark.parametrize("backbone", [PVAEConfig(), FactorisationConfig()], ids=lambda config: config.name)
def test_a_split_goes_on_from_its_checkpoints(table, tmp_path, monkeypatch, backbone):
    learned = "chn" if backbone.name == "pvae" else "chn-bayes"
    with registered(ADAPTERS, Interrupted):
        quick = config(methods=("mean", learned, "interrupted"), splits=1, backbone=backbone)
        monkeypatch.setattr(Interrupted, "uses", [0])
        with training_steps() as steps:
            whole = Benchmark(table, quick).run(tmp_path / "whole")
        monkeypatch.setattr(Interrupted, "interrupted_at", 2 * Interrupted.uses[0])  # all are trained
        with pytest.raises(KeyboardInterrupt):
            Benchmark(table, quick).run(tmp_path / "out")
        with training_steps() as again:
            results = Benchmark(table, quick).run(tmp_path / "out")
    assert steps[0] > 0
    assert again[0] == 0
    assert timeless(results) == timeless(whole)
    assert [path.name for path in (tmp_path / "out" / "splits").iterdir()] == ["0.json"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shots": (0, 2)}, r"other settings \(shots = \[0, 2, 5\], now \[0, 2\]\)"),
        ({"backbone": FeedForwardConfig()}, "other settings"),
        ({"pretraining": {"epochs": 3}}, "other settings"),
    ],
)
def test_a_folder_of_other_settings_is_refused(table, finished, change, message):
    with pytest.raises(InputError, match=message):
        Benchmark(table, config(**change)).run(finished[1])


def test_a_folder_of_other_data_or_of_anything_else_is_refused(table, finished, tmp_path):
    with pytest.raises(InputError, match="other data"):
        Benchmark(synthetic_ratings(60, 40, 0.4, seed=1), config()).run(finished[1])
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(InputError, match="not empty and contains no benchmark"):
        Benchmark(table, config()).run(tmp_path)
    with pytest.raises(InputError, match="is a file"):
        Benchmark(table, config()).run(tmp_path / "letter.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


def test_a_damaged_split_is_reported(table, tmp_path):
    tested = Benchmark(table, config(methods=("mean",), splits=1))
    tested.run(tmp_path / "out")
    path = tmp_path / "out" / "splits" / "0.json"
    path.write_text('{"split": 0}')
    with pytest.raises(InputError, match=r"0.json.* is damaged .*delete it"):
        tested.run(tmp_path / "out")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"methods": ("chn", "knn10")}, "unknown method 'knn10'; did you mean 'knn-10'"),
        ({"methods": ()}, "needs methods, each once: none given"),
        ({"methods": ("chn", "chn")}, "'chn' given twice"),
        ({"shots": (0, 1000)}, "1000 shots leave nothing to test on: the largest feature of the table has"),
        ({"shots": (-1,)}, "different whole numbers"),
        ({"shots": ()}, "different whole numbers"),
        ({"test_share": 1.2}, "'test_share': Input should be less than 1; got 1.2"),
        ({"meta_share": 0.0}, "'meta_share': Input should be greater than 0; got 0.0"),
        ({"test_share": 0.001}, r"test_share 0\.001: of 40 features none is left for meta-test"),
        ({"adapters": {"chnn": {}}}, "settings for an unknown adapter 'chnn'; did you mean 'chn'"),
        ({"by": "yeer"}, "did you mean 'year'"),
        ({"by": "genres"}, "not numbers"),
        ({"splits": 0}, "greater than or equal to 1"),
    ],
)
def test_bad_input_is_refused_before_any_training(table, settings, message):
    with pytest.raises(InputError, match=message):
        Benchmark(table, config(**settings))


def test_a_split_whose_features_are_all_too_small_is_reported(table):
    with pytest.raises(InputError, match=r"held out in split \d+ has \d+ observations"):
        Benchmark(table, config(shots=(int(table.counts.max()) - 1,), splits=30))


def test_unknown_method_errors_belong_to_the_family(table):
    with pytest.raises(UnknownNameError):
        Benchmark(table, config(methods=("nope",)))


def test_by_a_column_the_newest_features_are_tested(table):
    years = table.metadata.column("year").to_numpy()
    split = Benchmark(table, config(by="year")).splits[0]
    assert years[split.meta_test].min() >= years[split.meta_train].max()


def test_binary_tables_get_auroc_and_no_rmse(tmp_path):
    results = Benchmark(synthetic_responses(60, 30), config(methods=("chn", "mean"), splits=1)).run(
        tmp_path / "out"
    )
    assert set(results.metrics) == {
        "auroc", "auroc_per_feature", "log_loss", "log_loss_per_feature", "ece",
    }  # fmt: skip


def test_nothing_but_contexts_reaches_a_prediction(tmp_path, monkeypatch):
    """Through the whole benchmark: values of held-out features outside contexts change nothing at all."""
    table = synthetic_mixed(60, 30)
    settings = config(methods=("chn", "mean", "knn-1", "train-1"), test_share=0.3, meta_share=3 / 7, splits=1)
    split = Benchmark(table, settings).splits[0]
    means: list[np.ndarray] = []
    predict = KShotTest.predict

    def watched(self: KShotTest, *given: Any) -> Predictive:
        predictive = predict(self, *given)
        means.append(predictive.mean.numpy())
        return predictive

    monkeypatch.setattr(KShotTest, "predict", watched)
    Benchmark(table, settings).run(tmp_path / "first")

    held_out = table.with_features(split.meta_test)
    test = KShotTest(feature_batch(held_out), held_out.kinds, settings.shots, settings.seed)
    shown = {
        (int(split.meta_test[feature]), row)
        for feature, row in zip(
            test.features[test.context(5).cells.lines].tolist(),
            test.context(5).cells.index.tolist(),
            strict=True,
        )
    }
    secret = np.isin(table.feature_index, split.meta_test) & np.array(
        [(f, r) not in shown for f, r in zip(table.feature_index, table.row_index, strict=True)]
    )
    kinds = table.kinds.types[table.feature_index]
    forged = np.where(
        kinds == KindType.BINARY,
        1 - table.values,
        np.where(kinds == KindType.RATING, 10 - table.values, -table.values - 99),
    )
    other = replace(table, values=np.where(secret, forged, table.values))
    assert not np.array_equal(other.values, table.values)

    first = means.copy()
    means.clear()
    Benchmark(other, settings).run(tmp_path / "second")
    assert len(first) == len(means) == 4 * 3
    assert all(np.array_equal(a, b) for a, b in zip(first, means, strict=True))
