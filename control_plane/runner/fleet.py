"""The processes one job talks to, as they come and go, and what each is told when its stream opens."""

from collections.abc import Iterable

from sqlalchemy.ext.asyncio import AsyncEngine

from control_plane.runner import directory
from control_plane.runner.directory import Process
from control_plane.runner.links import EnvLink, Link, Listener, ProxyLink, TrainerLink, policy_json
from headrace.client.jobspec import JobSpec
from headrace.core.job import events as did
from headrace.service.logging import get_logger
from headrace.wire.environments.v1 import environments_pb2 as env_pb
from headrace.wire.inference.v1 import inference_pb2 as inf_pb
from headrace.wire.trainer.v1 import trainer_pb2 as trn_pb

log = get_logger(__name__)
GOODBYE_S = 2.0


class Fleet:
    """Follows the workers table: `refresh` opens and closes links and returns what the machine has to hear."""

    def __init__(self, engine: AsyncEngine, job_id: str, epoch: int, spec: JobSpec, listener: Listener) -> None:
        self._engine = engine
        self._job_id = job_id
        self._epoch = epoch
        self._spec = spec
        self._listener = listener
        self.envs: dict[str, EnvLink] = {}
        self.proxy: ProxyLink | None = None
        self.trainer: TrainerLink | None = None
        self.workers: dict[str, Process] = {}
        self.weights: Process | None = None
        self.model_files: dict[str, bytes] = {}

    async def refresh(self) -> list[did.Event]:
        processes = await self._read()
        self._follow_weights(processes)
        events: list[did.Event] = []
        events += await self._follow_trainer(processes)
        events += await self._follow_proxy(processes)
        events += self._follow_workers(processes)
        events += await self._follow_envs(processes)
        return events

    async def _read(self) -> list[Process]:
        """Live processes, after free ones have been taken up to what the job may use."""
        async with self._engine.begin() as connection:
            processes = await directory.live(connection)
            wanted = {"trainer": 1, "proxy": 1, "inference": self._spec.resources.inference.max}
            is_changed = False
            for kind, count in wanted.items():
                missing = count - len(directory.of_kind(processes, kind, self._job_id))
                if missing > 0 and any(p.job_id is None for p in directory.of_kind(processes, kind)):
                    is_changed |= bool(await directory.assign(connection, self._job_id, kind, missing))
            return await directory.live(connection) if is_changed else processes

    def _follow_weights(self, processes: list[Process]) -> None:
        """A node that is away stays known: it will be back, elsewhere and empty, and the trainer has to hear where."""
        found = directory.of_kind(processes, "weights")
        if not found:
            return
        before, self.weights = self.weights, found[0]
        if self.trainer is not None and before is not None and before.address != self.weights.address:
            log.info("weights_moved", address=self.weights.address, worker_id=self.weights.worker_id)
            moved = trn_pb.SetWeights(weights_address=self.weights.address)
            self.trainer.send([trn_pb.TrainerCommand(weights=moved)])

    async def _follow_trainer(self, processes: list[Process]) -> list[did.Event]:
        found = directory.of_kind(processes, "trainer", self._job_id)
        fresh = found[0] if found else None
        if fresh is not None and self.trainer is not None and fresh.worker_id == self.trainer.worker_id:
            return []
        events: list[did.Event] = []
        if self.trainer is not None:
            events.append(did.TrainerLost(self.trainer.worker_id))
            await self.trainer.close()
            self.trainer = None
        if fresh is not None and self.weights is not None:
            self.trainer = TrainerLink(fresh.worker_id, fresh.address, self._listener, self._open_training)
            self.trainer.start(self._listener.failed)
        return events

    def _open_training(self) -> Iterable[trn_pb.TrainerCommand]:
        yield trn_pb.TrainerCommand(
            open=trn_pb.OpenTraining(
                job_id=self._job_id,
                job_epoch=self._epoch,
                spec_json=self._spec.canonical_json(),
                weights_address=self.weights.address if self.weights else "",
                restore_step=self._listener.restore_step(),
            )
        )

    async def _follow_proxy(self, processes: list[Process]) -> list[did.Event]:
        found = directory.of_kind(processes, "proxy", self._job_id)
        fresh = found[0] if found else None
        if fresh is not None and self.proxy is not None and fresh.worker_id == self.proxy.worker_id:
            return []
        if self.proxy is not None:
            await self.proxy.close()
            self.proxy = None
        if fresh is not None:
            self.proxy = ProxyLink(fresh.worker_id, fresh.address, self._listener, self._open_rollout)
            self.proxy.start(self._listener.failed)
            for env in self.envs.values():
                env.send([self._set_proxy()])
        return []

    def _open_rollout(self) -> Iterable[inf_pb.ManageCommand]:
        spec, policy = self._spec, self._spec.policy
        inference = spec.resources.inference
        fields = {
            "on_load": policy.on_load,
            "load_at": policy.load_at,
            "local_batch": policy.local_batch,
            "repack": policy.repack,
            "repack_every_s": spec.limits.repack_every_s,
            "affinity": spec.affinity.mode,
            "hw_mapping": {tag: list(pools) for tag, pools in spec.affinity.hw_mapping.items()},
            "task_tags": {task.name: task.affinity for task in spec.tasks if task.affinity},
            "engine": {
                "max_running": inference.max_running,
                "kv_tokens": inference.kv_tokens,
                "max_batch_tokens": inference.max_batch_tokens,
                "max_len": spec.model.max_len,
            },
            "prefetch_deadline_s": spec.weights.prefetch_deadline_s,
            "limits": {"version_wait_s": spec.limits.version_wait_s},
        }
        opened = inf_pb.OpenRollout(job_id=self._job_id, job_epoch=self._epoch, policy_json=policy_json(fields))
        yield inf_pb.ManageCommand(open=opened)
        yield self._set_workers()
        if self._listener.is_paused():
            yield inf_pb.ManageCommand(pause=inf_pb.PauseRollout())

    def _set_workers(self) -> inf_pb.ManageCommand:
        addresses = [
            inf_pb.WorkerAddress(worker_id=worker.worker_id, address=worker.address, pool=worker.pool)
            for worker in self.workers.values()
        ]
        return inf_pb.ManageCommand(workers=inf_pb.SetWorkers(workers=addresses))

    def _follow_workers(self, processes: list[Process]) -> list[did.Event]:
        fresh = {worker.worker_id: worker for worker in directory.of_kind(processes, "inference", self._job_id)}
        if fresh.keys() == self.workers.keys():
            return []
        self.workers = fresh
        if self.proxy is not None:
            self.proxy.send([self._set_workers()])
        return [did.WorkersChanged(frozenset(fresh))]

    async def _follow_envs(self, processes: list[Process]) -> list[did.Event]:
        fresh = {process.worker_id: process for process in directory.of_kind(processes, "env")}
        events: list[did.Event] = []
        for gone in self.envs.keys() - fresh.keys():
            await self.envs.pop(gone).close()
            events.append(did.EnvLost(gone))
        # Also those that went while no runner looked.
        events += [did.EnvLost(worker_id) for worker_id in sorted(self._listener.env_ids() - fresh.keys())]
        if not self.model_files:
            return events  # an environment process needs the tokenizer, which comes with the opened trainer
        for worker_id in fresh.keys() - self.envs.keys():
            link = EnvLink(worker_id, fresh[worker_id].address, self._listener, self._open_job)
            self.envs[worker_id] = link
            link.start(self._listener.failed)
        return events

    def _open_job(self) -> Iterable[env_pb.AssignmentCommand]:
        yield env_pb.AssignmentCommand(
            open=env_pb.OpenJob(
                job_id=self._job_id,
                job_epoch=self._epoch,
                spec_json=self._spec.canonical_json(),
                model_files=self.model_files,
            )
        )
        if self.proxy is not None:
            yield self._set_proxy()
        if self._listener.is_paused():
            yield env_pb.AssignmentCommand(pause=env_pb.PauseJob())

    def _set_proxy(self) -> env_pb.AssignmentCommand:
        assert self.proxy is not None
        return env_pb.AssignmentCommand(
            proxy=env_pb.SetProxy(address=self.proxy.address, worker_id=self.proxy.worker_id)
        )

    @property
    def links(self) -> list[Link]:
        single = [link for link in (self.proxy, self.trainer) if link is not None]
        return [*single, *self.envs.values()]

    async def close(self, *, is_over: bool) -> None:
        """`is_over`: the job has ended, so every peer is told to forget it."""
        if is_over:
            for env in self.envs.values():
                env.send([env_pb.AssignmentCommand(close=env_pb.CloseJob())])
            if self.proxy is not None:
                self.proxy.send([inf_pb.ManageCommand(close=inf_pb.CloseRollout())])
        for link in self.links:
            await link.close(linger_s=GOODBYE_S if is_over else 0.0)
