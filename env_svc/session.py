"""An environment as plain blocking calls, for a thread or a process of its own."""

import asyncio
import inspect
from typing import Any

from env_svc.contract import Reset, Step, as_reset, as_step, make
from env_svc.faults import AttemptFault, EnvFault
from env_svc.spec import PluginSpec


class Session:
    """One environment, constructed at the reset. Coroutine methods run on a loop of the session's own."""

    def __init__(self, spec: PluginSpec) -> None:
        self._spec = spec
        self._environment: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def reset(self, seed: int) -> Reset:
        """Raises EnvFault."""
        with blamed("reset"):
            self._environment = make(self._spec)
            return as_reset(self._finish(self._environment.reset(seed=seed)), self._environment)

    def step(self, text: str) -> Step:
        """Raises EnvFault."""
        with blamed("step"):
            return as_step(self._finish(self._environment.step(text)))

    def close(self) -> None:
        """Close the environment, if it was made and has a ``close``."""
        environment, self._environment = self._environment, None
        try:
            if hasattr(environment, "close"):
                self._finish(environment.close())
        finally:
            if self._loop is not None:
                self._loop.close()
                self._loop = None

    def _finish(self, result: Any) -> Any:
        if not inspect.isawaitable(result):
            return result
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        return self._loop.run_until_complete(_await(result))


class blamed:
    """Turns what an environment raises in ``method`` into ``<method>_error``, but for faults that say whom to blame."""

    def __init__(self, method: str) -> None:
        self._method = method

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, AttemptFault):
            raise EnvFault(f"{self._method}_error", f"{type(error).__name__}: {error}") from error


async def _await(result: Any) -> Any:
    return await result
