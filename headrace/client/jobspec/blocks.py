"""The blocks of a job spec but for its tasks. Keys, defaults, meanings; docs/job-spec.md is made of it."""

from typing import Annotated, Literal

from pydantic import Field

from headrace.client.jobspec.base import SAMPLER_PATTERN, Block, Count, Fraction, Ident, Name, Natural, Seconds
from headrace.core.async_policy import Interaction, LoadAt, OnLoad, OnStale, Overlap, RewardAt, TrainOn

PresetName = Literal["sync", "sync_plus", "one_off", "stream", "partial", "bounded", "independent"]


class ModelBlock(Block):
    """The model to train."""

    path: Annotated[str, Field(min_length=1, max_length=4096)] = Field(
        description="A Hugging Face causal-LM directory, as the trainer sees it."
    )
    dtype: Literal["float32", "bfloat16"] = Field(
        "float32",
        description="Type of the trainer's parameters and of published weights; the hf engine widens to float32.",
    )
    max_len: Annotated[int, Field(ge=2, le=1 << 20)] = Field(
        256, description="Context limit in tokens of a whole trajectory; longer ones end truncated (`context_length`)."
    )


class ClipBlock(Block):
    """Clip range of the policy ratio r: [1 - low, 1 + high]."""

    low: Fraction = Field(0.2, description="Lower clip distance.")
    high: Annotated[float, Field(ge=0, le=100)] = Field(0.28, description="Upper clip distance (clip-higher).")


class AdvantageBlock(Block):
    """Advantages inside a group."""

    normalize: Literal["std", "none"] = Field(
        "std", description="Divide by the group's sample standard deviation, n - 1 (GRPO), or not (Dr. GRPO)."
    )
    filter: Literal["none", "zero_variance"] = Field(
        "none",
        description="`zero_variance`: groups whose rewards are all equal leave as `filtered` instead of being trained "
        "with zero advantage.",
    )


class CorrectionBlock(Block):
    """Per-token weight rho = pi_old / pi_behaviour for tokens of older versions or other numerics."""

    type: Literal["tis", "none", "icepop"] = Field(
        "tis",
        description="`tis` truncates rho at `cap`; `icepop` zeroes tokens outside [1/cap, cap]; `none`: weight 1.",
    )
    cap: Annotated[float, Field(ge=1, le=1e6)] | None = Field(
        None, description="C. Filled with 2.0 unless `type` is `none`, where it must be left out."
    )


class SelectionBlock(Block):
    """Weight against what redundancy and staleness select: finished episodes are shorter than killed ones."""

    type: Literal["none", "ipw"] = Field(
        "none",
        description="`ipw`: each trajectory weighs the inverse of its completion probability, estimated by task and "
        "length stratum; `none`: all weigh 1.",
    )
    cap: Annotated[float, Field(ge=1, le=1e6)] | None = Field(
        None, description="Largest weight. Filled with 4.0 for `ipw`, must be left out for `none`."
    )


class KlBlock(Block):
    """Penalty against the initial model."""

    coef: Annotated[float, Field(ge=0, le=1e6)] = Field(0.0, description="Weight of the penalty; 0 switches it off.")
    estimator: Literal["k1", "k2", "k3"] | None = Field(
        None, description="Filled with k3 where `coef` is above 0; must be left out where it is 0."
    )


class AlgorithmBlock(Block):
    """The update rule."""

    type: Literal["grpo"] = Field("grpo", description="Group-relative policy optimisation.")
    clip: ClipBlock = Field(default_factory=ClipBlock, description="Clip range.")
    dual_clip: Annotated[float, Field(gt=1, le=1e6)] | None = Field(
        None, description="Lower bound factor for negative advantages (dual-clip PPO); null: off."
    )
    advantage: AdvantageBlock = Field(default_factory=AdvantageBlock, description="Advantages.")
    loss_reduction: Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"] = (
        Field(
            "token-mean",
            description="How token losses become one number, over all rows of an update, never group by group. "
            "`token-mean`: sum over all tokens divided by their number, so that long answers weigh more. "
            "`seq-mean-token-mean`: the mean of each trajectory, then their mean. "
            "`seq-mean-token-sum`: the sum of each trajectory, then their mean. "
            "`seq-mean-token-sum-norm`: the same divided by `model.max_len`, a constant (Dr. GRPO).",
        )
    )
    task_balance: Literal["none", "per_task"] = Field(
        "none", description="`per_task`: reduce each task on its own, then average the tasks."
    )
    correction: CorrectionBlock = Field(default_factory=CorrectionBlock, description="Off-policy correction.")
    selection: SelectionBlock = Field(default_factory=SelectionBlock, description="Selection bias.")
    updates_per_step: Annotated[int, Field(ge=1, le=1024)] = Field(
        1,
        description="Optimizer updates per step, each over an even share of the step's whole groups. With `async."
        "train_on: as_groups_complete` each share is trained as soon as its groups are ready.",
    )
    kl: KlBlock = Field(default_factory=KlBlock, description="KL penalty.")
    max_tokens_per_microbatch: Annotated[int, Field(ge=1, le=1 << 30)] = Field(
        8192, description="Token budget of one forward; the result does not depend on it."
    )
    mask_truncated: bool = Field(
        False, description="Remove truncated episodes from the loss; they still count in the baseline."
    )


class BatchBlock(Block):
    """What one training step takes."""

    groups: Annotated[int, Field(ge=1, le=1 << 20)] = Field(24, description="B: groups per step over all tasks.")
    group_size: Annotated[int, Field(ge=1, le=1 << 16)] = Field(
        8, description="Siblings of one prompt and environment seed; at least 2, since their mean is the baseline."
    )
    redundancy: Annotated[float, Field(ge=1, le=64)] = Field(
        1.0, description="k = ceil(group_size * redundancy) siblings are issued; the surplus leaves when enough are in."
    )
    on_short: Literal["drop", "shrink"] = Field(
        "drop", description="A group that stays short after refills is dropped, or trained with fewer siblings."
    )
    max_attempts: Annotated[int, Field(ge=1, le=1000)] = Field(
        3, description="Attempts per sibling: the first and its refills after failures."
    )


class BufferBlock(Block):
    """The experience buffer."""

    sampler: Annotated[str, Field(max_length=300, pattern=SAMPLER_PATTERN)] = Field(
        "fifo",
        description="Which ready groups are taken first: `fifo` (earliest v0, then arrival), `freshest`, `priority` "
        "(largest spread of rewards), or `package.module:Class` from a module that the operator allows.",
    )
    capacity: Count | None = Field(
        None,
        description="Trajectories that may wait or run, an open group counting with all its siblings; null: no bound.",
    )
    capacity_mb: Annotated[float, Field(gt=0, le=1e9)] | None = Field(
        None, description="The same in MiB of tokens; null: no bound."
    )


class AsyncBlock(Block):
    """How asynchronous the job may be. A preset fills every field that is not given."""

    preset: PresetName = Field("bounded", description="Row of the table below.")
    interaction: Interaction | None = Field(None, description="Episodes step on their own, or a cohort in lockstep.")
    reward: RewardAt | None = Field(None, description="When episodes are scored.")
    load_at: LoadAt | None = Field(None, description="When workers swap weights.")
    on_load: OnLoad | None = Field(None, description="What becomes of running requests at a swap.")
    overlap: Overlap | None = Field(None, description="How far generation runs beside training.")
    train_on: TrainOn | None = Field(None, description="Take whole batches, or groups as they complete.")
    alpha: Natural | None = Field(None, description="Largest lag at which a group is trained; null: the bound is off.")
    on_stale: OnStale | None = Field(None, description="Evict stale groups, or hold the take for those about to be.")
    repack: bool | None = Field(None, description="Merge the long tail of one version onto fewer workers.")
    local_batch: Count | None = Field(None, description="Trajectories a worker starts per version; null: no limit.")
    overcommit: Annotated[float, Field(ge=1, le=1e6)] | None = Field(
        None, description="Factor on the admission bound; with alpha null that is two batches."
    )
    max_inflight: Count | None = Field(
        None,
        description="Most training attempts in the making, until their group is ready; null: as many as slots allow.",
    )


class AffinityBlock(Block):
    """Which pools serve which tasks."""

    mode: Literal["static", "learned"] = Field(
        "static",
        description="Pools by `hw_mapping`, or by what each pool has cost the task so far (seconds per token), which "
        "is always measured; `learned` still tries every pool now and then.",
    )
    hw_mapping: dict[Ident, Annotated[tuple[Ident, ...], Field(min_length=1)]] = Field(
        default_factory=dict, description="Task tag -> pools, in order of preference."
    )


class InferenceBlock(Block):
    """Engine workers."""

    min: Annotated[int, Field(ge=1, le=1 << 16)] = Field(1, description="The job waits in `queued` for this many.")
    max: Annotated[int, Field(ge=1, le=1 << 16)] = Field(2, description="It never takes more.")
    engine: Literal["hf", "scripted"] = Field("hf", description="`scripted` stands in for models in tests.")
    max_running: Annotated[int, Field(ge=1, le=4096)] = Field(32, description="Running requests per worker.")
    kv_tokens: Annotated[int, Field(ge=16, le=1 << 31)] = Field(16384, description="KV cache per worker, in tokens.")
    max_batch_tokens: Annotated[int, Field(ge=16, le=1 << 20)] = Field(512, description="Tokens of one engine step.")


class TrainerBlock(Block):
    """Trainer processes."""

    min: Literal[1] = Field(1, description="Trainers the job waits for.")


class ResourcesBlock(Block):
    """What the job may use."""

    inference: InferenceBlock = Field(default_factory=InferenceBlock, description="Engine workers.")
    trainer: TrainerBlock = Field(default_factory=TrainerBlock, description="Trainer.")
    env_slots: Annotated[int, Field(ge=1, le=1 << 20)] = Field(256, description="Live environments at once.")


class WeightsBlock(Block):
    """Publication of weights."""

    bucket_mb: Annotated[float, Field(gt=0, le=4096)] = Field(16.0, description="Bucket size in MiB.")
    keep: Annotated[int, Field(ge=1, le=1000)] = Field(3, description="Newest versions kept beside pinned ones.")
    prefetch_deadline_s: Seconds = Field(
        60.0, description="A worker that has not got a version by then leaves routing until it has."
    )


class OptimizerBlock(Block):
    """The optimizer."""

    type: Literal["adamw"] = Field("adamw", description="AdamW.")
    lr: Annotated[float, Field(ge=0, le=1e3)] = Field(1e-6, description="Learning rate; 0 trains nothing, on purpose.")
    betas: tuple[Fraction, Fraction] = Field((0.9, 0.95), description="Decay of the two moments.")
    eps: Annotated[float, Field(gt=0, le=1)] = Field(1e-8, description="Denominator guard.")
    weight_decay: Annotated[float, Field(ge=0, le=1e3)] = Field(0.0, description="Decoupled weight decay.")
    grad_clip: Annotated[float, Field(gt=0, le=1e9)] | None = Field(
        1.0, description="Gradient norm; null: no clipping."
    )
    warmup_steps: Natural = Field(0, description="Optimizer updates of linear warm-up.")


class CheckpointBlock(Block):
    """Trainer state on disk."""

    every: Natural = Field(10, description="Steps between checkpoints; 0: none until the end.")
    path: Annotated[str, Field(min_length=1, max_length=4096)] | None = Field(
        None, description="Directory; null: under the trainer's data directory."
    )
    keep_last: Annotated[int, Field(ge=1, le=1000)] = Field(2, description="Complete checkpoints kept.")
    export: Annotated[str, Field(min_length=1, max_length=4096)] | None = Field(
        None,
        description="Where the trained model is written as a Hugging Face directory; null: beside the checkpoints.",
    )


class EvalBlock(Block):
    """Held-out evaluation, at one version and with fixed seeds."""

    episodes: Annotated[int, Field(ge=1, le=1 << 20)] = Field(128, description="Episodes per task and mode.")
    at_start: bool = Field(True, description="Evaluate version 0.")
    at_end: bool = Field(True, description="Evaluate the last version.")
    every: Natural = Field(0, description="Steps between evaluations; 0: none in between.")
    sampled: bool = Field(True, description="With the task's own sampling.")
    greedy: bool = Field(True, description="With temperature 0.")
    workers: Annotated[int, Field(ge=1, le=1 << 16)] = Field(1, description="Workers held at the evaluated version.")
    deadline_s: Seconds = Field(300.0, description="An evaluation ends here with the episodes it has.")


class LimitsBlock(Block):
    """Deadlines and budgets."""

    step_s: Seconds = Field(600.0, description="A step past this fails the job with the counts of why groups left.")
    job_s: Seconds = Field(86400.0, description="A job past this fails.")
    quota_patience_s: Seconds = Field(60.0, description="A task that cannot fill its share this long lends it.")
    max_requeues: Natural = Field(2, description="Times a stale group's prompt is issued again.")
    max_filtered: Annotated[float, Field(ge=1, le=1e6)] = Field(
        4.0, description="After this many times B filtered groups a step is filled with such groups, counted."
    )
    stale_deadline_s: Seconds = Field(60.0, description="How long `on_stale: wait` holds a take.")
    reward_tries: Annotated[int, Field(ge=1, le=100)] = Field(3, description="Sends of one reward before `unscorable`.")
    version_wait_s: Seconds = Field(30.0, description="Wait for a worker serving a pinned version.")
    repack_every_s: Seconds = Field(
        5.0,
        description="With `repack`, tails are looked for so often, and after each step: a fraction of a trajectory.",
    )
    pause_ttl_s: Seconds = Field(3600.0, description="A paused job keeps its environments this long.")


Labels = dict[Ident, Annotated[str, Field(max_length=200)]]

__all__ = [
    "AffinityBlock",
    "AlgorithmBlock",
    "AsyncBlock",
    "BatchBlock",
    "BufferBlock",
    "CheckpointBlock",
    "EvalBlock",
    "Labels",
    "LimitsBlock",
    "ModelBlock",
    "Name",
    "OptimizerBlock",
    "ResourcesBlock",
    "WeightsBlock",
]
