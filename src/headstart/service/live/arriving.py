"""Features that arrive, in bulk: without a check of each, because each was checked when it came."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.errors import InputError
from headstart.model.inputs.intake import new_features
from headstart.model.parts.feature import Feature
from headstart.model.parts.fitted import Fitted
from headstart.model.parts.units import in_own_units
from headstart.service.live.state import power_of_two
from headstart.service.live.taking import Taken


def bare_features(fitted: Fitted, given: Mapping[str, Mapping[str, Any]]) -> dict[str, Feature]:
    """New features with their metadata, and without observations.

    Metadata that the model cannot read (a newly fitted one may have other types of columns) is left out.
    """
    samples = {kind: _sample(fitted, kind) for kind in {parts.get("kind") for parts in given.values()}}
    records = [dict(parts.get("metadata") or {}) for parts in given.values()]
    width = 0 if fitted.schema is None else fitted.schema.width
    encoded = np.zeros((len(records), width), np.float32)
    if fitted.schema is not None:
        try:
            encoded = fitted.schema.encode(records, fitted.encoders)
        except InputError:
            for place, record in enumerate(records):
                try:
                    encoded[place] = fitted.schema.encode([record], fitted.encoders)[0]
                except InputError:
                    records[place] = {}
                    encoded[place] = fitted.schema.encode([{}], fitted.encoders)[0]
    none, nothing = np.zeros(0, np.int64), np.zeros(0)
    made = {}
    for place, (name, parts) in enumerate(given.items()):
        sample, record = samples[parts.get("kind")], records[place]
        kept = {key: value for key, value in record.items() if value is not None}
        made[name] = Feature(
            name, sample.kind, False, 0, encoded[place], none, nothing, sample.finds_scale, kept
        )
    return made


def _sample(fitted: Fitted, kind: str | None) -> Feature:
    """A feature of this kind, or of the usual one if the model does not have it."""
    try:
        return new_features(fitted, {"sample of a kind": {"kind": kind}})[0]
    except InputError:
        return new_features(fitted, {"sample of a kind": {}})[0]


def first_contexts(
    fitted: Fitted, given: Taken, new: Mapping[str, Feature]
) -> tuple[dict[str, Feature], dict[str, Feature]]:
    """New features with all their observations, and with those that are kept; no step for each cell."""
    fresh = np.array([feature.name in new for feature in given.features], dtype=bool)
    chosen = np.flatnonzero(fresh[given.places]) if len(fresh) else np.zeros(0, np.int64)
    places, rows, values = given.places[chosen], given.rows[chosen], given.values[chosen]
    arrival = np.argsort(places, kind="stable")
    counts = np.bincount(places, minlength=len(given.features))
    starts = np.cumsum(counts) - counts
    rank = np.empty(len(chosen), np.int64)
    rank[arrival] = np.arange(len(chosen)) - starts[places[arrival]]
    most = np.array([power_of_two(count) for count in counts.tolist()], dtype=np.int64)
    every, kept = dict(new), dict(new)
    for target, among in ((every, np.ones(len(chosen), dtype=bool)), (kept, rank < most[places])):
        at, own, seen = places[among], rows[among], values[among]
        order = np.lexsort((own, at))
        own, seen = own[order], seen[order]
        ends = np.cumsum(np.bincount(at, minlength=len(given.features))).tolist()
        begins = [0, *ends][: len(ends)]
        observed = [
            _with(feature, own[begin:end], seen[begin:end])
            for feature, begin, end in zip(given.features, begins, ends, strict=True)
            if end > begin
        ]
        target |= {feature.name: feature for feature in in_own_units(observed, fitted.middle)}
    return every, kept


def _with(feature: Feature, rows: NDArray[np.int64], values: NDArray[np.float64]) -> Feature:
    """The feature with this context; written out, because a copy that is checked costs more."""
    return Feature(
        feature.name,
        feature.kind,
        False,
        len(rows),
        feature.metadata,
        rows,
        values,
        feature.finds_scale,
        feature.record,
        True,
    )
