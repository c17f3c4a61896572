"""Strengths of a local part as a judge estimates them: on some features of a table, for the others."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

if TYPE_CHECKING:
    from shared_network.train import Outcomes

_GROUPS = 5  # of features: those of one group are judged on the others
_SHRINKAGE = 10  # features at which an estimate is shrunk by half
_MOST_STRENGTH = 4.0
_LEAST_FEATURES = 12

Numbers = NDArray[Any]
ByShots = dict[int, Numbers]


def usual_strengths(every: list[Outcomes]) -> ByShots:
    """Return the two strengths of the closed form with the least error over tables, by shots."""
    found = {}
    for shots in sorted({shots for outcomes in every for shots in outcomes.truth}):
        system, products = 1e-9 * np.eye(2), np.zeros(2)
        for outcomes in every:
            if shots in outcomes.truth:
                truth, closed = outcomes.truth[shots], outcomes.closed[shots]
                weight = 1 / max(1e-6, float((truth**2).sum()))
                system += weight * closed.T @ closed
                products += weight * closed.T @ truth
        root = np.linalg.cholesky(system)
        found[shots] = nnls(root.T, np.linalg.solve(root, products))[0]
    return found


def judged_shifts(outcomes: Outcomes, prior: ByShots, margin: float) -> ByShots:
    """Return shifts by the closed form at strengths that are estimated on other features.

    Strengths are shrunk to ``prior``. A term that, cross-fitted, does not gain ``margin`` standard errors is
    left out.
    """
    group = _group(outcomes, seed=1)
    shifts = {shots: np.zeros(len(truth)) for shots, truth in outcomes.truth.items()}
    for number in range(_GROUPS):
        others = {shots: of != number for shots, of in group.items()}
        strengths = _strengths(outcomes, others, prior, margin)
        for shots, closed in outcomes.closed.items():
            shifts[shots][~others[shots]] = closed[~others[shots]] @ strengths[shots]
    return shifts


def network_shifts(outcomes: Outcomes, *, by_shots: bool) -> ByShots:
    """Return shifts by the network and the similarity of metadata, judged on other features of the table.

    The network has the strength 1, or 0 if it is worse by more than a standard error and, with ``by_shots``,
    where the error is not lower. The similarity has the strengths of ``judged_shifts`` for the rest.
    """
    group = _group(outcomes, seed=1)
    shifts = {shots: np.zeros(len(truth)) for shots, truth in outcomes.truth.items()}
    none = {shots: np.zeros(2) for shots in outcomes.truth}
    learned = {shots: numbers[:, 0] for shots, numbers in outcomes.learned.items()}
    for number in range(_GROUPS):
        others = {shots: of != number for shots, of in group.items()}
        features, gains = _gains(outcomes, learned, others)
        judged = np.isin(features, np.concatenate([outcomes.feature[k][mask] for k, mask in others.items()]))
        on = _helps(gains[judged], -1.0)
        strengths = dict.fromkeys(learned, float(on))
        for shots, mask in others.items():
            truth, moved = outcomes.truth[shots][mask], learned[shots][mask]
            if by_shots and ((truth - moved) ** 2).sum() >= (truth**2).sum():
                strengths[shots] = 0.0
        rest = replace(
            outcomes,
            truth={k: truth - strengths[k] * learned[k] for k, truth in outcomes.truth.items()},
            closed={k: closed * [1.0, 0.0] for k, closed in outcomes.closed.items()},
        )
        similar = _strengths(rest, others, none, margin=2.0)
        for shots, mask in others.items():
            here, closed = ~mask, rest.closed[shots]
            shifts[shots][here] = strengths[shots] * learned[shots][here] + closed[here] @ similar[shots]
    return shifts


def _group(outcomes: Outcomes, seed: int) -> ByShots:
    """Return the group of the feature of each target, by shots."""
    features = np.unique(np.concatenate(list(outcomes.feature.values())))
    group = np.random.default_rng(seed).permutation(len(features)) % _GROUPS
    return {shots: group[np.searchsorted(features, of)] for shots, of in outcomes.feature.items()}


def _strengths(outcomes: Outcomes, masks: ByShots, prior: ByShots, margin: float) -> ByShots:
    """Estimate the strengths from the targets in ``masks``."""
    group = _group(outcomes, seed=0)

    def best(shots: int, mask: Numbers, terms: list[int]) -> Numbers:
        count, strengths = len(np.unique(outcomes.feature[shots][mask])), np.zeros(2)
        if count:
            closed, truth = outcomes.closed[shots][mask][:, terms], outcomes.truth[shots][mask]
            root = np.linalg.cholesky(closed.T @ closed + 1e-9 * np.eye(len(terms)))
            found = nnls(root.T, np.linalg.solve(root, closed.T @ truth))[0]
            strengths[terms] = np.minimum(found, _MOST_STRENGTH)
        kept = np.isin(np.arange(2), terms)
        return (count * strengths + _SHRINKAGE * prior[shots] * kept) / (count + _SHRINKAGE)

    def cross_fitted(terms: list[int]) -> ByShots:
        shifts = {shots: np.zeros(len(truth)) for shots, truth in outcomes.truth.items()}
        for shots, mask in masks.items():
            for number in range(_GROUPS):
                here = mask & (group[shots] == number)
                strengths = best(shots, mask & (group[shots] != number), terms)
                shifts[shots][here] = outcomes.closed[shots][here] @ strengths
        return shifts

    terms = [term for term in range(2) if _helps(_gains(outcomes, cross_fitted([term]), masks)[1], margin)]
    if not terms:
        return {shots: np.zeros(2) for shots in masks}
    shifts, found = cross_fitted(terms), {}
    for shots, mask in masks.items():
        truth = outcomes.truth[shots][mask]
        worse = ((truth - shifts[shots][mask]) ** 2).sum() >= (truth**2).sum()
        few = margin > 0 and len(np.unique(outcomes.feature[shots][mask])) < _LEAST_FEATURES
        found[shots] = np.zeros(2) if worse or few else best(shots, mask, terms)
    return found


def _gains(outcomes: Outcomes, shifts: ByShots, masks: ByShots) -> tuple[Numbers, Numbers]:
    """Return the numbers of features, and their gains relative to the whole error, summed over shots."""
    features = np.unique(np.concatenate(list(outcomes.feature.values())))
    gains = np.zeros(len(features))
    for shots, mask in masks.items():
        truth, moved = outcomes.truth[shots][mask], shifts[shots][mask]
        place = np.searchsorted(features, outcomes.feature[shots][mask])
        difference = truth**2 - (truth - moved) ** 2
        gains += np.bincount(place, difference, len(features)) / max(1e-9, float((truth**2).sum()))
    return features, gains


def _helps(gains: Numbers, margin: float) -> bool:
    """Return whether the sum of gains exceeds ``margin`` standard errors of it."""
    return bool(gains.sum() > margin * gains.std() * len(gains) ** 0.5)
