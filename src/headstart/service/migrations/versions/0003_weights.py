"""Store the weights of observations."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column of weights; the observations so far have the weight 1."""
    op.add_column("observations", sa.Column("weight", sa.Float(53)))


def downgrade() -> None:
    """Remove the column of weights."""
    op.drop_column("observations", "weight")
