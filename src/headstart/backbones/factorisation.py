"""Variational Bayesian matrix factorisation: a row's state is a closed form of its observations."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from headstart.backbones.description import described
from headstart.backbones.heads import Heads
from headstart.backbones.likelihood import LikelihoodConfig
from headstart.backbones.protocol import BackboneConfig, RowStates, SweptBackbone
from headstart.backbones.rows import RowPosterior, RowSums, with_one
from headstart.backbones.signature import Signature
from headstart.backbones.sparse import bag, products_at, segment_sum
from headstart.backbones.symmetric import pack, solved, squares, triangle, unpack
from headstart.table.cells import Cells
from headstart.table.kinds import BINARY

_NOISE_SHOTS = 5.0  # a row's own noise is believed as if this many observations had shown the usual one
_PASSES, _BINARY_PASSES = 3, 5  # of the fixed point between a row's factors and its observations' weights
# Of the regression of heads on metadata. A head seen more often is surer, but new features are not only
# the popular ones: so a feature weighs by less than how often it was observed.
RIDGE, POPULARITY = 0.2, 0.75
_LARGE = 20_000  # features from which a smaller factorisation is the default, for memory


class FactorisationConfig(BackboneConfig):
    """Settings of the factorisation; what is ``None`` is chosen by the number of features."""

    name: Literal["factorisation"] = "factorisation"
    latent: int | None = Field(None, ge=1)  # factors no one needs shrink to nothing by themselves
    signature: int | None = Field(None, ge=0)  # length of the summary of which features a row observed
    sweeps: int = Field(20, ge=1)
    likelihood: LikelihoodConfig = LikelihoodConfig(rating_link="identity")

    def settled(self, features: int) -> tuple[int, int]:
        """The number of factors and the length of the signature for so many features.

        >>> FactorisationConfig().settled(3000), FactorisationConfig().settled(12)
        ((32, 32), (4, 3))
        """
        most = 32 if features < _LARGE else 16
        latent = self.latent or min(most, max(2, features // 3))
        return latent, min(most, features // 4) if self.signature is None else self.signature


class Factorisation(SweptBackbone):
    """x_ij ~ u_i·v_j + b_j with Gaussian u and (v, b), every posterior with its full covariance.

    Given the features' posteriors, a row's is the closed form of Bayesian linear regression, so rows
    never seen before get theirs at once. Its prior mean reads *which* features a row observed
    (``Signature``). A binary observation enters by the Jaakkola–Jordan bound: as a Gaussian one whose
    weight depends on how sure its prediction is. Each sweep updates rows, then features, then priors
    and noise, which is coordinate ascent on the evidence bound.
    """

    name: ClassVar[str] = "factorisation"
    config: FactorisationConfig

    def __init__(self, config: FactorisationConfig, codes: Tensor, grid: Tensor) -> None:
        super().__init__(config, codes, grid)
        features = len(codes)
        self.latent, signs = config.settled(features)
        if config.signature is None and bool((codes == BINARY).all()):
            signs = 0  # people choose what to rate, but are given the questions they answer
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

    def states(self, cells: Cells) -> RowStates:
        """The code holds the factors and all else that is known of a row; heads read the factors."""
        posterior = self.row_posterior(cells)
        std = posterior.covariance.diagonal(dim1=1, dim2=2).sqrt()
        known = torch.stack([posterior.exactness.log(), 1 - 2 * std.mean(1)], dim=1)
        code = torch.cat([posterior.mean, known, self.signature(cells)[:, 1:]], dim=1)
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
        binary = bool((self.codes == BINARY).any())
        now = start or RowPosterior(
            mean, self.row_covariance.expand(len(cells), -1, -1), mean.new_ones(len(cells))
        )
        for turn in range(passes or (_BINARY_PASSES if binary else _PASSES)):
            exact = now.exactness if turn == 0 and start is None else self._exactness(now, sums)
            total = mean.new_zeros(len(cells), self.latent + 1, self.latent + 1)
            pull = mean.new_zeros(len(cells), self.latent + 1)
            for each in sums:
                total += exact[:, None, None] * each.total
                pull += exact[:, None] * each.pull
            if binary:
                weights, signs = self._bound(cells, now)
                total += unpack(bag(self._second_moments(), cells, weights), self.latent + 1)
                pull += bag(self._heads(), cells, signs)
            pull = pull[:, :-1] - total[:, :-1, -1]
            now = RowPosterior(*solved(prior + total[:, :-1, :-1], mean @ prior + pull), exact)
        return now

    def _sums(self, cells: Cells) -> list[RowSums]:
        """What a row's ratings and reals add up to, one for each of the two kinds there is."""
        codes, second, heads = self.codes[cells.index], self._second_moments(), self._heads()
        found = []
        for code in sorted(set(self.codes.tolist()) - {BINARY}):
            weights = self.precision[code] * (codes == code)
            squared = torch.stack([weights * cells.values**2, (codes == code).to(weights.dtype)], dim=1)
            both = segment_sum(squared, cells.indptr)
            total = unpack(bag(second, cells, weights), self.latent + 1)
            pull = bag(heads, cells, weights * cells.values)
            found.append(RowSums(code, both[:, 1], both[:, 0], pull, total))
        return found

    def _exactness(self, now: RowPosterior, sums: list[RowSums]) -> Tensor:
        """How exact each row's ratings and reals are, shrunk to the usual: (rows,)."""
        known = now.moments()
        counts = sum((each.counts for each in sums), torch.zeros(len(known)))
        missed = sum((each.missed(now, known) for each in sums), torch.zeros(len(known)))
        return (_NOISE_SHOTS + counts) / (_NOISE_SHOTS + missed.clamp(min=0))

    def _bound(self, cells: Cells, now: RowPosterior) -> tuple[Tensor, Tensor]:
        """Binary observations as Gaussian ones: weight, and weight × value; 0 for others: two of (n,)."""
        binary = (self.codes[cells.index] == BINARY).to(now.mean.dtype)
        down, across = triangle(self.latent + 1)
        twice = torch.where(down == across, 1.0, 2.0)
        squared = products_at(pack(now.moments()) * twice, self._second_moments(), cells)
        bound = squared.clamp(min=1e-6).sqrt()  # the root of E[(u·v + b)²] makes the bound tightest
        return binary * torch.tanh(bound / 2) / (2 * bound), binary * (cells.values - 0.5)

    # -- training ---------------------------------------------------------------------------------

    @torch.no_grad()
    def begin(self, cells: Cells, metadata: Tensor, generator: torch.Generator) -> None:
        """Start from the means of rows and features, and small random factors."""
        self.signature.fit(cells, generator)
        binary = self.codes == BINARY
        by_feature = cells.transpose()
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
        self._rows = RowPosterior(
            torch.cat(
                [rows[:, None] / scale, 0.1 * torch.randn(len(rows), self.latent - 1, generator=generator)], 1
            ),
            0.1 * torch.eye(self.latent).expand(len(rows), -1, -1),
            torch.ones(len(rows)),
        )
        self._described = described(metadata)
        self._update_head_prior(by_feature.counts)

    @torch.no_grad()
    def sweep(self, cells: Cells) -> float:
        """Update everything once; returns by how much predictions are off, as a standard deviation."""
        sums = self._sums(cells)
        rows = self._rows = self._posterior(cells, sums, self._rows, passes=1)
        self._update_row_prior(cells, rows)
        moments = rows.moments()
        off = self._update_precision(rows, moments, sums)
        by_feature = cells.transpose()
        order = torch.argsort(cells.index, stable=True)  # of the observations, from rows' to features'
        weights = self.precision[self.codes[cells.index]] * rows.exactness[cells.lines]
        pulls = weights * cells.values
        if bool((self.codes == BINARY).any()):
            binary = self.codes[cells.index] == BINARY
            bound, signs = self._bound(cells, rows)
            weights, pulls = torch.where(binary, bound, weights), torch.where(binary, signs, pulls)
        total = unpack(bag(pack(moments), by_feature, weights[order]), self.latent + 1)
        prior = torch.linalg.inv(self._head_covariance)
        pull = bag(with_one(rows.mean), by_feature, pulls[order]) + self._head_means @ prior
        heads, covariance = solved(prior + total, pull)
        self.weight.copy_(heads[:, :-1])
        self.bias.copy_(heads[:, -1])
        self.spread.copy_(pack(covariance))
        self._update_head_prior(by_feature.counts)
        return off

    def end(self) -> None:
        """Drop what only training needs."""
        del self._rows, self._described, self._head_means, self._head_covariance

    def _update_row_prior(self, cells: Cells, rows: RowPosterior) -> None:
        signs = self.signature(cells)
        ridge = torch.eye(signs.shape[1])
        self.row_map.copy_(torch.linalg.solve(signs.T @ signs + ridge, signs.T @ rows.mean))
        rest = rows.mean - signs @ self.row_map
        covariance = (rows.covariance.sum(0) + rest.T @ rest) / max(1, len(rest))
        self.row_covariance.copy_(covariance + 1e-5 * torch.eye(self.latent))

    def _update_head_prior(self, counts: Tensor) -> None:
        """Regress the heads on metadata, features weighing by how much they were observed."""
        heads, known = self._heads(), self._described
        weights = (counts + 1e-3) ** POPULARITY
        share = (weights / weights.mean())[:, None]
        gram = (share * known).T @ known + RIDGE * torch.eye(known.shape[1])
        self._head_means = known @ torch.linalg.solve(gram, (share * known).T @ heads)
        rest = heads - self._head_means
        within = unpack((share * self.spread).mean(0), self.latent + 1)
        between = (share * rest).T @ rest / max(1, len(rest))
        self._head_covariance = within + between + 1e-5 * torch.eye(self.latent + 1)

    def _update_precision(self, rows: RowPosterior, moments: Tensor, sums: list[RowSums]) -> float:
        off = 0.0
        for each in sums:
            missed = each.missed(rows, moments).sum() / self.precision[each.code]
            variance = missed / each.counts.sum().clamp(min=1)
            self.precision[each.code] = 1 / variance.clamp(min=1e-4)
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
