"""Brings the schema of a store up to date, with Alembic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from alembic.config import Config
from alembic.runtime.environment import EnvironmentContext
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from headstart.errors import StorageError
from headstart.service.store.schema import METADATA

PLACE = Path(__file__).parent


def script_directory() -> ScriptDirectory:
    """The migrations of this version."""
    config = Config()
    config.set_main_option("script_location", str(PLACE))
    config.set_main_option("version_locations", str(PLACE / "versions"))
    config.set_main_option("path_separator", "os")
    return ScriptDirectory.from_config(config)


def migrate(connection: Connection) -> None:
    """Run the migrations that a store lacks, in the transaction of this connection.

    Raises
    ------
    StorageError
        If the store was made by a newer version.
    """
    scripts = script_directory()
    present = MigrationContext.configure(connection).get_current_revision()
    if present == scripts.get_current_head():
        return
    known = {each.revision for each in scripts.walk_revisions()}
    if present is not None and present not in known:
        raise StorageError(f"the store has a newer schema ({present}); upgrade headstart to use it")
    config = Config()

    def upgrade(revision: Any, _: Any) -> Any:
        return scripts._upgrade_revs("head", revision)

    with EnvironmentContext(config, scripts, fn=upgrade) as context:
        context.configure(connection=connection, target_metadata=METADATA, transactional_ddl=False)
        context.run_migrations()
