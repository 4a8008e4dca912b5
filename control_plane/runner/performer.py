"""Actions of the job machine onto streams and stores. It decides nothing: one branch per action."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence

from control_plane.runner.fleet import Fleet
from control_plane.runner.probe import Prober
from control_plane.runner.turn import StoredManifest
from headrace.client import assignments, training
from headrace.client.weights import WeightsClient, manifest_from_wire
from headrace.core.job import actions as do
from headrace.core.job.rows import Key
from headrace.core.weights.errors import NotResident, WeightsError
from headrace.service.logging import get_logger
from headrace.wire.environments.v1 import environments_pb2 as env_pb
from headrace.wire.inference.v1 import inference_pb2 as inf_pb
from headrace.wire.trainer.v1 import trainer_pb2 as trn_pb

log = get_logger(__name__)


class Performer:
    """Holds the links through the fleet. `manifest_of` gives a version's manifest as it travels."""

    def __init__(
        self,
        fleet: Fleet,
        prober: Prober,
        *,
        job_id: str,
        epoch: int,
        keep_versions: int,
        manifest_of: Callable[[int], StoredManifest],
    ) -> None:
        self._fleet = fleet
        self._prober = prober
        self._job_id = job_id
        self._epoch = epoch
        self._keep = keep_versions
        self._manifest_of = manifest_of
        self._weights: tuple[str, WeightsClient] | None = None
        self._background: set[asyncio.Task[None]] = set()

    async def perform(self, actions: Sequence[do.Action]) -> None:
        to_envs: defaultdict[str, list[env_pb.AssignmentCommand]] = defaultdict(list)
        acknowledged: defaultdict[str, list[Key]] = defaultdict(list)
        for action in actions:
            match action:
                case do.AssignAttempt():
                    to_envs[action.env_worker_id].append(assignments.assign_to_wire(action))
                case do.AbortAttempt():
                    to_envs[action.env_worker_id].append(assignments.abort_to_wire(action))
                case do.AcknowledgeAttempt(key, env_worker_id):
                    acknowledged[env_worker_id].append(key)
                case do.PauseRollout():
                    self._to_all_envs(env_pb.AssignmentCommand(pause=env_pb.PauseJob()))
                    self._to_proxy(inf_pb.ManageCommand(pause=inf_pb.PauseRollout()))
                case do.ResumeRollout():
                    self._to_proxy(inf_pb.ManageCommand(resume=inf_pb.ResumeRollout()))
                    self._to_all_envs(env_pb.AssignmentCommand(resume=env_pb.ResumeJob()))
                case _:
                    await self._perform_training(action)
        for env_worker_id, keys in acknowledged.items():
            to_envs[env_worker_id].append(assignments.acknowledge_to_wire(keys))
        for env_worker_id, commands in to_envs.items():
            if (env := self._fleet.envs.get(env_worker_id)) is not None:
                env.send(commands)

    async def _perform_training(self, action: do.Action) -> None:
        match action:
            case do.PrefetchWeights(version):
                self._spawn(self._prefetch(version))
            case do.UpdateWeights(version, mode, worker_ids):
                update = inf_pb.UpdateWeights(policy_version=version, mode=mode, worker_ids=worker_ids)
                self._to_proxy(inf_pb.ManageCommand(update=update))
            case do.PinVersion(version, n_workers):
                self._to_proxy(inf_pb.ManageCommand(pin=inf_pb.PinVersion(policy_version=version, n_workers=n_workers)))
            case do.RetainVersions(version, pinned):
                self._spawn(self._retain(version, pinned))
            case do.TrainStep():
                self._spawn(self._train(action))
            case do.PublishState():
                self._to_trainer(training.publish_to_wire(action))
            case do.CloseTraining(export_path):
                self._to_trainer(trn_pb.TrainerCommand(close=trn_pb.CloseTraining(export_path=export_path)))

    @property
    def _weights_address(self) -> str:
        return self._fleet.weights.address if self._fleet.weights else ""

    def _to_all_envs(self, command: env_pb.AssignmentCommand) -> None:
        for env in self._fleet.envs.values():
            env.send([command])

    def _to_proxy(self, command: inf_pb.ManageCommand) -> None:
        if self._fleet.proxy is not None:
            self._fleet.proxy.send([command])

    def _to_trainer(self, command: trn_pb.TrainerCommand) -> None:
        if self._fleet.trainer is not None:
            self._fleet.trainer.send([command])

    def _spawn(self, work: "asyncio._CoroutineLike[None]") -> None:
        """Work that waits for a store or a probe must not hold up the turn; what fails is asked for again."""
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    # -- weights -----------------------------------------------------------------------------------------------------

    async def _client(self) -> WeightsClient:
        address = self._weights_address
        if self._weights is None or self._weights[0] != address:
            if self._weights is not None:
                await self._weights[1].close()
            self._weights = (address, WeightsClient.at(address))
        return self._weights[1]

    async def _prefetch(self, version: int) -> None:
        """Committed on the node first: nobody can pull a version before."""
        manifest = self._manifest_of(version)
        try:
            client = await self._client()
            await client.commit(self._job_id, version, manifest.digest, epoch=self._epoch)
        except NotResident:
            # The node lost its bytes; the trainer still has them and publishes the same number again.
            lost = manifest_from_wire(manifest.data).version
            again = do.PublishState(lost.policy_version, lost.parent, lost.step)
            self._to_trainer(training.publish_to_wire(again, lost_epoch=lost.epoch))
            return
        except WeightsError as error:
            log.warning("commit_on_node_failed", policy_version=version, reason=str(error))
            return
        self._send_prefetch(version, manifest)

    def fetch_again(self, version: int, manifest_of: Callable[[int], Awaitable[StoredManifest | None]]) -> None:
        """Have workers prefetch an older version that the node retains."""
        self._spawn(self._fetch_again(version, manifest_of))

    async def _fetch_again(self, version: int, manifest_of: Callable[[int], Awaitable[StoredManifest | None]]) -> None:
        manifest = await manifest_of(version)
        if manifest is None:
            log.warning("version_unknown", policy_version=version)
            return
        self._send_prefetch(version, manifest)

    def _send_prefetch(self, version: int, manifest: StoredManifest) -> None:
        fetch = inf_pb.PrefetchWeights(
            policy_version=version, node_address=self._weights_address, manifest=manifest.data
        )
        self._to_proxy(inf_pb.ManageCommand(prefetch=fetch))

    async def _retain(self, version: int, pinned: frozenset[int]) -> None:
        newest = {kept for kept in range(version - self._keep + 1, version + 1) if kept >= 0}
        try:
            client = await self._client()
            await client.set_retention(self._job_id, newest | pinned, epoch=self._epoch)
        except WeightsError as error:
            log.warning("retention_failed", policy_version=version, reason=str(error))

    async def _train(self, action: do.TrainStep) -> None:
        probe = await self._prober.samples(action.policy_version)
        self._to_trainer(training.step_to_wire(action, probe=probe))

    async def close(self, *, is_over: bool) -> None:
        for task in list(self._background):
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        if is_over and self._fleet.weights is not None:
            try:
                await (await self._client()).release_job(self._job_id, epoch=self._epoch)
            except WeightsError as error:
                log.warning("release_failed", reason=str(error))
        if self._weights is not None:
            await self._weights[1].close()
