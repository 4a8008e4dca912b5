"""The EnvManager: one coroutine per attempt.

    queue ─► reset ─► ┌ lockstep wait ─► generate ─► step ┐ ─► upload ─► outcome
                      └──────────────◄────────────────────┘

It owns its environment, its episode and its deadlines; a failure of any kind ends this attempt alone.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from env_svc.codec import Codec, Messages, as_messages
from env_svc.contract import Observation, Reset, Step, n_bytes
from env_svc.faults import ENV, AttemptFault, EnvFault, InfraFault
from env_svc.generation import ProxyRoute, Turn
from env_svc.hosts import EnvHost, open_host
from env_svc.lockstep import Cohort, Cohorts
from env_svc.outbox import Key
from env_svc.pauses import Gate
from env_svc.process_host import ProcessPool
from env_svc.records import Record, failed, finished
from env_svc.spec import PluginSpec, TaskSpec
from env_svc.uploads import Uploads
from headrace.core.episode import Episode, Phase, PhaseClock
from headrace.core.seeds import derive
from headrace.service.logging import get_logger
from headrace.wire.common.v1 import common_pb2
from headrace.wire.environments.v1 import environments_pb2
from headrace.wire.inference.v1 import inference_pb2

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Shared:
    """What all attempts of a process share."""

    worker_id: str
    slots: asyncio.Semaphore
    processes: ProcessPool
    uploads: Uploads
    max_observation_bytes: int


@dataclass(frozen=True, slots=True)
class JobTools:
    """What all attempts of a job share."""

    job_id: str
    max_len: int
    codec: Codec
    route: ProxyRoute
    gate: Gate
    cohorts: Cohorts
    stop_token_ids: dict[str, tuple[int, ...]]  # by task


class EnvManager:
    """Plays one attempt. ``on_started(version)`` is called when the first kept token comes."""

    def __init__(
        self,
        assign: environments_pb2.Assign,
        task: TaskSpec,
        job: JobTools,
        shared: Shared,
        on_started: Callable[[int], None],
    ) -> None:
        self._assign, self._task, self._job, self._shared = assign, task, job, shared
        self._on_started = on_started
        self._stop = job.stop_token_ids[task.name]
        self._clock = PhaseClock("queue", _now())
        self._started_s = _now()
        self._cohort: Cohort | None = None
        self._closing: asyncio.Task[None] | None = None
        self.record = Record(
            key=Key.of(assign.key),
            task=task,
            temperature=0.0 if assign.greedy else task.sampling.temperature,
            env_worker_id=shared.worker_id,
            episode=Episode(task.limits(job.max_len)),
        )

    async def run(self) -> environments_pb2.Outcome:
        """Play to the end and return the outcome. Cancellation is the caller's to name."""
        try:
            await self._play_in_slot()
            self._enter("upload")
            token_blob, grading_blob = self.record.blobs()
            digests = await self._shared.uploads.put(token_blob, grading_blob)
        except AttemptFault as fault:
            return self.failure(fault)
        except Exception as error:
            log.exception("attempt_crashed", trajectory_id=self.record.key.trajectory_id)
            return self.failure(InfraFault("env_svc_error", f"{type(error).__name__}: {error}"))
        finally:
            if self._closing is not None:
                await asyncio.wait([self._closing])
        return finished(self.record, digests[0], digests[1], self._phases())

    def failure(self, fault: AttemptFault) -> environments_pb2.Outcome:
        """The outcome of an attempt that ends without a trajectory."""
        return failed(self.record, fault, self._phases())

    async def _play_in_slot(self) -> None:
        await self._job.gate.passed()
        async with self._shared.slots, self._environment() as host:
            try:
                await self._within_episode(self._play(host))
            finally:
                self._job.route.end(self._assign.key)
        if not self.record.episode.n_generated:
            raise self._nothing_generated()

    @asynccontextmanager
    async def _environment(self) -> AsyncIterator[EnvHost]:
        plugin = self._task.plugin
        spec = PluginSpec(plugin.entry_point, plugin.config, self._assign.split, plugin.isolation)
        host = await open_host(spec, self._shared.processes)
        self._cohort = self._job.cohorts.join(self._assign.cohort, self._assign.cohort_size)
        try:
            yield host
        finally:
            if self._cohort is not None:
                self._job.cohorts.leave(self._assign.cohort)
            # The slot and the cohort do not wait for an environment that is slow to close.
            self._closing = asyncio.create_task(host.close())

    async def _within_episode(self, play: Coroutine[Any, Any, None]) -> None:
        limit_s = self._task.deadlines.episode_s
        try:
            async with asyncio.timeout(limit_s) as deadline:
                with self._job.gate.extends(deadline):
                    await play
        except TimeoutError:
            raise self._late(limit_s) from None

    async def _play(self, host: EnvHost) -> None:
        self._enter("reset")
        reset = await host.reset(self._assign.env_seed, self._task.deadlines.reset_s)
        self.record.info, self.record.env_version = reset.info, reset.version
        await self._observe_first(reset)
        episode = self.record.episode
        while episode.phase is Phase.READY:
            await self._turn(host, episode)

    async def _turn(self, host: EnvHost, episode: Episode) -> None:
        await self._job.gate.passed()
        if self._cohort is not None:
            self._enter("lockstep")
            await self._cohort.wait()
        await self._generate(episode)
        if not episode.may_act:
            return
        self._enter("step")
        step = await host.step(self.record.completions[-1], self._task.deadlines.step_s)
        self.record.stepped(step)
        if episode.ending is None:
            await self._observe(step)

    async def _observe_first(self, reset: Reset) -> None:
        messages = await self._heard(reset.observation, "user")
        self.record.episode.observe(await self._job.codec.first(messages, reset.info.get("tools")))

    async def _observe(self, step: Step) -> None:
        messages = await self._heard(step.observation, self._task.observation_role)
        episode = self.record.episode
        episode.observe(await self._job.codec.later(messages, episode.turn_token_ids))

    async def _heard(self, observation: Observation, role: str) -> Messages:
        """The observation as clean messages within the limits, written down."""
        size, limit = n_bytes(observation), self._shared.max_observation_bytes
        cap = self._task.max_observation_tokens
        if size > limit and cap is None:
            raise EnvFault(
                "observation_too_large",
                f"an observation has {size} bytes, the limit is {limit}; set max_observation_tokens to cut it",
            )
        messages = as_messages(observation, role)
        for message in messages if cap is not None else []:
            text, was_cut = await self._job.codec.cut(str(message["content"]), cap or 0)
            message["content"] = text
            self.record.cut_observations += was_cut
        return self.record.heard(messages)

    async def _generate(self, episode: Episode) -> None:
        self._enter("generate")
        ask = episode.ask()
        turn = Turn(self._request(ask.turn), episode, self._on_started)
        await self._job.route.generate(turn, ask)
        text = self._job.codec.text(episode.turn_token_ids, self._stop)
        self.record.said(text)

    def _request(self, turn: int) -> inference_pb2.StartGeneration:
        assign, sampling = self._assign, self._task.sampling
        key = self.record.key
        request = inference_pb2.StartGeneration(
            request_id=f"{key.trajectory_id}/{key.attempt}/{turn}",
            job_id=self._job.job_id,
            key=assign.key,
            purpose=assign.purpose,
            task=assign.task,
            turn=turn,
            prompt_token_ids=self.record.episode.prompt_token_ids,
            sampling=common_pb2.SamplingSpec(
                temperature=self.record.temperature,
                top_p=1.0 if assign.greedy else sampling.top_p,
                top_k=0 if assign.greedy else sampling.top_k,
                seed=derive(assign.sampling_seed, turn),
                stop_token_ids=self._stop,
            ),
        )
        if assign.HasField("pinned_version"):
            request.pinned_version = assign.pinned_version
        return request

    def _nothing_generated(self) -> AttemptFault:
        episode = self.record.episode
        if episode.n_turns:
            return InfraFault("no_tokens", "the engine ended the turn without a token")
        return EnvFault(
            "prompt_too_long",
            f"the first observation leaves no room in max_len {self._job.max_len}; raise model.max_len or cut it",
            retryable=False,
        )

    def _late(self, limit_s: float) -> AttemptFault:
        seconds = self._clock.seconds(_now())
        in_env_s = seconds.get("reset", 0.0) + seconds.get("step", 0.0)
        kind = ENV if in_env_s > seconds.get("generate", 0.0) else "infra"
        spent = ", ".join(f"{phase} {value:.1f} s" for phase, value in seconds.items())
        return AttemptFault(
            "episode_timeout", f"not over within {limit_s:g} s (env.timeouts.episode_s): {spent}", kind=kind
        )

    def _enter(self, phase: str) -> None:
        self._clock.enter(phase, _now())

    def _phases(self) -> environments_pb2.PhaseSeconds:
        seconds = self._clock.seconds(_now())
        return environments_pb2.PhaseSeconds(
            queue_s=seconds.get("queue", 0.0),
            reset_s=seconds.get("reset", 0.0),
            generate_s=seconds.get("generate", 0.0),
            step_s=seconds.get("step", 0.0),
            lockstep_wait_s=seconds.get("lockstep", 0.0),
            total_s=_now() - self._started_s,
        )


def _now() -> float:
    return asyncio.get_running_loop().time()
