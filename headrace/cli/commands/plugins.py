"""`headrace env test` and `headrace reward test`: a plug-in alone, as a job would call it, without a server."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import click

from headrace.cli.errors import JOB_FAILED, TIMED_OUT, USAGE, CliError
from headrace.cli.output import emit_json, pairs

json_option = click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
deadline_option = click.option("--deadline-s", default=30.0, show_default=True, help="For each call.")


@click.group()
def env() -> None:
    """Try an environment."""


@env.command("test")
@click.argument("entry_point", metavar="PKG.MODULE:CLASS")
@click.option("--config", "config_json", default="{}", help="Keyword arguments of the class, as JSON.")
@click.option("--seed", default=0, show_default=True)
@click.option("--action", "actions", multiple=True, help="What the model says at each turn; may be repeated.")
@click.option("--split", default="train", show_default=True, type=click.Choice(["train", "heldout"]))
@deadline_option
@json_option
def env_test(
    entry_point: str,
    config_json: str,
    seed: int,
    actions: tuple[str, ...],
    split: str,
    deadline_s: float,
    as_json: bool,
) -> int:
    """Import the class, reset it, and play the actions; shows what the model would see and what it would earn."""
    request = {
        "entry_point": entry_point,
        "config_json": config_json,
        "seed": seed,
        "actions": actions,
        "split": split,
        "deadline_s": deadline_s,
    }
    answer = _try_out("env_svc.try_out", request, deadline_s * (len(actions) + 2) + 30)
    if as_json:
        emit_json(answer)
    else:
        _show_episode(answer, actions)
    return _fault_code(answer)


def _show_episode(answer: dict[str, Any], actions: tuple[str, ...]) -> None:
    observations = answer.get("observations", [])
    rewards = [None, *answer.get("rewards", [])]
    said = ["(reset)", *actions]
    for action, reward, observation in zip(said, rewards, observations, strict=False):
        earned = "" if reward is None else f"   reward {'left to graders' if reward == 'NaN' else reward}"
        click.echo(f"> {action}{earned}\n{observation}\n")
    if observations:
        click.echo("episode over" if answer.get("is_done") else "episode goes on")


@click.group()
def reward() -> None:
    """Try a grader."""


@reward.command("test")
@click.argument("fn", metavar="PKG.MODULE:FUNCTION")
@click.option("--completion", default="", help="The model's last text.")
@click.option("--answer", help="The right answer; JSON, or text if it is none.")
@click.option("--document", "document_path", type=click.Path(path_type=Path), help="JSON file with a whole document.")
@deadline_option
@json_option
def reward_test(
    fn: str, completion: str, answer: str | None, document_path: Path | None, deadline_s: float, as_json: bool
) -> int:
    """Call a grader on one attempt, with arguments injected by name as in a job."""
    document = _document(document_path) | (
        {"completion": completion, "completions": [completion]} if completion else {}
    )
    if answer is not None:
        document["answer"] = _json_or_text(answer)
    verdict = _try_out("reward_svc.try_out", {"fn": fn, "document": document}, deadline_s + 30)
    if as_json:
        emit_json(verdict)
    elif "fault" not in verdict:
        pairs(verdict)
    return _fault_code(verdict)


def _document(path: Path | None) -> dict[str, Any]:
    empty: dict[str, Any] = {
        "completion": "",
        "completions": [],
        "messages": [],
        "answer": None,
        "info": {},
        "task": "",
    }
    if path is None:
        return empty
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise CliError(f"--document {path}: {error}", USAGE) from None
    return empty | found


def _json_or_text(given: str) -> Any:
    try:
        return json.loads(given)
    except ValueError:
        return given


def _try_out(module: str, document: dict[str, Any], timeout_s: float) -> dict[str, Any]:
    """Run a plug-in in a process of its own, where it can hang or crash."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", module],
            input=json.dumps(document),
            stdout=subprocess.PIPE,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CliError(f"no answer within {timeout_s:g} s", TIMED_OUT) from None
    if done.returncode != 0:
        raise CliError(f"the process that tried it ended with exit code {done.returncode}; see above", JOB_FAILED)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _fault_code(answer: dict[str, Any]) -> int:
    fault = answer.get("fault")
    if not fault:
        return 0
    click.echo(f"error: {fault['code']}: {fault['detail']}", err=True)
    return JOB_FAILED
