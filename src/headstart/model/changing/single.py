"""A single observation, taken by its row and its feature: the same steps as of many, without batches."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray

from headstart.adapters.closed_form import ClosedFormAdapter
from headstart.adapters.one_head import OneContext, OneSums, one_head, refined_one
from headstart.algebra.small import Array, triangle
from headstart.algebra.symmetric import LinAlgError
from headstart.backbones.factorisation import Factorisation
from headstart.backbones.one_row import OneRow, one_state
from headstart.core.heads import OneHead
from headstart.core.states import OneState
from headstart.errors import NumericalError
from headstart.model.inputs.triples import Triples
from headstart.model.parts.describing import belief_of, observations_of_row
from headstart.model.parts.extremes import too_extreme
from headstart.model.parts.feature import Feature
from headstart.model.parts.fitted import Fitted
from headstart.model.parts.roster import RowObservations
from headstart.model.parts.widening import SURPRISING
from headstart.table.kinds import KindType


def takes_one(fitted: Fitted, given: Triples) -> bool:
    """Whether there is a short way for these observations: a single one, of parts that have such forms."""
    return len(given.values) == 1 and not given.features[0].finds_scale and has_short_ways(fitted)


def has_short_ways(fitted: Fitted) -> bool:
    """Whether the parts of a model have forms for a single row or feature."""
    adapter, backbone = fitted.adapter, fitted.backbone
    return (
        isinstance(adapter, ClosedFormAdapter)
        and adapter.by_sums_alone
        and isinstance(backbone, Factorisation)
        and backbone.config.uncertain_rows
        and backbone.config.likelihood.rating_link == "identity"
        and not adapter.training
    )


def modelled_kind(fitted: Fitted, feature: Feature) -> int:
    """The kind of a feature as the model takes it."""
    kind = int(feature.kind.type)
    return int(KindType.RATING) if kind == KindType.BINARY and fitted.binary_as_numbers else kind


def head_of(fitted: Fitted, feature: Feature) -> OneHead:
    """The present head of a feature."""
    (slot,) = fitted.catalogue.slots([feature.name])
    return OneHead(*(part[slot] for part in fitted.catalogue.stored_arrays))


def with_row(fitted: Fitted, row: int, number: int, value: float, time: float | None) -> Fitted:
    """Return the model in which a row has also observed this value of the feature of this number."""

    return row_observed(fitted, row, number, value, time, lambda held: described_one(fitted, row, held))


def described_one(fitted: Fitted, row: int, observations: RowObservations) -> OneState:
    """``describing.described`` of one row that observed this."""
    try:
        state = refined_one(_adapter(fitted), _state(fitted, row, observations))
        finite = math.isfinite(sum(float(np.sum(part)) for part in state.parts()))
    except LinAlgError:
        finite = False
    if not finite:
        raise NumericalError(
            f"row {fitted.rows[row]!r}: its observations are so extreme that nothing can be computed "
            "from them; correct them or leave them out"
        )
    return state


def row_observed(
    fitted: Fitted,
    row: int,
    number: int,
    value: float,
    time: float | None,
    described: Callable[[RowObservations], OneState],
) -> Fitted:
    """``observing.rows_observed`` of one observation."""
    held = observations_of_row(fitted, row)
    numbers, values = _inserted(held.numbers, held.values, number, value)
    observations = RowObservations(numbers, values, now=fitted.now)
    if held.times is not None and time is not None:
        observations = observations._replace(times=_inserted(held.numbers, held.times, number, time)[1])
    return replace(fitted, roster=fitted.roster.put_one(row, described(observations), observations))


def _inserted(
    places: NDArray[np.int64], values: NDArray[np.float64], place: int, value: float
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Ascending places and their values with one more, or with another value at a place that is there."""
    at = int(places.searchsorted(place))
    tail = at + 1 if at < len(places) and places[at] == place else at
    return (
        np.concatenate([places[:at], [place], places[tail:]]),
        np.concatenate([values[:at], [value], values[tail:]]),
    )


def _state(fitted: Fitted, row: int, observations: RowObservations) -> OneState:
    """The state of a row that observed this, as ``describing.described``, before it is refined."""
    numbers, values = observations.numbers, observations.values
    slots, facts = fitted.catalogue.slots_by_number(numbers), fitted.catalogue.facts(numbers)
    there = slots >= 0
    if not there.all():  # of features that are no longer there
        numbers, values, slots, facts = numbers[there], values[there], slots[there], facts[there]
    scaled = ((values - facts[:, 1]) / facts[:, 2]).astype(np.float32).astype(np.float64)
    as_fitted = facts[:, 3] > 0
    own, others = np.flatnonzero(as_fitted), np.flatnonzero(~as_fitted)
    order = np.concatenate([own, others])
    fitted_heads = [part.numpy() for part in fitted.knowledge.heads.detach().parts()]
    weight, bias, covariance, noise = (
        _gathered(one, numbers[own], other, slots[others])
        for one, other in zip(fitted_heads, fitted.catalogue.stored_arrays, strict=True)
    )
    heads = np.concatenate([weight, bias[:, None]], axis=1, dtype=np.float64)
    kinds = facts[order, 0].astype(np.int64)
    if fitted.binary_as_numbers:
        kinds[kinds == KindType.BINARY] = KindType.RATING
    weights = None
    if fitted.clock is not None and observations.times is not None:
        weights = fitted.clock.weights(observations.times)[there][order]
    one = OneRow(scaled[order], heads, covariance, noise, kinds, weights)
    belief = belief_of(fitted, row)
    known = numbers[numbers < len(fitted.backbone_features)]
    return one_state(cast(Factorisation, fitted.backbone), one, known, belief)


def _gathered(one: Array, at: Array, other: Array, there: Array) -> Array:
    """Parts of two arrays, one after the other, without a copy between."""
    both = np.empty((len(at) + len(there), *one.shape[1:]), dtype=one.dtype)
    np.take(one, at, axis=0, out=both[: len(at)], mode="clip")
    np.take(other, there, axis=0, out=both[len(at) :], mode="clip")
    return both


def with_feature(fitted: Fitted, feature: Feature, row: int, value: float, time: float | None) -> Fitted:
    """Return the model in which a feature is also observed at this row."""
    after = replace(feature.with_one(row, value, time), now=fitted.now)
    kind = modelled_kind(fitted, after)
    activation, *rest = fitted.roster.read_by_heads(after.rows)
    noise, variance = (*rest, None, None)[:2]
    scaled = ((after.values - after.kind.offset) / after.kind.span).astype(np.float32).astype(np.float64)
    weights = None if fitted.clock is None or after.times is None else fitted.clock.weights(after.times)
    context = OneContext(kind, scaled, activation, noise, variance, weights)
    before = head_of(fitted, feature)
    start = np.append(before.weight, before.bias).astype(np.float64)
    try:
        head, sums = one_head(_adapter(fitted), context, _prior_means(fitted, after), start)
        finite = math.isfinite(sum(float(np.sum(part)) for part in head))
    except (LinAlgError, ArithmeticError):
        finite = False
    if not finite:
        raise too_extreme(after)
    if kind != KindType.BINARY and _surprises(fitted, head, context, after.shots):
        return fitted.refined(after)  # the general way, in which intervals widen
    evidence = None if sums is None or kind == KindType.REAL else _kept(sums)
    catalogue = fitted.catalogue.put_one(after, head, evidence, fitted.roster.epoch)
    return replace(fitted, catalogue=catalogue)


def _adapter(fitted: Fitted) -> ClosedFormAdapter:
    return cast(ClosedFormAdapter, fitted.adapter)  # as ``takes_one`` says


def _prior_means(fitted: Fitted, feature: Feature) -> Array:
    """The prior means of a feature's head with and without metadata: (2, size)."""
    prior = _adapter(fitted).prior
    if feature.in_backbone:
        number = fitted.catalogue.number(feature.name)  # its position in the backbone
        return prior.known_means.numpy()[number].astype(np.float64)  # type: ignore[no-any-return]
    batch = fitted.batch_of([feature.among(feature.rows[:0])])
    return torch.cat([prior.mean(batch), prior.mean_without_metadata(batch)]).detach().double().numpy()


def _surprises(fitted: Fitted, head: OneHead, context: OneContext, shots: int) -> bool:
    """Whether an observation lies so far off that ``widening.widened`` would look closer."""
    factor = fitted.calibration.one_factor(shots, context.kind)
    distance = context.values - (context.activation @ head.weight + head.bias)
    noise = head.noise if context.noise is None else head.noise * context.noise
    return bool((distance**2 > (SURPRISING * factor) ** 2 * 0.999 * noise).any())  # rounding may differ


def _kept(sums: OneSums) -> torch.Tensor:
    """The sums as ``ClosedFormAdapter.evidence`` gives them."""
    packed = triangle(sums.total)
    return torch.from_numpy(np.concatenate([[sums.shots], packed, sums.linear, [sums.squares]]))[None]
