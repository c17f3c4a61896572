"""The tables of the store. A change here needs a migration in ``versions/``."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    DateTime,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
)

METADATA = MetaData()
Number = BigInteger().with_variant(Integer, "sqlite")  # SQLite counts up only in an INTEGER

# One line for each committed change; workers apply them in the order of their numbers.
CHANGES = Table(
    "changes",
    METADATA,
    Column("number", Number, primary_key=True, autoincrement=True),
    Column("at", DateTime(timezone=True), nullable=False),
    Column("kind", String(16), nullable=False),  # feature, unfeature, row, forget or observe
    Column("name", Text),  # of the feature or row; of a forgotten row only a digest
    Column("observations", Integer, nullable=False, default=0),
    Column("excess", Float),  # of the surprise of these observations, summed; see ``Arrived``
    Column("squares", Float),
    sqlite_autoincrement=True,
)


def _added(things: str, *columns: Column[Any]) -> Table:
    """A table of what was added by a change and is still there, by name."""
    return Table(
        things,
        METADATA,
        Column("name", Text, primary_key=True),
        Column("number", Number, ForeignKey("changes.number"), nullable=False, index=True),
        Column("at", DateTime(timezone=True), nullable=False),
        *columns,
    )


# Metadata is JSON.
FEATURES = _added("features", Column("kind", Text), Column("metadata", Text, nullable=False))
ROWS = _added("rows", Column("metadata", Text))
# All observations that arrived, corrections after what they correct.
OBSERVATIONS = Table(
    "observations",
    METADATA,
    Column("id", Number, primary_key=True, autoincrement=True),
    Column("number", Number, ForeignKey("changes.number"), nullable=False, index=True),
    Column("row", Text, nullable=False),
    Column("feature", Text, nullable=False),
    Column("value", Float(53), nullable=False),
    sqlite_autoincrement=True,
)
Index("observations_by_row", OBSERVATIONS.c.row)
Index("observations_by_feature", OBSERVATIONS.c.feature)
# What a model must not show although its folder holds it. Of rows only a digest of the name is kept.
REMOVED_FEATURES = Table(
    "removed_features",
    METADATA,
    Column("name", Text, primary_key=True),
    Column("number", Number, nullable=False),
)
FORGOTTEN_ROWS = Table(
    "forgotten_rows",
    METADATA,
    Column("digest", String(64), primary_key=True),
    Column("number", Number, nullable=False),
)
# Idempotency keys: the same key and body gets the same answer.
REQUESTS = Table(
    "requests",
    METADATA,
    Column("key", String(255), primary_key=True),
    Column("digest", String(64), nullable=False),  # of the body
    Column("answer", Text, nullable=False),  # JSON; it has no names of rows
    Column("at", DateTime(timezone=True), nullable=False, index=True),
)
TOKENS = Table(
    "tokens",
    METADATA,
    Column("id", String(16), primary_key=True),
    Column("name", Text, nullable=False),
    Column("digest", LargeBinary(32), nullable=False),  # of the secret part
    Column("scopes", String(64), nullable=False),
    Column("at", DateTime(timezone=True), nullable=False),
    Column("revoked", DateTime(timezone=True)),
)
# Single values: the salt of digests, and the model that was taken over.
FACTS = Table(
    "facts",
    METADATA,
    Column("key", String(64), primary_key=True),
    Column("value", Text, nullable=False),
)
