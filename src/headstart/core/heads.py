"""Heads: the features' own parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.algebra.symmetric import diagonals, unpack


class OneHead(NamedTuple):
    """One head, in numpy: the parts of ``Heads`` without their first dimension."""

    weight: NDArray[Any]
    bias: float
    covariance: NDArray[Any]
    noise: float


@dataclass(frozen=True)
class Heads:
    """A batch of heads θ = (w, b): the prediction for a row is its kind's link of w·d + b.

    Where an adapter knows how sure it is of a head, ``covariance`` is that of (w, b), its lower
    triangle packed (``algebra.symmetric``), and ``noise`` the variance of the feature's observations
    at a row of usual noise.
    """

    weight: Tensor  # (features, width)
    bias: Tensor  # (features,)
    covariance: Tensor | None = None  # (features, (width + 1)·(width + 2)/2)
    noise: Tensor | None = None  # (features,)

    def __len__(self) -> int:
        return len(self.bias)

    def take(self, features: Tensor | slice) -> Heads:
        """Return the heads at these positions; those of a slice are not copied."""
        if isinstance(features, Tensor) and features.dtype == torch.int64:
            return self._each(lambda part: part.index_select(0, features))  # faster than an index
        return self._each(lambda part: part[features])

    def detach(self) -> Heads:
        """Return the same numbers, cut off from any gradient."""
        return self._each(lambda part: part.detach())

    def to(self, dtype: torch.dtype) -> Heads:
        """Return the heads in this precision."""
        return self._each(lambda part: part.to(dtype))

    def logits(self, activation: Tensor) -> Tensor:
        """Apply every head to every row's decoder activation: (rows, features)."""
        return torch.addmm(self.bias, activation, self.weight.T)

    @property
    def packed_covariance(self) -> Tensor:
        """The covariances, zero where heads have none: (features, packed)."""
        if self.covariance is not None:
            return self.covariance
        size = self.weight.shape[1] + 1
        return self.weight.new_zeros(len(self), size * (size + 1) // 2)

    def covariances(self, size: int) -> Tensor:
        """The covariances as matrices: (features, size, size)."""
        return unpack(self.packed_covariance, size)

    def mean_squares(self) -> Tensor:
        """E[w²]: by what an uncertain activation enters the variance of the output: (features, width)."""
        return self.weight**2 + diagonals(self.packed_covariance, self.weight.shape[1] + 1)[:, :-1]

    def plain(self, width: int) -> Heads:
        """Return only w and b, with zeros for activations past those the heads were made for."""
        more = self.weight.new_zeros(len(self), width - self.weight.shape[1])
        return Heads(torch.cat([self.weight, more], dim=1), self.bias)

    def parts(self) -> list[Tensor]:
        """All that there is of the heads, as tensors of one entry a feature."""
        every = (self.weight, self.bias, self.covariance, self.noise)
        return [part for part in every if part is not None]

    def replaced(self, features: Tensor, heads: Heads) -> Heads:
        """Return the heads with others, of the same parts, at these positions."""
        after = self._each(torch.clone)
        for own, given in zip(after.parts(), heads.parts(), strict=True):
            own[features] = given.to(own.dtype)
        return after

    def grown(self, more: int) -> Heads:
        """Return the heads with so many empty ones after them."""
        if more == 0:  # nothing needs to be copied
            return self
        return self._each(lambda part: torch.cat([part, part.new_zeros(more, *part.shape[1:])]))

    def _each(self, change) -> Heads:  # type: ignore[no-untyped-def]
        covariance, noise = (None if part is None else change(part) for part in (self.covariance, self.noise))
        return Heads(change(self.weight), change(self.bias), covariance, noise)

    @classmethod
    def concatenate(cls, parts: list[Heads]) -> Heads:
        """Join batches of heads into one; what only some of them know is dropped."""
        covariances = [part.covariance for part in parts if part.covariance is not None]
        noises = [part.noise for part in parts if part.noise is not None]
        return cls(
            torch.cat([part.weight for part in parts]),
            torch.cat([part.bias for part in parts]),
            torch.cat(covariances) if len(covariances) == len(parts) else None,
            torch.cat(noises) if len(noises) == len(parts) else None,
        )
