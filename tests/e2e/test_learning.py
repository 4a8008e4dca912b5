"""A job as a person submits it: success must rise, everything must be accounted for, the model must load."""

from typing import Any

import pytest


def test_success_rises_and_every_token_is_accounted_for(stack: Any) -> None:
    spec = stack.spec(
        name="learns",
        max_steps=16,
        batch={"groups": 8, "group_size": 8},
        tasks=[
            {
                "name": "say_move",
                "env": {"entry_point": "testkit.job_environments:SayMove", "max_turns": 1},
                "sampling": {"max_tokens": 2},
                "rewards": [{"env": True}],
            }
        ],
        optimizer={"lr": 1e-2},
        eval={"episodes": 32, "at_start": True, "at_end": True},
    )
    with stack.api() as api:
        job = api.submit(spec)
        job = stack.wait(job["id"])
        assert job["phase"] == "succeeded", job["reason"]
        result = job["result"]
        sampled = result["tasks"]["say_move"]["sampled"]
        assert sampled["after"] >= sampled["before"] + 0.3, result
        assert result["ledger_balanced"] is True
        assert result["max_trained_lag"] <= 1
        assert result["engine_trainer_logprob_gap"] <= 1e-4
        assert api.of_job(job["id"], "ledger")["balanced"] is True
        steps = list(api.pages(f"/jobs/{job['id']}/steps", limit=100))
        assert len(steps) == 16
        for step in steps:
            assert step["metrics"]["logprob_gap/n_tokens"] >= 256
            assert step["metrics"]["logprob_gap/mean"] <= 1e-4
        _every_trained_token_is_joined(api, job["id"])
    _loads(result["model"])


def _every_trained_token_is_joined(api: Any, job_id: str) -> None:
    """To a version that was published with that digest, a worker, and a behaviour logprob."""
    digests = {v["policy_version"]: v["manifest_digest"] for v in api.pages(f"/jobs/{job_id}/versions", limit=100)}
    trained = list(api.pages(f"/jobs/{job_id}/trajectories", limit=64, state="trained"))
    assert trained
    for row in trained[:16]:
        detail = api.get(f"/trajectories/{row['trajectory_id']}")
        tokens = api.get(f"/trajectories/{row['trajectory_id']}/tokens")
        segments = detail["attempts"][-1]["segments"] if "attempts" in detail else detail["segments"]
        assert sum(segment["n_tokens"] for segment in segments) == row["n_generated_tokens"]
        for segment in segments:
            assert digests[segment["policy_version"]] == segment["weight_digest"]
            assert segment["worker_id"]
        n_generated = sum(1 for mask in tokens["mask"] if mask)
        assert n_generated == row["n_generated_tokens"]
        assert sum(1 for logprob in tokens["logprobs"] if logprob is not None) == n_generated


def _loads(path: str) -> None:
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    assert model.config.vocab_size >= len(tokenizer)
