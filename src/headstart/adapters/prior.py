"""The prior of a head given its feature's metadata, shared by the closed-form adapters."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headstart.adapters.empirical import empirical_noise, empirical_prior
from headstart.core.description import described
from headstart.core.knowledge import Knowledge
from headstart.table.kinds import KindType


class HeadPrior(nn.Module):
    """θ ~ N(description·base, root·rootᵀ), and the usual noise of an observation by kind.

    A head has ``size`` numbers: one weight per activation of the backbone, one per learned activation
    (``learned``, after those), and the bias.
    """

    def __init__(self, knowledge: Knowledge, learned: int = 0) -> None:
        super().__init__()
        width = knowledge.states.activation.shape[1]
        self.learned = learned
        self.size = width + learned + 1
        # Where a table mixes kinds, the kind of a feature says as much as any metadata.
        self.tells_kind = len(torch.unique(knowledge.kinds)) > 1
        columns = self.describe(knowledge.metadata[:0], knowledge.kinds[:0]).shape[1]
        self.base = nn.Parameter(torch.zeros(columns, self.size))
        self.root_diagonal = nn.Parameter(torch.zeros(self.size))  # logarithms
        self.root_lower = nn.Parameter(torch.zeros(self.size, self.size))
        self.log_noise = nn.Parameter(torch.zeros(len(KindType)))

    @torch.no_grad()
    def prepare(self, knowledge: Knowledge) -> None:
        """Start from the backbone's own heads and their errors."""
        base, covariance = empirical_prior(knowledge, self.describe(knowledge.metadata, knowledge.kinds))
        self.base.copy_(self._widened(base))
        covariance = self._widened(self._widened(covariance).T)
        noise = empirical_noise(knowledge)
        added = torch.zeros(self.size)
        usual = int(knowledge.kinds.mode().values)
        added[self.size - 1 - self.learned : self.size - 1] = 0.5 * noise[usual]
        root = torch.linalg.cholesky(covariance + torch.diag(added))
        self.root_diagonal.copy_(root.diagonal().log())
        self.root_lower.copy_(root.tril(-1))
        self.log_noise.copy_(noise.log())

    def describe(self, metadata: Tensor, kinds: Tensor) -> Tensor:
        """Metadata, the kind where a table mixes kinds, and a constant: (features, columns)."""
        one_hot = [nn.functional.one_hot(kinds, len(KindType)).to(metadata.dtype)] if self.tells_kind else []
        return described(metadata, *one_hot)

    def mean(self, metadata: Tensor, kinds: Tensor) -> Tensor:
        """The prior mean of each head: (features, size)."""
        return self.describe(metadata, kinds) @ self.base

    def root(self, dtype: torch.dtype) -> Tensor:
        """The lower triangular root of a head's prior covariance: (size, size)."""
        return self.root_lower.to(dtype).tril(-1) + torch.diag(self.root_diagonal.to(dtype).exp())

    def noise(self, kinds: Tensor) -> Tensor:
        """The usual variance of an observation of these kinds: like ``kinds``."""
        return self.log_noise.exp()[kinds]

    def _widened(self, matrix: Tensor) -> Tensor:
        """Put zeros for the learned activations before the last column, the bias."""
        more = matrix.new_zeros(len(matrix), self.size - matrix.shape[1])
        return torch.cat([matrix[:, :-1], more, matrix[:, -1:]], dim=1)
