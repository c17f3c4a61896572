"""How a factorisation is trained: sweeps over rows, features, priors and noise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headstart.algebra.groups import make_groups
from headstart.algebra.honest import HonestRegression, loo_covariance, reliability
from headstart.algebra.sparse import bag, segment_sum
from headstart.algebra.symmetric import inverse, pack, positive, solved, unpack, with_one
from headstart.backbones.rows import NOISE_SHOTS, RowPosterior, RowSums
from headstart.core.description import Description
from headstart.table.cells import Cells
from headstart.table.kinds import KindType

if TYPE_CHECKING:
    from headstart.backbones.factorisation import Factorisation

_CHOOSING = 5  # sweeps between two choices of what is worth regressing on
_MAX_EXACTNESS = 1e4  # of a feature, relative to the usual


class FactorisationTraining:
    """One training of a factorisation, with all that only training needs.

    The prior mean of a feature's head is what metadata predicts of it from all *other* features, and
    that of a row's factors what its signature predicts from all other rows: so no regression is
    confirmed by what it made itself.
    """

    def __init__(
        self, backbone: Factorisation, cells: Cells, description: Description, generator: torch.Generator
    ) -> None:
        self.backbone, self.generator, self.weights = backbone, generator, cells.weights
        # Factors are found from all observations alike: from what little old ones count some would die out.
        self.cells = replace(cells, weights=None)
        self.by_feature = self.cells.transpose()
        # The transposed cells hold the observations in another order: this is where each of them stood.
        self.order = torch.argsort(cells.index, stable=True)
        # Much observed features are other than rarely observed ones.
        popularity = self.by_feature.counts.to(description.numbers.dtype).log1p()[:, None]
        self.description = description.with_bends(description.bendable()).with_more(popularity)
        self.latent, self.size = backbone.latent, backbone.latent + 1

    @torch.no_grad()
    def sweeps(self) -> Iterator[float]:
        """Update everything once per sweep; yields how far predictions are off, as a standard deviation."""
        backbone, cells = self.backbone, self.cells
        backbone.signature.fit(cells, self.generator)
        rows = self._start()
        groups = make_groups(self.description.numbers, self.description.groups, self.generator)
        self.head_regression = HonestRegression(groups)
        signatures = backbone.signature(cells)
        columns = torch.arange(1, signatures.shape[1])
        parts = [part for part in (columns[:1], columns[1:]) if len(part)]  # the count, then the rest
        groups = make_groups(signatures, parts)
        self.row_regression = HonestRegression(groups)
        prior_covariance = torch.eye(self.size, dtype=torch.float64)
        prior_means, prior_covariance = self._head_prior(rows.moments(), prior_covariance, choosing=False)
        for turn in range(1, backbone.sweeps + 1):
            choosing = turn % _CHOOSING == 0
            if self.weights is not None and turn == backbone.sweeps // 2 + 1:
                cells = self.cells = replace(cells, weights=self.weights)
                self.by_feature = cells.transpose()
            readings = backbone.readings()
            sums = readings.sums(cells)
            rows = backbone.posterior_from(cells, readings, sums, backbone.signature(cells), rows, passes=1)
            self._update_row_prior(rows, choosing=choosing)
            moments = rows.moments()
            error = self._update_precision(rows, moments, sums)
            self._update_heads(rows, moments, prior_means, prior_covariance)
            prior_means, prior_covariance = self._head_prior(moments, prior_covariance, choosing=choosing)
            if turn == backbone.sweeps:
                self._standardise()
            yield error

    def _start(self) -> RowPosterior:
        """Start from the means of rows and features, and small random factors."""
        backbone, cells, by_feature = self.backbone, self.cells, self.by_feature
        binary = backbone.kinds == KindType.BINARY
        middle = _means(by_feature, by_feature.values, 0.0) if len(cells.index) else backbone.bias.clone()
        usual = float(cells.values.mean()) if len(cells.index) else 0.0
        shrunk = by_feature.counts / (by_feature.counts + 5)
        middle = usual + shrunk * (middle - usual)
        rows = _means(cells, cells.values - middle[cells.index], 5.0)
        scale = float(rows.std(correction=0)) + 1e-3
        # Outputs before a logistic link are larger than ratings, and factors too small at first die out.
        size = torch.where(binary, 1.0, 0.1)[:, None]
        backbone.weight.copy_(size * torch.randn(backbone.weight.shape, generator=self.generator))
        backbone.weight[:, 0] = torch.where(binary, 4 * scale, scale)  # the first factor is a row's own mean
        backbone.bias.copy_(torch.where(binary, torch.logit(middle.clamp(0.02, 0.98)), middle))
        further = 0.1 * torch.randn(len(rows), self.latent - 1, generator=self.generator)
        return RowPosterior(
            torch.cat([rows[:, None] / scale, further], 1),
            0.1 * torch.eye(self.latent).expand(len(rows), -1, -1),
            torch.ones(len(rows)),
        )

    # -- one part after the other -----------------------------------------------------------------

    def _update_row_prior(self, rows: RowPosterior, *, choosing: bool) -> None:
        """What the signature predicts of a row's factors, each row predicted from the others."""
        backbone, cells, regression = self.backbone, self.cells, self.row_regression
        signatures, weights = backbone.signature(cells), torch.ones(len(cells))
        if choosing:
            metric = self._head_metric()
            regression.choose(signatures, rows.mean, weights, torch.linalg.cholesky(positive(metric)))
        predicted = regression.fit(signatures, rows.mean, weights)
        matrix, constant = regression.map(signatures.shape[1])
        matrix[0] = constant
        backbone.row_map.copy_(matrix)
        if choosing:
            metric = metric.to(rows.mean.dtype)
            backbone.signature.learn_patience(cells, rows.mean, backbone.row_map, metric, self.generator)
        residual = (rows.mean - predicted).double()
        covariance = (rows.covariance.double().sum(0) + residual.T @ residual) / max(1, len(residual))
        backbone.row_covariance.copy_(positive(covariance))

    def _head_metric(self) -> Tensor:
        """What a difference of a row's factors does to predictions, squared: (latent, latent)."""
        moments = unpack(self.backbone.second_moments().mean(0), self.size)
        return moments[:-1, :-1].double()

    def _head_prior(
        self, moments: Tensor, prior_covariance: Tensor, *, choosing: bool
    ) -> tuple[Tensor, Tensor]:
        """What metadata predicts of each head from the other features, and the covariance around it."""
        backbone, numbers, regression = self.backbone, self.description.numbers, self.head_regression
        heads = backbone.stacked_heads()
        metric = moments.double().mean(0)
        weights = reliability(backbone.spread, prior_covariance, metric)
        if choosing:
            regression.choose(numbers, heads, weights, torch.linalg.cholesky(positive(metric)))
        means = regression.fit(numbers, heads, weights)
        share = (weights / weights.sum()).to(backbone.spread.dtype)
        within = unpack(share @ backbone.spread, self.size)
        return means, loo_covariance(heads - means, within, weights)

    def _update_precision(self, rows: RowPosterior, moments: Tensor, sums: RowSums | None) -> float:
        """How exact ratings and reals usually are; returns the error as a standard deviation."""
        error, backbone = 0.0, self.backbone
        if sums is not None:
            squared = sums.squared_errors(rows, moments).sum() / backbone.precision[KindType.RATING]
            error = self._set_precision(KindType.RATING, squared / sums.counts.sum().clamp(min=1))
        real = (backbone.kinds == KindType.REAL)[self.cells.index]
        if bool(real.any()):
            readings = backbone.readings()
            mean, second = readings.outputs(self.cells, rows)
            squared = (self.cells.values - mean) ** 2 + (second - mean**2).clamp(min=0)
            weights = readings.weighted(self.cells, rows)[0] / readings.precision[self.cells.index]
            counted = self.cells.weighted(torch.ones_like(squared))[real].sum()
            error = self._set_precision(KindType.REAL, (weights * squared)[real].sum() / counted)
        return error

    def _set_precision(self, kind: int, variance: Tensor) -> float:
        self.backbone.precision[kind] = 1 / variance.clamp(min=1e-4)
        return float(variance.clamp(min=0).sqrt())

    def _update_heads(
        self, rows: RowPosterior, moments: Tensor, prior_means: Tensor, prior_covariance: Tensor
    ) -> None:
        backbone, cells, by_feature = self.backbone, self.cells, self.by_feature
        kinds = backbone.kinds[cells.index]
        weights = backbone.precision[kinds] * backbone.exactness[cells.index] * rows.exactness[cells.lines]
        weights = cells.weighted(weights)
        linear = weights * cells.values
        readings = backbone.readings()
        if readings.weighs:
            own, values = readings.weighted(cells, rows)
            rated = kinds == KindType.RATING
            weights, linear = torch.where(rated, weights, own), torch.where(rated, linear, values)
        weights, linear = weights[self.order], linear[self.order]
        total = unpack(bag(pack(moments), by_feature, weights), self.size)
        weighted = bag(with_one(rows.mean), by_feature, linear)
        prior = inverse(prior_covariance).to(total.dtype)
        heads, covariance = solved(prior + total, weighted + prior_means @ prior)
        backbone.weight.copy_(heads[:, :-1])
        backbone.bias.copy_(heads[:, -1])
        backbone.spread.copy_(pack(covariance))
        self._update_exactness(total, weighted, weights)

    def _update_exactness(self, total: Tensor, weighted: Tensor, weights: Tensor) -> None:
        """How exact each feature's observations are, shrunk to the usual; for ratings only."""
        backbone, by_feature = self.backbone, self.by_feature
        if backbone.has_two_values:
            return
        values = segment_sum((weights * by_feature.values**2)[:, None], by_feature.indptr)[:, 0]
        expected = (total * unpack(backbone.second_moments(), self.size)).sum((1, 2))
        squared = values - 2 * (weighted * backbone.stacked_heads()).sum(1) + expected
        squared = (squared / backbone.exactness).clamp(min=0)
        exactness = (NOISE_SHOTS + by_feature.weighted_counts) / (NOISE_SHOTS + squared)
        rating = backbone.kinds == KindType.RATING
        backbone.exactness.copy_(torch.where(rating, exactness.clamp(max=_MAX_EXACTNESS), 1.0))

    def _standardise(self) -> None:
        """Change the basis of the factors so that variances alone say how well a row is known.

        Then an average row is 0, the rows' prior covariance is the identity, and the heads' mean second
        moment is diagonal.
        """
        backbone = self.backbone
        centre = backbone.row_map[0].double().clone()
        root = torch.linalg.cholesky(positive(backbone.row_covariance.double()))
        root = root @ torch.linalg.eigh(root.T @ self._head_metric() @ root).eigenvectors.flip(1)
        change = torch.zeros(self.size, self.size, dtype=torch.float64)  # old factors = centre + root·new
        change[:-1, :-1], change[-1, :-1], change[-1, -1] = root.T, centre, 1.0
        heads = backbone.stacked_heads().double() @ change.T
        for part in torch.split(torch.arange(len(heads)), 4096):
            spread = change @ unpack(backbone.spread[part].double(), self.size) @ change.T
            backbone.spread[part] = pack(spread).to(backbone.spread.dtype)
        backbone.weight.copy_(heads[:, :-1])
        backbone.bias.copy_(heads[:, -1])
        moved = backbone.row_map.double()
        moved[0] = 0.0
        backbone.row_map.copy_(torch.linalg.solve(root, moved.T).T)
        backbone.row_covariance.copy_(torch.eye(self.latent))


def _means(cells: Cells, values: Tensor, shrink: float) -> Tensor:
    """The mean of each line's values, shrunk to 0 as by ``shrink`` further observations: (lines,)."""
    return segment_sum(values[:, None], cells.indptr)[:, 0] / (cells.counts + shrink).clamp(min=1e-9)
