"""The one recipe: what is trained in which order, for a fit as for a benchmark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from headstart.adapters.chn_bayes import CHNBayes
from headstart.adapters.protocol import Adapter, AdapterConfig
from headstart.adapters.registry import ADAPTERS
from headstart.backbones.protocol import Backbone
from headstart.backbones.registry import AnyBackbone
from headstart.config import Config
from headstart.core.devices import CPU, computing_on, moved
from headstart.core.knowledge import Knowledge
from headstart.core.shots import VALIDATION_SHOTS
from headstart.progress import Reporter
from headstart.table import Kind, Kinds, Table
from headstart.table.kinds import KindType
from headstart.training.blending import blend_outcomes
from headstart.training.calibration import Calibration
from headstart.training.judge import Judged, outcomes_of
from headstart.training.metatraining import MetaTrainingConfig
from headstart.training.new_heads import with_new_heads
from headstart.training.pretraining import PretrainingConfig
from headstart.training.stages import brought_home, feature_batch, train_adapter, train_backbone
from headstart.training.tasks import Tasks, cross_fitted_tasks, disjoint_tasks, sampled_features


class Recipe(Config):
    """How a backbone and its adapters are trained.

    Without ``meta_share`` every feature teaches the backbone and, hidden from it in turn, the adapters
    too. With it, that share of the features teaches only the adapters, as in the paper.
    """

    backbone: AnyBackbone = Field("factorisation", validate_default=True)
    pretraining: PretrainingConfig = PretrainingConfig()
    metatraining: MetaTrainingConfig = MetaTrainingConfig()
    meta_share: float | None = Field(None, gt=0, lt=1)
    binary_link: Literal["logistic", "identity"] = "logistic"  # identity: 0 and 1 taken as numbers
    random_state: int = Field(0, ge=0, lt=2**63)
    half_life: float | None = Field(None, gt=0)  # of observations, in the unit of their times


@dataclass(frozen=True)
class TrainedAdapter:
    """An adapter with its calibration and the settings that really ran."""

    adapter: Adapter
    calibration: Calibration
    metatraining: MetaTrainingConfig | None  # None for an adapter that has nothing to learn
    judged: dict[str, Judged]  # how it predicts features held back from it, and what it was blended with


@dataclass(frozen=True)
class Trained:
    """What the recipe makes of a table."""

    backbone: Backbone
    knowledge: Knowledge
    adapters: dict[str, TrainedAdapter]

    def home(self) -> Trained:
        """The same in main memory, where a model is kept whatever device trained it."""
        if self.knowledge.device == CPU:
            return self
        backbone = self.backbone.to(CPU)
        kinds, heads, likelihood = backbone.kinds, backbone.heads.detach(), backbone.likelihood
        knowledge = replace(self.knowledge, kinds=kinds, heads=heads, likelihood=likelihood)
        knowledge = moved(knowledge, CPU)
        adapters = {
            name: replace(own, adapter=brought_home(own.adapter, knowledge))
            for name, own in self.adapters.items()
        }
        return Trained(backbone, knowledge, adapters)


@dataclass(frozen=True)
class Prepared:
    """A trained backbone, with features for adapters to learn from and to be measured on."""

    backbone: Backbone
    knowledge: Knowledge
    teaching: Tasks
    validation: Tasks
    recipe: Recipe
    all_binary: bool
    reporter: Reporter
    checkpoint: Callable[[str], Path | None]

    def train(self, config: AdapterConfig, name: str, memory: dict[str, Adapter]) -> TrainedAdapter:
        """Train an adapter and calibrate it; ``name`` is that of its checkpoint."""
        seed, likelihood = self.recipe.random_state, self.knowledge.likelihood
        adapter, settings = train_adapter(
            config,
            self.knowledge,
            self.teaching,
            self.validation,
            self.recipe.metatraining,
            seed=seed,
            reporter=self.reporter,
            checkpoint=self.checkpoint(name),
            memory=memory,
        )
        judged = {}
        if isinstance(adapter, CHNBayes) and adapter.anchor is not None:
            outcomes, closed = blend_outcomes(
                adapter, likelihood, self.validation, seed=seed, all_binary=self.all_binary
            )
            judged[adapter.anchor.config.name] = Judged(closed)
        else:
            outcomes = outcomes_of(
                adapter, likelihood, self.validation, seed=seed, all_binary=self.all_binary
            )
        judged[config.name] = Judged(outcomes)
        calibration = Calibration.fit(outcomes, VALIDATION_SHOTS, by_level=adapter.gives_uncertainty)
        return TrainedAdapter(adapter, calibration, settings, judged)


def train(
    table: Table,
    train_features: NDArray[np.int64],
    meta_features: NDArray[np.int64],
    recipe: Recipe,
    adapters: Mapping[str, AdapterConfig],
    *,
    reporter: Reporter,
    checkpoint: Callable[[str], Path | None],
    device: torch.device = CPU,
) -> Trained:
    """Train a backbone on some features of a table, then adapters on others or the same, and calibrate.

    ``checkpoint`` gives the file for the checkpoint of the backbone or of an adapter, by name. What is
    trained stays on the ``device`` (see ``Trained.home``).
    """
    exact = any(ADAPTERS.part_of(config).gives_uncertainty for config in adapters.values())
    prepared = prepare(
        table,
        train_features,
        meta_features,
        recipe,
        exact,
        reporter=reporter,
        checkpoint=checkpoint,
        device=device,
    )
    memory: dict[str, Adapter] = {}
    trained = {name: prepared.train(config, name, memory) for name, config in adapters.items()}
    return Trained(prepared.backbone, prepared.knowledge, trained)


def prepare(
    table: Table,
    train_features: NDArray[np.int64],
    meta_features: NDArray[np.int64],
    recipe: Recipe,
    new_heads: bool,
    *,
    reporter: Reporter,
    checkpoint: Callable[[str], Path | None],
    device: torch.device = CPU,
) -> Prepared:
    """Train a backbone, and make the tasks of adapters; ``new_heads`` are for those that learn from them."""
    seed, all_binary = recipe.random_state, is_all_binary(table)
    table = as_modelled(table, recipe.binary_link)
    backbone, knowledge = train_backbone(
        table.with_features(train_features),
        recipe.backbone,
        recipe.pretraining,
        seed=seed,
        reporter=reporter,
        checkpoint=checkpoint("backbone"),
        device=device,
    )
    some = sampled_features(knowledge, seed=seed) if recipe.meta_share is None else None
    batch = feature_batch(table.with_features(meta_features if some is None else meta_features[some]))
    batch = moved(replace(batch, positions=some), device)
    with computing_on(device):
        if recipe.meta_share is None:
            tasks = cross_fitted_tasks(batch, backbone, knowledge, seed=seed)
            if new_heads:
                knowledge = with_new_heads(knowledge, tasks)
        else:
            tasks = disjoint_tasks(batch, knowledge)
        teaching, validation = tasks.hold_back(recipe.metatraining.validation_share, seed)
    return Prepared(backbone, knowledge, teaching, validation, recipe, all_binary, reporter, checkpoint)


def is_all_binary(table: Table) -> bool:
    """Whether every feature of a table is binary."""
    return bool((table.kinds.types == KindType.BINARY).all())


def as_modelled(table: Table, binary_link: str) -> Table:
    """The table as the model sees it: with an identity link, 0 and 1 are the ends of a rating.

    Only a table of nothing but binary features is modelled so: ratings have a noise of their own.
    """
    if binary_link == "logistic" or not is_all_binary(table):
        return table
    return replace(table, kinds=Kinds([Kind.rating(0, 1)] * len(table.features)))
