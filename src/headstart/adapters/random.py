"""A head drawn at random: the floor of every comparison."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from headstart.adapters.protocol import Adapter, AdapterConfig
from headstart.adapters.registry import register_adapter
from headstart.core.batch import FeatureBatch
from headstart.core.devices import CPU, moved
from headstart.core.heads import Heads
from headstart.core.states import RowStates

_STRIDE = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio: neighbouring counters land far apart


class RandomConfig(AdapterConfig):
    """Settings of the random head."""

    name: Literal["random"] = "random"
    seed: int = Field(0, ge=0)


@register_adapter
class RandomHead(Adapter):
    """Xavier-uniform weights of a linear layer from the activation to one output; zero bias.

    Each feature has a draw of its own, as in the paper. Yet a draw must be the same in any batch
    and any order, so it is not taken from a running generator but is a hash of the seed and of all
    that an adapter sees of a feature: its metadata and its context (rows by their position in the
    states). Features with the same context and metadata, such as all at zero shots without metadata, share
    one draw: there is no difference between them.
    """

    config_type: ClassVar[type[AdapterConfig]] = RandomConfig
    config: RandomConfig

    def adapt(self, batch: FeatureBatch, states: RowStates) -> Heads:
        """Draw a head for each feature."""
        width = states.activation.shape[1]
        bound = math.sqrt(6 / (width + 1))
        keys = _keys(batch, self.config.seed)
        counters = np.arange(1, width + 1, dtype=np.uint64) * _STRIDE
        uniform = (_mix(keys[:, None] + counters) >> np.uint64(11)) * 2.0**-53
        weight = torch.from_numpy((2 * uniform - 1) * bound).to(states.activation)
        return Heads(weight, weight.new_zeros(len(batch)))


def _keys(batch: FeatureBatch, seed: int) -> NDArray[np.uint64]:
    """One number per feature, from the seed, its metadata and its context in any order: (features,)."""
    batch = moved(batch, CPU)  # bits are mixed by NumPy
    cells = batch.cells
    observations = _mix(_mix(cells.index.numpy().astype(np.uint64) * _STRIDE) + _bits(cells.values))
    # A sum forgets the order; it wraps at 2^64, and so do the differences of its running form.
    running = np.concatenate([np.zeros(1, np.uint64), np.cumsum(observations, dtype=np.uint64)])
    ends = running[cells.indptr.numpy()]
    columns = np.arange(1, batch.metadata.shape[1] + 1, dtype=np.uint64) * _STRIDE
    metadata = _mix(_mix(columns) + _bits(batch.metadata)).sum(axis=1, dtype=np.uint64)
    return _mix(_mix(ends[1:] - ends[:-1] + np.uint64(seed)) + metadata)


def _bits(numbers: Tensor) -> NDArray[np.uint64]:
    """The bit patterns of numbers; adding zero makes one zero of -0.0 and 0.0."""
    return (numbers.detach().float() + 0.0).numpy().view(np.uint32).astype(np.uint64)


def _mix(keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Scatter 64-bit keys: each bit of the result depends on all of the key (splitmix64's finaliser)."""
    keys = (keys ^ (keys >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    keys = (keys ^ (keys >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: NDArray[np.uint64] = keys ^ (keys >> np.uint64(31))
    return mixed
