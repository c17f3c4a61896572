"""Train one backbone per split with the paper's settings, and score adapters on the same k-shot test."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from headstart.adapters.base import ADAPTERS, AdapterConfig
from headstart.backbones.base import BackboneConfig
from headstart.datasets import data_folder, load_dataset
from headstart.evaluate.kshot import KShotTest
from headstart.evaluate.scoring import score_adapter
from headstart.evaluate.splits import split_features
from headstart.experiments.presets import PAPER, Preset
from headstart.files import write_json
from headstart.parallel import thread_pool
from headstart.progress import Reporter
from headstart.table import Table
from headstart.training.meta_training import MetaTrainingConfig
from headstart.training.recipe import AdapterTrainer, Recipe, TrainedAdapter, prepare
from headstart.training.table_inputs import feature_batch

RESULTS = Path(__file__).parent / "results"

SHOTS = (0, 1, 2, 4, 8, 16, 32)

# Meta-training that stops early, on features held out from it. Without weight decay: Adam adds it
# to the gradient, and where gradients are small it takes all weights to 0.
STOPPED_EARLY = MetaTrainingConfig(
    epochs=100,
    batch_size=64,
    min_steps=8,
    learning_rate=1e-3,
    weight_decay=0.0,
    patience=5,
    validate_every=5,
    validation_share=0.1,
)

METRICS = {"elearning": "auroc", "neuropathic": "auroc", "movielens": "rmse"}


def load(dataset: str) -> Table:
    """Return the table of a data set of the paper, from the folder ``HEADSTART_DATA``."""
    return load_dataset(dataset, data_folder(None))


@dataclass(frozen=True)
class Split:
    """A trained backbone with the tasks and the tests of one split."""

    trainer: AdapterTrainer
    preset: Preset
    new_features: Table
    test: KShotTest
    seed: int

    @classmethod
    def prepare(
        cls,
        table: Table,
        preset: Preset,
        seed: int,
        *,
        backbone: BackboneConfig | None = None,
        metatraining: MetaTrainingConfig | None = None,
        cross_fit: bool = False,
        shots: tuple[int, ...] = SHOTS,
        checkpoint: Path | None = None,
    ) -> Split:
        """Split the features as the paper does, and train the backbone; by default the preset's P-VAE.

        ``checkpoint`` is the file from which an earlier training of the backbone is taken.
        """
        preset = preset.revised(metatraining=metatraining or preset.metatraining)
        split = split_features(table, preset.test_share, preset.meta_share, seed)
        recipe = Recipe(
            backbone=backbone or preset.backbone,
            pretraining=preset.pretraining,
            metatraining=preset.metatraining,
            meta_share=preset.meta_share,
            random_state=seed,
        )
        new_features = table.with_features(split.meta_test)
        with thread_pool():
            trainer = prepare(
                table,
                split.train,
                split.meta_train,
                recipe,
                cross_fit,
                reporter=Reporter(quiet=True),
                checkpoint=lambda part: checkpoint if part == "backbone" else None,
            )
        test = KShotTest(feature_batch(new_features), new_features.kinds, shots, seed)
        return cls(trainer, preset, new_features, test, seed)

    def train(
        self, config: AdapterConfig, changes: Mapping[str, Any] | None = None, features: int | None = None
    ) -> TrainedAdapter:
        """Meta-train an adapter with ``changes`` to the preset's settings, on at most ``features`` tasks."""
        trainer, settings = self.trainer, self.preset.metatraining.revised(**(changes or {}))
        tasks = trainer.training
        if features is not None:
            order = torch.randperm(len(tasks), generator=torch.Generator().manual_seed(self.seed))
            tasks = tasks.take(order[:features])
        recipe = trainer.recipe.revised(metatraining=settings.resolve_epochs(len(tasks)))
        with thread_pool():
            return replace(trainer, training=tasks, recipe=recipe).train(config, "adapter", {})

    def score(self, trained: TrainedAdapter, metric: str, test: KShotTest | None = None) -> dict[int, float]:
        """Return ``metric`` on the new features by shots."""
        runs = score_adapter(
            "", trained.adapter, self.trainer.knowledge, test or self.test, trained.calibration, {}
        )
        return {int(run.shots or 0): run.value for run in runs if run.metric == metric}


class ResultFile:
    """Results of one study as JSON: settings, and one record per split, variant and number of shots."""

    def __init__(self, name: str, facts: Mapping[str, Any]) -> None:
        self.path = RESULTS / f"{name}.json"
        self.records: list[dict[str, Any]] = []
        if self.path.exists():
            self.records = json.loads(self.path.read_text())["records"]
        self.facts = dict(facts)

    def has(self, split: int, variant: str) -> bool:
        """Return whether a variant was measured on a split."""
        return any(record["split"] == split and record["variant"] == variant for record in self.records)

    def add(self, split: int, variant: str, values: Mapping[int, float]) -> None:
        """Append the ``values`` by shots and write the file."""
        print(split, variant, {shots: round(value, 4) for shots, value in values.items()}, flush=True)
        self.records += [
            {"split": split, "variant": variant, "shots": shots, "value": round(value, 6)}
            for shots, value in values.items()
        ]
        write_json(self.path, {**self.facts, "records": self.records})


def measure(
    results: ResultFile, split: int, variants: Mapping[str, Callable[[], Mapping[int, float]]]
) -> None:
    """Measure the variants that are not in ``results`` yet."""
    for variant, compute in variants.items():
        if not results.has(split, variant):
            results.add(split, variant, compute())


def preset_of(dataset: str) -> Preset:
    """Return the paper's settings for a data set."""
    return PAPER[dataset]


def needs_cross_fitting(config: AdapterConfig) -> bool:
    """Return whether an adapter learns from cross-fitted heads of the backbone's features."""
    return ADAPTERS.part_of(config).gives_uncertainty


def run_command_line(
    description: str | None, run: Callable[[str, int, Path], None], choices: Sequence[str] = tuple(METRICS)
) -> None:
    """Call ``run`` with each case, one of ``choices``, and each split that the command line names."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("cases", nargs="+", choices=sorted(choices))
    parser.add_argument("--splits", default="0", help="the seeds of the splits, such as 0,1,2")
    parser.add_argument("--work", type=Path, default=Path("ablations-work"), help="folder for checkpoints")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    for seed in map(int, arguments.splits.split(",")):
        for case in arguments.cases:
            run(case, seed, arguments.work)
