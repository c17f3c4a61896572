"""The heads of a live model: from all observations, and as rows read them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from headstart.model.changing.single import has_short_ways, with_feature
from headstart.model.parts.feature import Feature
from headstart.model.parts.fitted import Fitted
from headstart.model.parts.units import in_own_units
from headstart.service.live.arriving import first_contexts
from headstart.service.live.state import LiveState, kept_keys
from headstart.service.live.taking import Taken

_FEATURES_AT_ONCE = 1 << 15
_FEW = 8  # features whose kept sums are worth more than one pass for all


def with_features(
    state: LiveState,
    given: Taken,
    new: Mapping[str, Feature],
    renewed: list[int],
    again: Mapping[int, NDArray[np.int64]],
) -> tuple[LiveState, list[str]]:
    """The state with new features and observations; the features whose kept heads changed."""
    base, reading = state.base, state.reading
    every, kept = first_contexts(base, given, new) if new else ({}, {})
    refined = 0
    for feature, rows, values in given.by_feature():
        own = feature.name not in state.origin.catalogue
        if feature.fixed or not len(rows) or feature.name in new:
            continue
        refined += 1
        every[feature.name] = base.with_own_units(feature.observed(rows, values))
        if own:
            held = reading.catalogue[feature.name]
            keys = kept_keys(feature.rows, held.rows, rows)
            if keys is not None or np.isin(rows, held.rows).any():
                kept[feature.name] = every[feature.name].among(held.rows if keys is None else keys)
    for row, feature in _holders(base, renewed):
        every.setdefault(feature.name, feature)
        if feature.name not in state.origin.catalogue and reading.catalogue[feature.name].holds(row):
            held = reading.catalogue[feature.name]
            kept.setdefault(feature.name, every[feature.name].among(held.rows))
    for name in (name for name in reading.catalogue if again and reading.catalogue.number(name) in again):
        feature = every.get(name) or base.catalogue[name]
        kept[name] = feature.among(again[reading.catalogue.number(name)])
    few = refined == len(every) <= _FEW and not (renewed or new)
    base = _headed(base, every, given if few else None)
    state = state.with_base(base)
    changed = [name for name in kept if name not in new]  # no row has read a new one
    return replace(state, reading=_kept(state.reading, base, new, kept)), changed


def _kept(reading: Fitted, base: Fitted, new: Mapping[str, Feature], kept: Mapping[str, Feature]) -> Fitted:
    """The kept heads after these features have other contexts.

    Where everything is kept, the head is that from all observations. New features get theirs first and in
    the order of ``new``, so that they have the same numbers in both catalogues.
    """
    whole = [name for name, feature in kept.items() if feature.shots == base.catalogue[name].shots]
    copied = [*new, *(name for name in whole if name not in new)]
    if copied:
        features, heads = base.catalogue.take(copied)
        reading = replace(reading, catalogue=reading.catalogue.put(features, heads))
    same = {*whole}
    others = [each for name, each in kept.items() if name not in same]
    parts = {each.name: each for each in in_own_units(others, base.middle)}
    return _headed(reading, parts, None)


def _holders(base: Fitted, rows: list[int]) -> Iterator[tuple[int, Feature]]:
    """The features whose contexts hold these rows, with each."""
    if not rows:
        return
    listing = base.catalogue.listing
    for row in rows:
        for feature in (listing.features[slot] for slot in listing.observed_by(row).tolist()):
            if feature is not None and not feature.fixed:
                yield row, feature


def _headed(fitted: Fitted, features: Mapping[str, Feature], given: Taken | None) -> Fitted:
    """The model with the heads of these features; from kept sums if ``given`` says what is new in each."""
    if given is not None:
        short = has_short_ways(fitted)
        for feature, rows, values in given.by_feature():
            if feature.name not in features:
                continue
            before, order = fitted.catalogue[feature.name], np.argsort(rows)
            if short and len(rows) == 1 and not before.finds_scale:
                fitted = with_feature(fitted, before, int(rows[0]), float(values[0]), None)
            else:
                fitted = fitted.observed(before, rows[order], values[order])
        return fitted
    every = list(features.values())
    for start in range(0, len(every), _FEATURES_AT_ONCE):
        fitted = fitted.adapted(every[start : start + _FEATURES_AT_ONCE])
    return fitted
