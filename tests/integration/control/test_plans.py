"""Lists stay quick however much a job has: each is walked along an index, and reads no table from end to end."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import event, text
from testkit.control_plane import Served
from testkit.rows import add_job

FILL = """
INSERT INTO groups (id, job_id, ordinal, purpose, task, env_seed, admitted_version, state, step)
    SELECT 'grp_' || lpad(i::text, 6, '0'), 'job_' || 1 + i % 2, i, 'train', 'task_' || i % 3, i, i / 30,
        CASE WHEN i > 1980 THEN 'ready' WHEN i % 50 = 0 THEN 'dropped' ELSE 'taken' END, i / 30
    FROM generate_series(1, 2000) i;
INSERT INTO attempts
    (trajectory_id, attempt, job_id, group_id, purpose, task, sibling, kind, state, start_version, step)
    SELECT 'trj_' || lpad(ordinal::text, 6, '0') || '_' || s, 1, job_id, id, 'train', task, s, 'first',
        CASE state WHEN 'ready' THEN 'ready' WHEN 'dropped' THEN 'failed_env' ELSE 'trained' END, step, step
    FROM groups, generate_series(0, 7) s;
INSERT INTO segments SELECT trajectory_id, 1, 0, job_id, start_version, 'w', 'd', 9 FROM attempts;
INSERT INTO rewards (trajectory_id, attempt, reward_name, job_id, state, score, try)
    SELECT trajectory_id, 1, 'exact', job_id, 'scored', 1, 1 FROM attempts;
INSERT INTO metrics (job_id, name, step, value)
    SELECT 'job_' || 1 + g % 2, 'metric_' || g, i, i FROM generate_series(1, 40) g, generate_series(1, 300) i;
INSERT INTO events (job_id, type) SELECT 'job_' || 1 + i % 2, 'step_committed' FROM generate_series(1, 8000) i;
VACUUM ANALYZE
"""
ROUTES = [
    "/jobs/job_1/trajectories",
    "/jobs/job_1/trajectories?state=failed_env",
    "/jobs/job_1/trajectories?group=grp_000500",
    "/jobs/job_1/trajectories?step=30",
    "/jobs/job_1/trajectories?version_gte=30&version_lte=30",
    "/jobs/job_1/groups",
    "/jobs/job_1/groups?state=ready",
    "/jobs/job_1/groups?step=30",
    "/jobs/job_1/metrics?name=metric_1",
    "/jobs/job_1/events?after=10",
    "/jobs/job_1/buffer",
    "/trajectories/trj_000501_3",
]
MUCH = 4000  # rows; half of a job's attempts


@contextmanager
def statements(served: Served) -> Iterator[list[tuple[str, Any]]]:
    """Every SELECT that the API runs, with its parameters."""
    seen: list[tuple[str, Any]] = []

    def see(_connection: Any, _cursor: Any, sql: str, parameters: Any, *_rest: Any) -> None:
        if sql.startswith(("SELECT", "WITH")):
            seen.append((sql, parameters))

    engine = served.context.database.engine.sync_engine
    event.listen(engine, "before_cursor_execute", see)
    try:
        yield seen
    finally:
        event.remove(engine, "before_cursor_execute", see)


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", []):
        yield from nodes(part)


async def test_no_list_reads_a_table_from_end_to_end(served: Served) -> None:
    async with served.context.database.begin() as connection:
        await add_job(connection)
        await add_job(connection, "job_2")
    async with served.context.database.connect() as connection:
        for statement in FILL.split(";"):
            await connection.execute(text(statement.replace(":", "\\:").replace("\\:\\:", "::")))
        for route in ROUTES:
            with statements(served) as seen:
                answer = await served.http.get(route)
            assert answer.status_code == 200, answer.text
            assert seen, route
            for sql, parameters in seen:
                explained = await connection.exec_driver_sql(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}", parameters)
                [told] = explained.scalar_one()
                for node in nodes(told["Plan"]):
                    read = (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
                    big = node.get("Relation Name") in (
                        "attempts",
                        "groups",
                        "segments",
                        "rewards",
                        "metrics",
                        "events",
                    )
                    if (node["Node Type"] == "Seq Scan" and big) or read > MUCH:
                        pytest.fail(f"{route}: {node['Node Type']} over {read} rows of {node.get('Relation Name')}")
