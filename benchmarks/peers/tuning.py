"""Run a peer on a problem, score it, and choose its settings on known features only."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from methods.protocol import Peer
from problem import Problem

from headstart.evaluate.metrics import METRICS, Score, score
from headstart.table.kinds import KindType


class Outcome(NamedTuple):
    """The scores of a peer at some shots on the targets of one part."""

    part: int
    shots: int
    ms_per_feature: float
    scores: dict[str, Score]


def trial(peer: Peer, problem: Problem, shots: tuple[int, ...] | None = None) -> Iterator[Outcome]:
    """Adapt a fitted peer at every number of shots and score it on the targets of every part."""
    parts = [part for part in problem.parts if (problem.counts > part).any()]
    for k in shots if shots is not None else peer.shots or problem.shots:
        if k not in problem.shots:
            continue
        context = problem.context(k)
        start = time.process_time()
        adapted = peer.adapt(context)
        taken = (time.process_time() - start) * 1000 / int(context.tested.sum())
        here = [part for part in parts if part >= k]
        # The targets of the larger part are among those of the smaller, so each cell is predicted once.
        cells = problem.targets(here[0])
        mean, spread = np.empty(len(problem.value)), np.empty(len(problem.value))
        mean[cells] = peer.predict(adapted, problem.feature[cells], problem.row[cells])
        std = peer.spread()
        if std is not None:
            spread[cells] = std
        for part in here:
            at = problem.targets(part)
            kinds = np.full(len(at), KindType.BINARY if problem.kind == "binary" else KindType.RATING)
            sure = None if std is None else spread[at]
            yield Outcome(
                part, k, taken, score(problem.value[at], mean[at], problem.feature[at], kinds, sure)
            )


def loss(peer: Peer, problem: Problem) -> float:
    """Return the loss of tuning: the main metric, pooled and per feature, over all shots and parts."""
    name = "auroc" if problem.kind == "binary" else "rmse"
    sign = -1.0 if METRICS[name].better == "higher" else 1.0
    found = [
        sign * outcome.scores[metric].value
        for outcome in trial(peer, problem, peer.tuning_shots)
        for metric in (name, f"{name}_per_feature")
        if metric in outcome.scores
    ]
    return float(np.mean(found))


def tune(peer: Peer, problem: Problem, say: Callable[[str], None] | None = None) -> Peer:
    """Choose settings one after the other on a rehearsal: known features treated as new."""
    if not peer.choices:
        return peer
    rehearsals = problem.rehearsals()
    tried: dict[str, float] = {}

    def cost(settings: dict[str, Any]) -> float:
        candidate = replace(peer, **settings)
        key = str(candidate.settings)
        if key not in tried:
            tried[key] = float(np.mean([_fitted_loss(candidate, rehearsal) for rehearsal in rehearsals]))
            if say is not None:
                say(f"  {settings}: {tried[key]:.4f}")
        return tried[key]

    for name, values in peer.choices.items():
        options = [value if isinstance(value, dict) else {name: value} for value in values]
        peer = replace(peer, **min(options, key=cost))
    return peer


def _fitted_loss(peer: Peer, problem: Problem) -> float:
    peer.fit(problem)
    return loss(peer, problem)
