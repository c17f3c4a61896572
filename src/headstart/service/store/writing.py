"""Changes of a store, each within a transaction of ``connecting.writing``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update

from headstart.model.parts.staleness import Arrived
from headstart.service.live.delta import Cell
from headstart.service.store.reading import digest_of
from headstart.service.store.schema import (
    CHANGES,
    FEATURES,
    FORGOTTEN_ROWS,
    OBSERVATIONS,
    REMOVED_FEATURES,
    REQUESTS,
    ROWS,
)

KEYS_ARE_KEPT = timedelta(days=2)


def now() -> datetime:
    """The time of a change."""
    return datetime.now(UTC)


def insert_feature(
    connection: Connection, name: str, metadata: Mapping[str, Any], kind: str | None, cells: Sequence[Cell]
) -> int:
    """Record a new feature with its first observations; return the number of the change."""
    number = _change(connection, "feature", name, len(cells), Arrived())
    line = {"name": name, "number": number, "at": now(), "kind": kind, "metadata": json.dumps(metadata)}
    connection.execute(insert(FEATURES), line)
    _insert_cells(connection, number, cells)
    return number


def insert_row(
    connection: Connection, name: str, metadata: Mapping[str, Any] | None, cells: Sequence[Cell]
) -> int:
    """Record a new row with its first observations."""
    number = _change(connection, "row", name, len(cells), Arrived())
    text = None if metadata is None else json.dumps(metadata)
    connection.execute(insert(ROWS), {"name": name, "number": number, "at": now(), "metadata": text})
    _insert_cells(connection, number, cells)
    return number


def insert_observations(connection: Connection, cells: Sequence[Cell], arrived: Arrived) -> int:
    """Record observations, and how well they were foreseen."""
    number = _change(connection, "observe", None, len(cells), arrived)
    _insert_cells(connection, number, cells)
    return number


def remove_feature(connection: Connection, name: str) -> int:
    """Record that a feature is removed; what it observed is deleted."""
    number = _change(connection, "unfeature", name, 0, Arrived())
    connection.execute(delete(FEATURES).where(FEATURES.c.name == name))
    connection.execute(delete(OBSERVATIONS).where(OBSERVATIONS.c.feature == name))
    connection.execute(delete(REMOVED_FEATURES).where(REMOVED_FEATURES.c.name == name))
    connection.execute(insert(REMOVED_FEATURES), {"name": name, "number": number})
    return number


def forget_row(connection: Connection, name: str) -> int:
    """Delete all that is known of a row, its name included; what stays is a digest of the name."""
    trace = digest_of(connection, name)
    number = _change(connection, "forget", trace, 0, Arrived())
    connection.execute(delete(ROWS).where(ROWS.c.name == name))
    connection.execute(delete(OBSERVATIONS).where(OBSERVATIONS.c.row == name))
    own = (CHANGES.c.kind == "row") & (CHANGES.c.name == name)
    connection.execute(update(CHANGES).where(own).values(name=trace))
    connection.execute(delete(FORGOTTEN_ROWS).where(FORGOTTEN_ROWS.c.digest == trace))
    connection.execute(insert(FORGOTTEN_ROWS), {"digest": trace, "number": number})
    return number


def remembered(connection: Connection, key: str) -> tuple[str, dict[str, Any]] | None:
    """The digest of the body that came with an idempotency key, and the answer that it got."""
    query = select(REQUESTS.c.digest, REQUESTS.c.answer).where(REQUESTS.c.key == key)
    found = connection.execute(query).one_or_none()
    return None if found is None else (found.digest, json.loads(found.answer))


def remember(connection: Connection, key: str, digest: str, answer: Mapping[str, Any]) -> None:
    """Keep the answer that an idempotency key got; keys of long ago are dropped."""
    connection.execute(delete(REQUESTS).where(REQUESTS.c.at < now() - KEYS_ARE_KEPT))
    line = {"key": key, "digest": digest, "answer": json.dumps(answer), "at": now()}
    connection.execute(insert(REQUESTS), line)


def _change(connection: Connection, kind: str, name: str | None, count: int, arrived: Arrived) -> int:
    line = {
        "at": now(),
        "kind": kind,
        "name": name,
        "observations": count,
        "excess": arrived.excess if arrived.observations else None,
        "squares": arrived.squares if arrived.observations else None,
    }
    found = connection.execute(insert(CHANGES).returning(CHANGES.c.number), line)
    return int(found.scalar_one())


def _insert_cells(connection: Connection, number: int, cells: Sequence[Cell]) -> None:
    lines = [
        {"number": number, "row": cell.row, "feature": cell.feature, "value": cell.value} for cell in cells
    ]
    if lines:
        connection.execute(insert(OBSERVATIONS), lines)
