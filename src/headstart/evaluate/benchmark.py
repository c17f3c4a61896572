"""Compare methods on the same splits, backbones, contexts and targets.

``Benchmark.run`` trains and scores the methods split by split, and writes a ``BenchmarkFolder``. The command
``headstart benchmark`` and the paper's experiments use it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field, ValidationError

from headstart.adapters.base import ADAPTERS, Adapter, AdapterConfig, adapter_config
from headstart.backbones.base import AnyBackbone, Backbone
from headstart.config import Config
from headstart.core.value_references import VALUE_REFERENCES
from headstart.errors import InputError, UnknownNameError, did_you_mean, for_user, join_names
from headstart.evaluate.kshot import KShotTest, check_shots
from headstart.evaluate.plots import MissingMatplotlibError, plot_kshot
from headstart.evaluate.references import REFERENCES
from headstart.evaluate.reports import html_report, markdown_report
from headstart.evaluate.results import Results, Run, Timing, time_adapters
from headstart.evaluate.scoring import (
    HeldOutRows,
    relevant_cells,
    score_adapter,
    score_reference,
    score_rows,
    score_value_reference,
)
from headstart.evaluate.splits import FeatureSplit, draw_rows, split_features, split_rows, usable_row_shots
from headstart.files import read_json, write_bytes, write_json
from headstart.parallel import thread_pool
from headstart.progress import Reporter
from headstart.table import Table
from headstart.table.kinds import KindType, feature_kinds
from headstart.training.judge import train_best
from headstart.training.meta_training import MetaTrainingConfig
from headstart.training.pretraining import PretrainingConfig
from headstart.training.recipe import AUTO, Recipe, TrainedParts, train
from headstart.training.table_inputs import feature_batch, hide_scales, modelled_table

FORMAT = 1  # of the folder

_FACTS_FILE = "benchmark.json"

# Stores trained parts: called with the number of the split, its table, the split, the recipe and the parts.
KeepParts = Callable[[int, Table, FeatureSplit, Recipe, TrainedParts], None]


class BenchmarkConfig(Config):
    """Settings of a benchmark.

    Parameters
    ----------
    methods : tuple of str
        ``"auto"`` for the default of ``fit``, names of adapters such as ``"knn-10"``, the references
        ``"row-column-means"`` and ``"als-values"``, or, if rankings are scored, the references
        ``"popularity"``, ``"item-knn"`` and ``"als"``; each once.
    shots : tuple of int
        Numbers of observations in the context of a held-out feature.
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
        Share of the rows, at most 500 rows, that is held out from all training, to score predictions
        for new rows. 0 holds out none.
    row_shots : tuple of int
        Numbers of observations in the context of a held-out row. Numbers that leave half of the rows without
        a target are dropped.
    ranking : bool, default=False
        Whether to score rankings, too (always for clicks): all rows for each new feature, and all known
        features for each new row (see ``score_lists``).
    backbone : str, dict or BackboneConfig
        Name or settings of the backbone.
    pretraining : PretrainingConfig
        Settings of the training of the backbone.
    metatraining : MetaTrainingConfig
        Settings of the training of adapters. Each adapter chooses the values that are not set here.
    adapters : dict
        Settings by the adapter's name, such as ``{"chn": {"encoding": 25}}``.

    Examples
    --------
    >>> BenchmarkConfig(methods=("mean", "knn-10"), splits=2).method("knn-10", seed=0).neighbours
    10
    """

    methods: tuple[str, ...] = ("auto", "chn", "row-column-means", "als-values", "knn-10")
    shots: tuple[int, ...] = (0, 1, 2, 4, 8, 16, 32)
    splits: int = Field(5, ge=1)
    seed: int = Field(0, ge=0)
    test_share: float = Field(0.1, gt=0, lt=1)
    meta_share: float | None = Field(None, gt=0, lt=1)
    by: str | None = None
    test_rows: float = Field(0.1, ge=0, lt=1)
    row_shots: tuple[int, ...] = (0, 1, 2, 4, 8, 16)
    ranking: bool = False
    backbone: AnyBackbone = Field("factorisation", validate_default=True)
    pretraining: PretrainingConfig = PretrainingConfig()
    metatraining: MetaTrainingConfig = MetaTrainingConfig()
    adapters: dict[str, dict[str, Any]] = Field({})

    def method(self, name: str, seed: int) -> AdapterConfig:
        """Return the settings of a method, with the settings in ``adapters`` applied."""
        return adapter_config(name, seed, self.adapters)

    def to_json(self) -> dict[str, Any]:
        """Return the settings as plain JSON, without unused ones."""
        unused = set() if self.test_rows else {"test_rows", "row_shots"}
        unused |= set() if self.ranking else {"ranking"}
        settings = self.model_dump(mode="json", exclude={"pretraining", "metatraining", *unused})
        for part in ("pretraining", "metatraining"):  # methods choose the values that are not set
            settings[part] = getattr(self, part).model_dump(mode="json", exclude_unset=True)
        return settings

    def check_methods(self) -> None:
        """Refuse unknown and repeated methods, and settings of unknown adapters."""
        for method in self.methods:
            if method in REFERENCES and not self.ranking:
                raise InputError(
                    f"{method!r} only ranks; score rankings with {for_user('ranking=True', '--ranking')}"
                )
            if method != AUTO and method not in REFERENCES and method not in VALUE_REFERENCES:
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


class Benchmark:
    """Compare methods on held-out features and held-out rows of a table, which are treated as new.

    Parameters
    ----------
    table : Table
        The observations; may have metadata.
    config : BenchmarkConfig
        The settings.
    name : str
        Name of the data in reports.

    Attributes
    ----------
    splits : list of FeatureSplit
        The splits of the features.
    rows : list of ndarray
        By split, the positions of the held-out rows; empty without ``test_rows``.

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
        clicks = bool((table.kinds.types == KindType.CLICK).any())  # only rankings can score them
        config = self.config = config.revised(
            shots=check_shots(config.shots), ranking=config.ranking or clicks
        )
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

    def run(
        self, out: str | Path, reporter: Reporter | None = None, keep: KeepParts | None = None
    ) -> Results:
        """Run the splits that are not finished yet, and write the results.

        Parameters
        ----------
        out : str or Path
            Folder for the results, the picture and the reports. If it contains a benchmark of the same
            data and settings, that benchmark is continued.
        reporter : Reporter, optional
            Shows progress. By default nothing is shown.
        keep : callable, optional
            Is called with the trained parts of each split that is run now, before its results are stored.

        Returns
        -------
        Results
            The results of all splits. ``settings["used"]`` are the settings of the first split, with all
            defaults.

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
                outcome = self._run_split(number, folder, reporter, keep)
                folder.save(outcome)
            else:
                reporter.say(f"Split {number + 1} of {self.config.splits}: already finished")
            outcomes.append(outcome)
        data = {
            **table_facts(self.table, self.name),
            "splits": [{"split": o.split, **o.facts} for o in outcomes],
        }
        used = {"used": outcomes[0].used}  # sizes can differ by split, with the number of features
        results = Results.from_splits(data, settings | used, [outcome.runs for outcome in outcomes])
        folder.publish(results, [timing for outcome in outcomes for timing in outcome.timings])
        return results

    def _run_split(
        self, number: int, folder: BenchmarkFolder, reporter: Reporter, keep: KeepParts | None
    ) -> SplitOutcome:
        """Train and score all methods on split ``number``."""
        config, split, seed = self.config, self.splits[number], self.config.seed + number
        training_rows, held_out_rows = split_rows(self.table, self.rows[number])
        table = hide_scales(training_rows, split.train)
        held_out_rows = replace(held_out_rows, kinds=table.kinds)
        new_features = table.with_features(split.meta_test)
        middle = table.kinds.take(split.train).middle_real()

        def build_tests(link: str) -> tuple[KShotTest, HeldOutRows | None]:
            batch = feature_batch(modelled_table(new_features, link), middle)
            test = KShotTest(batch, new_features.kinds, config.shots, seed)
            if len(held_out_rows.rows) == 0:
                return test, None
            return test, HeldOutRows.of(table, held_out_rows, split, test, link, config.row_shots, seed)

        test, rows = build_tests("logistic")  # before any training, because it can find errors in the data
        facts = split_facts(table, split, test, len(held_out_rows.rows), rows)
        reporter.say(
            f"Split {number + 1} of {config.splits}: {facts['train']} features train, "
            f"{facts['meta_train']} meta-train, {facts['tested']} tested, {facts['left_out']} left out"
            + (f"; {facts['tested_rows']} rows tested" if len(held_out_rows.rows) else "")
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
        for trained, link in self._train(table, split, recipe, number, folder, reporter):
            new_runs, new_timings = _score(trained, *build_tests(link), number, reporter, config.ranking)
            runs += new_runs
            timings += new_timings
            adapters = {name: (part.adapter, part.metatraining) for name, part in trained.adapters.items()}
            used |= used_settings(trained.backbone, config.pretraining, adapters)
            if keep is not None:
                keep(number, table, split, recipe.revised(binary_link=link), trained)
        references = [method for method in config.methods if method in REFERENCES]
        if references:
            known = relevant_cells(feature_batch(table.with_features(split.train))).transpose()
            for method in references:
                reporter.say(f"Scoring {method}")
                runs += score_reference(method, REFERENCES[method](known), test, rows, number)
        value_references = [method for method in config.methods if method in VALUE_REFERENCES]
        if value_references:
            observed = feature_batch(table.with_features(split.train)).cells.transpose()
            for method in value_references:
                if bool(test.context(0).unscaled.any()):
                    reporter.say(f"{method} left out: the features have different units")
                    continue
                reporter.say(f"Scoring {method}")
                reference = VALUE_REFERENCES[method](observed)
                runs += score_value_reference(method, reference, test, rows, number)
        return SplitOutcome(split=number, facts=facts, used=used, runs=tuple(runs), timings=tuple(timings))

    def _train(
        self,
        table: Table,
        split: FeatureSplit,
        recipe: Recipe,
        number: int,
        folder: BenchmarkFolder,
        reporter: Reporter,
    ) -> Iterator[tuple[TrainedParts, str]]:
        """Train the methods and yield them with their binary link.

        Named methods share one backbone; "auto" has its own.
        """

        def checkpoint(part: str) -> Path:
            return folder.checkpoint(number, part)

        config, seed = self.config, recipe.random_state
        references = {AUTO, *REFERENCES, *VALUE_REFERENCES}
        adapters = [method for method in config.methods if method not in references]
        named = {method: config.method(method, seed) for method in adapters}
        if named:
            with thread_pool():
                trained = train(
                    table,
                    split.train,
                    split.meta_train,
                    recipe,
                    named,
                    reporter=reporter,
                    checkpoint=checkpoint,
                )
            yield trained, recipe.binary_link
        if AUTO in config.methods:
            with thread_pool():
                best, chosen, judgement = train_best(
                    table,
                    split.train,
                    recipe,
                    reporter=reporter,
                    checkpoint=lambda part: checkpoint(f"auto-{part}"),
                )
            reporter.say(f"auto chose {judgement.chosen}")
            trained = TrainedParts(best.backbone, best.knowledge, {AUTO: best.adapters["adapter"]})
            yield trained, chosen.binary_link

    def _check_shots(self) -> None:
        """Refuse shots that leave no target in one of the splits."""
        shots, table = self.config.shots[-1], self.table
        for number, (split, rows) in enumerate(zip(self.splits, self.rows, strict=True)):
            is_held_out = np.zeros(len(table.rows), dtype=bool)
            is_held_out[rows] = True
            training_features = table.feature_index[~is_held_out[table.row_index]]
            counts = np.bincount(training_features, minlength=len(table.features))
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


def _score(
    trained: TrainedParts,
    test: KShotTest,
    rows: HeldOutRows | None,
    number: int,
    reporter: Reporter,
    ranking: bool,
) -> tuple[list[Run], list[Timing]]:
    """Score and time the trained methods on the tests of split ``number``."""
    adapters = {method: part.adapter for method, part in trained.adapters.items()}
    contexts = {shots: test.context(shots) for shots in test.shots}
    timings = time_adapters(adapters, contexts, trained.knowledge.states)
    runs: list[Run] = []
    with reporter.bar("Scoring", len(adapters)) as bar:
        for method, part in trained.adapters.items():
            times = {timing.shots: timing for timing in timings if timing.method == method}
            runs += score_adapter(
                method, part.adapter, trained.knowledge, test, part.calibration, times, number,
                ranking=ranking, strengths=part.local,
            )  # fmt: skip
            if rows is not None:
                runs += score_rows(method, trained, rows, number, ranking=ranking)
            bar.step(method)
    return runs, timings


class SplitOutcome(Config):
    """The results of one finished split."""

    split: int
    facts: dict[str, int]  # numbers of features, see ``split_facts``
    used: dict[str, Any]  # settings with all defaults, see ``used_settings``
    runs: tuple[Run, ...]
    timings: tuple[Timing, ...]


class BenchmarkFolder:
    """A folder of finished splits and checkpoints, continued only with the same data and settings.

    ``benchmark.json`` contains the settings and the table's fingerprint, ``splits/N.json`` a finished
    split, and ``splits/N/`` the checkpoints of an unfinished one. ``publish`` writes the other files.
    """

    def __init__(self, path: Path, fingerprint: str, settings: dict[str, Any]) -> None:
        self.path = path
        # The number of splits may grow; with any other change it is a different benchmark.
        same = {name: value for name, value in settings.items() if name != "splits"}
        self._identity = json.loads(json.dumps({"format": FORMAT, "table": fingerprint, "settings": same}))

    def open(self) -> None:
        """Create the folder, or continue the benchmark in it; refuse a folder with other contents."""
        facts_file = self.path / _FACTS_FILE
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"{str(self.path)!r} is a file; name a folder to write the benchmark to")
        if facts_file.exists():
            self._compare(read_json(facts_file))
        elif self.path.exists() and any(self.path.iterdir()):
            raise InputError(
                f"{str(self.path)!r} is not empty and contains no benchmark; name a new or an empty folder"
            )
        (self.path / "splits").mkdir(parents=True, exist_ok=True)
        write_json(facts_file, self._identity)

    def _compare(self, identity: Any) -> None:
        """Refuse other data and settings; ``identity`` is the content of ``benchmark.json``."""
        subject = f"{str(self.path)!r} contains a benchmark"
        if not isinstance(identity, dict) or not isinstance(identity.get("settings"), dict):
            raise InputError(f"{subject} whose {_FACTS_FILE} is damaged; name another folder")
        if identity.get("format") != FORMAT:
            raise InputError(f"{subject} of another format ({identity.get('format')!r}); name another folder")
        advice = "use the same ones to continue it, or name another folder"
        if identity.get("table") != self._identity["table"]:
            raise InputError(f"{subject} of other data; {advice}")
        before, now = identity["settings"], self._identity["settings"]
        differing = [name for name in {**before, **now} if before.get(name) != now.get(name)]
        if differing:
            name = differing[0]
            values = f"{name} = {json.dumps(before.get(name))}, now {json.dumps(now.get(name))}"
            raise InputError(f"{subject} with other settings ({values}); {advice}")

    def finished(self, split: int) -> SplitOutcome | None:
        """Return the results of a split, or None if it is not finished."""
        path = self._outcome_file(split)
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
        """Return the checkpoint file of one part of a split: the backbone or an adapter."""
        folder = self.path / "splits" / str(split)
        folder.mkdir(exist_ok=True)
        return folder / f"{name}.safetensors"

    def save(self, outcome: SplitOutcome) -> None:
        """Save a finished split and delete its checkpoints."""
        write_json(self._outcome_file(outcome.split), outcome.model_dump(mode="json"))
        shutil.rmtree(self.path / "splits" / str(outcome.split), ignore_errors=True)

    def publish(self, results: Results, timings: Sequence[Timing]) -> None:
        """Write the results, the picture (if matplotlib is installed) and the reports."""
        results.save(self.path / "results.json")
        write_json(self.path / "timing.json", [timing.model_dump(mode="json") for timing in timings])
        write_picture(self.path / "kshot.png", results)
        write_bytes(self.path / "report.html", html_report(results, timings).encode())
        write_bytes(self.path / "results.md", markdown_report(results, timings).encode())

    def _outcome_file(self, split: int) -> Path:
        return self.path / "splits" / f"{split}.json"


def write_picture(path: Path, results: Results, metrics: Sequence[str] | None = None) -> bool:
    """Write the k-shot picture as PNG, and return True.

    Without matplotlib, delete the picture of an earlier run, and return False.
    """
    try:
        write_bytes(path, plot_kshot(results, metrics))
    except MissingMatplotlibError:
        path.unlink(missing_ok=True)
        return False
    return True


def table_facts(table: Table, name: str) -> dict[str, Any]:
    """Return the size and the contents of a table as plain JSON."""
    rows, features = table.shape
    return {
        "name": name,
        "rows": rows,
        "features": features,
        "observations": table.answers,
        "density": float(table.density),
        "kinds": feature_kinds(table.features, table.kinds).summary(),
        "metadata": [] if table.metadata is None else list(table.metadata.column_names),
        "fingerprint": table.fingerprint(),
    }


def split_facts(
    table: Table, split: FeatureSplit, test: KShotTest, held_out: int, rows: HeldOutRows | None
) -> dict[str, int]:
    """Return the numbers of features in each part, and of tested rows if ``held_out`` is not 0."""
    train, meta_train, meta_test = (
        len(np.unique(table.groups[part])) for part in (split.train, split.meta_train, split.meta_test)
    )
    facts = {
        "train": train,
        "meta_train": meta_train,
        "meta_test": meta_test,
        "tested": test.tested,
        "left_out": meta_test - test.tested,
    }
    if held_out:
        tested = 0 if rows is None else len(rows.rows)
        facts |= {"tested_rows": tested, "left_out_rows": held_out - tested}
    return facts


def used_settings(
    backbone: Backbone,
    pretraining: PretrainingConfig,
    adapters: Mapping[str, tuple[Adapter, MetaTrainingConfig | None]],
) -> dict[str, Any]:
    """Return the settings of a training as plain JSON, with all defaults filled in.

    Parameters
    ----------
    backbone : Backbone
        A trained backbone.
    pretraining : PretrainingConfig
        The settings of its training. Not part of the result for a backbone in closed form.
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
