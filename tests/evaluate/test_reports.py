"""Reports show the settings that really ran, and do without the picture where matplotlib is missing."""

from __future__ import annotations

import sys
from html import unescape

import pytest

from headstart.datasets import synthetic_ratings
from headstart.errors import HeadstartError
from headstart.evaluate import Benchmark, BenchmarkConfig, MissingMatplotlibError, Results, plot_kshot


@pytest.fixture
def no_matplotlib(monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)


def config(**settings) -> BenchmarkConfig:
    quick = {"metatraining": {"epochs": 2}, "pretraining": {"epochs": 1}}
    return BenchmarkConfig(
        **{"methods": ("chn-bayes", "mean"), "shots": (0, 2), "splits": 1, **quick, **settings}
    )


@pytest.fixture(scope="module")
def table():
    return synthetic_ratings(60, 40, 0.4)


def test_results_and_reports_have_the_settings_that_really_ran(table, tmp_path):
    out = tmp_path / "out"
    results = Benchmark(table, config()).run(out)
    assert results.settings["metatraining"] == {"epochs": 2}  # what was set
    used = results.settings["used"]
    assert list(used) == ["backbone", "chn-bayes", "mean"]  # this backbone has no epochs of pretraining
    ran = used["chn-bayes"]["metatraining"]
    assert ran["epochs"] == 2
    assert ran["shots"] == "log"  # the adapter's own choice, not the general default "uniform"
    assert all(value is not None for value in used["backbone"].values())  # sizes are filled in
    assert "metatraining" not in used["mean"]  # it learns nothing
    assert Results.load(out / "results.json").settings["used"] == used
    page, text = unescape((out / "report.html").read_text()), (out / "results.md").read_text()
    for report, heading in ((page, "<h2>Settings used</h2>"), (text, "## Settings used")):
        shown = report.partition(heading)[2].replace("\\_", "_")
        assert "shots = log" in shown
        assert f"max_shots = {ran['max_shots']}" in shown
        assert "uniform" not in shown


def test_the_default_epochs_of_an_adapter_are_shown_and_not_the_general_ones(table, tmp_path):
    results = Benchmark(table, config(methods=("chn-bayes",), metatraining={})).run(tmp_path / "out")
    assert (
        results.settings["used"]["chn-bayes"]["metatraining"]["epochs"] == 15
    )  # on a table with few features
    page = (tmp_path / "out" / "report.html").read_text()
    assert "epochs = 15;" in page
    assert "epochs = 300" not in page


def test_a_backbone_trained_by_epochs_shows_its_pretraining(table, tmp_path):
    results = Benchmark(table, config(methods=("mean",), backbone="feedforward")).run(tmp_path / "out")
    assert list(results.settings["used"]) == ["backbone", "pretraining", "mean"]
    assert results.settings["used"]["pretraining"]["epochs"] == 1
    assert "learning_rate" in results.settings["used"]["pretraining"]


def test_a_missing_matplotlib_says_how_to_install_it(worlds, no_matplotlib):
    with pytest.raises(MissingMatplotlibError, match=r"pip install 'headstart\[plots\]'") as caught:
        plot_kshot(worlds.some_results(["chn"]))
    assert isinstance(caught.value, HeadstartError)
    assert isinstance(caught.value, ImportError)


def test_a_benchmark_without_matplotlib_writes_all_but_the_picture(table, tmp_path, no_matplotlib):
    out = tmp_path / "out"
    results = Benchmark(table, config(methods=("mean",))).run(out)
    assert {path.name for path in out.iterdir()} == {
        "benchmark.json", "report.html", "results.json", "results.md", "splits", "timing.json",
    }  # fmt: skip
    assert Results.load(out / "results.json") == results
    page = unescape((out / "report.html").read_text())
    assert "There is no picture" in page
    assert "pip install 'headstart[plots]'" in page
    assert "<img" not in page
    assert "RMSE (lower is better)" in page


def test_a_picture_of_an_earlier_run_does_not_stay_beside_new_numbers(table, tmp_path, request):
    out = tmp_path / "out"
    Benchmark(table, config(methods=("mean",))).run(out)
    assert (out / "kshot.png").exists()
    request.getfixturevalue("no_matplotlib")
    Benchmark(table, config(methods=("mean",), splits=2)).run(out)
    assert not (out / "kshot.png").exists()
