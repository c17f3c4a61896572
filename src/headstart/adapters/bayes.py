"""The closed-form head: Bayesian regression on the rows' activations, with a learned prior."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor, nn

from headstart.adapters.empirical import empirical_doubt, empirical_noise, empirical_prior
from headstart.adapters.pooling import KINDS
from headstart.adapters.posterior import classify, regress, squeezing, unwhitened
from headstart.adapters.protocol import FeatureBatch, Knowledge, StreamingAdapter
from headstart.backbones.description import described
from headstart.backbones.heads import Heads
from headstart.backbones.padding import blocks, padded
from headstart.backbones.protocol import RowStates, mlp
from headstart.backbones.sparse import segment_sum
from headstart.backbones.symmetric import pack, squares, unpack
from headstart.config import Config
from headstart.table.kinds import BINARY

_MANY = 1000  # features from which networks are trained longer
_WIDEST_NOISE = 3.0  # |log| of a row's noise against the usual


class BayesConfig(Config):
    """Settings of the closed-form head; it has none to tune."""

    name: Literal["bayes"] = "bayes"


class BayesHead(StreamingAdapter):
    """θ ~ N(base·metadata, C) given x_i = θ·[d_i; 1] + noise_i: exact for ratings and reals.

    The prior and the noise, which depends on the row, start from the backbone's own heads and are
    meta-trained through the closed form. Values behind a logistic link get Laplace's approximation.
    """

    name: ClassVar[str] = "bayes"
    config: BayesConfig

    def __init__(self, config: Config, knowledge: Knowledge, extra: int = 0) -> None:
        """``extra`` is how much wider the activation is than the backbone's, for subclasses."""
        super().__init__(config, knowledge)
        self.tells_kind = len(set(knowledge.codes.tolist())) > 1
        self.size = knowledge.states.activation.shape[1] + extra + 1
        base, covariance = empirical_prior(knowledge, self._described(knowledge.metadata, knowledge.codes))
        self.base = nn.Parameter(self._widened(base))
        covariance = self._widened(self._widened(covariance).T)
        noise = empirical_noise(knowledge)
        added = torch.zeros(self.size)
        added[self.size - 1 - extra : self.size - 1] = 0.5 * noise[int(knowledge.codes.mode().values)]
        root = torch.linalg.cholesky(covariance + torch.diag(added))
        self.root_diagonal = nn.Parameter(root.diagonal().log())
        self.root_lower = nn.Parameter(root.tril(-1))
        self.log_noise = nn.Parameter(noise.log())  # by kind
        self.log_trust = nn.Parameter(torch.ones(()))  # of a squashed rating, against a coin's toss
        # What an uncertain row adds: the variance of its code, weighted by the squares of usual weights.
        self.doubt = nn.Parameter(empirical_doubt(knowledge) / noise[int(knowledge.codes.mode().values)])
        self.row_noise = mlp([knowledge.states.code.shape[1] + 1, 32, 1])
        last = cast(nn.Linear, self.row_noise[-1])
        nn.init.zeros_(last.bias)
        with torch.no_grad():
            last.weight.mul_(0.1)

    def _widened(self, matrix: Tensor) -> Tensor:
        """Put zeros for further activations before the last column, the bias."""
        more = matrix.new_zeros(len(matrix), self.size - matrix.shape[1])
        return torch.cat([matrix[:, :-1], more, matrix[:, -1:]], dim=1)

    @property
    def meta_defaults(self) -> dict[str, Any]:
        """Few epochs at a high rate: it begins close to where it ends."""
        features = len(self.knowledge.heads)
        many = features >= _MANY
        return {
            "epochs": 30 if many else 15,
            "batch_size": max(48, features // 70),  # so an epoch has about 70 steps, however many there are
            "learning_rate": 2e-3,
            "schedule": "cosine",
            "weight_decay": 0.0,
            "decoupled_decay": 0.05 if many else 0.1,
            "most_gradient": 1.0,
            # Of many features the last state is as good as the best validated, and less of an accident.
            "patience": None if many else 15,
            "shots": "log",
            "most_shots": 128,
            "most_targets": 256,
            "weighting": 0.5,
        }

    # -- what heads read --------------------------------------------------------------------------

    def refine(self, states: RowStates) -> RowStates:
        """Say how noisy each row is, from how much and how surely it is known."""
        known = torch.cat([states.code, states.code_std.mean(1, keepdim=True)], dim=1)
        noise = self.row_noise(known)[:, 0].clamp(-_WIDEST_NOISE, _WIDEST_NOISE).exp()
        noise = noise * (1 + states.code_std**2 @ self.doubt.clamp(min=0))
        return RowStates(states.code, states.code_std, states.activation, noise)

    # -- heads from contexts ----------------------------------------------------------------------

    def adapt(self, batch: FeatureBatch, states: RowStates) -> Heads:
        """Give each feature the posterior of its head, features of similar shots together."""
        prior = precise(self.prior_mean(batch, self.context_sums(batch, states)))
        root, none = self.root(), batch.codes[:0]
        found, order = [self._heads(prior[:0], root.expand(0, -1, -1), none)], [none]  # a batch may be empty
        apart = self.knowledge.likelihood.squashes(batch.codes) + 2 * (batch.codes == BINARY)
        for group in blocks(batch.shots, self.size, apart):
            mean, spread = self._posterior(batch.take(group), states, prior[group], root)
            found.append(self._heads(mean, spread, batch.codes[group]))
            order.append(group)
        back = torch.argsort(torch.cat(order))
        return Heads.concatenate(found).take(back)

    def _posterior(
        self, batch: FeatureBatch, states: RowStates, prior: Tensor, root: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Condition the prior on contexts of one kind of link."""
        cells, code = batch.cells, batch.codes[:1]
        known = precise(states.activation.index_select(0, cells.index))
        rows = padded(torch.cat([known, known.new_ones(len(known), 1)], dim=1), cells)
        values = padded(cells.values.to(known.dtype), cells)
        noise = self._noise(states, batch).to(known.dtype)
        if not bool(self.knowledge.likelihood.squashes(code)):
            return regress(rows, values, padded(1 / noise, cells), prior, root)
        if int(code) == BINARY:
            there, squeeze = padded(torch.ones_like(noise), cells), padded(squeezing(noise), cells)
            return classify(rows, values, there, squeeze, prior, root)
        # A rating behind the logistic link says more than a coin's toss: how much more is learned.
        trust = padded(self.log_trust.exp() / noise, cells)
        return classify(rows, values, trust, torch.ones_like(trust), prior, root)

    def _heads(self, mean: Tensor, spread: Tensor, codes: Tensor) -> Heads:
        noise = self.log_noise.exp()[codes]
        kept = pack(spread).to(noise.dtype)
        mean = mean.to(noise.dtype)
        return Heads(mean[:, :-1], mean[:, -1], kept, noise)

    # -- the prior --------------------------------------------------------------------------------

    def root(self) -> Tensor:
        """The lower triangular root of a head's prior covariance: (size, size)."""
        return precise(self.root_lower).tril(-1) + torch.diag(precise(self.root_diagonal).exp())

    def prior_mean(self, batch: FeatureBatch, sums: Tensor) -> Tensor:
        """The prior mean of each head, from metadata: (features, size)."""
        del sums  # there is no hypernetwork here to read them
        return self._described(batch.metadata, batch.codes) @ self.base

    def context_sums(self, batch: FeatureBatch, states: RowStates) -> Tensor:
        """What the prior mean reads of a context, as a sum over it: (features, 0) here."""
        return states.code.new_zeros(len(batch), 0)

    def _described(self, metadata: Tensor, codes: Tensor) -> Tensor:
        """Metadata, the kind where a table mixes them, and a constant."""
        kinds = [nn.functional.one_hot(codes, KINDS).to(metadata.dtype)] if self.tells_kind else []
        return described(metadata, *kinds)

    def _noise(self, states: RowStates, batch: FeatureBatch) -> Tensor:
        """The variance of each observation of the contexts: (n,)."""
        usual = self.log_noise.exp()[batch.codes][batch.cells.lines]
        return usual if states.noise is None else usual * states.noise.index_select(0, batch.cells.index)

    # -- heads from sufficient statistics ---------------------------------------------------------

    def streams(self, codes: Tensor) -> Tensor:
        """Kinds of an identity link: the logistic one has no sufficient statistics."""
        return ~self.knowledge.likelihood.squashes(codes)

    def evidence(self, batch: FeatureBatch, states: RowStates) -> Tensor:
        """Σ w·d·dᵀ (packed), Σ w·x·d and the context sums of each feature, in double precision."""
        cells = batch.cells
        weights = 1 / self._noise(states, batch).double()
        known = states.activation.index_select(0, cells.index).double()
        rows = torch.cat([known, known.new_ones(len(known), 1)], dim=1)
        pulls = rows * (weights * cells.values.double())[:, None]
        each = torch.cat([squares(rows) * weights[:, None], pulls], dim=1)
        return torch.cat([segment_sum(each, cells.indptr), self.context_sums(batch, states).double()], dim=1)

    def settle(self, evidence: Tensor, batch: FeatureBatch) -> Heads:
        """The heads that these sums imply; the batch only tells metadata and kinds."""
        triangle = self.size * (self.size + 1) // 2
        precision, pull, sums = evidence.tensor_split([triangle, triangle + self.size], dim=1)
        prior = precise(self.prior_mean(batch, sums))
        root, total = self.root(), unpack(precision, self.size)
        rest = pull - (total @ prior[:, :, None])[:, :, 0]
        mean, spread = unwhitened(root.T @ total @ root, rest @ root, prior, root)
        return self._heads(mean, spread, batch.codes)


def precise(numbers: Tensor) -> Tensor:
    """Double precision, but for training: so that neither order nor batching of observations shows."""
    return numbers if torch.is_grad_enabled() else numbers.double()
