"""Factorise a table by variational Bayes: a row's state is a closed form of its observations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple, Self
from weakref import WeakKeyDictionary

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from headstart.backbones.base import BackboneConfig, OpenBackbone, SweptBackbone, register_backbone
from headstart.backbones.factorisation_fit import FactorisationTraining, SweepProgress
from headstart.backbones.row_posterior import (
    BELIEVED,
    MORE_PASSES,
    NOISE_SHOTS,
    PASSES,
    HeadMoments,
    RowPosterior,
    RowSums,
    read_rows,
)
from headstart.backbones.signature import Signature
from headstart.core.likelihood import LikelihoodConfig
from headstart.core.networks import initial_tensor
from headstart.core.types import Description, Heads, OneState, RowBelief, RowStates
from headstart.linalg.packed import (
    Array,
    cholesky_one,
    diagonals,
    inverse,
    invert_one,
    pack,
    pack_one,
    robust_cholesky_one,
    solve,
    squares,
    unpack,
    unpack_one,
)
from headstart.table.cells import Cells
from headstart.table.kinds import KindType


class OneRow(NamedTuple):
    """What a row observed, and the heads by which it is read, one for each observation."""

    values: Array  # (n,)
    heads: Array  # (n, latent + 1): the means of (v, b), in double precision
    covariance: Array  # (n, packed), in single precision
    noise: Array  # (n,)
    kinds: Array  # (n,): of the features
    weights: Array | None = None  # (n,): how much each observation counts; None: all alike


class OnePosterior(NamedTuple):
    """The Gaussian posterior of a row's factors, and how exact its observations are."""

    mean: Array  # (latent,)
    covariance: Array  # (latent, latent)
    relative_precision: float


def one_state(
    backbone: Factorisation, row: OneRow, known: Array, belief: tuple[Array, Array] | None = None
) -> OneState:
    """The state of one row, as ``Factorisation.states_by`` gives it.

    ``known`` are the positions of the backbone's own features that the row observed; ``belief`` is the shift
    and the covariance of a ``RowBelief``.
    """
    signature = backbone.signature.of_one(known)
    mean = signature @ backbone.row_map.numpy()
    covariance = backbone.row_covariance.numpy()
    if belief is not None:
        mean, covariance = mean + belief[0], belief[1]
    two = backbone.has_two_values
    # The passes ask how exact ratings are, which two values do not tell, and how far to believe the others.
    passes = MORE_PASSES if (row.kinds != KindType.RATING).any() else 1 if two else PASSES
    prior = _own_precision(backbone) if belief is None else _precision(covariance)
    found = one_row_posterior(row, mean, prior, covariance, passes, finds_exactness=not two)
    variance = found.covariance.diagonal()
    std = np.sqrt(variance)
    certainty = np.array([np.log(found.relative_precision), 1 - 2 * std.mean()])
    code = np.concatenate([found.mean, certainty, signature[1:]])
    code_std = np.zeros(len(code))
    code_std[: len(std)] = std
    if not backbone.config.uncertain_rows:
        return OneState(code, code_std, found.mean)
    return OneState(code, code_std, found.mean, 1 / found.relative_precision, variance)


_KNOWN: WeakKeyDictionary[Factorisation, tuple[int, Array]] = WeakKeyDictionary()


def _own_precision(backbone: Factorisation) -> Array:
    """The precision of the rows' prior, kept until the covariance changes."""
    version = backbone.row_covariance._version
    known = _KNOWN.get(backbone)
    if known is None or known[0] != version:
        known = _KNOWN[backbone] = (version, _precision(backbone.row_covariance.numpy()))
    return known[1]


def _precision(covariance: Array) -> Array:
    """The precision of a covariance, as ``symmetric.inverse``."""
    exact = covariance.astype(np.float64)
    diagonal = exact.diagonal()
    raised = 1e-6 * (diagonal + diagonal.mean()) + 1e-12
    return invert_one(cholesky_one(exact + np.diag(raised)))


def one_row_posterior(
    row: OneRow, mean: Array, prior: Array, covariance: Array, passes: int, *, finds_exactness: bool = True
) -> OnePosterior:
    """The same fixed point as of many rows (``Factorisation.posterior_from``), in double precision.

    ``mean`` (latent,) and ``covariance`` are those of the prior, ``prior`` is its precision.
    """
    rated = row.kinds == KindType.RATING
    others = not rated.all()
    counted = rated.astype(np.float64) if row.weights is None else rated * row.weights
    weights, count = counted / row.noise, float(counted.sum())
    scale = np.sqrt(weights)
    scaled = row.heads * scale[:, None]
    total, linear = scaled.T @ scaled + _spread(row, weights), (row.values * scale) @ scaled
    squares = float(weights @ row.values**2)
    pull = prior @ mean
    exact, now, spread = 1.0, mean, covariance
    for turn in range(passes):
        if turn and finds_exactness and count:
            inner, cross = total[:-1, :-1], total[:-1, -1]
            expected = now @ (inner @ now + 2 * cross) + total[-1, -1] + np.vdot(inner, spread)
            errors = max(0.0, float(squares - 2 * (linear[:-1] @ now + linear[-1]) + expected))
            exact = (NOISE_SHOTS + count) / (NOISE_SHOTS + errors)
        precision, towards = exact * total, exact * linear
        if others:
            own, values = _weighted_one(row, now, spread, new=turn == 0)
            bounded = row.heads * np.sqrt(own)[:, None]
            precision += bounded.T @ bounded + _spread(row, own)
            towards = towards + values @ row.heads
        spread = invert_one(robust_cholesky_one(prior + precision[:-1, :-1]))
        now = spread @ (pull + towards[:-1] - precision[:-1, -1])
    return OnePosterior(now, spread, exact)


def _spread(row: OneRow, weights: Array) -> Array:
    """The weighted sum of the heads' covariances: (latent + 1, latent + 1)."""
    return unpack_one(weights.astype(row.covariance.dtype) @ row.covariance)


def _weighted_one(row: OneRow, mean: Array, spread: Array, *, new: bool) -> tuple[Array, Array]:
    """Observations that are no ratings as Gaussian ones, as ``Readings.weighted``: two of (n,)."""
    one = np.append(mean, 1.0)
    moments = np.outer(one, one)
    moments[:-1, :-1] += spread
    both = pack_one(moments + np.tril(moments, -1)).astype(row.covariance.dtype)  # off the diagonal twice
    output = row.heads @ one
    second = ((row.heads @ moments) * row.heads).sum(1) + row.covariance @ both
    bound = np.sqrt(np.maximum(second, 1e-6))
    doubt, squared = np.maximum(second - output**2, 0), (row.values - output) ** 2
    squared = squared / (row.noise + doubt) if new else (squared + doubt) / row.noise
    binary, real = row.kinds == KindType.BINARY, row.kinds == KindType.REAL
    believed = BELIEVED / np.maximum(squared, BELIEVED) / row.noise
    weights = np.where(real, believed, binary * np.tanh(bound / 2) / (2 * bound))
    values = np.where(real, believed * row.values, binary * (row.values - 0.5))
    return (weights, values) if row.weights is None else (weights * row.weights, values * row.weights)


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
    uncertain_rows: bool = True  # whether states say how noisy and how uncertain rows are
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
class Factorisation(SweptBackbone, OpenBackbone):
    """x_ij ~ u_i·v_j + b_j with Gaussian u and (v, b), every posterior with its full covariance.

    Given the features' posteriors, a row's is the closed form of Bayesian linear regression, so rows
    that are new get theirs at once. Its prior mean reads *which* features a row observed
    (``Signature``). A binary observation enters by the Jaakkola–Jordan bound: as a Gaussian one whose
    weight depends on how sure its prediction is. A real one loses weight if it is far off. Each sweep
    updates rows, then features, then priors and noise, which is coordinate ascent on the evidence bound.
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
        weight = initial_tensor(lambda: 0.1 * torch.randn(features, self.latent), features, self.latent)
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = nn.Parameter(torch.zeros(features), requires_grad=False)
        self.spread: Tensor  # packed posterior covariance of each (v, b)
        own = pack(0.01 * torch.eye(size))
        self.register_buffer("spread", initial_tensor(lambda: own.repeat(features, 1), features, len(own)))
        self.row_map: Tensor  # signature → prior mean of a row's factors
        self.register_buffer("row_map", torch.zeros(self.signature.size, self.latent))
        self.row_covariance: Tensor
        self.register_buffer("row_covariance", torch.eye(self.latent))
        self.precision: Tensor  # of an observation, by kind
        self.register_buffer("precision", torch.tensor([1.0, 16.0, 1.0]))
        self.relative_precision: Tensor  # of each feature's observations, relative to that
        self.register_buffer("relative_precision", torch.ones(features))

    @property
    def code_size(self) -> int:
        """Factors, how exactly and surely they are known, and the signature but for its constant."""
        return self.latent + 1 + self.signature.size

    @property
    def heads(self) -> Heads:
        """The features' posteriors."""
        noise = 1 / (self.precision[self.kinds] * self.relative_precision)
        return Heads(self.weight, self.bias, self.spread, noise)

    @property
    def has_two_values(self) -> bool:
        """Whether numbers take two values only: then the mean alone says how exact they are."""
        return len(self.grid) == 2

    # -- rows -------------------------------------------------------------------------------------

    def batch_states(self, cells: Cells) -> RowStates:
        """The code holds the factors and all else that is known of a row; heads read the factors."""
        return self.states_of(self.row_posterior(cells), self.signature(cells))

    def prior_means(self, cells: Cells) -> Tensor:
        """What the signature says of rows: (rows, latent)."""
        means: Tensor = self.signature(cells) @ self.row_map
        return means

    @torch.no_grad()
    def states_by(
        self, cells: Cells, heads: Heads, kinds: Tensor, own: Tensor, belief: RowBelief | None = None
    ) -> RowStates:
        """The same closed form by other heads; the signature knows the backbone's own features only.

        It is computed in double precision, so that a row is the same whatever others are described with it.
        """
        positions = own[cells.index]
        known = replace(cells, index=positions, width=self.features).keep(positions >= 0)
        if len(cells) == 1:
            return self._one_row(cells, known, heads.take(cells.index), kinds[cells.index], belief)
        if not len(cells):
            return self.batch_states(known)
        return read_rows(self, cells, known, HeadMoments.of(heads, kinds), belief)

    def _one_row(
        self, cells: Cells, known: Cells, heads: Heads, kinds: Tensor, belief: RowBelief | None
    ) -> RowStates:
        """The same of a single row, by heads of its observations, one each."""
        stacked = torch.cat([heads.weight, heads.bias[:, None]], dim=1).double().numpy()
        noise = torch.ones_like(heads.bias) if heads.noise is None else heads.noise
        row = OneRow(
            cells.values.double().numpy(),
            stacked,
            heads.packed_covariance.numpy(),
            noise.double().numpy(),
            kinds.numpy(),
            None if cells.weights is None else cells.weights.double().numpy(),
        )
        believed = None if belief is None else (belief.shift[0].numpy(), belief.covariance.numpy())
        return RowStates.of_one(one_state(self, row, known.index.numpy(), believed), self.weight.dtype)

    def states_of(self, posterior: RowPosterior, signature: Tensor) -> RowStates:
        """The states of rows of which this is known."""
        variance = diagonals(posterior.spread, self.latent)
        std = variance.sqrt()
        certainty = torch.stack([posterior.relative_precision.log(), 1 - 2 * std.mean(1)], dim=1)
        code = torch.cat([posterior.mean, certainty, signature[:, 1:]], dim=1)
        exact = std.new_zeros(len(std), code.shape[1] - self.latent)
        states = RowStates(code, torch.cat([std, exact], dim=1), posterior.mean)
        if not self.config.uncertain_rows:
            return states
        return replace(states, noise=1 / posterior.relative_precision, variance=variance)

    def readings(self) -> HeadMoments:
        """The backbone's own heads, as rows are read by them."""
        precision = self.precision[self.kinds] * self.relative_precision
        return HeadMoments(self.stacked_heads(), self.second_moments(), self.kinds, precision)

    def row_posterior(self, cells: Cells, passes: int | None = None) -> RowPosterior:
        """The posterior of each row's factors given the features': a few passes of a fixed point."""
        readings = self.readings()
        return self.posterior_from(cells, readings, readings.sums(cells), self.signature(cells), None, passes)

    def posterior_from(
        self,
        cells: Cells,
        readings: HeadMoments,
        sums: RowSums | None,
        signature: Tensor,
        start: RowPosterior | None,
        passes: int | None = None,
        belief: RowBelief | None = None,
    ) -> RowPosterior:
        """The posterior of rows given what their observations add up to, from a start if there is one."""
        covariance, mean = self.row_covariance.to(signature), signature @ self.row_map.to(signature)
        if belief is not None:
            covariance, mean = belief.covariance, mean + belief.shift
        prior = inverse(covariance)
        now = start or RowPosterior(mean, pack(covariance).expand(len(cells), -1), mean.new_ones(len(cells)))
        held = self.latent * (self.latent + 1) // 2  # of a packed matrix without its last line, the bias
        for turn in range(passes or readings.passes):
            exact = now.relative_precision if turn == 0 and start is None else self._exactness(now, sums)
            total = readings.second.new_zeros(1, readings.second.shape[-1]).expand(len(cells), -1)
            linear = mean.new_zeros(len(cells), self.latent + 1)
            if sums is not None:
                total = torch.addcmul(total, exact[:, None], sums.total)
                linear += exact[:, None] * sums.linear
            if readings.weighs:
                weights, values = readings.weighted(cells, now, new=turn == 0 and start is None)
                more, further = readings.summed(cells, weights, values)
                total, linear = total + more, linear + further
            linear = linear[:, :-1] - total[:, held:-1]
            precision = prior + unpack(total[:, :held], self.latent)
            means, covariances = solve(precision, mean @ prior + linear)
            now = RowPosterior(means, pack(covariances), exact)
        return now

    def _exactness(self, now: RowPosterior, sums: RowSums | None) -> Tensor:
        """How exact each row's ratings are, shrunk to the usual: (rows,).

        Reals are not asked: a row of large values errs by large amounts, and is to be believed all the same.
        """
        if self.has_two_values or sums is None:
            return torch.ones_like(now.relative_precision)
        squared = sums.squared_errors(now, now.moments())
        return (NOISE_SHOTS + sums.counts) / (NOISE_SHOTS + squared.clamp(min=0))

    def train_by_sweeps(
        self, cells: Cells, description: Description, generator: torch.Generator
    ) -> Iterator[float]:
        """Coordinate ascent on the evidence bound, from the means of rows and features."""
        yield from FactorisationTraining(self, cells, description, generator).sweeps()

    def train_resumably(
        self,
        cells: Cells,
        description: Description,
        generator: torch.Generator,
        checkpoint: Path,
        seconds: float,
    ) -> Iterator[float]:
        """The same, from the last sweep that was kept."""
        training = FactorisationTraining(self, cells, description, generator)
        yield from training.sweeps(SweepProgress(checkpoint, seconds))

    def stacked_heads(self) -> Tensor:
        """The features' (v, b): (features, latent + 1)."""
        return torch.cat([self.weight, self.bias[:, None]], dim=1)

    def second_moments(self) -> Tensor:
        """E[(v, b)(v, b)ᵀ] of each feature, packed."""
        return self.spread + squares(self.stacked_heads())


@dataclass(frozen=True)
class RowParts:
    """A row's factors as a sum, in double precision."""

    baseline: Tensor  # (latent,): the factors of a row without observations
    choice: Tensor  # (latent,): because of which features the row observed
    metadata: Tensor  # (latent,): because of the row's metadata
    observations: Tensor  # (n, latent): because of each value, in the order of the row's cells

    @property
    def total(self) -> Tensor:
        """The row's factors: (latent,)."""
        return self.baseline + self.choice + self.metadata + self.observations.sum(0)


@torch.no_grad()
def row_parts(
    backbone: Factorisation,
    cells: Cells,
    readings: HeadMoments | None = None,
    known: Cells | None = None,
    belief: RowBelief | None = None,
) -> RowParts:
    """Part the factors of one row (one line of ``cells``) into what its observations contribute.

    ``cells`` points at the heads of ``readings``, by default the backbone's own; ``known`` are those among
    them that the signature reads, ``belief`` what else is known of the row.

    Given the weights of the observations, the posterior mean u solves Λ·u = Λ₀·m + Σ (t·v − E[v·b]·ω), with
    Λ = Λ₀ + Σ ω·E[v·vᵀ], where ω is an observation's weight, t = ω·x its weighted value, and m the prior mean
    that signature and metadata give. For a row without both u is m₀. Subtracting Λ·m₀ on both sides,
    u − m₀ = Λ⁻¹·Λ₀·(m − m₀) + Σ Λ⁻¹·(t·v − ω·(E[v·b] + E[v·vᵀ]·m₀)): an observation contributes by how far
    it lies from what a row without observations would be expected to show.
    """
    readings, known = readings or backbone.readings(), known or cells
    signature = backbone.signature(known)
    weights, values = _weighted_parts(backbone, cells, readings, signature, belief)
    second = unpack(readings.second[cells.index].double(), readings.size)
    heads = readings.heads[cells.index].double()
    prior = inverse(backbone.row_covariance if belief is None else belief.covariance).double()
    precision = prior + (weights[:, None, None] * second[:, :-1, :-1]).sum(0)
    nothing = known.keep(torch.zeros_like(known.index, dtype=torch.bool))
    usual = (backbone.signature(nothing) @ backbone.row_map)[0].double()
    chosen = (signature @ backbone.row_map)[0].double() - usual
    shift = torch.zeros_like(usual) if belief is None else belief.shift[0].double()
    expected = second[:, :-1, -1] + second[:, :-1, :-1] @ usual
    pulls = values[:, None] * heads[:, :-1] - weights[:, None] * expected
    pulls = torch.cat([torch.stack([chosen, shift]) @ prior, pulls])
    solve = torch.linalg.solve(precision, pulls.T).T
    return RowParts(usual, solve[0], solve[1], solve[2:])


def _weighted_parts(
    backbone: Factorisation, cells: Cells, readings: HeadMoments, signature: Tensor, belief: RowBelief | None
) -> tuple[Tensor, Tensor]:
    """Weight, and weight × value, with which each observation entered the last pass: two of (n,)."""
    sums, passes = readings.sums(cells), readings.passes
    last = backbone.posterior_from(cells, readings, sums, signature, None, passes, belief)
    exact = cells.weighted(last.relative_precision.double() * readings.precision[cells.index].double())
    weights, values = exact, exact * cells.values.double()
    if readings.weighs:
        # What the last pass took follows from the pass before it.
        before = backbone.posterior_from(cells, readings, sums, signature, None, passes - 1, belief)
        own, weighted = readings.weighted(cells, before)
        rated = readings.kinds[cells.index] == KindType.RATING
        weights = torch.where(rated, weights, own.double())
        values = torch.where(rated, values, weighted.double())
    return weights, values
