"""The prior of a head given its feature's metadata, shared by the closed-form adapters."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headstart.adapters.empirical import empirical_noise, empirical_prior, misleading_share
from headstart.algebra.honest import HonestRegression
from headstart.algebra.symmetric import positive
from headstart.core.batch import FeatureBatch
from headstart.core.description import Description, bent
from headstart.core.initial import initial
from headstart.core.knowledge import Knowledge
from headstart.table.kinds import KindType


class HeadPrior(nn.Module):
    """θ ~ N(description·base, root·rootᵀ), and the usual noise of an observation by kind.

    A head has ``size`` numbers: one weight per activation of the backbone, one per learned activation
    (``learned``, after those), and the bias. The regression on metadata is honest: each group of columns
    has a strength chosen by leave-one-out, "not at all" included, and a known feature gets the mean that
    the *other* features predict. In the regression for new features, known ones count by their number of
    observations: errors are made on observations. Of a known feature it is also known how much observed
    it is, which says something of it where rows choose what they observe.
    """

    def __init__(self, knowledge: Knowledge, learned: int = 0) -> None:
        super().__init__()
        metadata = knowledge.metadata
        self.learned = learned
        self.size = knowledge.states.activation.shape[1] + learned + 1
        # Where a table mixes kinds, the kind of a feature says as much as any metadata.
        self.tells_kind = bool((knowledge.kinds != knowledge.kinds[:1]).any())
        self.bends: Tensor  # a mask of the columns that may matter other than by a straight line
        self.register_buffer("bends", metadata.new_zeros(metadata.shape[1], dtype=torch.bool))
        columns = self.describe(metadata[:0], knowledge.kinds[:0]).shape[1]
        self.base = nn.Parameter(torch.zeros(columns, self.size))
        self.root_diagonal = nn.Parameter(torch.zeros(self.size))  # logarithms
        self.root_lower = nn.Parameter(torch.zeros(self.size, self.size))
        self.log_noise = nn.Parameter(torch.zeros(len(KindType)))
        # The prior without metadata, which the context may prefer where metadata misleads.
        self.plain_mean: Tensor
        self.register_buffer("plain_mean", torch.zeros(self.size))
        self.plain_root: Tensor
        self.register_buffer("plain_root", torch.eye(self.size))
        self.misleading: Tensor  # share of features, before any is observed, whose metadata misleads
        self.register_buffer("misleading", torch.tensor(0.25, dtype=torch.float64))
        # What the other features predict of each known one: as metadata says, and without it.
        self.known_means: Tensor
        sizes = len(knowledge.kinds), 2, self.size
        self.register_buffer("known_means", initial(lambda: torch.zeros(sizes), *sizes))
        self.gains: Tensor  # the share of the error of predicted heads that each metadata column removes
        self.register_buffer("gains", torch.zeros(len(knowledge.widths)))
        # By how much the others' prediction of each known feature differs from the fitted one. Only
        # training asks for it, of a prior that was prepared.
        self.corrections: Tensor
        self.register_buffer("corrections", torch.zeros(0, self.size), persistent=False)

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
        counts = knowledge.table_shots
        prior = empirical_prior(knowledge, heads, description, counts)
        self.base.copy_(self._widened(torch.cat([prior.matrix, prior.constant[None]])))
        fitted = self.describe(knowledge.metadata, knowledge.kinds) @ self.base
        self.corrections = (self._widened(prior.loo_means) - fitted).to(fitted.dtype)
        self.gains.copy_(_column_gains(prior.regression, knowledge.widths, self.bends))
        noise = empirical_noise(knowledge)
        usual = float(noise[int(knowledge.kinds.mode().values)])
        root = self._root_of(prior.covariance, usual)
        self.root_diagonal.copy_(root.diagonal().log())
        self.root_lower.copy_(root.tril(-1))
        self.log_noise.copy_(noise.log())
        none = Description(knowledge.metadata[:, :0], [])
        plain = empirical_prior(knowledge, heads, none, counts)
        for part, known in enumerate((description, none)):
            popular = known.with_more(counts.log1p()[:, None])
            self.known_means[:, part] = self._widened(empirical_prior(knowledge, heads, popular).loo_means)
        self.misleading.copy_(misleading_share(heads, prior, plain))
        self.plain_mean.copy_(self._widened(plain.constant[None])[0])
        self.plain_root.copy_(self._root_of(plain.covariance, usual))

    @property
    def uses_metadata(self) -> bool:
        """Whether any metadata column, or the kind, says something of heads."""
        return bool((self.base[:-1] != 0).any())

    def describe(self, metadata: Tensor, kinds: Tensor) -> Tensor:
        """Metadata, its bends, the kind where a table mixes kinds, and a constant: (features, columns)."""
        parts = [bent(metadata, self.bends)]
        if self.tells_kind:
            parts.append(nn.functional.one_hot(kinds, len(KindType)).to(metadata.dtype))
        return torch.cat([*parts, metadata.new_ones(len(metadata), 1)], dim=1)

    def mean(self, batch: FeatureBatch) -> Tensor:
        """The prior mean of each head: (features, size)."""
        mean = self.describe(batch.metadata, batch.kinds) @ self.base
        if batch.positions is not None:
            mean = mean + self.corrections[batch.positions]
        return self._as_known(mean, batch, 0)

    def parts(self, mean: Tensor, batch: FeatureBatch) -> tuple[Tensor, Tensor, Tensor]:
        """The prior with metadata, of this mean (features, size), and the one without: see ``mixed``.

        Returned are means (features, 2, size), roots of covariances (2, size, size) and shares (2,).
        """
        means = torch.stack([mean.double(), self.mean_without_metadata(batch).double()], dim=1)
        roots = torch.stack([self.root(torch.float64), self.plain_root.double()])
        return means, roots, torch.stack([1 - self.misleading, self.misleading])

    def mean_without_metadata(self, batch: FeatureBatch) -> Tensor:
        """The prior mean of each head if its metadata says nothing: (features, size)."""
        return self._as_known(self.plain_mean.expand(len(batch), -1), batch, 1)

    def _as_known(self, mean: Tensor, batch: FeatureBatch, part: int) -> Tensor:
        if batch.known is None:
            return mean
        known = self.known_means[batch.known.clamp(min=0), part].to(mean.dtype)
        return torch.where((batch.known >= 0)[:, None], known, mean)

    def root(self, dtype: torch.dtype) -> Tensor:
        """The lower triangular root of a head's prior covariance: (size, size)."""
        return self.root_lower.to(dtype).tril(-1) + torch.diag(self.root_diagonal.to(dtype).exp())

    def noise(self, kinds: Tensor) -> Tensor:
        """The usual variance of an observation of these kinds: like ``kinds``."""
        return self.log_noise.exp()[kinds]

    def _root_of(self, covariance: Tensor, noise: float) -> Tensor:
        """The root of a covariance of heads, with variances for the learned activations: (size, size)."""
        added = torch.zeros(self.size)
        added[self.size - 1 - self.learned : self.size - 1] = 0.5 * noise
        widened = self._widened(self._widened(covariance).T)
        root: Tensor = torch.linalg.cholesky(positive(widened.double() + torch.diag(added)))
        return root.to(covariance.dtype)

    def _widened(self, matrix: Tensor) -> Tensor:
        """Put zeros for the learned activations before the last column, the bias."""
        more = matrix.new_zeros(len(matrix), self.size - matrix.shape[1])
        return torch.cat([matrix[:, :-1], more, matrix[:, -1:]], dim=1)


def _column_gains(regression: HonestRegression, widths: tuple[int, ...], bends: Tensor) -> Tensor:
    """What each metadata column contributes, its bends included: (metadata columns,).

    Where several columns share one strength, each is given an equal part of what they remove.
    """
    owner = torch.repeat_interleave(torch.arange(len(widths)), torch.tensor(widths, dtype=torch.int64))
    columns = [*range(len(widths)), *owner[bends].tolist()]  # of each group that was described
    gains = torch.zeros(len(widths))
    for members, gain, strength in zip(
        regression.members, regression.gains.tolist(), regression.strengths.tolist(), strict=True
    ):
        for member in members if strength > 0 else []:
            if member < len(columns):  # the last group may be that of kinds
                gains[columns[member]] += gain / len(members)
    return gains
