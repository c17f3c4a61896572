"""Run the paper's experiments (``headstart reproduce``) and write their pictures, reports and numbers."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from functools import partial
from html import escape
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
import torch

from headstart import __version__
from headstart.adapters.base import ADAPTERS
from headstart.datasets import DATASETS, EEDI_TASKS_1_2, DataSet, Task, data_folder
from headstart.display import count
from headstart.errors import InputError, join_names
from headstart.evaluate.benchmark import Benchmark, KeepParts
from headstart.evaluate.metrics import METRICS, Metric
from headstart.evaluate.plots import MissingMatplotlibError, Panel, plot_panels
from headstart.evaluate.reports import (
    NO_PICTURE,
    markdown_report,
    note,
    numbers,
    page,
    picture,
    table_section,
)
from headstart.evaluate.results import Curve, Results, TextTable, Timing, markdown_text, timing_table
from headstart.evaluate.splits import FeatureSplit
from headstart.experiments.presets import (
    ALL,
    EPOCHS,
    STUDIES,
    Experiment,
    experiments_named,
    methods_of,
    read_presets,
)
from headstart.experiments.presets import preset as preset_of
from headstart.files import read_json, write_bytes, write_json
from headstart.model.fitting import build_state
from headstart.model.saving.folder import save as save_model
from headstart.model.state import Settings
from headstart.progress import Reporter
from headstart.table import Table
from headstart.training.recipe import Recipe, TrainedParts

FORMAT = 1  # of the folder

_FACTS_FILE = "experiment.json"

_QUICK_NOTE = "A quick run on made-up data, to check that everything works; the numbers mean nothing."

PAPER_RATIOS = {"knn-10": (3.5, 3.5, 3.4), "train-10": (3.6, 4.6, 5.4)}  # from Table 1, at 1, 4 and 16 shots


class Reproduction:
    """Reproduce one experiment of the paper, or all of them.

    The constructor checks all arguments before any work.

    Parameters
    ----------
    name : str
        The name of an experiment, or "all".
    data : str or Path, optional
        The folder of the data sets.
    splits, seed : int
        The number of random splits of the features, and the seed of the first split.
    preset : str
        "paper" for the paper's settings, or "tuned".
    config : str or Path, optional
        A TOML file with changes to the preset, see ``read_presets``.
    eedi_tasks : {"3_4", "1_2"}
        The tasks of Eedi that the e-learning experiments use: 3/4, or the paper's 1/2.
    keep_models : bool
        Whether to save the meta-trained models as folders that ``Headstart.load`` reads.
    quick : bool
        Whether to check only that everything runs, with small synthetic data and a few epochs.
    """

    def __init__(
        self,
        name: str,
        data: str | Path | None = None,
        *,
        splits: int = 5,
        seed: int = 0,
        preset: str = "paper",
        config: str | Path | None = None,
        eedi_tasks: str = "3_4",
        keep_models: bool = False,
        quick: bool = False,
    ) -> None:
        self.experiments = experiments_named(name)
        self.methods = methods_of(self.experiments)
        self.name, self.preset, self.quick = name, preset, quick
        self.splits, self.seed = splits, seed
        self.keep_models, self.eedi_tasks = keep_models, eedi_tasks
        datasets = {STUDIES[study].dataset for study in self.methods}
        self.presets = {dataset: preset_of(preset, dataset) for dataset in datasets}
        if config is not None:
            changed = read_presets(Path(config), preset)
            if unused := sorted(set(changed) - datasets):
                raise InputError(
                    f"{str(config)!r} changes {join_names(unused)}, which {name!r} does not use; it uses "
                    f"{join_names(sorted(datasets))}"
                )
            self.presets |= changed
            self.preset = Path(config).stem
        if eedi_tasks not in get_args(Task):
            raise InputError(f"the tasks of Eedi are {' or '.join(get_args(Task))}; got {eedi_tasks!r}")
        if eedi_tasks == "1_2" and "elearning" not in datasets:
            raise InputError(f"the experiment {name!r} does not use Eedi; leave out its tasks")
        self.data = None if quick else data_folder(data)

    def run(self, out: str | Path, reporter: Reporter | None = None) -> list[Path]:
        """Run the studies that are not finished in ``out``, write the reports, and return their folders."""
        reporter, out = reporter or Reporter(quiet=True), Path(out)
        benchmarks = self._benchmarks()
        self._open(out)
        if self.keep_models:
            self._check_models(out)
        studies = {
            study: self._study(study, benchmark, out / "studies" / study, reporter)
            for study, benchmark in benchmarks.items()
        }
        folders = []
        for name, experiment in self.experiments.items():
            parts = [select_part(experiment, study, *studies[study]) for study in experiment.methods]
            settings = {
                **self._identity,
                "experiment": name,
                "splits": self.splits,
                "versions": versions(),
                "studies": {part.study: part.results.settings for part in parts},
            }
            folder = out / name if self.name == ALL else out
            publish(folder, experiment, parts, settings)
            folders.append(folder)
        return folders

    @property
    def _identity(self) -> dict[str, Any]:
        return {"format": FORMAT, "experiment": self.name, "preset": self.preset, "quick": self.quick,
                "seed": self.seed}  # fmt: skip

    def _open(self, out: Path) -> None:
        """Create the folder, or continue with it; refuse a folder with other contents."""
        if out.exists() and not out.is_dir():
            raise InputError(f"{str(out)!r} is a file; name a folder to write the experiment to")
        facts_file = out / _FACTS_FILE
        if facts_file.exists():
            old, new = read_json(facts_file), self._identity
            differing = [name for name in new if not isinstance(old, dict) or old.get(name) != new[name]]
            if differing:
                name = differing[0]
                before = json.dumps(old.get(name) if isinstance(old, dict) else old)
                raise InputError(
                    f"{str(out)!r} contains another experiment ({name} = {before}, "
                    f"now {json.dumps(new[name])}); name another folder"
                )
        elif out.exists() and any(out.iterdir()):
            raise InputError(
                f"{str(out)!r} is not empty and contains no experiment; name a new or an empty folder"
            )
        out.mkdir(parents=True, exist_ok=True)
        write_json(facts_file, self._identity)

    def _benchmarks(self) -> dict[str, Benchmark]:
        """Return the benchmark of each study; raise an error if a data set is missing or damaged."""
        tables: dict[str, Table] = {}
        benchmarks = {}
        for name, methods in self.methods.items():
            study = STUDIES[name]
            dataset = self._dataset(study.dataset)
            if study.dataset not in tables:
                tables[study.dataset] = dataset.synthetic() if self.data is None else dataset.load(self.data)
            chosen = self.presets[study.dataset]
            config = (chosen.quick() if self.quick else chosen).benchmark(
                methods, self.splits, self.seed, study.by
            )
            title = f"made-up data in the shape of {dataset.title}" if self.quick else dataset.title
            benchmarks[name] = Benchmark(tables[study.dataset], config, title)
        return benchmarks

    def _study(
        self, name: str, benchmark: Benchmark, folder: Path, reporter: Reporter
    ) -> tuple[Results, list[Timing]]:
        """Run or continue one benchmark, and add a note about its data."""
        reporter.say(f"Study {name}: {benchmark.name}")
        results = benchmark.run(folder, reporter, _keep_models(folder) if self.keep_models else None)
        about = _QUICK_NOTE if self.quick else self._dataset(STUDIES[name].dataset).note
        results = results.model_copy(update={"data": {"note": about, "preset": self.preset, **results.data}})
        return results, [Timing(**timing) for timing in read_json(folder / "timing.json")]

    def _dataset(self, name: str) -> DataSet:
        """Return a data set by name; for e-learning, that of the chosen tasks."""
        return EEDI_TASKS_1_2 if (name, self.eedi_tasks) == ("elearning", "1_2") else DATASETS[name]

    def _check_models(self, out: Path) -> None:
        """Refuse splits that were finished without saving their models: they are not trained again."""
        for study in self.methods:
            folder = out / "studies" / study
            for split in range(self.splits):
                finished, models = folder / "splits" / f"{split}.json", _models_folder(folder, split)
                if finished.exists() and not models.exists():
                    raise InputError(
                        f"split {split + 1} of {study!r} in {str(out)!r} is finished and its models were not "
                        "kept; name a new folder to train them again"
                    )


def _models_folder(study: Path, split: int) -> Path:
    return study / "models" / f"split-{split}"


def _keep_models(study: Path) -> KeepParts:
    """Return a function that saves the models of a split, one for each meta-training."""

    def keep(number: int, table: Table, split: FeatureSplit, recipe: Recipe, trained: TrainedParts) -> None:
        folder = _models_folder(study, number)
        known = np.union1d(split.train, split.meta_train)
        positions = np.searchsorted(known, split.train)
        saved = set()
        for method, part in trained.adapters.items():
            config = part.adapter.config
            training = ADAPTERS.part_of(config).training_config(config).model_dump_json()
            if part.metatraining is None or training in saved:
                continue  # nothing was trained, or methods that differ only in their fine-tuning
            saved.add(training)
            parts = TrainedParts(trained.backbone, trained.knowledge, {"adapter": part})
            settings = Settings(
                **{name: getattr(recipe, name) for name in Recipe.model_fields}, adapter=config
            )
            state = partial(build_state, table.with_features(known), settings, parts, positions)
            save_model(state, folder / f"{method}.headstart")

    return keep


class StudyPart(NamedTuple):
    """The part of the results of one study that an experiment shows."""

    study: str
    results: Results
    timings: list[Timing]


def select_part(experiment: Experiment, study: str, results: Results, timings: Sequence[Timing]) -> StudyPart:
    """Select the methods, shots and settings of a study that an experiment shows."""
    methods, data = experiment.methods[study], results.data
    if experiment.best_of:
        best = best_method(results, experiment.best_of)
        methods = (*methods[:-1], best, methods[-1])
        data = {
            **data,
            "maml": f"{best} is shown: the best of {', '.join(experiment.best_of)} on the held-out features, "
            "averaged over shots, as in the paper",
        }
    shots = set(experiment.shots or results.shots)
    settings = {**results.settings, "methods": list(methods)}
    if "used" in settings:
        others = set(results.methods) - set(methods)
        settings["used"] = {name: used for name, used in settings["used"].items() if name not in others}
    runs = [run for run in results.runs if run.method in methods and run.shots in shots]
    selected = [timing for timing in timings if timing.method in methods and timing.shots in shots]
    order = {method: i for i, method in enumerate(methods)}
    return StudyPart(
        study,
        Results.from_splits(data, settings, [runs]),
        sorted(selected, key=lambda timing: (order[timing.method], timing.shots)),
    )


def best_method(results: Results, methods: Sequence[str]) -> str:
    """Return the method with the best main metric, averaged over shots and splits."""
    metric = main_metric(results)
    curves = results.curves(metric)
    return methods[METRICS[metric].best(np.array([np.mean(curves[method].mean) for method in methods]))]


def main_metric(results: Results) -> str:
    """Return the metric to compare methods by: RMSE if the results have it, otherwise AUROC."""
    return "rmse" if "rmse" in results.metrics else "auroc"


def panels(experiment: Experiment, parts: Sequence[StudyPart]) -> list[Panel]:
    """Return the panels of a picture: one per study or, for fine-tuning, one per initial head."""
    result = []
    for study, results, timings in parts:
        title, metric = str(results.data["name"]), METRICS[main_metric(results)]
        if experiment.shows == "times":
            result.append(Panel(_time_curves(timings), Metric("ms per feature", "lower"), title))
        elif experiment.shows == "epochs":
            for start, head in (("train", "a random head"), ("chn-train", "the hypernetwork's head")):
                curves = _epoch_curves(results, start)
                result.append(Panel(curves, metric, f"{title}: from {head}", "epochs of fine-tuning"))
        else:
            order = f", old to new by {STUDIES[study].by}" if STUDIES[study].by else ""
            result.append(Panel(results.curves(main_metric(results)), metric, title + order))
    return result


def _time_curves(timings: Sequence[Timing]) -> dict[str, Curve]:
    """Return milliseconds per feature by shots: the median over splits."""
    times: dict[str, dict[int, list[float]]] = {}
    for timing in timings:
        times.setdefault(timing.method, {}).setdefault(timing.shots, []).append(timing.ms_per_feature)
    return {
        method: Curve(
            list(by_shots), [float(np.median(ms)) for ms in by_shots.values()], [None] * len(by_shots)
        )
        for method, by_shots in times.items()
    }


def _epoch_curves(results: Results, start: str) -> dict[str, Curve]:
    """Turn curves by shots of ``start-0``, ``start-1``, … into one curve by epochs per number of shots."""
    curves = results.curves(main_metric(results))
    return {
        count(shots, "shot"): Curve(
            list(EPOCHS),
            [curves[f"{start}-{n}"].mean[i] for n in EPOCHS],
            [curves[f"{start}-{n}"].sigma[i] for n in EPOCHS],
        )
        for i, shots in enumerate(results.shots)
    }


def publish(
    folder: Path, experiment: Experiment, parts: Sequence[StudyPart], settings: dict[str, Any]
) -> None:
    """Write the picture, the reports, the numbers of each study, the settings and the versions.

    Without matplotlib, the reports have a note instead of the picture.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        light, dark = (plot_panels(panels(experiment, parts), dark=dark) for dark in (False, True))
    except MissingMatplotlibError:
        (folder / "picture.png").unlink(missing_ok=True)
        html, markdown = note(NO_PICTURE), markdown_text(NO_PICTURE)
    else:
        write_bytes(folder / "picture.png", light)
        html, markdown = picture(light, dark), "![](picture.png)"
    write_bytes(folder / "report.html", _html(experiment, parts, html).encode())
    write_bytes(folder / "report.md", _markdown(experiment, parts, markdown).encode())
    for study, results, timings in parts:
        results.save(folder / f"results-{study}.json")
        write_json(folder / f"timing-{study}.json", [timing.model_dump(mode="json") for timing in timings])
    write_json(folder / "settings.json", settings)


def versions() -> dict[str, Any]:
    """Return the versions of the software, the number of threads and the machine."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "headstart": __version__,
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
    }


def ratio_table(timings: Sequence[Timing]) -> TextTable:
    """Return the times of the methods divided by the times of chn, beside the ratios in the paper."""
    shots = sorted({timing.shots for timing in timings})
    medians: dict[tuple[str, int], float] = {
        (method, k): float(
            np.median([t.ms_per_feature for t in timings if (t.method, t.shots) == (method, k)])
        )
        for method, k in {(timing.method, timing.shots): None for timing in timings}
    }
    cells = {}
    for method in dict.fromkeys(timing.method for timing in timings):
        if method != "chn":
            cells[method] = [f"{medians[method, k] / medians['chn', k]:.1f}" for k in shots]
        if method in PAPER_RATIOS and shots == [1, 4, 16]:
            cells[f"{method}, the paper"] = [f"{ratio:.1f}" for ratio in PAPER_RATIOS[method]]
    return TextTable("Time divided by the time of chn", shots, cells, {})


def _html(experiment: Experiment, parts: Sequence[StudyPart], image: str) -> str:
    sections = [*(note(_data_note(part)) for part in parts), image]
    for part in parts:
        if len(parts) > 1:
            sections.append(f"<h1>{escape(str(part.results.data['name']))}</h1>")
        sections += [table_section(table) for table in _first_tables(experiment, part)]
        sections += numbers(part.results, part.timings)
    return page(experiment.title, sections)


def _markdown(experiment: Experiment, parts: Sequence[StudyPart], image: str) -> str:
    texts = [f"# {markdown_text(experiment.title)}", image]
    for part in parts:
        texts.append(markdown_text(_data_note(part)))
        for table in _first_tables(experiment, part):
            texts += [f"## {table.title}", table.to_markdown()]
        texts.append(markdown_report(part.results, part.timings, str(part.results.data["name"])))
    return "\n\n".join(texts)


def _first_tables(experiment: Experiment, part: StudyPart) -> list[TextTable]:
    """Return the tables to show first: for an experiment about times, the times and their ratios."""
    return [timing_table(part.timings), ratio_table(part.timings)] if experiment.shows == "times" else []


def _data_note(part: StudyPart) -> str:
    return str(part.results.data.get("note", ""))
