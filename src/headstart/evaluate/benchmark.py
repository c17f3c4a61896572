"""The benchmark: all methods are compared on the same splits, backbones, contexts and targets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from headstart.errors import InputError
from headstart.evaluate.benchmark_config import BenchmarkConfig
from headstart.evaluate.folder import BenchmarkFolder, SplitOutcome
from headstart.evaluate.kshot import KShotTest, check_shots
from headstart.evaluate.results import Results, Run
from headstart.evaluate.scoring import score_adapter
from headstart.evaluate.splits import FeatureSplit, split_features
from headstart.evaluate.timing import Timing, time_adapters
from headstart.evaluate.used_settings import used_settings
from headstart.progress import Reporter
from headstart.table import Table
from headstart.training.choosing import AUTO, train_best
from headstart.training.recipe import Recipe, Trained, as_modelled, train
from headstart.training.scales import hide_scales
from headstart.training.stages import feature_batch


class Benchmark:
    """Compares methods on a table: features are held out and treated as new.

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
        settings = self.config.model_dump(mode="json", exclude={"pretraining", "metatraining"})
        for part in ("pretraining", "metatraining"):  # methods choose the values that are not set
            settings[part] = getattr(self.config, part).model_dump(mode="json", exclude_unset=True)
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
        data = {**self._facts(), "splits": [{"split": o.split, **o.facts} for o in outcomes]}
        used = {"used": outcomes[0].used}  # sizes can differ by split, with the number of features
        results = Results.merged(data, settings | used, [outcome.runs for outcome in outcomes])
        folder.publish(results, [timing for outcome in outcomes for timing in outcome.timings])
        return results

    def _run_split(self, number: int, folder: BenchmarkFolder, reporter: Reporter) -> SplitOutcome:
        config, split, seed = self.config, self.splits[number], self.config.seed + number
        table = hide_scales(self.table, split.train)
        held_out = table.with_features(split.meta_test)
        middle = table.kinds.take(split.train).middle_real()
        test = KShotTest(feature_batch(held_out, middle), held_out.kinds, config.shots, seed)
        facts = _split_facts(split, test)
        reporter.say(
            f"Split {number + 1} of {config.splits}: {len(split.train)} features train, "
            f"{len(split.meta_train)} meta-train, {len(test)} tested, {test.left_out} left out"
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
            batch = feature_batch(as_modelled(held_out, link), middle)
            test = KShotTest(batch, held_out.kinds, config.shots, seed)
            scored, times = _scored(trained, test, number, reporter)
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
            yield (
                train(
                    table, split.train, split.meta_train, recipe, named, reporter=reporter, checkpoint=place
                ),
                recipe.binary_link,
            )
        if AUTO in config.methods:
            best, chosen, judgement = train_best(
                table, split.train, recipe, reporter=reporter, checkpoint=lambda part: place(f"auto-{part}")
            )
            reporter.say(f"auto chose {judgement.chosen}")
            own = best.adapters["adapter"]
            yield Trained(best.backbone, best.knowledge, {AUTO: own}), chosen.binary_link

    def _check_shots(self) -> None:
        shots, counts = self.config.shots[-1], np.asarray(self.table.counts)
        for number, split in enumerate(self.splits):
            largest = int(counts[split.meta_test].max())
            if largest <= shots:
                where = f"held out in split {number + 1}"
                if int(counts.max()) <= shots:
                    where, largest = "of the table", int(counts.max())
                raise InputError(
                    f"{shots} shots leave nothing to test on: the largest feature {where} has {largest} "
                    f"observations; use shots below {largest}"
                )

    def _facts(self) -> dict[str, Any]:
        table = self.table
        rows, features = table.shape
        return {
            "name": self.name,
            "rows": rows,
            "features": features,
            "observations": int(np.sum(table.counts)),
            "density": float(table.density),
            "kinds": table.kinds.summary(),
            "metadata": [] if table.metadata is None else list(table.metadata.column_names),
            "fingerprint": table.fingerprint(),
        }


def _scored(
    trained: Trained, test: KShotTest, number: int, reporter: Reporter
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
            bar.step(method)
    return runs, timings


def _split_facts(split: FeatureSplit, test: KShotTest) -> dict[str, int]:
    return {
        "train": len(split.train),
        "meta_train": len(split.meta_train),
        "meta_test": len(split.meta_test),
        "tested": len(test),
        "left_out": test.left_out,
    }
