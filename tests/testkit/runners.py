"""A job's runner as an environment process sees it: one `Run` stream, what came on it, and waits with deadlines."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from headrace.service.grpc import channel
from headrace.wire.common.v1 import common_pb2
from headrace.wire.environments.v1 import environments_pb2, environments_pb2_grpc

Command = environments_pb2.AssignmentCommand


def spec(task: dict[str, Any] | None = None, *, max_len: int = 512, **limits: Any) -> str:
    """A resolved job spec with one task, ``echo``; ``task`` overrides its keys."""
    base: dict[str, Any] = {
        "name": "echo",
        "env": {"entry_point": "testkit.environments:Echo", "config": {}, "timeouts": {"reset_s": 5, "step_s": 1}},
        "rewards": [{"env": True}],
        "sampling": {"temperature": 1.0, "max_tokens": 16},
    }
    for key, value in (task or {}).items():
        base[key] = {**base[key], **value} if isinstance(value, dict) and key in base else value
    return json.dumps({"tasks": [base], "model": {"max_len": max_len}, "limits": limits})


@dataclass
class RunnerSide:
    """Opens the stream on entry. ``outcomes`` is everything that came, in order, but the answer to open."""

    address: str
    spec_json: str
    model_files: dict[str, bytes]
    proxy_address: str = ""
    job_id: str = "job_1"
    epoch: int = 1
    acknowledges: bool = True
    outcomes: list[environments_pb2.Outcome] = field(default_factory=list)
    opened: environments_pb2.JobOpened | None = None
    error: Exception | None = None
    _writing: asyncio.Lock = field(default_factory=asyncio.Lock)
    _came: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def __aenter__(self) -> "RunnerSide":
        self._channel = channel(self.address)
        self._call = environments_pb2_grpc.EnvironmentsStub(self._channel).Run()
        opening = environments_pb2.OpenJob(
            job_id=self.job_id, job_epoch=self.epoch, spec_json=self.spec_json, model_files=self.model_files
        )
        await self.send(Command(open=opening))
        if self.proxy_address:
            await self.send(Command(proxy=environments_pb2.SetProxy(address=self.proxy_address, worker_id="proxy@1")))
        self._reading = asyncio.create_task(self._read())
        await self.until(lambda: self.opened is not None or self.error is not None)
        return self

    async def __aexit__(self, *_error: object) -> None:
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        self._call.cancel()
        await self._channel.close(None)

    async def send(self, *commands: environments_pb2.AssignmentCommand) -> None:
        async with self._writing:  # a call takes one write at a time
            await self._call.write(environments_pb2.AssignmentFrame(commands=commands))

    async def assign(self, trajectory_id: str, *, attempt: int = 1, **more: Any) -> None:
        """Begin an attempt of the task ``echo``."""
        given = {"purpose": common_pb2.PURPOSE_TRAIN, "task": "echo", "env_seed": 1, "sampling_seed": 7} | more
        await self.send(Command(assign=environments_pb2.Assign(key=key(trajectory_id, attempt), **given)))

    async def abort(self, trajectory_id: str, reason: str, attempt: int = 1) -> None:
        await self.send(Command(abort=environments_pb2.Abort(key=key(trajectory_id, attempt), reason=reason)))

    async def acknowledge(self, *trajectory_ids: str) -> None:
        keys = [key(name) for name in trajectory_ids]
        await self.send(Command(acknowledge=environments_pb2.Acknowledge(keys=keys)))

    async def until(self, condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
        async with asyncio.timeout(timeout_s), self._came:
            await self._came.wait_for(condition)

    async def finals(self, n: int, timeout_s: float = 10.0) -> list[Any]:
        """The first ``n`` final outcomes, as AttemptFinished or AttemptFailed."""
        await self.until(lambda: len(self._finals()) >= n or self.error is not None, timeout_s)
        assert self.error is None, self.error
        return self._finals()[:n]

    async def final(self, timeout_s: float = 10.0) -> Any:
        return (await self.finals(1, timeout_s))[0]

    @property
    def started(self) -> list[tuple[str, int]]:
        begun = [o.started for o in self.outcomes if o.HasField("started")]
        return [(started.key.trajectory_id, started.start_version) for started in begun]

    def _finals(self) -> list[Any]:
        kinds = [(o, o.WhichOneof("outcome")) for o in self.outcomes]
        return [getattr(o, kind) for o, kind in kinds if kind in ("finished", "failed")]

    async def _read(self) -> None:
        try:
            async for frame in self._call:
                await self._take(frame)
        except Exception as error:  # noqa: BLE001 -- the test asks for it
            self.error = error
        async with self._came:
            self._came.notify_all()

    async def _take(self, frame: environments_pb2.OutcomeFrame) -> None:
        ended = []
        async with self._came:
            for outcome in frame.outcomes:
                if outcome.HasField("opened"):
                    self.opened = outcome.opened
                else:
                    self.outcomes.append(outcome)
                    kind = outcome.WhichOneof("outcome")
                    ended += [getattr(outcome, kind).key] if kind in ("finished", "failed") else []
            self._came.notify_all()
        if ended and self.acknowledges:
            await self.send(Command(acknowledge=environments_pb2.Acknowledge(keys=ended)))


def key(trajectory_id: str, attempt: int = 1) -> common_pb2.AttemptKey:
    return common_pb2.AttemptKey(trajectory_id=trajectory_id, attempt=attempt)
