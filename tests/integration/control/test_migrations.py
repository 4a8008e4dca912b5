"""Migrations make the tables that the code expects, once, whoever runs them."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import create_engine, text

from control_plane.db.engine import sqlalchemy_url
from control_plane.db.migrate import migrate
from control_plane.db.tables import metadata


def test_migrated_database_has_exactly_the_tables_of_the_code(migrated_url: str) -> None:
    engine = create_engine(sqlalchemy_url(migrated_url))
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, metadata) == []
    engine.dispose()


def test_processes_that_start_at_once_migrate_once(make_database: Callable[..., str]) -> None:
    url = make_database()
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(migrate, [url] * 4)) == [None] * 4
    engine = create_engine(sqlalchemy_url(url))
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM alembic_version")).scalar() == 1
    engine.dispose()
