"""How many turns of an attempt its environment could not read as an action"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0003"
down_revision: str | None = "0002"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None


def upgrade() -> None:
    column = sa.Column("invalid_actions", sa.BigInteger(), server_default=sa.text("0"), nullable=False)
    op.add_column("attempts", column)


def downgrade() -> None:
    op.drop_column("attempts", "invalid_actions")
