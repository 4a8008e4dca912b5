"""Rewards of a job as the API shows them."""

from pydantic import BaseModel


class Seconds(BaseModel):
    """Quantiles of a time in seconds."""

    p50: float
    p90: float
    p99: float
    max: float


class RewardOutcomes(BaseModel):
    """What came of one reward of the job. `queue`: from its sending until a worker began; `grader`: in the function;
    both over the newest 10,000 outcomes of the job, null where none of them is of this reward.

    `busy_s` sums the graders' seconds over the outcomes that were stored; `duplicates` counts reports that came later.
    """

    name: str
    scored: int
    abstained: int
    unscorable: int
    retried: int
    duplicates: int
    busy_s: float
    queue: Seconds | None
    grader: Seconds | None


class RewardWorkers(BaseModel):
    """Reward workers while the job ran. They serve all jobs, so busy time is told for this one and for all.

    `slots`: rewards that the workers live now grade at once. `slot_s`: seconds in which they, and those that have gone,
    were there, by slot. `utilisation` = `busy_all_s` / `slot_s`; `used_by_job` = `busy_s` / `slot_s`; null without any.
    """

    slots: int
    slot_s: float
    busy_s: float
    busy_all_s: float
    utilisation: float | None
    used_by_job: float | None


class RewardsView(BaseModel):
    """`scoring` counts attempts whose rewards are not all known yet."""

    job_id: str
    scoring: int
    rewards: list[RewardOutcomes]
    workers: RewardWorkers
