"""What each observation of a row adds to its factors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headstart.algebra.symmetric import inverse, unpack
from headstart.backbones.factorisation import Factorisation
from headstart.table.cells import Cells
from headstart.table.kinds import KindType


@dataclass(frozen=True)
class RowParts:
    """A row's factors as a sum: ``baseline + choice + observations.sum(0)``, in double precision."""

    baseline: Tensor  # (latent,): the factors of a row without observations
    choice: Tensor  # (latent,): because of which features the row observed
    observations: Tensor  # (n, latent): because of each value, in the order of the row's cells

    @property
    def total(self) -> Tensor:
        """The row's factors: (latent,)."""
        return self.baseline + self.choice + self.observations.sum(0)


@torch.no_grad()
def row_parts(backbone: Factorisation, cells: Cells) -> RowParts:
    """Part the factors of one row (one line of ``cells``) into what its observations contribute.

    Given the weights of the observations, the posterior mean u solves Λ·u = Λ₀·m + Σ (t·v − E[v·b]·ω), with
    Λ = Λ₀ + Σ ω·E[v·vᵀ], where ω is an observation's weight, t = ω·x its weighted value, and m the prior mean
    that the signature gives. For a row without observations u is m₀. Subtracting Λ·m₀ on both sides,
    u − m₀ = Λ⁻¹·Λ₀·(m − m₀) + Σ Λ⁻¹·(t·v − ω·(E[v·b] + E[v·vᵀ]·m₀)): an observation contributes by how far
    it lies from what a row without observations would be expected to show.
    """
    weights, values = _weighted(backbone, cells)
    second = unpack(backbone.second_moments()[cells.index].double(), backbone.latent + 1)
    heads = backbone.stacked_heads()[cells.index].double()
    prior = inverse(backbone.row_covariance).double()
    precision = prior + (weights[:, None, None] * second[:, :-1, :-1]).sum(0)
    nothing = cells.keep(torch.zeros_like(cells.index, dtype=torch.bool))
    usual = (backbone.signature(nothing) @ backbone.row_map)[0].double()
    own = (backbone.signature(cells) @ backbone.row_map)[0].double()
    expected = second[:, :-1, -1] + second[:, :-1, :-1] @ usual
    pulls = values[:, None] * heads[:, :-1] - weights[:, None] * expected
    solved = torch.linalg.solve(precision, torch.cat([((own - usual) @ prior)[None], pulls]).T).T
    return RowParts(usual, solved[0], solved[1:])


def _weighted(backbone: Factorisation, cells: Cells) -> tuple[Tensor, Tensor]:
    """Weight, and weight × value, with which each observation entered the last pass: two of (n,)."""
    last = backbone.row_posterior(cells)
    kinds = backbone.kinds[cells.index]
    exact = last.exactness.double() * (backbone.precision[kinds] * backbone.exactness[cells.index]).double()
    weights, values = exact, exact * cells.values.double()
    binary = kinds == KindType.BINARY
    if bool(binary.any()):
        # What the last pass took follows from the pass before it.
        before = backbone.row_posterior(cells, passes=backbone.passes - 1)
        bound, signs = backbone.logistic_bound(cells, before)
        weights = torch.where(binary, bound.double(), weights)
        values = torch.where(binary, signs.double(), values)
    return weights, values
