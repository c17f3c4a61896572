"""The benchmark: all methods are compared on the same splits, backbones, contexts and targets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from headstart.errors import InputError
from headstart.evaluate.benchmark_config import BenchmarkConfig
from headstart.evaluate.facts import split_facts, table_facts
from headstart.evaluate.folder import BenchmarkFolder, SplitOutcome
from headstart.evaluate.kshot import KShotTest
from headstart.evaluate.nested import check_shots
from headstart.evaluate.results import Results, Run
from headstart.evaluate.row_scoring import HeldOutRows, score_rows
from headstart.evaluate.row_split import draw_rows, part_rows, usable_row_shots
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
from headstart.workers import workers


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
        kept, away = part_rows(self.table, self.rows[number])
        table = hide_scales(kept, split.train)
        away = replace(away, kinds=table.kinds)
        held_out = table.with_features(split.meta_test)
        middle = table.kinds.take(split.train).middle_real()

        def tests(link: str) -> tuple[KShotTest, HeldOutRows | None]:
            batch = feature_batch(as_modelled(held_out, link), middle)
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
            with workers():
                trained = train(
                    table, split.train, split.meta_train, recipe, named, reporter=reporter, checkpoint=place
                )
            yield trained, recipe.binary_link
        if AUTO in config.methods:
            with workers():
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
