"""What an environment process counts for Prometheus."""

from prometheus_client import Counter, Histogram

from headrace.wire.environments.v1 import environments_pb2

ATTEMPTS = Counter(
    "headrace_env_attempts_total",
    "Attempts by task and how they ended: a finish reason or a fault's code",
    ["task", "end"],
)
TURNS = Counter("headrace_env_turns_total", "Turns of finished attempts", ["task"])
INVALID_ACTIONS = Counter("headrace_env_invalid_actions_total", "Turns that the environment called invalid", ["task"])
OBSERVATIONS_CUT = Counter("headrace_env_observations_cut_total", "Observations cut to the limit", ["task"])
PHASE_SECONDS = Histogram(
    "headrace_env_phase_seconds",
    "Seconds of an attempt in each phase",
    ["task", "phase"],
    buckets=(0.001, 0.01, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000),
)

PHASES = ("queue_s", "reset_s", "generate_s", "step_s", "lockstep_wait_s", "total_s")


def count(task: str, outcome: environments_pb2.Outcome) -> None:
    """Count one final outcome of an attempt."""
    if outcome.HasField("finished"):
        done = outcome.finished
        ATTEMPTS.labels(task, done.finish_reason).inc()
        TURNS.labels(task).inc(done.n_turns)
        INVALID_ACTIONS.labels(task).inc(done.invalid_actions)
        OBSERVATIONS_CUT.labels(task).inc(done.observations_cut)
    else:
        ATTEMPTS.labels(task, outcome.failed.fault.code).inc()
    phases = outcome.finished.phases if outcome.HasField("finished") else outcome.failed.phases
    for phase in PHASES:
        PHASE_SECONDS.labels(task, phase.removesuffix("_s")).observe(getattr(phases, phase))
