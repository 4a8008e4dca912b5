"""The control plane as one process: database, servers, background work, job runners; started and stopped in order.

migrate ─► gRPC Control ─► HTTP ─► lapse watcher ∥ job runners ─► … signal … ─► runners ─► HTTP ─► gRPC ─► database
"""

import asyncio
import signal
from contextlib import AsyncExitStack, suppress
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from control_plane.context import Context
from control_plane.db.engine import RUNNER_POOL, Database, make_engine
from control_plane.db.migrate import migrate
from control_plane.db.secrets import secret
from control_plane.http.cursors import Cursors
from control_plane.hub import Hub
from control_plane.runner.supervisor import RunnerSupervisor
from control_plane.serving import ControlServer, HttpServer
from control_plane.settings import ControlSettings
from control_plane.workers.service import watch_lapses
from headrace.service.errors import ServiceFailed
from headrace.service.logging import get_logger

log = get_logger(__name__)

ANY_INTERFACE = ("0.0.0.0", "::")
DATABASE_WAIT_S = 30.0
RETRY_S = 0.5


class DatabaseUnavailable(ServiceFailed):
    """The database did not answer in DATABASE_WAIT_S, or refused the migration."""

    exit_code = 5


async def run(settings: ControlSettings) -> None:
    """Serve until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    _catch_signals(stop)
    await _migrate(settings.database_url)
    async with AsyncExitStack() as stack:
        context = await open_context(settings, stack)
        control, http = ControlServer(context), HttpServer(context)
        await control.start()
        stack.push_async_callback(control.stop)
        await http.start()
        stack.push_async_callback(http.stop)
        background = [asyncio.create_task(watch_lapses(context), name="lapses")]
        stack.push_async_callback(_cancel, *background)
        await _start_runners(context, stack, control.address)
        log.info("listening", http=f"http://{http.address}", grpc=control.address)
        await stop.wait()
        log.info("stopping")
    log.info("stopped")


async def open_context(settings: ControlSettings, stack: AsyncExitStack) -> Context:
    """Database, hub and keys; closed with the stack. The schema must be there."""
    engine = make_engine(settings.database_url, pool_size=settings.db_pool_size, pool_wait_s=settings.db_pool_wait_s)
    database = Database(engine)
    stack.push_async_callback(database.close)
    async with database.begin() as connection:
        key = await secret(connection, "cursors")
    return Context(settings=settings, database=database, hub=Hub(), cursors=Cursors(key))


async def _start_runners(context: Context, stack: AsyncExitStack, grpc_address: str) -> None:
    settings = context.settings
    # Bound to every interface, this process does not know by which name others reach it: settings say so.
    control_address = settings.control_address if settings.host in ANY_INTERFACE else grpc_address
    engine = make_engine(settings.database_url, pool_size=RUNNER_POOL, pool_wait_s=settings.db_pool_wait_s)
    stack.push_async_callback(engine.dispose)
    supervisor = RunnerSupervisor(engine, context.hub, settings, control_address)
    supervisor.start()
    stack.push_async_callback(supervisor.stop)


async def _migrate(database_url: str) -> None:
    """Upgrade the schema, waiting for a database that is just starting."""
    end = asyncio.get_running_loop().time() + DATABASE_WAIT_S
    while True:
        try:
            await asyncio.to_thread(migrate, database_url)
            return
        except (SQLAlchemyError, OSError) as error:
            if asyncio.get_running_loop().time() > end:
                raise DatabaseUnavailable(f"no usable database within {DATABASE_WAIT_S:g} s: {error}") from None
            log.warning("database_not_ready", reason=type(error).__name__)
        except ValueError as error:
            raise DatabaseUnavailable(str(error)) from None
        await asyncio.sleep(RETRY_S)


def _catch_signals(stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()

    def on_signal(number: signal.Signals) -> None:
        stop.set()
        # A second signal ends the process at once.
        loop.remove_signal_handler(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        # Outside the main thread (tests) signals belong to somebody else.
        with suppress(ValueError, RuntimeError, NotImplementedError):
            loop.add_signal_handler(number, on_signal, number)


async def _cancel(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
