"""One job, and a list of them: success, time, routing, rewards, versions."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from headrace.cli.follow.snapshot import TaskProgress, mean_seconds, read_snapshot
from headrace.cli.follow.view import BUSY, WALL, WALL_REST, share, sparkline
from headrace.cli.output import age, duration
from headrace.cli.views.parts import bar, facts, grid, number, percent, seconds
from headrace.client.rest import TERMINAL

COLOURS = {"running": "green", "succeeded": "green", "failed": "red", "cancelled": "yellow"}
INSIDE = ("fetch", "old_logprobs", "update", "push", "publication_stall", "logprob_gap")
MOVED = {"accumulated_pull": "pull", "exposed_pull": "exposed", "verify": "verify", "pause": "pause", "load": "load"}
SHOWN_STEPS = 60


def jobs(found: Iterable[Mapping[str, Any]]) -> Table:
    """One line a job."""
    rows = []
    for job in found:
        progress = job.get("progress") or {}
        rewards = ", ".join(f"{task} {share(value)}" for task, value in (progress.get("train_reward") or {}).items())
        step_s = (progress.get("seconds") or {}).get("step")
        eta = progress.get("eta_s") if job["phase"] not in TERMINAL else None
        rows.append(
            (
                job["id"],
                job["name"],
                Text(job["phase"], COLOURS.get(job["phase"], "")),
                rewards or "-",
                f"{job['step']}/{job['max_steps']}",
                seconds(step_s),
                "-" if eta is None else duration(eta),
                number(progress.get("max_trained_lag")),
                number(progress.get("in_flight")),
                age(job["created_at"]),
            )
        )
    columns = ["id", "name", "phase", "reward", "steps", "last step", "eta", "max lag", "in flight", "age"]
    return grid("", columns, rows, left=4)


def overview(job: Mapping[str, Any]) -> Table:
    """What the job is and how far."""
    progress, policy = job.get("progress") or {}, (job.get("spec") or {}).get("async") or {}
    alpha = policy.get("alpha")
    wish = f", {job['desired']} asked for" if job.get("desired") else ""
    values: dict[str, str | Text] = {
        "id": job["id"],
        "name": job["name"],
        "phase": Text(f"{job['phase']}{wish}", COLOURS.get(job["phase"], "")),
        "reason": job.get("reason") or "-",
        "labels": ", ".join(f"{key}:{value}" for key, value in (job.get("labels") or {}).items()) or "-",
        "asynchrony": f"{policy.get('preset', '-')}, alpha {'unbounded' if alpha is None else alpha}",
        "step": f"{job['step']} of {job['max_steps']}",
        "policy version": number(job.get("current_version")),
        "largest trained lag": number(progress.get("max_trained_lag")),
        "in flight": number(progress.get("in_flight")),
        "seed, priority": f"{job['seed']}, {job['priority']}",
        "submitted": f"{age(job['created_at'])} ago",
    }
    if job["phase"] not in TERMINAL and progress.get("eta_s") is not None:
        values["eta"] = duration(progress["eta_s"])
    if detail := read_snapshot(job).detail:
        values["now"] = detail
    if job["phase"] not in TERMINAL and (training := progress.get("training")):
        values["in training"] = _at_work(training)
    values |= {name: str(told) for name, told in (job.get("result") or {}).items() if name in ("model", "wall_s")}
    return facts("", values)


def _at_work(training: Mapping[str, Any]) -> str:
    """The trainer's place in its step."""
    counted = f" {training['done']} of {training['of']}" if training["of"] > 1 else ""
    return f"step {training['step']}: {training['phase'].replace('_', ' ')}{counted}"


def success(job: Mapping[str, Any], steps: Sequence[Mapping[str, Any]]) -> Table:
    """Per task: the newest batch's reward with its curve, and held-out success at the first and the last evaluation."""
    evaluated: Mapping[str, Mapping[str, float]] = (job.get("progress") or {}).get("evaluated") or {}
    versions = sorted(evaluated, key=int)
    columns = ["task", "mode", "reward by step", *(f"version {version}" for version in _ends(versions)), "change"]
    table = grid("success", columns, [], left=3)
    for task in read_snapshot(job, steps).tasks:
        modes = sorted({key.rpartition("/")[2] for told in evaluated.values() for key in told})
        table.add_row(task.name, "training", _curve(task), *[""] * (len(columns) - 3))
        for mode in modes:
            values = [evaluated[version].get(f"{task.name}/{mode}") for version in _ends(versions)]
            known = [value for value in values if value is not None]
            change = f"{known[-1] - known[0]:+.3f}" if len(known) > 1 else ""
            table.add_row("", f"held out, {mode}", "", *map(share, values), change)
    return table


def _ends(versions: Sequence[str]) -> list[str]:
    return [versions[0], versions[-1]] if len(versions) > 1 else list(versions)


def _curve(task: TaskProgress) -> Text:
    return Text(f"{share(task.recent)} ").append(sparkline(task.curve), "green")


def time(steps: Sequence[Mapping[str, Any]]) -> Table:
    """Seconds of a step, mean and over the last ones: wall parts that add up, then who was busy meanwhile."""
    recent = [step for step in reversed(steps) if step["state"] == "committed"][-SHOWN_STEPS:]
    means = mean_seconds(recent) if recent else {}
    whole = means.get("step") or 1.0
    longest = max((step["seconds"].get("step", 0.0) for step in recent), default=0.0) or 1.0
    title = f"where a step's time goes, mean of the last {len(recent)}"
    table = grid(title, ["", "part", "s", "share"], [], left=2)
    for name in ("of the step", "newest at the right"):
        table.add_column(name, header_style="dim", no_wrap=True)
    for label, key in (*WALL, WALL_REST, ("step", "step")):
        part = means.get(key, 0.0)
        curve = sparkline([step["seconds"].get(key, 0.0) / longest for step in recent])
        table.add_row("wall", label, f"{part:.3f}", percent(part / whole), Text(bar(part / whole, 24), "cyan"), curve)
    for label, key in BUSY:
        table.add_row("busy", label, f"{means.get(key, 0.0):.3f}")
    table.add_row("waiting", "a reward for its grader", f"{means.get('reward_queue', 0.0):.3f}")
    for key in INSIDE:
        table.add_row("in training", key.replace("_", " "), f"{means.get(key, 0.0):.3f}")
    around = means.get("train_wall", 0.0) - sum(means.get(key, 0.0) for key in INSIDE)
    table.add_row("in training", "around the trainer", f"{max(around, 0.0):.3f}")
    return table


def routing(progress: Mapping[str, Any]) -> list[Table]:
    """Seconds per token by task and pool, what the static tags cost against the best pool, and counters."""
    told = dict(progress.get("routing") or {})
    regret, profile = told.pop("regret_s", {}), told.pop("profile_s_per_token", {})
    rows = []
    for place, per_token in sorted(profile.items()):
        task, _, pool = place.rpartition("/")
        rows.append((task or "probes of the trainer", pool, seconds(per_token), seconds(regret.get(task))))
    counters = {
        name.replace("_", " "): seconds(count) if name.endswith("_s") else number(count)
        for name, count in told.items()
        if count
    }
    tables = [grid("routing", ["task", "pool", "per token", "regret of the tags"], rows, left=2)] if rows else []
    return [*tables, facts("", {"requests": ", ".join(f"{name} {count}" for name, count in counters.items())})]


def rewards(view: Mapping[str, Any]) -> list[Table]:
    """Outcomes, queue and grader times, and how busy the reward workers were."""
    workers = view["workers"]
    busy = f"{percent(workers['utilisation'])} busy over {seconds(workers['slot_s'])} of slots"
    told = facts("", {"reward workers": f"{busy}, {percent(workers['used_by_job'])} for this job"})
    if not view["rewards"]:
        return []
    rows = [
        (
            row["name"],
            *(number(row[name]) for name in ("scored", "abstained", "unscorable", "retried", "duplicates")),
            *(_spread(row[name]) for name in ("queue", "grader")),
        )
        for row in view["rewards"]
    ]
    columns = ["reward", "scored", "abstained", "unscorable", "retried", "duplicates", "queue p50 / p90 / max"]
    return [grid("rewards by graders", [*columns, "grader p50 / p90 / max"], rows), told]


def _spread(times: Mapping[str, float] | None) -> str:
    return "-" if times is None else " / ".join(seconds(times[name]) for name in ("p50", "p90", "max"))


def versions(found: Iterable[Mapping[str, Any]]) -> Table:
    """Weight versions; what reaching a worker took is the mean over workers."""
    rows = []
    for row in found:
        told, n_workers = row["seconds"], row["seconds"].get("n_workers") or 0
        each = [seconds(told.get(name, 0.0) / n_workers) if n_workers else "-" for name in (*MOVED, "kv_rebuild")]
        rows.append(
            (
                str(row["policy_version"]),
                Text(row["state"], "red" if row["state"] == "abandoned" else ""),
                row["manifest_digest"][:12],
                number(row["parent_version"]),
                str(row["step"]),
                number(row["total_bytes"]),
                number(n_workers or None),
                *each,
                age(row["committed_at"]),
            )
        )
    columns = ["version", "state", "digest", "from", "step", "bytes", "workers", *MOVED.values(), "KV rebuild", "age"]
    return grid("", columns, rows, left=3)
