"""The gRPC Control service over a real channel: registration, heartbeats, rewards, blobs."""

import asyncio
import math
from collections.abc import AsyncIterator
from hashlib import sha256
from typing import Any

import grpc
import grpc.aio
import pytest
from sqlalchemy import select, text, update
from testkit.control_plane import Served
from testkit.rows import add_attempt, add_job

from control_plane.db.tables import attempts, blobs, rewards, workers
from control_plane.workers import repository, service
from headrace.service.grpc import channel
from headrace.wire.common.v1.common_pb2 import AttemptKey, Blob, Fault
from headrace.wire.control.v1 import control_pb2 as pb
from headrace.wire.control.v1.control_pb2_grpc import ControlStub


@pytest.fixture
async def control(served: Served) -> AsyncIterator[Any]:
    """A stub of Control."""
    async with channel(served.grpc_address) as link:
        yield ControlStub(link)


def registration(name: str = "inference-0", incarnation: str = "a", **fields: Any) -> pb.RegisterRequest:
    return pb.RegisterRequest(
        **{"kind": "inference", "name": name, "incarnation": incarnation, "address": "127.0.0.1:9000", **fields}
    )


def reward(trajectory_id: str, score: float | None, *, name: str = "exact", **fields: Any) -> pb.RewardReport:
    key = AttemptKey(trajectory_id=trajectory_id, attempt=fields.pop("attempt", 1))
    return pb.RewardReport(**{"key": key, "job_id": "job_1", "reward_name": name, "try": 1, "score": score, **fields})


async def states(served: Served) -> dict[str, str]:
    async with served.context.database.connect() as connection:
        found = await connection.execute(select(workers.c.worker_id, workers.c.state))
        return dict(found.all())


async def stored_rewards(served: Served) -> dict[tuple[str, int, str], dict[str, Any]]:
    async with served.context.database.connect() as connection:
        rows = (await connection.execute(select(rewards))).mappings()
        return {(row["trajectory_id"], row["attempt"], row["reward_name"]): dict(row) for row in rows}


async def test_new_incarnation_replaces_the_old_one(served: Served, control: Any) -> None:
    seen = served.context.hub.changes("workers")
    answer = await control.Register(registration(labels={"pool": "a\x00b"}), timeout=5)
    assert answer.worker_id == "inference-0@a"
    assert (answer.heartbeat_interval_s, answer.lapse_after_s) == (1.0, 5.0)
    assert served.context.hub.changes("workers") > seen
    await control.Register(registration(incarnation="b"), timeout=5)
    assert await states(served) == {"inference-0@a": "replaced", "inference-0@b": "live"}
    assert not (await control.Heartbeat(pb.HeartbeatRequest(worker_id="inference-0@a"), timeout=5)).known
    # The old process must not take its name back.
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await control.Register(registration(), timeout=5)
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert refused.value.details().startswith("replaced: ")
    assert await states(served) == {"inference-0@a": "replaced", "inference-0@b": "live"}


async def test_incarnations_registering_at_once_leave_one_live(served: Served, control: Any) -> None:
    requests = [registration(incarnation=f"i{number}") for number in range(8)]
    await asyncio.gather(*(control.Register(request, timeout=10) for request in requests))
    assert sorted((await states(served)).values()) == ["live"] + ["replaced"] * 7


@pytest.mark.parametrize(
    "fields", [{"kind": "oven"}, {"name": ""}, {"name": "a b"}, {"incarnation": ""}, {"address": "nowhere"}]
)
async def test_bad_registration_names_the_field(control: Any, fields: dict[str, str]) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await control.Register(registration(**fields), timeout=5)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert next(iter(fields)) in refused.value.details()


async def test_heartbeats_of_many_workers_are_one_write(served: Served, control: Any) -> None:
    for number in range(5):
        await control.Register(registration(name=f"env-{number}", kind="env"), timeout=5)
    writes: list[int] = []
    original = service.write_beats

    async def counted(context: Any, beats: Any) -> Any:
        writes.append(len(beats))
        return await original(context, beats)

    from control_plane.workers.heartbeats import Heartbeats

    heartbeats = Heartbeats(lambda beats: counted(served.context, beats))
    answers = await asyncio.gather(
        *(heartbeats.beat(f"env-{number}@a", {"slots": number}) for number in range(5)), heartbeats.beat("nobody@x", {})
    )
    assert answers == [False] * 5 + [None]
    assert writes == [6]
    async with served.context.database.connect() as connection:
        stats = dict((await connection.execute(select(workers.c.worker_id, workers.c.stats))).all())
    assert stats["env-3@a"] == {"slots": 3}


async def test_heartbeat_keeps_stats_and_tells_of_a_drain(served: Served, control: Any) -> None:
    await control.Register(registration(), timeout=5)
    beat = pb.HeartbeatRequest(
        worker_id="inference-0@a", stats={"running": 3, "broken": math.nan}, state={"version": "7"}
    )
    answer = await control.Heartbeat(beat, timeout=5)
    assert (answer.known, answer.drain) == (True, False)
    shown = (await served.http.get("/workers", params={"kind": "inference"})).json()["items"][0]
    assert shown["stats"] == {"running": 3, "broken": None, "version": "7"}
    assert shown["heartbeat_age_s"] < 5
    assert (await served.http.post("/workers/inference-0@a/drain")).status_code == 202
    assert (await control.Heartbeat(beat, timeout=5)).drain
    await control.Deregister(pb.DeregisterRequest(worker_id="inference-0@a"), timeout=5)
    assert await states(served) == {"inference-0@a": "gone"}
    assert (await served.http.post("/workers/inference-0@a/drain")).status_code == 409
    assert (await served.http.post("/workers/nobody@x/drain")).status_code == 404


async def test_silent_worker_lapses_and_may_come_back(served: Served, control: Any) -> None:
    await control.Register(registration(), timeout=5)
    async with served.context.database.begin() as connection:
        assert await repository.lapse(connection, 5) == []
        await connection.execute(update(workers).values(last_seen_at=text("now() - interval '6 s'")))
        assert await repository.lapse(connection, 5) == ["inference-0@a"]
    assert not (await control.Heartbeat(pb.HeartbeatRequest(worker_id="inference-0@a"), timeout=5)).known
    await control.Register(registration(), timeout=5)
    assert await states(served) == {"inference-0@a": "live"}


async def test_heartbeat_gives_way_to_a_runner_that_holds_the_row(served: Served, control: Any) -> None:
    await control.Register(registration(), timeout=5)
    async with served.context.database.begin() as connection:
        await connection.execute(update(workers).values(job_id="job_1"))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await control.Heartbeat(pb.HeartbeatRequest(worker_id="inference-0@a"), timeout=5)
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    assert (await control.Heartbeat(pb.HeartbeatRequest(worker_id="inference-0@a"), timeout=5)).known


async def add_scoring(served: Served, *trajectory_ids: str) -> None:
    async with served.context.database.begin() as connection:
        await add_job(connection)
        for trajectory_id in trajectory_ids:
            await add_attempt(connection, trajectory_id)


async def report(control: Any, *reports: pb.RewardReport) -> list[bool]:
    answer = await control.ReportRewards(pb.ReportRewardsRequest(reports=reports), timeout=5)
    return list(answer.accepted)


async def test_first_report_stands_and_repeats_are_counted(served: Served, control: Any) -> None:
    await add_scoring(served, "t1")
    seen = served.context.hub.changes("rewards:job_1")
    assert await report(control, reward("t1", 0.5), reward("t1", 1.0)) == [True, False]
    assert served.context.hub.changes("rewards:job_1") > seen
    assert await report(control, reward("t1", 0.9)) == [False]
    [row] = (await stored_rewards(served)).values()
    assert (row["score"], row["state"], row["duplicates"]) == (0.5, "scored", 2)


async def test_parallel_redeliveries_leave_one_row(served: Served, control: Any) -> None:
    await add_scoring(served, "t1", "t2")
    both = [reward("t1", 0.5), reward("t2", 0.25)]
    answers = await asyncio.gather(*(report(control, *both[:: 1 if n % 2 else -1]) for n in range(10)))
    assert sum(sum(answer) for answer in answers) == 2
    rows = await stored_rewards(served)
    assert {key[0]: row["score"] for key, row in rows.items()} == {"t1": 0.5, "t2": 0.25}
    assert sum(row["duplicates"] for row in rows.values()) == 18


async def test_replies_out_of_order_go_to_their_own_attempts(served: Served, control: Any) -> None:
    await add_scoring(served, "t1", "t2", "t3")
    assert await report(control, *(reward(f"t{n}", n / 10) for n in (3, 2, 1))) == [True] * 3
    assert {key[0]: row["score"] for key, row in (await stored_rewards(served)).items()} == {
        "t1": 0.1,
        "t2": 0.2,
        "t3": 0.3,
    }


async def test_nobody_waits_for_unknown_late_or_foreign_reports(served: Served, control: Any) -> None:
    await add_scoring(served, "t1", "t2")
    async with served.context.database.begin() as connection:
        await connection.execute(update(attempts).where(attempts.c.trajectory_id == "t2").values(state="aborted"))
    refused = [
        reward("unknown", 1.0),
        reward("t1", 1.0, attempt=2),
        reward("t2", 1.0),
        reward("t1", 1.0, name="no-such-reward"),
        reward("t1", 1.0, job_id="job_2"),
        reward("t1\x00", 1.0),
    ]
    assert await report(control, *refused) == [False] * 6
    assert await stored_rewards(served) == {}


@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf])
async def test_score_without_an_end_is_unscorable(served: Served, control: Any, score: float) -> None:
    await add_scoring(served, "t1")
    assert await report(control, reward("t1", score, components={"part": score})) == [True]
    [row] = (await stored_rewards(served)).values()
    assert (row["state"], row["score"]) == ("unscorable", None)
    assert row["fault"]["code"] == "score_not_finite"
    shown = await served.http.get("/trajectories/t1")
    assert shown.status_code == 200
    assert shown.json()["attempts"][0]["rewards"][0]["components"] == {"part": None}


async def test_fault_worth_a_retry_gives_way_to_the_next_try(served: Served, control: Any) -> None:
    await add_scoring(served, "t1", "t2")
    fault = Fault(code="grader_crashed", kind="grader", detail="died\x00", retryable=True)
    final = Fault(code="grader_raised", kind="grader", detail="no", retryable=False)
    assert await report(control, reward("t1", None, fault=fault), reward("t2", None, fault=final)) == [True, True]
    again = {"try": 2}
    assert await report(control, reward("t1", 0.5, **again), reward("t2", 0.5, **again)) == [True, False]
    rows = await stored_rewards(served)
    assert [rows[name, 1, "exact"]["state"] for name in ("t1", "t2")] == ["scored", "unscorable"]


async def test_abstention_is_no_fault(served: Served, control: Any) -> None:
    await add_scoring(served, "t1")
    assert await report(control, reward("t1", None)) == [True]
    [row] = (await stored_rewards(served)).values()
    assert (row["state"], row["score"], row["fault"]) == ("abstained", None, {})


async def test_blobs_come_back_whole_whatever_their_size(served: Served, control: Any) -> None:
    from random import Random

    data = [b"", b"small", Random(0).randbytes(3 << 20)]
    put = [Blob(digest=sha256(one).hexdigest(), data=one) for one in data]
    await control.PutBlobs(pb.PutBlobsRequest(blobs=put), timeout=10)
    await control.PutBlobs(pb.PutBlobsRequest(blobs=put[::-1]), timeout=10)
    digests = [blob.digest for blob in put]
    answer = await control.GetBlobs(pb.GetBlobsRequest(digests=[*digests, "0" * 64, "\u20ac", *digests]), timeout=10)
    assert {blob.digest: blob.data for blob in answer.blobs} == dict(zip(digests, data, strict=True))
    async with served.context.database.connect() as connection:
        parts = (await connection.execute(select(blobs.c.data).where(blobs.c.digest == digests[2]))).scalars().all()
    assert len(parts) == 4
    assert max(map(len, parts)) == 1 << 20
    over_http = await served.http.get(f"/blobs/{digests[1]}")
    assert (over_http.content, over_http.headers["etag"]) == (b"small", f'"{digests[1]}"')
    assert (await served.http.get(f"/blobs/{'0' * 64}")).status_code == 404


async def test_blob_with_another_digest_is_refused_and_nothing_stored(served: Served, control: Any) -> None:
    good = Blob(digest=sha256(b"good").hexdigest(), data=b"good")
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await control.PutBlobs(pb.PutBlobsRequest(blobs=[good, Blob(digest="0" * 64, data=b"bad")]), timeout=5)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert refused.value.details().startswith("wrong_digest: ")
    assert len((await control.GetBlobs(pb.GetBlobsRequest(digests=[good.digest]), timeout=5)).blobs) == 0
