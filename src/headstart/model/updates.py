"""Update a fitted model: observe values, add and remove rows and features.

**The meaning of** ``observe``. An updated model is a function of the observations of its rows and features,
and of the order in which these first arrived. It does not depend on how the observations were batched, on the
process that received them, or on a restart. Heads of features depend on states of rows, and states of rows on
heads. If each were computed from the latest value of the other, the result would depend on the order of
computation. So rows and features have a *reference* each, which the other side is computed from, and a
*current* value, from which predictions are made:

- The **reference of a row** is its state given its first N observations of features of the backbone, computed
  with the heads of the backbone.
- The **reference of a feature** is its head given its first N observations at rows of the fitted table,
  computed from the states that ``fit`` gave these rows.
- The **current state of a row** uses all its observations and the references of its features.
- The **current head of a feature** uses all its observations and the references of its rows.

Observations of the fitted table come first, then all others in their order of arrival. N is the largest of
1, 2, 3, 4, 6, 8, 12, … that is at most the number of observations (``observations.reference_size``). As long
as N is not more than the number of observations in the table, the reference is that of the fit. A row or
feature without observations since ``fit`` has the state or head of the fit.

References depend only on states and heads of the fit, so there is no circular dependency, and they can be
renewed in any order. When a reference is renewed, the current values that depend on it are computed again: as
N grows geometrically, this is a constant number of computations per observation, on average. A correction
replaces the value of a cell and does not change its position in the order of arrival. Removing a row or a
feature gives the model that would exist if its observations had never been made.

The argument ``update`` chooses whether rows, features or both store an observation; each side has its own
order of arrival.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from headstart.adapters.base import HeadSums, OneFeature
from headstart.core.predictive import predict_cell, predict_cells
from headstart.core.types import Heads, OneHead, OneState, RowStates
from headstart.display import count
from headstart.errors import InputError, for_user, join_names, option_name
from headstart.linalg.array_ops import LinAlgError
from headstart.linalg.threads import one_blas_thread
from headstart.model.context_sums import ContextMemory, FeatureContext
from headstart.model.features import Feature
from headstart.model.inputs import NewRows, check_rows
from headstart.model.levels import owner_of
from headstart.model.observations import (
    ObservationList,
    ObservationLists,
    reference_part,
    references_differ,
    split_by_line,
)
from headstart.model.persistent import copy_with
from headstart.model.row_states import (
    compute_row_state,
    compute_row_states,
    has_single_forms,
    observations_of_row,
    reads_any_feature,
    row_reference_part,
)
from headstart.model.rows import Version
from headstart.model.staleness import excess_of
from headstart.model.state import (
    SURPRISING,
    ModelState,
    batches,
    extreme_feature_error,
    find_units,
    given_exposure,
)
from headstart.model.triples import Triples
from headstart.table import Cells
from headstart.table.kinds import KindType
from headstart.training.calibration import USUAL_LEVEL

Update = Literal["both", "features", "rows"]

UPDATES = ("both", "features", "rows")

# Few rows are computed one by one. Features are computed in stacks if there are few, or if they have many
# observations: then the arithmetic takes longer than the overhead of a batch, too large for the cache.
_FEW_ROWS, _FEW_FEATURES, _MANY_OBSERVATIONS = 8, 32, 128
_STACK = 32  # features in a stack, whose matrices fit in the cache


# -- changes and their consequences ------------------------------------------------------------------


@dataclass
class Changes:
    """Rows and features whose observations change, and which of their references change with them.

    Attributes
    ----------
    rows : dict
        The new observations of rows, by position. Positions beyond the rows of the model are new rows.
    row_references : set of int
        The rows whose references must be computed again, including all new rows.
    features : dict
        The features, by name, with their new contexts.
    feature_references : set of str
        The features whose references must be computed again, including all new features.
    numbers : dict
        The numbers of new features, by name.
    """

    rows: dict[int, ObservationList] = field(default_factory=dict)
    row_references: set[int] = field(default_factory=set)
    features: dict[str, Feature] = field(default_factory=dict)
    feature_references: set[str] = field(default_factory=set)
    numbers: dict[str, int] = field(default_factory=dict)

    def set_row(
        self, model: ModelState, row: int, before: ObservationList | None, after: ObservationList
    ) -> None:
        """Replace the observations of a row; ``before`` is None for a new row."""
        self.rows[row] = after
        if before is None or references_differ(
            row_reference_part(model, row, before), row_reference_part(model, row, after)
        ):
            self.row_references.add(row)

    def set_feature(self, model: ModelState, before: Feature | None, after: Feature) -> None:
        """Replace the context of a feature; ``before`` is None for a new feature."""
        self.features[after.name] = after
        if before is None and after.name not in self.numbers:
            self.numbers[after.name] = model.feature_store.next_number + len(self.numbers)
        if before is None or references_differ(
            feature_reference_part(model, before), feature_reference_part(model, after)
        ):
            self.feature_references.add(after.name)


def feature_reference_part(model: ModelState, feature: Feature) -> ObservationList | None:
    """Return the observations that the reference of a feature uses; None if it is that of the fit."""
    if feature.fixed:
        return None
    end = int(feature.rows.searchsorted(feature.rows.dtype.type(model.fitted_rows)))
    observations = feature.observations
    part = observations if end == len(observations.keys) else observations.take(slice(0, end))
    return reference_part(part, fitted=feature.in_backbone)


@one_blas_thread()
def renew(model: ModelState, changes: Changes, new_rows: Sequence[str] = ()) -> ModelState:
    """Return the model after ``changes``, with all references and current values that depend on them.

    ``new_rows`` are the names of rows to be added; the model must already have their metadata.
    """
    first = len(model.rows)
    model = _renew_row_references(model, changes, new_rows)
    renewed = [row for row in changes.row_references if row < first]
    features = dict(changes.features)
    for feature in _features_observed_at(model, renewed):
        features.setdefault(feature.name, feature)
    model = _compute_heads(model, features, changes.numbers)
    model = _renew_feature_references(model, changes)
    rows = dict(changes.rows)
    known = [name for name in changes.feature_references if name not in changes.numbers]
    if known:  # the state of no row depends on a new feature yet
        numbers = np.array([model.feature_store.number(name) for name in known], dtype=np.int64)
        for row in model.row_store.observers(numbers).tolist():
            if row not in rows:
                rows[row] = observations_of_row(model, row)
    return _compute_states(model, rows)


def _renew_row_references(model: ModelState, changes: Changes, new_rows: Sequence[str]) -> ModelState:
    """Compute the changed references of rows, and add the new rows."""
    first, parts = len(model.rows), {}
    for row in sorted(changes.row_references):
        parts[row] = row_reference_part(model, row, changes.rows[row])
    if as_fitted := [row for row, part in parts.items() if part is None]:
        rows = np.array(as_fitted, dtype=np.int64)
        model = model.with_row_store(model.row_store.reset(rows, current=False))
    old = {row: part for row, part in parts.items() if part is not None and row < first}
    if old:
        states = _states(model, old, [model.rows[row] for row in old], "fit")
        model = model.with_row_store(model.row_store.put_references(_positions(old), states))
    if new_rows:
        new = {row: part for row, part in parts.items() if part is not None and row >= first}
        states = _states(model, new, new_rows, "fit")
        row_store = model.row_store.add(new_rows, states, [changes.rows[row] for row in new])
        model = model.with_row_store(row_store)
    return model


def _features_observed_at(model: ModelState, rows: Iterable[int]) -> list[Feature]:
    """Return the features observed since fit whose contexts contain any of these rows."""
    positions = np.array(sorted(rows), dtype=np.int64)
    return model.feature_store.observed_since_at(positions) if len(positions) else []


def _compute_heads(
    model: ModelState, features: Mapping[str, Feature], numbers: Mapping[str, int]
) -> ModelState:
    """Compute the current heads of features; without observations since fit, they are those of the fit."""
    groups: dict[Version, list[Feature]] = {"reference": [], "fit": []}
    adapted = [feature for feature in features.values() if not feature.fixed]
    for feature in find_units(adapted, model.middle):
        groups["reference" if feature.observed_since else "fit"].append(feature)
    for version, group in groups.items():
        for part, heads in _heads(model, group, version):
            model = copy_with(model, feature_store=model.feature_store.put(part, heads, numbers))
    return model


def _renew_feature_references(model: ModelState, changes: Changes) -> ModelState:
    """Compute the changed references of features."""
    as_fitted, others = [], []
    for name in changes.features:
        if name in changes.feature_references:
            feature = changes.features[name]
            part = feature_reference_part(model, feature)
            if part is None:
                as_fitted.append(name)
            elif (
                name in changes.numbers
                and len(part.keys) == feature.shots
                and model.row_store.are_as_fitted(feature.rows)
            ):
                continue  # its reference is its current head
            else:
                others.append(feature.with_observations(part))
    feature_store = model.feature_store
    if as_fitted:
        feature_store = feature_store.reset_references(as_fitted)
    for batch, heads in _heads(model, find_units(others, model.middle), "fit"):
        feature_store = feature_store.put_references(batch, heads)
    return copy_with(model, feature_store=feature_store)


def _compute_states(model: ModelState, rows: Mapping[int, ObservationList]) -> ModelState:
    """Compute the current states of rows; without observations since fit, they are those of the fit."""
    changed = {
        row: observations
        for row, observations in rows.items()
        if row >= model.fitted_rows or observations.since_fit
    }
    if len(changed) < len(rows):
        unchanged = np.array(sorted(row for row in rows if row not in changed), dtype=np.int64)
        model = model.with_row_store(model.row_store.reset(unchanged, current=True))
    if not changed:
        return model
    changed = dict(sorted(changed.items()))
    states = _states(model, changed, [model.rows[row] for row in changed], "reference")
    return model.with_row_store(model.row_store.put(_positions(changed), states, list(changed.values())))


def _positions(rows: Iterable[int]) -> NDArray[np.int64]:
    return np.array(list(rows), dtype=np.int64)


def _states(
    model: ModelState, rows: Mapping[int, ObservationList], names: Sequence[str], version: Version
) -> RowStates | list[OneState]:
    """Compute the states of rows from their observations: a few one by one, others in a batch."""
    if len(rows) <= _FEW_ROWS and has_single_forms(model):
        return [compute_row_state(model, row, rows[row], version) for row in rows]
    row_metadata = model.row_metadata
    metadata = None if row_metadata is None else row_metadata.encoded[_positions(rows)]
    return compute_row_states(model, ObservationLists.of(list(rows.values())), names, metadata, version)


def _heads(
    model: ModelState, features: list[Feature], version: Version
) -> Iterable[tuple[list[Feature], Heads | list[OneHead]]]:
    """Yield batches of features with their heads, computed in numpy or, if there are many, in torch."""
    if has_single_forms(model):
        stacked = [feature for feature in features if feature.shots >= _MANY_OBSERVATIONS]
        others = [feature for feature in features if feature.shots < _MANY_OBSERVATIONS]
        if len(others) <= _FEW_FEATURES:
            stacked, others = features, []
        for start in range(0, len(stacked), _STACK):
            stack = stacked[start : start + _STACK]
            heads = compute_heads(model, stack, version)
            others += [feature for feature, head in zip(stack, heads, strict=True) if head is None]
            computed = [
                (feature, head) for feature, head in zip(stack, heads, strict=True) if head is not None
            ]
            if computed:
                yield [feature for feature, _ in computed], [head for _, head in computed]
        features = others
    if features:
        for batch in batches(features):
            yield batch, model.heads_for(batch, version)


def compute_heads(model: ModelState, features: Sequence[Feature], version: Version) -> list[OneHead | None]:
    """Compute heads in numpy; None where the center and scale of the feature must be estimated in a batch.

    The adapter and the backbone must have single forms (``has_single_forms``).
    """
    heads: list[OneHead | None] = [None] * len(features)
    contexts: dict[int, FeatureContext] = {}
    summed: list[int] = []
    adapter = model.adapter
    for position, feature in enumerate(features):
        if feature.finds_scale:
            continue
        context = contexts[position] = _context_of(model, feature, version)
        if adapter.needs_context(context.kind):
            heads[position] = _adapt_one(model, feature, context)
        else:
            summed.append(position)
    of_summed = [contexts[position] for position in summed]
    sums = model.context_memory.sums(
        adapter, [features[position] for position in summed], of_summed, model.row_store
    )
    try:
        if len(sums) == 1:
            heads[summed[0]] = adapter.adapt_sums(of_summed[0].feature, sums[0])
        elif sums:
            described = OneFeature.stack([context.feature for context in of_summed])
            stack = adapter.adapt_sums(described, HeadSums.stack(sums))
            for position, head in zip(summed, stack.split(), strict=True):
                heads[position] = head
    except (LinAlgError, ArithmeticError):
        return heads  # the batched form names the feature
    for position, context in contexts.items():
        computed, feature = heads[position], features[position]
        if computed is None:
            continue
        if not math.isfinite(computed.weight.sum() + computed.bias + computed.covariance.sum()):
            raise extreme_feature_error(feature)
        if _surprises(model, computed, context):
            heads[position] = _widen(model, computed, feature, version)
    return heads


def _context_of(model: ModelState, feature: Feature, version: Version) -> FeatureContext:
    """Return a feature with known scale and its context in numpy."""
    known = model.feature_store.number(feature.name) if feature.in_backbone else -1  # the position in it
    exposure = 1.0 if feature.in_backbone else given_exposure(feature)
    kind, scaled = model.kind_of(feature), (feature.values - feature.kind.offset) / feature.kind.span
    return FeatureContext(
        OneFeature(np.asarray(kind), feature.metadata, np.asarray(known), np.asarray(exposure)),
        feature.rows,
        model.row_store.version_slots(feature.rows, version),
        scaled.astype(np.float32).astype(np.float64),
        model.weigh(feature.weights, feature.times),
    )


def _adapt_one(model: ModelState, feature: Feature, context: FeatureContext) -> OneHead:
    """Compute the head of a feature from its single observations, with the start at its current head."""
    start = None
    if context.kind == KindType.BINARY and feature.name in model.feature_store:
        before = head_of(model, feature)  # only logistic heads need iterations
        start = np.append(before.weight, before.bias).astype(np.float64)
    states = context.context(model.row_store, code=model.adapter.reads_code)
    try:
        return model.adapter.adapt_one(states, start)
    except (LinAlgError, ArithmeticError):
        raise extreme_feature_error(feature) from None


def _surprises(model: ModelState, head: OneHead, context: FeatureContext) -> bool:
    """Return whether ``widen_surprised`` might widen the head because of a surprising observation."""
    if context.kind in (KindType.BINARY, KindType.CLICK) or not len(context.rows):
        return False
    activation, noise = model.row_store.activations(context.slots)
    factor = model.calibration.one_factor(len(context.rows), context.kind)
    distance = context.values - (activation @ head.weight.astype(np.float32) + head.bias)
    limit = (SURPRISING * factor) ** 2 * 0.999 * head.noise  # rounding may differ
    return bool((distance * distance > (limit if noise is None else limit * noise)).any())


def _widen(model: ModelState, head: OneHead, feature: Feature, version: Version) -> OneHead:
    """Return the head of a feature with larger variances, if observations are surprising."""
    batch, states = model.adapter_inputs([feature], version)
    dtype = states.activation.dtype
    heads = Heads(*(torch.as_tensor(part, dtype=dtype)[None] for part in head))
    weight, bias, covariance, noise = model.widen_heads(heads, batch, states).parts()
    return OneHead(weight[0].numpy(), float(bias[0]), covariance[0].numpy(), float(noise[0]))


def head_of(model: ModelState, feature: Feature) -> OneHead:
    """Return the current head of a feature."""
    (slot,) = model.feature_store.slots([feature.name])
    return OneHead(*(part[slot] for part in model.feature_store.stored_arrays))


# -- operations --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Observed:
    """The result of ``observe``.

    Attributes
    ----------
    observations : int
        The number of observations.
    features, rows : tuple of str
        The features and the rows that changed.
    added_features, added_rows : tuple of str
        The features and the rows that were added to the model (``unknown="add"``).
    skipped_features, skipped_rows : tuple of str
        The features and the rows that are not in the model and were left out (``unknown="skip"``).
    """

    observations: int
    features: tuple[str, ...]
    rows: tuple[str, ...]
    added_features: tuple[str, ...] = ()
    added_rows: tuple[str, ...] = ()
    skipped_features: tuple[str, ...] = ()
    skipped_rows: tuple[str, ...] = ()

    def __str__(self) -> str:
        observed = count(self.observations, "observation")
        message = f"{observed} taken; {_count_both(self.features, self.rows)} changed"
        if self.added_features or self.added_rows:
            message += f"; added {_count_both(self.added_features, self.added_rows)}"
        if self.skipped_features or self.skipped_rows:
            message += (
                f"; left out {_count_both(self.skipped_features, self.skipped_rows)} that the model "
                "does not know"
            )
        return message


def _count_both(features: tuple[str, ...], rows: tuple[str, ...]) -> str:
    return f"{count(len(features), 'feature')} and {count(len(rows), 'row')}"


def require_supported(model: ModelState, features: list[Feature], update: str) -> None:
    """Raise an InputError if the backbone or the adapter does not support this update."""
    if not isinstance(update, str) or update not in UPDATES:
        raise InputError(f"update must be one of {', '.join(UPDATES)}; got {update!r}")
    if update != "rows":
        for feature in features:
            if feature.fixed:
                raise InputError(
                    f"feature {feature.name!r} was trained into the backbone, whose heads are fixed with "
                    f"this adapter; fit with {option_name('adapter', 'bayes')} to observe any feature further"
                    + (f", or give {option_name('update', 'rows')}" if update == "both" else "")
                )
    if update != "features" and not reads_any_feature(model):
        later = [feature.name for feature in features if not feature.in_backbone]
        if later:
            part = (
                f"the backbone {model.settings.backbone.name!r} reads the features of its table only"
                if model.adapter.gives_uncertainty
                else f"the adapter {model.settings.chosen_adapter.name!r} does not know how sure it is"
            )
            raise InputError(
                f"rows cannot be described by features added after fit ({join_names(later, 3)}): {part}; "
                f"give {option_name('update', 'features')}, "
                f"or {for_user('fit() again', 'use headstart refit')}"
            )


def add_observations(
    model: ModelState,
    triples: Triples,
    update: Update | tuple[NDArray[np.bool_], NDArray[np.bool_]] = "both",
    new_rows: Sequence[str] = (),
    new_features: Mapping[str, Feature] | None = None,
) -> ModelState:
    """Return the model with more observations in its rows, its features or both.

    Parameters
    ----------
    model : ModelState
        The model, which must already have the metadata of new rows.
    triples : Triples
        The observations. Positions beyond the rows of the model are new rows, in the order of ``new_rows``.
    update : str or pair of masks
        The side that stores the observations; or two masks (n,), of the observations that rows store and of
        the observations that features store.
    new_rows : sequence of str
        The names of new rows.
    new_features : mapping of str to Feature, optional
        New features, with the observations that no row stores.
    """
    new = new_features or {}
    everywhere = np.ones(len(triples.values), dtype=bool)
    by_name = {"both": (everywhere, everywhere), "rows": (everywhere, ~everywhere),
               "features": (~everywhere, everywhere)}  # fmt: skip
    row_mask, feature_mask = by_name[update] if isinstance(update, str) else update
    arrivals = model.arrivals + triples.order
    changes = Changes()
    first = len(model.rows)
    for row in range(first, first + len(new_rows)):
        changes.set_row(model, row, None, ObservationList.empty(timed=model.clock is not None))
    for row, more in _split(triples.rows, triples.numbers, triples, arrivals, row_mask).items():
        before = None if row >= first else observations_of_row(model, row)
        changes.set_row(model, row, before, more if before is None else before.merge(more))
    for feature in new.values():
        changes.set_feature(model, None, feature)
    for position, more in _split(
        triples.feature_positions, triples.rows, triples, arrivals, feature_mask
    ).items():
        feature = triples.features[position]
        old = None if feature.name in new else feature
        changes.set_feature(model, old, feature.with_observations(feature.observations.merge(more)))
    model = copy_with(model, arrivals=model.arrivals + int(triples.order.max(initial=-1)) + 1)
    if len(model.not_applicable):
        pairs = zip(triples.rows.tolist(), triples.feature_positions.tolist(), strict=True)
        cells = [(model.rows[row], owner_of(triples.features[at])) for row, at in pairs if row < first]
        model = copy_with(model, not_applicable=model.not_applicable.without(cells))
    if model.clock is not None:
        model = copy_with(model, clock=model.clock.advance(triples.times))
    return renew(model, changes, new_rows)


def _split(
    lines: NDArray[np.int64],
    keys: NDArray[np.int64],
    triples: Triples,
    arrivals: NDArray[np.int64],
    mask: NDArray[np.bool_],
) -> dict[int, ObservationList]:
    """Split the observations in ``mask`` by row or feature."""
    if mask.all():
        return split_by_line(lines, keys, triples.values, arrivals, triples.times, triples.weights)
    times, weights = (None if part is None else part[mask] for part in (triples.times, triples.weights))
    return split_by_line(lines[mask], keys[mask], triples.values[mask], arrivals[mask], times, weights)


class ObserveResult(NamedTuple):
    """The model after ``observe``, a summary of the change, and a warning if an observation is surprising."""

    model: ModelState
    observed: Observed
    surprising: str | None


def observe_triples(model: ModelState, triples: Triples, update: Update) -> ObserveResult:
    """Add checked observations to the model, and compare them with its predictions."""
    after = add_observations(model, triples, update)
    rows = np.unique(triples.rows) if update != "features" else triples.rows[:0]
    features = triples.features if update != "rows" else []
    observed = Observed(
        len(triples.values),
        tuple(feature.name for feature in features),
        tuple(model.rows[row] for row in rows),
    )
    warning, excess = compare_with_predictions(model, triples)
    return ObserveResult(copy_with(after, arrived=model.arrived.add(excess)), observed, warning)


def add_features(model: ModelState, features: Sequence[Feature]) -> ModelState:
    """Return the model with new features; rows do not store their observations."""
    changes = Changes()
    for feature in features:
        changes.set_feature(model, None, feature)
    most = max((feature.shots for feature in features), default=0)
    return renew(copy_with(model, arrivals=model.arrivals + most), changes)


def add_rows(model: ModelState, new: NewRows) -> ModelState:
    """Return the model with new rows; update their features too if ``new.update_features``."""
    lists, order = check_rows(model, new.observations)
    times = None if model.clock is None else model.clock.times_now(len(lists.values))
    numbers, feature_positions = np.unique(lists.keys, return_inverse=True)
    by_number = model.feature_store.by_number() if new.update_features else {}
    features = [by_number[number] for number in numbers.tolist()] if new.update_features else []
    if new.update_features:
        require_supported(model, features, "both")
    rows = len(model.rows) + lists.lines
    triples = Triples(rows, features, feature_positions, lists.keys, lists.values, times, order)
    model = with_row_metadata(model, new)
    return add_observations(model, triples, "both" if new.update_features else "rows", new.names)


def with_row_metadata(model: ModelState, new: NewRows) -> ModelState:
    """Return the model with the metadata of rows that are about to be added."""
    metadata = model.row_metadata
    if metadata is None:
        return model
    return copy_with(model, row_metadata=metadata.add(new.records, new.encoded))


def remove_feature(model: ModelState, name: object) -> ModelState:
    """Return the model without a feature and its observations."""
    number = model.feature_store.number(name)
    changes = Changes()
    for row in model.row_store.observers(np.array([number])).tolist():
        before = observations_of_row(model, row)
        changes.set_row(model, row, before, before.take(before.keys != number))
    after = copy_with(
        model,
        feature_store=model.feature_store.remove(name),
        context_memory=ContextMemory(),
        not_applicable=model.not_applicable.without_feature(owner_of(model.feature_store[name])),
    )
    return renew(after, changes)


def remove_row(model: ModelState, row: int) -> ModelState:
    """Return the model without a row and its observations."""
    is_fitted = row < model.fitted_rows
    fixed = (feature for feature in model.feature_store.values() if feature.fixed) if is_fitted else iter(())
    if (example := next(fixed, None)) is not None:
        raise InputError(
            f"row {model.rows[row]!r} cannot be taken out of the features it was fitted with: heads such as "
            f"that of {example.name!r} are fixed with this adapter; fit with "
            f"{option_name('adapter', 'bayes')}, or fit again without the row"
        )
    changes = Changes()
    features, observers = model.feature_store.remove_row(row)
    for feature in observers:
        changes.set_feature(model, feature, feature.without_row(row))
        changes.features[feature.name] = features[feature.name]
    knowledge, adapter, clock = model.knowledge, model.adapter, model.clock
    table_weights, table_values = model.table_weights, model.table_values
    if is_fitted:
        cells = slice(int(knowledge.cells.indptr[row]), int(knowledge.cells.indptr[row + 1]))
        if clock is not None:
            clock = replace(clock, table=np.delete(clock.table, cells))
        if table_weights is not None:
            table_weights = np.delete(table_weights, cells)
        if table_values is not None:
            table_values = np.delete(table_values, cells)
        others = torch.from_numpy(np.delete(np.arange(len(knowledge.cells)), row))
        knowledge = replace(
            knowledge, cells=knowledge.cells.take(others), states=knowledge.states.take(others)
        )
        adapter = adapter.with_knowledge(knowledge)
    row_metadata = model.row_metadata
    after = replace(
        model,
        row_store=model.row_store.remove(row),
        feature_store=features,
        knowledge=knowledge,
        adapter=adapter,
        clock=clock,
        table_weights=table_weights,
        table_values=table_values,
        row_metadata=None if row_metadata is None else row_metadata.remove(row),
        context_memory=ContextMemory(),  # the positions of rows have changed
        not_applicable=model.not_applicable.without_row(model.rows[row]),
    )
    return renew(after, changes)


# -- surprising observations -------------------------------------------------------------------------


_SMALL_SAMPLE = 8.0  # the limit of a feature with an estimated scale is larger by the factor 1 + 8 / shots


class Forecast(NamedTuple):
    """Predictions of observations before these are added to the model, on the scale of the model.

    They leave out the local part, which takes as long as the update itself and moves a prediction by a
    fraction of a standard deviation.
    """

    mean: NDArray[np.float64]  # (n,)
    std: NDArray[np.float64]  # (n,): calibrated
    binary: NDArray[np.bool_]  # (n,): whether the value is 0 or 1
    order: NDArray[np.int64]  # (n,): the position of the observation that each prediction belongs to


def compare_with_predictions(model: ModelState, triples: Triples) -> tuple[str | None, NDArray[np.float64]]:
    """Return a warning if any observation is surprising, and the excess errors of the predictions: (n,).

    Clicks have no errors: without the zeros of other cells they say nothing.
    """
    if not len(triples.values):
        return None, np.zeros(0)
    one = len(triples.values) == 1 and not triples.features[0].finds_scale and has_single_forms(model)
    expected = _forecast_one(model, triples) if one else _forecast(model, triples)
    lines = triples.feature_positions[expected.order]
    kinds = [feature.kind for feature in triples.features]
    offset = np.array([kind.offset for kind in kinds])[lines]
    span = np.array([kind.span for kind in kinds])[lines]
    scaled = (triples.values[expected.order] - offset) / span
    excess = excess_of(scaled, expected.mean, expected.std, expected.binary)
    clicks = np.array([kind.type == KindType.CLICK for kind in kinds], dtype=bool)
    excess = excess[~clicks[lines]]
    if not (np.abs(scaled - expected.mean) > 0.99 * SURPRISING * expected.std).any():
        return None, excess
    binary = clicks | np.array([kind.type == KindType.BINARY for kind in kinds], dtype=bool)
    message = (
        None if binary.all() else _surprise_message(model, triples, expected, offset, span, binary[lines])
    )
    return message, excess  # binary values and clicks give no warning: they are always possible


def _surprise_message(
    model: ModelState,
    triples: Triples,
    expected: Forecast,
    offset: NDArray[np.float64],
    span: NDArray[np.float64],
    binary: NDArray[np.bool_],
) -> str | None:
    """Return a message about the most surprising observation; None if none is surprising."""
    order = expected.order
    lines, values = triples.feature_positions[order], triples.values[order]
    mean, std = offset + span * expected.mean, span * expected.std
    distance = np.abs(values - mean) / np.maximum(std, np.finfo(float).tiny)
    shots = np.array([max(1, feature.shots) for feature in triples.features])
    # A scale estimated from few values is uncertain.
    finds_scale = np.array([feature.finds_scale for feature in triples.features])
    limit = (SURPRISING * (1 + _SMALL_SAMPLE / shots * finds_scale))[lines]
    excess = np.where(binary, 0.0, distance / limit)
    worst = int(excess.argmax())
    if excess[worst] <= 1:
        return None
    kind = triples.features[lines[worst]].kind
    value = kind.margin.to_value(values[worst])
    expected_mean, expected_std = kind.margin.moments(mean[worst], std[worst])
    others = int((excess > 1).sum()) - 1
    more = f", and {others} more like it" if others else ""
    return (
        f"feature {triples.features[lines[worst]].name!r}: the value {value:g} at row "
        f"{model.rows[triples.rows[order][worst]]!r} lies {distance[worst]:.3g} standard deviations from "
        f"its prediction ({expected_mean:.4g} ± {expected_std:.2g}){more}. The value was accepted. If it "
        "is a mistake, observe the correct value"
    )


@torch.no_grad()
def _forecast(model: ModelState, triples: Triples) -> Forecast:
    """Predict observations before they are added to the model."""
    features, heads = model.feature_store.take([feature.name for feature in triples.features])
    kinds = model.kinds_of(features)
    rows, inverse = np.unique(triples.rows, return_inverse=True)
    order = np.argsort(triples.feature_positions * len(rows) + inverse)
    cells = Cells.from_pairs(
        torch.from_numpy(triples.feature_positions),
        torch.from_numpy(inverse),
        torch.from_numpy(triples.values),
        len(features),
        len(rows),
    )
    predictive = predict_cells(heads, model.row_store.take(rows), cells, kinds, model.knowledge.likelihood)
    shots = torch.tensor([feature.shots for feature in features], dtype=torch.int64)
    factor = model.calibration.factor(shots, kinds)[:, USUAL_LEVEL][cells.lines]
    mean, std = predictive.mean.double().numpy(), (factor * predictive.std).double().numpy()
    return Forecast(mean, std, (predictive.kinds == KindType.BINARY).numpy(), order)


def _forecast_one(model: ModelState, triples: Triples) -> Forecast:
    """Predict a single observation as ``_forecast`` does, if ``has_single_forms``."""
    feature, kind = triples.features[0], model.kind_of(triples.features[0])
    state = model.row_store.state(int(triples.rows[0]))
    binary = kind == KindType.BINARY
    mean, std = predict_cell(head_of(model, feature), state, kind, model.knowledge.likelihood)
    factor = model.calibration.one_factor(feature.shots, kind)
    return Forecast(np.array([mean]), np.array([factor * std]), np.array([binary]), np.zeros(1, np.int64))
