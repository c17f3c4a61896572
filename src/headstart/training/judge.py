"""Compare candidates on features that are new to all they were trained on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.adapters.base import Adapter
from headstart.config import Config
from headstart.core.devices import CPU, compute_on, move
from headstart.core.likelihood import Likelihood
from headstart.core.predictive import Predictive, predict_cells
from headstart.core.types import VALIDATION_SHOTS
from headstart.table.kinds import KindType
from headstart.training.calibration import Outcome
from headstart.training.episodes import Tasks
from headstart.training.meta_training import validation_episodes

MIN_FEATURES = 12  # with fewer features there is nothing to hold out

_FOLD_SHARE = 0.15  # of the features, held out in one fold

_WANTED = 60  # features held out in all folds together, where there are so many

_MAX_HELD_OUT = 400

_MAX_FOLDS = 4


class Verdict(Config):
    """What the judge found of one candidate, by shots."""

    error: tuple[float, ...]  # mean squared error of observations, on the models' scale
    standard_error: tuple[float, ...]  # over features


class Judgement(Config):
    """What was compared, on how many features, and what was chosen."""

    shots: tuple[int, ...]
    features: int  # held out in all folds together
    chosen: str
    candidates: dict[str, Verdict]


@dataclass(frozen=True)
class FeatureErrors:
    """The errors of some features at one number of shots."""

    features: Tensor  # (features,)
    squared: Tensor  # (features,): sums of squared errors
    counts: Tensor  # (features,): of observations

    @classmethod
    def of(cls, outcome: Outcome) -> FeatureErrors:
        """Sum up the errors of each feature there is."""
        squared = (outcome.predictive.mean - outcome.truth) ** 2
        features, owner = torch.unique(outcome.feature, return_inverse=True)
        return cls(features, torch.bincount(owner, weights=squared.double()), torch.bincount(owner))

    @property
    def mean(self) -> float:
        """The mean squared error of all observations."""
        return float(self.squared.sum() / self.counts.sum())

    @property
    def standard_error(self) -> float:
        """That of the mean, as of a ratio of two sums over features."""
        apart = self.squared - self.mean * self.counts
        return float((apart**2).sum().sqrt() / self.counts.sum())


@dataclass(frozen=True)
class Judged:
    """Outcomes of one candidate by shots, all folds together."""

    outcomes: dict[int, Outcome]

    def errors(self) -> dict[int, FeatureErrors]:
        """By shots, the errors of the features that have so many."""
        return {shots: FeatureErrors.of(outcome) for shots, outcome in self.outcomes.items()}

    def verdict(self) -> Verdict:
        """The mean error by shots with its standard error over features."""
        errors = self.errors().values()
        return Verdict(
            error=tuple(each.mean for each in errors),
            standard_error=tuple(each.standard_error for each in errors),
        )


def folds(features: NDArray[np.int64], seed: int) -> list[NDArray[np.int64]]:
    """Features to hold out, fold by fold: one fold of many features, or several of few."""
    order = np.random.default_rng(seed + 1).permutation(features)
    size = int(min(_MAX_HELD_OUT, max(2, round(_FOLD_SHARE * len(order)))))
    count = int(min(_MAX_FOLDS, max(1, round(_WANTED / size)), len(order) // size))
    return [np.sort(order[i * size : (i + 1) * size]) for i in range(count)]


@torch.no_grad()
def outcomes_of(
    adapter: Adapter, likelihood: Likelihood, tasks: Tasks, *, seed: int, all_binary: bool = False
) -> dict[int, Outcome]:
    """Predict the targets of held-out features at several numbers of shots.

    A feature is identified by its position in ``tasks``, whatever the shots. ``all_binary`` says that
    values are 0 or 1 though they are modelled as numbers. Outcomes are in main memory, whatever device has
    the tasks.
    """
    with compute_on(tasks.batch.kinds.device):
        outcomes = _outcomes(adapter, likelihood, tasks, seed, all_binary)
    return {shots: move(each, CPU) for shots, each in outcomes.items()}


def _outcomes(
    adapter: Adapter, likelihood: Likelihood, tasks: Tasks, seed: int, all_binary: bool
) -> dict[int, Outcome]:
    episodes = validation_episodes(tasks, VALIDATION_SHOTS[-1], seed)
    parts: dict[int, list[Outcome]] = {shots: [] for shots in episodes}
    for fold in torch.unique(tasks.fold).tolist():
        refined = adapter.refine_in_blocks(tasks.states[fold])  # once for all numbers of shots
        for shots, same in episodes.items():
            features = torch.nonzero((tasks.batch.shots > shots) & (tasks.fold == fold))[:, 0]
            if len(features) == 0:
                continue
            episode = next(each for each in same if each.states is tasks.states[fold])
            heads, targets = adapter.adapt(episode.context, refined), episode.targets
            predictive = predict_cells(heads, refined, targets, episode.context.kinds, likelihood)
            binary = torch.full((len(targets.index),), all_binary) | (predictive.kinds == KindType.BINARY)
            parts[shots].append(Outcome(predictive, targets.values, features[targets.lines], binary))
    return {shots: join_judged(each) for shots, each in parts.items()}


def join_judged(parts: list[Outcome]) -> Outcome:
    """Put outcomes of different features together."""
    if len(parts) == 1:
        return parts[0]
    predictives = [part.predictive for part in parts]
    names = ("logits", "variance", "noise", "kinds")
    tensors = {name: torch.cat([getattr(each, name) for each in predictives]) for name in names}
    whole = Predictive(**tensors, likelihood=predictives[0].likelihood)
    rest = ("truth", "feature", "binary")
    return Outcome(whole, *(torch.cat([getattr(part, name) for part in parts]) for name in rest))


def better(candidate: Judged, other: Judged, standard_errors: float) -> bool:
    """Whether a candidate's error is lower by more than so many standard errors of the difference.

    Every observation counts alike, relative to the total error at the same number of shots. The error of
    the difference is found from its spread over features, because those of one feature err together.
    """
    ours, theirs = candidate.errors(), other.errors()
    count = max(int(each.features.max()) for each in ours.values()) + 1
    gains = torch.zeros(count, dtype=torch.float64)
    seen = torch.zeros(count, dtype=torch.bool)
    for shots in ours.keys() & theirs.keys():
        mine, yours = ours[shots], theirs[shots]
        gains[mine.features] += (yours.squared - mine.squared) / yours.squared.sum().clamp(min=1e-12)
        seen[mine.features] = True
    gains = gains[seen]
    spread = float(gains.std(correction=0)) * len(gains) ** 0.5
    return bool(float(gains.sum()) > standard_errors * spread)


# Few features say little of shares: so many count as much as the equal share.
_FEATURES_TO_BELIEVE = 10


@torch.no_grad()
def blend_outcomes(
    adapter: Adapter, likelihood: Likelihood, tasks: Tasks, *, seed: int, all_binary: bool
) -> tuple[dict[int, Outcome], dict[int, Outcome]]:
    """Set the shares of an adapter's blend; returns how the blend predicts, and how the closed form does.

    At each number of shots the share is that with the least squared error. It falls with the number of shots,
    as what networks know beyond the shots is worth less and less: so shares are made not to rise.
    """
    alone = {}
    for share in (0.0, 1.0):
        adapter.set_blend_shares(share)
        alone[share] = outcomes_of(adapter, likelihood, tasks, seed=seed, all_binary=all_binary)
    closed, networks = alone[0.0], alone[1.0]
    if not closed:  # no feature has a target
        return networks, closed
    found = [_best_share(networks[shots], closed[shots]) for shots in closed]
    shares = isotonic_decreasing(*(torch.stack(each) for each in zip(*found, strict=True))).clamp(0, 1)
    measured = torch.tensor(list(closed))
    place = torch.bucketize(torch.tensor(VALIDATION_SHOTS), measured, right=True) - 1
    adapter.set_blend_shares(shares[place.clamp(min=0)])
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


def isotonic_decreasing(values: Tensor, weights: Tensor) -> Tensor:
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
