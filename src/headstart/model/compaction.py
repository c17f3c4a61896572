"""Store the covariances of a fitted model's heads in few numbers."""

from __future__ import annotations

from dataclasses import replace

import torch

from headstart.linalg.compact import compact
from headstart.linalg.packed import make_positive_definite, pack, packed_size
from headstart.linalg.ragged import column_sums
from headstart.linalg.row_sharded import global_count, global_sum, second_moment
from headstart.model.state import ModelState

_LEAST_NUMBERS = 2**20  # of all covariances that are worth it: 4 MiB


@torch.no_grad()
def compact_covariances(model: ModelState) -> ModelState:
    """Return the model with compact covariances of all heads; a small model is returned unchanged.

    Errors are measured at the average row of the model, in units of the noise of each head.
    """
    columns = model.feature_store.columns
    heads, size = model.feature_store.heads_at(slice(0, len(columns.features))), model.row_store.width + 1
    if heads.covariance is None or heads.noise is None or len(heads) * packed_size(size) < _LEAST_NUMBERS:
        return model
    shots = torch.from_numpy(columns.shots)
    prior = model.adapter.prior_covariances(shots)
    bases, shares = torch.zeros(0, size, size), torch.zeros(len(heads), 0)
    if prior is not None:
        bases, shares = (part.to(heads.covariance.dtype) for part in prior)
    states, metric = model.states, second_moment(model.states.activation)
    if states.variance is not None:
        variance = global_sum(column_sums(states.variance)) / max(1, global_count(len(states)))
        metric[:-1, :-1] += torch.diag(variance)
    units = heads.noise.clamp(min=torch.finfo(heads.noise.dtype).tiny)
    matrices = compact(heads.covariance, pack(bases), shares, make_positive_definite(metric), units)
    return replace(model, feature_store=model.feature_store.with_compact_covariances(matrices))
