"""Links and likelihoods of all kinds: distributions of values given the outputs w·d + b of heads."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from headstart.config import Config
from headstart.core.clicks import click_probability
from headstart.linalg.array_ops import logistic, probit_scale
from headstart.table.kinds import KindType


class LikelihoodConfig(Config):
    """Settings of the output distributions."""

    rating_link: Literal["sigmoid", "identity"] = "sigmoid"
    output_variance: float = Field(0.1, gt=0)  # of a rating on [0, 1]; the paper's value


class Likelihood(nn.Module):
    """Bernoulli for binary values, Gaussian of fixed variance for ratings and of learned variance for reals.

    All methods work on cells of several kinds; ``kinds`` contains the kind of each cell
    (``headstart.table.kinds``) and broadcasts against the logits.
    """

    def __init__(self, config: LikelihoodConfig) -> None:
        super().__init__()
        self.config = config
        self.real_log_variance = nn.Parameter(torch.zeros(()))

    def is_logistic(self, kind: int) -> bool:
        """Return whether the link of ``kind`` is the logistic function; otherwise it is the identity."""
        return kind == KindType.BINARY or (kind == KindType.RATING and self.config.rating_link == "sigmoid")

    def squashes(self, kinds: Tensor) -> Tensor:
        """Return the mask of ``kinds`` whose link is the logistic function."""
        binary = kinds == KindType.BINARY
        return binary | (kinds == KindType.RATING) if self.is_logistic(KindType.RATING) else binary

    def is_linear(self, kinds: Tensor) -> bool:
        """Return whether the mean of each of ``kinds`` is its output."""
        return not bool((self.squashes(kinds) | (kinds == KindType.CLICK)).any())

    # -- certain outputs --------------------------------------------------------------------------

    def nll(self, logits: Tensor, values: Tensor, kinds: Tensor) -> Tensor:
        """Return the negative log-likelihood of each value on the models' scale."""

        def nll_of(kind: int) -> Tensor:
            if kind == KindType.BINARY:
                return F.binary_cross_entropy_with_logits(logits, values, reduction="none")
            squared = (values - self._link(logits, kind)) ** 2
            if kind == KindType.RATING:
                variance = self.config.output_variance
                return 0.5 * (squared / variance + math.log(2 * math.pi * variance))
            log_variance = self.real_log_variance
            return 0.5 * (squared * torch.exp(-log_variance) + math.log(2 * math.pi) + log_variance)

        return _by_kind(nll_of, kinds, logits)

    def mean(self, logits: Tensor, kinds: Tensor) -> Tensor:
        """Return the predicted mean on the models' scale."""
        return _by_kind(lambda kind: self._link(logits, kind), kinds, logits)

    def logit(self, mean: Tensor, kinds: Tensor) -> Tensor:
        """Return the output with this predicted ``mean``: the inverse of ``mean``, finite at the ends."""

        def logit_of(kind: int) -> Tensor:
            return torch.logit(mean, eps=1e-3) if self.is_logistic(kind) else mean

        return _by_kind(logit_of, kinds, mean)

    def noise(self, kinds: Tensor) -> Tensor:
        """Return the default variance of observations of each of ``kinds``; 0 for binary ones."""
        variances = (0.0, self.config.output_variance, 1.0, 1.0)  # of binary, rating, real and click
        by_kind = [torch.tensor(variance) for variance in variances]
        by_kind[KindType.REAL] = self.real_log_variance.exp()
        return torch.stack(by_kind).to(kinds.device)[kinds]

    # -- uncertain outputs ------------------------------------------------------------------------

    def predictive(
        self, logits: Tensor, variance: Tensor, noise: Tensor, kinds: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return mean and variance of values with Gaussian outputs: two tensors of the logits' shape.

        ``variance`` is the variance of the output, ``noise`` of an observation: see ``predictive_moments``.
        """
        present = _present(kinds)
        mean, total = self.predictive_of_kind(logits, variance, noise, present[0])
        for kind in present[1:]:
            other_mean, other_total = self.predictive_of_kind(logits, variance, noise, kind)
            mean = torch.where(kinds == kind, other_mean, mean)
            total = torch.where(kinds == kind, other_total, total)
        return mean, total

    def predictive_of_kind(self, logits: Any, variance: Any, noise: Any, kind: int) -> tuple[Any, Any]:
        """Return mean and variance of values of one kind, from tensors, numpy arrays or numbers.

        For clicks they are those of the probability of a click.
        """
        if kind == KindType.CLICK:
            mean, slope = click_probability(logits)
            return mean, slope**2 * variance
        return predictive_moments(
            logits, variance, noise, squashed=self.is_logistic(kind), binary=kind == KindType.BINARY
        )

    def predictive_nll(
        self, logits: Tensor, variance: Tensor, noise: Tensor, values: Tensor, kinds: Tensor
    ) -> Tensor:
        """Return the negative log-likelihood of each value under ``predictive``.

        For clicks it is the cross-entropy of the probability of a click, 1, or none, 0.
        """
        binary, click = kinds == KindType.BINARY, kinds == KindType.CLICK
        probit = logits * probit_scale(variance + noise)
        bernoulli = F.binary_cross_entropy_with_logits(probit, values, reduction="none")
        if bool(binary.all()):
            return bernoulli
        mean, total = self.predictive(logits, variance, noise, kinds)
        total = torch.where(binary | click, 1.0, total)  # the variance of a binary value can be 0
        gaussian = 0.5 * ((values - mean) ** 2 / total + total.log() + math.log(2 * math.pi))
        if bool(click.any()):
            probability = mean.clamp(1e-6, 1 - 1e-6)
            cross_entropy = -values * probability.log() - (1 - values) * torch.log1p(-probability)
            gaussian = torch.where(click, cross_entropy, gaussian)
        return torch.where(binary, bernoulli, gaussian)

    def _link(self, logits: Tensor, kind: int) -> Tensor:
        if kind == KindType.CLICK:
            probability: Tensor = click_probability(logits)[0]
            return probability
        return torch.sigmoid(logits) if self.is_logistic(kind) else logits


def predictive_moments(
    output: Any, variance: Any, noise: Any, *, squashed: bool, binary: bool
) -> tuple[Any, Any]:
    """Return mean and variance of a value with a Gaussian output, as tensors or numpy numbers.

    ``variance`` is the variance of the output. The ``noise`` of an observation adds to the value or, if it is
    binary, to the output. A ``squashed`` value is behind a logistic link; its mean is MacKay's approximation
    σ(m / √(1 + π·v / 8)).
    """
    if not squashed:
        return output, variance + noise
    mean = logistic(output * probit_scale(variance + noise if binary else variance))
    slope = mean * (1 - mean)
    return mean, slope if binary else slope**2 * variance + noise


def soft_logit(numbers: Any, edge: float) -> Any:
    """Return log s(x) − log s(1 − x) of each x, where s(x) = (x + √(x² + 4·edge²)) / 2 is positive.

    It is close to the logit of a probability between ``edge`` and 1 − ``edge``, and increases for all
    numbers, such as predictions of 0 and 1 as numbers, which can be below 0 or above 1. ``numbers`` are a
    tensor, a numpy array or a number.

    >>> [round(float(soft_logit(x, 0.01)), 2) for x in (-0.1, 0.0, 0.1, 0.5)]
    [-7.01, -4.61, -2.19, 0.0]
    """
    xp: Any = torch if isinstance(numbers, Tensor) else np

    def positive(part: Any) -> Any:
        larger = (abs(part) + xp.sqrt(part * part + 4 * edge * edge)) / 2
        return xp.where(part > 0, larger, edge * edge / larger)

    return xp.log(positive(numbers)) - xp.log(positive(1 - numbers))


def binary_logit(prediction: Any, std: Any, edge: float, spread: float | None) -> Any:
    """Return the logits of predictions of binary values, before their calibration.

    They are the ``soft_logit`` of the ``prediction`` with this ``edge``. If 0 and 1 are predicted as numbers,
    ``spread`` is their usual standard deviation and not None, and logits are multiplied by √(spread / std):
    a line through many values is flatter than their logistic curve, the more the smaller the errors are.
    """
    logits = soft_logit(prediction, edge)
    return logits if spread is None else logits * (spread / std.clip(min=edge)) ** 0.5


def _present(kinds: Tensor) -> list[KindType]:
    """Return the kinds that occur, or binary if there are none."""
    return [kind for kind in KindType if bool((kinds == kind).any())] or [KindType.BINARY]


def _by_kind(compute: Callable[[int], Tensor], kinds: Tensor, like: Tensor) -> Tensor:
    """Evaluate ``compute(kind)`` for the kinds that occur, and select that of each cell."""
    present = _present(kinds)
    result = compute(present[0])
    for kind in present[1:]:
        result = torch.where(kinds == kind, compute(kind), result)
    return result.expand_as(like) if result.shape != like.shape else result
