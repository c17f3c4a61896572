from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import results_page
from headstart.datasets import load_dataset
from results_page import PAGE, RESULTS, STUDIES, Page, collect, fill, lead_table, load, score_table, values_of


@pytest.fixture(scope="module")
def page():
    return Page()


def test_the_tables_of_the_page_are_those_of_the_files(page):
    text = PAGE.read_text(encoding="utf-8")
    assert text.count("<!-- table: ") == text.count("<!-- end -->") > 20
    assert fill(text, page.tables()) == text, "run: python benchmarks/results_page.py"


def test_a_table_that_differs_from_the_files_is_found(page):
    text = PAGE.read_text(encoding="utf-8")
    table = page.tables()["kshot-elearning"]()
    value = re.search(r"0\.\d\d\d", table)[0]
    changed = text.replace(table, table.replace(value, "0.123", 1))
    assert changed != text == fill(changed, page.tables())


def test_the_pictures_of_the_page_exist():
    pictures = re.findall(r"\]\((images/[^)]+)\)", PAGE.read_text(encoding="utf-8"))
    assert len(pictures) > 8
    for picture in pictures:
        assert (PAGE.parent / picture).is_file(), picture


def test_every_number_of_the_files_is_there_once():
    files = sorted(RESULTS.glob("*/*/split-*.csv"))
    assert len(files) > 10
    for path in files:
        lines = results_page.read_lines(path)
        keys = [(line["part"], line["method"], line["shots"], line["metric"]) for line in lines]
        assert len(set(keys)) == len(keys) > 0, path
    assert sum(path.stat().st_size for path in RESULTS.rglob("*")) < 5e6


def test_the_files_of_a_study_are_the_splits_that_it_describes():
    studies = sorted(RESULTS.glob("*/*/study.json"))
    assert len(studies) > 4
    for path in studies:
        described = {f"split-{split}.csv" for split in json.loads(path.read_text())["splits"]}
        assert {file.name for file in path.parent.glob("split-*.csv")} == described, path


def test_all_methods_of_a_set_are_scored_on_the_same_targets():
    for path in sorted(RESULTS.glob("peers/*/split-*.csv")):
        sizes: dict[tuple[str, ...], set[tuple[str, str]]] = {}
        for line in results_page.read_lines(path):
            if line["metric"] not in ("ms", "fit_seconds"):
                key = (line["part"], line["shots"], line["metric"])
                sizes.setdefault(key, set()).add((line["features"], line["targets"]))
        assert all(len(found) == 1 for found in sizes.values()), path


@pytest.mark.parametrize("study", STUDIES)
def test_the_default_and_the_paper_are_scored_on_the_same_targets(page, study):
    def targets(results, method):
        return {
            (run.split, run.shots): (run.features, run.targets)
            for run in results.runs
            if run.method == method and run.metric in ("rmse", "auroc")
        }

    paper, default = targets(page.studies[study], "chn"), targets(page.default(study), "headstart")
    common = paper.keys() & default
    assert common
    assert all(paper[key] == default[key] for key in common)


@pytest.mark.parametrize("study", STUDIES)
def test_the_data_sets_are_those_of_the_files(study):
    if not os.environ.get("HEADSTART_DATA"):
        pytest.skip("HEADSTART_DATA is not set")
    facts = json.loads((RESULTS / "paper" / study / "study.json").read_text())
    assert load_dataset(study).fingerprint() == facts["table"]["fingerprint"]


def outcome(split: int, **values: float) -> str:
    run = {"split": split, "shots": 4, "metric": "rmse", "features": 2, "targets": 9, "ms_per_feature": 0.5}
    runs = [{**run, "method": method.replace("_", "-"), "value": value} for method, value in values.items()]
    times = [{"method": run["method"], "shots": 4, "ms_per_feature": 1, "low": 1, "high": 2} for run in runs]
    return json.dumps({"split": split, "facts": {"tested": 2}, "used": {}, "runs": runs, "timings": times})


@pytest.fixture
def finished(tmp_path):
    """A folder as reproduce writes it, with two splits of a study."""
    splits = tmp_path / "out" / "studies" / "movielens" / "splits"
    splits.mkdir(parents=True)
    (tmp_path / "out" / "experiment.json").write_text('{"preset": "paper"}')
    (splits / "0.json").write_text(outcome(0, chn=1.0, knn_10=1.25, mean=0.9))
    (splits / "1.json").write_text(outcome(1, chn=1.1, knn_10=1.15))
    return tmp_path


def test_collected_splits_are_read_back_and_compared_within_splits(finished):
    folder = finished / "results" / "paper" / "movielens"
    assert len(collect(finished / "out", finished / "results")) == 2
    results = load(folder)
    assert values_of(results, "rmse")["chn", 4] == {0: 1.0, 1: 1.1}
    assert values_of(results, "ms_slowest")["knn-10", 4] == {0: 2.0, 1: 2.0}
    lead = lead_table(results, "rmse", "chn", ["knn-10", "mean"]).splitlines()
    assert lead[2:] == ["| knn-10 | **+0.150 ± 0.141** |", "| mean (1 split) | -0.100 |"]
    scores = score_table(results, "rmse", ["mean", "chn", "knn-10"]).splitlines()
    assert scores[2:] == [  # the mean of one split is not compared
        "| mean (1 split) | 0.900 |",
        "| chn | **1.050 ± 0.071** |",
        "| knn-10 | 1.200 ± 0.071 |",
    ]


def test_the_number_of_a_file_is_the_seed_of_its_split(finished):
    (finished / "out" / "experiment.json").write_text('{"preset": "paper", "seed": 4}')
    files = collect(finished / "out", finished / "results")
    assert [path.name for path in files] == ["split-4.csv", "split-5.csv"]


def test_methods_that_are_run_later_join_those_of_the_same_split(finished):
    collect(finished / "out", finished / "results")
    path = finished / "out" / "studies" / "movielens" / "splits" / "0.json"
    path.write_text(outcome(0, chn=2.0, maml_5=1.5))
    collect(finished / "out", finished / "results")
    values = values_of(load(finished / "results" / "paper" / "movielens"), "rmse")
    assert {method: by_split[0] for (method, _), by_split in values.items()} == {
        "chn": 2.0, "knn-10": 1.25, "mean": 0.9, "maml-5": 1.5,
    }  # fmt: skip
