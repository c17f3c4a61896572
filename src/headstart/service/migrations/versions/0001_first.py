"""The first schema."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Create all tables."""
    op.create_table(
        "changes",
        sa.Column("number", _NUMBER, primary_key=True, autoincrement=True),
        sa.Column("at", _TIME, nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("name", sa.Text),
        sa.Column("observations", sa.Integer, nullable=False),
        sa.Column("excess", sa.Float),
        sa.Column("squares", sa.Float),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "features",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("number", _NUMBER, sa.ForeignKey("changes.number"), nullable=False, index=True),
        sa.Column("at", _TIME, nullable=False),
        sa.Column("kind", sa.Text),
        sa.Column("metadata", sa.Text, nullable=False),
    )
    op.create_table(
        "rows",
        sa.Column("id", _NUMBER, primary_key=True, autoincrement=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("number", _NUMBER, sa.ForeignKey("changes.number"), index=True),
        sa.Column("at", _TIME),
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
    op.create_index("observations_by_row", "observations", ["row"])
    op.create_index("observations_by_feature", "observations", ["feature"])
    op.create_table(
        "removed_features",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("number", _NUMBER, nullable=False),
    )
    op.create_table(
        "removed_rows",
        sa.Column("digest", sa.String(64), primary_key=True),
        sa.Column("number", _NUMBER, nullable=False),
    )
    op.create_table(
        "requests",
        sa.Column("key", sa.String(64), primary_key=True),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("answer", sa.Text, nullable=False),
        sa.Column("at", _TIME, nullable=False, index=True),
    )
    op.create_table(
        "tokens",
        sa.Column("id", sa.String(16), primary_key=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
        sa.Column("scopes", sa.String(64), nullable=False),
        sa.Column("at", _TIME, nullable=False),
        sa.Column("revoked", _TIME),
    )
    op.create_table(
        "facts",
        sa.Column("key", sa.String(64), primary_key=True),
        sa.Column("value", sa.Text, nullable=False),
    )


def downgrade() -> None:
    """Refuse: there is no schema before the first."""
    raise RuntimeError("there is no schema before the first; delete the store instead")
