"""Reference methods for values: shrunk row and column means, and alternating least squares (ALS).

They read observations on the models' scale and no metadata. A benchmark scores them on the same cells as
other methods, under the names of ``VALUE_REFERENCES``; ``Headstart.evaluate`` puts the row and column means
beside the model. A cell is predicted by the inner product of a vector of its row and one of its feature.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headstart.linalg.packed import append_one, outer_products, solve, unpack
from headstart.linalg.ragged import line_blocks, segment_weighted_sum
from headstart.table.cells import Cells


class RowColumnMeans:
    """Predict a value by the mean of all, an effect of its row and an effect of its feature.

    Both effects have Gaussian priors, whose variances are estimated from the observations (a two-way model
    with random effects). So the mean of few observations counts less than the mean of many.

    Parameters
    ----------
    known : Cells
        The observations of known rows and known features on the models' scale, one line per row.

    Attributes
    ----------
    rows, features : Tensor
        The vectors of the known rows and features: (rows, size), (features, size).
    std : float
        The standard deviation of an observation given its prediction.
    """

    _ROUNDS = 20

    def __init__(self, known: Cells) -> None:
        known = _in_double(known)
        by_feature, weights = known.transpose(), _weights(known)
        row_counts, feature_counts = _sums(known, weights), _sums(by_feature, _weights(by_feature))
        self.mean = float((weights * known.values).sum() / weights.sum())
        self.row_effects = torch.zeros(len(known), dtype=torch.float64)
        self.row_penalty = self.feature_penalty = 5.0  # the precision of an effect, in observations
        for _ in range(self._ROUNDS):
            residual = by_feature.values - self.mean - self.row_effects[by_feature.index]
            self.feature_effects = _sums(by_feature, _weights(by_feature) * residual) / (
                feature_counts + self.feature_penalty
            )
            residual = known.values - self.mean - self.feature_effects[known.index]
            self.row_effects = _sums(known, weights * residual) / (row_counts + self.row_penalty)
            residual = residual - self.row_effects[known.lines]
            degrees = sum(
                float((counts / (counts + penalty)).sum())
                for counts, penalty in (
                    (row_counts, self.row_penalty),
                    (feature_counts, self.feature_penalty),
                )
            )
            left = max(float(weights.sum()) - degrees, 0.05 * float(weights.sum()))
            noise = max(float((weights * residual**2).sum()) / left, 1e-12)
            self.row_penalty, self.feature_penalty = (
                noise / _effect_variance(effects, counts, penalty, noise)
                for effects, counts, penalty in (
                    (self.row_effects, row_counts, self.row_penalty),
                    (self.feature_effects, feature_counts, self.feature_penalty),
                )
            )
        self.std = noise**0.5
        self.rows = append_one((self.mean + self.row_effects)[:, None])
        self.features = append_one(self.feature_effects[:, None]).flip(1)

    def fold_features(self, contexts: Cells) -> Tensor:
        """Return the vectors of new features, given one line of observations of known rows per feature."""
        effects = self._fold(contexts, self.rows[:, 0], self.feature_penalty)
        return append_one(effects[:, None]).flip(1)

    def fold_rows(self, contexts: Cells) -> Tensor:
        """Return the vectors of new rows, given one line of observations of known features per row."""
        effects = self._fold(contexts, self.mean + self.features[:, 1], self.row_penalty)
        return append_one((self.mean + effects)[:, None])

    @staticmethod
    def _fold(contexts: Cells, expected: Tensor, penalty: float) -> Tensor:
        """Return the shrunk mean of each line of values less the values that the other side expects."""
        contexts = _in_double(contexts)
        weights = _weights(contexts)
        total = _sums(contexts, weights * (contexts.values - expected[contexts.index]))
        return total / (_sums(contexts, weights) + penalty)


class ALS(RowColumnMeans):
    """Add a factorisation of all effects to the row and column means, by alternating least squares.

    A new row or feature is folded in: its effect and factors solve a ridge regression given the other side.
    The penalty of factors is chosen by the error on a tenth of the observations.
    """

    _FACTORS, _SWEEPS = 16, 12

    _SHARES = (0.01, 0.03, 0.1, 0.3)  # of the variance that factors may explain: gives the penalty

    def __init__(self, known: Cells) -> None:
        known = _in_double(known)
        generator = torch.Generator().manual_seed(0)
        held_out = torch.rand(len(known.index), generator=generator) < 0.1
        errors = {}
        if bool(held_out.any()) and not bool(held_out.all()):
            training, test = known.keep(~held_out), known.keep(held_out)
            super().__init__(training)
            for share in self._SHARES:
                self._fit(training, share)
                predicted = (self.rows[test.lines] * self.features[test.index]).sum(1)
                errors[share] = float(((predicted - test.values) ** 2).mean())
        super().__init__(known)
        self._fit(known, min(errors, key=lambda share: errors[share]) if errors else self._SHARES[0])

    def _fit(self, known: Cells, share: float) -> None:
        size, by_feature = self._FACTORS, known.transpose()
        penalty = self.std * (size / share) ** 0.5  # the noise over the variance of a factor
        self._penalties = torch.tensor([penalty] * size, dtype=torch.float64)
        generator = torch.Generator().manual_seed(1)
        factors = torch.randn(known.width, size, generator=generator, dtype=torch.float64)
        variance = self.std**2 / penalty
        one = torch.ones(known.width, 1, dtype=torch.float64)
        self.features = torch.cat([variance**0.5 * factors, one, self.feature_effects[:, None]], dim=1)
        for _ in range(self._SWEEPS):
            self.rows = self.fold_rows(known)
            self.features = self.fold_features(by_feature)

    def fold_features(self, contexts: Cells) -> Tensor:
        """Return the vectors of new features, given one line of observations of known rows per feature."""
        size = self._FACTORS
        design, expected = append_one(self.rows[:, :size]), self.rows[:, size]
        solved = self._regress(contexts, design, expected, self.feature_penalty)
        one = torch.ones(len(solved), 1, dtype=torch.float64)
        return torch.cat([solved[:, :size], one, solved[:, size:]], dim=1)

    def fold_rows(self, contexts: Cells) -> Tensor:
        """Return the vectors of new rows, given one line of observations of known features per row."""
        size = self._FACTORS
        design, expected = append_one(self.features[:, :size]), self.mean + self.features[:, size + 1]
        solved = self._regress(contexts, design, expected, self.row_penalty)
        solved[:, size] += self.mean
        return append_one(solved)

    def _regress(self, cells: Cells, design: Tensor, expected: Tensor, penalty: float) -> Tensor:
        """Return the factors and the effect of each line of ``cells``: (lines, factors + 1)."""
        cells = _in_double(cells)
        penalties = torch.diag(torch.cat([self._penalties, torch.tensor([penalty], dtype=torch.float64)]))
        outer, size = outer_products(design), design.shape[1]
        solved = torch.zeros(len(cells), size, dtype=torch.float64)
        for lines, block in line_blocks(cells, 16 * size**2):
            weights = _weights(block)
            total = unpack(segment_weighted_sum(outer, block, weights), size) + penalties
            residual = weights * (block.values - expected[block.index])
            solved[lines] = solve(total, segment_weighted_sum(design, block, residual))[0]
        return solved


def _effect_variance(effects: Tensor, counts: Tensor, penalty: float, noise: float) -> float:
    """Return the expected mean square of effects given their observations (a step of EM)."""
    observed = counts > 0
    squared = effects**2 + noise / (counts + penalty)
    return max(float(squared[observed].mean()) if bool(observed.any()) else noise, 1e-9 * noise)


def _in_double(cells: Cells) -> Cells:
    weights = None if cells.weights is None else cells.weights.double()
    return Cells(cells.indptr, cells.index, cells.values.double(), cells.width, weights)


def _weights(cells: Cells) -> Tensor:
    return torch.ones_like(cells.values) if cells.weights is None else cells.weights


def _sums(cells: Cells, numbers: Tensor) -> Tensor:
    """Sum ``numbers`` (n,) over each line: (lines,)."""
    return torch.zeros(len(cells), dtype=torch.float64).index_add_(0, cells.lines, numbers)


VALUE_REFERENCES: dict[str, type[RowColumnMeans]] = {"row-column-means": RowColumnMeans, "als-values": ALS}
