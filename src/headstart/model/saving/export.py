"""Everything that a model holds, as a table for the next fit."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headstart.errors import InputError, for_user
from headstart.model.observations import ObservationLists
from headstart.model.state import ModelState
from headstart.table import Kinds, MetadataSchema, Names, Table
from headstart.table.metadata import as_array, as_text
from headstart.table.reading import sort_observations


def table_of(fitted: ModelState, *, metadata: bool = True) -> Table:
    """The table of all observations, features and rows of a model.

    A feature's observations are those of its head and those that describe rows; where the two differ, the
    head's value is taken.
    """
    features = list(fitted.catalogue.values())
    names = Names([feature.name for feature in features], "feature")
    kinds = Kinds([feature.kind for feature in features])
    parts = [_of_table(fitted), _of_rows(fitted)]
    place = np.full(1 + max([-1, *(int(part[1].max(initial=-1)) for part in parts)]), -1)
    for position, name in enumerate(names):
        number = fitted.catalogue.number(name)
        if number < len(place):
            place[number] = position
    counts = [len(feature.rows) for feature in features]
    rows = np.concatenate([*(part[0] for part in parts), *(feature.rows for feature in features)])
    index = np.concatenate([*(place[part[1]] for part in parts), np.repeat(np.arange(len(features)), counts)])
    values = np.concatenate([*(part[2] for part in parts), *(feature.values for feature in features)])
    times = np.zeros(len(rows))
    if fitted.clock is not None:
        own = [np.zeros(0) if feature.times is None else feature.times for feature in features]
        times = np.concatenate([*(part[3] for part in parts), *own])
    there = index >= 0  # of features still there
    rows, index, values, times = rows[there], index[there], values[there], times[there]
    ordered = sort_observations(rows, index, values, (len(fitted.rows), len(names)), times)
    last = np.ones(len(values), dtype=bool)
    last[:-1] = (np.diff(ordered.row_index) != 0) | (np.diff(ordered.feature_index) != 0)
    lines = None if fitted.row_metadata is None else fitted.row_metadata.lines
    described = _metadata(fitted) if metadata and fitted.schema is not None else None
    return Table(
        fitted.rows,
        names,
        kinds,
        ordered.row_index[last],
        ordered.feature_index[last],
        ordered.values[last],
        described,
        None if described is None else _schema(fitted, described),
        encoders=fitted.encoders if described is not None else {},
        row_metadata=lines if metadata else None,
        row_schema=_row_schema(fitted, lines) if metadata and lines is not None else None,
        times=None if fitted.clock is None or ordered.times is None else ordered.times[last],
    )


def _row_schema(fitted: ModelState, lines: pa.Table) -> MetadataSchema | None:
    if fitted.row_metadata is None:
        return None
    return MetadataSchema.fit(
        lines, {column.name: column.spec for column in fitted.row_metadata.schema.columns}
    )


# Rows, numbers of features, values, times.
Part = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]


def _of_table(fitted: ModelState) -> Part:
    """What the backbone was fitted on, of rows that have observed nothing else; it is held on a scale."""
    cells = fitted.knowledge.cells
    lines, numbers = cells.lines.numpy(), cells.index.numpy()
    here = ~np.isin(lines, fitted.roster.observed_rows)
    fixed = np.zeros(len(fitted.backbone_features), dtype=bool)
    for feature in fitted.catalogue.values():
        if feature.fixed and feature.in_backbone:
            fixed[fitted.catalogue.number(feature.name)] = True
    here &= fixed[numbers]  # others hold their own observations, in their own units
    facts = fitted.catalogue.facts(numbers[here])
    times = np.zeros(int(here.sum())) if fitted.clock is None else fitted.clock.table[here]
    values = facts[:, 1] + facts[:, 2] * cells.values.numpy()[here].astype(float)
    return lines[here], numbers[here], values, times


def _of_rows(fitted: ModelState) -> Part:
    rows = fitted.roster.observed_rows
    observations = [fitted.roster.observations(row) for row in rows]
    cells = ObservationLists.of([each for each in observations if each is not None])
    times = np.zeros(len(cells.values)) if cells.times is None else cells.times
    return np.repeat(np.array(rows, dtype=np.int64), cells.counts), cells.keys, cells.values, times


def _metadata(fitted: ModelState) -> pa.Table:
    """The metadata of all features as it was given, one line per feature."""
    features = list(fitted.catalogue.values())
    if any(feature.record is None for feature in features):
        raise InputError(
            "this model was saved before metadata was kept as it was given, so it cannot be written out; "
            + for_user(
                "table(metadata=False) leaves it out",
                "leave out --metadata-out, or fit again from your own files",
            )
        )
    schema = fitted.schema
    columns = [] if schema is None else [column.name for column in schema.columns]
    records = [feature.record or {} for feature in features]
    return pa.table({name: as_array([record.get(name) for record in records]) for name in columns})


def _schema(fitted: ModelState, metadata: pa.Table) -> MetadataSchema | None:
    """The same types of columns, fitted anew: new features may have labels that the table had not."""
    if fitted.schema is None:
        return None
    columns = fitted.schema.columns
    functions = {c.name: fitted.encoders[c.name] for c in columns
                 if c.takes == "function" and c.name in fitted.encoders}  # fmt: skip
    return MetadataSchema.fit(metadata, {column.name: column.spec for column in columns}, functions)


def long_form(table: Table) -> pa.Table:
    """The observations of a table, one line each: row, feature, value."""
    rows = pa.array(list(table.rows), pa.string()).take(pa.array(table.row_index))
    features = pa.array(list(table.features), pa.string()).take(pa.array(table.feature_index))
    values = table.values.astype(np.float64)  # the text of a number in single precision is another number
    columns = {"row": rows, "feature": features, "value": values}
    return pa.table(columns if table.times is None else {**columns, "time": table.times})


def metadata_lines(table: Table) -> pa.Table:
    """The metadata of a table with the names of the features; lists become texts, as files hold them."""
    columns = {"feature": pa.array(list(table.features), pa.string())}
    described = pa.table({}) if table.metadata is None else table.metadata
    for name, column in zip(described.column_names, described.columns, strict=True):
        nested = pa.types.is_list(column.type)
        columns[name] = (
            pa.array([as_text(each) for each in column.to_pylist()], pa.string()) if nested else column
        )
    return pa.table(columns)
