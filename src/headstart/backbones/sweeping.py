"""How a factorisation is trained: sweeps over rows, features, priors and noise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headstart.algebra.blocks import BUDGET, PER_NUMBER, column_sums, gram, line_blocks, stretches
from headstart.algebra.groups import make_groups
from headstart.algebra.honest import HonestRegression, loo_covariance, reliability
from headstart.algebra.shared import deviation_of, mean_of, normal_lines
from headstart.algebra.sparse import segment_sum
from headstart.algebra.symmetric import inverse, pack, positive, solved, squares, unpack
from headstart.backbones.basis import head_metric, put_behind_link, standardise
from headstart.backbones.row_sweep import Errors, FeatureSums, feature_sums, row_blocks, sweep_rows
from headstart.backbones.rows import NOISE_SHOTS, RowPosterior
from headstart.core.description import Description
from headstart.crew import crew
from headstart.table.cells import Cells
from headstart.table.kinds import KindType
from headstart.workers import in_parallel

if TYPE_CHECKING:
    from headstart.backbones.factorisation import Factorisation
    from headstart.backbones.sweep_progress import SweepProgress

_CHOOSING = 5  # sweeps between two choices of what is worth regressing on
_MAX_EXACTNESS = 1e4  # of a feature, relative to the usual
_LEAST_VARIANCE = 1e-6  # of an observation, on the models' scale: no table is taken for more exact


class FactorisationTraining:
    """One training of a factorisation, with all that only training needs.

    The prior mean of a feature's head is what metadata predicts of it from all *other* features, and
    that of a row's factors what its signature predicts from all other rows: so no regression is
    confirmed by what it made itself.
    """

    def __init__(
        self, backbone: Factorisation, cells: Cells, description: Description, generator: torch.Generator
    ) -> None:
        # Rows without observations tell nothing, and would only make the sweeps slower to arrive.
        filled = torch.nonzero(cells.counts)[:, 0]
        if 0 < len(filled) < len(cells) or not crew().alone:
            cells = cells.take(filled)
        self.backbone, self.generator, self.weights = backbone, generator, cells.weights
        # Factors are found from all observations alike: from what little old ones count some would die out.
        self.cells = replace(cells, weights=None)
        counts = crew().total(torch.bincount(cells.index, minlength=cells.width))
        self.counts = self.weighted_counts = counts
        # Much observed features are other than rarely observed ones.
        popularity = self.counts.to(description.numbers.dtype).log1p()[:, None]
        self.description = description.with_bends(description.bendable()).with_more(popularity)
        self.latent, self.size = backbone.latent, backbone.latent + 1
        self.rows: RowPosterior
        self.head_regression: HonestRegression
        self.row_regression: HonestRegression
        self.prior_means: Tensor  # (features, size): of heads
        self.prior_covariance: Tensor  # (size, size): around these
        # The bound for the logistic link is loose: under it, factors that predict well die out. So where all
        # is binary, factors are found from 0 and 1 as numbers, and only the last sweep knows of the link.
        self.as_numbers = backbone.sweeps > 1 and bool((backbone.kinds == KindType.BINARY).all())

    @torch.no_grad()
    def sweeps(self, progress: SweepProgress | None = None) -> Iterator[float]:
        """Update everything once per sweep; yields how far predictions are off, as a standard deviation.

        With ``progress`` they continue with what was kept there, and keep what they reach.
        """
        backbone, cells = self.backbone, self.cells
        done = 0 if progress is None else progress.restore(self)
        if done == backbone.sweeps:
            return
        # These stay, only how far they count changes.
        differences = backbone.signature.differences(cells) if done else self._begin()
        signatures = backbone.signature.believed(differences, cells.counts)
        blocks = row_blocks(backbone, cells)
        for turn in range(done + 1, backbone.sweeps + 1):
            choosing = turn % _CHOOSING == 0
            if self.weights is not None and turn == backbone.sweeps // 2 + 1:
                cells = self.cells = replace(cells, weights=self.weights)
                self.weighted_counts = torch.bincount(cells.index, self.weights, minlength=cells.width)
                blocks = row_blocks(backbone, cells)
            if self.as_numbers and turn == backbone.sweeps:
                put_behind_link(backbone)
                blocks = row_blocks(backbone, cells)
                self.prior_covariance = torch.eye(self.size, dtype=torch.float64)
                self._update_head_prior(choosing=True)
            errors = sweep_rows(backbone, blocks, signatures, self.rows)
            self._update_row_prior(self.rows, signatures, choosing=choosing)
            if choosing:
                signatures = backbone.signature.believed(differences, cells.counts)
            error = self._update_precision(errors)
            self._update_heads(
                feature_sums(backbone, blocks, self.rows), self.prior_means, self.prior_covariance
            )
            self._update_head_prior(choosing=choosing)
            if turn == backbone.sweeps:
                standardise(backbone)
            if progress is not None:
                progress.keep(self, turn)
            yield error

    def _begin(self) -> Tensor:
        """Find the signature, and where everything starts; returns what ``Signature.differences`` does."""
        backbone, cells = self.backbone, self.cells
        backbone.signature.fit(cells, self.generator)
        if self.as_numbers:
            backbone.kinds = torch.full_like(backbone.kinds, KindType.RATING)
        self.rows = self._start()
        groups = make_groups(self.description.numbers, self.description.groups, self.generator)
        self.head_regression = HonestRegression(groups)
        differences = backbone.signature.differences(cells)
        signatures = backbone.signature.believed(differences, cells.counts)
        columns = torch.arange(1, signatures.shape[1])
        parts = [part for part in (columns[:1], columns[1:]) if len(part)]  # the count, then the rest
        self.row_regression = HonestRegression(make_groups(signatures, parts, shared=True), shared=True)
        self.prior_covariance = torch.eye(self.size, dtype=torch.float64)
        self._update_head_prior(choosing=False)
        return differences

    def _update_head_prior(self, *, choosing: bool) -> None:
        given = self.rows, self.prior_covariance
        self.prior_means, self.prior_covariance = self._head_prior(*given, choosing=choosing)

    def _start(self) -> RowPosterior:
        """Start from the means of rows and features, and small random factors."""
        backbone, cells = self.backbone, self.cells
        binary = backbone.kinds == KindType.BINARY
        sums = crew().total(torch.bincount(cells.index, cells.values.double(), minlength=cells.width))
        middle = (sums / self.counts.clamp(min=1e-9)).to(backbone.bias.dtype)
        usual = mean_of(cells.values)
        shrunk = self.counts / (self.counts + 5)
        middle = usual + shrunk * (middle - usual)
        rows = _row_means(cells, middle, 5.0)
        scale = deviation_of(rows) + 1e-3
        # Outputs before a logistic link are larger than ratings, and factors too small at first die out.
        size = torch.where(binary, 1.0, 0.1)[:, None]
        backbone.weight.copy_(size * torch.randn(backbone.weight.shape, generator=self.generator))
        backbone.weight[:, 0] = torch.where(binary, 4 * scale, scale)  # the first factor is a row's own mean
        backbone.bias.copy_(torch.where(binary, torch.logit(middle.clamp(0.02, 0.98)), middle))
        further = 0.1 * normal_lines(len(rows), self.latent - 1, self.generator)
        spread = pack(0.1 * torch.eye(self.latent)).repeat(len(rows), 1)
        mean = torch.cat([rows[:, None] / scale, further], 1)
        return RowPosterior(mean, spread, torch.ones(len(rows)))

    # -- one part after the other -----------------------------------------------------------------

    def _update_row_prior(self, rows: RowPosterior, signatures: Tensor, *, choosing: bool) -> None:
        """What the signature predicts of a row's factors, each row predicted from the others."""
        backbone, cells, regression = self.backbone, self.cells, self.row_regression
        weights = torch.ones(len(cells))
        if choosing:
            metric = head_metric(backbone)
            regression.choose(signatures, rows.mean, weights, torch.linalg.cholesky(positive(metric)))
        predicted = regression.fit(signatures, rows.mean, weights)
        matrix, constant = regression.map(signatures.shape[1])
        matrix[0] = constant
        backbone.row_map.copy_(matrix)
        if choosing:
            metric = metric.to(rows.mean.dtype)
            backbone.signature.learn_patience(cells, rows.mean, backbone.row_map, metric, self.generator)
        residual = rows.mean - predicted
        covariance = unpack(column_sums(rows.spread), self.latent) + gram(residual, residual)
        _, whole = crew().span(len(residual))
        backbone.row_covariance.copy_(positive(crew().total(covariance) / max(1, whole)))

    def _head_prior(
        self, rows: RowPosterior, prior_covariance: Tensor, *, choosing: bool
    ) -> tuple[Tensor, Tensor]:
        """What metadata predicts of each head from the other features, and the covariance around it."""
        backbone, numbers, regression = self.backbone, self.description.numbers, self.head_regression
        heads = backbone.stacked_heads()
        metric = rows.mean_moment()
        weights = reliability(backbone.spread, prior_covariance, metric)
        if choosing:
            regression.choose(numbers, heads, weights, torch.linalg.cholesky(positive(metric)))
        means = regression.fit(numbers, heads, weights)
        share = (weights / weights.sum()).to(backbone.spread.dtype)
        within = unpack(share @ backbone.spread, self.size)
        return means, loo_covariance(heads - means, within, weights)

    def _update_precision(self, errors: Errors) -> float:
        """How exact ratings and reals usually are; returns the error as a standard deviation."""
        error = 0.0
        for kind, (squared, count) in errors.items():
            variance = squared / count
            self.backbone.precision[kind] = 1 / max(variance, _LEAST_VARIANCE)
            error = max(variance, 0.0) ** 0.5
        return error

    def _update_heads(self, sums: FeatureSums, prior_means: Tensor, prior_covariance: Tensor) -> None:
        backbone = self.backbone
        plain = backbone.precision[backbone.kinds] * backbone.exactness
        factors = torch.where(backbone.kinds == KindType.RATING, plain, 1.0)
        prior = inverse(prior_covariance).to(sums.total.dtype)

        def update(part: slice) -> None:
            total = unpack(factors[part, None] * sums.total[part], self.size)
            weighted = factors[part, None] * sums.linear[part]
            heads, covariance = solved(prior + total, weighted + prior_means[part] @ prior)
            backbone.weight[part] = heads[:, :-1]
            backbone.bias[part] = heads[:, -1]
            backbone.spread[part] = pack(covariance)
            if not backbone.has_two_values:
                self._update_exactness(part, total, weighted, factors[part] * sums.squares[part])

        for _ in in_parallel(update, stretches(len(factors), PER_NUMBER * self.size**2, BUDGET // 4)):
            pass

    def _update_exactness(self, part: slice, total: Tensor, weighted: Tensor, values: Tensor) -> None:
        """How exact each feature's observations are, shrunk to the usual; for ratings only.

        ``values`` (features,) are the sums of weighted squares of values.
        """
        backbone, counts = self.backbone, self.weighted_counts[part]
        heads = torch.cat([backbone.weight[part], backbone.bias[part, None]], dim=1)
        second = unpack(backbone.spread[part] + squares(heads), self.size)
        expected = (total * second).sum((1, 2))
        squared = values - 2 * (weighted * heads).sum(1) + expected
        squared = (squared / backbone.exactness[part]).clamp(min=0)
        exactness = (NOISE_SHOTS + counts) / (NOISE_SHOTS + squared)
        rating = backbone.kinds[part] == KindType.RATING
        backbone.exactness[part] = torch.where(
            rating, exactness.clamp(max=_MAX_EXACTNESS).to(backbone.exactness.dtype), 1.0
        )


def _row_means(cells: Cells, middle: Tensor, shrink: float) -> Tensor:
    """The mean of each row's values less ``middle`` (features,), shrunk to 0 as by further observations."""
    means = torch.zeros(len(cells))
    for place, block in line_blocks(cells, 64):
        values = block.values - middle[block.index]
        sums = segment_sum(values[:, None], block.indptr)[:, 0]
        means[place] = sums / (block.counts + shrink).clamp(min=1e-9)
    return means
