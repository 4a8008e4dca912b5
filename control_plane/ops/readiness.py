"""Can a job run now: database, broker, and a live worker of each kind that a job needs."""

import asyncio
from typing import Any

import redis.asyncio
from redis.exceptions import RedisError
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from control_plane.context import Context
from control_plane.workers import repository as workers

NEEDED = ("inference", "proxy", "trainer", "env", "weights")
"""Reward workers scale from zero, so none need be there."""

CHECK_S = 2.0


async def check(context: Context) -> dict[str, Any]:
    """`ready`, and every check with what it saw."""
    database, broker = await asyncio.gather(_database(context), _broker(context.settings.broker_url))
    checks = [broker, *database]
    return {"ready": all(item["ok"] for item in checks), "checks": checks}


async def _database(context: Context) -> list[dict[str, Any]]:
    try:
        async with asyncio.timeout(CHECK_S), context.database.connect() as connection:
            await connection.execute(text("SELECT 1"))
            live = await workers.count_live(connection)
    except (SQLAlchemyError, OSError, TimeoutError) as error:
        return [_check("database", False, type(error).__name__)]
    found = [_check("database", True, "answers")]
    found.extend(_check(f"workers:{kind}", live.get(kind, 0) > 0, f"{live.get(kind, 0)} live") for kind in NEEDED)
    return found


async def _broker(url: str) -> dict[str, Any]:
    try:
        async with asyncio.timeout(CHECK_S), redis.asyncio.Redis.from_url(url, socket_timeout=CHECK_S) as client:
            await client.ping()
    except (RedisError, OSError, TimeoutError, ValueError) as error:
        return _check("broker", False, type(error).__name__)
    return _check("broker", True, "answers")


def _check(name: str, is_ok: bool, detail: str) -> dict[str, Any]:
    return {"name": name, "ok": is_ok, "detail": detail}
