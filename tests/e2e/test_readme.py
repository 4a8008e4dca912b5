"""The README's first ten minutes, word for word: its files are written, its commands are run."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml


def blocks(readme: str) -> dict[str, str]:
    """File name -> text, for every indented block that begins with `# name`."""
    found = {}
    for block in re.findall(r"(?:^    .*\n|^\n(?=    ))+", readme, flags=re.MULTILINE):
        text = re.sub(r"^    ", "", block, flags=re.MULTILINE).strip("\n") + "\n"
        if match := re.match(r"# ([\w.]+)\n", text):
            found[match[1]] = text
    return found


def test_the_first_ten_minutes_do_what_they_say(stack: Any, repository: Path) -> None:
    readme = (repository / "README.md").read_text()
    files = blocks(readme)
    assert set(files) == {"guess.py", "guess_reward.py", "guess.yaml"}
    for name, text in files.items():
        (stack.user_code / name).write_text(text)
    tried = re.findall(r"^    headrace ((?:env|reward) test .*)$", readme, flags=re.MULTILINE)
    assert len(tried) == 2
    for command in tried:
        done = headrace(stack, *shlex.split(command))
        assert done.returncode == 0, (command, done.stdout, done.stderr)
    job = yaml.safe_load(files["guess.yaml"])
    overrides = [f"model.path={stack.model}", "max_steps=3", "eval.at_start=false", "eval.at_end=false"]
    words = [word for override in overrides for word in ("--set", override)]
    done = headrace(stack, "submit", str(stack.user_code / "guess.yaml"), "--follow", *words)
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert f'"{job["tasks"][0]["name"]}"' in done.stdout.strip().splitlines()[-1]


def headrace(stack: Any, *words: str) -> "subprocess.CompletedProcess[str]":
    env = {**os.environ, "PYTHONPATH": str(stack.user_code), "HEADRACE_SERVER": stack.server}
    argv = [sys.executable, "-m", "headrace.cli", *words]
    return subprocess.run(argv, cwd=stack.user_code, env=env, capture_output=True, text=True, timeout=110, check=False)
