"""A prior in which the head of a new feature resembles the head of one of the known features.

The Gaussian prior of a head describes the spread of all heads. Often features form groups: symptoms of one
cause, items of one scale. Then the density of heads has peaks, and a few observations tell which peak a new
feature belongs to. ``KnownHeads`` is a kernel density estimate with a peak at the head w_j of each of J known
features:

    p(θ) = (1 − a)·N(θ; m, C) + a·Σ_j π_j·N(θ; w_j, τ·C₀)

Here N(m, C) is the Gaussian prior given metadata, C₀ the covariance of heads without metadata. Metadata say
which peaks are likely: π_j is proportional to N(w_j; m, C) / N(w_j; m₀, C₀), and with the probability that
metadata are uninformative it is 1 / J. The posterior is a mixture in closed form. All its components have one
factorisation, because they have one covariance.

Heads are mixtures of the posteriors under the Gaussian prior and under this one. The shares depend on the
number of shots; the judge finds them on held-out features.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from headstart.adapters.head_prior import HeadPrior
from headstart.core.types import VALIDATION_SHOTS, Heads, Knowledge, interpolate_at_shots
from headstart.linalg.array_ops import Numbers, logarithm, namespace, softmax, solve_lower
from headstart.linalg.gaussian import ContextSums, Posterior, condition_components, mix, mix_moments, temper

MOST_KNOWN_HEADS = 256  # the known features with the most observations

_COMPONENT_SHARE = 0.75  # a: the prior probability that a new head resembles a known one

_COMPONENT_SPREAD = 0.15  # τ

_NEVER = -500.0  # the logarithm of a probability that is 0

_TEMPER = 1.0  # shots at which the exponent of the evidence is one half


class KnownHeads(nn.Module):
    """The heads of known features as components of a prior, and their shares by shots.

    Parameters
    ----------
    features : int
        The number of known features.
    size : int
        The number of parameters of a head.
    """

    def __init__(self, features: int, size: int) -> None:
        super().__init__()
        self.heads: Tensor  # (J, size)
        self.register_buffer("heads", torch.zeros(min(features, MOST_KNOWN_HEADS), size))
        self.positions: Tensor  # (J,): of their features among the known ones
        self.register_buffer("positions", torch.zeros(len(self.heads), dtype=torch.int64))
        self.shares: Tensor  # of the posterior under this prior, at VALIDATION_SHOTS
        self.register_buffer("shares", torch.zeros(len(VALIDATION_SHOTS)))

    @torch.no_grad()
    def prepare(self, knowledge: Knowledge, heads: Heads) -> None:
        """Choose the ``heads`` of the most observed features of ``knowledge``, cross-fitted ones first."""
        counts = knowledge.count_shots().double()
        if knowledge.cross_fitted is not None:
            counts[knowledge.cross_fitted] += counts.max() + 1
        order = torch.argsort(counts, descending=True, stable=True)
        chosen = order[: len(self.heads)].sort().values
        self.heads.copy_(heads.take(chosen).stacked)
        self.positions.copy_(chosen)

    @property
    def has_shares(self) -> bool:
        """Whether the share is positive at any number of shots."""
        return bool(self.shares.any())


class KnownHeadMixture(NamedTuple):
    """The mixture prior in double precision: tensors, or arrays of numpy."""

    heads: Numbers  # (J, size)
    positions: Numbers  # (J,): of their features among the known ones
    root: Numbers  # (size, size): of the covariance τ·C₀ of a component
    inverse_root: Numbers  # (size, size): of C, transposed
    white: Numbers  # (J, size): heads in coordinates in which C is the identity
    log_ratio: Numbers  # (J,): −log N(w_j; m₀, C₀), up to a constant
    p_informative: float  # the probability that metadata are informative; 0 without metadata
    shares: Numbers  # of the posterior under this prior, at VALIDATION_SHOTS

    @classmethod
    @torch.no_grad()
    def of(cls, known: KnownHeads, prior: HeadPrior) -> KnownHeadMixture:
        """Combine the known heads with the Gaussian prior."""
        heads, plain_root, root = known.heads.double(), prior.plain_root.double(), prior.root(torch.float64)
        identity = torch.eye(len(root), dtype=root.dtype, device=root.device)
        inverse_root = solve_lower(root, identity).T
        deviation = solve_lower(plain_root, (heads - prior.plain_mean.double()).T)
        informative = 1 - float(prior.p_uninformative) if prior.uses_metadata else 0.0
        return cls(
            heads,
            known.positions,
            _COMPONENT_SPREAD**0.5 * plain_root,
            inverse_root,
            heads @ inverse_root,
            0.5 * (deviation**2).sum(0),
            informative,
            known.shares.double(),
        )

    def numpy(self) -> KnownHeadMixture:
        """Return the same in numpy."""
        parts: list[Any] = [part.cpu().numpy() if isinstance(part, Tensor) else part for part in self]
        return KnownHeadMixture(*parts)

    def component_probabilities(self, prior_mean: Numbers, own: Tensor | None = None) -> Numbers:
        """Return π of features with the Gaussian prior mean ``prior_mean`` (…, size): (…, J).

        ``own`` is as in ``condition``.
        """
        if self.p_informative:
            deviation = self.white - (prior_mean @ self.inverse_root)[..., None, :]
            ratio = self.log_ratio - 0.5 * (deviation**2).sum(-1)
        else:
            ratio = namespace(prior_mean).zeros_like(prior_mean[..., :1] @ self.heads[:, :1].T)
        uniform = 0 * ratio
        if own is not None:
            is_own = own[:, None] == self.positions
            ratio, uniform = torch.where(is_own, _NEVER, ratio), torch.where(is_own, _NEVER, uniform)
        return self.p_informative * softmax(ratio) + (1 - self.p_informative) * softmax(uniform)

    def share(self, shots: Numbers) -> Numbers:
        """Return the share of the posterior under this prior after ``shots`` (…): (…)."""
        share: Numbers = interpolate_at_shots(self.shares, shots)
        return share

    def condition(
        self,
        sums: ContextSums,
        prior_mean: Numbers,
        gaussian: Posterior,
        prior_shares: Numbers | None,
        own: Tensor | None = None,
    ) -> tuple[Numbers, Numbers]:
        """Return mean (…, size) and covariance (…, size, size) of the heads of new features.

        Parameters
        ----------
        sums : ContextSums
            The sums over the contexts.
        prior_mean : array
            The means of the Gaussian prior given metadata: (…, size).
        gaussian : Posterior
            The posteriors under the P Gaussian priors.
        prior_shares : array or None
            The prior probabilities of the Gaussian priors: (P,); None if P = 1.
        own : Tensor or None
            The positions of features that are known but treated as new, in training: (…,). They do not
            resemble themselves.
        """
        xp, (mean, covariance) = namespace(prior_mean), mix(gaussian, prior_shares, sums.counts)
        components = condition_components(sums, self.heads, self.root)
        probabilities = _COMPONENT_SHARE * self.component_probabilities(prior_mean, own)
        others = (1 - _COMPONENT_SHARE) * (1.0 if prior_shares is None else prior_shares)
        exponent = temper(sums.counts, _TEMPER)[..., None]
        scores = [
            logarithm(probabilities) + exponent * components.log_evidence,
            xp.log(others + 0 * gaussian.log_evidence) + exponent * gaussian.log_evidence,
        ]
        weights = softmax(xp.concatenate(scores, -1))
        share = self.share(sums.counts)[..., None]
        of_components = share * weights[..., : len(self.heads)]
        of_gaussian = 1 - of_components.sum(-1)[..., None]
        within = components.gain.mT @ components.gain
        within = covariance + (1 - of_gaussian)[..., None] * (within - covariance)
        means = xp.concatenate([components.means, mean[..., None, :]], -2)
        return mix_moments(xp.concatenate([of_components, of_gaussian], -1), means, within)
