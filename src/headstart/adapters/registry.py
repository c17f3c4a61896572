"""The adapters there are, by the names used in benchmarks, settings and on the command line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from headstart.adapters.bayes import BayesConfig, BayesHead
from headstart.adapters.chn import CHNConfig, ContextualHypernetwork
from headstart.adapters.chn_bayes import CHNBayes, CHNBayesConfig
from headstart.adapters.finetune import FineTuned, FineTunedConfig
from headstart.adapters.knn import NearestHeads, NearestHeadsConfig
from headstart.adapters.maml import MAML, MAMLConfig
from headstart.adapters.mean import MeanConfig, MeanOfContext
from headstart.adapters.mean_head import MeanHead, MeanHeadConfig
from headstart.adapters.mean_head_matching import MeanHeadMatching, MeanHeadMatchingConfig
from headstart.adapters.protocol import Adapter, Knowledge
from headstart.adapters.random import RandomConfig, RandomHead
from headstart.adapters.train import TrainConfig, TrainFromRandom
from headstart.config import Config
from headstart.errors import InputError, UnknownNameError, did_you_mean

ADAPTERS: dict[str, tuple[type[Config], type[Adapter]]] = {
    "chn-bayes": (CHNBayesConfig, CHNBayes),
    "bayes": (BayesConfig, BayesHead),
    "chn": (CHNConfig, ContextualHypernetwork),
    "random": (RandomConfig, RandomHead),
    "mean": (MeanConfig, MeanOfContext),
    "mean-head": (MeanHeadConfig, MeanHead),
    "mean-head-matching": (MeanHeadMatchingConfig, MeanHeadMatching),
    "knn": (NearestHeadsConfig, NearestHeads),
    "train": (TrainConfig, TrainFromRandom),
    "maml": (MAMLConfig, MAML),
    "fine-tuned": (FineTunedConfig, FineTuned),
}

# The number at the end of a name sets this: knn-10 has 10 neighbours, chn-train-5 trains 5 epochs.
_NUMBERED = {"knn": "neighbours", "train": "epochs", "maml": "epochs"}


def adapter_names() -> list[str]:
    """The methods' names; others of the same shape, such as knn-3, are understood too."""
    counted = {
        "knn": (1, 5, 10),
        "train": (1, 5, 10, 25),
        "maml": (0, 1, 3, 5, 10),
        "chn-train": (1, 5, 10, 25),
    }
    plain = ["chn-bayes", "bayes", "chn", "random", "mean", "mean-head", "mean-head-matching"]
    return plain + [f"{name}-{n}" for name, numbers in counted.items() for n in numbers]


def adapter_config(
    choice: str | Config | dict[str, Any],
    seed: int = 0,
    settings: Mapping[str, dict[str, Any]] | None = None,
) -> Config:
    """Turn a name, settings or their saved form into settings; a seed goes to those that draw numbers.

    ``settings`` changes, by the adapter's own name ("chn", "knn", "maml", …), what a name stands for.

    >>> adapter_config("knn-10").neighbours
    10
    >>> adapter_config("random-train-5", seed=3)
    FineTunedConfig(name='fine-tuned', base={'name': 'random', 'seed': 3}, epochs=5, rate=0.01)
    >>> adapter_config("chn-train-5", settings={"chn": {"encoding": 8}}).base["encoding"]
    8
    >>> adapter_config("knn-0")
    Traceback (most recent call last):
    headstart.errors.InputError: NearestHeadsConfig: setting 'neighbours': Input should be ...
    >>> adapter_config("chnn")
    Traceback (most recent call last):
    headstart.errors.UnknownNameError: unknown method 'chnn'; did you mean 'chn'?
    """
    if isinstance(choice, Config):
        return choice
    if not isinstance(choice, (str, Mapping)):
        raise InputError(f"an adapter is chosen by its name or settings; got {choice!r}")
    chosen = _named(choice) if isinstance(choice, str) else dict(choice)
    name = chosen.get("name")
    if not isinstance(name, str) or name not in ADAPTERS:
        raise InputError(f"an adapter is chosen by its name or settings; got {choice!r}")
    if isinstance(choice, str):
        chosen |= (settings or {}).get(name, {})
    if "base" in chosen:  # settled with its seed, so that a saved model builds the same base again
        chosen["base"] = adapter_config(chosen["base"], seed, settings).model_dump(mode="json")
    kind = ADAPTERS[name][0]
    if "seed" in kind.model_fields:
        chosen.setdefault("seed", seed)
    return kind(**chosen)


def _named(name: str) -> dict[str, Any]:
    """What a name by itself says."""
    if name in ADAPTERS and name not in (*_NUMBERED, "fine-tuned"):
        return {"name": name}
    parts = re.fullmatch(r"(?:(.+)-)?(knn|train|maml)-(\d+)", name)
    if parts is not None:
        base, method, number = parts[1], parts[2], int(parts[3])
        if base is None:
            return {"name": method, _NUMBERED[method]: number}
        if method == "train":
            return {"name": "fine-tuned", "base": base, "epochs": number}
    hint = did_you_mean(name, adapter_names()) or f"; there are {', '.join(adapter_names())}"
    raise UnknownNameError(f"unknown method {name!r}{hint}")


def training_config(config: Config) -> Config:
    """The settings whose meta-training serves this adapter too: how MAML fine-tunes later changes nothing."""
    if isinstance(config, MAMLConfig):
        return MAMLConfig(**{**config.model_dump(), "epochs": config.inner_steps})
    return config


def build_adapter(config: Config, knowledge: Knowledge, base: Adapter | None = None) -> Adapter:
    """Make an adapter that is not meta-trained yet, around a trained ``base`` where it fine-tunes one."""
    if isinstance(config, FineTunedConfig):
        return FineTuned(config, knowledge, base or build_adapter(adapter_config(config.base), knowledge))
    return ADAPTERS[config.name][1](config, knowledge)  # type: ignore[attr-defined]
