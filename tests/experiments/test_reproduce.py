from __future__ import annotations

import json
import os
import re
from html import unescape

import pytest
import torch
import typer
from typer.testing import CliRunner

from headstart import Headstart
from headstart.cli.research import reproduce
from headstart.datasets import DATASETS
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


def test_kept_models_can_be_loaded_and_take_the_features_that_were_held_out(tmp_path):
    Reproduction("kshot-neuropathic", splits=1, quick=True, keep_models=True).run(tmp_path)
    folder = tmp_path / "studies/neuropathic/models/split-0"
    kept = sorted(path.name for path in folder.iterdir())
    assert kept == ["chn.headstart", "maml-1.headstart"]  # one of each meta-training
    table = DATASETS["neuropathic"].synthetic()
    model = Headstart.load(folder / "chn.headstart")
    new = [name for name in table.features if name not in model.features]
    assert len(new) == 12
    model.add_feature(new[0], observations=dict(list(table.observations_of(new[0]).items())[:8]))
    assert 0 < model.predict(rows=[table.rows[0]], features=[new[0]]).mean.item() < 1
    finished = next((tmp_path / "studies/neuropathic/splits").glob("*.json"))
    folder.rename(tmp_path / "elsewhere")
    assert finished.exists()
    with pytest.raises(InputError, match=r"split 1 of 'neuropathic' .* its models were not kept"):
        Reproduction("kshot-neuropathic", splits=1, quick=True, keep_models=True).run(tmp_path)


def test_a_file_of_settings_changes_the_preset(tmp_path):
    config = tmp_path / "mine.toml"
    config.write_text("[neuropathic.chn]\nparameter_layers = [7]\n")
    out = tmp_path / "out"
    Reproduction("knn-neighbours", quick=True, config=config)
    Reproduction("kshot-neuropathic", splits=1, quick=True, config=config).run(out)
    settings = json.loads((out / "settings.json").read_text())
    assert settings["preset"] == "mine"
    assert settings["studies"]["neuropathic"]["used"]["chn"]["adapter"]["parameter_layers"] == [7]
    with pytest.raises(InputError, match="changes 'neuropathic', which 'kshot-movielens' does not use"):
        Reproduction("kshot-movielens", quick=True, config=config)


def test_the_papers_own_tasks_of_eedi_are_used_if_the_files_are_there(tmp_path):
    answers = ["QuestionId,UserId,AnswerId,IsCorrect,CorrectAnswer,AnswerValue"]
    answers += [f"{q},{u},{q * 300 + u},{(q * u) % 3 % 2},1,1" for q in range(252) for u in range(260)]
    answers.append("300,1,1,1,1,1")  # a question of one answer
    questions = ["QuestionId,SubjectId", *(f'{q},"[3, {32 + q % 2}]"' for q in range(301))]
    subjects = "SubjectId,Name,ParentId,Level\n3,Maths,NULL,0\n32,Number,3,1\n33,Algebra,3,1\n"
    for name, text in (
        ("train_data/train_task_1_2.csv", "\n".join(answers)),
        ("metadata/question_metadata_task_1_2.csv", "\n".join(questions)),
        ("metadata/subject_metadata.csv", subjects),
    ):
        (tmp_path / "eedi" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "eedi" / name).write_text(text)
    config = tmp_path / "short.toml"
    config.write_text("[elearning.pretraining]\nsteps = 2\n[elearning.metatraining]\nsteps = 2\n")
    experiment = Reproduction("timings", tmp_path, splits=1, config=config, eedi_tasks="1_2")
    experiment.run(tmp_path / "out")
    results = Results.load(tmp_path / "out" / "results-elearning.json")
    assert results.data["name"] == "Eedi, tasks 1/2"
    assert (results.data["rows"], results.data["features"]) == (260, 252)
    assert "6,797 students" in results.data["note"]
    with pytest.raises(InputError, match=r"there is no train_data/train_task_3_4\.csv"):
        Reproduction("timings", tmp_path, splits=1).run(tmp_path / "other")
    with pytest.raises(InputError, match="does not use Eedi"):
        Reproduction("kshot-movielens", tmp_path, eedi_tasks="1_2")
    with pytest.raises(InputError, match="the tasks of Eedi are 1_2 or 3_4; got '5'"):
        Reproduction("timings", tmp_path, eedi_tasks="5")
