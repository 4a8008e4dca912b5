"""Where an environment's methods run, and how a call that does not come back is ended.

| isolation | where | a hanging call |
|---|---|---|
| inline | in the event loop | a timer interrupts Python code and sleeps; an await is cancelled |
| thread | a thread of its own | the thread is abandoned |
| process | a process of its own, reused between episodes | the process and its children are killed |

`auto` is the class attribute ``isolation`` where the environment declares one, `inline` for coroutine methods, else
`process`. Declare `inline` for environments that only compute, for microseconds: they save a hop per step.
"""

import asyncio
import inspect
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Protocol

from env_svc.contract import Reset, Step, as_reset, as_step, is_async, load, make
from env_svc.faults import EnvFault
from env_svc.process_host import ProcessHost, ProcessPool
from env_svc.session import Session, blamed
from env_svc.spec import PluginSpec
from headrace.service.logging import get_logger

CLOSE_TIMEOUT_S = 5.0

log = get_logger(__name__)


class EnvHost(Protocol):
    """One environment behind deadlines. Every method raises EnvFault alone."""

    async def reset(self, seed: int, timeout_s: float) -> Reset: ...
    async def step(self, text: str, timeout_s: float) -> Step: ...
    async def close(self) -> None: ...


async def open_host(spec: PluginSpec, pool: ProcessPool) -> EnvHost:
    """A host for one episode of ``spec``, which waits for a process where it needs one.

    Nothing of the environment is constructed before the reset. Raises EnvFault ``env_import``.
    """
    match spec.isolation if spec.isolation != "auto" else _declared(spec.entry_point):
        case "inline":
            return InlineHost(spec)
        case "thread":
            return ThreadHost(spec)
        case _:
            return ProcessHost(spec, pool, await pool.acquire())


def _declared(entry_point: str) -> str:
    if entry_point not in _DECLARED:
        factory = load(entry_point)
        default = "inline" if is_async(factory) else "process"
        _DECLARED[entry_point] = str(getattr(factory, "isolation", default))
    return _DECLARED[entry_point]


_DECLARED: dict[str, str] = {}


class InlineHost:
    """Calls in the event loop's thread: the cheapest, for environments that never wait."""

    def __init__(self, spec: PluginSpec) -> None:
        self._spec = spec
        self._environment: Any = None

    async def reset(self, seed: int, timeout_s: float) -> Reset:
        with blamed("reset"):
            raw = await self._call("reset", timeout_s, lambda: self._made().reset(seed=seed))
            return as_reset(raw, self._environment)

    async def step(self, text: str, timeout_s: float) -> Step:
        with blamed("step"):
            return as_step(await self._call("step", timeout_s, lambda: self._environment.step(text)))

    async def close(self) -> None:
        environment, self._environment = self._environment, None
        if hasattr(environment, "close"):
            await _close_quietly(lambda: self._call("close", CLOSE_TIMEOUT_S, environment.close), self._spec)

    def _made(self) -> Any:
        self._environment = make(self._spec)
        return self._environment

    async def _call(self, method: str, timeout_s: float, call: Callable[[], Any]) -> Any:
        try:
            with _alarm(timeout_s):
                result = call()
            if not inspect.isawaitable(result):
                return result
            async with asyncio.timeout(timeout_s):
                return await result
        except (_Overrun, TimeoutError) as error:
            raise _timeout(method, timeout_s) from error


class ThreadHost:
    """Calls in a daemon thread of the environment's own, for libraries that block on input and output."""

    def __init__(self, spec: PluginSpec) -> None:
        self._spec = spec
        self._session = Session(spec)
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]] | None] = queue.SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._is_over = False  # closed, or stuck in a call
        threading.Thread(target=self._work, name=f"env {spec.entry_point}", daemon=True).start()

    async def reset(self, seed: int, timeout_s: float) -> Reset:
        return await self._call("reset", timeout_s, lambda: self._session.reset(seed))  # type: ignore[no-any-return]

    async def step(self, text: str, timeout_s: float) -> Step:
        return await self._call("step", timeout_s, lambda: self._session.step(text))  # type: ignore[no-any-return]

    async def close(self) -> None:
        if not self._is_over:
            await _close_quietly(lambda: self._call("close", CLOSE_TIMEOUT_S, self._session.close), self._spec)
        self._is_over = True
        self._calls.put(None)

    async def _call(self, method: str, timeout_s: float, call: Callable[[], Any]) -> Any:
        future: asyncio.Future[Any] = self._loop.create_future()
        self._calls.put((call, future))
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError as error:
            self._is_over = True
            raise _timeout(method, timeout_s) from error

    def _work(self) -> None:
        while (item := self._calls.get()) is not None:
            call, future = item
            try:
                outcome: tuple[Any, BaseException | None] = (call(), None)
            except BaseException as error:  # noqa: BLE001 -- whatever it is belongs to the caller
                outcome = (None, error)
            try:
                self._loop.call_soon_threadsafe(_settle, future, *outcome)
            except RuntimeError:  # the loop is closed: nobody waits any more
                return


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    elif isinstance(error, Exception):
        future.set_exception(error)
    else:
        future.set_exception(EnvFault("step_error", f"{type(error).__name__}: {error}"))


async def _close_quietly(close: Callable[[], Any], spec: PluginSpec) -> None:
    try:
        await close()
    except Exception as error:  # noqa: BLE001 -- a failed close must not change what the episode was
        log.warning("env_close_failed", entry_point=spec.entry_point, reason=str(error))


class _Overrun(BaseException):
    """Raised inside a blocking call by the timer. Not an Exception, so that environments do not swallow it."""


@contextmanager
def _alarm(timeout_s: float) -> Iterator[None]:
    """Interrupt the block after ``timeout_s``. Only the main thread can be interrupted; elsewhere nothing is armed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    is_armed = True

    def ring(_signal: int, _frame: FrameType | None) -> None:
        if is_armed:
            raise _Overrun

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, timeout_s)
    try:
        yield
    finally:
        is_armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _timeout(method: str, timeout_s: float) -> EnvFault:
    return EnvFault(f"{method}_timeout", f"{method} did not return within {timeout_s:g} s (env.timeouts.{method}_s)")
