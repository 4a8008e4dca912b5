"""Brings a database to the newest schema. Safe to run from several processes at once: one migrates, the others wait."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import create_engine, text

from control_plane.db.engine import CONNECT_TIMEOUT_S, sqlalchemy_url

MIGRATIONS = Path(__file__).parent / "migrations"
LOCK_KEY = 0x48454144  # "HEAD"
LOCK_WAIT_S = 60


def config() -> Config:
    """Alembic's configuration, without an ini file."""
    alembic = Config()
    alembic.set_main_option("script_location", str(MIGRATIONS))
    return alembic


def migrate(database_url: str) -> None:
    """Upgrade to head. Blocks; call it in a thread from async code. Raises SQLAlchemy's errors."""
    engine = create_engine(sqlalchemy_url(database_url), connect_args={"connect_timeout": CONNECT_TIMEOUT_S})
    try:
        # The lock belongs to its own session: a migration may commit as often as it likes beneath it.
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as guard:
            guard.execute(text(f"SET lock_timeout = '{LOCK_WAIT_S}s'"))
            guard.execute(text("SELECT pg_advisory_lock(:key)"), {"key": LOCK_KEY})
            with engine.begin() as connection:
                alembic = config()
                alembic.attributes["connection"] = connection
                command.upgrade(alembic, "head")
            guard.execute(text("SELECT pg_advisory_unlock(:key)"), {"key": LOCK_KEY})
    finally:
        engine.dispose()
