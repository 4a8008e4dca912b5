"""Submission and wishes: what is checked, in which order, and what one transaction holds."""

import asyncio
from collections.abc import Mapping
from typing import Any

import orjson
from sqlalchemy.exc import DBAPIError

from control_plane.context import Context
from control_plane.http.answers import encode
from control_plane.http.problems import LOCK_NOT_AVAILABLE, ProblemError, not_found
from control_plane.ids import new_id
from control_plane.jobs import repository
from control_plane.jobs.idempotency import Key, in_flight, replay
from control_plane.jobs.phases import GRANTED, TERMINAL, Wish
from control_plane.probes import service as probes
from headrace.client.jobspec import JobSpec, SpecError, parse

POLL_S = 0.75


async def submit(context: Context, document: object, key: Key | None) -> tuple[int, Mapping[str, Any], bool]:
    """Create the job, or answer as before under the same key: status, body, whether it is a replay.

    Raises SpecError for a spec that is refused, by its form or by what the live services say of it.
    """
    if key is not None:
        async with context.database.connect() as connection:
            stored = await repository.find_key(connection, **key.row)
        if stored is not None:
            return (*replay(key, stored), True)
    spec = parse(document).resolve()
    warnings = await check_with_services(context, spec)
    answer = await _create(context, spec, warnings, key)
    if not answer[2]:
        context.hub.notify("jobs")
    return answer


async def check_with_services(context: Context, spec: JobSpec) -> list[str]:
    """What form alone cannot tell: does the model exist, do environments and graders import.

    Returns what could not be asked now; the job will say it itself if it is wrong. Raises SpecError.
    """
    found = await probes.probe_spec(context, spec)
    if found.problems:
        raise SpecError(found.problems)
    return found.unknown


async def _create(
    context: Context, spec: JobSpec, warnings: list[str], key: Key | None
) -> tuple[int, Mapping[str, Any], bool]:
    try:
        async with context.database.begin() as connection:
            if key is not None:
                stored = await repository.claim_key(connection, **key.row, body_digest=key.body_digest)
                if stored is not None:
                    return (*replay(key, stored), True)
            job = await repository.add(connection, _row(spec))
            body = {**orjson.loads(encode(job)), "warnings": warnings}
            if key is not None:
                await repository.settle_key(connection, **key.row, status=201, response=body)
    except DBAPIError as error:
        if getattr(error.orig, "sqlstate", None) == LOCK_NOT_AVAILABLE:
            raise in_flight() from error
        raise
    return 201, body, False


def _row(spec: JobSpec) -> dict[str, Any]:
    return {
        "id": new_id("job"),
        "name": spec.name,
        "labels": spec.labels,
        "spec": spec.model_dump(mode="json", by_alias=True),
        "phase": "queued",
        "priority": spec.priority,
        "seed": spec.seed,
        "max_steps": spec.max_steps,
    }


async def get(context: Context, job_id: str) -> dict[str, Any]:
    """The job with its spec. Raises 404."""
    async with context.database.connect() as connection:
        job = await repository.get(connection, job_id, with_spec=True)
    if job is None:
        raise not_found("job", job_id)
    return job


async def wait_until(context: Context, job_id: str, *, wait_s: float, until: str | None) -> dict[str, Any]:
    """The job as soon as its phase is `until` (or `terminal`, or another one than now), or as it is after `wait_s`."""
    loop = asyncio.get_running_loop()
    end = loop.time() + wait_s
    seen = context.hub.changes("jobs")
    job = await get(context, job_id)
    first = job["phase"]
    while not _is_reached(job["phase"], until, first) and loop.time() < end and not context.closing.is_set():
        await context.hub.wait("jobs", min(POLL_S, max(end - loop.time(), 0.01)), since=seen)
        seen = context.hub.changes("jobs")
        job = await get(context, job_id)
    return job


def _is_reached(phase: str, until: str | None, first: str) -> bool:
    if until is None:
        return phase != first
    return phase in TERMINAL if until == "terminal" else phase == until or phase in TERMINAL


async def wish(context: Context, job_id: str, wanted: Wish) -> dict[str, Any]:
    """Write what is wanted of the job; its runner acts on it. Raises 404, or 409 naming the phase."""
    async with context.database.begin() as connection:
        changed = await repository.wish(connection, job_id, wanted)
        job = changed or await repository.get(connection, job_id)
    if job is None:
        raise not_found("job", job_id)
    if changed is None and job["phase"] not in GRANTED[wanted]:
        pending = f", and {job['desired']} is pending" if job["desired"] else ""
        raise ProblemError(
            409,
            "illegal_transition",
            f"cannot {wanted} a job that is {job['phase']}{pending}",
            extra={"phase": job["phase"], "desired": job["desired"]},
        )
    if changed is not None:
        context.hub.notify("jobs")
    return job
