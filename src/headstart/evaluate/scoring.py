"""Scoring one adapter on a k-shot test."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor

from headstart.adapters.protocol import Adapter
from headstart.core.batch import FeatureBatch
from headstart.core.heads import Heads
from headstart.core.knowledge import Knowledge
from headstart.core.likelihood import Likelihood
from headstart.core.predictive import Predictive
from headstart.core.states import RowStates
from headstart.evaluate.kshot import KShotTest
from headstart.evaluate.metrics import Score, score
from headstart.evaluate.results import Run
from headstart.evaluate.targets import Targets
from headstart.evaluate.timing import Timing
from headstart.table.kinds import KindType
from headstart.training.calibration import USUAL_LEVEL, Calibration

_FEATURES_AT_ONCE = 1024


def score_adapter(
    method: str,
    adapter: Adapter,
    knowledge: Knowledge,
    test: KShotTest,
    calibration: Calibration | None,
    times: Mapping[int, Timing],
    split: int = 0,
) -> list[Run]:
    """Score one method at every number of shots. Without a calibration, intervals are not scored."""
    with torch.no_grad():
        states = adapter.refine(knowledge.states)
    heads = partial(heads_of, adapter, states=states)
    return score_heads(method, heads, states, knowledge.likelihood, test, calibration, times, split)


def score_heads(
    method: str,
    heads: Callable[[FeatureBatch], Heads],
    states: RowStates,
    likelihood: Likelihood,
    test: KShotTest,
    calibration: Calibration | None,
    times: Mapping[int, Timing],
    split: int = 0,
) -> list[Run]:
    """Score what makes heads of contexts at every number of shots; ``states`` are as the heads read them."""
    runs = []
    for shots in test.shots:
        context = test.context(shots)
        predictive = test.predict(heads(context), states, likelihood)
        scores = score_targets(test, predictive, context.shots, calibration)
        ms = round(times[shots].ms_per_feature, 6) if shots in times else None
        runs += runs_of(scores, split, method, shots, ms_per_feature=ms)
    return runs


def score_targets(
    test: Targets, predictive: Predictive, shots: Tensor, calibration: Calibration | None
) -> dict[str, Score]:
    """Compute all metrics of predictions from heads of features with so many ``shots`` (features,)."""
    kinds = test.kinds.numpy()
    mean, std = predictive.mean, None
    if calibration is not None:
        factor = calibration.factor(shots, test.modelled)[test.lines, USUAL_LEVEL]
        std = None if (kinds == KindType.BINARY).all() else test.unscaled_std(factor * predictive.std)
        corrected = calibration.probability(mean, shots[test.lines])
        mean = torch.where(test.kinds == KindType.BINARY, corrected, mean)
    return score(test.truth, test.unscaled(mean), test.lines.numpy(), kinds, std)


def runs_of(
    scores: Mapping[str, Score],
    split: int,
    method: str,
    shots: int | None,
    row_shots: int | None = None,
    ms_per_feature: float | None = None,
) -> list[Run]:
    """Return one run per metric."""
    return [
        Run(
            split=split,
            method=method,
            shots=shots,
            row_shots=row_shots,
            metric=metric,
            value=each.value,
            features=each.features,
            targets=each.targets,
            ms_per_feature=ms_per_feature,
        )
        for metric, each in scores.items()
    ]


@torch.no_grad()
def heads_of(adapter: Adapter, context: FeatureBatch, states: RowStates) -> Heads:
    """Return the heads that an adapter makes of any number of features; ``states`` are refined."""
    parts = torch.split(torch.arange(len(context)), _FEATURES_AT_ONCE)
    return Heads.concatenate([adapter.adapt(context.take(part), states) for part in parts])
