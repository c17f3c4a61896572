"""Compare all methods on the same splits, backbones, contexts and targets."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field, ValidationError

from headstart.adapters.base import ADAPTERS, Adapter, AdapterConfig, adapter_config
from headstart.backbones.base import AnyBackbone, Backbone
from headstart.config import Config
from headstart.errors import InputError, UnknownNameError, did_you_mean, join_names
from headstart.evaluate.kshot import KShotTest, check_shots
from headstart.evaluate.plots import MissingMatplotlibError, plot_kshot
from headstart.evaluate.reports import html_report, markdown_report
from headstart.evaluate.results import Results, Run, Timing, time_adapters
from headstart.evaluate.scoring import HeldOutRows, score_adapter, score_rows
from headstart.evaluate.splits import FeatureSplit, draw_rows, split_features, split_rows, usable_row_shots
from headstart.files import read_json, write_bytes, write_json
from headstart.parallel import thread_pool
from headstart.progress import Reporter
from headstart.table import Table
from headstart.training.meta_training import MetaTrainingConfig
from headstart.training.pretraining import PretrainingConfig
from headstart.training.recipe import (
    AUTO,
    Recipe,
    Trained,
    feature_batch,
    hide_scales,
    modelled_table,
    train,
    train_best,
)


class BenchmarkConfig(Config):
    """Settings of a benchmark: what is compared, and how.

    Parameters
    ----------
    methods : tuple of str
        ``"auto"`` for what a fit does by default, or names of adapters such as ``"knn-10"``; each once.
    shots : tuple of int
        Numbers of observations of a held-out feature that a method is given.
    splits : int
        Number of random splits of the features.
    seed : int
        Seed of the first split; split i uses ``seed + i``.
    test_share : float
        Share of the features that is held out as new.
    meta_share : float, optional
        Share of the other features that trains only the adapters, as in the paper. By default all of
        them train both the backbone and the adapters.
    by : str, optional
        Metadata column of numbers or dates: the features with the largest values are held out. By
        default the split is random.
    test_rows : float
        Share of the rows, at most 500, that is held out from everything that is trained, to score
        predictions by the observations of a new row. 0 holds out none.
    row_shots : tuple of int
        Numbers of observations of a held-out row that describe it. Those that leave nothing to test on in
        half of the rows are left out.
    backbone : str, dict or BackboneConfig
        Name or settings of the backbone.
    pretraining : PretrainingConfig
        How the backbone is trained.
    metatraining : MetaTrainingConfig
        How adapters are trained. A value that is not set here is chosen by each adapter.
    adapters : dict
        Settings by the adapter's name, such as ``{"chn": {"encoding": 25}}``.

    Examples
    --------
    >>> BenchmarkConfig(methods=("mean", "knn-10"), splits=2).method("knn-10", seed=0).neighbours
    10
    """

    methods: tuple[str, ...] = ("auto", "chn", "mean", "mean-head", "knn-10")
    shots: tuple[int, ...] = (0, 1, 2, 4, 8, 16, 32)
    splits: int = Field(5, ge=1)
    seed: int = Field(0, ge=0)
    test_share: float = Field(0.1, gt=0, lt=1)
    meta_share: float | None = Field(None, gt=0, lt=1)
    by: str | None = None
    test_rows: float = Field(0.1, ge=0, lt=1)
    row_shots: tuple[int, ...] = (0, 1, 2, 4, 8, 16)
    backbone: AnyBackbone = Field("factorisation", validate_default=True)
    pretraining: PretrainingConfig = PretrainingConfig()
    metatraining: MetaTrainingConfig = MetaTrainingConfig()
    adapters: dict[str, dict[str, Any]] = Field({})

    def method(self, name: str, seed: int) -> AdapterConfig:
        """Return the settings of a method, with the settings in ``adapters`` applied."""
        return adapter_config(name, seed, self.adapters)

    def to_json(self) -> dict[str, Any]:
        """Return the settings as plain JSON; what is not used is left out.

        So a benchmark without held-out rows has the same settings as one made before there were any.
        """
        unused = set() if self.test_rows else {"test_rows", "row_shots"}
        settings = self.model_dump(mode="json", exclude={"pretraining", "metatraining", *unused})
        for part in ("pretraining", "metatraining"):  # methods choose the values that are not set
            settings[part] = getattr(self, part).model_dump(mode="json", exclude_unset=True)
        return settings

    def check_methods(self) -> None:
        """Refuse methods that are unknown or given twice, and settings of unknown adapters."""
        for method in self.methods:
            if method != AUTO:
                self.method(method, self.seed)  # raises an error if the name is unknown
        if AUTO in self.methods and self.meta_share is not None:
            raise InputError("with a meta_share the methods must be named; 'auto' trains on all features")
        for name in self.adapters:
            if name not in ADAPTERS:
                hint = did_you_mean(name, ADAPTERS.parts())
                raise UnknownNameError(f"settings for an unknown adapter {name!r}{hint}")
        repeated = [method for i, method in enumerate(self.methods) if method in self.methods[:i]]
        if not self.methods or repeated:
            problem = f"{join_names(repeated)} given twice" if repeated else "none given"
            raise InputError(f"a benchmark needs methods, each once: {problem}")


def table_facts(table: Table, name: str) -> dict[str, Any]:
    """Return the size and the contents of a table as plain JSON."""
    rows, features = table.shape
    return {
        "name": name,
        "rows": rows,
        "features": features,
        "observations": int(np.sum(table.counts)),
        "density": float(table.density),
        "kinds": table.kinds.summary(),
        "metadata": [] if table.metadata is None else list(table.metadata.column_names),
        "fingerprint": table.fingerprint(),
    }


def split_facts(split: FeatureSplit, test: KShotTest, away: int, rows: HeldOutRows | None) -> dict[str, int]:
    """Return how many features each part has and, if ``away`` rows are held out, how many are tested."""
    facts = {
        "train": len(split.train),
        "meta_train": len(split.meta_train),
        "meta_test": len(split.meta_test),
        "tested": len(test),
        "left_out": test.left_out,
    }
    if away:
        tested = 0 if rows is None else len(rows.rows)
        facts |= {"tested_rows": tested, "left_out_rows": away - tested}
    return facts


def used_settings(
    backbone: Backbone,
    pretraining: PretrainingConfig,
    adapters: Mapping[str, tuple[Adapter, MetaTrainingConfig | None]],
) -> dict[str, Any]:
    """Return the settings that really ran as plain JSON, with every default and rule filled in.

    Parameters
    ----------
    backbone : Backbone
        A trained backbone.
    pretraining : PretrainingConfig
        How it was trained. Left out for a backbone in closed form, which has no epochs.
    adapters : mapping
        By method, a trained adapter and the settings of its meta-training, or None if it has none.

    Returns
    -------
    dict
        ``"backbone"``, ``"pretraining"`` and one entry per method.
    """
    used: dict[str, Any] = {"backbone": backbone.config.model_dump(mode="json")}
    if backbone.trained_by == "gradient":
        used["pretraining"] = pretraining.model_dump(mode="json")
    for method, (adapter, metatraining) in adapters.items():
        used[method] = {"adapter": adapter.config.model_dump(mode="json")}
        if metatraining is not None:
            used[method]["metatraining"] = metatraining.model_dump(mode="json")
    return used


FORMAT = 1

_MARK = "benchmark.json"


class SplitOutcome(Config):
    """The numbers of one finished split."""

    split: int
    facts: dict[str, int]  # number of features in each part, and of those left out
    used: dict[str, Any]  # the settings that really ran
    runs: tuple[Run, ...]
    timings: tuple[Timing, ...]


class BenchmarkFolder:
    """Keeps finished splits and checkpoints. A benchmark continues only with the same data and settings.

    ``benchmark.json`` contains the settings and the table's fingerprint, ``splits/N.json`` a finished
    split, and ``splits/N/`` the checkpoints of an unfinished one. ``publish`` writes the other files.
    """

    def __init__(self, path: Path, fingerprint: str, settings: dict[str, Any]) -> None:
        self.path = path
        # Splits can be added to a benchmark; with any other change it is a different benchmark.
        same = {name: value for name, value in settings.items() if name != "splits"}
        self._identity = json.loads(json.dumps({"format": FORMAT, "table": fingerprint, "settings": same}))

    def open(self) -> None:
        """Create the folder, or continue the benchmark in it; refuse a folder with other contents."""
        mark = self.path / _MARK
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"{str(self.path)!r} is a file; name a folder to write the benchmark to")
        if mark.exists():
            self._compare(read_json(mark))
        elif self.path.exists() and any(self.path.iterdir()):
            raise InputError(
                f"{str(self.path)!r} is not empty and contains no benchmark; name a new or an empty folder"
            )
        (self.path / "splits").mkdir(parents=True, exist_ok=True)
        write_json(mark, self._identity)

    def _compare(self, identity: Any) -> None:
        subject = f"{str(self.path)!r} contains a benchmark"
        if not isinstance(identity, dict) or not isinstance(identity.get("settings"), dict):
            raise InputError(f"{subject} whose {_MARK} is damaged; name another folder")
        if identity.get("format") != FORMAT:
            raise InputError(f"{subject} of another format ({identity.get('format')!r}); name another folder")
        advice = "use the same ones to continue it, or name another folder"
        if identity.get("table") != self._identity["table"]:
            raise InputError(f"{subject} of other data; {advice}")
        there, here = identity["settings"], self._identity["settings"]
        differing = [name for name in {**there, **here} if there.get(name) != here.get(name)]
        if differing:
            name = differing[0]
            values = f"{name} = {json.dumps(there.get(name))}, now {json.dumps(here.get(name))}"
            raise InputError(f"{subject} with other settings ({values}); {advice}")

    def finished(self, split: int) -> SplitOutcome | None:
        """Return the numbers of a split, or None if it is not finished."""
        path = self._outcome(split)
        if not path.exists():
            return None
        try:
            outcome = SplitOutcome(**read_json(path))
        except (InputError, TypeError, ValidationError) as error:
            raise InputError(
                f"{str(path)!r} is damaged ({error}); delete it to run the split again"
            ) from None
        return outcome

    def checkpoint(self, split: int, name: str) -> Path:
        """Return the file for the checkpoint of one part of a split: the backbone or an adapter."""
        folder = self.path / "splits" / str(split)
        folder.mkdir(exist_ok=True)
        return folder / f"{name}.safetensors"

    def keep(self, outcome: SplitOutcome) -> None:
        """Save a finished split and delete its checkpoints."""
        write_json(self._outcome(outcome.split), outcome.model_dump(mode="json"))
        shutil.rmtree(self.path / "splits" / str(outcome.split), ignore_errors=True)

    def publish(self, results: Results, timings: Sequence[Timing]) -> None:
        """Write the numbers, the picture (if matplotlib is installed) and the reports."""
        results.save(self.path / "results.json")
        write_json(self.path / "timing.json", [timing.model_dump(mode="json") for timing in timings])
        write_picture(self.path / "kshot.png", results)
        write_bytes(self.path / "report.html", html_report(results, timings).encode())
        write_bytes(self.path / "results.md", markdown_report(results, timings).encode())

    def _outcome(self, split: int) -> Path:
        return self.path / "splits" / f"{split}.json"


def write_picture(path: Path, results: Results, metrics: Sequence[str] | None = None) -> None:
    """Write the k-shot picture as PNG; without matplotlib, delete the picture of an earlier run."""
    try:
        write_bytes(path, plot_kshot(results, metrics))
    except MissingMatplotlibError:
        path.unlink(missing_ok=True)


class Benchmark:
    """Compares methods on a table: features are held out and treated as new, and so are rows.

    Parameters
    ----------
    table : Table
        The observations, with metadata if there is any.
    config : BenchmarkConfig
        What is compared, and how.
    name : str
        Name of the data in reports.

    Attributes
    ----------
    splits : list of FeatureSplit
        The splits of the features.
    rows : list of ndarray
        By split, the positions of the rows that are held out; empty without ``test_rows``.

    Raises
    ------
    InputError
        If a setting cannot be used with this table. This is checked here, before any training.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> from headstart.datasets import synthetic_ratings
    >>> config = BenchmarkConfig(methods=("mean", "mean-head"), shots=(0, 4), splits=1)
    >>> with TemporaryDirectory() as folder:
    ...     results = Benchmark(synthetic_ratings(60, 40, 0.4), config).run(folder)
    >>> results.methods, results.shots
    (['mean', 'mean-head'], [0, 4])
    """

    def __init__(self, table: Table, config: BenchmarkConfig, name: str = "Table") -> None:
        self.table, self.name = table, name
        self.config = config.revised(shots=check_shots(config.shots))
        config.check_methods()
        self.splits = [
            split_features(table, config.test_share, config.meta_share, config.seed + i, config.by)
            for i in range(config.splits)
        ]
        if config.test_rows:
            known_share = (1 - config.test_share) * (1 - (config.meta_share or 0))
            usable = usable_row_shots(table, config.row_shots, known_share)
            self.config = self.config.revised(row_shots=usable)
        self.rows = [draw_rows(table, config.test_rows, config.seed + i) for i in range(config.splits)]
        self._check_shots()

    def run(self, out: str | Path, reporter: Reporter | None = None) -> Results:
        """Run the splits that are not finished yet, and write the results.

        Parameters
        ----------
        out : str or Path
            Folder for the numbers, the picture and the reports. If it contains a benchmark of the same
            data and settings, that benchmark is continued.
        reporter : Reporter, optional
            Shows progress. By default nothing is shown.

        Returns
        -------
        Results
            The numbers of all splits. ``settings["used"]`` are the settings that really ran, in the
            first split.

        Raises
        ------
        InputError
            If the folder contains anything else.
        """
        reporter = reporter or Reporter(quiet=True)
        settings = self.config.to_json()
        folder = BenchmarkFolder(Path(out), self.table.fingerprint(), settings)
        folder.open()
        outcomes = []
        for number in range(self.config.splits):
            outcome = folder.finished(number)
            if outcome is None:
                outcome = self._run_split(number, folder, reporter)
                folder.keep(outcome)
            else:
                reporter.say(f"Split {number + 1} of {self.config.splits}: already finished")
            outcomes.append(outcome)
        data = {
            **table_facts(self.table, self.name),
            "splits": [{"split": o.split, **o.facts} for o in outcomes],
        }
        used = {"used": outcomes[0].used}  # sizes can differ by split, with the number of features
        results = Results.merged(data, settings | used, [outcome.runs for outcome in outcomes])
        folder.publish(results, [timing for outcome in outcomes for timing in outcome.timings])
        return results

    def _run_split(self, number: int, folder: BenchmarkFolder, reporter: Reporter) -> SplitOutcome:
        config, split, seed = self.config, self.splits[number], self.config.seed + number
        kept, away = split_rows(self.table, self.rows[number])
        table = hide_scales(kept, split.train)
        away = replace(away, kinds=table.kinds)
        held_out = table.with_features(split.meta_test)
        middle = table.kinds.take(split.train).middle_real()

        def tests(link: str) -> tuple[KShotTest, HeldOutRows | None]:
            batch = feature_batch(modelled_table(held_out, link), middle)
            new = KShotTest(batch, held_out.kinds, config.shots, seed)
            if len(away.rows) == 0:
                return new, None
            return new, HeldOutRows.of(table, away, split, new, link, config.row_shots, seed)

        test, rows = tests("logistic")  # before any training, because it can find errors in the data
        facts = split_facts(split, test, len(away.rows), rows)
        reporter.say(
            f"Split {number + 1} of {config.splits}: {len(split.train)} features train, "
            f"{len(split.meta_train)} meta-train, {len(test)} tested, {test.left_out} left out"
            + (f"; {facts['tested_rows']} rows tested" if len(away.rows) else "")
        )
        recipe = Recipe(
            backbone=config.backbone,
            pretraining=config.pretraining,
            metatraining=config.metatraining,
            meta_share=config.meta_share,
            random_state=seed,
        )
        runs: list[Run] = []
        timings: list[Timing] = []
        used: dict[str, Any] = {}
        for trained, link in self._trained(table, split, recipe, number, folder, reporter):
            scored, times = _scored(trained, *tests(link), number, reporter)
            runs += scored
            timings += times
            ran = {method: (own.adapter, own.metatraining) for method, own in trained.adapters.items()}
            used |= used_settings(trained.backbone, config.pretraining, ran)
        return SplitOutcome(split=number, facts=facts, used=used, runs=tuple(runs), timings=tuple(timings))

    def _trained(
        self,
        table: Table,
        split: FeatureSplit,
        recipe: Recipe,
        number: int,
        folder: BenchmarkFolder,
        reporter: Reporter,
    ) -> Iterator[tuple[Trained, str]]:
        """Methods that share a backbone together; what the judge chooses has a backbone of its own."""

        def place(part: str) -> Path:
            return folder.checkpoint(number, part)

        config, seed = self.config, recipe.random_state
        named = {method: config.method(method, seed) for method in config.methods if method != AUTO}
        if named:
            with thread_pool():
                trained = train(
                    table, split.train, split.meta_train, recipe, named, reporter=reporter, checkpoint=place
                )
            yield trained, recipe.binary_link
        if AUTO in config.methods:
            with thread_pool():
                best, chosen, judgement = train_best(
                    table,
                    split.train,
                    recipe,
                    reporter=reporter,
                    checkpoint=lambda part: place(f"auto-{part}"),
                )
            reporter.say(f"auto chose {judgement.chosen}")
            own = best.adapters["adapter"]
            yield Trained(best.backbone, best.knowledge, {AUTO: own}), chosen.binary_link

    def _check_shots(self) -> None:
        shots, table = self.config.shots[-1], self.table
        for number, (split, rows) in enumerate(zip(self.splits, self.rows, strict=True)):
            away = np.zeros(len(table.rows), dtype=bool)
            away[rows] = True
            here = table.feature_index[~away[table.row_index]]
            counts = np.bincount(here, minlength=len(table.features))
            largest = int(counts[split.meta_test].max())
            if largest <= shots:
                where = f"held out in split {number + 1}"
                if int(counts.max()) <= shots:
                    where, largest = "of the table", int(counts.max())
                others = " in the rows that are not held out" if len(rows) else ""
                raise InputError(
                    f"{shots} shots leave nothing to test on: the largest feature {where} has {largest} "
                    f"observations{others}; use shots below {largest}"
                )


def _scored(
    trained: Trained, test: KShotTest, rows: HeldOutRows | None, number: int, reporter: Reporter
) -> tuple[list[Run], list[Timing]]:
    adapters = {method: own.adapter for method, own in trained.adapters.items()}
    contexts = {shots: test.context(shots) for shots in test.shots}
    timings = time_adapters(adapters, contexts, trained.knowledge.states)
    runs: list[Run] = []
    with reporter.bar("Scoring", len(adapters)) as bar:
        for method, own in trained.adapters.items():
            times = {timing.shots: timing for timing in timings if timing.method == method}
            runs += score_adapter(
                method, own.adapter, trained.knowledge, test, own.calibration, times, split=number
            )
            if rows is not None:
                runs += score_rows(method, trained, rows, number)
            bar.step(method)
    return runs, timings
