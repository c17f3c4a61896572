"""The promises of every adapter there is, whatever its method."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from tests.adapters.conftest import Tiny

from headstart.adapters import ADAPTERS, Adapter, adapter_config, adapter_names, build_adapter
from headstart.adapters.base import new_adapter
from headstart.core.types import Heads, Knowledge, RowStates
from headstart.errors import InputError, UnknownNameError
from headstart.table.cells import Cells
from headstart.table.kinds import KindType

# Two of each method's variants, which differ in a number, as of steps or neighbours.
NAMES = [name for part in ADAPTERS.parts() for name in (ADAPTERS[part].variants or (part,))[:2]]


def built(name: str, knowledge: Knowledge) -> Adapter:
    torch.manual_seed(0)
    return build_adapter(adapter_config(name, seed=3), knowledge).eval()


def test_every_method_is_covered() -> None:
    assert {adapter_config(name).name for name in adapter_names()} == set(ADAPTERS.parts())
    assert {adapter_config(name).name for name in NAMES} == set(ADAPTERS.parts())
    assert set(NAMES) <= set(adapter_names())


@pytest.mark.parametrize("name", NAMES)
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
    keeps_the_contract(world, built(name, world.knowledge))


@pytest.mark.parametrize("name", [*adapter_names(), "bayes-train-2", "chn-bayes-train-0"])
@pytest.mark.parametrize("shots", [0, 3])
def test_heads_are_of_the_same_make_whatever_the_shots(
    name: str, shots: int, tiny: Callable[..., Tiny]
) -> None:
    """With a covariance and a noise, or without: a catalogue holds all heads in the same arrays."""
    world = tiny(shots=(shots,) * 6)
    adapter = built(name, world.knowledge)
    heads = world.adapted(adapter)
    assert (heads.covariance is not None) == (heads.noise is not None) == adapter.gives_uncertainty


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
        ("x-y", "there are .*chn-bayes, "),
    ],
)
def test_an_unknown_method_is_refused_with_a_hint(name: str, hint: str) -> None:
    with pytest.raises(UnknownNameError, match=f"unknown method '{name}'.*{hint}"):
        adapter_config(name)


@pytest.mark.parametrize("choice", [{}, {"neighbours": 3}, 7, None])
def test_settings_of_another_shape_are_refused(choice: object) -> None:
    with pytest.raises(InputError, match="chosen by its name or its settings"):
        adapter_config(choice)


def test_settings_of_no_adapter_are_refused_with_the_names_there_are() -> None:
    with pytest.raises(UnknownNameError, match="unknown adapter 'nothing'; there are ") as refused:
        adapter_config({"name": "nothing"})
    listed = str(refused.value).partition("there are ")[2].split(", ")
    assert sorted(listed) == sorted(ADAPTERS.parts())


def unreadable(knowledge: Knowledge) -> Knowledge:
    """The same sizes, but not one number that could be computed with."""

    def nothing(part: torch.Tensor) -> torch.Tensor:
        return torch.full_like(part, torch.nan)

    states, heads, cells = knowledge.states, knowledge.heads, knowledge.cells
    return replace(
        knowledge,
        states=RowStates(nothing(states.code), nothing(states.code_std), nothing(states.activation)),
        heads=Heads(nothing(heads.weight), nothing(heads.bias)),
        cells=Cells(cells.indptr, cells.index, nothing(cells.values), cells.width),
        metadata=nothing(knowledge.metadata),
    )


@pytest.mark.parametrize("name", [*adapter_names(), "bayes-train-2"])
def test_constructing_reads_sizes_but_no_numbers(
    name: str, tiny: Callable[..., Tiny], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a saved adapter costs no computation to load, and holds all that it is in its state."""
    world = tiny()
    adapter = built(name, world.knowledge)
    config = adapter.config
    with monkeypatch.context() as patched:
        for part in {type(module) for module in adapter.modules() if hasattr(module, "prepare")}:
            patched.setattr(part, "prepare", _never)
        torch.manual_seed(5)
        copy = new_adapter(config, unreadable(world.knowledge)).eval()
        torch.manual_seed(5)
        again = new_adapter(config, world.knowledge).eval()
    ours, theirs = copy.state_dict(), again.state_dict()
    assert list(ours) == list(theirs) == list(adapter.state_dict())
    for key, value in ours.items():
        assert bool(value.isfinite().all())
        assert torch.equal(value, theirs[key])
    again.load_state_dict(adapter.state_dict())
    for one, two in zip(world.adapted(adapter).parts(), world.adapted(again).parts(), strict=True):
        assert torch.equal(one, two)


def _never(*_: object) -> None:
    raise AssertionError("constructing must not prepare")
