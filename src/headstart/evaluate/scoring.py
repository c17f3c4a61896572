"""Scoring one adapter on a k-shot test."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch

from headstart.adapters.protocol import Adapter
from headstart.core.batch import FeatureBatch
from headstart.core.heads import Heads
from headstart.core.knowledge import Knowledge
from headstart.core.likelihood import Likelihood
from headstart.core.states import RowStates
from headstart.evaluate.kshot import KShotTest
from headstart.evaluate.metrics import score
from headstart.evaluate.results import Run
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
    heads = partial(_heads, adapter, states=states)
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
    truth, lines, kinds = test.truth, test.lines.numpy(), test.kinds.numpy()
    runs = []
    for shots in test.shots:
        context = test.context(shots)
        predictive = test.predict(heads(context), states, likelihood)
        mean, std = predictive.mean, None
        if calibration is not None:
            factor = calibration.factor(context.shots, context.kinds)[test.lines, USUAL_LEVEL]
            std = None if (kinds == KindType.BINARY).all() else test.unscaled_std(factor * predictive.std)
            corrected = calibration.probability(mean, context.shots[test.lines])
            mean = torch.where(test.kinds == KindType.BINARY, corrected, mean)
        runs += [
            Run(
                split=split,
                method=method,
                shots=shots,
                metric=metric,
                value=each.value,
                features=each.features,
                targets=each.targets,
                ms_per_feature=round(times[shots].ms_per_feature, 6) if shots in times else None,
            )
            for metric, each in score(truth, test.unscaled(mean), lines, kinds, std).items()
        ]
    return runs


@torch.no_grad()
def _heads(adapter: Adapter, context: FeatureBatch, states: RowStates) -> Heads:
    parts = torch.split(torch.arange(len(context)), _FEATURES_AT_ONCE)
    return Heads.concatenate([adapter.adapt(context.take(part), states) for part in parts])
