"""The contract of adapters."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from headstart.adapters.protocol import Adapter, AdapterConfig, StreamingAdapter
from headstart.adapters.registry import adapter_config, new_adapter, register_adapter
from headstart.core.heads import Heads
from headstart.model.headstart import Headstart
from headstart.table.cells import Cells
from headstart.testing.contract import SMALL_PVAE, TABLES, World, require, same, worlds


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


def check_heads(world: World) -> None:
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


def check_loading(world: World) -> None:
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
    if not isinstance(adapter, StreamingAdapter):
        return
    streamed = torch.nonzero(adapter.streams(world.new.kinds))[:, 0]
    batch, states = world.new.take(streamed), adapter.refine(world.knowledge.states)
    half = torch.arange(len(batch.cells.index)) % 2 == 0
    parts = [batch.observing(batch.cells.keep(mask)) for mask in (half, ~half)]
    total = sum((adapter.evidence(part, states) for part in parts), torch.zeros(()))
    promise = "solve(evidence(a) + evidence(b)) must be adapt(a and b)"
    require(same(adapter.solve(total, batch), adapter.adapt(batch, states)), promise, world.name)


ADAPTER_CHECKS: tuple[Callable[[World], None], ...] = (
    check_heads,
    check_repeatable,
    check_order,
    check_batches,
    check_refining,
    check_loading,
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
