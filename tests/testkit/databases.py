"""Databases of the test server: made empty or from a template, dropped afterwards."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg import sql


@contextmanager
def temporary_database(server_url: str, template: str | None = None) -> Iterator[str]:
    """A new database on the server of `server_url`, as a URL; a copy of the database `template` where given.

    A template must have no open connections. The database is dropped at the end whoever is still connected.
    """
    name = f"test_{uuid.uuid4().hex[:12]}"
    create = sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(
        sql.Identifier(name), sql.Identifier(template or "template0")
    )
    with psycopg.connect(server_url, autocommit=True, connect_timeout=5) as connection:
        connection.execute(create)
    try:
        yield f"{server_url.rsplit('/', 1)[0]}/{name}"
    finally:
        with psycopg.connect(server_url, autocommit=True, connect_timeout=5) as connection:
            connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))


def database_name(url: str) -> str:
    """The database's name in its URL, for `temporary_database(template=…)`."""
    return url.rsplit("/", 1)[1].partition("?")[0]
