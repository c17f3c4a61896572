"""Check that an adapter or a backbone keeps the contract of its protocol."""

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
    """A part does not keep what every part of its family promises."""


@dataclass(frozen=True)
class World:
    """A trained backbone, new features, and an adapter that was meta-trained."""

    name: str
    table: Table
    backbone: Backbone
    knowledge: Knowledge
    new: FeatureBatch
    adapter: Adapter


def worlds(
    adapter: AdapterConfig, backbones: tuple[object, ...] = (SMALL_PVAE, "factorisation")
) -> list[World]:
    """Small worlds of every kind of table, for each backbone."""
    return [
        trained_world(name, adapter, backbone_config(backbone)) for backbone in backbones for name in TABLES
    ]


def trained_world(name: str, adapter: AdapterConfig, backbone: BackboneConfig) -> World:
    """Train on most features of one of the ``TABLES``; the others are new."""
    whole = TABLES[name]()
    known, unseen = whole.with_features(whole.features[:-6]), whole.with_features(whole.features[-6:])
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
    # Contexts of 0, 1, 2, 4 … shots, so that none, few and many are there.
    shots = torch.tensor([0, 1, 2, 4, 8, 1000])
    place = torch.arange(len(batch.cells.index)) - batch.cells.indptr[batch.cells.lines]
    new = batch.observing(batch.cells.keep(place < shots[batch.cells.lines]))
    own = trained.adapters["adapter"].adapter
    return World(title, known, trained.backbone, trained.knowledge, new, own)


def require(holds: bool, promise: str, where: str) -> None:
    """Raise unless a promise is kept."""
    if not holds:
        raise ContractError(f"{promise} ({where})")


def tensors_of(part: object) -> Mapping[str, Tensor]:
    """The tensors that an object such as heads or states is made of, by name."""
    return {name: value for name, value in vars(part).items() if isinstance(value, Tensor)}


def same(one: object, other: object, *, exact: bool = False) -> bool:
    """Whether two objects hold the same tensors, bit for bit or up to rounding."""
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
    """Check that an adapter keeps the contract, after training it on small made-up tables.

    Parameters
    ----------
    adapter : str, type or AdapterConfig
        The adapter: its name, its class (registered if it is not yet), or its settings.

    Raises
    ------
    ContractError
        At the first promise that is not kept. The message names the promise and the table.

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
    """One finite head per feature, as wide as the activations, with a covariance if that is declared."""
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
    """The same context gives the same head, bit for bit, and leaves the adapter as it was."""
    before = {name: value.clone() for name, value in world.adapter.state_dict().items()}
    states = world.adapter.refine(world.knowledge.states)
    one, two = (world.adapter.adapt(world.new, states) for _ in range(2))
    require(same(one, two, exact=True), "adapting twice must give the same heads bit for bit", world.name)
    after = world.adapter.state_dict()
    untouched = all(torch.equal(before[name], after[name]) for name in before)
    require(untouched, "adapt() must not change the adapter", world.name)


def check_order(world: World) -> None:
    """The order of a context does not matter."""
    cells, states = world.new.cells, world.adapter.refine(world.knowledge.states)
    backwards = torch.argsort(cells.lines * 10_000 - torch.arange(len(cells.index)))
    turned = Cells(cells.indptr, cells.index[backwards], cells.values[backwards], cells.width)
    one, other = (world.adapter.adapt(world.new.observing(each), states) for each in (cells, turned))
    require(same(one, other), "the order of a context must not matter", world.name)


def check_batches(world: World) -> None:
    """A batch gives the same heads as one feature at a time; an empty batch gives none."""
    states = world.adapter.refine(world.knowledge.states)
    together = world.adapter.adapt(world.new, states)
    each = [world.adapter.adapt(world.new.take(torch.tensor([i])), states) for i in range(len(world.new))]
    promise = "a batch must give the same heads as one feature at a time"
    require(same(Heads.concatenate(each), together), promise, world.name)
    none = world.adapter.adapt(world.new.take(torch.zeros(0, dtype=torch.int64)), states)
    shapes = [part.shape for part in none.parts()] == [(0, *part.shape[1:]) for part in together.parts()]
    require(shapes, "an empty batch must give no heads", world.name)


def check_refining(world: World) -> None:
    """``refines`` says whether ``refine`` changes states; rows are refined one by one."""
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
    """All that an adapter learned is in its parameters and buffers."""
    states = world.adapter.refine(world.knowledge.states)
    fresh = new_adapter(world.adapter.config, world.knowledge)  # without prepare()
    fresh.load_state_dict(world.adapter.state_dict())
    heads = fresh.eval().adapt(world.new, fresh.refine(world.knowledge.states))
    promise = (
        "an adapter built without prepare() and given another's state must make the same heads bit for bit"
    )
    require(same(heads, world.adapter.adapt(world.new, states), exact=True), promise, world.name)


def check_streaming(world: World) -> None:
    """Where there are sums, those of two halves of a context add up to those of the whole."""
    adapter = world.adapter
    if not adapter.streaming:
        return
    streamed = torch.nonzero(adapter.streams(world.new.kinds))[:, 0]
    batch, states = world.new.take(streamed), adapter.refine(world.knowledge.states)
    half = torch.arange(len(batch.cells.index)) % 2 == 0
    parts = [batch.observing(batch.cells.keep(mask)) for mask in (half, ~half)]
    total = sum((adapter.evidence(part, states) for part in parts), torch.zeros(()))
    promise = "solve(evidence(a) + evidence(b)) must be adapt(a and b)"
    require(same(adapter.solve(total, batch), adapter.adapt(batch, states)), promise, world.name)


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
    """In a model: adding a feature changes no other prediction, and a saved model predicts the same."""
    table, where = TABLES["ratings"](), f"a model with adapter {config.name}"
    quick = {"pretraining": {"epochs": 2}, "metatraining": {"epochs": 1}, "quiet": True}
    model = Headstart(SMALL_PVAE, config, **quick).fit(table)  # type: ignore[arg-type]
    before = model.predict()
    row = model.rows[0]
    model.add_features({"new": {"observations": {row: table.kinds[0].high}}, "bare": {}})
    model.observe("new", {model.rows[1]: table.kinds[0].low})
    after = model.predict(features=list(before.features))
    unchanged = np.array_equal(before.mean, after.mean) and np.array_equal(before.std, after.std)
    require(unchanged, "adding a feature must leave every other prediction as it was, bit for bit", where)
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "model")
        copy = Headstart.load(Path(folder) / "model")
    for asked in (None, {"new row": {table.features[0]: table.kinds[0].high}}):
        one, other = model.predict(asked), copy.predict(asked)
        equal = np.array_equal(one.mean, other.mean) and np.array_equal(one.std, other.std)
        require(equal, "a saved and loaded model must predict the same, bit for bit", where)


def check_backbone(backbone: str | type[Backbone] | BackboneConfig) -> None:
    """Check that a backbone keeps the contract, after training it on small made-up tables.

    Parameters
    ----------
    backbone : str, type or BackboneConfig
        The backbone: its name, its class (registered if it is not yet), or its settings.

    Raises
    ------
    ContractError
        At the first promise that is not kept. The message names the promise and the table.

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
    """Finite states of the declared sizes, with spreads that are not negative; also of an empty row."""
    cells = world.knowledge.cells
    empty = cells.keep(torch.zeros(len(cells.index), dtype=torch.bool))
    for given in (cells, empty, cells.take(torch.zeros(0, dtype=torch.int64))):
        states = world.backbone.states(given)
        require(
            states.code.shape == states.code_std.shape == (len(given), world.backbone.code_size),
            "codes must have the shape (rows, code_size)",
            world.name,
        )
        require(
            states.activation.shape == (len(given), world.backbone.activation_size),
            "activations must have the shape (rows, activation_size)",
            world.name,
        )
        finite = bool(states.code.isfinite().all() and states.activation.isfinite().all())
        require(finite, "states must be finite, also of rows without observations", world.name)
        require(bool((states.code_std >= 0).all()), "code_std must not be negative", world.name)


def check_rows_by_themselves(world: World) -> None:
    """A row's state depends on its own observations only, in any order, bit for bit when repeated."""
    cells = world.knowledge.cells
    every = world.backbone.states(cells)
    require(same(every, world.backbone.states(cells), exact=True), "states must be repeatable", world.name)
    rows = torch.tensor([5, 2])
    alone = world.backbone.states(cells.take(rows))
    require(
        same(alone, every.take(rows)), "a row's state must depend on its own observations only", world.name
    )


def check_masking(world: World) -> None:
    """Hidden features leave no trace in the states."""
    cells = world.knowledge.cells
    hidden = torch.arange(cells.width) < 3
    without = world.backbone.states(cells.keep(~hidden[cells.index]))
    promise = "states of hidden features must be those of rows that did not observe them"
    require(same(world.backbone.states(cells, hidden), without, exact=True), promise, world.name)


def check_backbone_heads(world: World) -> None:
    """One finite head per feature."""
    heads = world.backbone.heads
    shapes = heads.weight.shape == (world.backbone.features, world.backbone.activation_size)
    require(
        shapes and len(heads.bias) == world.backbone.features,
        "there must be one head per feature",
        world.name,
    )
    finite = all(bool(part.isfinite().all()) for part in heads.parts())
    require(finite, "heads must be finite", world.name)
    if world.backbone.heads_read_code:
        states, width = world.knowledge.states, world.backbone.activation_size
        promise = "where heads_read_code, the activation must be the leading part of the code"
        require(torch.equal(states.code[:, :width], states.activation), promise, world.name)


def check_backbone_loading(world: World) -> None:
    """All that a backbone learned is in its parameters and buffers."""
    backbone = world.backbone
    fresh = BACKBONES.part_of(backbone.config)(backbone.config, backbone.kinds, backbone.grid)
    fresh.load_state_dict(backbone.state_dict())
    states = fresh.eval().states(world.knowledge.cells)
    promise = "a backbone given another's state must give the same states bit for bit"
    require(same(states, backbone.states(world.knowledge.cells), exact=True), promise, world.name)


BACKBONE_CHECKS: tuple[Callable[[World], None], ...] = (
    check_states,
    check_rows_by_themselves,
    check_masking,
    check_backbone_heads,
    check_backbone_loading,
)
