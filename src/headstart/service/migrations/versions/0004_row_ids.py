"""Store each name of a row once, so that it can be overwritten where it is."""

import hashlib

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_LINES = 10_000  # inserted at once


def upgrade() -> None:
    """Move names of rows to a table of their own; observations refer to it."""
    connection = op.get_bind()
    salt = connection.execute(sa.text("SELECT value FROM facts WHERE key = 'salt'")).scalar() or ""
    op.drop_index("ix_rows_number", "rows")
    op.drop_index("ix_observations_number", "observations")
    op.drop_index("observations_by_row", "observations")
    op.drop_index("observations_by_feature", "observations")
    op.rename_table("rows", "old_rows")
    op.rename_table("observations", "old_observations")
    op.create_table(
        "rows",
        sa.Column("id", _NUMBER, primary_key=True, autoincrement=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("number", _NUMBER, sa.ForeignKey("changes.number"), index=True),
        sa.Column("at", sa.DateTime(timezone=True)),
        sa.Column("metadata", sa.Text),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "row_ids",
        sa.Column("digest", sa.String(64), primary_key=True),
        sa.Column("id", _NUMBER, sa.ForeignKey("rows.id"), nullable=False, unique=True),
    )
    op.create_table(
        "observations",
        sa.Column("id", _NUMBER, primary_key=True, autoincrement=True),
        sa.Column("number", _NUMBER, sa.ForeignKey("changes.number"), nullable=False, index=True),
        sa.Column("row", _NUMBER, sa.ForeignKey("rows.id"), nullable=False),
        sa.Column("feature", sa.Text, nullable=False),
        sa.Column("value", sa.Float(53), nullable=False),
        sa.Column("time", sa.Float(53)),
        sa.Column("weight", sa.Float(53)),
        sqlite_autoincrement=True,
    )
    op.execute(
        "INSERT INTO rows (name, number, at, metadata) "
        "SELECT name, number, at, metadata FROM old_rows ORDER BY number"
    )
    op.execute(
        'INSERT INTO rows (name) SELECT DISTINCT "row" FROM old_observations '
        'WHERE "row" NOT IN (SELECT name FROM old_rows)'
    )
    names = connection.execute(sa.text("SELECT id, name FROM rows")).all()
    lines = [{"id": id, "digest": _digest(salt, name)} for id, name in names]
    for start in range(0, len(lines), _LINES):
        insert = sa.text("INSERT INTO row_ids (digest, id) VALUES (:digest, :id)")
        connection.execute(insert, lines[start : start + _LINES])
    op.execute(
        'INSERT INTO observations (id, number, "row", feature, value, time, weight) '
        "SELECT o.id, o.number, r.id, o.feature, o.value, o.time, o.weight "
        'FROM old_observations AS o JOIN rows AS r ON r.name = o."row" ORDER BY o.id'
    )
    if connection.dialect.name == "postgresql":  # the ids of later lines continue
        sequence = "pg_get_serial_sequence('observations', 'id')"
        op.execute(f"SELECT setval({sequence}, (SELECT max(id) FROM observations))")
    # The additions of removed rows have a digest already.
    additions = connection.execute(sa.text("SELECT number, name FROM old_rows")).all()
    for number, name in additions:
        update = sa.text("UPDATE changes SET name = :digest WHERE number = :number")
        connection.execute(update, {"digest": _digest(salt, name), "number": number})
    op.drop_table("old_observations")
    op.drop_table("old_rows")
    op.create_index("observations_by_row", "observations", ["row"])
    op.create_index("observations_by_feature", "observations", ["feature"])
    op.execute("DELETE FROM facts WHERE key = 'clean'")
    op.execute("INSERT INTO facts (key, value) SELECT 'vacuum', '0' WHERE EXISTS (SELECT 1 FROM changes)")


def _digest(salt: str, name: str) -> str:
    return hashlib.sha256(f"{salt}\0{name}".encode()).hexdigest()


def downgrade() -> None:
    """Refuse: the names of removed rows cannot be restored."""
    raise NotImplementedError("the names of removed rows cannot be restored")
