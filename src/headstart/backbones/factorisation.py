"""Variational Bayesian matrix factorisation: a row's state is a closed form of its observations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal, Self

import torch
from pydantic import Field
from torch import Tensor, nn

from headstart.algebra.regression import popularity_weights, weighted_ridge
from headstart.algebra.sparse import bag, products_at, segment_sum
from headstart.algebra.symmetric import pack, solved, squares, triangle, unpack
from headstart.backbones.protocol import BackboneConfig, SweptBackbone
from headstart.backbones.registry import register_backbone
from headstart.backbones.rows import RowPosterior, RowSums, with_one
from headstart.backbones.signature import Signature
from headstart.core.description import described
from headstart.core.heads import Heads
from headstart.core.likelihood import LikelihoodConfig
from headstart.core.states import RowStates
from headstart.table.cells import Cells
from headstart.table.kinds import KindType

_NOISE_SHOTS = 5.0  # a row's own noise is believed as if this many observations had shown the usual one
_PASSES, _BINARY_PASSES = 3, 5  # of the fixed point between a row's factors and its observations' weights
_LARGE = 20_000  # features from which a smaller factorisation is the default, for memory


class FactorisationConfig(BackboneConfig):
    """Settings of the factorisation; what is ``None`` is chosen by the number of features."""

    name: Literal["factorisation"] = "factorisation"
    latent: int | None = Field(None, ge=1)  # factors no one needs shrink to nothing by themselves
    signature: int | None = Field(None, ge=0)  # length of the summary of which features a row observed
    # Whether rows choose what they observe, as people choose the films they rate; only then does the
    # choice say something. None: yes, unless all features are binary, as exam questions and diagnoses are.
    observed_by_choice: bool | None = None
    sweeps: int = Field(20, ge=1)
    likelihood: LikelihoodConfig = LikelihoodConfig(rating_link="identity")

    def resolved(self, kinds: Tensor) -> Self:
        """Return the settings with sizes for these features filled in.

        >>> ratings = torch.ones(3000, dtype=torch.int64)
        >>> large, small = (FactorisationConfig().resolved(ratings[:n]) for n in (3000, 12))
        >>> (large.latent, large.signature), (small.latent, small.signature)
        ((32, 32), (4, 3))
        """
        features = len(kinds)
        most = 32 if features < _LARGE else 16
        by_choice = self.observed_by_choice
        if by_choice is None:
            by_choice = not bool((kinds == KindType.BINARY).all())
        signature = self.signature
        if signature is None:
            signature = min(most, features // 4) if by_choice else 0
        latent = self.latent or min(most, max(2, features // 3))
        return self.revised(latent=latent, signature=signature, observed_by_choice=by_choice)


@register_backbone
class Factorisation(SweptBackbone):
    """x_ij ~ u_i·v_j + b_j with Gaussian u and (v, b), every posterior with its full covariance.

    Given the features' posteriors, a row's is the closed form of Bayesian linear regression, so rows
    that are new get theirs at once. Its prior mean reads *which* features a row observed
    (``Signature``). A binary observation enters by the Jaakkola–Jordan bound: as a Gaussian one whose
    weight depends on how sure its prediction is. Each sweep updates rows, then features, then priors
    and noise, which is coordinate ascent on the evidence bound.
    """

    config_type: ClassVar[type[BackboneConfig]] = FactorisationConfig
    heads_read_code: ClassVar[bool] = True
    config: FactorisationConfig

    def __init__(self, config: FactorisationConfig, kinds: Tensor, grid: Tensor) -> None:
        super().__init__(config, kinds, grid)
        features = len(kinds)
        self.latent, signs = config.latent or 2, config.signature or 0
        self.sweeps = config.sweeps
        size = self.latent + 1
        self.signature = Signature(features, signs)
        self.weight = nn.Parameter(0.1 * torch.randn(features, self.latent), requires_grad=False)
        self.bias = nn.Parameter(torch.zeros(features), requires_grad=False)
        spread = 0.01 * torch.eye(size).expand(features, size, size)
        self.spread: Tensor  # packed posterior covariance of each (v, b)
        self.register_buffer("spread", pack(spread))
        self.row_map: Tensor  # signature → prior mean of a row's factors
        self.register_buffer("row_map", torch.zeros(self.signature.size, self.latent))
        self.row_covariance: Tensor
        self.register_buffer("row_covariance", torch.eye(self.latent))
        self.precision: Tensor  # of an observation, by kind
        self.register_buffer("precision", torch.tensor([1.0, 16.0, 1.0]))

    @property
    def code_size(self) -> int:
        """Factors, how exactly and surely they are known, and the signature but for its constant."""
        return self.latent + 1 + self.signature.size

    @property
    def heads(self) -> Heads:
        """The features' posteriors."""
        return Heads(self.weight, self.bias, self.spread)

    # -- rows -------------------------------------------------------------------------------------

    def batch_states(self, cells: Cells) -> RowStates:
        """The code holds the factors and all else that is known of a row; heads read the factors."""
        posterior = self.row_posterior(cells)
        std = posterior.covariance.diagonal(dim1=1, dim2=2).sqrt()
        certainty = torch.stack([posterior.exactness.log(), 1 - 2 * std.mean(1)], dim=1)
        code = torch.cat([posterior.mean, certainty, self.signature(cells)[:, 1:]], dim=1)
        exact = std.new_zeros(len(std), code.shape[1] - self.latent)
        return RowStates(code, torch.cat([std, exact], dim=1), posterior.mean)

    def row_posterior(self, cells: Cells, passes: int | None = None) -> RowPosterior:
        """The posterior of each row's factors given the features': a few passes of a fixed point."""
        return self._posterior(cells, self._sums(cells), None, passes)

    def _posterior(
        self, cells: Cells, sums: list[RowSums], start: RowPosterior | None, passes: int | None = None
    ) -> RowPosterior:
        prior = torch.linalg.inv(self.row_covariance)
        mean = self.signature(cells) @ self.row_map
        binary = bool((self.kinds == KindType.BINARY).any())
        now = start or RowPosterior(
            mean, self.row_covariance.expand(len(cells), -1, -1), mean.new_ones(len(cells))
        )
        for turn in range(passes or (_BINARY_PASSES if binary else _PASSES)):
            exact = now.exactness if turn == 0 and start is None else self._exactness(now, sums)
            total = mean.new_zeros(len(cells), self.latent + 1, self.latent + 1)
            linear = mean.new_zeros(len(cells), self.latent + 1)
            for each in sums:
                total += exact[:, None, None] * each.total
                linear += exact[:, None] * each.linear
            if binary:
                weights, signs = self._bound(cells, now)
                total += unpack(bag(self._second_moments(), cells, weights), self.latent + 1)
                linear += bag(self._heads(), cells, signs)
            linear = linear[:, :-1] - total[:, :-1, -1]
            now = RowPosterior(*solved(prior + total[:, :-1, :-1], mean @ prior + linear), exact)
        return now

    def _sums(self, cells: Cells) -> list[RowSums]:
        """What a row's ratings and reals add up to, one for each of the two kinds there is."""
        kinds, second, heads = self.kinds[cells.index], self._second_moments(), self._heads()
        sums = []
        for kind in sorted(set(self.kinds.tolist()) - {KindType.BINARY}):
            weights = self.precision[kind] * (kinds == kind)
            squared = torch.stack([weights * cells.values**2, (kinds == kind).to(weights.dtype)], dim=1)
            both = segment_sum(squared, cells.indptr)
            total = unpack(bag(second, cells, weights), self.latent + 1)
            linear = bag(heads, cells, weights * cells.values)
            sums.append(RowSums(kind, both[:, 1], both[:, 0], linear, total))
        return sums

    def _exactness(self, now: RowPosterior, sums: list[RowSums]) -> Tensor:
        """How exact each row's ratings and reals are, shrunk to the usual: (rows,)."""
        moments = now.moments()
        counts = sum((each.counts for each in sums), torch.zeros(len(moments)))
        missed = sum((each.missed(now, moments) for each in sums), torch.zeros(len(moments)))
        return (_NOISE_SHOTS + counts) / (_NOISE_SHOTS + missed.clamp(min=0))

    def _bound(self, cells: Cells, now: RowPosterior) -> tuple[Tensor, Tensor]:
        """Binary observations as Gaussian ones: weight, and weight × value; 0 for others: two of (n,)."""
        binary = (self.kinds[cells.index] == KindType.BINARY).to(now.mean.dtype)
        down, across = triangle(self.latent + 1)
        twice = torch.where(down == across, 1.0, 2.0)
        squared = products_at(pack(now.moments()) * twice, self._second_moments(), cells)
        bound = squared.clamp(min=1e-6).sqrt()  # the root of E[(u·v + b)²] makes the bound tightest
        return binary * torch.tanh(bound / 2) / (2 * bound), binary * (cells.values - 0.5)

    # -- training ---------------------------------------------------------------------------------

    @torch.no_grad()
    def train_by_sweeps(self, cells: Cells, metadata: Tensor, generator: torch.Generator) -> Iterator[float]:
        """Coordinate ascent on the evidence bound, from the means of rows and features."""
        by_feature = cells.transpose()
        # The transposed cells hold the observations in another order: this is where each of them stood.
        order = torch.argsort(cells.index, stable=True)
        description = described(metadata)
        self.signature.fit(cells, generator)
        rows = self._start(cells, by_feature, generator)
        for _ in range(self.sweeps):
            prior_means, prior_covariance = self._head_prior(description, by_feature.counts)
            sums = self._sums(cells)
            rows = self._posterior(cells, sums, rows, passes=1)
            self._update_row_prior(cells, rows)
            moments = rows.moments()
            error = self._update_precision(rows, moments, sums)
            self._update_heads(cells, by_feature, order, rows, moments, prior_means, prior_covariance)
            yield error

    def _start(self, cells: Cells, by_feature: Cells, generator: torch.Generator) -> RowPosterior:
        """Start from the means of rows and features, and small random factors."""
        binary = self.kinds == KindType.BINARY
        middle = _means(by_feature, by_feature.values, 0.0) if len(cells.index) else self.bias.clone()
        usual = float(cells.values.mean()) if len(cells.index) else 0.0
        shrunk = by_feature.counts / (by_feature.counts + 5)
        middle = usual + shrunk * (middle - usual)
        rows = _means(cells, cells.values - middle[cells.index], 5.0)
        scale = float(rows.std()) + 1e-3
        # Outputs before a logistic link are larger than ratings, and factors too small at first die out.
        size = torch.where(binary, 1.0, 0.1)[:, None]
        self.weight.copy_(size * torch.randn(self.weight.shape, generator=generator))
        self.weight[:, 0] = torch.where(binary, 4 * scale, scale)  # the first factor is a row's own mean
        self.bias.copy_(torch.where(binary, torch.logit(middle.clamp(0.02, 0.98)), middle))
        further = 0.1 * torch.randn(len(rows), self.latent - 1, generator=generator)
        return RowPosterior(
            torch.cat([rows[:, None] / scale, further], 1),
            0.1 * torch.eye(self.latent).expand(len(rows), -1, -1),
            torch.ones(len(rows)),
        )

    def _update_heads(
        self,
        cells: Cells,
        by_feature: Cells,
        order: Tensor,
        rows: RowPosterior,
        moments: Tensor,
        prior_means: Tensor,
        prior_covariance: Tensor,
    ) -> None:
        weights = self.precision[self.kinds[cells.index]] * rows.exactness[cells.lines]
        linear = weights * cells.values
        if bool((self.kinds == KindType.BINARY).any()):
            binary = self.kinds[cells.index] == KindType.BINARY
            bound, signs = self._bound(cells, rows)
            weights, linear = torch.where(binary, bound, weights), torch.where(binary, signs, linear)
        total = unpack(bag(pack(moments), by_feature, weights[order]), self.latent + 1)
        prior = torch.linalg.inv(prior_covariance)
        weighted = bag(with_one(rows.mean), by_feature, linear[order]) + prior_means @ prior
        heads, covariance = solved(prior + total, weighted)
        self.weight.copy_(heads[:, :-1])
        self.bias.copy_(heads[:, -1])
        self.spread.copy_(pack(covariance))

    def _update_row_prior(self, cells: Cells, rows: RowPosterior) -> None:
        signs = self.signature(cells)
        ridge = torch.eye(signs.shape[1])
        self.row_map.copy_(torch.linalg.solve(signs.T @ signs + ridge, signs.T @ rows.mean))
        rest = rows.mean - signs @ self.row_map
        covariance = (rows.covariance.sum(0) + rest.T @ rest) / max(1, len(rest))
        self.row_covariance.copy_(covariance + 1e-5 * torch.eye(self.latent))

    def _head_prior(self, description: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        """Means and covariance of heads by metadata, features weighing by how much they were observed."""
        heads, weights = self._heads(), popularity_weights(counts)
        means = description @ weighted_ridge(description, heads, weights)
        residual = heads - means
        within = unpack((weights * self.spread).mean(0), self.latent + 1)
        between = (weights * residual).T @ residual / max(1, len(residual))
        return means, within + between + 1e-5 * torch.eye(self.latent + 1)

    def _update_precision(self, rows: RowPosterior, moments: Tensor, sums: list[RowSums]) -> float:
        off = 0.0
        for each in sums:
            missed = each.missed(rows, moments).sum() / self.precision[each.kind]
            variance = missed / each.counts.sum().clamp(min=1)
            self.precision[each.kind] = 1 / variance.clamp(min=1e-4)
            off = float(variance.clamp(min=0).sqrt())
        return off

    def _heads(self) -> Tensor:
        return torch.cat([self.weight, self.bias[:, None]], dim=1)

    def _second_moments(self) -> Tensor:
        """E[(v, b)(v, b)ᵀ] of each feature, packed."""
        return self.spread + squares(self._heads())


def _means(cells: Cells, values: Tensor, shrink: float) -> Tensor:
    """The mean of each line's values, shrunk to 0 as by ``shrink`` further observations: (lines,)."""
    return segment_sum(values[:, None], cells.indptr)[:, 0] / (cells.counts + shrink).clamp(min=1e-9)
