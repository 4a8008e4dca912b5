"""`headrace model init-demo`: the demo's tiny model, made and warm-started."""

import json
import os
import subprocess
import sys
from pathlib import Path

import click

from headrace.cli.errors import JOB_FAILED, CliError
from headrace.cli.output import note
from headrace.cli.server import data_dir_option
from headrace.cli.up.fleet import SHARED_ENV

READY = "READY"
"""Written last by the maker: a folder without it is not complete."""


@click.group()
def model() -> None:
    """Make the demo's model."""


@model.command("init-demo")
@click.option("--out", type=click.Path(path_type=Path), help="Folder to write  [default: DATA_DIR/models/demo]")
@click.option("--seed", default=1, show_default=True)
@click.option("--force", is_flag=True, help="Make it again even when it is there.")
@data_dir_option
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def init_demo(out: Path | None, seed: int, force: bool, data_dir: Path, as_json: bool) -> None:
    """Make a tiny model and warm-start it on scripted demonstrations, which do not have the skill that RL will teach.

    Does nothing when the folder is complete already.
    """
    folder = out or demo_model_dir(data_dir)
    make_demo_model(folder, seed, force=force)
    if as_json:
        click.echo(json.dumps({"model": str(folder), **json.loads((folder / READY).read_text())}))
    else:
        note(f"the demo model is in {folder}")


def demo_model_dir(data_dir: Path) -> Path:
    """Where the demo's model lies unless it was told otherwise."""
    return data_dir / "models" / "demo"


def make_demo_model(folder: Path, seed: int, *, force: bool = False) -> None:
    """Run the maker in a process of its own, since it loads torch. Raises `CliError` when it fails."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    argv = [sys.executable, "-m", "trainer_svc.demo", "--out", str(folder), "--seed", str(seed)]
    done = subprocess.run([*argv, *(["--force"] if force else [])], env={**os.environ, **SHARED_ENV}, check=False)
    if done.returncode != 0:
        raise CliError(f"making the demo model failed with exit code {done.returncode}; see above", JOB_FAILED)
