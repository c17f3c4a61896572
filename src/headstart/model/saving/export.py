"""Export all observations and metadata of a model as a table, for the next fit."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headstart.model.observations import ObservationLists
from headstart.model.prediction import NOT_APPLICABLE
from headstart.model.row_states import given_values
from headstart.model.state import ModelState
from headstart.table import Kind, Kinds, MetadataSchema, Names, Table
from headstart.table.kinds import owner_of_column, split_column
from headstart.table.margins import Category
from headstart.table.metadata import as_array, as_text
from headstart.table.reading import sort_observations


def export_table(model: ModelState, *, metadata: bool = True) -> Table:
    """Return the table of all observations, features and rows of a model.

    If the values of a cell in the row's observations and in the feature's context differ, the value of the
    context is used. Without ``metadata`` the table has no metadata of features and rows.
    """
    features = list(model.feature_store.values())
    names = Names([feature.name for feature in features], "feature")
    kinds = Kinds([feature.kind for feature in features])
    parts = [_backbone_observations(model), _row_observations(model)]
    positions = np.full(1 + max([-1, *(int(part[1].max(initial=-1)) for part in parts)]), -1)
    for position, name in enumerate(names):
        number = model.feature_store.number(name)
        if number < len(positions):
            positions[number] = position
    counts = [len(feature.rows) for feature in features]
    rows = np.concatenate([*(part[0] for part in parts), *(feature.rows for feature in features)])
    index = np.concatenate(
        [*(positions[part[1]] for part in parts), np.repeat(np.arange(len(features)), counts)]
    )
    numbers = np.concatenate([*(part[2] for part in parts), *(feature.values for feature in features)])
    values = kinds.values(numbers, index)
    times = np.zeros(len(rows))
    if model.clock is not None:
        feature_times = [np.zeros(0) if feature.times is None else feature.times for feature in features]
        times = np.concatenate([*(part[3] for part in parts), *feature_times])
    contexts = ObservationLists.of([feature.observations for feature in features])
    weights = np.concatenate([*(part[4] for part in parts), _weights(contexts)])
    present = index >= 0  # the others are of removed features
    rows, index, values, times = rows[present], index[present], values[present], times[present]
    shape = (len(model.rows), len(names))
    ordered = sort_observations(rows, index, values, shape, times, weights[present])
    # Sorting is stable: the last of several values of one cell is the one of the context.
    last = np.ones(len(values), dtype=bool)
    last[:-1] = (np.diff(ordered.row_index) != 0) | (np.diff(ordered.feature_index) != 0)
    row_records = None if model.row_metadata is None else model.row_metadata.lines
    records = _metadata(model) if metadata and model.schema is not None else None
    return Table(
        model.rows,
        names,
        kinds,
        ordered.row_index[last],
        ordered.feature_index[last],
        ordered.values[last],
        records,
        None if records is None else _schema(model, records),
        encoders=model.encoders if records is not None else {},
        row_metadata=row_records if metadata else None,
        row_schema=_row_schema(model, row_records) if metadata and row_records is not None else None,
        times=None if model.clock is None or ordered.times is None else ordered.times[last],
        weights=None if ordered.weights is None else ordered.weights[last],
        words=model.words,
        not_applicable=model.not_applicable,
    )


def _row_schema(model: ModelState, row_records: pa.Table) -> MetadataSchema | None:
    """Fit a schema of row metadata with the same types of columns."""
    if model.row_metadata is None:
        return None
    return MetadataSchema.fit(
        row_records, {column.name: column.spec for column in model.row_metadata.schema.columns}
    )


# Rows, numbers of features, values, times, weights.
Observations = tuple[
    NDArray[np.int64], NDArray[np.int64], NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]
]


def _weights(lists: ObservationLists) -> NDArray[np.float64]:
    """Return the weights of observations as given, 1 by default: (n,)."""
    return np.ones(len(lists.values)) if lists.weights is None else lists.weights


def _backbone_observations(model: ModelState) -> Observations:
    """Return the observations of the fitted table that neither a context nor an observed row contains."""
    cells = model.knowledge.cells
    rows, numbers = cells.lines.numpy(), cells.index.numpy()
    selected = ~np.isin(rows, model.row_store.observed_rows)
    fixed = np.zeros(len(model.backbone_features), dtype=bool)
    for feature in model.feature_store.values():
        if feature.fixed and feature.in_backbone:
            fixed[model.feature_store.number(feature.name)] = True
    selected &= fixed[numbers]
    times = np.zeros(int(selected.sum())) if model.clock is None else model.clock.table[selected]
    if model.table_values is None:
        scales = model.feature_store.scales(numbers[selected])
        values = scales["offset"] + scales["span"] * cells.values.numpy()[selected].astype(float)
    else:
        values = model.table_values[selected]
    weights = np.ones(len(values)) if model.table_weights is None else model.table_weights[selected]
    return rows[selected], numbers[selected], values, times, weights


def _row_observations(model: ModelState) -> Observations:
    """Return all observations of rows that were added or observed since fit."""
    rows = model.row_store.observed_rows
    lists = [(row, model.row_store.observations(row)) for row in rows]
    cells = ObservationLists.of(
        [
            observations._replace(values=given_values(model, row, observations))
            for row, observations in lists
            if observations is not None
        ]
    )
    times = np.zeros(len(cells.values)) if cells.times is None else cells.times
    positions = np.repeat(np.array(rows, dtype=np.int64), cells.counts)
    return positions, cells.keys, cells.values, times, _weights(cells)


def _metadata(model: ModelState) -> pa.Table:
    """Return the metadata of all features as the user passed it, one line per feature."""
    schema = model.schema
    columns = [] if schema is None else [column.name for column in schema.columns]
    records = [feature.record or {} for feature in model.feature_store.values()]
    return pa.table({name: as_array([record.get(name) for record in records]) for name in columns})


def _schema(model: ModelState, metadata: pa.Table) -> MetadataSchema | None:
    """Fit a schema with the same types of columns, which includes the labels of new features."""
    if model.schema is None:
        return None
    columns = model.schema.columns
    functions = {c.name: model.encoders[c.name] for c in columns
                 if c.takes == "function" and c.name in model.encoders}  # fmt: skip
    return MetadataSchema.fit(metadata, {column.name: column.spec for column in columns}, functions)


def long_form(table: Table) -> pa.Table:
    """Return the observations of a table, one per line: row, feature, value, and any times and weights.

    Values are texts if some of them are labels. A cell that is not applicable has the value "not applicable".
    """
    lines = _observation_lines(table)
    if not len(table.not_applicable):
        return lines
    if not pa.types.is_string(lines.column("value").type):
        texts = [f"{value:.17g}" for value in lines.column("value").to_pylist()]
        lines = lines.set_column(2, "value", pa.array(texts, pa.string()))
    rows, features = (pa.array(names, pa.string()) for names in zip(*table.not_applicable, strict=True))
    values = pa.array([NOT_APPLICABLE] * len(rows), pa.string())
    more = pa.table([rows, features, values], names=["row", "feature", "value"])
    return pa.concat_tables([lines, more], promote_options="default")


def _observation_lines(table: Table) -> pa.Table:
    """Return the observations of a table, one per line."""
    rows = pa.array(list(table.rows), pa.string()).take(pa.array(table.row_index))
    owners = list(map(owner_of_column, table.features, table.kinds))
    features = pa.array(owners, pa.string()).take(pa.array(table.feature_index))
    values = table.values.astype(np.float64)  # numbers in single precision would be written differently
    columns = {"row": rows, "feature": features, "value": pa.array(values)}
    more = {"time": table.times, "weight": table.weights}
    columns |= {name: pa.array(numbers) for name, numbers in more.items() if numbers is not None}
    if not any(isinstance(margin, Category) or margin.labels for margin in table.kinds.margins):
        return pa.table(columns)
    levels = np.array([isinstance(kind.margin, Category) for kind in table.kinds])[table.feature_index]
    columns["value"] = pa.array(
        [
            split_column(table.features[column])[1] if level else _label(table.kinds[column], value)
            for column, level, value in zip(table.feature_index, levels, values.tolist(), strict=True)
        ],
        pa.string(),
    )
    return pa.table(columns).filter(pa.array(~levels | (values == 1)))  # of the levels the observed one


def _label(kind: Kind, value: float) -> str:
    """Return a value as text: its label, or the number."""
    label = kind.margin.label(value)
    return label if isinstance(label, str) else f"{label:.12g}"


def metadata_lines(table: Table) -> pa.Table:
    """Return the metadata of a table with the names of its features; lists are converted to text."""
    columns = {"feature": pa.array(list(table.features), pa.string())}
    records = pa.table({}) if table.metadata is None else table.metadata
    for name, column in zip(records.column_names, records.columns, strict=True):
        nested = pa.types.is_list(column.type)
        columns[name] = (
            pa.array([as_text(labels) for labels in column.to_pylist()], pa.string()) if nested else column
        )
    return pa.table(columns)
