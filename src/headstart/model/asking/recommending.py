"""Which features suit a row, without ever holding rows × features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.core.predictive import predict_grid
from headstart.core.states import RowStates
from headstart.errors import InputError, argument, worded
from headstart.model.asking.leading import leading
from headstart.model.asking.predicting import predict_features
from headstart.model.asking.ranking import Ranking
from headstart.model.asking.scoring import Candidates, Criterion, require_alike, scores
from headstart.model.asking.suggestion import Weights, greedy
from headstart.model.parts.fitted import Fitted
from headstart.model.parts.listing import Listing
from headstart.table import Names

_ROWS_AT_ONCE = 256
_HEADS_AT_ONCE = 4096


@dataclass(frozen=True)
class Asker:
    """A row that features are ranked for."""

    name: str
    position: int | None  # in the model; None for a row that it does not keep
    given: tuple[str, ...] = ()  # the features that such a row was described by


NONE = np.zeros(0, dtype=np.int64)
Chosen = tuple[NDArray[np.int64], NDArray[np.float64]]


@torch.no_grad()
def best_features(
    fitted: Fitted,
    askers: Sequence[Asker],
    states: RowStates,
    n: int,
    features: Sequence[Any] | None,
    criterion: Criterion,
    *,
    exclude_observed: bool,
    mixed_kinds: bool,
) -> list[Chosen]:
    """The slots of the best features for each row of these states, best first, and their scores."""
    listing = fitted.catalogue.listing
    slots = _slots_of(fitted, listing, features)
    if criterion.by != "information" and not mixed_kinds and len(slots):
        require_alike(listing, slots, worded("recommend()", "headstart recommend"))
    if exclude_observed:
        require_contexts(listing, slots)
    left_out = [_observed(fitted, listing, asker) if exclude_observed else NONE for asker in askers]
    rank = _most_informative if criterion.by == "information" else _highest
    found: list[Chosen] = []
    for start in range(0, len(askers), _ROWS_AT_ONCE):
        part = slice(start, start + _ROWS_AT_ONCE)
        found += rank(fitted, listing, slots, states.take(part), n, criterion, left_out[part])
    if criterion.by == "information" or mixed_kinds:
        return found
    return [(best, score * listing.spans[best] + listing.offsets[best]) for best, score in found]


def rankings(
    fitted: Fitted,
    askers: Sequence[Asker],
    states: RowStates,
    best: Sequence[Chosen],
    criterion: Criterion,
    level: float,
) -> list[Ranking]:
    """What ``best_features`` found for each row, with predictions."""
    listed, found = fitted.catalogue.listing.features, []
    for line, (asker, (chosen, score)) in enumerate(zip(askers, best, strict=True)):
        names, one = [listed[slot].name for slot in chosen], states.take(slice(line, line + 1))
        found.append(_ranking_of_features(fitted, asker.name, one, names, score, criterion, level))
    return found


def _slots_of(fitted: Fitted, listing: Listing, features: Sequence[Any] | None) -> NDArray[np.int64]:
    if features is None:
        return listing.present
    return np.unique(np.array(fitted.catalogue.slots(features), dtype=np.int64))


def require_contexts(listing: Listing, slots: NDArray[np.int64]) -> None:
    """Refuse to leave out what is observed where that is not known."""
    fixed = slots[listing.fixed[slots]] if listing.any_fixed else NONE
    if len(fixed):
        name = listing.features[fixed[0]].name
        raise InputError(
            f"feature {name!r} was trained into the backbone, and the model does not hold which rows "
            f"observed it; {worded('pass exclude_observed=False', 'use --include-observed')}, or fit with "
            f"{argument('adapter', 'bayes')}"
        )


def _observed(fitted: Fitted, listing: Listing, asker: Asker) -> NDArray[np.int64]:
    if asker.position is None:
        return np.unique(np.array(fitted.catalogue.slots(asker.given), dtype=np.int64))
    held = listing.observed_by(asker.position)
    observations = fitted.roster.observations(asker.position)
    if observations is None:
        return held
    own = fitted.catalogue.slots_by_number(observations.numbers)
    return np.union1d(held, own[own >= 0])


def _highest(
    fitted: Fitted,
    listing: Listing,
    slots: NDArray[np.int64],
    states: RowStates,
    n: int,
    criterion: Criterion,
    left_out: Sequence[NDArray[np.int64]],
) -> list[Chosen]:
    """The slots of the highest scores for each row, with their scores in double precision."""
    total = len(listing.places)
    walk = None if 3 * len(slots) > total else slots  # None: all heads are read as they lie
    never = None
    if walk is None and len(slots) < total:
        never = torch.ones(total, dtype=torch.bool)
        never[torch.from_numpy(slots)] = False
    lines, hidden = _hidden(walk, left_out)

    def score(part: slice) -> Tensor:
        where = part if walk is None else torch.from_numpy(walk[part])
        found = scores(fitted, criterion, Candidates.at(fitted, listing, where), states, torch.float32)
        if never is not None:
            found[:, never[part]] = -torch.inf
        begin, end = np.searchsorted(hidden, [part.start, part.stop])
        found[lines[begin:end], hidden[begin:end] - part.start] = -torch.inf
        return found

    chosen = []
    found = leading(score, len(states), total if walk is None else len(walk), n)
    for line, near in enumerate(found):
        some = near.numpy() if walk is None else walk[near.numpy()]
        candidates, one = Candidates.at(fitted, listing, torch.from_numpy(some)), slice(line, line + 1)
        exact = scores(fitted, criterion, candidates, states.take(one))[0].numpy()
        # Products of matrices round the same numbers differently by where they stand: what is alike stays so.
        alike = np.round(exact / max(1.0, float(np.abs(exact).max(initial=0.0))), 12)
        order = np.lexsort((listing.places[some], -alike))[:n]
        chosen.append((some[order], exact[order]))
    return chosen


def _hidden(
    walk: NDArray[np.int64] | None, left_out: Sequence[NDArray[np.int64]]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """What each line leaves out, as lines and places in the ascending ``walk``, in the order of places."""
    lines = np.repeat(np.arange(len(left_out)), [len(each) for each in left_out])
    places = np.concatenate([*left_out, NONE])
    if walk is not None:
        slots, places = places, np.searchsorted(walk, places)
        inside = places < len(walk)
        inside[inside] = walk[places[inside]] == slots[inside]
        lines, places = lines[inside], places[inside]
    order = np.argsort(places, kind="stable")
    return lines[order], places[order]


def _most_informative(
    fitted: Fitted,
    listing: Listing,
    slots: NDArray[np.int64],
    states: RowStates,
    n: int,
    criterion: Criterion,  # noqa: ARG001
    left_out: Sequence[NDArray[np.int64]],
) -> list[Chosen]:
    """The features whose observation would tell most about each row.

    As in ``suggest`` with the parts exchanged: the unknown is the row's activation, of the variance that
    the backbone gives. What a head is unsure of counts as noise.
    """
    if states.variance is None:
        raise InputError(
            f"{argument('by', 'information')} needs a backbone that knows how sure it is of rows; fit with "
            f"{argument('backbone', 'factorisation')}"
        )
    every = _second_moment_of_weights(fitted, listing.present)
    found = []
    for line, hidden in enumerate(left_out):
        some = np.setdiff1d(slots, hidden)
        where = torch.from_numpy(some[np.argsort(listing.places[some], kind="stable")])
        one = states.take(slice(line, line + 1))
        noise = _noise_of_answers(fitted, listing, where, one)
        covariance = torch.diag(one.variance[0].double())  # type: ignore[index]
        weights = Weights(fitted.catalogue.stored(where).weight)
        chosen, gains = greedy(weights, noise, covariance, every, n)
        found.append((where.numpy()[chosen], np.array(gains)))
    return found


def _second_moment_of_weights(fitted: Fitted, slots: NDArray[np.int64]) -> Tensor:
    """E[w·wᵀ] over all features: by it the variance of a row's activation is that of its predictions."""
    weights = [fitted.catalogue.stored(part).weight.double() for part in _parts(torch.from_numpy(slots))]
    return sum(each.T @ each for each in weights) / max(1, len(slots))  # type: ignore[return-value]


def _noise_of_answers(fitted: Fitted, listing: Listing, slots: Tensor, one: RowStates) -> Tensor:
    """The variance of one row's observation of each feature, about what its activation says: (features,)."""
    known = RowStates(one.code, one.code_std, one.activation, one.noise)
    found = [torch.zeros(0, dtype=torch.float64)]
    for part in _parts(slots):
        some = Candidates.at(fitted, listing, part)
        grid = predict_grid(some.heads, known, some.modelled, fitted.knowledge.likelihood)
        found.append((grid.output_noise() + grid.variance)[0])
    return torch.cat(found)


def _parts(slots: Tensor) -> Sequence[Tensor]:
    return torch.split(slots, _HEADS_AT_ONCE)


def _ranking_of_features(
    fitted: Fitted,
    row: str,
    state: RowStates,
    names: list[str],
    score: NDArray[np.float64],
    criterion: Criterion,
    level: float,
) -> Ranking:
    prediction = predict_features(fitted, Names([row], "row"), state, names)
    low, high = prediction.interval(level)
    mean, std = prediction.mean[0], prediction.std[0]
    return Ranking(row, "feature", criterion.by, tuple(names), score, mean, std, low[0], high[0], level)
