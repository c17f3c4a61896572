"""Times that adapters need to compute heads."""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np
import torch

from headstart.adapters.protocol import Adapter
from headstart.config import Config
from headstart.core.batch import FeatureBatch
from headstart.core.states import RowStates

BATCH = 128


class Timing(Config):
    """Milliseconds per feature to compute a head: median, fastest and slowest of several rounds."""

    method: str
    shots: int
    ms_per_feature: float
    low: float  # fastest round
    high: float  # slowest round


def time_adapters(
    adapters: Mapping[str, Adapter],
    contexts: Mapping[int, FeatureBatch],
    states: RowStates,
    rounds: int = 5,
) -> list[Timing]:
    """Time every adapter at every number of shots (the keys of ``contexts``), in batches of 128 features.

    If there are fewer features, they are repeated to fill a batch. The first call of each adapter is not
    measured. Then the adapters take turns, so that other load on the machine affects all of them.
    """
    batches = {shots: context.take(torch.arange(BATCH) % len(context)) for shots, context in contexts.items()}
    taken: dict[tuple[str, int], list[float]] = {(name, k): [] for name in adapters for k in batches}
    with torch.no_grad():
        refined = {name: adapter.refine(states) for name, adapter in adapters.items()}
        for turn in range(-1, rounds):  # turn -1 only warms up
            for shots, batch in batches.items():
                for name, adapter in adapters.items():
                    start = time.perf_counter()
                    adapter.adapt(batch, refined[name])
                    if turn >= 0:
                        taken[name, shots].append((time.perf_counter() - start) * 1000 / BATCH)
    return [
        Timing(method=name, shots=k, ms_per_feature=float(np.median(ms)), low=min(ms), high=max(ms))
        for (name, k), ms in taken.items()
    ]
