"""The local part of a prediction: the residuals of a few known features at the same row.

Factors of low rank average out pairs and small groups of features that go together, such as the parts of one
exam question. The residuals of the known features still contain them. Let R_ij be the residual of known
feature j at row i: the value less the prediction of the backbone from the state of the row, in standard
deviations of an observation. A feature has weights a_j, and its output at row i is moved by Σ_j a_j·R_ij
standard deviations, where j runs over the known features that row i observed. The weights of a new feature
are

    a = ρ·m + s·T·Rᵀ·(R·T·Rᵀ + W⁻¹)⁻¹·r

- m_j = c_j² / max(1, Σ_l c_l²·f_l), from the cosine c_j ≥ 0 of the metadata of both features; f_l is the
  fraction of rows that observed feature l. The largest ``SIMILAR`` of them are not 0.
- The other term is the posterior mean of a Bayesian regression of the context's residuals r on the residuals
  of ``CHOSEN`` known features at the same rows: those with the largest gain (Rᵀ·W·r)_j² / ((Rᵀ·W·R)_jj + 1),
  about twice the gain of feature j alone in log-likelihood. W contains the weights of the observations. A
  network that is the same for all tables gives the prior variance T_jj of each weight (``core.local_prior``).
- ρ and s depend on the number of shots. They are estimated on held-out features (``LocalStrengths``), and
  are 0 where the local part does not improve their predictions.

Let y = μ + ε with noise ε of unit variance and a Gaussian prior of μ. Then the residual of y from the
posterior mean of μ is the posterior mean of ε. So if the noise of a feature has the covariances a_j with
the noises ε_j, then Σ_j a_j·R_ij is its mean given the row, to first order in a, for any number of
observations of the row: residuals of a row with few are small because its state was fitted to them, and that
is the right size. No correction by leverage is needed.

The weights of a known feature come from the same regression, with ρ = 0 and the observations of the table
(``training.known_neighbours``). They never change, and s depends on the number of observations of the row.
``model.local`` defines the residuals of rows that were added or observed after ``fit``.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from headstart.config import Config
from headstart.core.local_prior import PRIOR_SHARE, posterior_weights, relative_variance, shared_layers
from headstart.core.predictive import Predictive, predict_cells
from headstart.core.types import (
    VALIDATION_SHOTS,
    FeatureBatch,
    Heads,
    Knowledge,
    RowStates,
    interpolate_at_shots,
)
from headstart.table.cells import Cells
from headstart.table.kinds import KindType

if TYPE_CHECKING:
    from scipy.sparse import csr_array

SIMILAR = 128  # known features with a weight from the similarity of metadata

CHOSEN = 256  # known features with a weight estimated from the context

_MOST_COMPARED = 1000  # known features whose metadata is compared with each other

_ROUNDING = 1e-7  # relative difference of gains that are equal: the choice must not depend on rounding

_NUMBERS_AT_ONCE = 2**22  # of a dense block of residuals or weights


_NO_STRENGTHS = (0.0,) * len(VALIDATION_SHOTS)

_AtShots = Annotated[
    tuple[float, ...], Field(min_length=len(VALIDATION_SHOTS), max_length=len(VALIDATION_SHOTS))
]


class LocalStrengths(Config):
    """The strengths of local parts at each of ``VALIDATION_SHOTS``."""

    similar: _AtShots = _NO_STRENGTHS  # ρ of new features, by their shots
    chosen: _AtShots = _NO_STRENGTHS  # s of new features, by their shots
    known: _AtShots = _NO_STRENGTHS  # s of known features, by the number of observations of the row

    def at(self, shots: float) -> tuple[float, float]:
        """Return ρ and s at one number of shots, interpolated linearly in log(1 + shots)."""
        similar, chosen = (interpolate_at_shots(part, shots) for part in (self.similar, self.chosen))
        return similar, chosen

    def at_rows(self, observations: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return s of known features at rows with these numbers of ``observations`` (rows,): (rows,)."""
        strengths: NDArray[np.float64] = interpolate_at_shots(self.known, observations)
        return strengths


class LocalWeights(NamedTuple):
    """The weights of one feature: ascending positions of known features, and a number for each."""

    features: NDArray[np.int64]
    values: NDArray[np.float64]

    def scale(self, factor: float) -> LocalWeights:
        """Return the weights multiplied by ``factor``."""
        return LocalWeights(self.features, factor * self.values)

    def add(self, other: LocalWeights) -> LocalWeights:
        """Return the sum of two weights."""
        features, position = np.unique(np.concatenate([self.features, other.features]), return_inverse=True)
        values = np.zeros(len(features))
        np.add.at(values, position, np.concatenate([self.values, other.values]))
        return LocalWeights(features, values)


NO_WEIGHTS = LocalWeights(np.zeros(0, np.int64), np.zeros(0))


class Evidence(NamedTuple):
    """The arguments of the prior of the weights of one new feature."""

    features: NDArray[np.int64]  # (candidates,): ascending positions of known features
    inputs: NDArray[np.float64]  # (candidates, inputs): ``local_prior.INPUTS``


class Neighbours:
    """The residuals and metadata of the known features, from which new features get their local part.

    Parameters
    ----------
    knowledge : Knowledge
        The table that the backbone was trained on, with its row states and heads.
    """

    def __init__(self, knowledge: Knowledge) -> None:
        self._knowledge = knowledge

    @cached_property
    def residuals(self) -> csr_array:
        """The residuals of all observations of the table: (rows, features)."""
        return self.residuals_at(self._knowledge.states, self._knowledge.cells)

    @torch.no_grad()
    def residuals_at(self, states: RowStates, cells: Cells) -> csr_array:
        """Return the residuals of ``cells``, the observations of rows with ``states``: (rows, features).

        Features are in ascending order in each row. The activations of the backbone come first in those of
        ``states``. States and heads count as exactly known: behind a logistic link this makes a difference.
        """
        knowledge, by_feature = self._knowledge, cells.transpose()
        heads = replace(knowledge.heads.detach().to(states.activation.dtype), covariance=None)
        width = heads.weight.shape[1]
        states = replace(states, activation=states.activation[:, :width], variance=None)
        predictive = predict_cells(heads, states, by_feature, knowledge.kinds, knowledge.likelihood)
        by_row = sparse_residuals(predictive, by_feature).T.tocsr()
        by_row.sort_indices()
        return by_row

    @cached_property
    def _directions(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The mean of the encoded metadata (width,), and its centred unit vectors (features, width)."""
        numbers = self._knowledge.metadata.cpu().double().numpy()
        mean = numbers.mean(0)
        return mean, _unit_vectors(numbers - mean)

    @cached_property
    def _frequencies(self) -> NDArray[np.float64]:
        """The fraction of rows that observed each feature."""
        cells = self._knowledge.cells  # all of them: several processes have no local parts
        counts: NDArray[np.int64] = torch.bincount(cells.index, minlength=cells.width).cpu().numpy()
        return counts / max(1, len(cells))

    def _cosines(self, metadata: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return the cosines of encoded ``metadata`` (width,) with those of known features: (features,)."""
        mean, directions = self._directions
        cosines: NDArray[np.float64] = directions @ _unit_vectors(metadata[None].astype(np.float64) - mean)[0]
        return cosines

    def similar_weights(self, metadata: NDArray[np.float32]) -> LocalWeights:
        """Return the weights m of a feature with the encoded ``metadata`` (width,)."""
        if not len(metadata):
            return NO_WEIGHTS
        squares = np.maximum(0.0, self._cosines(metadata)) ** 2
        index = _largest(squares, SIMILAR)
        values = squares[index]
        return LocalWeights(index, values / max(1.0, float(values @ self._frequencies[index])))

    @cached_property
    def _table_inputs(self) -> NDArray[np.float64]:
        """The ``INPUTS`` of known features and of the table: (features, 12)."""
        residuals, frequency = self.residuals, self._frequencies
        rows, count = residuals.shape
        squares = np.bincount(residuals.indices, residuals.data**2, count)
        size = np.sqrt(squares / np.maximum(1, frequency * rows))
        of_table = [
            frequency.mean(),
            size.mean(),
            np.log(count) / 5,
            np.log(rows) / 5,
            np.log1p(residuals.nnz / rows) / 3,
            *self._metadata_inputs(),
        ]
        of_features = np.stack([frequency, np.log1p(frequency * rows) / 5, size], 1)
        return np.concatenate([of_features, np.tile(of_table, (count, 1))], 1)

    def _metadata_inputs(self) -> tuple[float, float, float, float]:
        """Return how well the residuals of similar features predict those of known features.

        The numbers are 1, the strength and the correlation of this prediction, and the share of features for
        which it has the right sign; all 0 without metadata.
        """
        _, directions = self._directions
        if not directions.any():
            return 0.0, 0.0, 0.0, 0.0
        some = np.arange(min(len(directions), _MOST_COMPARED))
        squares = np.maximum(0.0, directions[some] @ directions[some].T) ** 2
        np.fill_diagonal(squares, 0.0)
        similarity = squares / np.maximum(1.0, squares @ self._frequencies[some])[:, None]
        residuals = self.residuals[:, some]
        predicted = np.zeros(residuals.nnz)
        height = max(1, _NUMBERS_AT_ONCE // len(some))
        for start in range(0, residuals.shape[0], height):  # predictions of blocks of rows are dense
            block = residuals[start : start + height]
            rows = np.repeat(np.arange(block.shape[0]), np.diff(block.indptr))
            first = residuals.indptr[start]
            predicted[first : first + block.nnz] = (block @ similarity.T)[rows, block.indices]
        by_feature = np.bincount(residuals.indices, residuals.data * predicted, len(some))
        product, square, total = by_feature.sum(), (predicted**2).sum(), (residuals.data**2).sum()
        if not square:
            return 1.0, 0.0, 0.0, 0.0
        strength, correlation = product / square, max(0.0, product) / np.sqrt(square * total)
        return 1.0, float(np.clip(strength, -0.5, 1.5)), float(correlation), float((by_feature > 0).mean())

    def evidence(
        self,
        metadata: NDArray[np.float32],
        kind: int,
        observed: csr_array,
        residuals: NDArray[np.float64],
        weights: NDArray[np.float64],
        most: int = CHOSEN,
    ) -> Evidence:
        """Return the evidence on the weights of one feature.

        Parameters
        ----------
        metadata : ndarray of float32
            Its encoded metadata: (width,).
        kind : int
            Its kind.
        observed : csr_array
            The residuals of the known features at the rows of its context: (n, known features).
        residuals, weights : ndarray
            Its own residuals at these rows, and the weights of these observations: two of (n,).
        most : int
            The largest number of known features with a weight.
        """
        count = len(self._knowledge.kinds)
        weight = np.repeat(weights, np.diff(observed.indptr))
        shots = np.bincount(observed.indices, weight, count)
        squares = np.bincount(observed.indices, weight * observed.data**2, count)
        products = observed.T @ (weights * residuals)
        size, gain = float(weights @ residuals**2), products**2 / (squares + 1)
        largest = float(gain.max(initial=0.0))
        cosine = self._cosines(metadata)
        square = np.maximum(0.0, cosine) ** 2
        similarity = square / max(1.0, float(square @ self._frequencies))
        chosen = _largest(gain, most) if count > most else np.arange(count)
        of_candidates = np.stack([shots, squares, products, gain, cosine, square, similarity])[:, chosen]
        shots, squares, products, gain, cosine, square, similarity = of_candidates
        lengths = np.sqrt(squares * size)
        correlation = products / np.where(lengths > 0, lengths, 1.0)
        agreement = products / np.sqrt(squares + 1) / 3
        total, binary = float(weights.sum()), int(KindType.BINARY)
        of_new = (np.log1p(total) / 3, size / max(1.0, total), np.log1p(largest), float(kind == binary))
        columns = (
            (self._kinds[chosen] == binary).astype(float),
            cosine,
            square,
            similarity,
            agreement,
            np.abs(agreement),
            correlation,
            correlation**2,
            np.log1p(shots) / 3,
            gain / (largest + 1),
            (gain - largest) / 5,
            np.log1p(gain),
        )
        parts = (self._table_inputs[chosen], np.tile(of_new, (len(chosen), 1)), np.stack(columns, 1))
        return Evidence(chosen, np.concatenate(parts, 1))

    @cached_property
    def _kinds(self) -> NDArray[np.int64]:
        kinds: NDArray[np.int64] = self._knowledge.kinds.cpu().numpy()
        return kinds

    @cached_property
    def usual_variance(self) -> float:
        """The prior variance t of a weight at which the local part explains ``PRIOR_SHARE``."""
        residuals = self.residuals
        return float(PRIOR_SHARE * residuals.shape[0] / max(1e-9, float((residuals.data**2).sum())))

    def chosen_weights(
        self,
        metadata: NDArray[np.float32],
        kind: int,
        observed: csr_array,
        residuals: NDArray[np.float64],
        weights: NDArray[np.float64] | None = None,
        most: int = CHOSEN,
    ) -> LocalWeights:
        """Return the posterior mean of the weights of a feature, given its context as in ``evidence``.

        Rows without residuals have no influence; ``weights`` None: all 1.
        """
        informative = np.diff(observed.indptr) > 0
        if not informative.all():
            observed, residuals = observed[informative], residuals[informative]
            weights = None if weights is None else weights[informative]
        if not len(residuals):
            return NO_WEIGHTS
        weights = np.ones(len(residuals)) if weights is None else weights
        evidence = self.evidence(metadata, kind, observed, residuals, weights, most)
        variance = self.usual_variance * relative_variance(evidence.inputs, shared_layers())
        values = posterior_weights(variance, _dense_columns(observed, evidence.features), residuals, weights)
        nonzero = np.flatnonzero(values)
        return LocalWeights(evidence.features[nonzero], values[nonzero])

    def chosen_by_feature(
        self, context: FeatureBatch, residuals: Tensor, observed: csr_array
    ) -> list[LocalWeights]:
        """Return ``chosen_weights`` of each feature of ``context``, whose observations have ``residuals``.

        ``observed`` are the residuals of the rows that the cells of ``context`` index.
        """
        cells = context.cells
        numbers, rows = residuals.cpu().double().numpy(), cells.index.cpu().numpy().astype(np.int64)
        weights = None if cells.weights is None else cells.weights.cpu().double().numpy()
        ends = itertools.pairwise(cells.indptr.tolist())
        lines = zip(context.metadata.cpu().numpy(), context.kinds.tolist(), ends, strict=True)
        return [
            self.chosen_weights(
                metadata,
                kind,
                observed[rows[start:stop]],
                numbers[start:stop],
                None if weights is None else weights[start:stop],
            )
            for metadata, kind, (start, stop) in lines
        ]

    def weights_of(
        self, context: FeatureBatch, residuals: Tensor, observed: csr_array, strengths: LocalStrengths
    ) -> list[LocalWeights]:
        """Return the weights of each new feature of ``context``, as in ``chosen_by_feature``."""
        weights = []
        for metadata, chosen, shots in zip(
            context.metadata.cpu().numpy(),
            self.chosen_by_feature(context, residuals, observed),
            context.shots.tolist(),
            strict=True,
        ):
            of_similar, of_chosen = strengths.at(shots)
            similar = self.similar_weights(metadata) if of_similar else NO_WEIGHTS
            weights.append(similar.scale(of_similar).add(chosen.scale(of_chosen)))
        return weights

    def shifts_at_strength_one(self, context: FeatureBatch, residuals: Tensor, targets: Cells) -> Tensor:
        """Return the shifts of predictions of ``targets`` by both terms of the weights: (n, 2).

        The first is that of similar features, the second that of features chosen by the ``context``, whose
        observations have ``residuals`` (n,). Rows are those of the table.
        """
        similar = [self.similar_weights(metadata) for metadata in context.metadata.cpu().numpy()]
        chosen = self.chosen_by_feature(context, residuals, self.residuals)
        shifts = [
            LocalPart.of_new(self.stack(weights)).shifts_at(targets, self.residuals)
            for weights in (similar, chosen)
        ]
        return torch.from_numpy(np.stack(shifts, axis=1)).float().to(targets.index.device)

    def stack(self, weights: Sequence[LocalWeights]) -> csr_array:
        """Return the weights of several features as a sparse matrix: (features, known features)."""
        from scipy.sparse import csr_array

        ends = np.cumsum([0, *(len(part.features) for part in weights)])
        index = np.concatenate([NO_WEIGHTS.features, *(part.features for part in weights)])
        values = np.concatenate([NO_WEIGHTS.values, *(part.values for part in weights)])
        return csr_array((values, index, ends), shape=(len(weights), len(self._knowledge.kinds)))


@dataclass(frozen=True)
class LocalPart:
    """The weights of those features of a sequence that have a local part."""

    size: int  # the number of features in the sequence
    positions: NDArray[np.int64]  # (p,): of the features with a local part, ascending
    weights: csr_array  # (p, known features)
    known: NDArray[np.bool_]  # (p,): whether they are known features, whose strength depends on the row
    strengths: LocalStrengths

    @classmethod
    def of_new(cls, weights: csr_array) -> LocalPart:
        """Return the local part of a sequence of new features that all have ``weights``."""
        count = weights.shape[0]
        return cls(count, np.arange(count), weights, np.zeros(count, bool), LocalStrengths())

    def take(self, features: NDArray[np.int64]) -> LocalPart:
        """Return the local part of the ``features`` at these positions of the sequence, in this order."""
        lines = _inverse(self.positions, self.size)[features]
        positions = np.flatnonzero(lines >= 0)
        lines = lines[positions]
        return LocalPart(len(features), positions, self.weights[lines], self.known[lines], self.strengths)

    def terms(self, residuals: csr_array) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the terms a_j·R_ij that are not 0, of a single feature at one row.

        ``residuals`` (1, known features) are the row's residuals. The result has the positions of the known
        features (n,) and the terms (n,).
        """
        weights = self.weights[[0]].toarray()[0]
        terms = residuals.data * weights[residuals.indices]
        if self.known[0]:
            terms = terms * self._row_strengths(residuals)[0]
        nonzero = np.flatnonzero(terms)
        return residuals.indices[nonzero].astype(np.int64), terms[nonzero]

    def shift(self, predictive: Predictive, residuals: csr_array | None) -> Predictive:
        """Return the predictions of a grid, of rows by all features, moved by the local part.

        ``residuals`` (rows, known features) are the residuals of the rows; None: they have none.
        """
        if residuals is None or not residuals.nnz or not len(self.positions):
            return predictive
        shifts, sums = np.zeros((residuals.shape[0], self.size)), weighted_sums(residuals, self.weights)
        if self.known.any():
            sums[:, self.known] *= self._row_strengths(residuals)[:, None]
        shifts[:, self.positions] = sums
        return predictive.shifted(torch.from_numpy(shifts).to(predictive.logits))

    def shift_cells(self, predictive: Predictive, cells: Cells, residuals: csr_array) -> Predictive:
        """Return the predictions of ``cells``, as in ``shifts_at``, moved by the local part."""
        return predictive.shifted(torch.from_numpy(self.shifts_at(cells, residuals)).to(predictive.logits))

    def shifts_at(self, cells: Cells, residuals: csr_array) -> NDArray[np.float64]:
        """Return Σ_j a_j·R_ij at ``cells`` (n,): lines are features, indices rows of ``residuals``."""
        width = max(1, self.weights.shape[1])
        rows, lines = cells.index.cpu().numpy().astype(np.int64), cells.lines.cpu().numpy()
        weight_lines = _inverse(self.positions, self.size)[lines]  # −1: the feature has no local part
        shifts = np.zeros(len(rows))
        shifted = np.flatnonzero(weight_lines >= 0)
        counts = np.diff(residuals.indptr)[rows[shifted]]
        # Blocks of observations, one feature after the other, so that few weights are made dense.
        numbers = np.cumsum(counts + 1) + width * (weight_lines[shifted] - weight_lines[shifted][:1])
        for part in np.split(shifted, np.flatnonzero(np.diff(numbers // _NUMBERS_AT_ONCE)) + 1):
            if not len(part):
                continue
            observed, first = residuals[rows[part]], weight_lines[part[0]]
            dense = self.weights[first : weight_lines[part[-1]] + 1].toarray()
            owner = np.repeat(np.arange(len(part)), np.diff(observed.indptr))
            terms = observed.data * dense[(weight_lines[part] - first)[owner], observed.indices]
            shifts[part] = np.bincount(owner, terms, len(part))
        if self.known.any():
            known = shifted[self.known[weight_lines[shifted]]]
            shifts[known] *= self._row_strengths(residuals)[rows[known]]
        return shifts

    def _row_strengths(self, residuals: csr_array) -> NDArray[np.float64]:
        """Return the strengths of known features at the rows of ``residuals``: (rows,)."""
        return self.strengths.at_rows(np.diff(residuals.indptr))


def weighted_sums(residuals: csr_array, weights: csr_array) -> NDArray[np.float64]:
    """Return Σ_j a_j·R_ij of rows with ``residuals`` at features with ``weights``: (rows, features).

    A number does not depend on the other rows and features.
    """
    rows, features = residuals.shape[0], weights.shape[0]
    result = np.zeros((rows, features))
    height = max(1, _NUMBERS_AT_ONCE // max(1, weights.shape[1]))
    if features <= rows:  # the smaller side is made dense
        for start in range(0, features, height):
            result[:, start : start + height] = residuals @ weights[start : start + height].toarray().T
        return result
    for start in range(0, rows, height):
        result[start : start + height] = (weights @ residuals[start : start + height].toarray().T).T
    return result


@torch.no_grad()
def local_part_of(
    knowledge: Knowledge,
    heads: Heads,
    context: FeatureBatch,
    states: RowStates,
    strengths: LocalStrengths,
    observed: csr_array | None = None,
) -> LocalPart:
    """Return the local part of the new features of ``context``, with ``heads`` computed from ``states``.

    ``observed`` are the residuals of the rows of ``states``, by default those of the table.
    """
    cells, neighbours = context.cells, neighbours_of(knowledge)
    predictive = predict_cells(heads, states, cells, context.kinds, knowledge.likelihood)
    observed = neighbours.residuals if observed is None else observed
    weights = neighbours.weights_of(context, predictive.residuals(cells.values), observed, strengths)
    return LocalPart.of_new(neighbours.stack(weights))


def sparse_residuals(predictive: Predictive, cells: Cells) -> csr_array:
    """Return the residuals of ``cells`` from their predictions as a sparse matrix: (lines, width)."""
    from scipy.sparse import csr_array  # imported here: few uses of the package need SciPy

    values = cells.values.to(predictive.logits.dtype)
    parts = (predictive.residuals(values).double(), cells.index, cells.indptr)
    return csr_array(tuple(part.cpu().numpy() for part in parts), shape=(len(cells), cells.width))


def neighbours_of(knowledge: Knowledge) -> Neighbours:
    """Return the neighbours of a table; its residuals are computed once."""
    if "_neighbours" not in vars(knowledge):
        vars(knowledge)["_neighbours"] = Neighbours(knowledge)
    neighbours: Neighbours = vars(knowledge)["_neighbours"]
    return neighbours


def _largest(numbers: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """Return the ascending positions of the ``count`` largest positive numbers; of equal ones the first."""
    positive = np.flatnonzero(numbers > 0)
    if len(positive) > count:
        candidates = numbers[positive]
        smallest = np.partition(candidates, -count)[-count] * (1 - _ROUNDING)
        positive = positive[candidates >= smallest]
        rounded = np.round(numbers[positive] / (_ROUNDING * numbers[positive].max()))
        positive = np.sort(positive[np.argsort(-rounded, kind="stable")[:count]])
    return positive


def _inverse(positions: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Return where each of the numbers below ``size`` is among ``positions``, or −1: (size,)."""
    inverse = np.full(size, -1)
    inverse[positions] = np.arange(len(positions))
    return inverse


def _unit_vectors(numbers: NDArray[Any]) -> NDArray[np.float64]:
    """Divide each line by its length; a line of zeros stays."""
    lengths = np.linalg.norm(numbers, axis=1, keepdims=True)
    result: NDArray[np.float64] = numbers / np.where(lengths > 0, lengths, 1.0)
    return result


def _dense_columns(matrix: csr_array, columns: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return some columns of a sparse matrix as a dense one: (rows, columns)."""
    rows, count = matrix.shape
    positions = _inverse(columns, count)[matrix.indices]
    lines = np.repeat(np.arange(rows), np.diff(matrix.indptr))
    selected = positions >= 0
    dense = np.zeros((rows, len(columns)))
    dense[lines[selected], positions[selected]] = matrix.data[selected]
    return dense
