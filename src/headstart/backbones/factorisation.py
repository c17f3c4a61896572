"""The default backbone: a factorisation of the table by variational Bayes.

The state of a row follows from its observations in closed form (``row_posterior``); ``factorisation_fit``
trains the model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from headstart.backbones.base import Backbone, BackboneConfig, register_backbone
from headstart.backbones.row_posterior import (
    AnyArray,
    FactorPrior,
    HeadMoments,
    RowBatch,
    RowPosterior,
    SingleRow,
    SparseRows,
    Zeros,
    count_passes,
    row_contributions,
    row_posterior,
)
from headstart.backbones.signature import Signature
from headstart.core.clicks import ZERO_WEIGHT, count_clicks, estimate_exposure, is_click
from headstart.core.likelihood import LikelihoodConfig
from headstart.core.networks import initial_tensor
from headstart.core.types import (
    Description,
    Heads,
    OneRow,
    OneState,
    RowParts,
    RowPrior,
    RowStates,
    interpolate_shots,
)
from headstart.linalg.array_ops import Array, namespace
from headstart.linalg.packed import inverse, outer_products, pack, unpack
from headstart.linalg.ragged import line_blocks
from headstart.table.cells import Cells
from headstart.table.kinds import KindType
from headstart.table.margins import VALUE_TYPES

_MOST, _LEAST = 32, 16  # factors by default: a third of the features within these limits

# The lower limit is smaller for few observations: this times their number for each row or feature.
_LEAST_PER_NUMBER = 2.0

_MOST_NUMBERS = 320_000  # features times factors up to which a table has ``_MOST``, to bound time and memory

# Numbers of observations of a row; from the last one on there is no shift.
ROW_SHIFT_MARKS = (0, 1, 4, 16, 64)

_LOG_MARKS = np.log1p(ROW_SHIFT_MARKS)

_COPIES = 4 * 8  # bytes of the copies of each number of a row's heads or moments, in double precision


class FactorisationConfig(BackboneConfig):
    """Settings of the factorisation; a ``None`` is replaced by a default for the number of features."""

    name: Literal["factorisation"] = "factorisation"
    latent: int | None = Field(None, ge=1)  # superfluous factors shrink to zero
    signature: int | None = Field(None, ge=0)  # length of the vector that summarises which features a row has
    # Whether rows choose the features they observe, as people choose the films they rate; only then is the
    # choice informative. None: yes, unless all features are binary, like exam questions and diagnoses.
    observed_by_choice: bool | None = None
    sweeps: int = Field(20, ge=1)
    uncertain_rows: bool = True  # whether states contain the noise and the variance of rows
    # Whether the real features have a noise of their own each, as ratings have; otherwise all share one.
    # None: the judge decides, and no without it.
    noise_by_feature: bool | None = None
    likelihood: LikelihoodConfig = LikelihoodConfig(rating_link="identity")

    @property
    def estimates_noise_by_feature(self) -> bool | None:
        """The setting ``noise_by_feature``."""
        return self.noise_by_feature

    def with_noise_by_feature(self) -> Self:
        """Set ``noise_by_feature``."""
        return self.revised(noise_by_feature=True)

    def resolved(self, kinds: Tensor, rows: int | None = None, observations: int = 0) -> Self:
        """Return the settings with sizes for features of these ``kinds`` filled in.

        ``rows`` and ``observations`` are the numbers of the table; None: they limit no size.

        >>> ratings = torch.ones(3000, dtype=torch.int64)
        >>> large, small = (FactorisationConfig().resolved(ratings[:n]) for n in (3000, 12))
        >>> (large.latent, large.signature), (small.latent, small.signature)
        ((32, 32), (16, 3))
        >>> [FactorisationConfig().resolved(ratings[:1].repeat(n)).latent for n in (10000, 15000, 20000)]
        [32, 21, 16]
        >>> FactorisationConfig().resolved(ratings[:12], rows=30, observations=200).latent
        10
        """
        features = len(kinds)
        most = min(_MOST, max(_LEAST, _MOST_NUMBERS // max(1, features)))  # without a step in time
        by_choice = self.observed_by_choice
        if by_choice is None:
            by_choice = not bool(((kinds == KindType.BINARY) | is_click(kinds)).all())
        signature = self.signature
        if signature is None:
            signature = min(most, features // 4) if by_choice else 0
        least = _LEAST
        if rows is not None and not bool(is_click(kinds).any()):  # each cell of clicks is an observation
            least = min(least, round(_LEAST_PER_NUMBER * observations / (rows + features)))
        latent = self.latent or min(most, max(2, least, features // 3))
        return self.revised(
            latent=latent,
            signature=signature,
            observed_by_choice=by_choice,
            noise_by_feature=bool(self.noise_by_feature),
        )


@register_backbone
class Factorisation(Backbone):
    """Model x_ij ~ u_i·v_j + b_j with Gaussian u and (v, b), and full posterior covariances.

    Given the features' posteriors, the posterior of a row, known or new, is that of Bayesian linear
    regression (``row_posterior``). Its prior mean depends on *which* features the row observed
    (``Signature``). The Jaakkola–Jordan bound replaces a binary observation by a Gaussian one whose weight
    depends on the certainty of its prediction; real outliers lose weight. Each sweep updates rows, then
    features, then priors and noise: coordinate ascent on the evidence lower bound.
    """

    config_type: ClassVar[type[BackboneConfig]] = FactorisationConfig
    trained_by = "sweeps"
    reads_any_head: ClassVar[bool] = True
    reads_single_rows: ClassVar[bool] = True
    explainable: ClassVar[bool] = True
    sharded: ClassVar[bool] = True
    supports_weights: ClassVar[bool] = True
    supports_clicks: ClassVar[bool] = True
    config: FactorisationConfig

    def __init__(self, config: FactorisationConfig, kinds: Tensor, grid: Tensor) -> None:
        super().__init__(config, kinds, grid)
        features = len(kinds)
        self.latent, signature_length = config.latent or 2, config.signature or 0
        self.sweeps = config.sweeps
        self.signature = Signature(features, signature_length)
        weight = initial_tensor(lambda: 0.1 * torch.randn(features, self.latent), features, self.latent)
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = nn.Parameter(torch.zeros(features), requires_grad=False)
        self.covariance: Tensor  # (features, packed): posterior covariance of each (v, b)
        covariance = pack(0.01 * torch.eye(self.latent + 1))
        self.register_buffer(
            "covariance", initial_tensor(lambda: covariance.repeat(features, 1), features, len(covariance))
        )
        self.row_map: Tensor  # (signature, latent): from a signature to the prior mean of a row's factors
        self.register_buffer("row_map", torch.zeros(self.signature.size, self.latent))
        self.row_shift: Tensor  # (latent,): of the prior mean of rows with few observations
        self.register_buffer("row_shift", torch.zeros(self.latent))
        self.row_shift_shares: Tensor  # (marks,): of the shift, at ROW_SHIFT_MARKS observations
        self.register_buffer("row_shift_shares", torch.zeros(len(ROW_SHIFT_MARKS)))
        self.row_covariance: Tensor  # (latent, latent): of the prior of a row's factors
        self.register_buffer("row_covariance", torch.eye(self.latent))
        self.precision: Tensor  # (kinds,): of an observation
        clicks = bool(is_click(kinds).any())
        self.register_buffer("precision", torch.tensor([1.0, 16.0, 1.0, 16.0][: VALUE_TYPES + clicks]))
        self.relative_precision: Tensor  # (features,): of a feature's observations, relative to its kind's
        self.register_buffer("relative_precision", torch.ones(features))
        # The zeros of clicks after training, and the usual number of a row's clicks; None without clicks.
        self.zero_moments: Tensor | None
        self.usual_clicks: Tensor | None
        self.register_buffer("zero_moments", torch.zeros_like(covariance) if clicks else None)
        self.register_buffer("usual_clicks", torch.ones((), dtype=torch.float64) if clicks else None)
        self._row_passes: int | None = None
        self._cached_prior: tuple[Tensor, int, tuple[Array, Array]] | None = None

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *arguments: Any) -> None:
        """Read the shift of rows without observations, which earlier versions have in place of shares."""
        shift = state_dict.pop(f"{prefix}empty_shift", None)
        if shift is not None:
            shares = torch.zeros_like(self.row_shift_shares)
            shares[0] = 1.0
            state_dict |= {f"{prefix}row_shift": shift, f"{prefix}row_shift_shares": shares}
        super()._load_from_state_dict(state_dict, prefix, *arguments)

    @property
    def code_size(self) -> int:
        """Length of the code: factors, their precision and certainty, and signature without its constant."""
        return self.latent + 1 + self.signature.size

    @property
    def heads(self) -> Heads:
        """The features' posteriors."""
        return Heads(self.weight, self.bias, self.covariance, 1 / self.observation_precision)

    @property
    def observation_precision(self) -> Tensor:
        """Precision of each feature's observations at a row of average noise: (features,)."""
        return self.precision[self.kinds] * self.relative_precision

    @property
    def noisy_rows(self) -> bool:
        """Whether rows differ in the precision of their ratings; no if ratings have only two values."""
        return len(self.grid) != 2

    @property
    def row_passes(self) -> int:
        """Number of passes of the fixed-point iteration for the posterior of a row."""
        if self._row_passes is None:
            self._row_passes = count_passes(self.kinds, noisy=self.noisy_rows)
        return self._row_passes

    def second_moments(self) -> Tensor:
        """Return E[(v, b)(v, b)ᵀ] of the backbone's own heads: (features, packed)."""
        return self.covariance + outer_products(self.heads.stacked)

    def head_moments(self, second: Tensor | None = None) -> HeadMoments:
        """Return the moments of the backbone's own heads; ``second`` are its ``second_moments``."""
        stacked, zeros, precision = self.heads.stacked, None, self.observation_precision
        second = self.second_moments() if second is None else second
        if self.usual_clicks is not None:
            weights = torch.where(is_click(self.kinds), precision, 0.0)
            zeros = Zeros(ZERO_WEIGHT * weights @ second, self.usual_clicks)
        return HeadMoments(stacked, second, self.kinds, precision, zeros)

    # -- rows -------------------------------------------------------------------------------------

    def batch_states(self, cells: Cells) -> RowStates:
        """Compute the states of rows; the activation is the posterior mean of the factors."""
        return self.batch_function()(cells)

    def batch_function(self) -> Callable[[Cells], RowStates]:
        """Return ``batch_states`` for several batches, which share the moments of the heads."""
        moments = self.head_moments()

        def states(cells: Cells) -> RowStates:
            signature = self.signature(cells)
            return self.states_of(
                self.posterior_of_rows(cells, signature, moments), signature, cells, self.kinds
            )

        return states

    def posterior_of_rows(
        self, cells: Cells, signature: Tensor | None = None, moments: HeadMoments | None = None
    ) -> RowPosterior:
        """Compute the posteriors of rows' factors given the backbone's own heads and their ``moments``."""
        prior = self.factor_prior(self.signature(cells) if signature is None else signature, cells.counts)
        rows = RowBatch(cells, self.head_moments() if moments is None else moments)
        return row_posterior(rows, prior, self.row_passes, noisy=self.noisy_rows)

    def factor_prior(
        self, signature: Tensor, counts: Tensor | None = None, row_prior: RowPrior | None = None
    ) -> FactorPrior:
        """Return the prior of the factors of rows with a ``signature`` (rows, size), in the same dtype.

        ``counts`` (rows,) are their numbers of observations; None: without the shift of rows with few.
        """
        mean = self._prior_means(signature, counts)
        covariance = self.row_covariance.to(signature)
        if row_prior is not None:
            mean, covariance = mean + row_prior.shift.to(signature), row_prior.covariance.to(signature)
        return FactorPrior(mean, pack(covariance), inverse(covariance))

    def _prior_means(self, signature: Tensor, counts: Tensor | None) -> Tensor:
        """Return the prior means of rows without metadata, as ``factor_prior`` does: (rows, latent)."""
        mean = signature @ self.row_map.to(signature)
        if counts is None:
            return mean
        left, right, part = interpolate_shots(torch.tensor(ROW_SHIFT_MARKS, device=counts.device), counts)
        shares = torch.lerp(
            self.row_shift_shares[left], self.row_shift_shares[right], part.to(self.row_shift)
        )
        return mean + shares.to(signature)[:, None] * self.row_shift.to(signature)

    def prior_means(self, cells: Cells) -> Tensor:
        """Compute the prior means of rows from their signatures: (rows, latent)."""
        return self._prior_means(self.signature(cells), cells.counts)

    @torch.no_grad()
    def states_from_heads(
        self,
        cells: Cells,
        heads: Heads,
        kinds: Tensor,
        backbone_positions: Tensor,
        row_prior: RowPrior | None = None,
    ) -> RowStates:
        """Compute the states of rows from ``heads`` instead of the backbone's own.

        ``backbone_positions`` are negative for features added later, which the signature does not read. The
        computation is in double precision, so that the state of a row does not depend on the other rows.
        """
        known = self._backbone_cells(cells, backbone_positions)
        if len(cells) == 1:
            return self._state_from_heads(
                cells, known, heads.take(cells.index), kinds[cells.index], row_prior
            )
        if not len(cells):
            return self.batch_states(known)
        heads, width = heads.dense(), heads.weight.shape[1] + 1
        parts = []
        for lines, block in line_blocks(cells, per_line=_COPIES * width**2, per_cell=_COPIES * width):
            signature = self.signature(known.block(lines.start, lines.stop)).double()
            rows = SparseRows(block, heads, kinds, self.trained_zeros)
            prior = self.factor_prior(
                signature, block.counts, None if row_prior is None else row_prior.take(lines)
            )
            posterior = row_posterior(rows, prior, self.row_passes, noisy=self.noisy_rows)
            parts.append(self.states_of(posterior, signature, block, kinds).to(self.weight.dtype))
        return RowStates.concatenate(parts)

    def _state_from_heads(
        self, cells: Cells, known: Cells, heads: Heads, kinds: Tensor, row_prior: RowPrior | None
    ) -> RowStates:
        """Compute the state of a single row, with one head for each of its observations."""
        noise = torch.ones_like(heads.bias) if heads.noise is None else heads.noise
        row = OneRow(
            cells.values.double().numpy(),
            heads.stacked.double().numpy(),
            heads.packed_covariance.numpy(),
            noise.double().numpy(),
            kinds.numpy(),
            None if cells.weights is None else cells.weights.double().numpy(),
        )
        shift = None if row_prior is None else (row_prior.shift[0].numpy(), row_prior.covariance.numpy())
        return RowStates.of_one(self.state_of_one(row, known.index.numpy(), shift), self.weight.dtype)

    def state_of_one(
        self, row: OneRow, known: Array, row_prior: tuple[Array, Array] | None = None
    ) -> OneState:
        """Compute the state of a single row in numpy, as ``states_from_heads`` does."""
        signature = self.signature.of_one(known)
        mean = signature @ self.row_map.numpy()
        share = np.interp(math.log1p(len(row.values)), _LOG_MARKS, self.row_shift_shares.numpy())
        mean = mean + share * self.row_shift.numpy()
        if row_prior is None:
            prior = FactorPrior(mean, *self._cached_numpy_prior())
        else:
            prior = FactorPrior(mean + row_prior[0], *_numpy_prior(torch.from_numpy(row_prior[1])))
        rows = SingleRow(row, self._numpy_zeros)
        posterior = row_posterior(rows, prior, self.row_passes, noisy=self.noisy_rows)
        state = OneState(*self._state_parts(posterior, signature))
        if self._numpy_zeros is None:
            return state
        return state._replace(
            exposure=float(estimate_exposure(is_click(row.kinds).sum(), self._numpy_zeros[1]))
        )

    def _cached_numpy_prior(self) -> tuple[Array, Array]:
        """Return covariance and precision of the rows' prior in numpy, computed once."""
        covariance, cached = self.row_covariance, self._cached_prior
        if cached is None or cached[0] is not covariance or cached[1] != covariance._version:
            self._cached_prior = cached = (covariance, covariance._version, _numpy_prior(covariance))
        return cached[2]

    def keep_zeros(self) -> None:
        """Keep the zeros of clicks given the present heads, for the states of rows after training."""
        zeros = self.head_moments().zeros
        if self.zero_moments is not None and zeros is not None:
            self.zero_moments.copy_(zeros.moments)

    @property
    def trained_zeros(self) -> Zeros | None:
        """The zeros of clicks at the end of training; None without clicks."""
        if self.zero_moments is None or self.usual_clicks is None:
            return None
        return Zeros(self.zero_moments, self.usual_clicks)

    @cached_property
    def _numpy_zeros(self) -> tuple[Array, float] | None:
        """The zeros of clicks as a matrix in numpy, and the usual clicks, after training."""
        zeros = self.trained_zeros
        return None if zeros is None else (unpack(zeros.moments.double().numpy()), float(zeros.usual_clicks))

    def states_of(self, posterior: RowPosterior, signature: Tensor, cells: Cells, kinds: Tensor) -> RowStates:
        """Assemble the states of rows from their posteriors; ``kinds`` (width,) belong to features."""
        states = RowStates(*self._state_parts(posterior, signature))
        if self.usual_clicks is None:
            return states
        exposure = estimate_exposure(count_clicks(cells, kinds), self.usual_clicks)
        return replace(states, exposure=exposure.to(states.code.dtype))

    def _state_parts(self, posterior: RowPosterior, signature: AnyArray) -> list[AnyArray]:
        """Return code, its standard deviation, activation and, if ``uncertain_rows``, noise and variance."""
        xp, mean, relative = namespace(posterior.mean), posterior.mean, posterior.relative_precision
        variance = posterior.variance
        std = xp.sqrt(variance)
        certainty = xp.stack([xp.log(relative), 1 - 2 * std.mean(-1)], -1)
        code = xp.concatenate([mean, certainty, signature[..., 1:]], -1)
        code_std = xp.zeros_like(code)
        code_std[..., : self.latent] = std
        parts = [code, code_std, mean]
        uncertain = self.config.uncertain_rows or self.usual_clicks is not None
        return [*parts, 1 / relative, variance] if uncertain else parts

    @torch.no_grad()
    def row_parts(
        self,
        cells: Cells,
        heads: Heads,
        kinds: Tensor,
        backbone_positions: Tensor,
        row_prior: RowPrior | None = None,
    ) -> RowParts:
        """Decompose the factors of one row into the contributions of its observations."""
        signature = self.signature(self._backbone_cells(cells, backbone_positions))
        usual = (self.row_map[0] + self.row_shift_shares[0] * self.row_shift).double()
        choice = self._prior_means(signature, cells.counts)[0].double() - usual
        metadata = torch.zeros_like(usual) if row_prior is None else row_prior.shift[0].double()
        contributions = row_contributions(
            RowBatch(cells, HeadMoments.of(heads, kinds, self.trained_zeros)),
            self.factor_prior(signature, cells.counts, row_prior),
            self.row_passes,
            usual,
            torch.stack([choice, metadata]),
            noisy=self.noisy_rows,
        )
        return RowParts(usual, contributions[0], contributions[1], contributions[2:])

    def _backbone_cells(self, cells: Cells, backbone_positions: Tensor) -> Cells:
        """Return the observations of the backbone's own features, indexed by position in the backbone."""
        positions = backbone_positions[cells.index]
        return replace(cells, index=positions, width=self.features).keep(positions >= 0)

    # -- training ---------------------------------------------------------------------------------

    def train_by_sweeps(
        self, cells: Cells, description: Description, generator: torch.Generator
    ) -> Iterator[float]:
        """Maximise the evidence lower bound by coordinate ascent, from the means of rows and features."""
        from headstart.backbones.factorisation_fit import FactorisationTraining  # it imports this module

        yield from FactorisationTraining(self, cells, description, generator).sweeps()

    def train_resumably(
        self,
        cells: Cells,
        description: Description,
        generator: torch.Generator,
        checkpoint: Path,
        seconds: float,
    ) -> Iterator[float]:
        """Train by sweeps from the last one saved in ``checkpoint``."""
        from headstart.backbones.factorisation_fit import FactorisationTraining, SweepProgress

        training = FactorisationTraining(self, cells, description, generator)
        yield from training.sweeps(SweepProgress(checkpoint, seconds))


def _numpy_prior(covariance: Tensor) -> tuple[Array, Array]:
    """Return a covariance and its inverse in double precision."""
    exact = covariance.double()
    return exact.numpy(), inverse(exact).numpy()
