"""The honest judge: candidates are compared on features that are new to everything they were trained on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.adapters.protocol import Adapter
from headstart.config import Config
from headstart.core.devices import CPU, computing_on, moved
from headstart.core.likelihood import Likelihood
from headstart.core.predictive import Predictive, predict_cells
from headstart.core.shots import VALIDATION_SHOTS
from headstart.table.kinds import KindType
from headstart.training.calibration import Outcome
from headstart.training.metatraining import validation_episodes
from headstart.training.tasks import Tasks

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
    with computing_on(tasks.batch.kinds.device):
        outcomes = _outcomes(adapter, likelihood, tasks, seed, all_binary)
    return {shots: moved(each, CPU) for shots, each in outcomes.items()}


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
    return {shots: joined(each) for shots, each in parts.items()}


def joined(parts: list[Outcome]) -> Outcome:
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
