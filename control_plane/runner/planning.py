"""The job spec as the machine's plan."""

from headrace.client.jobspec import JobSpec, TaskBlock
from headrace.core.buffer import SAMPLERS, Room, Sampler
from headrace.core.job.plan import EvalPlan, JobPlan, Limits, TaskPlan

QUEUE_ALLOWANCE_S = 20.0
"""What a reward may wait for a worker (one may have to start from zero) before it is sent again."""


def plan_of(job_id: str, spec: JobSpec, *, export_path: str, sampler: Sampler | None = None) -> JobPlan:
    """`spec` must be resolved. `sampler` None: the built-in one that the spec names."""
    capacity_mb = spec.buffer.capacity_mb
    return JobPlan(
        job_id=job_id,
        seed=spec.seed,
        max_steps=spec.max_steps,
        groups=spec.batch.groups,
        group_size=spec.batch.group_size,
        tasks=tuple(_task(task) for task in spec.tasks),
        policy=spec.policy,
        redundancy=str(spec.batch.redundancy),
        on_short=spec.batch.on_short,
        filter=spec.algorithm.advantage.filter,
        sampler=sampler or SAMPLERS[spec.buffer.sampler],
        room=Room(spec.buffer.capacity, None if capacity_mb is None else int(capacity_mb * 2**20)),
        env_slots=spec.resources.env_slots,
        selection_cap=spec.algorithm.selection.cap,
        updates_per_step=spec.algorithm.updates_per_step,
        checkpoint_every=spec.checkpoint.every,
        export_path=export_path,
        evaluation=_evaluation(spec),
        limits=Limits(
            step_s=spec.limits.step_s,
            job_s=spec.limits.job_s,
            pause_ttl_s=spec.limits.pause_ttl_s,
            quota_patience_s=spec.limits.quota_patience_s,
            stale_deadline_s=spec.limits.stale_deadline_s,
            prefetch_s=spec.weights.prefetch_deadline_s,
            max_requeues=spec.limits.max_requeues,
            max_attempts=spec.batch.max_attempts,
            max_filtered=int(spec.limits.max_filtered),
            reward_tries=spec.limits.reward_tries,
        ),
    )


def _task(task: TaskBlock) -> TaskPlan:
    graded = [reward for reward in task.rewards if reward.fn is not None]
    own = [reward.weight for reward in task.rewards if reward.env]
    longest = max(((reward.timeout_s or 0.0) * (1 + (reward.retries or 0)) for reward in graded), default=0.0)
    return TaskPlan(
        name=task.name,
        weight=task.weight,
        reward_names=tuple(reward.name or "" for reward in graded),
        reward_weights=tuple(reward.weight for reward in graded),
        env_reward_weight=sum(own),
        has_env_reward=bool(own),
        reward_timeout_s=longest + QUEUE_ALLOWANCE_S,
        episode_s=task.env.timeouts.episode_s,
        n_prompts=task.prompts,
    )


def _evaluation(spec: JobSpec) -> EvalPlan:
    modes = tuple(mode for mode in ("sampled", "greedy") if getattr(spec.eval, mode))
    is_wanted = modes and (spec.eval.at_start or spec.eval.at_end or spec.eval.every)
    return EvalPlan(
        episodes=spec.eval.episodes if is_wanted else 0,
        modes=modes,
        at_start=spec.eval.at_start,
        at_end=spec.eval.at_end,
        every=spec.eval.every,
        workers=spec.eval.workers,
        deadline_s=spec.eval.deadline_s,
    )
