"""Reference methods for rankings: popularity, item-kNN and alternating least squares (ALS).

They read which cells are relevant, and nothing else: no values and no metadata. A benchmark scores them on
the same lists as other methods, under the names of ``REFERENCES``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headstart.linalg.packed import outer_products, solve, unpack
from headstart.linalg.ragged import line_blocks, segment_weighted_sum
from headstart.table.cells import Cells


class Reference(ABC):
    """A method that ranks rows for a new feature and features for a row, from relevant cells alone.

    Parameters
    ----------
    known : Cells
        The relevant cells of known rows and known features, one line per row.
    """

    def __init__(self, known: Cells) -> None:
        self.known = known

    @abstractmethod
    def rank_rows(self, contexts: Cells) -> Tensor:
        """Score all known rows for new features, given one line of rows per feature: (features, rows)."""

    @abstractmethod
    def rank_features(self, contexts: Cells) -> Tensor:
        """Score all known features for rows, given one line of features per row: (rows, features)."""


class Popularity(Reference):
    """The number of relevant cells of a row or feature, the same for every list."""

    def rank_rows(self, contexts: Cells) -> Tensor:
        """Return the number of relevant cells of each row."""
        return self.known.counts.double().expand(len(contexts), -1)

    def rank_features(self, contexts: Cells) -> Tensor:
        """Return the number of relevant cells of each feature."""
        counts = torch.bincount(self.known.index, minlength=self.known.width)
        return counts.double().expand(len(contexts), -1)


class ItemKNN(Reference):
    """The sum of cosine similarities of a feature to the features of a row, over its nearest neighbours.

    The cosine is shrunk as if each feature had ``_SHRINKAGE`` further rows. Without any neighbour, popularity
    decides.
    """

    _NEIGHBOURS, _SHRINKAGE = 100, 10.0

    def __init__(self, known: Cells) -> None:
        super().__init__(known)
        self._matrix = _as_matrix(known)  # (rows, features)
        self._popularity = Popularity(known)

    def rank_rows(self, contexts: Cells) -> Tensor:
        """Score rows by the similarity of the new feature to their features."""
        similarity = self._similarities(_as_matrix(contexts).T)
        scores = torch.from_numpy((self._matrix @ similarity).T.toarray())
        return scores + 1e-9 * self._popularity.rank_rows(contexts)

    def rank_features(self, contexts: Cells) -> Tensor:
        """Score features by their similarity to the features of the row."""
        scores = torch.from_numpy((_as_matrix(contexts) @ self._known_similarities).toarray())
        return scores + 1e-9 * self._popularity.rank_features(contexts)

    @cached_property
    def _known_similarities(self) -> Any:
        """The similarities of known features to each other, nearest only: (features, features)."""
        return self._similarities(self._matrix, without_self=True)

    def _similarities(self, columns: Any, *, without_self: bool = False) -> Any:
        """Return the similarities of known features to ``columns`` (rows, n), nearest only: (features, n)."""
        from scipy.sparse import csc_array, diags_array

        lengths, others = (
            np.sqrt(np.asarray(part.sum(0), dtype=np.float64).ravel() + self._SHRINKAGE)
            for part in (self._matrix, columns)
        )
        common = diags_array(1 / lengths) @ (self._matrix.T @ columns) @ diags_array(1 / others)
        nearest = csc_array(common)
        if without_self:
            nearest.setdiag(0.0)
        for column in range(nearest.shape[1]):
            numbers = nearest.data[nearest.indptr[column] : nearest.indptr[column + 1]]
            if len(numbers) > self._NEIGHBOURS:
                numbers[numbers < np.partition(numbers, -self._NEIGHBOURS)[-self._NEIGHBOURS]] = 0.0
        return nearest


class ALS(Reference):
    """Weighted matrix factorisation: relevant cells are ones, all cells are zeros of a small weight.

    A new row or feature is folded in: its factors are the solution given those of the other side. The
    penalty of a row or feature is proportional to its total weight.
    """

    _FACTORS, _SWEEPS, _ZEROS, _PENALTY = 32, 15, 0.1, 0.02

    def __init__(self, known: Cells) -> None:
        super().__init__(known)
        generator = torch.Generator().manual_seed(0)
        self.features = 0.1 * torch.randn(known.width, self._FACTORS, generator=generator)
        by_feature = known.transpose()
        for _ in range(self._SWEEPS):
            self.rows = self._fold_in(known, self.features)
            self.features = self._fold_in(by_feature, self.rows)

    def rank_rows(self, contexts: Cells) -> Tensor:
        """Score rows by the factors of the new feature."""
        return self._fold_in(contexts, self.rows) @ self.rows.T

    def rank_features(self, contexts: Cells) -> Tensor:
        """Score features by the factors of the row."""
        return self._fold_in(contexts, self.features) @ self.features.T

    def _fold_in(self, cells: Cells, other: Tensor) -> Tensor:
        """Return the factors of each line of ``cells``, given the factors of the other side: (lines, f)."""
        zeros = self._ZEROS * other.T @ other
        outer, factors = outer_products(other), torch.zeros(len(cells), self._FACTORS)
        for lines, block in line_blocks(cells, 8 * self._FACTORS**2):
            ones = torch.ones(len(block.index))
            total = unpack(segment_weighted_sum(outer, block, ones), self._FACTORS)
            penalty = self._PENALTY * (block.counts + self._ZEROS * len(other))
            total = total + zeros + torch.diag_embed(penalty[:, None].expand(-1, self._FACTORS))
            factors[lines] = solve(total, segment_weighted_sum(other, block, ones))[0]
        return factors


def _as_matrix(cells: Cells) -> Any:
    """Return the pattern of ``cells`` as a sparse matrix of ones (lines, width)."""
    from scipy.sparse import csr_array  # imported here: few uses of the package need SciPy

    ones = np.ones(len(cells.index))
    return csr_array((ones, cells.index.numpy(), cells.indptr.numpy()), shape=(len(cells), cells.width))


REFERENCES: dict[str, type[Reference]] = {"popularity": Popularity, "item-knn": ItemKNN, "als": ALS}
