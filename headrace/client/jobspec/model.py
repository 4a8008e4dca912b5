"""The job spec as one frozen value. `resolve()` fills what is left open; services read the result."""

import json
from hashlib import sha256
from typing import Annotated, Literal

from pydantic import Field

from headrace.client.jobspec.base import MAX_INT, Block, Name
from headrace.client.jobspec.blocks import (
    AffinityBlock,
    AlgorithmBlock,
    AsyncBlock,
    BatchBlock,
    BufferBlock,
    CheckpointBlock,
    EvalBlock,
    Labels,
    LimitsBlock,
    ModelBlock,
    OptimizerBlock,
    ResourcesBlock,
    WeightsBlock,
)
from headrace.client.jobspec.tasks import RewardBlock, TaskBlock
from headrace.core.async_policy import POLICY_FIELDS, PRESETS, AsyncPolicy
from headrace.core.staleness import issued_per_group

UNBOUNDED_BY_NULL = frozenset({"alpha", "local_batch", "max_inflight"})
"""Fields of `async` where null means no bound; anywhere else it means what the preset says."""

DEFAULT_GRADER_TIMEOUT_S = 10.0
DEFAULT_GRADER_RETRIES = 1
DEFAULT_CORRECTION_CAP = 2.0
DEFAULT_SELECTION_CAP = 4.0


class JobSpec(Block):
    """A job.

    Python names differ from keys twice: `schema_` is `schema`, `async_` is `async`.
    """

    schema_: Literal["headrace/v1"] = Field(alias="schema", description="Version of this format.")
    name: Name = Field(description="Shown to people; need not be unique.")
    labels: Labels = Field(default_factory=dict, description="For filters.")
    seed: Annotated[int, Field(ge=0, le=MAX_INT)] = Field(
        0,
        description="Every seed of the job derives from it. Two jobs that do not give one have the same, 0, and play "
        "the same prompts; give another for other draws.",
    )
    max_steps: Annotated[int, Field(ge=1, le=10**9)] = Field(description="Training steps.")
    priority: Annotated[int, Field(ge=-1000, le=1000)] = Field(0, description="Higher is assigned first.")
    model: ModelBlock = Field(description="Model.")
    algorithm: AlgorithmBlock = Field(default_factory=AlgorithmBlock, description="Update rule.")
    batch: BatchBlock = Field(default_factory=BatchBlock, description="Batch.")
    async_: AsyncBlock = Field(default_factory=AsyncBlock, alias="async", description="Asynchrony.")
    buffer: BufferBlock = Field(default_factory=BufferBlock, description="Experience buffer.")
    tasks: Annotated[tuple[TaskBlock, ...], Field(min_length=1, max_length=256)] = Field(description="The mixture.")
    affinity: AffinityBlock = Field(default_factory=AffinityBlock, description="Pools by tag.")
    resources: ResourcesBlock = Field(default_factory=ResourcesBlock, description="Resources.")
    weights: WeightsBlock = Field(default_factory=WeightsBlock, description="Weight publication.")
    optimizer: OptimizerBlock = Field(default_factory=OptimizerBlock, description="Optimizer.")
    checkpoint: CheckpointBlock = Field(default_factory=CheckpointBlock, description="Checkpoints.")
    eval: EvalBlock = Field(default_factory=EvalBlock, description="Evaluation.")
    limits: LimitsBlock = Field(default_factory=LimitsBlock, description="Limits.")

    @property
    def policy(self) -> AsyncPolicy:
        """The asynchrony of the job: the preset's row with the fields that were given."""
        preset = PRESETS[self.async_.preset]
        given = {
            name
            for name in self.async_.model_fields_set
            if name in UNBOUNDED_BY_NULL or getattr(self.async_, name) is not None
        }
        values = {name: getattr(self.async_ if name in given else preset, name) for name in POLICY_FIELDS}
        return AsyncPolicy(**values)

    @property
    def siblings_per_group(self) -> int:
        """k: attempts issued for a group at its admission."""
        return issued_per_group(self.batch.group_size, self.batch.redundancy)

    def task(self, name: str) -> TaskBlock:
        """The task called `name`. Raises KeyError."""
        for task in self.tasks:
            if task.name == name:
                return task
        raise KeyError(f"no task {name!r} in job {self.name!r}; it has {', '.join(task.name for task in self.tasks)}")

    def resolve(self) -> "JobSpec":
        """Fill the preset's fields and every dependent default. Resolving twice changes nothing."""
        policy = self.policy
        filled = {name: getattr(policy, name) for name in POLICY_FIELDS}
        tasks = tuple(
            task.model_copy(update={"rewards": tuple(map(_resolve_reward, task.rewards))}) for task in self.tasks
        )
        return self.model_copy(
            update={
                "async_": self.async_.model_copy(update=filled),
                "tasks": tasks,
                "algorithm": _resolve_algorithm(self.algorithm),
            }
        )

    def canonical_json(self) -> str:
        """One text for one meaning: keys sorted, no spaces, every default written out."""
        data = self.model_dump(mode="json", by_alias=True)
        return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)

    def digest(self) -> str:
        """sha256 of the resolved spec's canonical JSON, hex: equal for specs that mean the same job."""
        return sha256(self.resolve().canonical_json().encode()).hexdigest()


def _resolve_reward(reward: RewardBlock) -> RewardBlock:
    if reward.fn is None:
        return reward.model_copy(update={"name": reward.name or "env"})
    return reward.model_copy(
        update={
            "name": reward.name or reward.fn.rpartition(":")[2],
            "timeout_s": DEFAULT_GRADER_TIMEOUT_S if reward.timeout_s is None else reward.timeout_s,
            "retries": DEFAULT_GRADER_RETRIES if reward.retries is None else reward.retries,
        }
    )


def _resolve_algorithm(algorithm: AlgorithmBlock) -> AlgorithmBlock:
    correction, kl, selection = algorithm.correction, algorithm.kl, algorithm.selection
    if correction.type != "none" and correction.cap is None:
        correction = correction.model_copy(update={"cap": DEFAULT_CORRECTION_CAP})
    if kl.coef > 0 and kl.estimator is None:
        kl = kl.model_copy(update={"estimator": "k3"})
    if selection.type == "ipw" and selection.cap is None:
        selection = selection.model_copy(update={"cap": DEFAULT_SELECTION_CAP})
    return algorithm.model_copy(update={"correction": correction, "kl": kl, "selection": selection})
