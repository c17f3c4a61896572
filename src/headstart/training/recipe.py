"""Training of a backbone and given adapters on a table, for ``fit`` and for benchmarks.

``train`` takes these steps (``judge.train_best`` also chooses the adapter):

1. ``train_backbone`` trains the backbone and computes the state of every row once.
2. ``prepare`` builds the tasks: features treated as new, each with row states computed without it.
3. ``train_adapter`` meta-trains an adapter on some of the tasks.
4. ``Calibration.fit`` calibrates it on the other tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from headstart.adapters.base import ADAPTERS, Adapter, AdapterConfig, build_adapter, new_adapter
from headstart.backbones.base import (
    BACKBONES,
    AnyBackbone,
    Backbone,
    BackboneConfig,
    build_backbone,
    value_grid,
)
from headstart.config import Config
from headstart.core.devices import CPU, compute_on, move
from headstart.core.neighbours import LocalStrengths
from headstart.core.types import VALIDATION_SHOTS, Knowledge
from headstart.distributed import copy_from_main_process
from headstart.errors import InputError, UnsupportedError, join_names, option_name
from headstart.linalg.row_sharded import global_count
from headstart.progress import Reporter
from headstart.table import Table
from headstart.table.cells import Cells
from headstart.table.kinds import KindType
from headstart.training.calibration import Calibration, Outcome
from headstart.training.comparison import CandidateOutcomes, blend_outcomes, predict_held_out
from headstart.training.cross_fitted_heads import cross_fit_heads
from headstart.training.episodes import Tasks, cross_fitted_tasks, disjoint_tasks, sample_features
from headstart.training.meta_training import MetaTrainingConfig, meta_train
from headstart.training.pretraining import PretrainingConfig, pretrain
from headstart.training.table_inputs import (
    describe_features,
    feature_batch,
    is_all_binary,
    metadata_widths,
    modelled_table,
    relative_scales,
    table_groups,
    winsorise_cells,
)

AUTO: Literal["auto"] = "auto"  # the name of an adapter chosen by the judge


class Recipe(Config):
    """Settings of the training of a backbone and its adapters.

    Without ``meta_share``, every feature trains the backbone and, with row states computed without it, the
    adapters. With it, this fraction of the features trains the adapters only, as in the paper.
    """

    backbone: AnyBackbone = Field("factorisation", validate_default=True)
    pretraining: PretrainingConfig = PretrainingConfig()
    metatraining: MetaTrainingConfig = MetaTrainingConfig()
    meta_share: float | None = Field(None, gt=0, lt=1)
    binary_link: Literal["logistic", "identity"] = "logistic"  # identity: 0 and 1 are modelled as numbers
    random_state: int = Field(0, ge=0, lt=2**63)
    half_life: float | None = Field(None, gt=0)  # of observations, in the unit of their times


@dataclass(frozen=True)
class TrainedAdapter:
    """An adapter with its calibration and the settings with which it was trained."""

    adapter: Adapter
    calibration: Calibration
    metatraining: MetaTrainingConfig | None  # None for an adapter without parameters
    candidates: dict[str, CandidateOutcomes]  # of the adapter and its closed form, by name
    local: LocalStrengths | None = None  # of local parts; None: without them


@dataclass(frozen=True)
class TrainedParts:
    """Trained backbone, its knowledge of the table, and trained adapters by name."""

    backbone: Backbone
    knowledge: Knowledge
    adapters: dict[str, TrainedAdapter]

    def to_cpu(self) -> TrainedParts:
        """Move backbone, knowledge and adapters to main memory."""
        if self.knowledge.device == CPU:
            return self
        backbone = self.backbone.to(CPU)
        kinds, heads, likelihood = backbone.kinds, backbone.heads.detach(), backbone.likelihood
        knowledge = replace(self.knowledge, kinds=kinds, heads=heads, likelihood=likelihood)
        knowledge = move(knowledge, CPU)
        adapters = {
            name: replace(trained, adapter=_copy_adapter(trained.adapter, knowledge))
            for name, trained in self.adapters.items()
        }
        return TrainedParts(backbone, knowledge, adapters)


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
    calibrate: bool = True,
) -> TrainedParts:
    """Train a backbone, then meta-train adapters, and calibrate them.

    Parameters
    ----------
    table : Table
        The observations.
    train_features, meta_features : ndarray of int
        The positions of the features that train the backbone, and of the features that train the adapters;
        without a ``meta_share`` they are the same.
    recipe : Recipe
        The settings.
    adapters : dict
        The adapters to train, by name.
    reporter : Reporter
        Shows the progress.
    checkpoint : callable
        Returns the checkpoint file of the backbone or of an adapter, by name.
    device : torch.device
        The device of training and of the result (see ``TrainedParts.to_cpu``).
    calibrate : bool
        Whether to calibrate the adapters.
    """
    require_networks(table, adapters.values())
    for config in adapters.values():
        supported = ADAPTERS.part_of(config).supports_clicks
        _require_click_support(table, "adapter", config.name, supported=supported, usable="bayes")
    cross_fit = any(ADAPTERS.part_of(config).gives_uncertainty for config in adapters.values())
    trainer = prepare(
        table,
        train_features,
        meta_features,
        recipe,
        cross_fit,
        reporter=reporter,
        checkpoint=checkpoint,
        device=device,
    )
    cache: dict[str, Adapter] = {}
    trained = {
        name: trainer.train(config, name, cache, calibrate=calibrate) for name, config in adapters.items()
    }
    return TrainedParts(trainer.backbone, trainer.knowledge, trained)


def prepare(
    table: Table,
    train_features: NDArray[np.int64],
    meta_features: NDArray[np.int64],
    recipe: Recipe,
    cross_fit: bool,
    *,
    reporter: Reporter,
    checkpoint: Callable[[str], Path | None],
    device: torch.device = CPU,
) -> AdapterTrainer:
    """Train a backbone, and build the tasks for training and validation of adapters.

    ``cross_fit`` adds cross-fitted heads of the backbone's features to the knowledge, from which adapters
    learn a prior.
    """
    seed, all_binary = recipe.random_state, is_all_binary(table)
    table = modelled_table(table, recipe.binary_link)
    supported = BACKBONES.part_of(recipe.backbone).supports_clicks
    _require_click_support(
        table, "backbone", recipe.backbone.name, supported=supported, usable="factorisation"
    )
    _require_clicks(table, train_features)
    backbone, knowledge = train_backbone(
        table.with_features(train_features),
        recipe.backbone,
        recipe.pretraining,
        seed=seed,
        reporter=reporter,
        checkpoint=checkpoint("backbone"),
        device=device,
    )
    groups = table_groups(table.with_features(train_features))
    sample = sample_features(knowledge, groups, seed=seed) if recipe.meta_share is None else None
    batch = feature_batch(table.with_features(meta_features if sample is None else meta_features[sample]))
    batch = move(replace(batch, positions=sample), device)
    with compute_on(device):
        if recipe.meta_share is None:
            tasks = cross_fitted_tasks(batch, backbone, knowledge, seed=seed)
            if cross_fit:
                knowledge = cross_fit_heads(knowledge, tasks)
        else:
            tasks = disjoint_tasks(batch, knowledge)
        training, validation = tasks.hold_out(recipe.metatraining.validation_share, seed)
    metatraining = recipe.metatraining.resolve_epochs(len(training))
    recipe = recipe.revised(metatraining=metatraining)
    return AdapterTrainer(backbone, knowledge, training, validation, recipe, all_binary, reporter, checkpoint)


def _require_click_support(table: Table, noun: str, name: str, *, supported: bool, usable: str) -> None:
    """Refuse click features unless ``supported``: a part would read their clicks alone, all of them ones.

    The part is the ``noun`` called ``name``; ``usable`` is the name of one that supports clicks.
    """
    if (table.kinds.types == KindType.CLICK).any() and not supported:
        raise InputError(
            f"the {noun} {name!r} cannot learn from clicks, which are all ones: it does not read cells "
            f"without a click as zeros; take {option_name(noun, usable)}"
        )


def _require_clicks(table: Table, train_features: NDArray[np.int64]) -> None:
    """Refuse click features if none of ``train_features`` is one: nothing would be known about clicks."""
    clicks = table.kinds.types == KindType.CLICK
    if clicks.any() and not clicks[train_features].any():
        names = [table.features[i] for i in np.flatnonzero(clicks)]
        raise InputError(
            f"no feature of the kind click has clicks to learn from: {join_names(names)}; leave them out, or "
            f"give them another kind with {option_name('kinds')}"
        )


@dataclass(frozen=True)
class AdapterTrainer:
    """Trainer of adapters: a trained backbone with tasks for training and validation."""

    backbone: Backbone
    knowledge: Knowledge
    training: Tasks
    validation: Tasks
    recipe: Recipe
    all_binary: bool
    reporter: Reporter
    checkpoint: Callable[[str], Path | None]

    def train(
        self, config: AdapterConfig, name: str, cache: dict[str, Adapter], *, calibrate: bool = True
    ) -> TrainedAdapter:
        """Train an adapter and, if ``calibrate``, calibrate it on the validation tasks.

        ``name`` is the name of its checkpoint; for ``cache`` see ``train_adapter``.
        """
        seed, likelihood = self.recipe.random_state, self.knowledge.likelihood
        adapter, settings = train_adapter(
            config,
            self.knowledge,
            self.training,
            self.validation,
            self.recipe.metatraining,
            seed=seed,
            reporter=self.reporter,
            checkpoint=self.checkpoint(name),
            cache=cache,
        )
        candidates = {}
        if adapter.blend_partner is not None:
            outcomes, closed_form = blend_outcomes(
                adapter, likelihood, self.validation, seed=seed, all_binary=self.all_binary
            )
            candidates[adapter.blend_partner.config.name] = CandidateOutcomes(closed_form)
        elif not calibrate:
            return TrainedAdapter(adapter, Calibration.none(VALIDATION_SHOTS), settings, candidates)
        else:
            outcomes = self.predict_validation(adapter)
        candidates[config.name] = CandidateOutcomes(outcomes)
        calibration = Calibration.fit(outcomes, VALIDATION_SHOTS, by_level=adapter.gives_uncertainty)
        return TrainedAdapter(adapter, calibration, settings, candidates)

    def predict_validation(self, adapter: Adapter) -> dict[int, Outcome]:
        """Predict the validation tasks with a trained adapter: outcomes by shots."""
        return predict_held_out(
            adapter,
            self.knowledge.likelihood,
            self.validation,
            seed=self.recipe.random_state,
            all_binary=self.all_binary,
            rows=global_count(len(self.knowledge.states)),
        )


def train_backbone(
    table: Table,
    backbone: BackboneConfig,
    pretraining: PretrainingConfig,
    *,
    seed: int,
    reporter: Reporter,
    checkpoint: Path | None = None,
    device: torch.device = CPU,
) -> tuple[Backbone, Knowledge]:
    """Train a backbone on all features of ``table`` and compute the states of all rows.

    Both results are on ``device``.
    """
    cells = winsorise_cells(table)
    types, backbone = torch.from_numpy(table.kinds.types), resolve_backbone(backbone, table)
    with seed_torch(seed):
        module = build_backbone(backbone, types, value_grid(cells)).to(device)
    cells, description = move(cells, device), move(describe_features(table), device)
    with compute_on(device):
        pretrain(module, cells, description, pretraining, seed=seed, reporter=reporter, checkpoint=checkpoint)
    copy_from_main_process(module)
    return module, build_knowledge(module, table, cells)


def resolve_backbone(backbone: BackboneConfig, table: Table) -> BackboneConfig:
    """Return the settings of a backbone with sizes for ``table`` filled in.

    The levels of a category count as one feature.
    """
    _, first = np.unique(table.groups, return_index=True)
    kinds = torch.from_numpy(table.kinds.types[first])
    return backbone.resolved(kinds, global_count(len(table.rows)), global_count(len(table.values)))


def build_knowledge(backbone: Backbone, table: Table, cells: Cells | None = None) -> Knowledge:
    """Collect the data for adapters: row states and heads of a frozen backbone, and its training table.

    ``cells`` are the winsorised observations of ``table``, by default computed from it.
    """
    device = backbone.kinds.device
    cells = move(winsorise_cells(table), device) if cells is None else cells
    metadata = torch.from_numpy(table.encoded_metadata()).to(device)
    with compute_on(device):
        heads, states = backbone.heads.detach(), backbone.states(cells)
    return Knowledge(
        states,
        cells,
        heads,
        metadata,
        backbone.kinds,
        backbone.likelihood,
        metadata_widths(table),
        move(relative_scales(table.kinds), device),
        structures=table.schema.structures if table.schema else (),
    )


def train_adapter(
    config: AdapterConfig,
    knowledge: Knowledge,
    training: Tasks,
    validation: Tasks,
    metatraining: MetaTrainingConfig,
    *,
    seed: int,
    reporter: Reporter,
    checkpoint: Path | None = None,
    cache: dict[str, Adapter] | None = None,
) -> tuple[Adapter, MetaTrainingConfig | None]:
    """Build an adapter, and meta-train it if it has trainable parameters.

    Return the adapter and the settings of its meta-training, None for an adapter without parameters.
    ``cache`` contains adapters that were meta-trained before: adapters that differ only in their fine-tuning
    (``maml-0`` and ``maml-10``, ``chn`` and ``chn-train-5``) share one meta-training.
    """
    cache = {} if cache is None else cache
    shared = ADAPTERS.part_of(config).training_config(config)
    key = shared.model_dump_json()
    if key not in cache:
        with seed_torch(seed):
            cache[key] = build_adapter(shared, knowledge)
        if cache[key].learns:
            with compute_on(knowledge.device):
                meta_train(cache[key], knowledge, training, validation, metatraining.complete_for(cache[key]),
                           seed=seed, reporter=reporter, checkpoint=checkpoint)  # fmt: skip
                cache[key].finish()
    adapter = trained = cache[key]
    settings = metatraining.complete_for(trained) if any(True for _ in trained.parameters()) else None
    if shared != config:
        adapter = build_adapter(config, knowledge)
        adapter.copy_training(trained)
    copy_from_main_process(adapter)
    return adapter.eval().requires_grad_(False), settings


def require_networks(table: Table, adapters: Iterable[AdapterConfig]) -> None:
    """Raise an error if a metadata column needs a network that one of ``adapters`` does not have."""
    columns = [column for column in table.schema.columns if column.structure] if table.schema else []
    for config in adapters if columns else ():
        trained = ADAPTERS.part_of(config).training_config(config)
        if not ADAPTERS.part_of(trained).accepts_structures:
            raise UnsupportedError(
                f"metadata column {columns[0].name!r} has the type {columns[0].spec}, for networks that are"
                f" trained with an adapter; {config.name!r} has none. Choose"
                f" {option_name('adapter', 'chn')}, or another type of this column"
            )


def _copy_adapter(adapter: Adapter, knowledge: Knowledge) -> Adapter:
    """Copy an adapter to the device of ``knowledge``, as loading a saved one does.

    Moving it is not enough: an adapter can cache results on its device.
    """
    with seed_torch(0):
        copy = new_adapter(adapter.config, knowledge)
    copy.load_state_dict(adapter.state_dict())
    return copy.eval().requires_grad_(False)


@contextmanager
def seed_torch(seed: int) -> Iterator[None]:
    """Seed the global random generator inside a block and restore it afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
