from __future__ import annotations

import json
import os
import re
from html import unescape

import pytest
import torch
import typer
from typer.testing import CliRunner

from headstart.cli.research import reproduce
from headstart.errors import InputError
from headstart.evaluate.results import Results
from headstart.experiments.presets import EXPERIMENTS
from headstart.experiments.reproduce import Reproduction


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """All experiments, quickly, on made-up data."""
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("all")
    Reproduction("all", splits=1, quick=True).run(out)
    return out


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_writes_picture_reports_numbers_and_settings(everything, name):
    folder, experiment = everything / name, EXPERIMENTS[name]
    assert (folder / "picture.png").read_bytes().startswith(b"\x89PNG")
    page, text = (folder / "report.html").read_text(), (folder / "report.md").read_text()
    assert experiment.title in unescape(page)
    assert "made-up data" in page
    assert "the numbers mean nothing" in text
    settings = json.loads((folder / "settings.json").read_text())
    assert settings["experiment"] == name
    assert {"python", "torch", "headstart", "threads"} <= set(settings["versions"])
    for study, methods in experiment.methods.items():
        results = Results.load(folder / f"results-{study}.json")
        assert set(methods) <= set(results.methods)
        assert len(results.methods) == len(methods) + bool(experiment.best_of)
        assert settings["studies"][study] == results.settings
        assert json.loads((folder / f"timing-{study}.json").read_text())


def test_what_is_selected_from_a_shared_study_is_what_a_run_of_its_own_finds(everything, tmp_path):
    Reproduction("kshot-neuropathic", splits=1, quick=True).run(tmp_path)
    alone, shared = (
        Results.load(folder / "results-neuropathic.json")
        for folder in (tmp_path, everything / "kshot-neuropathic")
    )

    def values(results):
        return [(run.method, run.shots, run.metric, run.value) for run in results.runs]

    assert values(alone) == values(shared)


def test_a_folder_of_another_experiment_is_left_alone(everything, tmp_path):
    before = sorted((path, path.stat().st_mtime_ns) for path in everything.rglob("*"))
    with pytest.raises(
        InputError, match=r'contains another experiment \(experiment = "all", now "timings"\)'
    ):
        Reproduction("timings", splits=1, quick=True).run(everything)
    with pytest.raises(InputError, match=r'\(preset = "paper", now "tuned"\)'):
        Reproduction("all", splits=1, preset="tuned", quick=True).run(everything)
    assert sorted((path, path.stat().st_mtime_ns) for path in everything.rglob("*")) == before
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(InputError, match="is not empty and contains no experiment"):
        Reproduction("timings", quick=True).run(tmp_path)
    with pytest.raises(InputError, match="is a file"):
        Reproduction("timings", quick=True).run(tmp_path / "thesis.txt")


def test_missing_data_is_reported_before_any_work(monkeypatch, tmp_path):
    monkeypatch.delenv("HEADSTART_DATA", raising=False)
    with pytest.raises(InputError, match="no data folder was given; pass it with --data"):
        Reproduction("kshot-movielens")
    with pytest.raises(InputError, match=r"there is no movies\.dat"):
        Reproduction("kshot-movielens", tmp_path).run(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_command_goes_on_with_what_is_finished(tmp_path):
    app = typer.Typer()
    app.command()(reproduce)
    asked = ["kshot-neuropathic", "--out", str(tmp_path), "--quick", "--quiet", "--preset", "tuned"]
    said = CliRunner().invoke(app, [*asked, "--splits", "1"])
    assert said.exit_code == 0, said.output
    assert re.search(r"wrote .*/report\.html", said.output)
    first = tmp_path / "studies" / "neuropathic" / "splits" / "0.json"
    before = os.stat(first).st_mtime_ns
    assert CliRunner().invoke(app, [*asked, "--splits", "2"]).exit_code == 0
    assert os.stat(first).st_mtime_ns == before
    assert Results.load(tmp_path / "results-neuropathic.json").splits == 2
