"""Which rows suit a feature."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.core.heads import Heads
from headstart.errors import InputError, argument
from headstart.model.asking.leading import leading
from headstart.model.asking.predicting import predict_features
from headstart.model.asking.ranking import Ranking
from headstart.model.asking.recommending import NONE, require_contexts
from headstart.model.asking.scoring import Candidates, Criterion, scores
from headstart.model.asking.suggestion import telling
from headstart.model.parts.feature import Feature
from headstart.model.parts.fitted import Fitted
from headstart.table import Names
from headstart.table.names import as_name

_ROWS_AT_ONCE = 1 << 14  # whose activations stay in the cache


@torch.no_grad()
def audience(
    fitted: Fitted,
    feature: object,
    n: int,
    rows: Sequence[Any] | None,
    criterion: Criterion,
    *,
    exclude_observed: bool,
    level: float,
) -> Ranking:
    """Rank rows for one feature, best first."""
    (own,), heads = fitted.catalogue.take([feature])
    if exclude_observed:
        require_contexts(fitted.catalogue.listing, np.array(fitted.catalogue.slots([feature])))
    everyone = candidate_rows(fitted, rows, fitted.observers(own) if exclude_observed else NONE)
    if criterion.by == "information":
        places, score = _most_informative(fitted, heads, own, everyone, n)
    else:
        places, score = _highest(fitted, heads, own, everyone, n, criterion)
    names = [fitted.rows[place] for place in places]
    states = fitted.roster.take(places)
    prediction = predict_features(fitted, Names(names, "row"), states, [own.name])
    low, high = prediction.interval(level)
    mean, std, low, high = (part[:, 0] for part in (prediction.mean, prediction.std, low, high))
    return Ranking(own.name, "row", criterion.by, tuple(names), score, mean, std, low, high, level)


def candidate_rows(fitted: Fitted, rows: Sequence[Any] | None, seen: NDArray[np.int64]) -> NDArray[np.int64]:
    """The positions of the rows given, or of all, without those ``seen``, in ascending order."""
    if rows is None:
        wanted = np.ones(len(fitted.rows), dtype=bool)
    else:
        wanted = np.zeros(len(fitted.rows), dtype=bool)
        wanted[fitted.rows.positions([as_name(row, "row") for row in rows])] = True
    wanted[seen] = False
    return np.flatnonzero(wanted)


def _highest(
    fitted: Fitted,
    heads: Heads,
    own: Feature,
    candidates: NDArray[np.int64],
    n: int,
    criterion: Criterion,
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The rows of the highest scores, and these in the data's units."""
    kinds = torch.tensor([own.kind.type])
    feature = Candidates(heads, kinds, fitted.modelled(kinds), torch.tensor([own.shots]), kinds)
    roster, walk, hidden = fitted.roster, candidates, np.zeros(len(candidates), dtype=bool)
    everyone = 3 * len(candidates) > len(fitted.rows)
    if everyone:  # then all states are read as they lie, which does not move them after a change
        slots = roster.slots()
        hidden = np.ones(int(slots.max(initial=-1)) + 1, dtype=bool)
        hidden[slots[candidates]] = False
        walk = np.full(len(hidden), -1)
        walk[slots] = np.arange(len(slots))

    def score(part: slice) -> Tensor:
        states = roster.stored(part) if everyone else roster.take(walk[part])
        found = scores(fitted, criterion, feature, states, torch.float32)[:, 0]
        return torch.where(torch.from_numpy(hidden[part]), -torch.inf, found)[None]

    (near,) = leading(score, 1, len(walk), n, _ROWS_AT_ONCE)
    some = np.sort(walk[near.numpy()])
    exact = scores(fitted, criterion, feature, roster.take(some))[:, 0].numpy()
    order = np.argsort(-exact, kind="stable")[:n]
    return some[order], exact[order] * own.kind.span + own.kind.offset


def _most_informative(
    fitted: Fitted, heads: Heads, own: Feature, candidates: NDArray[np.int64], n: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The rows that ``suggest`` names, with what each of them adds."""
    if not fitted.adapter.gives_uncertainty:
        raise InputError(
            f"{argument('by', 'information')} needs an adapter that knows how sure it is; fit with "
            f"{argument('adapter', 'bayes')}"
        )
    kind, likelihood = int(fitted.kinds_of([own])), fitted.knowledge.likelihood
    chosen, gains = telling(heads, fitted.states, torch.from_numpy(candidates), kind, n, likelihood)
    return candidates[chosen], np.array(gains)
