"""What an attempt weighed in the batch that took it"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0002"
down_revision: str | None = "0001"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("attempts", sa.Column("weight", sa.Float(), server_default=sa.text("1"), nullable=False))


def downgrade() -> None:
    op.drop_column("attempts", "weight")
