"""Check that an adapter or a backbone fulfils the contract of its protocol.

``check_adapter`` and ``check_backbone`` train the part on small synthetic tables (a ``World`` each) and run
all checks on it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from headstart.adapters.base import (
    Adapter,
    AdapterConfig,
    adapter_config,
    new_adapter,
    register_adapter,
)
from headstart.backbones.base import BACKBONES, Backbone, BackboneConfig, backbone_config, register_backbone
from headstart.core.types import FeatureBatch, Heads, Knowledge
from headstart.datasets.synthetic import synthetic_mixed, synthetic_ratings, synthetic_responses
from headstart.model.fitting import split_features
from headstart.model.headstart import Headstart
from headstart.progress import Reporter
from headstart.table import Table
from headstart.table.cells import Cells
from headstart.training.meta_training import MetaTrainingConfig
from headstart.training.pretraining import PretrainingConfig
from headstart.training.recipe import Recipe, feature_batch, train

__all__ = ["ContractError", "check_adapter", "check_backbone"]

SMALL_PVAE = {
    "name": "pvae",
    "embedding": 8,
    "set_size": 8,
    "encoder_layers": [16],
    "latent": 6,
    "decoder_layers": [12],
}

TABLES = {
    "ratings": lambda: synthetic_ratings(40, 24, 0.5),
    "binary": lambda: synthetic_responses(40, 24, 0.5),
    "mixed": lambda: synthetic_mixed(40, 24, 0.5),
}


class ContractError(AssertionError):
    """A part does not fulfil the contract of its protocol."""


@dataclass(frozen=True)
class World:
    """A table with a trained backbone, new features, and a meta-trained adapter."""

    name: str
    table: Table
    backbone: Backbone
    knowledge: Knowledge
    new: FeatureBatch
    adapter: Adapter


def worlds(
    adapter: AdapterConfig, backbones: tuple[object, ...] = (SMALL_PVAE, "factorisation")
) -> list[World]:
    """Return a small world for every table and backbone."""
    return [
        trained_world(name, adapter, backbone_config(backbone)) for backbone in backbones for name in TABLES
    ]


def trained_world(name: str, adapter: AdapterConfig, backbone: BackboneConfig) -> World:
    """Train on all but the last six features of one of the ``TABLES``; these six are new."""
    table = TABLES[name]()
    known, unseen = table.with_features(table.features[:-6]), table.with_features(table.features[-6:])
    recipe = Recipe(
        backbone=backbone,
        pretraining=PretrainingConfig(epochs=2),
        metatraining=MetaTrainingConfig(epochs=1),
    )
    train_features, meta_features = split_features(known, None, 0)
    title = f"{name} table, backbone {backbone.name}"
    try:
        trained = train(
            known,
            train_features,
            meta_features,
            recipe,
            {"adapter": adapter},
            reporter=Reporter(quiet=True),
            checkpoint=lambda _: None,
        )
    except (RuntimeError, TypeError, IndexError) as error:
        raise ContractError(f"it cannot be trained: {error} ({title})") from error
    batch = feature_batch(unseen)
    # Contexts of no, few and many shots.
    shots = torch.tensor([0, 1, 2, 4, 8, 1000])
    position = torch.arange(len(batch.cells.index)) - batch.cells.indptr[batch.cells.lines]
    new = batch.observing(batch.cells.keep(position < shots[batch.cells.lines]))
    trained_adapter = trained.adapters["adapter"].adapter
    return World(title, known, trained.backbone, trained.knowledge, new, trained_adapter)


def require(fulfilled: bool, rule: str, where: str) -> None:
    """Raise a ContractError unless a rule of the contract is fulfilled."""
    if not fulfilled:
        raise ContractError(f"{rule} ({where})")


def tensors_of(part: object) -> Mapping[str, Tensor]:
    """Return the tensors of an object such as heads or states, by name."""
    return {name: value for name, value in vars(part).items() if isinstance(value, Tensor)}


def same(one: object, other: object, *, exact: bool = False) -> bool:
    """Return whether two objects have the same tensors, bit for bit or up to rounding."""
    first, second = tensors_of(one), tensors_of(other)
    if first.keys() != second.keys():
        return False
    return all(
        torch.equal(first[name], second[name])
        if exact
        else first[name].shape == second[name].shape
        and torch.allclose(first[name], second[name], rtol=1e-4, atol=1e-5)
        for name in first
    )


def check_adapter(adapter: str | type[Adapter] | AdapterConfig) -> None:
    """Check that an adapter fulfils the contract, after training it on small synthetic tables.

    Parameters
    ----------
    adapter : str, type or AdapterConfig
        The adapter: its name, its class (registered if it is not yet), or its settings.

    Raises
    ------
    ContractError
        At the first rule that is not fulfilled. The message names the rule and the table.

    Examples
    --------
    >>> check_adapter("mean")
    """
    if isinstance(adapter, type):
        register_adapter(adapter)
        adapter = str(adapter.config_type.model_fields["name"].default)
    config = adapter_config(adapter, seed=0)
    for world in worlds(config):
        with torch.no_grad():
            for check in ADAPTER_CHECKS:
                check(world)
    check_in_a_model(config)


def check_adapter_heads(world: World) -> None:
    """Check for one finite head per feature, as wide as the activations, with a covariance if declared."""
    states = world.adapter.refine(world.knowledge.states)
    heads = world.adapter.adapt(world.new, states)
    require(
        heads.weight.shape == (len(world.new), states.activation.shape[1]),
        f"weights must have the shape (features, width of the activations); got {tuple(heads.weight.shape)}",
        world.name,
    )
    require(heads.bias.shape == (len(world.new),), "adapt() must give one bias per feature", world.name)
    uncertain = heads.covariance is not None and heads.noise is not None
    require(
        uncertain == world.adapter.gives_uncertainty,
        "gives_uncertainty must say whether heads have a covariance and a noise",
        world.name,
    )
    finite = all(bool(part.isfinite().all()) for part in heads.parts())
    require(finite, "heads must be finite, also at no shots", world.name)


def check_repeatable(world: World) -> None:
    """Check that the same context gives the same head, bit for bit, and does not change the adapter."""
    before = {name: value.clone() for name, value in world.adapter.state_dict().items()}
    states = world.adapter.refine(world.knowledge.states)
    one, two = (world.adapter.adapt(world.new, states) for _ in range(2))
    require(same(one, two, exact=True), "adapting twice must give the same heads bit for bit", world.name)
    after = world.adapter.state_dict()
    unchanged = all(torch.equal(before[name], after[name]) for name in before)
    require(unchanged, "adapt() must not change the adapter", world.name)


def check_order(world: World) -> None:
    """Check that the order of a context does not matter."""
    cells, states = world.new.cells, world.adapter.refine(world.knowledge.states)
    backwards = torch.argsort(cells.lines * 10_000 - torch.arange(len(cells.index)))
    reversed_cells = Cells(cells.indptr, cells.index[backwards], cells.values[backwards], cells.width)
    one, other = (
        world.adapter.adapt(world.new.observing(context), states) for context in (cells, reversed_cells)
    )
    require(same(one, other), "the order of a context must not matter", world.name)


def check_batches(world: World) -> None:
    """Check that a batch gives the same heads as one feature at a time, and an empty batch none."""
    states = world.adapter.refine(world.knowledge.states)
    batched = world.adapter.adapt(world.new, states)
    single = [world.adapter.adapt(world.new.take(torch.tensor([i])), states) for i in range(len(world.new))]
    rule = "a batch must give the same heads as one feature at a time"
    require(same(Heads.concatenate(single), batched), rule, world.name)
    empty = world.adapter.adapt(world.new.take(torch.zeros(0, dtype=torch.int64)), states)
    shapes_agree = [p.shape for p in empty.parts()] == [(0, *p.shape[1:]) for p in batched.parts()]
    require(shapes_agree, "an empty batch must give no heads", world.name)


def check_refining(world: World) -> None:
    """Check that ``refines`` is True if ``refine`` changes states, and that it treats rows separately."""
    states = world.knowledge.states
    refined = world.adapter.refine(states)
    changed = not same(states, refined, exact=True)
    require(
        not changed or world.adapter.refines, "refines must be True where refine() changes states", world.name
    )
    rows = torch.tensor([3, 0])
    alone = world.adapter.refine(states.take(rows))
    require(same(alone, refined.take(rows)), "refine() must treat each row by itself", world.name)


def check_adapter_loading(world: World) -> None:
    """Check that the state of an adapter, its parameters and buffers, determines its heads."""
    states = world.adapter.refine(world.knowledge.states)
    fresh = new_adapter(world.adapter.config, world.knowledge)  # without prepare()
    fresh.load_state_dict(world.adapter.state_dict())
    heads = fresh.eval().adapt(world.new, fresh.refine(world.knowledge.states))
    rule = "an adapter built without prepare() and given another's state must make the same heads bit for bit"
    require(same(heads, world.adapter.adapt(world.new, states), exact=True), rule, world.name)


def check_streaming(world: World) -> None:
    """Check that the sufficient statistics of two halves of a context add up to those of the whole."""
    adapter = world.adapter
    if not adapter.streaming:
        return
    streamed = torch.nonzero(adapter.streams(world.new.kinds))[:, 0]
    batch, states = world.new.take(streamed), adapter.refine(world.knowledge.states)
    half = torch.arange(len(batch.cells.index)) % 2 == 0
    parts = [batch.observing(batch.cells.keep(mask)) for mask in (half, ~half)]
    total = sum((adapter.evidence(part, states) for part in parts), torch.zeros(()))
    rule = "solve(evidence(a) + evidence(b)) must be adapt(a and b)"
    require(same(adapter.solve(total, batch), adapter.adapt(batch, states)), rule, world.name)


ADAPTER_CHECKS: tuple[Callable[[World], None], ...] = (
    check_adapter_heads,
    check_repeatable,
    check_order,
    check_batches,
    check_refining,
    check_adapter_loading,
    check_streaming,
)


def check_in_a_model(config: AdapterConfig) -> None:
    """Check in a model that adding a feature changes no other prediction, and that loading changes none."""
    table, where = TABLES["ratings"](), f"a model with adapter {config.name}"
    quick = {"pretraining": {"epochs": 2}, "metatraining": {"epochs": 1}, "quiet": True}
    model = Headstart(SMALL_PVAE, config, **quick).fit(table)  # type: ignore[arg-type]
    before = model.predict()
    row = model.rows[0]
    model.add_features({"new": {"observations": {row: table.kinds[0].high}}, "bare": {}})
    model.observe_feature("new", {model.rows[1]: table.kinds[0].low})
    after = model.predict(features=list(before.features))
    unchanged = np.array_equal(before.mean, after.mean) and np.array_equal(before.std, after.std)
    require(unchanged, "adding a feature must leave every other prediction as it was, bit for bit", where)
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "model")
        copy = Headstart.load(Path(folder) / "model")
    for rows in (None, {"new row": {table.features[0]: table.kinds[0].high}}):
        one, other = model.predict(rows), copy.predict(rows)
        equal = np.array_equal(one.mean, other.mean) and np.array_equal(one.std, other.std)
        require(equal, "a saved and loaded model must predict the same, bit for bit", where)


def check_backbone(backbone: str | type[Backbone] | BackboneConfig) -> None:
    """Check that a backbone fulfils the contract, after training it on small synthetic tables.

    Parameters
    ----------
    backbone : str, type or BackboneConfig
        The backbone: its name, its class (registered if it is not yet), or its settings.

    Raises
    ------
    ContractError
        At the first rule that is not fulfilled. The message names the rule and the table.

    Examples
    --------
    >>> check_backbone("factorisation")
    """
    if isinstance(backbone, type):
        register_backbone(backbone)
        backbone = str(backbone.config_type.model_fields["name"].default)
    for world in worlds(adapter_config("mean"), (backbone_config(backbone),)):
        with torch.no_grad():
            for check in BACKBONE_CHECKS:
                check(world)


def check_states(world: World) -> None:
    """Check for finite states of the declared sizes, also of rows without observations and of no rows."""
    cells = world.knowledge.cells
    unobserved = cells.keep(torch.zeros(len(cells.index), dtype=torch.bool))
    for observed in (cells, unobserved, cells.take(torch.zeros(0, dtype=torch.int64))):
        states = world.backbone.states(observed)
        require(
            states.code.shape == states.code_std.shape == (len(observed), world.backbone.code_size),
            "codes must have the shape (rows, code_size)",
            world.name,
        )
        require(
            states.activation.shape == (len(observed), world.backbone.activation_size),
            "activations must have the shape (rows, activation_size)",
            world.name,
        )
        finite = bool(states.code.isfinite().all() and states.activation.isfinite().all())
        require(finite, "states must be finite, also of rows without observations", world.name)
        require(bool((states.code_std >= 0).all()), "code_std must not be negative", world.name)


def check_rows_by_themselves(world: World) -> None:
    """Check that a row's state depends on its own observations only, and is repeatable bit for bit."""
    cells = world.knowledge.cells
    states = world.backbone.states(cells)
    require(same(states, world.backbone.states(cells), exact=True), "states must be repeatable", world.name)
    rows = torch.tensor([5, 2])
    alone = world.backbone.states(cells.take(rows))
    require(
        same(alone, states.take(rows)), "a row's state must depend on its own observations only", world.name
    )


def check_masking(world: World) -> None:
    """Check that masked features do not influence the states."""
    cells = world.knowledge.cells
    hidden = torch.arange(cells.width) < 3
    without = world.backbone.states(cells.keep(~hidden[cells.index]))
    rule = "states of hidden features must be those of rows that did not observe them"
    require(same(world.backbone.states(cells, hidden), without, exact=True), rule, world.name)


def check_backbone_heads(world: World) -> None:
    """Check for one finite head per feature."""
    heads = world.backbone.heads
    shapes_agree = heads.weight.shape == (world.backbone.features, world.backbone.activation_size)
    require(
        shapes_agree and len(heads.bias) == world.backbone.features,
        "there must be one head per feature",
        world.name,
    )
    finite = all(bool(part.isfinite().all()) for part in heads.parts())
    require(finite, "heads must be finite", world.name)
    if world.backbone.heads_read_code:
        states, width = world.knowledge.states, world.backbone.activation_size
        rule = "where heads_read_code, the activation must be the leading part of the code"
        require(torch.equal(states.code[:, :width], states.activation), rule, world.name)


def check_backbone_loading(world: World) -> None:
    """Check that the state of a backbone, its parameters and buffers, determines its row states."""
    backbone = world.backbone
    fresh = BACKBONES.part_of(backbone.config)(backbone.config, backbone.kinds, backbone.grid)
    fresh.load_state_dict(backbone.state_dict())
    states = fresh.eval().states(world.knowledge.cells)
    rule = "a backbone given another's state must give the same states bit for bit"
    require(same(states, backbone.states(world.knowledge.cells), exact=True), rule, world.name)


BACKBONE_CHECKS: tuple[Callable[[World], None], ...] = (
    check_states,
    check_rows_by_themselves,
    check_masking,
    check_backbone_heads,
    check_backbone_loading,
)
