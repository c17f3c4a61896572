"""What a store holds, read from a connection."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, func, select

from headstart.service.live.delta import Cell, Delta
from headstart.service.store.schema import (
    CHANGES,
    FACTS,
    FEATURES,
    FORGOTTEN_ROWS,
    OBSERVATIONS,
    REMOVED_FEATURES,
    ROWS,
)

_AT_ONCE = 500  # names in one question


def last_number(connection: Connection) -> int:
    """The number of the last change; 0 of an empty store."""
    return int(connection.execute(select(func.max(CHANGES.c.number))).scalar() or 0)


def digest_of(connection: Connection, row: str) -> str:
    """What a store keeps of the name of a forgotten row."""
    return digest(salt_of(connection), row)


def salt_of(connection: Connection) -> str:
    """The store's own salt of digests."""
    return str(connection.execute(select(FACTS.c.value).where(FACTS.c.key == "salt")).scalar_one())


def digest(salt: str, row: str) -> str:
    """The digest of a row's name."""
    return hashlib.sha256(f"{salt}\0{row}".encode()).hexdigest()


def everything(connection: Connection, rows: Sequence[str]) -> Delta:
    """All that is in the store, for a model that holds these rows."""
    gone = {each.digest for each in connection.execute(select(FORGOTTEN_ROWS.c.digest))}
    salt = salt_of(connection) if gone else ""
    lost = [row for row in rows if digest(salt, row) in gone] if gone else []
    added = added_features(connection)
    removed = [each.name for each in connection.execute(select(REMOVED_FEATURES.c.name))]
    return Delta(
        lost_features=removed,
        lost_rows=lost,
        features=added,
        rows=_rows(connection, None),
        cells=cells(connection),
    )


def since(connection: Connection, number: int, rows: Sequence[str]) -> Delta:
    """What has changed after the change of this number, for a model that holds these rows."""
    later = CHANGES.c.number > number
    lines = connection.execute(select(CHANGES.c.kind, CHANGES.c.name).where(later).order_by(CHANGES.c.number))
    lost_features: dict[str, None] = {}
    gone: set[str] = set()
    for kind, name in lines:
        if kind == "unfeature":
            lost_features[name] = None
        elif kind == "forget":
            gone.add(name)
    salt = salt_of(connection) if gone else ""
    lost_rows = [row for row in rows if digest(salt, row) in gone] if gone else []
    return Delta(
        lost_features=list(lost_features),
        lost_rows=lost_rows,
        features=added_features(connection, number),
        rows=_rows(connection, number),
        cells=_cells_since(connection, number),
    )


def _cells_since(connection: Connection, number: int) -> list[Cell]:
    query = (
        select(OBSERVATIONS.c.row, OBSERVATIONS.c.feature, OBSERVATIONS.c.value)
        .where(OBSERVATIONS.c.number > number)
        .order_by(OBSERVATIONS.c.id)
    )
    return latest(connection.execute(query))


def latest(lines: Any) -> list[Cell]:
    """Each cell once, in the order of first arrivals, with the last value."""
    values: dict[tuple[str, str], float] = {}
    for row, feature, value in lines:
        values[row, feature] = value  # a later value keeps the place of the first
    return [Cell._make((*key, value)) for key, value in values.items()]


def _plain(connection: Connection, query: Any) -> list[tuple[Any, ...]]:
    """The lines of an answer as plain tuples: of a million, SQLAlchemy's own rows would take seconds."""
    found = connection.execute(query)
    return list(found.cursor.fetchall()) if found.cursor is not None else []


def cells(
    connection: Connection, features: Sequence[str] | None = None, rows: Sequence[str] = ()
) -> list[Cell]:
    """The observations that arrived: all, or those of these features or rows."""
    line = OBSERVATIONS.c
    query = select(line.id, line.row, line.feature, line.value)
    if features is None:
        return latest(_plain(connection, select(line.row, line.feature, line.value).order_by(line.id)))
    parts: dict[int, tuple[str, str, float]] = {}
    for column, names in ((line.feature, features), (line.row, rows)):
        for start in range(0, len(names), _AT_ONCE):
            part = query.where(column.in_(list(names[start : start + _AT_ONCE])))
            parts |= {each.id: (each.row, each.feature, each.value) for each in connection.execute(part)}
    return latest(parts[key] for key in sorted(parts))


def added_features(connection: Connection, number: int | None = None) -> dict[str, dict[str, Any]]:
    """The features that were added, after the change of this number if it is given: metadata and kind."""
    query = select(FEATURES.c.name, FEATURES.c.kind, FEATURES.c.metadata).order_by(FEATURES.c.number)
    if number is not None:
        query = query.where(FEATURES.c.number > number)
    return {
        name: {"metadata": json.loads(metadata) or None, "kind": kind}
        for name, kind, metadata in connection.execute(query)
    }


def _rows(connection: Connection, number: int | None) -> dict[str, dict[str, Any] | None]:
    query = select(ROWS.c.name, ROWS.c.metadata).order_by(ROWS.c.number)
    if number is not None:
        query = query.where(ROWS.c.number > number)
    return {
        name: None if metadata is None else json.loads(metadata)
        for name, metadata in connection.execute(query)
    }
