"""The times of observations in a saved model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.errors import InputError
from headstart.model.parts.clock import Clock
from headstart.model.parts.fitted import Fitted

if TYPE_CHECKING:
    from headstart.model.saving.format import ModelFacts

Groups = dict[str, dict[str, Tensor]]


def time_tensors(fitted: Fitted) -> dict[str, Tensor]:
    """The times of the table and of the features; none if observations do not age."""
    if fitted.clock is None:
        return {}
    features = list(fitted.catalogue.values())
    times = [np.zeros(0), *(feature.times for feature in features if feature.times is not None)]
    now = [fitted.clock.fitted_at if feature.now is None else feature.now for feature in features]
    return {
        "times/table": torch.from_numpy(fitted.clock.table),
        "times/contexts": torch.from_numpy(np.concatenate(times)),
        "times/heads": torch.tensor(now, dtype=torch.float64),
    }


def clock_from(facts: ModelFacts, parts: Groups) -> Clock | None:
    """The clock of a saved model; its times must be there if it has a half-life, and only then."""
    half_life, held = facts.settings.half_life, parts.get("times")
    if half_life is None and facts.times is None and held is None:
        return None
    if half_life is None or facts.times is None or held is None:
        raise InputError("it does not say all of how its observations age")
    sizes = {
        "table": len(parts["knowledge"]["values"]),
        "contexts": len(parts["contexts"]["values"]),
        "heads": len(facts.features.names),
    }
    if any(len(held[name]) != size for name, size in sizes.items()):
        raise InputError("its times do not agree with its observations")
    observations = parts.get("row_observations")
    if observations is not None and not {"times", "now"} <= set(observations):
        raise InputError("it does not say when its rows observed")
    return Clock(half_life, facts.times[1], facts.times[0], held["table"].numpy())


def weights_of_table(clock: Clock | None) -> Tensor | None:
    """How much the observations of the table counted at fit, if they age: (n,)."""
    return None if clock is None else torch.from_numpy(clock.weights(clock.table, clock.fitted_at)).float()


def feature_times(
    parts: Groups, counts: list[int]
) -> tuple[list[NDArray[np.float64]] | list[None], list[float] | list[None]]:
    """The times of each feature's observations, and those at which heads were computed."""
    held = parts.get("times")
    if held is None:
        return [None] * len(counts), [None] * len(counts)
    return [part.numpy() for part in torch.split(held["contexts"], counts)], held["heads"].tolist()
