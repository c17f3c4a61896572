"""What arrived at a service, as tables for the next fit."""

from __future__ import annotations

import pyarrow as pa

from headstart.model.parts.records import as_array
from headstart.service.store import Store
from headstart.service.store.reading import added_features, cells


def export(store: Store) -> tuple[pa.Table, pa.Table]:
    """The observations that arrived, in the long form, and the metadata of the features that were added.

    Parameters
    ----------
    store : Store
        What arrived.

    Returns
    -------
    observations : pyarrow.Table
        The columns row, feature and value: each cell once, with its latest value.
    metadata : pyarrow.Table
        One line per feature: its name, and a column for each that any of them has.
    """
    with store.reading() as connection:
        lines, features = cells(connection), added_features(connection)
    observations = pa.table(
        {
            "row": pa.array([line.row for line in lines], pa.string()),
            "feature": pa.array([line.feature for line in lines], pa.string()),
            "value": pa.array([line.value for line in lines], pa.float64()),
        }
    )
    records = [given["metadata"] or {} for given in features.values()]
    columns = list(dict.fromkeys(key for record in records for key in record))
    described = {name: as_array([record.get(name) for record in records]) for name in columns}
    return observations, pa.table({"feature": pa.array(list(features), pa.string()), **described})
