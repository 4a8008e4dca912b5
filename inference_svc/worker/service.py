"""The order of effects in a worker: commands of one proxy stream in, engine calls, events out.

    session (one proxy stream) ─► apply(command) ─► engine, weight shelf
    engine.outputs() ─► merge ─► emit(event) ─► the session that is current

A new session ends the old one's requests. Each ADD runs in the engine under an id of its own, so that a late chunk of
a request that was cancelled and added again cannot be taken for the new one's.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from headrace.core.weights.errors import WeightsError
from headrace.service.logging import get_logger
from inference_svc.engine.engine import (
    Engine,
    EngineDied,
    EngineRequest,
    EngineStats,
    FinishReason,
    LoadRefused,
    RequestRefused,
    TokenChunk,
    TypedArray,
)
from inference_svc.worker import messages as msg
from inference_svc.worker.build import BuildEngine, CannotBuild
from inference_svc.worker.merge import ChunkMerger
from inference_svc.worker.options import BadOptions, EngineOptions
from inference_svc.worker.shelf import Staged, WeightShelf

log = get_logger(__name__)

Emit = Callable[[msg.Event], None]

RELAY_S = 1.0
"""Longest wait, after a load, for the last tokens of the requests that it cancelled."""

EMPTY_STATS = EngineStats(
    running=0,
    waiting=0,
    kv_tokens_used=0,
    kv_tokens_total=0,
    busy_s=0.0,
    generated_tokens=0,
    prefill_tokens=0,
    prefix_hit_tokens=0,
    steps=0,
    policy_version=None,
    weight_digest="",
    is_paused=False,
)


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    """Who this worker is and how it builds engines."""

    worker_id: str
    engine: str
    build: BuildEngine
    defaults: EngineOptions
    chunk_linger_s: float = 0.02


@dataclass(eq=False, slots=True)
class Session:
    """One proxy stream: where its events go, and its requests by wire id and by engine id."""

    emit: Emit
    live: dict[str, str] = field(default_factory=dict)
    by_engine_id: dict[str, msg.Add] = field(default_factory=dict)
    has_forgotten: asyncio.Event = field(default_factory=asyncio.Event)


class WorkerService:
    """One engine, the weights it may serve, and the session that drives it."""

    def __init__(self, identity: WorkerIdentity, shelf: WeightShelf) -> None:
        self._identity = identity
        self._shelf = shelf
        self._options = identity.defaults
        self._job_id: str | None = None
        self._engine: Engine | None = None
        self._max_len = 0
        self._built_with: tuple[EngineOptions, bytes] | None = None
        self._session: Session | None = None
        self._serials = itertools.count()
        self._merger = ChunkMerger()
        self._flush: asyncio.TimerHandle | None = None
        self._loading = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    # ---- life ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until cancelled, or until the engine dies: then EngineDied, and the process has to end."""
        await self._failed

    async def close(self) -> None:
        """Stop the engine and release all weights."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._engine is not None:
            await self._engine.stop()
        await self._shelf.close()

    def stats(self) -> EngineStats:
        """The engine's statistics; zeros before there is one."""
        return self._engine.stats() if self._engine is not None else EMPTY_STATS

    def hello(self) -> msg.Hello:
        """What this worker is and holds now."""
        stats = self.stats()
        return msg.Hello(
            worker_id=self._identity.worker_id,
            engine=self._identity.engine,
            serving_version=stats.policy_version,
            weight_digest=stats.weight_digest,
            resident_versions=self._shelf.resident,
            max_running=self._options.max_running,
            kv_tokens_total=stats.kv_tokens_total,
            max_len=self._max_len,
            kv_bytes_per_token=stats.kv_bytes_per_token,
        )

    # ---- sessions --------------------------------------------------------------------------------------------------

    def begin(self, emit: Emit) -> Session:
        """A new session; the requests of the one before it are cancelled. Its first event is a Hello."""
        if self._session is not None:
            self.end(self._session)
        self._session = Session(emit)
        emit(self.hello())
        return self._session

    def end(self, session: Session) -> None:
        """The session's stream is gone: nobody waits for its requests. A session that is over already is ignored."""
        if session is self._session:
            self._session = None
        for engine_id in list(session.by_engine_id):
            self._forget(session, engine_id)
            if self._engine is not None:
                self._engine.abort(engine_id)

    async def apply(self, session: Session, command: msg.Command) -> None:
        """Perform one command, after those before it. What fails is answered by an event, not raised."""
        if session is not self._session:
            return
        match command:
            case msg.Add():
                self._add(session, command)
            case msg.Abort(request_id):
                self._abort(session, request_id)
            case msg.Prefetch():
                self._spawn(self._prefetch(command))
            case msg.Load(policy_version):
                # A stream that breaks half-way through must not leave a half-applied load behind.
                await asyncio.shield(self._spawn(self._load(policy_version)))
            case msg.Drop(policy_version):
                self._shelf.drop(policy_version)
            case msg.Pause():
                await self._set_paused(True)
            case msg.Resume():
                await self._set_paused(False)
            case msg.Open():
                await self._open(command)

    def _spawn(self, work: Any) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        """Anything that a task did not answer itself is a defect: the process ends by it."""
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._failed.done():
            self._failed.set_exception(error)

    def _emit(self, event: msg.Event) -> None:
        if self._session is not None:
            self._session.emit(event)

    # ---- requests --------------------------------------------------------------------------------------------------

    def _add(self, session: Session, add: msg.Add) -> None:
        old = session.live.get(add.request_id)
        if old is not None:
            if session.by_engine_id[old].epoch >= add.epoch:
                log.warning("add_repeated", request_id=add.request_id, epoch=add.epoch)
                return
            self._forget(session, old)
            if self._engine is not None:
                self._engine.abort(old)
        engine_id = f"{add.request_id}#{next(self._serials)}"
        try:
            if self._engine is None:
                raise RequestRefused(engine_id, "no_weights", "no weights are loaded; load a version first")
            self._engine.add(EngineRequest(engine_id, add.token_ids, add.sampling, add.n_kept))
        except RequestRefused as refusal:
            is_retryable = refusal.code in ("no_weights", "engine_stopped")
            self._emit(_refused(add, msg.Fault(refusal.code, refusal.message, is_retryable)))
        else:
            session.live[add.request_id] = engine_id
            session.by_engine_id[engine_id] = add

    def _abort(self, session: Session, request_id: str) -> None:
        engine_id = session.live.get(request_id)
        if engine_id is not None and self._engine is not None:
            self._engine.abort(engine_id)

    @staticmethod
    def _forget(session: Session, engine_id: str) -> None:
        add = session.by_engine_id.pop(engine_id, None)
        session.has_forgotten.set()
        if add is not None and session.live.get(add.request_id) == engine_id:
            del session.live[add.request_id]

    async def _relay(self, engine: Engine) -> None:
        """Engine chunks to the current session, until the engine stops or dies."""
        try:
            async for chunks in engine.outputs():
                for chunk in self._merger.add(chunks):
                    self._relay_one(chunk)
                if len(self._merger) and self._flush is None:
                    loop = asyncio.get_running_loop()
                    self._flush = loop.call_later(self._identity.chunk_linger_s, self._flush_merger)
        except EngineDied as error:
            log.error("engine_died", reason=str(error))
            raise

    def _flush_merger(self) -> None:
        self._flush = None
        for chunk in self._merger.flush():
            self._relay_one(chunk)

    def _relay_one(self, chunk: TokenChunk) -> None:
        session = self._session
        add = session.by_engine_id.get(chunk.request_id) if session is not None else None
        if session is None or add is None:
            return
        is_cancelled_by_load = chunk.finish_reason is FinishReason.LOAD
        if chunk.finish_reason is not None:
            self._forget(session, chunk.request_id)
        # The proxy adds a request that a load cancelled again by itself: it needs its tokens, not an end.
        if chunk.ids or not is_cancelled_by_load:
            session.emit(
                msg.Chunk(
                    request_id=add.request_id,
                    epoch=add.epoch,
                    offset=chunk.offset,
                    ids=chunk.ids,
                    logprobs=chunk.logprobs,
                    policy_version=chunk.policy_version,
                    weight_digest=chunk.weight_digest,
                    finish_reason=None if is_cancelled_by_load else chunk.finish_reason,
                )
            )

    # ---- weights ---------------------------------------------------------------------------------------------------

    async def _open(self, command: msg.Open) -> None:
        """Take up a job and answer by a Hello. Another job's weights, engine and requests are let go first.

        Generation runs afterwards, whatever the session before left behind: it may have died between pause and resume.
        """
        try:
            options, unknown = self._identity.defaults.overridden(command.engine_json)
        except BadOptions as error:
            log.error("engine_settings_refused", reason=str(error), job_id=command.job_id)
            options, unknown = self._identity.defaults, []
        if unknown:
            log.warning("engine_settings_unknown", keys=unknown, job_id=command.job_id)
        self._options = options
        async with self._loading:
            if command.job_id != self._job_id:
                self._job_id = command.job_id
                await self._discard_engine()
                await self._shelf.clear()
            await self._set_paused(False)
        self._emit(self.hello())

    async def _prefetch(self, command: msg.Prefetch) -> None:
        busy_before, started_at = self.stats().busy_s, time.perf_counter()
        digest = command.manifest.digest
        try:
            staged = await self._shelf.fetch(command)
        except WeightsError as error:
            log.warning("prefetch_failed", policy_version=command.policy_version, reason=str(error))
            fault = msg.Fault(error.code, str(error), error.retryable)
            self._emit(msg.Prefetched(command.policy_version, digest, fault=fault))
            return
        busy_s = max(0.0, self.stats().busy_s - busy_before)
        wall_s = time.perf_counter() - started_at
        report = staged.report
        self._emit(
            msg.Prefetched(
                policy_version=command.policy_version,
                weight_digest=staged.digest,
                pull_s=report.pull_s,
                verify_s=report.verify_s,
                bytes_moved=report.bytes_moved,
                transport=report.transport,
                exposed_pull_s=max(0.0, wall_s - busy_s),
            )
        )

    async def _load(self, policy_version: int) -> None:
        session = self._session
        async with self._loading:
            cancelled = list(session.by_engine_id) if session is not None else []
            loaded = await self._loaded(policy_version)
        if loaded.fault is None and session is not None:
            await self._until_relayed(session, cancelled)
        if loaded.fault is not None:
            log.warning(
                "load_failed", policy_version=policy_version, code=loaded.fault.code, reason=loaded.fault.detail
            )
        self._emit(loaded)

    @staticmethod
    async def _until_relayed(session: Session, engine_ids: list[str]) -> None:
        """The last tokens under the old version go out before the news of the load, after which they would be void."""
        with suppress(TimeoutError):
            async with asyncio.timeout(RELAY_S):
                while any(engine_id in session.by_engine_id for engine_id in engine_ids):
                    session.has_forgotten.clear()
                    await session.has_forgotten.wait()

    async def _loaded(self, policy_version: int) -> msg.Loaded:
        asked_at = time.perf_counter()
        serving = self.stats().policy_version
        try:
            staged = await self._shelf.get(policy_version)
            if staged is None:
                fault = msg.Fault("not_resident", f"version {policy_version} is not here; prefetch it first", True)
                return msg.Loaded(policy_version, "", fault=fault)
            self._shelf.pin(policy_version, *([] if serving is None else [serving]))
            engine = await self._engine_for(staged)
            await engine.pause()
            report = await engine.load(policy_version, staged.digest, _typed_tensors(staged))
        except (WeightsError, CannotBuild, LoadRefused, EngineDied) as error:
            return msg.Loaded(policy_version, "", fault=_load_fault(error))
        finally:
            now_serving = self.stats().policy_version
            self._shelf.pin(*([] if now_serving is None else [now_serving]))
        return msg.Loaded(
            policy_version=policy_version,
            weight_digest=staged.digest,
            load_s=time.perf_counter() - asked_at,
            kv_tokens_freed=report.kv_tokens_freed,
            requests_cancelled=report.requests_cancelled,
        )

    async def _engine_for(self, staged: Staged) -> Engine:
        """The engine for this version's model, built anew if the model's config or the options changed."""
        built_with = (self._options, bytes(staged.files().get("config.json", b"")))
        if self._engine is not None and self._built_with == built_with:
            return self._engine
        await self._discard_engine()
        files = {name: bytes(data) for name, data in staged.files().items()}
        engine, limits = await asyncio.to_thread(self._identity.build, self._identity.engine, self._options, files)
        await engine.start()
        self._engine, self._built_with, self._max_len = engine, built_with, limits.max_length
        self._spawn(self._relay(engine))
        log.info("engine_built", engine=self._identity.engine, max_len=self._max_len)
        self._emit(self.hello())
        return engine

    async def _discard_engine(self) -> None:
        engine, self._engine, self._built_with, self._max_len = self._engine, None, None, 0
        if self._session is not None:
            self._session.live.clear()
            self._session.by_engine_id.clear()
        if engine is not None:
            await engine.stop()

    async def _set_paused(self, is_paused: bool) -> None:
        if self._engine is not None:
            with suppress(EngineDied):  # _relay reports it
                await (self._engine.pause() if is_paused else self._engine.resume())


def _refused(add: msg.Add, fault: msg.Fault) -> msg.Chunk:
    return msg.Chunk(add.request_id, add.epoch, add.n_kept, (), (), 0, "", None, fault)


def _load_fault(error: Exception) -> msg.Fault:
    if isinstance(error, WeightsError):
        return msg.Fault(error.code, str(error), error.retryable)
    codes = {CannotBuild: "cannot_build", LoadRefused: "layout_mismatch", EngineDied: "engine_died"}
    return msg.Fault(codes[type(error)], str(error), False)


def _typed_tensors(staged: Staged) -> dict[str, Any]:
    """Views that an engine copies from, each with the dtype that the manifest gives it."""
    return {name: TypedArray(array, staged.manifest.tensor(name).dtype) for name, array in staged.tensors().items()}
