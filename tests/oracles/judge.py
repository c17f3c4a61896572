"""The comparison of two candidates by the judge."""

from __future__ import annotations

import numpy as np

from headstart.training.comparison import CandidateOutcomes


def is_better(candidate: CandidateOutcomes, other: CandidateOutcomes, standard_errors: float) -> bool:
    """One feature after the other, by its name."""
    by_feature: dict[int, list[float]] = {}
    for shots in candidate.outcomes:
        totals = []
        for judged in (candidate, other):
            of = judged.outcomes[shots]
            squared: dict[int, list[float]] = {}
            for name, x, y in zip(
                of.feature.tolist(), of.predictive.mean.tolist(), of.truth.tolist(), strict=True
            ):
                squared.setdefault(name, []).append((x - y) ** 2)
            totals.append({name: sum(each) for name, each in squared.items()})
        mine, yours = totals
        for name in mine:
            by_feature.setdefault(name, []).append((mine[name] - yours[name]) / sum(yours.values()))
    every = [sum(each) for each in by_feature.values()]
    return bool(sum(every) < -standard_errors * np.std(every) * np.sqrt(len(every)))
