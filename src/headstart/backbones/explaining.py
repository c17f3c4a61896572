"""What each observation of a row adds to its factors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headstart.algebra.symmetric import inverse, unpack
from headstart.backbones.factorisation import Factorisation
from headstart.backbones.rows import Readings
from headstart.core.row_prior import RowBelief
from headstart.table.cells import Cells
from headstart.table.kinds import KindType


@dataclass(frozen=True)
class RowParts:
    """A row's factors as a sum, in double precision."""

    baseline: Tensor  # (latent,): the factors of a row without observations
    choice: Tensor  # (latent,): because of which features the row observed
    metadata: Tensor  # (latent,): because of the row's metadata
    observations: Tensor  # (n, latent): because of each value, in the order of the row's cells

    @property
    def total(self) -> Tensor:
        """The row's factors: (latent,)."""
        return self.baseline + self.choice + self.metadata + self.observations.sum(0)


@torch.no_grad()
def row_parts(
    backbone: Factorisation,
    cells: Cells,
    readings: Readings | None = None,
    known: Cells | None = None,
    belief: RowBelief | None = None,
) -> RowParts:
    """Part the factors of one row (one line of ``cells``) into what its observations contribute.

    ``cells`` points at the heads of ``readings``, by default the backbone's own; ``known`` are those among
    them that the signature reads, ``belief`` what else is known of the row.

    Given the weights of the observations, the posterior mean u solves Λ·u = Λ₀·m + Σ (t·v − E[v·b]·ω), with
    Λ = Λ₀ + Σ ω·E[v·vᵀ], where ω is an observation's weight, t = ω·x its weighted value, and m the prior mean
    that signature and metadata give. For a row without both u is m₀. Subtracting Λ·m₀ on both sides,
    u − m₀ = Λ⁻¹·Λ₀·(m − m₀) + Σ Λ⁻¹·(t·v − ω·(E[v·b] + E[v·vᵀ]·m₀)): an observation contributes by how far
    it lies from what a row without observations would be expected to show.
    """
    readings, known = readings or backbone.readings(), known or cells
    signature = backbone.signature(known)
    weights, values = _weighted(backbone, cells, readings, signature, belief)
    second = unpack(readings.second[cells.index].double(), readings.size)
    heads = readings.heads[cells.index].double()
    prior = inverse(backbone.row_covariance if belief is None else belief.covariance).double()
    precision = prior + (weights[:, None, None] * second[:, :-1, :-1]).sum(0)
    nothing = known.keep(torch.zeros_like(known.index, dtype=torch.bool))
    usual = (backbone.signature(nothing) @ backbone.row_map)[0].double()
    chosen = (signature @ backbone.row_map)[0].double() - usual
    shift = torch.zeros_like(usual) if belief is None else belief.shift[0].double()
    expected = second[:, :-1, -1] + second[:, :-1, :-1] @ usual
    pulls = values[:, None] * heads[:, :-1] - weights[:, None] * expected
    pulls = torch.cat([torch.stack([chosen, shift]) @ prior, pulls])
    solved = torch.linalg.solve(precision, pulls.T).T
    return RowParts(usual, solved[0], solved[1], solved[2:])


def _weighted(
    backbone: Factorisation, cells: Cells, readings: Readings, signature: Tensor, belief: RowBelief | None
) -> tuple[Tensor, Tensor]:
    """Weight, and weight × value, with which each observation entered the last pass: two of (n,)."""
    sums, passes = readings.sums(cells), readings.passes
    last = backbone.posterior_from(cells, readings, sums, signature, None, passes, belief)
    exact = cells.weighted(last.exactness.double() * readings.precision[cells.index].double())
    weights, values = exact, exact * cells.values.double()
    if readings.weighs:
        # What the last pass took follows from the pass before it.
        before = backbone.posterior_from(cells, readings, sums, signature, None, passes - 1, belief)
        own, weighted = readings.weighted(cells, before)
        rated = readings.kinds[cells.index] == KindType.RATING
        weights = torch.where(rated, weights, own.double())
        values = torch.where(rated, values, weighted.double())
    return weights, values
