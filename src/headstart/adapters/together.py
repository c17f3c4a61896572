"""Heads in closed form, of features whose observations several processes have: from sums over all of them."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from headstart.adapters.blending import blended
from headstart.adapters.chn_bayes import CHNBayes
from headstart.adapters.closed_form import ClosedFormAdapter
from headstart.adapters.logistic import classify
from headstart.algebra.padding import blocks, padded, padded_rows
from headstart.core.batch import FeatureBatch
from headstart.core.heads import Heads
from headstart.core.states import RowStates
from headstart.crew import crew
from headstart.table.kinds import KindType
from headstart.table.outliers import LEAST_DEVIATION
from headstart.table.regrouping import tamed

_BUDGET = 1 << 22  # numbers in one block: each costs the processes a wait for each other


@torch.no_grad()
def adapt_together(
    adapter: ClosedFormAdapter, batch: FeatureBatch, states: RowStates, shots: Tensor
) -> Heads:
    """``adapter.adapt`` where each process has the ``batch`` and ``states`` of its own rows.

    ``shots`` (features,) are those of all processes. Behind an identity link the sums of ``evidence`` add
    up; behind a logistic one each step of Newton's method adds up its gradients and curvatures.
    """
    batch = _without_outliers(adapter, batch, states)
    squashed = adapter.knowledge.likelihood.squashes(batch.kinds)
    heads, order = [], []
    apart = squashed + 2 * (batch.kinds == KindType.BINARY)
    for group in blocks(shots, adapter.prior.size, apart, _BUDGET):
        part = batch.take(group)
        order.append(group)
        if bool(squashed[group[0]]):
            heads.append(_classified(adapter, part, states, shots[group]))
        else:
            heads.append(adapter.solve(crew().total(adapter.evidence(part, states)), part))
    return Heads.concatenate(heads).take(torch.argsort(torch.cat(order)))


def _without_outliers(adapter: ClosedFormAdapter, batch: FeatureBatch, states: RowStates) -> FeatureBatch:
    real = batch.kinds == KindType.REAL
    if not bool(real.any() and (adapter.knowledge.kinds == KindType.REAL).any()):
        return batch
    cells = batch.cells
    rows, place = torch.unique(cells.index, return_inverse=True)
    extent = adapter.landmarks.extents(states.activation.index_select(0, rows))[place]
    least = torch.full((len(batch),), LEAST_DEVIATION, dtype=torch.float64)
    return batch.observing(replace(cells, values=tamed(cells.lines, cells.values, real, extent, least)))


def _classified(adapter: ClosedFormAdapter, batch: FeatureBatch, states: RowStates, shots: Tensor) -> Heads:
    """Heads of features of one kind behind a logistic link."""
    own = _classified_by(adapter, batch, states)
    if not isinstance(adapter, CHNBayes) or adapter.blended_with is None:
        return own
    closed = _classified_by(adapter.blended_with, batch, adapter.narrowed(states))
    return blended(own, closed, adapter.share(shots))


def _classified_by(adapter: ClosedFormAdapter, batch: FeatureBatch, states: RowStates) -> Heads:
    """The same by one adapter, which is blended with none."""
    cells, root = batch.cells, adapter.prior.root(adapter.dtype)
    sums = crew().total(adapter.context_sums(batch, states))
    prior_mean = adapter.prior_mean(batch, sums).to(root.dtype)
    rows = padded_rows(states.activation, cells).to(root.dtype)
    values = padded(cells.values.to(root.dtype), cells)
    counted, flat = adapter.trusted(batch, states, root.dtype)
    mean, covariance = classify(
        rows, values, padded(counted, cells), padded(flat, cells), prior_mean, root, crew().total
    )
    return adapter.heads_of(mean, covariance, batch.kinds)
