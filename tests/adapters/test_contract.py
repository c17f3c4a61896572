"""The promises of every adapter there is, whatever its method."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.adapters.conftest import Tiny

from headstart.adapters import ADAPTERS, Adapter, adapter_config, adapter_names, build_adapter
from headstart.core.knowledge import Knowledge
from headstart.errors import InputError, UnknownNameError
from headstart.table.kinds import KindType


def built(name: str, knowledge: Knowledge) -> Adapter:
    torch.manual_seed(0)
    return build_adapter(adapter_config(name, seed=3), knowledge).eval()


def test_every_method_is_covered() -> None:
    named = {adapter_config(name).model_dump()["name"] for name in adapter_names()}
    assert named == set(ADAPTERS)


@pytest.mark.parametrize("name", adapter_names())
@pytest.mark.parametrize("mixed", [True, False], ids=["mixed kinds", "one kind"])
@pytest.mark.parametrize("link", ["sigmoid", "identity"])
def test_promises(
    name: str,
    mixed: bool,
    link: str,
    tiny: Callable[..., Tiny],
    keeps_the_contract: Callable[[Tiny, Adapter], None],
) -> None:
    world = (
        tiny(link=link)
        if mixed
        else tiny(known=(KindType.RATING,) * 9, new=(KindType.RATING,) * 6, link=link)
    )
    adapter = built(name, world.knowledge)
    for learning in (True, False):  # a model in use asks for no gradients
        with torch.set_grad_enabled(learning):
            keeps_the_contract(world, adapter)


@pytest.mark.parametrize("name", adapter_names())
def test_the_same_seed_builds_the_same_adapter(name: str, tiny: Callable[..., Tiny]) -> None:
    world = tiny()
    one, other = (world.adapted(built(name, world.knowledge)) for _ in range(2))
    for mine, yours in zip(one.parts(), other.parts(), strict=True):
        assert torch.equal(mine, yours)


@pytest.mark.parametrize("name", adapter_names())
def test_a_feature_does_not_hang_on_its_neighbours_values(name: str, tiny: Callable[..., Tiny]) -> None:
    world = tiny()
    adapter = built(name, world.knowledge)
    batch, states = world.batch, adapter.refine(world.knowledge.states)
    before = adapter.adapt(batch, states)
    cells = batch.cells
    changed = cells.values.clone()
    changed[cells.lines == 4] = 1 - changed[cells.lines == 4]
    after = adapter.adapt(
        batch.observing(type(cells)(cells.indptr, cells.index, changed, cells.width)), states
    )
    others = torch.tensor([0, 1, 2, 3, 5])
    for one, two in zip(before.take(others).parts(), after.take(others).parts(), strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize(
    "name", [*adapter_names(), "random-train-5", "bayes-train-2", "train-5-train-2", "maml-3-train-2"]
)
def test_a_saved_state_gives_the_same_heads(name: str, tiny: Callable[..., Tiny]) -> None:
    world = tiny()
    adapter = built(name, world.knowledge)
    torch.manual_seed(99)  # another start, to be overwritten
    config = adapter_config(adapter.config.model_dump())
    copy = build_adapter(config, world.knowledge).eval()
    copy.load_state_dict(adapter.state_dict())
    for one, two in zip(world.adapted(adapter).parts(), world.adapted(copy).parts(), strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("chnn", "chn"),
        ("knn-", "knn-"),
        ("maml10", "maml-10"),
        ("x-y", "there are chn-bayes, bayes, chn, random"),
    ],
)
def test_an_unknown_method_is_refused_with_a_hint(name: str, hint: str) -> None:
    with pytest.raises(UnknownNameError, match=f"unknown method '{name}'.*{hint}"):
        adapter_config(name)


def test_settings_of_another_shape_are_refused() -> None:
    with pytest.raises(InputError, match="chosen by its name"):
        adapter_config({"name": "nothing"})
