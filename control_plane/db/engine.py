"""The database as the control plane holds it: two pools, so that a flood of requests never starves the job runners."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

RUNNER_POOL = 8
STATEMENT_TIMEOUT_S = 30
CONNECT_TIMEOUT_S = 5


def sqlalchemy_url(database_url: str) -> str:
    """The URL with psycopg 3 as the driver, whichever PostgreSQL scheme it was written with."""
    url = make_url(database_url)
    if url.get_backend_name() not in ("postgresql", "postgres"):
        raise ValueError(f"database_url must be postgresql://…, not {url.get_backend_name()}://…")
    return url.set(drivername="postgresql+psycopg").render_as_string(hide_password=False)


def dumps(value: Any) -> str:
    """JSON as columns hold it; TypeError for keys that are no plain strings."""
    return orjson.dumps(value).decode()


def make_engine(database_url: str, *, pool_size: int, pool_wait_s: float) -> AsyncEngine:
    """An engine of at most `pool_size` connections; past `pool_wait_s` sqlalchemy's TimeoutError."""
    return create_async_engine(
        sqlalchemy_url(database_url),
        pool_size=pool_size,
        max_overflow=0,
        pool_timeout=pool_wait_s,
        pool_pre_ping=True,
        json_serializer=dumps,
        json_deserializer=orjson.loads,
        connect_args={
            "connect_timeout": CONNECT_TIMEOUT_S,
            "options": f"-c statement_timeout={STATEMENT_TIMEOUT_S}s -c timezone=UTC",
        },
    )


class Database:
    """Connections for requests. Read with `connect`, write with `begin`: one request is one transaction."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine
        # Statement by statement: a read then costs one round trip, not three with its BEGIN and ROLLBACK.
        self._reader = engine.execution_options(isolation_level="AUTOCOMMIT")

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[AsyncConnection]:
        """A connection for reading; every statement sees the database as it is then."""
        async with self._reader.connect() as connection:
            yield connection

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[AsyncConnection]:
        """A connection whose reads all see the database at one moment."""
        async with self.engine.connect() as connection:
            await connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
            yield connection

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[AsyncConnection]:
        """A transaction: committed at the end, rolled back by any exception."""
        async with self.engine.begin() as connection:
            yield connection

    async def close(self) -> None:
        await self.engine.dispose()
