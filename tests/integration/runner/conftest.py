"""A migrated database for what runners share."""

from collections.abc import AsyncIterator, Iterator

import psycopg
import pytest
from psycopg import sql
from sqlalchemy.ext.asyncio import AsyncEngine
from testkit.databases import temporary_database

from control_plane.db.engine import make_engine
from control_plane.db.migrate import migrate
from control_plane.db.tables import metadata


@pytest.fixture(scope="session")
def runner_database_url(postgres_url: str) -> Iterator[str]:
    """A migrated database for the tests of this folder, one after another."""
    with temporary_database(postgres_url) as url:
        migrate(url)
        yield url


@pytest.fixture
async def engine(runner_database_url: str) -> AsyncIterator[AsyncEngine]:
    """Connections to the migrated database; emptied after the test."""
    engine = make_engine(runner_database_url, pool_size=10, pool_wait_s=10.0)
    yield engine
    await engine.dispose()
    names = sql.SQL(", ").join(map(sql.Identifier, metadata.tables))
    with psycopg.connect(runner_database_url, autocommit=True, connect_timeout=5) as connection:
        connection.execute(sql.SQL("TRUNCATE {} RESTART IDENTITY").format(names))
