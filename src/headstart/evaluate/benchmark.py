"""The benchmark: every method on the same splits, backbones, contexts and targets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from headstart.adapters.protocol import AdapterConfig
from headstart.adapters.registry import ADAPTERS, adapter_config
from headstart.backbones.registry import AnyBackbone
from headstart.config import Config
from headstart.errors import InputError, UnknownNameError, did_you_mean, listed
from headstart.evaluate.folder import BenchmarkFolder, SplitOutcome
from headstart.evaluate.kshot import KShotTest, check_shots
from headstart.evaluate.results import Results, Run
from headstart.evaluate.scoring import score_adapter
from headstart.evaluate.splits import FeatureSplit, split_features
from headstart.evaluate.timing import time_adapters
from headstart.progress import Reporter
from headstart.table import Table
from headstart.training.metatraining import MetaTrainingConfig
from headstart.training.pretraining import PretrainingConfig
from headstart.training.recipe import Recipe, Trained, train
from headstart.training.stages import feature_batch
from headstart.training.unseen import hide_scales


class BenchmarkConfig(Config):
    """What to compare, and how."""

    methods: tuple[str, ...] = ("chn-bayes", "chn", "mean", "mean-head", "knn-10")
    shots: tuple[int, ...] = (0, 1, 2, 4, 8, 16, 32)
    splits: int = Field(5, ge=1)
    seed: int = Field(0, ge=0)  # split i uses seed + i
    test_share: float = Field(0.1, gt=0, lt=1)  # of the features, held out as new
    meta_share: float | None = Field(None, gt=0, lt=1)  # of the others, to teach adapters only
    by: str | None = None  # metadata column to split by, old to new; None: at random
    backbone: AnyBackbone = Field("factorisation", validate_default=True)
    pretraining: PretrainingConfig = PretrainingConfig()
    metatraining: MetaTrainingConfig = MetaTrainingConfig()
    adapters: dict[str, dict[str, Any]] = Field({})  # such as {"chn": {"encoding": 25}}

    def method(self, name: str, seed: int) -> AdapterConfig:
        """The settings a method is run with."""
        return adapter_config(name, seed, self.adapters)


class Benchmark:
    """Compares methods on a table. All that can be wrong with the settings is found before training.

    ``name`` is what reports call the data.
    """

    def __init__(self, table: Table, config: BenchmarkConfig, name: str = "Table") -> None:
        self.table, self.name = table, name
        self.config = config.revised(shots=check_shots(config.shots))
        _check_methods(config)
        self.splits = [
            split_features(table, config.test_share, config.meta_share, config.seed + i, config.by)
            for i in range(config.splits)
        ]
        self._check_shots()

    def run(self, out: str | Path, reporter: Reporter | None = None) -> Results:
        """Run the splits that ``out`` does not hold yet, write the results there and return them."""
        reporter = reporter or Reporter(quiet=True)
        settings = self.config.model_dump(mode="json", exclude={"pretraining", "metatraining"})
        for part in ("pretraining", "metatraining"):  # what is not set is filled in by the method
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
                reporter.say(f"Split {number + 1} of {self.config.splits}: finished before")
            outcomes.append(outcome)
        data = {**self._facts(), "splits": [{"split": o.split, **o.facts} for o in outcomes]}
        used = {"used": outcomes[0].used}  # in the first split; sizes follow the number of features
        results = Results.merged(data, settings | used, [outcome.runs for outcome in outcomes])
        folder.publish(results, [timing for outcome in outcomes for timing in outcome.timings])
        return results

    def _run_split(self, number: int, folder: BenchmarkFolder, reporter: Reporter) -> SplitOutcome:
        config, split, seed = self.config, self.splits[number], self.config.seed + number
        table = hide_scales(self.table, split.train)
        held_out = table.with_features(split.meta_test)
        middle = table.with_features(split.train).kinds.middle_real()
        test = KShotTest(feature_batch(held_out, middle), held_out.kinds, config.shots, seed)
        facts = _facts_of(split, test)
        reporter.say(
            f"Split {number + 1} of {config.splits}: {len(split.train)} features train, "
            f"{len(split.meta_train)} meta-train, {len(test)} tested, {test.left_out} too small to test"
        )
        recipe = Recipe(
            backbone=config.backbone,
            pretraining=config.pretraining,
            metatraining=config.metatraining,
            meta_share=config.meta_share,
            random_state=seed,
        )
        trained = train(
            table,
            split.train,
            split.meta_train,
            recipe,
            {method: config.method(method, seed) for method in config.methods},
            reporter=reporter,
            checkpoint=lambda part: folder.checkpoint(number, part),
        )
        adapters = {method: own.adapter for method, own in trained.adapters.items()}
        contexts = {k: test.context(k) for k in config.shots}
        timings = time_adapters(adapters, contexts, trained.knowledge.states)
        runs: list[Run] = []
        with reporter.bar("Scoring", len(adapters)) as bar:
            for method, own in trained.adapters.items():
                times = {timing.shots: timing for timing in timings if timing.method == method}
                runs += score_adapter(
                    method, own.adapter, trained.knowledge, test, own.calibration, times, split=number
                )
                bar.step(method)
        used = _settings_used(trained)
        return SplitOutcome(split=number, facts=facts, used=used, runs=tuple(runs), timings=tuple(timings))

    def _check_shots(self) -> None:
        most, counts = self.config.shots[-1], np.asarray(self.table.counts)
        for number, split in enumerate(self.splits):
            largest = int(counts[split.meta_test].max())
            if largest <= most:
                everywhere = int(counts.max()) <= most
                whose = "of the table" if everywhere else f"held out in split {number + 1}"
                largest = int(counts.max()) if everywhere else largest
                raise InputError(
                    f"{most} shots leave nothing to test on: the largest feature {whose} has {largest} "
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


def _check_methods(config: BenchmarkConfig) -> None:
    methods = config.methods
    for method in methods:
        config.method(method, config.seed)  # refuses what is unknown, and says what was perhaps meant
    for name in config.adapters:
        if name not in ADAPTERS:
            hint = did_you_mean(name, ADAPTERS.parts())
            raise UnknownNameError(f"settings for an unknown adapter {name!r}{hint}")
    repeated = [method for i, method in enumerate(methods) if method in methods[:i]]
    if not methods or repeated:
        told = f"{listed(repeated)} named twice" if repeated else "none named"
        raise InputError(f"a benchmark needs methods, each once: {told}")


def _settings_used(trained: Trained) -> dict[str, Any]:
    """The settings that really ran, with every default and rule filled in."""
    used: dict[str, Any] = {"backbone": trained.backbone.config.model_dump(mode="json")}
    for method, own in trained.adapters.items():
        used[method] = {"adapter": own.adapter.config.model_dump(mode="json")}
        if own.metatraining is not None:
            used[method]["metatraining"] = own.metatraining.model_dump(mode="json")
    return used


def _facts_of(split: FeatureSplit, test: KShotTest) -> dict[str, int]:
    return {
        "train": len(split.train),
        "meta_train": len(split.meta_train),
        "meta_test": len(split.meta_test),
        "tested": len(test),
        "left_out": test.left_out,
    }
