"""`headrace doctor`: what this machine and the server have and lack."""

import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass

import click
import httpx

from headrace.cli.errors import JOB_FAILED
from headrace.cli.output import emit_json
from headrace.cli.server import Target, server_options
from headrace.cli.up.errors import LaunchError

PARTS = {
    "control plane": ("fastapi", "sqlalchemy", "psycopg", "celery"),
    "inference": ("torch", "transformers"),
    "trainer": ("torch", "safetensors"),
    "weight store": ("ucxx", "xxhash"),
    "environments": ("gymnasium", "tokenizers"),
    "rewards": ("celery", "redis"),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was checked. `is_ok` None: not there, and not needed."""

    name: str
    is_ok: bool | None
    detail: str


@click.command()
@server_options
def doctor(target: Target) -> int:
    """Check this machine and, if one is up, the server. Exit 1 if something that is needed is missing."""
    checks: list[Callable[[], Finding]] = [_python, _memory, _postgres, _redis, _gpu, lambda: _server(target)]
    findings = [*(_part(name, modules) for name, modules in PARTS.items()), *(check() for check in checks)]
    if target.as_json:
        emit_json([asdict(finding) for finding in findings])
    else:
        for finding in findings:
            mark = {True: "ok", False: "MISSING", None: "-"}[finding.is_ok]
            click.echo(f"{mark:<8} {finding.name:<18} {finding.detail}")
    return JOB_FAILED if any(finding.is_ok is False for finding in findings) else 0


def _part(name: str, modules: tuple[str, ...]) -> Finding:
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if missing:
        return Finding(name, False, f"not installed: {', '.join(missing)}; run: make setup")
    return Finding(name, True, ", ".join(modules))


def _python() -> Finding:
    is_ok = sys.version_info >= (3, 11)
    return Finding("python", is_ok, f"{platform.python_version()} on {platform.system()}, {os.cpu_count()} cores")


def _memory() -> Finding:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Finding("memory", total > 3 << 30, f"{total / (1 << 30):.1f} GiB (the demo needs about 3)")


def _postgres() -> Finding:
    from headrace.cli.up.layout import DEFAULT, DataDir
    from headrace.cli.up.postgres import choose_runner

    try:
        runner = choose_runner(DataDir(DEFAULT).postgres.absolute())
    except LaunchError as error:
        return Finding("embedded postgres", False, str(error))
    how = "in a user namespace" if runner.prefix and not runner.is_nobody else "as this user"
    return Finding("embedded postgres", True, "as nobody" if runner.is_nobody else how)


def _redis() -> Finding:
    from headrace.cli.up.redis import find_binary

    try:
        return Finding("embedded redis", True, str(find_binary()))
    except LaunchError as error:
        return Finding("embedded redis", False, str(error))


def _gpu() -> Finding:
    if shutil.which("nvidia-smi") is None:
        return Finding("gpu", None, "none; engines and trainer run on the CPU")
    return Finding("gpu", True, "nvidia-smi is here")


def _server(target: Target) -> Finding:
    try:
        with target.connect() as api:
            ready = httpx.get(f"{api.server}/readyz", timeout=5, trust_env=False)
    except click.ClickException:
        return Finding("server", None, "none is up; start one with: headrace up")
    except httpx.HTTPError as error:
        return Finding("server", False, f"no answer from {target.server or 'the one in the data folder'}: {error}")
    return Finding(
        "server", ready.is_success, f"{api.server} " + ("is ready" if ready.is_success else ready.text[:300])
    )
