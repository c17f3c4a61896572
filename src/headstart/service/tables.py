"""Define the tables of a store, and bring those of an older store up to date."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from alembic.config import Config
from alembic.runtime.environment import EnvironmentContext
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
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

from headstart.errors import StorageError

_MIGRATIONS = Path(__file__).parent / "migrations"

METADATA = MetaData()

Number = BigInteger().with_variant(Integer, "sqlite")  # SQLite increments only an INTEGER

# One line for each committed change; workers apply them in the order of their numbers.
CHANGES = Table(
    "changes",
    METADATA,
    Column("number", Number, primary_key=True, autoincrement=True),
    Column("at", DateTime(timezone=True), nullable=False),
    Column("kind", String(16), nullable=False),  # add_feature, remove_feature, add_row, remove_row, observe
    Column("name", Text),  # of the feature; of a row the digest of its name
    Column("observations", Integer, nullable=False, default=0),
    Column("excess", Float),  # sums over these observations; see ``ErrorSums``
    Column("squares", Float),
    sqlite_autoincrement=True,
)


# The features that a change added and none has removed. Metadata is JSON.
FEATURES = Table(
    "features",
    METADATA,
    Column("name", Text, primary_key=True),
    Column("number", Number, ForeignKey("changes.number"), nullable=False, index=True),
    Column("at", DateTime(timezone=True), nullable=False),
    Column("kind", Text),
    Column("metadata", Text, nullable=False),
)

# The rows that have observations or were added. This is the only table with names of rows. Its lines are
# appended, never deleted, and never change their length, so that SQLite never copies them to other pages.
ROWS = Table(
    "rows",
    METADATA,
    Column("id", Number, primary_key=True, autoincrement=True),
    Column("name", Text, nullable=False),  # overwritten if the row was removed
    Column("number", Number, ForeignKey("changes.number"), index=True),  # null: a row of the fitted model
    Column("at", DateTime(timezone=True)),
    Column("metadata", Text),
    sqlite_autoincrement=True,
)

# The ids of rows by the digest of their name, without removed rows.
ROW_IDS = Table(
    "row_ids",
    METADATA,
    Column("digest", String(64), primary_key=True),
    Column("id", Number, ForeignKey("rows.id"), nullable=False, unique=True),
)

# All observations in the order of arrival. A later value of the same cell is a correction.
OBSERVATIONS = Table(
    "observations",
    METADATA,
    Column("id", Number, primary_key=True, autoincrement=True),
    Column("number", Number, ForeignKey("changes.number"), nullable=False, index=True),
    Column("row", Number, ForeignKey("rows.id"), nullable=False),
    Column("feature", Text, nullable=False),
    Column("value", Float(53), nullable=False),
    Column("time", Float(53)),  # of an observation that ages
    Column("weight", Float(53)),  # null: 1
    sqlite_autoincrement=True,
)

Index("observations_by_row", OBSERVATIONS.c.row)

Index("observations_by_feature", OBSERVATIONS.c.feature)

# Features and rows of the fitted model that were removed. Of a row only a digest of the name is stored.
REMOVED_FEATURES = Table(
    "removed_features",
    METADATA,
    Column("name", Text, primary_key=True),
    Column("number", Number, nullable=False),
)

REMOVED_ROWS = Table(
    "removed_rows",
    METADATA,
    Column("digest", String(64), primary_key=True),
    Column("number", Number, nullable=False),
)

# Requests with an idempotency key: the same key and body gets the same answer.
REQUESTS = Table(
    "requests",
    METADATA,
    Column("key", String(64), primary_key=True),  # keyed digest of method, path and key
    Column("digest", String(64), nullable=False),  # keyed digest of the body
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

# Single values: the salt of digests, the folder of the model that replaced the first one, and whether the
# files may still contain removed rows.
FACTS = Table(
    "facts",
    METADATA,
    Column("key", String(64), primary_key=True),
    Column("value", Text, nullable=False),
)


def script_directory() -> ScriptDirectory:
    """Return the migrations of this version."""
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS))
    config.set_main_option("version_locations", str(_MIGRATIONS / "versions"))
    config.set_main_option("path_separator", "os")
    return ScriptDirectory.from_config(config)


def migrate(connection: Connection) -> None:
    """Run the missing migrations of a store, in the transaction of this connection.

    Raises
    ------
    StorageError
        If a newer version of Headstart has created the store.
    """
    scripts = script_directory()
    present = MigrationContext.configure(connection).get_current_revision()
    if present == scripts.get_current_head():
        return
    known = {script.revision for script in scripts.walk_revisions()}
    if present is not None and present not in known:
        raise StorageError(f"the store has a newer schema ({present}); upgrade headstart to use it")
    config = Config()

    def upgrade(revision: Any, _: Any) -> Any:
        return scripts._upgrade_revs("head", revision)

    with EnvironmentContext(config, scripts, fn=upgrade) as context:
        context.configure(connection=connection, target_metadata=METADATA, transactional_ddl=False)
        context.run_migrations()
