"""One random schedule: a job, its policy and everything that will go wrong, all of it derived from one number."""

import random
from dataclasses import asdict, dataclass, fields, replace
from functools import cache

from headrace.client.jobspec import JobSpec, parse
from headrace.core.async_policy import PRESETS, AsyncPolicy
from headrace.core.buffer import SAMPLERS, Room
from headrace.core.job.plan import EvalPlan, JobPlan, Limits, TaskPlan

FAULTS_UNTIL_S = 60.0
"""Virtual seconds after which nothing fails any more."""
ENDS_WITHIN_S = 2_000.0
"""From then on every job has to end within this, pauses over and timers fair."""

_SIZES = (1, 2, 3, 4)
_TASKS = (
    TaskPlan("lake", reward_timeout_s=5.0, episode_s=20.0),
    TaskPlan("tools", 1.0, ("grade",), (2.0,), 1.0, False, reward_timeout_s=5.0, episode_s=20.0),
    TaskPlan("both", 1.0, ("form", "grade"), (0.5, 1.0), 1.0, True, reward_timeout_s=5.0, episode_s=20.0),
)


@dataclass(frozen=True)
class Chances:
    """Probabilities of each opportunity, and how many faults strike at random moments."""

    env_failure: float = 0.0
    infra_failure: float = 0.0
    abstained: float = 0.0
    retryable: float = 0.0
    empty: float = 0.0  # an episode without a generated token
    reward_lost: float = 0.0
    broker_down: float = 0.0
    duplicate: float = 0.0
    slow_prefetch: float = 0.0
    load_fault: float = 0.0
    tail: float = 0.0  # an episode ten times as long
    crash: float = 0.0  # of each turn of the runner, at one of its points
    faults: int = 0


_CALM = Chances(tail=0.05)
_ROUGH = Chances(
    env_failure=0.05,
    infra_failure=0.05,
    abstained=0.03,
    retryable=0.05,
    empty=0.02,
    reward_lost=0.05,
    broker_down=0.05,
    duplicate=0.05,
    slow_prefetch=0.1,
    load_fault=0.05,
    tail=0.1,
    crash=0.01,
    faults=2,
)
_STORMY = replace(_ROUGH, env_failure=0.1, infra_failure=0.1, reward_lost=0.1, duplicate=0.2, crash=0.04, faults=6)


@dataclass(frozen=True)
class Fault:
    at_s: float
    kind: str


@dataclass(frozen=True)
class Schedule:
    """Everything that tells one run from another. `pace` scales latencies, `linger_s` how long events gather."""

    number: int
    preset: str
    plan: JobPlan
    chances: Chances
    faults: tuple[Fault, ...]
    n_workers: int
    n_envs: int
    slots: int
    n_turns: int
    pace: float
    linger_s: float
    tick_s: float

    def describe(self) -> str:
        """One fact a line, for whoever looks at a failure."""
        plan = {
            f.name: getattr(self.plan, f.name)
            for f in fields(self.plan)
            if f.init and f.name not in ("policy", "tasks")
        }
        plan["sampler"] = type(self.plan.sampler).__name__
        plan["tasks"] = [(task.name, task.weight, task.n_prompts) for task in self.plan.tasks]
        lines = [f"schedule {self.number}: {self.preset}", f"  policy {asdict(self.plan.policy)}"]
        lines += [f"  {name} {value}" for name, value in plan.items()]
        rest = ("chances", "n_workers", "n_envs", "slots", "n_turns", "pace", "linger_s", "tick_s")
        lines += [f"  {name} {getattr(self, name)}" for name in rest]
        return "\n".join([*lines, f"  faults {[(round(f.at_s, 2), f.kind) for f in self.faults]}"])


FAULT_KINDS = (
    *("env", "worker", "trainer", "proxy", "runner", "stall") * 3,
    *("env_link", "proxy_link", "trainer_link") * 2,
    *("pause", "pause", "long_pause", "node", "node"),
)


def schedule(number: int) -> Schedule:
    """The schedule of this number, the same one everywhere."""
    rng = random.Random(f"schedule/{number}")
    preset = rng.choice(list(PRESETS))
    chances = rng.choices([_CALM, _ROUGH, _STORMY], [3, 5, 2])[0]
    plan = _plan(rng, f"job_{number}", _policy(rng, PRESETS[preset]))
    faults = [Fault(rng.uniform(0.0, 30.0), rng.choice(FAULT_KINDS)) for _ in range(rng.randint(0, chances.faults))]
    if chances.faults and rng.random() < 0.04:
        faults.append(Fault(rng.uniform(0.0, 30.0), rng.choice(["cancel", "trainer_fault"])))
    return Schedule(
        number,
        preset,
        plan,
        chances,
        tuple(sorted(faults, key=lambda fault: fault.at_s)),
        n_workers=rng.randint(1, 3) + plan.policy.repack,  # tails are merged where there are two
        n_envs=rng.randint(1, 2),
        slots=rng.choice([2, 8, 64]),
        n_turns=rng.choice([1, 1, 2, 3]),
        pace=rng.choice([0.3, 1.0, 1.0, 3.0]),
        linger_s=rng.choice([0.0, 0.05, 0.05, 0.4]),
        tick_s=rng.choice([0.5, 1.0, 2.0]),
    )


def _policy(rng: random.Random, base: AsyncPolicy) -> AsyncPolicy:
    """The preset with some of its fields replaced, as far as the policy can stand."""
    while True:
        policy = replace(
            base,
            alpha=rng.choice([base.alpha, base.alpha, 0, 1, 2, 3, None]),
            on_stale=rng.choice(["evict", "evict", "wait"]),
            overcommit=rng.choice([1.0, 1.0, 1.5, 2.0]),
            local_batch=rng.choice([None, 2, 6]) if base.load_at == "drain" else None,
            repack=base.load_at == "drain" and rng.random() < 0.5,
        )
        if base.load_at == "publish" and rng.random() < 0.3:
            policy = replace(policy, load_at="get_batch")
        if base.load_at != "drain" and rng.random() < 0.25:
            policy = replace(policy, on_load=rng.choice(["finish_first", "continue", "discard"]))
        if not policy.validate():
            return policy


def _plan(rng: random.Random, job_id: str, policy: AsyncPolicy) -> JobPlan:
    tasks = tuple(
        replace(task, weight=rng.choice([1.0, 1.0, 2.0, 5.0]), n_prompts=rng.choice([None] * 6 + [3, 7]))
        for task in rng.sample(_TASKS, rng.choices([1, 2, 3], [3, 5, 2])[0])
    )
    plan = JobPlan(
        job_id=job_id,
        seed=rng.randrange(1 << 30),
        max_steps=rng.choices(_SIZES, [3, 4, 2, 1])[0],
        groups=rng.choices(_SIZES, [3, 4, 2, 2])[0],
        group_size=rng.choices(_SIZES, [2, 4, 2, 1])[0],
        tasks=tasks,
        policy=policy,
        redundancy=rng.choice(["1", "1", "1.25", "1.5"]),
        on_short=rng.choice(["drop", "drop", "shrink"]),
        filter=rng.choice(["none", "none", "zero_variance"]),
        sampler=SAMPLERS[rng.choice(["fifo", "fifo", "freshest", "priority"])],
        selection_cap=rng.choice([None, None, 2.0]),
        updates_per_step=rng.choice([1, 2, 3]),
        checkpoint_every=rng.choice([0, 1, 2]),
        evaluation=_evaluation(rng),
        limits=Limits(
            step_s=1e9,
            job_s=1e9,
            start_s=1e9,
            pause_ttl_s=20.0,
            quota_patience_s=rng.choice([2.0, 10.0]),
            stale_deadline_s=8.0,
            prefetch_s=6.0,
            update_s=6.0,
            max_requeues=rng.choice([0, 2]),
            max_attempts=rng.choice([1, 3]),
            max_filtered=rng.choice([1, 4]),
        ),
    )
    return _bounded(rng, plan)


def _evaluation(rng: random.Random) -> EvalPlan:
    return EvalPlan(
        episodes=rng.choice([0, 0, 1, 2]),
        modes=rng.choice([("sampled", "greedy"), ("greedy",)]),
        at_start=rng.random() < 0.5,
        at_end=rng.random() < 0.5,
        every=rng.choice([0, 1, 2]),
        deadline_s=rng.choice([4.0, 30.0]),
    )


def _bounded(rng: random.Random, plan: JobPlan) -> JobPlan:
    """Room and max_inflight, from the least that a job is accepted with."""
    least = plan.groups * plan.issued
    room = Room(
        trajectories=rng.choice([None, None, least, least + plan.issued]),
        n_bytes=rng.choice([None, None, None, 40 * 12 * least]),
    )
    max_inflight = rng.choice([None, None, plan.issued, least])
    return replace(plan, room=room, policy=replace(plan.policy, max_inflight=max_inflight))


@cache
def spec() -> JobSpec:
    """The document that rewards are sent by; the machine's own plan is the schedule's."""
    env = {"entry_point": "testkit.job_environments:Nothing"}
    grade = {"name": "grade", "fn": "testkit.graders:score"}
    document = {
        "schema": "headrace/v1",
        "name": "simulated",
        "model": {"path": "/none"},
        "max_steps": 1,
        "tasks": [
            {"name": "lake", "env": env, "rewards": [{"env": True}]},
            {"name": "tools", "env": env, "rewards": [grade]},
            {
                "name": "both",
                "env": env,
                "rewards": [{"env": True}, {"name": "form", "fn": "testkit.graders:score"}, grade],
            },
        ],
    }
    return parse(document).resolve()
