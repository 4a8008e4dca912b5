"""What a spec says about the world, checked against it.

The control plane never imports user code: an env worker does, in its own process and with a deadline.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from control_plane.context import Context
from control_plane.probes.clients import Verdict, inspect_model, probe_environment
from control_plane.probes.modules import missing_name
from control_plane.runner.samplers import SamplerRefused, sampler_of
from control_plane.text_safety import safe_text
from control_plane.workers import repository as workers
from headrace.client.jobspec import JobSpec, Problem

Question = Callable[[str, float], Awaitable[Verdict]]


@dataclass(slots=True)
class Findings:
    """`problems` refuse the job; `unknown` says what nobody could be asked about."""

    problems: list[Problem] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)


async def probe_spec(context: Context, spec: JobSpec) -> Findings:
    """Ask about the model, every environment and every grader, all at once."""
    findings = Findings()
    _sampler(context, spec, findings)
    questions: list[Awaitable[None]] = [_model(context, spec, findings)]
    questions.extend(_environment(context, spec, index, findings) for index in range(len(spec.tasks)))
    await asyncio.gather(*questions)
    await asyncio.to_thread(_graders, spec, findings)
    return findings


def _sampler(context: Context, spec: JobSpec, findings: Findings) -> None:
    try:
        sampler_of(spec.buffer.sampler, context.settings.sampler_modules)
    except SamplerRefused as refusal:
        findings.problems.append(Problem("/buffer/sampler", str(refusal), "see the operator's settings"))


async def _model(context: Context, spec: JobSpec, findings: Findings) -> None:
    path = spec.model.path
    if await asyncio.to_thread(_has_model, Path(path)):
        return
    verdict = await _ask(context, "trainer", lambda at, s: inspect_model(at, path, timeout_s=s))
    if not verdict.is_known:
        findings.unknown.append(f"model.path {path}: not visible here, and no trainer could be asked")
    elif verdict.fault:
        detail = safe_text(verdict.fault, limit=500)
        findings.problems.append(Problem("/model/path", detail, "name a Hugging Face causal-LM directory"))


def _has_model(path: Path) -> bool:
    try:
        return (path / "config.json").is_file()
    except OSError:
        return False


async def _environment(context: Context, spec: JobSpec, index: int, findings: Findings) -> None:
    env = spec.tasks[index].env
    verdict = await _ask(context, "env", lambda at, s: probe_environment(at, env, timeout_s=s))
    if not verdict.is_known:
        findings.unknown.append(f"tasks.{index}.env.entry_point {env.entry_point}: no env worker could be asked")
    elif verdict.fault:
        detail = f"{verdict.code}: {safe_text(verdict.fault, limit=500)}"
        findings.problems.append(
            Problem(f"/tasks/{index}/env", detail, "see that it imports and resets where env_svc runs")
        )


def _graders(spec: JobSpec, findings: Findings) -> None:
    for index, task in enumerate(spec.tasks):
        for position, reward in enumerate(task.rewards):
            if reward.fn is not None and (why := missing_name(reward.fn)) is not None:
                at = f"/tasks/{index}/rewards/{position}/fn"
                findings.problems.append(Problem(at, why, "name a function as package.module:function"))


async def _ask(context: Context, kind: str, question: Question) -> Verdict:
    """Put the question to live workers of a kind until one answers; the last deadline ends it."""
    async with context.database.connect() as connection:
        live = await workers.live_addresses(connection, kind)
    for _, address in live[:2]:
        verdict = await question(address, context.settings.probe_timeout_s)
        if verdict.is_known:
            return verdict
    return Verdict(False)
