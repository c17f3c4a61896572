"""Train a backbone and an adapter in one order, for a fit as for a benchmark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import nn

from headstart.adapters.base import (
    ADAPTERS,
    Adapter,
    AdapterConfig,
    adapter_config,
    build_adapter,
    new_adapter,
)
from headstart.adapters.chn_bayes import BLEND
from headstart.backbones.base import AnyBackbone, Backbone, BackboneConfig, build_backbone, value_grid
from headstart.config import Config
from headstart.core.devices import CPU, compute_on, move
from headstart.core.types import VALIDATION_SHOTS, Description, FeatureBatch, Knowledge, Scales
from headstart.distributed import process_group
from headstart.progress import Reporter
from headstart.table import Kind, Kinds, Table
from headstart.table.cells import Cells
from headstart.table.kind_inference import resolve_kinds
from headstart.table.kinds import KindType
from headstart.table.outliers import (
    LEAST_DEVIATION,
    global_row_scales,
    row_scales,
    winsorise,
    winsorise_by_feature,
)
from headstart.training.calibration import Calibration, Outcome
from headstart.training.cross_fitted_heads import cross_fit_heads
from headstart.training.episodes import Tasks, cross_fitted_tasks, disjoint_tasks, sample_features
from headstart.training.judge import (
    MIN_FEATURES,
    Judged,
    Judgement,
    better,
    blend_outcomes,
    folds,
    join_judged,
    outcomes_of,
)
from headstart.training.meta_training import MetaTrainingConfig, meta_train
from headstart.training.pretraining import PretrainingConfig, pretrain


def hide_scales(table: Table, known_features: NDArray[np.int64]) -> Table:
    """Return the table with the centers and scales of real features computed from train features only.

    When a table is read, they are computed from all values. The center of a new feature would then
    reveal its mean at zero shots. So all other real features get the scale that the train features
    have in common or, if each of them has its own, their median scale.
    """
    real = table.kinds.types == KindType.REAL
    if not real.any():
        return table
    trained = np.zeros(len(real), dtype=bool)
    trained[known_features] = True
    train = table.with_features(real & trained)
    kinds = np.array(table.kinds, dtype=object)
    if process_group().sum_number(len(train)):
        resolved, _ = resolve_kinds("real", train.features, train.feature_index, train.values)
        kinds[real & trained] = resolved
        common = Kind.real(float(np.median(resolved.offsets)), float(np.median(resolved.spans)))
    else:
        common = Kind.real()
    kinds[real & ~trained] = common
    return replace(table, kinds=Kinds(kinds))


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
    """Train a backbone on all features of ``table`` and compute once what it knows of every row.

    Both are returned on the ``device`` that computed them.
    """
    cells = winsorise_cells(table)
    with seeded(seed):
        model = build_backbone(backbone, torch.from_numpy(table.kinds.types), value_grid(cells)).to(device)
    description = Description.of(torch.from_numpy(table.encoded_metadata()), metadata_widths(table))
    cells, description = move(cells, device), move(description, device)
    with compute_on(device):
        pretrain(model, cells, description, pretraining, seed=seed, reporter=reporter, checkpoint=checkpoint)
    _made_equal(model)
    return model, knowledge_of(model, table, cells)


def knowledge_of(backbone: Backbone, table: Table, cells: Cells | None = None) -> Knowledge:
    """What adapters may know once the backbone is frozen; ``cells`` are the table's own, if at hand."""
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
        move(scales_of(table.kinds), device),
    )


def winsorise_cells(table: Table) -> Cells:
    """A table's observations, without outliers of real features."""
    real = torch.from_numpy(table.kinds.types == KindType.REAL)
    cells = table.cells()
    if not bool(real.any()):
        return cells
    least = torch.full((cells.width,), LEAST_DEVIATION)
    if not process_group().is_single:
        return replace(
            cells,
            values=winsorise_by_feature(
                cells.index, cells.values, real, global_row_scales(cells, real), least
            ),
        )
    by_feature = cells.transpose()
    return winsorise(by_feature, real, row_scales(by_feature, real), least).transpose()


def metadata_widths(table: Table) -> tuple[int, ...]:
    """How many columns of the encoded metadata each metadata column has."""
    return tuple(column.width for column in table.schema.columns) if table.schema else ()


def scales_of(kinds: Kinds) -> Scales | None:
    """Centres and scales of real features, in units of the usual one; None where they do not differ."""
    middle, real = kinds.middle_real(), kinds.types == KindType.REAL
    if middle is None:
        return None
    centre, scale = (kinds.offsets[real] - middle.offset) / middle.span, kinds.spans[real] / middle.span
    return Scales(torch.from_numpy(centre), torch.from_numpy(scale))


def feature_batch(table: Table, middle: Kind | None = None) -> FeatureBatch:
    """All features of a table, treated as new.

    ``middle`` is the real kind of features whose own center and scale are yet to be found.
    """
    units = None
    if middle is not None:
        lengths = torch.tensor([float(kind == middle) for kind in table.kinds], dtype=torch.float64)
        units = torch.stack([torch.zeros_like(lengths), lengths], dim=1)
    return FeatureBatch(
        table.cells().transpose(),
        torch.from_numpy(table.encoded_metadata()),
        torch.from_numpy(table.kinds.types),
        units,
    )


def train_adapter(
    config: AdapterConfig,
    knowledge: Knowledge,
    teaching: Tasks,
    validation: Tasks,
    metatraining: MetaTrainingConfig,
    *,
    seed: int,
    reporter: Reporter,
    checkpoint: Path | None = None,
    memory: dict[str, Adapter] | None = None,
) -> tuple[Adapter, MetaTrainingConfig | None]:
    """Build an adapter and, if it learns, meta-train it; also returns the settings that really ran.

    ``memory`` holds what was meta-trained before, so that adapters which differ only in how they
    fine-tune afterwards (``maml-0`` and ``maml-10``, ``chn`` and ``chn-train-5``) share one training.
    """
    memory = {} if memory is None else memory
    shared = ADAPTERS.part_of(config).trained_as(config)
    key = shared.model_dump_json()
    if key not in memory:
        with seeded(seed):
            memory[key] = build_adapter(shared, knowledge)
        if memory[key].learns:
            with compute_on(knowledge.device):
                meta_train(memory[key], knowledge, teaching, validation, metatraining.filled(memory[key]),
                           seed=seed, reporter=reporter, checkpoint=checkpoint)  # fmt: skip
                memory[key].finish()
    adapter = trained = memory[key]
    settings = metatraining.filled(trained) if any(True for _ in trained.parameters()) else None
    if shared != config:
        adapter = build_adapter(config, knowledge)
        adapter.take_training(trained)
    _made_equal(adapter)
    return adapter.eval().requires_grad_(False), settings


def to_cpu(adapter: Adapter, knowledge: Knowledge) -> Adapter:
    """The same adapter over the same knowledge in main memory, as a saved one is loaded.

    It is made anew: an adapter may keep what it computed on another device.
    """
    with seeded(0):
        own = new_adapter(adapter.config, knowledge)
    own.load_state_dict(adapter.state_dict())
    return own.eval().requires_grad_(False)


def _made_equal(part: nn.Module) -> None:
    """Let all processes have one and the same part: machines that are unlike may round otherwise."""
    process_group().broadcast(*(each for each in part.state_dict().values() if each.is_floating_point()))


class seeded:
    """Run a block that draws initial weights from a seed of its own, leaving the global one as it was."""

    def __init__(self, seed: int) -> None:
        self._fork = torch.random.fork_rng(devices=[])
        self._seed = seed

    def __enter__(self) -> None:
        self._fork.__enter__()
        torch.manual_seed(self._seed)

    def __exit__(self, *details: object) -> None:
        self._fork.__exit__(*details)  # type: ignore[arg-type]


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
        knowledge = move(knowledge, CPU)
        adapters = {
            name: replace(own, adapter=to_cpu(own.adapter, knowledge)) for name, own in self.adapters.items()
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
        if adapter.blend_partner is not None:
            outcomes, closed = blend_outcomes(
                adapter, likelihood, self.validation, seed=seed, all_binary=self.all_binary
            )
            judged[adapter.blend_partner.config.name] = Judged(closed)
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
    table = modelled_table(table, recipe.binary_link)
    backbone, knowledge = train_backbone(
        table.with_features(train_features),
        recipe.backbone,
        recipe.pretraining,
        seed=seed,
        reporter=reporter,
        checkpoint=checkpoint("backbone"),
        device=device,
    )
    some = sample_features(knowledge, seed=seed) if recipe.meta_share is None else None
    batch = feature_batch(table.with_features(meta_features if some is None else meta_features[some]))
    batch = move(replace(batch, positions=some), device)
    with compute_on(device):
        if recipe.meta_share is None:
            tasks = cross_fitted_tasks(batch, backbone, knowledge, seed=seed)
            if new_heads:
                knowledge = cross_fit_heads(knowledge, tasks)
        else:
            tasks = disjoint_tasks(batch, knowledge)
        teaching, validation = tasks.hold_out(recipe.metatraining.validation_share, seed)
    return Prepared(backbone, knowledge, teaching, validation, recipe, all_binary, reporter, checkpoint)


def is_all_binary(table: Table) -> bool:
    """Whether every feature of a table is binary."""
    return bool((table.kinds.types == KindType.BINARY).all())


def modelled_table(table: Table, binary_link: str) -> Table:
    """The table as the model sees it: with an identity link, 0 and 1 are the ends of a rating.

    Only a table of nothing but binary features is modelled so: ratings have a noise of their own.
    """
    if binary_link == "logistic" or not is_all_binary(table):
        return table
    return replace(table, kinds=Kinds([Kind.rating(0, 1)] * len(table.features)))


AUTO: Literal["auto"] = "auto"  # in place of an adapter: leaves the choice to the judge

CLOSED_FORM, TRAINED = "bayes", "chn-bayes"

MIN_FEATURES_TO_META_TRAIN = 1000  # with fewer, networks learned nothing that the closed form did not have

MIN_OBSERVATIONS_AT_ONCE = 500_000  # from which a second training, without features to judge on, costs much

_MARGIN = 1.0  # standard errors by which networks must beat the closed form


def train_best(
    table: Table,
    features: NDArray[np.int64],
    recipe: Recipe,
    *,
    reporter: Reporter,
    checkpoint: Callable[[str], Path | None],
    device: torch.device = CPU,
) -> tuple[Trained, Recipe, Judgement]:
    """Train what suits a table best on all its features; also says what that was and how it was chosen.

    With few features it is the closed form. With many, networks are trained beside it and blended with it.
    Of large tables one training does both, and features held back from the networks measure them. A new
    real feature has to find its scale first, as only features do that the judge holds out of everything.
    """
    judge = Judge(table, features, reporter, checkpoint, device)
    many = len(features) >= MIN_FEATURES_TO_META_TRAIN
    large = process_group().sum_number(len(table)) >= MIN_OBSERVATIONS_AT_ONCE
    at_once = many and large and not bool((table.kinds.types[features] == KindType.REAL).any())
    if at_once:
        recipe = judge.choose(recipe).recipe if judge.all_binary else recipe
        choice = None
    else:
        choice = judge.choose(recipe, networks=many)
        recipe = choice.recipe
    prepared = prepare(
        table,
        features,
        features,
        recipe,
        new_heads=True,
        reporter=reporter,
        checkpoint=checkpoint,
        device=device,
    )
    if choice is None:
        own, judgement = _chosen_at_once(prepared)
    else:
        own, judgement = prepared.train(choice.adapter, "adapter", {}), choice.judgement
        if choice.calibration is not None:
            own = replace(own, calibration=choice.calibration)
    return Trained(prepared.backbone, prepared.knowledge, {"adapter": own}), recipe, judgement


def _chosen_at_once(prepared: Prepared) -> tuple[TrainedAdapter, Judgement]:
    """Networks blended with the closed form, or the closed form alone if they add nothing to it."""
    own = prepared.train(_networks(), "adapter", {})
    judged, chosen = own.judged, TRAINED
    if not better(judged[TRAINED], judged[CLOSED_FORM], _MARGIN):
        chosen, own = CLOSED_FORM, prepared.train(adapter_config(CLOSED_FORM), "closed form", {})
        judged = {**judged, **own.judged}
    return own, judgement_of(judged, chosen, len(prepared.validation))


def _networks() -> AdapterConfig:
    return adapter_config(BLEND)


def judgement_of(judged: Mapping[str, Judged], chosen: str, features: int) -> Judgement:
    """What was compared on so many features, and what was chosen."""
    verdicts = {name: each.verdict() for name, each in judged.items()}
    shots = tuple(judged[chosen].outcomes)
    return Judgement(shots=shots, features=features, chosen=chosen, candidates=verdicts)


@dataclass(frozen=True)
class Choice:
    """What the judge chose."""

    recipe: Recipe
    adapter: AdapterConfig
    judgement: Judgement
    calibration: Calibration | None = None


class Judge:
    """Trains candidates without some features and compares how well they predict these.

    Whatever is held out is new to backbone, signature, prior and adapter.
    """

    def __init__(
        self,
        table: Table,
        features: NDArray[np.int64],
        reporter: Reporter,
        checkpoint: Callable[[str], Path | None],
        device: torch.device = CPU,
    ) -> None:
        self.table, self.features, self.device = table, features, device
        self.reporter, self.checkpoint = reporter, checkpoint
        self.folds = folds(features, seed=0)
        self.all_binary = is_all_binary(table)

    def choose(self, recipe: Recipe, *, networks: bool = False) -> Choice:
        """Compare the closed form with networks, or under both links if all features are binary."""
        closed, chosen = adapter_config(CLOSED_FORM), CLOSED_FORM
        if len(self.features) < MIN_FEATURES:
            nothing = Judgement(shots=(), features=0, chosen=CLOSED_FORM, candidates={})
            return Choice(recipe, closed, nothing)
        judged = self._judged(recipe, closed, *([_networks()] if networks else []))
        adapter = closed
        if self.all_binary:
            name, numbers = f"{CLOSED_FORM}, 0 and 1 as numbers", recipe.revised(binary_link="identity")
            judged[name] = self._judged(numbers, closed)[CLOSED_FORM]
            if better(judged[name], judged[chosen], 0.0):
                chosen, recipe = name, numbers
        if networks and better(judged[TRAINED], judged[chosen], _MARGIN):
            chosen, adapter = TRAINED, _networks()
        judgement = judgement_of(judged, chosen, sum(len(fold) for fold in self.folds))
        outcomes = judged[chosen].outcomes
        calibration = Calibration.fit(outcomes, VALIDATION_SHOTS, by_level=True)
        return Choice(recipe, adapter, judgement, calibration)

    def _judged(self, recipe: Recipe, *adapters: AdapterConfig) -> dict[str, Judged]:
        """The outcomes of candidates on all folds, by name."""
        link = f" ({recipe.binary_link} link)" if self.all_binary else ""
        names = " and ".join(adapter.name for adapter in adapters)
        self.reporter.say(f"Judging {names}{link} on features held out")
        folds = [self._fold(recipe, adapters, number) for number in range(len(self.folds))]
        found = {}
        for adapter in adapters:
            parts = [fold[adapter.name] for fold in folds]
            shots = [k for k in VALIDATION_SHOTS if any(k in part for part in parts)]
            found[adapter.name] = Judged(
                {k: join_judged([part[k] for part in parts if k in part]) for k in shots}
            )
        return found

    def _fold(
        self, recipe: Recipe, adapters: tuple[AdapterConfig, ...], number: int
    ) -> dict[str, dict[int, Outcome]]:
        held = self.folds[number]
        rest = np.setdiff1d(self.features, held)
        table = hide_scales(self.table, rest)
        part = "-".join(["judge", *(adapter.name for adapter in adapters), recipe.binary_link, str(number)])
        trained = train(
            table,
            rest,
            rest,
            recipe,
            {adapter.name: adapter for adapter in adapters},
            reporter=self.reporter,
            checkpoint=lambda name: self.checkpoint(f"{part}-{name}"),
            device=self.device,
        )
        middle = table.kinds.take(rest).middle_real()
        held_out = modelled_table(table, recipe.binary_link).with_features(held)
        batch = move(feature_batch(held_out, middle), self.device)
        with compute_on(self.device):
            tasks = disjoint_tasks(batch, trained.knowledge)
        places = torch.from_numpy(held)  # a feature is identified by its position in the table
        found = {}
        for name, own in trained.adapters.items():
            outcomes = outcomes_of(
                own.adapter,
                trained.knowledge.likelihood,
                tasks,
                seed=recipe.random_state,
                all_binary=self.all_binary,
            )
            found[name] = {
                shots: replace(each, feature=places[each.feature]) for shots, each in outcomes.items()
            }
        return found
