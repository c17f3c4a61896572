"""The adapters by name, as benchmarks, settings and the command line use them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, SerializeAsAny

from headstart.adapters.protocol import Adapter, AdapterConfig
from headstart.core.devices import computing_on
from headstart.core.knowledge import Knowledge
from headstart.errors import InputError, UnknownNameError, did_you_mean
from headstart.registry import Registry

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
    chosen = _named(choice) if isinstance(choice, str) else dict(choice)
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


def _named(name: str) -> dict[str, Any]:
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
    with computing_on(knowledge.device):
        adapter.prepare()
    return adapter


AnyAdapter = Annotated[SerializeAsAny[AdapterConfig], BeforeValidator(adapter_config)]
"""The type of a setting that holds the settings of any adapter."""
