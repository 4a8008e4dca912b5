"""Every table of the control plane, as SQLAlchemy Core.

Rows that a job's runner owns (groups, attempts, segments, versions, steps, events, outbox, metrics) are written in the
runner's transactions alone, each under the job's epoch. Natural keys make every write happen once.

    jobs ─┬─ groups ── attempts ─┬─ segments
          ├─ versions            └─ rewards
          ├─ steps, metrics, events, outbox
          └─ job_leases
    workers   blobs   idempotency_keys
"""

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

metadata = MetaData(
    naming_convention={"ix": "ix_%(table_name)s_%(column_0_N_name)s", "pk": "pk_%(table_name)s"},
)


def _at(name: str, *, is_optional: bool = True) -> Column[Any]:
    return Column(
        name, DateTime(timezone=True), nullable=is_optional, server_default=None if is_optional else func.now()
    )


def _json(name: str, default: str = "{}") -> Column[Any]:
    return Column(name, JSONB, nullable=False, server_default=text(f"'{default}'::jsonb"))


def _count(name: str) -> Column[Any]:
    return Column(name, BigInteger, nullable=False, server_default=text("0"))


jobs = Table(
    "jobs",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    _json("labels"),
    Column("spec", JSONB, nullable=False),  # resolved
    Column("phase", Text, nullable=False),  # headrace.core.job.phases
    Column("desired", Text),  # pause | resume | cancel, written by the API, cleared by the runner
    Column("reason", Text),
    Column("priority", Integer, nullable=False, server_default=text("0")),
    Column("seed", BigInteger, nullable=False),
    Column("epoch", BigInteger, nullable=False, server_default=text("0")),
    Column("current_version", BigInteger),  # n
    Column("step", BigInteger, nullable=False, server_default=text("0")),  # newest committed
    Column("max_steps", BigInteger, nullable=False),
    _json("runner_state"),  # what the job machine needs beyond its rows: cursors, counters, evaluation
    _json("ledger"),  # counts by purpose, task and state as of the last transaction
    _json("progress"),
    _json("result"),
    _at("created_at", is_optional=False),
    _at("started_at"),
    _at("finished_at"),
    _at("updated_at", is_optional=False),
    Index("ix_jobs_phase_priority", "phase", "priority", "created_at"),
)

job_leases = Table(
    "job_leases",
    metadata,
    Column("job_id", Text, primary_key=True),
    Column("holder", Text, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("expires_at", DateTime(timezone=True), nullable=False),
)

versions = Table(
    "versions",
    metadata,
    Column("job_id", Text, primary_key=True),
    Column("policy_version", BigInteger, primary_key=True),
    Column("parent_version", BigInteger),
    Column("depth", BigInteger, nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("state", Text, nullable=False),  # committed | abandoned
    Column("manifest", LargeBinary, nullable=False),
    Column("manifest_digest", Text, nullable=False),
    Column("total_bytes", BigInteger, nullable=False),
    _json("seconds"),  # push, publication_stall, accumulated_pull, exposed_pull, load, verify, kv_rebuild
    _at("committed_at", is_optional=False),
)

groups = Table(
    "groups",
    metadata,
    Column("id", Text, primary_key=True),
    Column("job_id", Text, nullable=False),
    Column("ordinal", BigInteger, nullable=False),  # order of admission
    Column("purpose", Text, nullable=False),
    Column("task", Text, nullable=False),
    Column("env_seed", BigInteger, nullable=False),
    Column("parent_group", Text),
    Column("requeues", Integer, nullable=False, server_default=text("0")),
    Column("admitted_version", BigInteger, nullable=False),
    Column("cohort", Text, nullable=False, server_default=text("''")),
    Column("state", Text, nullable=False),  # open | complete | ready | taken | dropped
    Column("reason", Text),
    Column("ready_order", BigInteger),
    Column("step", BigInteger),  # that took it
    _at("created_at", is_optional=False),
    _at("ready_at"),
    _at("closed_at"),
    Index("ix_groups_job_id_state", "job_id", "state"),
    Index("ix_groups_job_id_ordinal", "job_id", "ordinal"),
    Index("ix_groups_job_id_step", "job_id", "step"),
)

attempts = Table(
    "attempts",
    metadata,
    Column("trajectory_id", Text, primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("job_id", Text, nullable=False),
    Column("group_id", Text, nullable=False),
    Column("purpose", Text, nullable=False),
    Column("task", Text, nullable=False),
    Column("sibling", Integer, nullable=False),
    Column("kind", Text, nullable=False),  # first | redundant | refill
    Column("mode", Text, nullable=False, server_default=text("'sampled'")),  # sampled | greedy
    Column("state", Text, nullable=False),
    Column("reason", Text),
    Column("start_version", BigInteger),  # v0
    Column("finish_version", BigInteger),  # M_f
    Column("sample_version", BigInteger),  # M_t
    Column("step", BigInteger),
    Column("reward", Float),
    _json("reward_components"),
    Column("weight", Float, nullable=False, server_default=text("1")),  # in the batch that took it
    Column("token_blob", Text),
    Column("grading_blob", Text),
    _count("n_tokens"),
    _count("n_generated_tokens"),
    _count("n_turns"),
    _count("discarded_tokens"),
    _count("invalid_actions"),  # turns that the environment could not read as an action
    Column("finish_reason", Text),
    Column("is_truncated", Boolean, nullable=False, server_default=text("false")),
    Column("env_worker_id", Text),
    _json("phases"),
    _json("fault"),
    _at("issued_at", is_optional=False),
    _at("started_at"),
    _at("finished_at"),
    _at("closed_at"),
    Index("ix_attempts_job_id_trajectory_id", "job_id", "trajectory_id", "attempt"),
    Index("ix_attempts_group_id", "group_id"),
    Index("ix_attempts_job_id_state", "job_id", "state", "purpose", "task"),  # whole counts come from it alone
    Index("ix_attempts_job_id_step", "job_id", "step"),
    Index("ix_attempts_job_id_start_version", "job_id", "start_version"),
)

segments = Table(
    "segments",
    metadata,
    Column("trajectory_id", Text, primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("job_id", Text, nullable=False),
    Column("policy_version", BigInteger, nullable=False),
    Column("worker_id", Text, nullable=False),
    Column("weight_digest", Text, nullable=False),
    Column("n_tokens", Integer, nullable=False),
)

rewards = Table(
    "rewards",
    metadata,
    Column("trajectory_id", Text, primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("reward_name", Text, primary_key=True),
    Column("job_id", Text, nullable=False),
    Column("state", Text, nullable=False),  # scored | unscorable
    Column("score", Float),
    _json("components"),
    _json("fault"),
    Column("try", Integer, nullable=False),
    Column("grader_s", Float, nullable=False, server_default=text("0")),
    Column("queue_s", Float, nullable=False, server_default=text("0")),
    Column("worker_id", Text, nullable=False, server_default=text("''")),
    _count("duplicates"),  # later reports of the same reward, which changed nothing
    _at("reported_at", is_optional=False),
    Index("ix_rewards_job_id_reported_at", "job_id", "reported_at"),
)

steps = Table(
    "steps",
    metadata,
    Column("job_id", Text, primary_key=True),
    Column("step", BigInteger, primary_key=True),
    Column("state", Text, nullable=False),  # sampled | committed
    Column("batch_digest", Text, nullable=False),
    Column("policy_version", BigInteger, nullable=False),  # n at the take
    Column("published_version", BigInteger),
    Column("replays", Integer, nullable=False, server_default=text("0")),
    Column("n_groups", Integer, nullable=False),
    _json("group_ids", "[]"),  # of the batch, in its order
    Column("n_tokens", BigInteger, nullable=False, server_default=text("0")),
    _json("metrics"),
    _json("seconds"),
    _json("ledger"),
    _at("sampled_at", is_optional=False),
    _at("committed_at"),
)

metrics = Table(
    "metrics",
    metadata,
    Column("job_id", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("step", BigInteger, primary_key=True),
    Column("value", Float),
    _at("at", is_optional=False),
)

events = Table(
    "events",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=True),
    Column("job_id", Text, nullable=False),
    Column("type", Text, nullable=False),
    _json("data"),
    _at("at", is_optional=False),
    Index("ix_events_job_id_id", "job_id", "id"),
)

outbox = Table(
    "outbox",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=True),
    Column("job_id", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("payload", JSONB, nullable=False),
    _at("created_at", is_optional=False),
    _at("sent_at"),
    Index("ix_outbox_job_id_unsent", "job_id", "id", postgresql_where=text("sent_at IS NULL")),
)

workers = Table(
    "workers",
    metadata,
    Column("worker_id", Text, primary_key=True),  # name@incarnation
    Column("kind", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("incarnation", Text, nullable=False),
    Column("address", Text, nullable=False),
    Column("metrics_address", Text, nullable=False, server_default=text("''")),
    _json("labels"),
    _json("capabilities"),
    _json("stats"),
    Column("state", Text, nullable=False),  # live | lapsed | replaced | gone
    Column("is_draining", Boolean, nullable=False, server_default=text("false")),
    Column("job_id", Text),
    Column("pid", Integer),
    _at("registered_at", is_optional=False),
    _at("last_seen_at", is_optional=False),
    Index("ix_workers_kind_state", "kind", "state"),
    Index("ix_workers_name", "name"),
)

blobs = Table(
    "blobs",
    metadata,
    Column("digest", Text, primary_key=True),  # sha256 of the uncompressed bytes, hex
    Column("part", Integer, primary_key=True, server_default=text("0")),
    Column("n_parts", Integer, nullable=False, server_default=text("1")),
    Column("data", LargeBinary, nullable=False),  # zstd, at most 1 MiB
    Column("n_bytes", BigInteger, nullable=False),  # of the whole blob, uncompressed
    _at("created_at", is_optional=False),
)

idempotency_keys = Table(
    "idempotency_keys",
    metadata,
    Column("principal", Text, primary_key=True),
    Column("route", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("body_digest", Text, nullable=False),
    Column("status", Integer),
    Column("response", JSONB),
    _at("created_at", is_optional=False),
)

server_secrets = Table(
    "server_secrets",
    metadata,
    Column("name", Text, primary_key=True),
    Column("value", LargeBinary, nullable=False),  # random; made once, shared by all replicas
)
