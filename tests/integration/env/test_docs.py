"""The samples of the environment and reward guides work as they stand there."""

import importlib
import json
import re
import sys

import pytest
import yaml

from env_svc.hosts import open_host
from env_svc.process_host import ProcessPool
from env_svc.spec import PluginSpec, parse_job_spec
from headrace.client.jobspec.tasks import TaskBlock
from reward_svc.call import Score, grade


def blocks(repository, page, language):
    return re.findall(rf"```{language}\n(.*?)```", (repository / "docs" / page).read_text(), re.DOTALL)


@pytest.fixture
def sample(tmp_path, monkeypatch):
    """Makes a module of a page's code."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(name, code):
        (tmp_path / f"{name}.py").write_text(code)
        importlib.invalidate_caches()
        return importlib.import_module(name)

    yield make
    for name in ("sample_environment", "sample_rewards"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("isolation", ["auto", "process"])
async def test_the_sample_environment_plays(repository, sample, isolation):
    (code,) = blocks(repository, "environments.md", "python")
    module = sample("sample_environment", code)
    pool = ProcessPool(1)
    host = await open_host(PluginSpec("sample_environment:GuessNumber", {"highest": 50}, "train", isolation), pool)
    try:
        reset = await host.reset(5, 10)
        assert "1 to 50" in reset.observation
        low, high, step = 1, 50, None
        assert (await host.step("fifty", 5)).info == {"is_valid": False}
        while step is None or not step.terminated:
            middle = (low + high) // 2
            step = await host.step(str(middle), 5)
            low, high = (middle + 1, high) if step.observation == "higher" else (low, middle - 1)
        assert step.reward == 1.0 and reset.info["answer"] == str(middle)
    finally:
        await host.close()
        await pool.close()
    assert module.GuessNumber.isolation == "inline"


def test_the_sample_graders_score(repository, sample):
    (code,) = blocks(repository, "rewards.md", "python")
    module = sample("sample_rewards", code)
    document = {"completion": " 42 ", "completions": ["one two", " 42 "], "answer": "42", "info": {}}
    assert grade(module.exact, document) == Score(1.0)
    assert grade(module.brevity, document) == Score(0.97, {"n_words": 3.0})
    assert grade(module.cites, document) == Score(None)
    assert grade(module.cites, document | {"info": {"sources": ["42", "43"]}}) == Score(0.5)


@pytest.mark.parametrize("page", ["environments.md", "rewards.md"])
def test_the_sample_jobs_are_valid(repository, page):
    (text,) = blocks(repository, page, "yaml")
    tasks = [TaskBlock.model_validate_json(json.dumps(task)) for task in yaml.safe_load(text)["tasks"]]
    resolved = {"tasks": [task.model_dump(mode="json") for task in tasks], "model": {"max_len": 256}}
    assert list(parse_job_spec(json.dumps(resolved)).tasks) == [task.name for task in tasks]
