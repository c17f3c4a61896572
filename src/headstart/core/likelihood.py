"""How a head's output w·d + b becomes a prediction, and how likely a value is under it."""

from __future__ import annotations

import math
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from headstart.config import Config
from headstart.table.kinds import KindType


class LikelihoodConfig(Config):
    """Settings of the output distributions."""

    rating_link: Literal["sigmoid", "identity"] = "sigmoid"
    output_variance: float = Field(0.1, gt=0)  # of a rating on [0, 1]; the paper's value


class Likelihood(nn.Module):
    """Bernoulli for binary, Gaussian of fixed variance for ratings, of learned variance for reals.

    Every method works on cells of any mix of kinds; ``kinds`` holds each cell's kind
    (``headstart.table.kinds``) and broadcasts against the logits.
    """

    def __init__(self, config: LikelihoodConfig) -> None:
        super().__init__()
        self.config = config
        self.real_log_variance = nn.Parameter(torch.zeros(()))

    def nll(self, logits: Tensor, values: Tensor, kinds: Tensor) -> Tensor:
        """Negative log-likelihood of each value on the models' scale."""

        def one(kind: int) -> Tensor:
            if kind == KindType.BINARY:
                return F.binary_cross_entropy_with_logits(logits, values, reduction="none")
            squared = (values - self._link(logits, kind)) ** 2
            if kind == KindType.RATING:
                variance = self.config.output_variance
                return 0.5 * (squared / variance + math.log(2 * math.pi * variance))
            log_variance = self.real_log_variance
            return 0.5 * (squared * torch.exp(-log_variance) + math.log(2 * math.pi) + log_variance)

        return self._by_kind(one, kinds, logits)

    def mean(self, logits: Tensor, kinds: Tensor) -> Tensor:
        """The predicted mean on the models' scale."""
        return self._by_kind(lambda kind: self._link(logits, kind), kinds, logits)

    def noise(self, kinds: Tensor) -> Tensor:
        """The variance an observation adds where no head says so; none for binary ones: like ``kinds``."""
        by_kind = [torch.zeros(()), torch.tensor(self.config.output_variance), self.real_log_variance.exp()]
        return torch.stack(by_kind).to(kinds.device)[kinds]

    def squashes(self, kinds: Tensor) -> Tensor:
        """Whether the link of these kinds is the logistic function: a mask like ``kinds``."""
        binary = kinds == KindType.BINARY
        return binary | (kinds == KindType.RATING) if self.config.rating_link == "sigmoid" else binary

    def predictive(
        self, logits: Tensor, variance: Tensor, noise: Tensor, kinds: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Mean and variance of a value whose output is Gaussian: two of the logits' shape.

        ``variance`` is the output's, from an uncertain head; ``noise`` what an observation adds. It
        adds to the value, but for a binary one to the output: a row that answers at random. Through
        the logistic function a Gaussian's mean is MacKay's approximation, σ(m / √(1 + π·v / 8)).
        """
        squashed = self.squashes(kinds)
        if not bool(squashed.any()):
            return logits, variance + noise
        binary = kinds == KindType.BINARY
        spread = variance + torch.where(binary, noise, 0.0)
        mean = torch.sigmoid(logits / torch.sqrt(1 + math.pi / 8 * spread))
        slope = mean * (1 - mean)
        squashed_variance = torch.where(binary, slope, slope**2 * variance + noise)
        return (
            torch.where(squashed, mean, logits),
            torch.where(squashed, squashed_variance, variance + noise),
        )

    def predictive_nll(
        self, logits: Tensor, variance: Tensor, noise: Tensor, values: Tensor, kinds: Tensor
    ) -> Tensor:
        """Negative log-likelihood of each value under ``predictive``."""
        binary = kinds == KindType.BINARY
        flattened = logits / torch.sqrt(1 + math.pi / 8 * (variance + noise))
        bernoulli = F.binary_cross_entropy_with_logits(flattened, values, reduction="none")
        if bool(binary.all()):
            return bernoulli
        mean, total = self.predictive(logits, variance, noise, kinds)
        total = torch.where(binary, 1.0, total)  # a certain binary cell has no variance to divide by
        gaussian = 0.5 * ((values - mean) ** 2 / total + total.log() + math.log(2 * math.pi))
        return torch.where(binary, bernoulli, gaussian)

    def logit(self, mean: Tensor, kinds: Tensor) -> Tensor:
        """The output whose predicted mean this is: the inverse of ``mean``, kept finite at the ends."""

        def one(kind: int) -> Tensor:
            if kind == KindType.BINARY or (kind == KindType.RATING and self.config.rating_link == "sigmoid"):
                return torch.logit(mean, eps=1e-3)
            return mean

        return self._by_kind(one, kinds, mean)

    def _link(self, logits: Tensor, kind: int) -> Tensor:
        if kind == KindType.BINARY or (kind == KindType.RATING and self.config.rating_link == "sigmoid"):
            return torch.sigmoid(logits)
        return logits

    @staticmethod
    def _by_kind(one, kinds: Tensor, like: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        """Compute ``one(kind)`` for the kinds that occur, and pick each cell's own."""
        present = [kind for kind in KindType if bool((kinds == kind).any())] or [KindType.BINARY]
        result: Tensor = one(present[0])
        for kind in present[1:]:
            result = torch.where(kinds == kind, one(kind), result)
        return result.expand_as(like) if result.shape != like.shape else result
