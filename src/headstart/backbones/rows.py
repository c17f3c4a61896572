"""What a factorisation believes of rows, and what their observations add up to."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from headstart.algebra.symmetric import with_one

# The noise of a row or feature is believed as if so many observations had shown the usual one.
NOISE_SHOTS = 5.0


@dataclass(frozen=True)
class RowPosterior:
    """Gaussian posteriors of rows' factors, and how exact a row's observations are."""

    mean: Tensor  # (rows, latent)
    covariance: Tensor  # (rows, latent, latent)
    exactness: Tensor  # (rows,): precision of a row's observations relative to the usual one

    def moments(self) -> Tensor:
        """E[(u, 1)(u, 1)ᵀ] of each row: (rows, latent + 1, latent + 1)."""
        mean = with_one(self.mean)
        moments = mean[:, :, None] * mean[:, None, :]
        moments[:, :-1, :-1] += self.covariance
        return moments


@dataclass(frozen=True)
class RowSums:
    """Sums over each row's observations of one kind, weighted by that kind's usual precision."""

    kind: int
    counts: Tensor  # (rows,), not weighted
    squares: Tensor  # (rows,): of values
    linear: Tensor  # (rows, latent + 1): value × head
    total: Tensor  # (rows, latent + 1, latent + 1): second moments of heads

    def squared_errors(self, rows: RowPosterior, moments: Tensor) -> Tensor:
        """The expected squared errors of the row's own predictions: (rows,)."""
        twice = 2 * (self.linear * with_one(rows.mean)).sum(1)
        return self.squares - twice + (self.total * moments).sum((1, 2))
