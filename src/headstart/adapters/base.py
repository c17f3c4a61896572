"""Define what an adapter is, and find adapters by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self

import torch
from pydantic import BeforeValidator, SerializeAsAny
from torch import Tensor, nn

from headstart.config import Config
from headstart.core.devices import compute_on
from headstart.core.types import FeatureBatch, Heads, Knowledge, RowStates
from headstart.errors import InputError, UnknownNameError, did_you_mean
from headstart.registry import Registry

_ROWS_AT_ONCE = 2**17


class AdapterConfig(Config):
    """Settings of an adapter; a subclass gives ``name`` the adapter's name as its only value."""

    name: str

    def resolved(self, knowledge: Knowledge) -> Self:  # noqa: ARG002
        """Return the settings with every value that depends on the data filled in."""
        return self


class Adapter(nn.Module, ABC):
    """Maps the contexts of new features to their heads.

    ``Adapter(config, knowledge)`` only allocates: it reads the sizes of the knowledge, not its numbers.
    ``prepare`` then sets where parameters and buffers start; a saved adapter gets them from its file
    instead. What is to be saved must be a parameter or a buffer; the knowledge itself is saved with the
    model. ``adapt`` must not depend on the order of a context, must work with no shots, and must give a
    batch the same heads as one feature at a time: ``headstart.testing.check_adapter`` checks this.
    """

    config_type: ClassVar[type[AdapterConfig]]
    numbered: ClassVar[str | None] = None  # the setting that a number after the name sets, as in knn-10
    variants: ClassVar[tuple[str, ...]] = ()  # the names to list; the plain name where there are none
    refines: ClassVar[bool] = False  # whether ``refine`` changes the states
    gives_uncertainty: ClassVar[bool] = False  # whether heads come with a covariance and a noise

    def __init__(self, config: AdapterConfig, knowledge: Knowledge) -> None:
        super().__init__()
        self.config = config
        self.knowledge = knowledge

    @classmethod
    def named(cls, name: str) -> dict[str, Any] | None:
        """The settings that a name stands for, or None if it is not one of this adapter's names."""
        own = str(cls.config_type.model_fields["name"].default)
        if cls.numbered is None:
            return {"name": own} if name == own else None
        head, _, number = name.rpartition("-")
        return {"name": own, cls.numbered: int(number)} if head == own and number.isdecimal() else None

    def prepare(self) -> None:
        """Set parameters and buffers from the knowledge, once, before any training."""

    def finish(self) -> None:
        """Set what follows from parameters that have been learned, once, after training."""

    @property
    def learns(self) -> bool:
        """Whether there is anything to meta-train."""
        return any(parameter.requires_grad for parameter in self.parameters())

    @property
    def meta_settings(self) -> Mapping[str, object]:
        """Settings of meta-training that are part of the method, such as MAML's meta-batch."""
        return {}

    @property
    def meta_defaults(self) -> Mapping[str, object]:
        """Settings of meta-training that suit the method, unless the user sets others."""
        return {}

    @classmethod
    def trained_as(cls, config: Any) -> AdapterConfig:
        """The settings whose meta-training serves this adapter too; here its own."""
        settings: AdapterConfig = config
        return settings

    def take_training(self, trained: Adapter) -> None:
        """Take over what an adapter of the settings ``trained_as`` has learned."""
        self.load_state_dict(trained.state_dict())

    def refine(self, states: RowStates) -> RowStates:
        """The backbone's states as this adapter's heads read them; here as they are.

        ``adapt`` is given refined states, and its heads go with refined activations.
        """
        return states

    @torch.no_grad()
    def refine_in_blocks(self, states: RowStates) -> RowStates:
        """``refine`` of any number of rows: what networks need in between is held for some at a time."""
        if not self.refines or len(states) <= _ROWS_AT_ONCE:
            return self.refine(states)
        first = self.refine(states.take(slice(0, _ROWS_AT_ONCE)))
        refined = first.room_for(len(states))
        refined.put(0, first)
        for start in range(_ROWS_AT_ONCE, len(states), _ROWS_AT_ONCE):
            refined.put(start, self.refine(states.take(slice(start, start + _ROWS_AT_ONCE))))
        return refined

    @abstractmethod
    def adapt(self, batch: FeatureBatch, states: RowStates) -> Heads:
        """Give each feature of the batch its head; differentiable in the adapter's parameters."""


class StreamingAdapter(Adapter):
    """An adapter whose heads depend on a context only through sums over its observations.

    So an observation costs the same whether it is the second or the thousandth, and the order of
    observations does not matter: ``solve(evidence(a) + evidence(b))`` is ``adapt(a and b)``. An
    observation is removed by subtracting its evidence.
    """

    @abstractmethod
    def streams(self, kinds: Tensor) -> Tensor:
        """Whether there are such sums for these kinds: a mask like ``kinds``."""

    @abstractmethod
    def evidence(self, batch: FeatureBatch, states: RowStates) -> Tensor:
        """The sums of each feature: (features, numbers) in double precision."""

    @abstractmethod
    def solve(self, evidence: Tensor, batch: FeatureBatch) -> Heads:
        """The heads that these sums imply; of the batch only metadata and kinds are read."""


ADAPTERS: Registry[Adapter] = Registry("adapter", "headstart.adapters")

register_adapter = ADAPTERS.register


def adapter_names() -> list[str]:
    """The methods' names; others of the same form, such as knn-3, are understood too."""
    return [name for key, part in ADAPTERS.parts().items() for name in part.variants or (key,)]


def adapter_config(
    choice: object,
    seed: int | None = None,
    settings: Mapping[str, dict[str, Any]] | None = None,
) -> AdapterConfig:
    """Turn a name, settings or their saved form into settings; a seed goes to adapters that draw numbers.

    ``settings`` changes, by the adapter's own name ("chn", "knn", "maml", …), what a name stands for.

    >>> adapter_config("knn-10").neighbours
    10
    >>> adapter_config("random-train-5", seed=3).base
    RandomConfig(name='random', seed=3)
    >>> adapter_config("chn-train-5", settings={"chn": {"encoding": 8}}).base.encoding
    8
    >>> adapter_config("knn-0")
    Traceback (most recent call last):
    headstart.errors.InputError: NearestHeadsConfig: setting 'neighbours': Input should be ...
    >>> adapter_config("chnn")
    Traceback (most recent call last):
    headstart.errors.UnknownNameError: unknown method 'chnn'; did you mean 'chn'?
    """
    if isinstance(choice, AdapterConfig):
        ADAPTERS.part_of(choice)
        return choice
    if not isinstance(choice, (str, Mapping)):
        raise InputError(f"an adapter is chosen by its name or its settings; got {choice!r}")
    chosen = _find_variant(choice) if isinstance(choice, str) else dict(choice)
    if "name" not in chosen:
        raise InputError(f"an adapter is chosen by its name or its settings; got {choice!r}")
    if isinstance(choice, str):
        chosen |= (settings or {}).get(chosen["name"], {})
    kind = ADAPTERS[chosen["name"]].config_type
    if "base" in chosen:
        chosen["base"] = adapter_config(chosen["base"], seed, settings)
    if "seed" in kind.model_fields and seed is not None:
        chosen.setdefault("seed", seed)
    return kind(**chosen)


def _find_variant(name: str) -> dict[str, Any]:
    """The settings that a name by itself stands for."""
    for part in ADAPTERS.parts().values():
        settings = part.named(name)
        if settings is not None:
            return settings
    names = adapter_names()
    hint = did_you_mean(name, names) or f"; there are {', '.join(names)}"
    raise UnknownNameError(f"unknown method {name!r}{hint}")


def new_adapter(config: AdapterConfig, knowledge: Knowledge) -> Adapter:
    """Make an adapter without parameters of its own yet, to be loaded from a file."""
    return ADAPTERS.part_of(config)(config, knowledge)


def build_adapter(config: AdapterConfig, knowledge: Knowledge) -> Adapter:
    """Make an adapter that is ready to be meta-trained."""
    # Initial weights are drawn by the processor, whatever computes with them.
    adapter = new_adapter(config.resolved(knowledge), knowledge).to(knowledge.device)
    with compute_on(knowledge.device):
        adapter.prepare()
    return adapter


AnyAdapter = Annotated[SerializeAsAny[AdapterConfig], BeforeValidator(adapter_config)]

"""The type of a setting that holds the settings of any adapter."""
