"""How much of a blend the head of networks is, by shots: measured on features held back from them."""

from __future__ import annotations

import torch
from torch import Tensor

from headstart.adapters.chn_bayes import CHNBayes
from headstart.core.likelihood import Likelihood
from headstart.core.predictive import Predictive
from headstart.core.shots import VALIDATION_SHOTS
from headstart.training.calibration import Outcome
from headstart.training.judge import outcomes_of
from headstart.training.tasks import Tasks

# Few features say little of shares: so many count as much as the equal share.
_FEATURES_TO_BELIEVE = 10


@torch.no_grad()
def blend_outcomes(
    adapter: CHNBayes, likelihood: Likelihood, tasks: Tasks, *, seed: int, all_binary: bool
) -> tuple[dict[int, Outcome], dict[int, Outcome]]:
    """Set the shares of an adapter's blend; returns how the blend predicts, and how the closed form does.

    At each number of shots the share is that with the least squared error. It falls with the number of shots,
    as what networks know beyond the shots is worth less and less: so shares are made not to rise.
    """
    alone = {}
    for share in (0.0, 1.0):
        adapter.shares.fill_(share)
        alone[share] = outcomes_of(adapter, likelihood, tasks, seed=seed, all_binary=all_binary)
    closed, networks = alone[0.0], alone[1.0]
    if not closed:  # no feature has a target
        return networks, closed
    found = [_best_share(networks[shots], closed[shots]) for shots in closed]
    shares = falling(*(torch.stack(each) for each in zip(*found, strict=True))).clamp(0, 1)
    measured = torch.tensor(list(closed))
    place = torch.bucketize(torch.tensor(VALIDATION_SHOTS), measured, right=True) - 1
    adapter.shares.copy_(shares[place.clamp(min=0)])
    blend = {
        shots: _blended(networks[shots], closed[shots], float(share))
        for shots, share in zip(closed, shares, strict=True)
    }
    return blend, closed


def _best_share(networks: Outcome, closed: Outcome) -> tuple[Tensor, Tensor]:
    """The share of networks with the least squared error, drawn to a half, and how much it is worth."""
    apart = (networks.predictive.mean - closed.predictive.mean).double()
    error = (closed.truth - closed.predictive.mean).double()
    weight = (apart**2).sum()
    own = (apart * error).sum() / weight.clamp(min=1e-12)
    believed = closed.features / (closed.features + _FEATURES_TO_BELIEVE)
    return believed * own + (1 - believed) * 0.5, weight.clamp(min=1e-12)


def falling(values: Tensor, weights: Tensor) -> Tensor:
    """The nearest numbers that nowhere rise, by weighted squares: isotonic regression of a few numbers.

    Each is the least, over where a stretch that ends at or after it begins, of the largest mean of such
    stretches.

    >>> falling(torch.tensor([1.0, 0.2, 0.4]), torch.ones(3))
    tensor([1.0000, 0.3000, 0.3000])
    """
    totals = torch.cat([weights.new_zeros(1), weights.cumsum(0)])
    sums = torch.cat([weights.new_zeros(1), (weights * values).cumsum(0)])
    means = (sums[1:] - sums[:-1, None]) / (totals[1:] - totals[:-1, None])  # from a beginning, up to an end
    every = torch.arange(len(values))
    ends = torch.where(every[None] >= every[:, None], means, -torch.inf)
    # The largest mean of a stretch that begins here and ends at or after each place.
    largest = ends.flip(1).cummax(1).values.flip(1)
    return torch.where(every[:, None] <= every[None], largest, torch.inf).amin(0)


def _blended(networks: Outcome, closed: Outcome, share: float) -> Outcome:
    """The outcome of the blend, as ``adapters.blending.blended`` would make it of the heads."""
    ours, theirs = networks.predictive, closed.predictive
    apart = share * (1 - share) * (ours.logits - theirs.logits) ** 2
    predictive = Predictive(
        torch.lerp(theirs.logits, ours.logits, share),
        torch.lerp(theirs.variance, ours.variance, share) + apart,
        torch.lerp(theirs.noise, ours.noise, share),
        ours.kinds,
        ours.likelihood,
    )
    return Outcome(predictive, networks.truth, networks.feature, networks.binary)
