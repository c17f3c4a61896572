from __future__ import annotations

import pytest

from headstart.adapters.base import adapter_config
from headstart.adapters.finetuning import MAMLConfig
from headstart.datasets import DATASETS
from headstart.errors import InputError, UnknownNameError
from headstart.evaluate.results import Results, Run, Timing
from headstart.experiments.presets import (
    EXPERIMENTS,
    PRESETS,
    STUDIES,
    experiments_named,
    methods_of,
    preset,
    read_presets,
)
from headstart.experiments.reproduce import best_method, ratio_table, select_part


def test_every_experiment_names_methods_and_studies_that_exist():
    for experiment in EXPERIMENTS.values():
        for study, methods in experiment.all_methods.items():
            assert STUDIES[study].dataset in DATASETS
            assert len(set(methods)) == len(methods)
            for method in methods:
                adapter_config(method)


def test_all_runs_each_study_once_with_what_every_experiment_needs():
    every = methods_of(experiments_named("all"))
    assert set(every) == set(STUDIES)
    assert {"knn-1", "maml-0", "chn", "train-25", "chn-train-25"} <= set(every["elearning"])
    assert "mean-head-matching" not in every["neuropathic"]  # it has no metadata to match
    assert methods_of(experiments_named("knn-neighbours"))["movielens"] == ("knn-1", "knn-5", "knn-10")


def test_an_unknown_name_is_refused_with_the_most_similar():
    with pytest.raises(UnknownNameError, match="did you mean 'kshot-movielens'"):
        experiments_named("kshot-movielense")
    with pytest.raises(UnknownNameError, match=r"there are kshot-movielens, .*, all"):
        experiments_named("qqq")


@pytest.mark.parametrize(
    ("dataset", "epochs", "meta", "rates", "latent", "layers"),
    [
        ("movielens", (200, 100), (1000, 256), (1e-3, 1e-4), 150, (256, 256, 256)),
        ("neuropathic", (1000, 300), (1000, 128), (1e-2, 1e-3), 20, (64, 64)),
        ("elearning", (50, 20), (1000, 128), (1e-3, 1e-3), 150, (50, 100, 150)),
    ],
)
def test_the_papers_table_of_hyper_parameters(dataset, epochs, meta, rates, latent, layers):
    paper = preset("paper", dataset)
    assert (paper.pretraining.epochs, paper.metatraining.epochs) == epochs
    assert (paper.pretraining.batch_size, paper.metatraining.batch_size) == meta
    assert (paper.pretraining.learning_rate, paper.metatraining.learning_rate) == rates
    assert (paper.pretraining.weight_decay, paper.metatraining.weight_decay) == (0, 1e-3)
    assert paper.backbone.latent == latent
    assert paper.backbone.set_size == 30
    assert (paper.backbone.kl_weight, paper.backbone.pooling) == (1, "sum")
    assert paper.backbone.likelihood.output_variance == 0.1
    assert paper.chn.parameter_layers == layers
    for training in (paper.pretraining, paper.metatraining):
        assert (training.min_steps, training.patience, training.schedule) == (1, None, "constant")
        assert training.validation_share == 0  # all of the 30 % train


@pytest.mark.parametrize(
    ("dataset", "steps", "sizes", "epochs"),
    [  # the paper's gradient steps; rows and meta-train features of the public table, and their epochs
        ("movielens", (1800, 700), (6040, 1111), (258, 140)),  # 7 and 5 steps each
        ("neuropathic", (1000, 300), (1000, 25), (1000, 300)),
        ("elearning", (350, 240), (2389, 231), (117, 120)),  # 3 and 2 steps each
    ],
)
def test_a_table_of_another_size_is_trained_for_the_papers_number_of_steps(dataset, steps, sizes, epochs):
    paper = preset("paper", dataset)
    trainings = (paper.pretraining, paper.metatraining)
    assert tuple(training.steps for training in trainings) == steps
    resolved = [training.resolve_epochs(size) for training, size in zip(trainings, sizes, strict=True)]
    assert tuple(training.epochs for training in resolved) == epochs


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("dataset", DATASETS)
def test_a_preset_reaches_every_method_built_on_the_hypernetwork(name, dataset):
    chosen = preset(name, dataset)
    config = chosen.benchmark(("chn", "chn-train-5"), 5, 0, None)
    assert config.method("chn", 0) == chosen.chn
    assert adapter_config(config.method("chn-train-5", 0).base) == chosen.chn
    test, meta = config.test_share, config.meta_share
    parts = ((1 - test) * (1 - meta), (1 - test) * meta, test)
    expected = (0.5, 0.3, 0.2) if dataset == "neuropathic" else (0.6, 0.3, 0.1)
    assert parts == pytest.approx(expected)


def test_of_several_methods_only_the_best_is_shown():
    def run(method: str, shots: int, value: float) -> Run:
        return Run(split=0, method=method, shots=shots, metric="auroc", value=value, features=1, targets=9)

    experiment = EXPERIMENTS["kshot-neuropathic"]
    worth = dict.fromkeys(experiment.all_methods["neuropathic"], 0.5) | {"maml-3": 0.8}
    runs = [run(method, k, value) for method, value in worth.items() for k in (0, 1)]
    results = Results(data={"name": "pain"}, settings={"methods": list(worth)}, runs=runs)
    assert best_method(results, experiment.best_of) == "maml-3"
    shown = select_part(experiment, "neuropathic", results, [])
    assert shown.results.methods == ["random", "mean", "mean-head", "knn-10", "train-10", "maml-3", "chn"]
    assert "best of maml-1, maml-3" in shown.results.data["maml"]


def test_times_are_put_beside_the_papers():
    timings = [
        Timing(method=method, shots=k, ms_per_feature=ms * k, low=0, high=9)
        for method, ms in (("knn-10", 6.0), ("chn", 0.5))
        for k in (1, 4, 16)
    ]
    table = ratio_table(timings)
    assert table.cells == {"knn-10": ["12.0"] * 3, "knn-10, the paper": ["3.5", "3.5", "3.4"]}


def test_unknown_presets_are_refused():
    with pytest.raises(InputError, match="unknown preset 'tunde'; did you mean 'tuned'"):
        preset("tunde", "movielens")


def test_a_file_changes_only_the_settings_that_it_names(tmp_path):
    path = tmp_path / "longer.toml"
    path.write_text("[elearning]\ntest_share = 0.2\n[elearning.metatraining]\nsteps = 480\n")
    changed = read_presets(path, "paper")
    assert list(changed) == ["elearning"]
    paper = preset("paper", "elearning")
    metatraining = paper.metatraining.revised(steps=480)
    assert changed["elearning"] == paper.revised(name="longer", test_share=0.2, metatraining=metatraining)


def test_the_settings_of_maml_reach_every_number_of_epochs(tmp_path):
    path = tmp_path / "smaller.toml"
    path.write_text("[movielens.maml]\ninner_learning_rate = 0.003\n")
    config = read_presets(path, "paper")["movielens"].benchmark(("maml-1", "maml-10"), 1, 0, None)
    for epochs in (1, 10):
        assert config.method(f"maml-{epochs}", 7) == MAMLConfig(
            inner_learning_rate=0.003, epochs=epochs, seed=7
        )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[elearning.metatraining]\nstep = 4", r"\[elearning\]: .* no setting 'step'; did you mean 'steps'"),
        ("[elearning.metatraining]\nsteps = 'x'", r"\[elearning\]: .*'steps'"),
        ("[elearning.maml]\nepochs = 4", r"\[elearning\]: .*'maml': .* such as maml-5"),
        ("[elearnin]\n", "'elearnin' is not the table of a data set; did you mean 'elearning'"),
        ("steps = 4", "'steps' is not the table of a data set; there are movielens"),
        ("[elearning", "is not a TOML file"),
        ("", r"is empty; write a table such as \[movielens.pretraining\]"),
    ],
)
def test_the_error_for_a_bad_file_of_settings_names_the_place(tmp_path, text, message):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_presets(path, "paper")
    with pytest.raises(InputError, match="cannot read the presets"):
        read_presets(tmp_path / "none.toml", "paper")
