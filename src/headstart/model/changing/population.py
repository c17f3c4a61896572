"""Rows that come and go."""

from __future__ import annotations

from copy import copy
from dataclasses import replace

import numpy as np
import torch

from headstart.errors import InputError, argument
from headstart.model.changing.observing import observed_features, require_possible, with_features
from headstart.model.inputs.intake import rows_of
from headstart.model.inputs.row_records import NewRows
from headstart.model.inputs.triples import Triples
from headstart.model.parts.catalogue import Catalogue
from headstart.model.parts.describing import described
from headstart.model.parts.feature import Feature
from headstart.model.parts.fitted import Fitted


def added_rows(fitted: Fitted, new: NewRows) -> Fitted:
    """Return the model with new rows; their observations also refine the features if they teach."""
    cells = rows_of(fitted, new.given)
    if fitted.clock is not None:
        cells = cells._replace(times=fitted.clock.times_now(len(cells.values)))
    by_number = fitted.catalogue.by_number() if new.teach else {}
    features = [by_number[number] for number in np.unique(cells.numbers).tolist()] if new.teach else []
    if new.teach:
        require_possible(fitted, features, "both")
    held = fitted.row_metadata
    states = described(fitted, cells, new.names, None if held is None else new.encoded)
    first = len(fitted.rows)
    fitted = replace(
        fitted,
        roster=fitted.roster.added(new.names, states, cells.observations(fitted.now)),
        row_metadata=None if held is None else held.added(new.records, new.encoded),
    )
    if not features:
        return fitted
    rows = first + np.repeat(np.arange(len(new.names)), cells.counts)
    _, places = np.unique(cells.numbers, return_inverse=True)
    taken = Triples(rows, features, places, cells.numbers, cells.values, cells.times)
    return with_features(fitted, observed_features(fitted, taken))


def without_row(fitted: Fitted, row: int) -> Fitted:
    """Return the model without a row and without what it observed."""
    fitted_on = row < len(fitted.knowledge.cells)
    fixed = next((feature for feature in fitted.catalogue.values() if feature.fixed), None)
    if fitted_on and fixed is not None:
        raise InputError(
            f"row {fitted.rows[row]!r} cannot be taken out of the features it was fitted with: heads such as "
            f"that of {fixed.name!r} are fixed with this adapter; fit with {argument('adapter', 'bayes')}, "
            "or fit again without the row"
        )
    features = list(fitted.catalogue.values())
    holding = np.array([feature.holds(row) for feature in features], dtype=bool)
    catalogue = _moved_up(fitted, features, row)
    knowledge, adapter, clock = fitted.knowledge, fitted.adapter, fitted.clock
    if fitted_on:
        if clock is not None:
            held_by = slice(int(knowledge.cells.indptr[row]), int(knowledge.cells.indptr[row + 1]))
            clock = replace(clock, table=np.delete(clock.table, held_by))
        kept = torch.from_numpy(np.delete(np.arange(len(knowledge.cells)), row))
        knowledge = replace(knowledge, cells=knowledge.cells.take(kept), states=knowledge.states.take(kept))
        adapter = copy(adapter)
        adapter.knowledge = knowledge
    held = fitted.row_metadata
    after = replace(
        fitted,
        roster=fitted.roster.without(row),
        catalogue=catalogue,
        knowledge=knowledge,
        adapter=adapter,
        clock=clock,
        row_metadata=None if held is None else held.without(row),
    )
    changed = [after.catalogue[feature.name] for feature, held in zip(features, holding, strict=True) if held]
    return with_features(after, [after.with_own_units(feature) for feature in changed])


def _moved_up(fitted: Fitted, features: list[Feature], row: int) -> Catalogue:
    """The catalogue whose contexts are those of a roster without this row."""
    by_feature = fitted.knowledge.cells.transpose()
    after = {}
    for feature in features:
        if feature.holds(row):
            feature = feature.among(feature.rows[feature.rows != row])
            if feature.in_backbone and row >= by_feature.width:  # perhaps it is again as it was fitted
                position = fitted.backbone_features.position(feature.name)
                held = slice(int(by_feature.indptr[position]), int(by_feature.indptr[position + 1]))
                scaled = (feature.values - feature.kind.offset) / feature.kind.span
                same = np.array_equal(feature.rows, by_feature.index[held].numpy()) and np.allclose(
                    scaled, by_feature.values[held].numpy(), rtol=1e-6, atol=1e-6
                )
                feature = replace(feature, observed_since=not same)
        after[feature.name] = replace(feature, rows=feature.rows - (feature.rows > row))
    return fitted.catalogue.with_contexts(after)
