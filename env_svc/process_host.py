"""Environments in processes of their own: killable, without the service's credentials, reused between episodes."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from env_svc.contract import Reset, Step
from env_svc.faults import EnvFault
from env_svc.spec import PluginSpec
from headrace.service.logging import get_logger

CLOSE_TIMEOUT_S = 5.0
EPISODES_PER_PROCESS = 200
FRAME_HEADER_BYTES = 4
PASSED_VARIABLES = ("PATH", "PYTHONPATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TZ", "OMP_NUM_THREADS", "VIRTUAL_ENV")

log = get_logger(__name__)


class Child:
    """A process that serves one environment at a time over its standard input and output."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.n_episodes = 0
        self.is_killed = False

    @classmethod
    async def spawn(cls) -> "Child":
        environment = {name: os.environ[name] for name in PASSED_VARIABLES if name in os.environ}
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "env_svc.child", str(os.getpid())),
            stdin=PIPE,
            stdout=PIPE,
            env=environment,
            start_new_session=True,
        )
        return cls(process)

    async def call(self, method: str, arguments: Mapping[str, Any], timeout_s: float) -> Any:
        """One request and its answer. After EnvFault ``*_timeout`` or ``env_crashed`` the process is dead."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._exchange(method, arguments)
        except TimeoutError as error:
            self.kill()
            raise EnvFault(
                f"{method}_timeout", f"{method} did not return within {timeout_s:g} s (env.timeouts.{method}_s)"
            ) from error
        except (EOFError, ConnectionError) as error:
            self.kill()
            raise EnvFault("env_crashed", f"the environment's process ended in {method}") from error
        except asyncio.CancelledError:
            # The answer would be read by the next caller.
            self.kill()
            raise

    async def _exchange(self, method: str, arguments: Mapping[str, Any]) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        payload = json.dumps({"method": method, **arguments}).encode()
        self._process.stdin.write(len(payload).to_bytes(FRAME_HEADER_BYTES, "big") + payload)
        await self._process.stdin.drain()
        header = await self._process.stdout.readexactly(FRAME_HEADER_BYTES)
        answer = json.loads(await self._process.stdout.readexactly(int.from_bytes(header, "big")))
        if "fault" in answer:
            raise EnvFault(**answer["fault"])
        return answer["result"]

    @property
    def is_alive(self) -> bool:
        return self._process.returncode is None

    async def end(self) -> None:
        """Kill the process and wait for its end."""
        self.kill()
        await self._process.wait()
        # The pipe would otherwise close itself when it is collected, which may be after the loop.
        self._process._transport.close()  # type: ignore[attr-defined]

    def kill(self) -> None:
        """End the process and every process that it started and kept in its session."""
        self.is_killed = True
        if self.is_alive:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)


class ProcessPool:
    """At most ``max_processes`` children; idle ones are kept warm."""

    def __init__(self, max_processes: int) -> None:
        self._room = asyncio.Semaphore(max_processes)
        self._idle: list[Child] = []
        self._all: set[Child] = set()

    async def acquire(self) -> Child:
        """A live child; waits for room."""
        await self._room.acquire()
        try:
            while self._idle:
                child = self._idle.pop()
                if child.is_alive:
                    return child
                await child.end()
                self._all.discard(child)
            child = await Child.spawn()
            self._all.add(child)
            return child
        except BaseException:
            self._room.release()
            raise

    async def release(self, child: Child) -> None:
        """Give a child back; dead and worn ones are replaced later."""
        child.n_episodes += 1
        try:
            if child.is_alive and not child.is_killed and child.n_episodes < EPISODES_PER_PROCESS:
                self._idle.append(child)
            else:
                await child.end()
                self._all.discard(child)
        finally:
            self._room.release()

    @property
    def n_alive(self) -> int:
        return sum(child.is_alive for child in self._all)

    async def close(self) -> None:
        """Kill every child and wait until they are gone."""
        children, self._all, self._idle = self._all, set(), []
        await asyncio.gather(*(child.end() for child in children))


class ProcessHost:
    """One environment in a child of the pool, which goes back at the close."""

    def __init__(self, spec: PluginSpec, pool: ProcessPool, child: Child) -> None:
        self._spec, self._pool = spec, pool
        self._child: Child | None = child

    async def reset(self, seed: int, timeout_s: float) -> Reset:
        return Reset(**await self._call("reset", {"spec": asdict(self._spec), "seed": seed}, timeout_s))

    async def step(self, text: str, timeout_s: float) -> Step:
        return Step(**await self._call("step", {"text": text}, timeout_s))

    async def close(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        try:
            if child.is_alive and not child.is_killed:
                await child.call("close", {}, CLOSE_TIMEOUT_S)
        except EnvFault as error:
            log.warning("env_close_failed", entry_point=self._spec.entry_point, reason=str(error))
        finally:
            await self._pool.release(child)

    async def _call(self, method: str, arguments: Mapping[str, Any], timeout_s: float) -> Any:
        if self._child is None:
            raise EnvFault(f"{method}_error", f"{method} after close")
        return await self._child.call(method, arguments, timeout_s)
