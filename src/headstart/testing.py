"""Check that an adapter or a backbone fulfils the contract of its protocol.

``check_adapter`` and ``check_backbone`` train the part on small synthetic tables, one ``Fixture`` for each,
and run all checks on it. Authors of adapters and backbones call them in their tests.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from headstart.adapters.base import (
    ADAPTERS,
    Adapter,
    AdapterConfig,
    OneContext,
    adapter_config,
    new_adapter,
    register_adapter,
)
from headstart.backbones.base import BACKBONES, Backbone, BackboneConfig, backbone_config, register_backbone
from headstart.core.types import FeatureBatch, Heads, Knowledge, OneRow, RowStates
from headstart.datasets.synthetic import synthetic_mixed, synthetic_ratings, synthetic_responses
from headstart.model.fitting import split_features
from headstart.model.headstart import Headstart
from headstart.progress import Reporter
from headstart.table import Table
from headstart.table.cells import Cells
from headstart.training.meta_training import MetaTrainingConfig
from headstart.training.pretraining import PretrainingConfig
from headstart.training.recipe import AdapterTrainer, Recipe, prepare, require_networks
from headstart.training.table_inputs import feature_batch

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
    """Raised if a part does not fulfil the contract of its protocol."""


@dataclass(frozen=True)
class Fixture:
    """A backbone and an adapter trained on a small table, and new features to try them on."""

    name: str  # of the table and the backbone, for messages
    table: Table
    backbone: Backbone
    knowledge: Knowledge
    new: FeatureBatch  # features that are not in the table
    adapter: Adapter


def make_fixtures(
    adapter: AdapterConfig, backbones: tuple[object, ...] = (SMALL_PVAE, "factorisation")
) -> list[Fixture]:
    """Train the adapter on every table with every backbone."""
    return [
        train_fixture(name, adapter, backbone_config(backbone)) for backbone in backbones for name in TABLES
    ]


def train_fixture(name: str, adapter: AdapterConfig, backbone: BackboneConfig) -> Fixture:
    """Train on one of the ``TABLES`` without its last six features, which are the new ones."""
    table = TABLES[name]()
    known, unseen = table.with_features(table.features[:-6]), table.with_features(table.features[-6:])
    title = f"{name} table, backbone {backbone.name}"
    try:
        require_networks(known, [adapter])
        cross_fit = ADAPTERS.part_of(adapter).gives_uncertainty
        trainer = train_fixture_backbone(name, backbone, BACKBONES.part_of(backbone), cross_fit)
        trained = trainer.train(adapter, "adapter", {})
    except (RuntimeError, TypeError, IndexError) as error:
        raise ContractError(f"it cannot be trained: {error} ({title})") from error
    batch = feature_batch(unseen)
    # The six new features have no, few and many shots.
    shots = torch.tensor([0, 1, 2, 4, 8, 1000])
    position = torch.arange(len(batch.cells.index)) - batch.cells.indptr[batch.cells.lines]
    new = batch.observing(batch.cells.keep(position < shots[batch.cells.lines]))
    return Fixture(title, known, trainer.backbone, trainer.knowledge, new, trained.adapter)


@lru_cache(maxsize=16)
def train_fixture_backbone(
    name: str,
    backbone: BackboneConfig,
    part: type[Backbone],  # noqa: ARG001 (another class of the same name is trained anew)
    cross_fit: bool,
) -> AdapterTrainer:
    """Train a backbone once for all adapters that are checked in this process."""
    table = TABLES[name]()
    known = table.with_features(table.features[:-6])
    recipe = Recipe(
        backbone=backbone,
        pretraining=PretrainingConfig(epochs=2),
        metatraining=MetaTrainingConfig(epochs=1),
    )
    train_features, meta_features = split_features(known, None, 0)
    quiet = Reporter(quiet=True)
    return prepare(
        known, train_features, meta_features, recipe, cross_fit, reporter=quiet, checkpoint=lambda _: None
    )


def require(fulfilled: bool, rule: str, where: str) -> None:
    """Raise a ``ContractError`` that names the ``rule`` if it is not ``fulfilled``."""
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


def check_adapter(adapter: str | type[Adapter] | AdapterConfig) -> tuple[str, ...]:
    """Check that an adapter fulfils the contract, after training it on small synthetic tables.

    Parameters
    ----------
    adapter : str, type or AdapterConfig
        The adapter: its name, its class (registered if it is not yet), or its settings.

    Returns
    -------
    tuple of str
        The capabilities that the adapter declares (see ``Adapter``).

    Raises
    ------
    ContractError
        At the first rule that is not fulfilled. The message names the rule and the table.

    Examples
    --------
    >>> check_adapter("mean")
    ('supports_weights', 'accepts_structures')
    >>> check_adapter("bayes")
    ('gives_uncertainty', 'makes_known_heads', 'reads_context_rows_only', 'adapts_one', 'sharded', ...)
    """
    if isinstance(adapter, type):
        register_adapter(adapter)
        adapter = str(adapter.config_type.model_fields["name"].default)
    config = adapter_config(adapter, seed=0)
    for fixture in make_fixtures(config):
        with torch.no_grad():
            for check in ADAPTER_CHECKS:
                check(fixture)
            if fixture.adapter.mixes_known_heads:
                fixture.adapter.set_known_head_shares(0.7)
                for check in ADAPTER_CHECKS:
                    check(fixture)
    if config.linear_heads:  # a model stores no others
        check_model(config)
    return declared_capabilities(fixture.adapter, ADAPTER_CAPABILITIES)


ADAPTER_CAPABILITIES = (
    "gives_uncertainty",
    "makes_known_heads",
    "reads_context_rows_only",
    "adapts_one",
    "sharded",
    "explainable",
    "supports_weights",
    "supports_clicks",
    "accepts_structures",
    "blend_partner",
    "mixes_known_heads",
)

BACKBONE_CAPABILITIES = (
    "reads_any_head",
    "reads_single_rows",
    "explainable",
    "sharded",
    "supports_weights",
    "supports_clicks",
)


def declared_capabilities(part: Adapter | Backbone, names: Sequence[str]) -> tuple[str, ...]:
    """Return those of ``names`` that the adapter or backbone declares."""
    return tuple(name for name in names if getattr(part, name) not in (False, None))


def check_adapter_heads(fixture: Fixture) -> None:
    """Check that heads are finite, one per feature, as wide as activations, with a covariance if declared."""
    states = fixture.adapter.refine(fixture.knowledge.states)
    heads = fixture.adapter.adapt(fixture.new, states)
    require(
        heads.weight.shape == (len(fixture.new), states.activation.shape[1]),
        f"weights must have the shape (features, width of the activations); got {tuple(heads.weight.shape)}",
        fixture.name,
    )
    require(heads.bias.shape == (len(fixture.new),), "adapt() must give one bias per feature", fixture.name)
    uncertain = heads.covariance is not None and heads.noise is not None
    require(
        uncertain == fixture.adapter.gives_uncertainty,
        "gives_uncertainty must say whether heads have a covariance and a noise",
        fixture.name,
    )
    finite = all(bool(part.isfinite().all()) for part in heads.parts())
    require(finite, "heads must be finite, also at no shots", fixture.name)


def check_repeatable(fixture: Fixture) -> None:
    """Check that the same context gives the same head, bit for bit, and does not change the adapter."""
    before = {name: value.clone() for name, value in fixture.adapter.state_dict().items()}
    states = fixture.adapter.refine(fixture.knowledge.states)
    one, two = (fixture.adapter.adapt(fixture.new, states) for _ in range(2))
    require(same(one, two, exact=True), "adapting twice must give the same heads bit for bit", fixture.name)
    after = fixture.adapter.state_dict()
    unchanged = all(torch.equal(before[name], after[name]) for name in before)
    require(unchanged, "adapt() must not change the adapter", fixture.name)


def check_order(fixture: Fixture) -> None:
    """Check that the order of a context does not matter."""
    cells, states = fixture.new.cells, fixture.adapter.refine(fixture.knowledge.states)
    backwards = torch.argsort(cells.lines * 10_000 - torch.arange(len(cells.index)))
    reversed_cells = Cells(cells.indptr, cells.index[backwards], cells.values[backwards], cells.width)
    one, other = (
        fixture.adapter.adapt(fixture.new.observing(context), states) for context in (cells, reversed_cells)
    )
    require(same(one, other), "the order of a context must not matter", fixture.name)


def check_batches(fixture: Fixture) -> None:
    """Check that a batch gives the same heads as one feature at a time, and an empty batch none."""
    states = fixture.adapter.refine(fixture.knowledge.states)
    batched = fixture.adapter.adapt(fixture.new, states)
    single = [
        fixture.adapter.adapt(fixture.new.take(torch.tensor([i])), states) for i in range(len(fixture.new))
    ]
    rule = "a batch must give the same heads as one feature at a time"
    require(same(Heads.concatenate(single), batched), rule, fixture.name)
    empty = fixture.adapter.adapt(fixture.new.take(torch.zeros(0, dtype=torch.int64)), states)
    shapes_agree = [p.shape for p in empty.parts()] == [(0, *p.shape[1:]) for p in batched.parts()]
    require(shapes_agree, "an empty batch must give no heads", fixture.name)


def check_refining(fixture: Fixture) -> None:
    """Check that ``refines`` is True if ``refine`` changes states, and that rows do not affect each other."""
    states = fixture.knowledge.states
    refined = fixture.adapter.refine(states)
    changed = not same(states, refined, exact=True)
    require(
        not changed or fixture.adapter.refines,
        "refines must be True where refine() changes states",
        fixture.name,
    )
    rows = torch.tensor([3, 0])
    alone = fixture.adapter.refine(states.take(rows))
    require(same(alone, refined.take(rows)), "refine() must treat each row by itself", fixture.name)


def check_adapter_loading(fixture: Fixture) -> None:
    """Check that the state of an adapter, its parameters and buffers, determines its heads."""
    states = fixture.adapter.refine(fixture.knowledge.states)
    fresh = new_adapter(fixture.adapter.config, fixture.knowledge)  # without prepare()
    fresh.load_state_dict(fixture.adapter.state_dict())
    fresh.eval().requires_grad_(False)  # as a model loads it
    heads = fresh.adapt(fixture.new, fresh.refine(fixture.knowledge.states))
    rule = "an adapter built without prepare() and given another's state must make the same heads bit for bit"
    require(same(heads, fixture.adapter.adapt(fixture.new, states), exact=True), rule, fixture.name)


def check_context_rows(fixture: Fixture) -> None:
    """Check that an adapter that ``reads_context_rows_only`` needs no other states."""
    if not fixture.adapter.reads_context_rows_only:
        return
    states, cells = fixture.adapter.refine(fixture.knowledge.states), fixture.new.cells
    rows, index = torch.unique(cells.index, return_inverse=True)
    gathered = fixture.new.observing(Cells(cells.indptr, index, cells.values, len(rows)))
    one = fixture.adapter.adapt(gathered, states.take(rows))
    other = fixture.adapter.adapt(fixture.new, states)
    rule = "an adapter that reads_context_rows_only must make the same heads without the states of other rows"
    require(same(one, other), rule, fixture.name)


def check_one_feature(fixture: Fixture) -> None:
    """Check that ``adapt_one`` and ``refine_one`` agree with ``adapt`` and ``refine``."""
    adapter, new, states = fixture.adapter, fixture.new, fixture.knowledge.states
    if not adapter.adapts_one:
        return
    refined = adapter.refine(states)
    for row, state in enumerate(states.take(slice(0, 3)).split()):
        one = RowStates.of_one(adapter.refine_one(state), refined.activation.dtype)
        rule = "refine_one() must refine a row as refine() does"
        require(same(one, refined.take(slice(row, row + 1))), rule, fixture.name)
    heads = adapter.adapt(new, refined)
    for position in range(len(new)):
        feature = new.take(torch.tensor([position]))
        rows = refined.take(feature.cells.index)
        noise, variance = (None if part is None else part.numpy() for part in (rows.noise, rows.variance))
        head = adapter.adapt_one(
            OneContext(
                kind=int(feature.kinds[0]),
                metadata=feature.metadata[0].numpy(),
                known=-1,
                values=feature.cells.values.double().numpy(),
                code=rows.code.numpy() if adapter.reads_code else None,
                activation=rows.activation.numpy(),
                noise=noise,
                variance=variance,
            )
        )
        one_head = Heads(*(torch.as_tensor(part, dtype=heads.bias.dtype)[None] for part in head))
        rule = "adapt_one() must make the head that adapt() makes"
        require(same(one_head, heads.take(slice(position, position + 1))), rule, fixture.name)


def check_sharded(fixture: Fixture) -> None:
    """Check that ``adapt_sharded`` of a single process agrees with ``adapt``."""
    if not fixture.adapter.sharded:
        return
    states = fixture.adapter.refine(fixture.knowledge.states)
    one = fixture.adapter.adapt_sharded(fixture.new, states, lambda tensor: tensor)
    rule = "adapt_sharded() must make the heads that adapt() makes"
    require(same(one, fixture.adapter.adapt(fixture.new, states)), rule, fixture.name)


ADAPTER_CHECKS: tuple[Callable[[Fixture], None], ...] = (
    check_adapter_heads,
    check_repeatable,
    check_order,
    check_batches,
    check_refining,
    check_adapter_loading,
    check_context_rows,
    check_one_feature,
    check_sharded,
)


def check_model(config: AdapterConfig) -> None:
    """Check that a model with the adapter adds a feature without changing others, and can be saved."""
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


def check_backbone(backbone: str | type[Backbone] | BackboneConfig) -> tuple[str, ...]:
    """Check that a backbone fulfils the contract, after training it on small synthetic tables.

    Parameters
    ----------
    backbone : str, type or BackboneConfig
        The backbone: its name, its class (registered if it is not yet), or its settings.

    Returns
    -------
    tuple of str
        The capabilities that the backbone declares (see ``Backbone``).

    Raises
    ------
    ContractError
        At the first rule that is not fulfilled. The message names the rule and the table.

    Examples
    --------
    >>> check_backbone("factorisation")
    ('reads_any_head', 'reads_single_rows', 'explainable', 'sharded', 'supports_weights', 'supports_clicks')
    """
    if isinstance(backbone, type):
        register_backbone(backbone)
        backbone = str(backbone.config_type.model_fields["name"].default)
    for fixture in make_fixtures(adapter_config("mean"), (backbone_config(backbone),)):
        with torch.no_grad():
            for check in BACKBONE_CHECKS:
                check(fixture)
    return declared_capabilities(fixture.backbone, BACKBONE_CAPABILITIES)


def check_states(fixture: Fixture) -> None:
    """Check that states are finite and of the declared sizes, even without observations or rows."""
    cells = fixture.knowledge.cells
    unobserved = cells.keep(torch.zeros(len(cells.index), dtype=torch.bool))
    for observed in (cells, unobserved, cells.take(torch.zeros(0, dtype=torch.int64))):
        states = fixture.backbone.states(observed)
        require(
            states.code.shape == states.code_std.shape == (len(observed), fixture.backbone.code_size),
            "codes must have the shape (rows, code_size)",
            fixture.name,
        )
        require(
            states.activation.shape == (len(observed), fixture.backbone.activation_size),
            "activations must have the shape (rows, activation_size)",
            fixture.name,
        )
        finite = bool(states.code.isfinite().all() and states.activation.isfinite().all())
        require(finite, "states must be finite, also of rows without observations", fixture.name)
        require(bool((states.code_std >= 0).all()), "code_std must not be negative", fixture.name)


def check_rows_independent(fixture: Fixture) -> None:
    """Check that a row's state depends only on the row's observations, and is repeatable bit for bit."""
    cells = fixture.knowledge.cells
    states = fixture.backbone.states(cells)
    require(
        same(states, fixture.backbone.states(cells), exact=True), "states must be repeatable", fixture.name
    )
    rows = torch.tensor([5, 2])
    alone = fixture.backbone.states(cells.take(rows))
    require(
        same(alone, states.take(rows)), "a row's state must depend on its own observations only", fixture.name
    )


def check_masking(fixture: Fixture) -> None:
    """Check that masked features do not influence the states."""
    cells = fixture.knowledge.cells
    hidden = torch.arange(cells.width) < 3
    without = fixture.backbone.states(cells.keep(~hidden[cells.index]))
    rule = "states of hidden features must be those of rows that did not observe them"
    require(same(fixture.backbone.states(cells, hidden), without, exact=True), rule, fixture.name)


def check_backbone_heads(fixture: Fixture) -> None:
    """Check that heads are finite, one per feature."""
    heads = fixture.backbone.heads
    shapes_agree = heads.weight.shape == (fixture.backbone.features, fixture.backbone.activation_size)
    require(
        shapes_agree and len(heads.bias) == fixture.backbone.features,
        "there must be one head per feature",
        fixture.name,
    )
    finite = all(bool(part.isfinite().all()) for part in heads.parts())
    require(finite, "heads must be finite", fixture.name)


def check_backbone_loading(fixture: Fixture) -> None:
    """Check that the state of a backbone, its parameters and buffers, determines its row states."""
    backbone = fixture.backbone
    fresh = BACKBONES.part_of(backbone.config)(backbone.config, backbone.kinds, backbone.grid)
    fresh.load_state_dict(backbone.state_dict())
    states = fresh.eval().states(fixture.knowledge.cells)
    rule = "a backbone given another's state must give the same states bit for bit"
    require(same(states, backbone.states(fixture.knowledge.cells), exact=True), rule, fixture.name)


def check_states_from_heads(fixture: Fixture) -> None:
    """Check that states from the backbone's own heads, of many rows or of one, agree with ``states``."""
    backbone, cells = fixture.backbone, fixture.knowledge.cells
    if not backbone.reads_any_head:
        return
    heads, kinds, own = backbone.heads.detach(), backbone.kinds, torch.arange(backbone.features)
    states = backbone.states(cells)
    rule = "states_from_heads() with the backbone's own heads must give the states of states()"
    require(same(backbone.states_from_heads(cells, heads, kinds, own), states), rule, fixture.name)
    if not backbone.reads_single_rows:
        return
    for row in range(3):
        observed = cells.take(torch.tensor([row]))
        read = heads.take(observed.index)
        noise = torch.ones_like(read.bias) if read.noise is None else read.noise
        numbers = (
            observed.values.double(),
            read.stacked.double(),
            read.packed_covariance,
            noise,
            kinds[observed.index],
        )
        state = backbone.state_of_one(OneRow(*(part.numpy() for part in numbers)), observed.index.numpy())
        rule = "state_of_one() must give the state of states_from_heads()"
        one = RowStates.of_one(state, states.activation.dtype)
        require(same(one, states.take(slice(row, row + 1))), rule, fixture.name)


BACKBONE_CHECKS: tuple[Callable[[Fixture], None], ...] = (
    check_states,
    check_rows_independent,
    check_masking,
    check_backbone_heads,
    check_backbone_loading,
    check_states_from_heads,
)
