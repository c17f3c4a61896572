"""The prior of a head given its feature's metadata, shared by the closed-form adapters."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headstart.adapters.empirical import empirical_noise, empirical_prior
from headstart.core.batch import FeatureBatch
from headstart.core.description import Description, bent
from headstart.core.knowledge import Knowledge
from headstart.table.kinds import KindType


class HeadPrior(nn.Module):
    """θ ~ N(description·base, root·rootᵀ), and the usual noise of an observation by kind.

    A head has ``size`` numbers: one weight per activation of the backbone, one per learned activation
    (``learned``, after those), and the bias. The regression on metadata is honest: each group of columns
    has a strength chosen by leave-one-out, "not at all" included, and a known feature that is treated as
    new gets the mean that the *other* features predict.
    """

    def __init__(self, knowledge: Knowledge, learned: int = 0) -> None:
        super().__init__()
        metadata = knowledge.metadata
        self.learned = learned
        self.size = knowledge.states.activation.shape[1] + learned + 1
        # Where a table mixes kinds, the kind of a feature says as much as any metadata.
        self.tells_kind = len(torch.unique(knowledge.kinds)) > 1
        self.bends: Tensor  # a mask of the columns that may matter other than by a straight line
        self.register_buffer("bends", torch.zeros(metadata.shape[1], dtype=torch.bool))
        columns = self.describe(metadata[:0], knowledge.kinds[:0]).shape[1]
        self.base = nn.Parameter(torch.zeros(columns, self.size))
        self.root_diagonal = nn.Parameter(torch.zeros(self.size))  # logarithms
        self.root_lower = nn.Parameter(torch.zeros(self.size, self.size))
        self.log_noise = nn.Parameter(torch.zeros(len(KindType)))
        # By how much the others' prediction of each known feature differs from the fitted one.
        self.corrections: Tensor
        corrections = torch.zeros(len(knowledge.kinds), self.size)
        self.register_buffer("corrections", corrections, persistent=False)

    @torch.no_grad()
    def prepare(self, knowledge: Knowledge) -> None:
        """Start from the heads of known features and the errors of their predictions."""
        heads = (knowledge.new_heads or knowledge.heads).detach()
        description = Description.of(knowledge.metadata, knowledge.widths)
        self.bends.copy_(description.bendable())
        description = description.with_bends(self.bends)
        if self.tells_kind:
            one_hot = nn.functional.one_hot(knowledge.kinds, len(KindType))
            description = description.with_more(one_hot.to(description.numbers.dtype))
        prior = empirical_prior(knowledge, heads, description)
        self.base.copy_(self._widened(torch.cat([prior.matrix, prior.constant[None]])))
        fitted = self.describe(knowledge.metadata, knowledge.kinds) @ self.base
        self.corrections.copy_(self._widened(prior.loo_means) - fitted)
        noise = empirical_noise(knowledge)
        added = torch.zeros(self.size)
        usual = int(knowledge.kinds.mode().values)
        added[self.size - 1 - self.learned : self.size - 1] = 0.5 * noise[usual]
        covariance = self._widened(self._widened(prior.covariance).T)
        root = torch.linalg.cholesky(covariance + torch.diag(added))
        self.root_diagonal.copy_(root.diagonal().log())
        self.root_lower.copy_(root.tril(-1))
        self.log_noise.copy_(noise.log())

    def describe(self, metadata: Tensor, kinds: Tensor) -> Tensor:
        """Metadata, its bends, the kind where a table mixes kinds, and a constant: (features, columns)."""
        parts = [bent(metadata, self.bends)]
        if self.tells_kind:
            parts.append(nn.functional.one_hot(kinds, len(KindType)).to(metadata.dtype))
        return torch.cat([*parts, metadata.new_ones(len(metadata), 1)], dim=1)

    def mean(self, batch: FeatureBatch) -> Tensor:
        """The prior mean of each head: (features, size)."""
        mean = self.describe(batch.metadata, batch.kinds) @ self.base
        return mean if batch.positions is None else mean + self.corrections[batch.positions]

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
