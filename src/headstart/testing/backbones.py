"""The contract of backbones."""

from __future__ import annotations

from collections.abc import Callable

import torch

from headstart.adapters.registry import adapter_config
from headstart.backbones.protocol import Backbone, BackboneConfig
from headstart.backbones.registry import BACKBONES, backbone_config, register_backbone
from headstart.testing.contract import World, require, same, worlds


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


def check_heads(world: World) -> None:
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


def check_loading(world: World) -> None:
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
    check_heads,
    check_loading,
)
