"""Variational Bayesian matrix factorisation: a row's state is a closed form of its observations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Literal, Self

import torch
from pydantic import Field
from torch import Tensor, nn

from headstart.algebra.symmetric import diagonals, inverse, pack, solved, squares, unpack
from headstart.backbones.one_row import OneRow, one_state
from headstart.backbones.protocol import BackboneConfig, OpenBackbone, SweptBackbone
from headstart.backbones.reading import read_rows
from headstart.backbones.registry import register_backbone
from headstart.backbones.rows import NOISE_SHOTS, Readings, RowPosterior, RowSums
from headstart.backbones.signature import Signature
from headstart.backbones.sweep_progress import SweepProgress
from headstart.backbones.sweeping import FactorisationTraining
from headstart.core.description import Description
from headstart.core.heads import Heads
from headstart.core.initial import initial
from headstart.core.likelihood import LikelihoodConfig
from headstart.core.row_prior import RowBelief
from headstart.core.states import RowStates
from headstart.table.cells import Cells
from headstart.table.kinds import KindType

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
        weight = initial(lambda: 0.1 * torch.randn(features, self.latent), features, self.latent)
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = nn.Parameter(torch.zeros(features), requires_grad=False)
        self.spread: Tensor  # packed posterior covariance of each (v, b)
        own = pack(0.01 * torch.eye(size))
        self.register_buffer("spread", initial(lambda: own.repeat(features, 1), features, len(own)))
        self.row_map: Tensor  # signature → prior mean of a row's factors
        self.register_buffer("row_map", torch.zeros(self.signature.size, self.latent))
        self.row_covariance: Tensor
        self.register_buffer("row_covariance", torch.eye(self.latent))
        self.precision: Tensor  # of an observation, by kind
        self.register_buffer("precision", torch.tensor([1.0, 16.0, 1.0]))
        self.exactness: Tensor  # of each feature's observations, relative to that
        self.register_buffer("exactness", torch.ones(features))

    @property
    def code_size(self) -> int:
        """Factors, how exactly and surely they are known, and the signature but for its constant."""
        return self.latent + 1 + self.signature.size

    @property
    def heads(self) -> Heads:
        """The features' posteriors."""
        noise = 1 / (self.precision[self.kinds] * self.exactness)
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
        return read_rows(self, cells, known, Readings.of(heads, kinds), belief)

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
        certainty = torch.stack([posterior.exactness.log(), 1 - 2 * std.mean(1)], dim=1)
        code = torch.cat([posterior.mean, certainty, signature[:, 1:]], dim=1)
        exact = std.new_zeros(len(std), code.shape[1] - self.latent)
        states = RowStates(code, torch.cat([std, exact], dim=1), posterior.mean)
        if not self.config.uncertain_rows:
            return states
        return replace(states, noise=1 / posterior.exactness, variance=variance)

    def readings(self) -> Readings:
        """The backbone's own heads, as rows are read by them."""
        precision = self.precision[self.kinds] * self.exactness
        return Readings(self.stacked_heads(), self.second_moments(), self.kinds, precision)

    def row_posterior(self, cells: Cells, passes: int | None = None) -> RowPosterior:
        """The posterior of each row's factors given the features': a few passes of a fixed point."""
        readings = self.readings()
        return self.posterior_from(cells, readings, readings.sums(cells), self.signature(cells), None, passes)

    def posterior_from(
        self,
        cells: Cells,
        readings: Readings,
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
            exact = now.exactness if turn == 0 and start is None else self._exactness(now, sums)
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
            means, covariances = solved(precision, mean @ prior + linear)
            now = RowPosterior(means, pack(covariances), exact)
        return now

    def _exactness(self, now: RowPosterior, sums: RowSums | None) -> Tensor:
        """How exact each row's ratings are, shrunk to the usual: (rows,).

        Reals are not asked: a row of large values errs by large amounts, and is to be believed all the same.
        """
        if self.has_two_values or sums is None:
            return torch.ones_like(now.exactness)
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
