"""Whole episodes over real gRPC: environment service, scripted proxy, recording control plane."""

import json

import pytest
from testkit.controls import RecordingControl
from testkit.env_services import running_env
from testkit.proxies import LENGTH, ScriptedProxy, Turn
from testkit.runners import RunnerSide, spec
from testkit.tokenizers import byte_tokenizer, files

from headrace.core.seeds import derive

TOKENIZER = byte_tokenizer(merges=[("a", "b")])
FILES = files(TOKENIZER)
END = TOKENIZER.token_to_id("<|im_end|>")


TEXTS = ["ok\x00tail", "lone \ud800 surrogate", "literal \\u0000 stays", "Prix réduit 価格 €\u202e \U0001f6d2"]


def ids(text):
    return TOKENIZER.encode(text, add_special_tokens=False).ids


def says(text, **more):
    """A model that always says ``text`` and its end mark."""
    return lambda _start: Turn([*ids(text), END], **more)


@pytest.fixture
async def control():
    async with RecordingControl() as control:
        yield control


async def play(control, script, task=None, *, n=1, spec_options=None, **assign):
    """One job, ``n`` attempts; returns the environment process, the proxy and the outcomes."""
    async with (
        ScriptedProxy(script) as proxy,
        running_env(control) as env,
        RunnerSide(env.address, spec(task, **(spec_options or {})), FILES, proxy.address) as runner,
    ):
        for number in range(n):
            await runner.assign(f"t{number}", **assign)
        outcomes = await runner.finals(n, timeout_s=20)
        return env, proxy, outcomes, runner


async def test_an_episode_from_reset_to_blobs(control):
    env, proxy, (done,), runner = await play(control, says("yo", version=3))
    assert (done.finish_reason, done.is_truncated, done.n_turns) == ("completed", False, 3)
    assert done.env_reward == 1.0 and done.env_worker_id == "env-0@test"
    assert runner.started == [("t0", 3)]
    tokens = env.tokens(done.token_blob)
    text = TOKENIZER.decode(list(tokens.token_ids), skip_special_tokens=False)
    turn = "<|im_start|>assistant\nyo<|im_end|>\n"
    assert text == (
        f"<|im_start|>user\nhello<|im_end|>\n{turn}<|im_start|>user\nheard yo<|im_end|>\n"
        f"{turn}<|im_start|>user\nheard yo<|im_end|>\n{turn}"
    ).removesuffix("\n")
    sampled = [*ids("yo"), END]
    assert [list(tokens.token_ids)[s.start : s.start + s.n_tokens] for s in tokens.spans] == [sampled] * 3
    assert list(tokens.logprobs) == pytest.approx([-i / 100 for i in sampled] * 3, abs=1e-6)
    assert [(s.policy_version, s.weight_digest, s.n_tokens) for s in tokens.segments] == [(3, "digest-3", 9)]
    assert (done.n_tokens, done.n_generated_tokens) == (len(tokens.token_ids), 9)
    assert [(r.turn, r.reward) for r in tokens.turn_rewards] == [(2, 1.0)]
    # Every prompt is the row so far, id for id, with seeds and epochs of its own.
    row = list(tokens.token_ids)
    for start, span in zip(proxy.starts, tokens.spans, strict=True):
        assert list(start.prompt_token_ids) == row[: span.start]
        assert start.sampling.seed == derive(7, start.turn)
    assert done.phases.total_s >= done.phases.generate_s > 0


async def test_the_graders_document(control):
    env, _, (done,), _ = await play(control, says("yo"))
    document = json.loads(env.control.blobs[done.grading_blob])
    assert document["completion"] == "yo" and document["completions"] == ["yo"] * 3
    assert document["answer"] == "42" and document["task"] == "echo" and document["env_reward"] == 1.0
    assert [m["role"] for m in document["messages"]] == ["user", "assistant"] * 3
    assert document["info"] == {"answer": "42", "seed": 1, "turn": 3}


async def test_a_turn_that_was_cut_ends_the_episode_truncated(control):  # TOK-04, variant 2
    task = {"env": {"config": {"reward": -1.0, "n_turns": 1}}, "overflow_reward": -0.25}
    _, _, (done,), _ = await play(control, lambda start: Turn([1] * start.sampling.max_new_tokens, LENGTH), task)
    assert (done.finish_reason, done.is_truncated, done.invalid_actions) == ("max_tokens", True, 0)
    assert done.env_reward == -0.25 and done.n_generated_tokens == 16


async def test_the_window_bounds_what_is_asked_for(control):  # TOK-04
    prompt = len(ids("<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"))
    _, proxy, (done,), _ = await play(
        control,
        lambda start: Turn([1] * start.sampling.max_new_tokens, LENGTH),
        spec_options={"max_len": prompt + 4},
    )
    assert proxy.starts[0].sampling.max_new_tokens == 4
    assert (done.finish_reason, done.n_tokens, done.env_reward) == ("context_length", prompt + 4, 0.0)


async def test_a_finished_episode_keeps_its_reward_in_a_full_window(control):  # TOK-04, variant 1
    prompt = len(ids("<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"))
    task = {"env": {"config": {"n_turns": 1}}}
    _, _, (done,), _ = await play(control, lambda _: Turn([1, END]), task, spec_options={"max_len": prompt + 2})
    assert (done.finish_reason, done.is_truncated, done.env_reward) == ("completed", False, 1.0)


async def test_a_prompt_that_does_not_fit_is_refused_with_a_reason(control):  # TOK-13
    _, _, (lost,), _ = await play(control, says("x"), spec_options={"max_len": 10})
    assert (lost.fault.code, lost.fault.kind, lost.fault.retryable) == ("prompt_too_long", "env", False)


async def test_parallel_tool_results_are_one_observation(control):  # TOK-11
    task = {"env": {"entry_point": "testkit.environments:Tools", "max_turns": 2}}
    env, _, (done,), _ = await play(control, says("call"), task)
    assert done.finish_reason == "max_turns" and not done.HasField("env_reward")
    text = TOKENIZER.decode(list(env.tokens(done.token_blob).token_ids), skip_special_tokens=False)
    assert "call<|im_end|>\n<|im_start|>tool\nA<|im_end|>\n<|im_start|>tool\nB<|im_end|>\n<|im_start|>assistant" in text


async def test_a_broken_tool_call_is_an_observation_and_no_fault(control):  # TOK-03, EN-07
    answers = iter(['{"name": "add", "arguments": {"a": 3, "b": ', '{"name": "add", "arguments": {"a": 3, "b": 4}}'])
    task = {"env": {"entry_point": "testkit.environments:JsonTools"}, "sampling": {"max_tokens": 60}}
    env, _, (done,), _ = await play(
        control, lambda _: Turn([*ids(next(answers)), END]), task, spec_options={"max_len": 512}
    )
    assert (done.finish_reason, done.n_turns, done.invalid_actions, done.env_reward) == ("completed", 2, 1, 1.0)
    document = json.loads(control.blobs[done.grading_blob])
    assert document["info"]["calls"] == [{"a": 3, "b": 4}]  # what did not parse was not run
    assert [m["role"] for m in document["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert document["env"] == {"entry_point": "testkit.environments:JsonTools", "version": "2024.1"}
    tokens = env.tokens(done.token_blob)
    row, sampled = list(tokens.token_ids), {i for s in tokens.spans for i in range(s.start, s.start + s.n_tokens)}
    told = TOKENIZER.decode([row[i] for i in range(len(row)) if i not in sampled], skip_special_tokens=False)
    assert "tool\nthe tool call is not valid JSON" in told  # told to the model, without a loss


@pytest.mark.parametrize("isolation", ["inline", "thread", "process"])
async def test_the_version_of_the_environment_is_kept(control, isolation):  # EN-07
    task = {"env": {"entry_point": "testkit.environments:JsonTools", "isolation": isolation, "max_turns": 1}}
    _, _, (done,), _ = await play(control, says("[]"), task)
    assert done.invalid_actions == 1
    assert json.loads(control.blobs[done.grading_blob])["env"]["version"] == "2024.1"


@pytest.mark.parametrize("entry_point", ["AsyncEcho", "InProcess"])
async def test_async_and_isolated_environments(control, entry_point):
    task = {"env": {"entry_point": f"testkit.environments:{entry_point}"}}
    _, _, (done,), _ = await play(control, says("yo"), task)
    assert done.finish_reason == "completed" and done.HasField("env_reward")


async def test_threads(control):
    _, _, (done,), _ = await play(control, says("yo"), {"env": {"isolation": "thread"}})
    assert done.finish_reason == "completed"


async def test_reward_none_is_left_to_graders_and_never_filled(control):  # ADV-08
    task = {"env": {"config": {"reward": None}}, "rewards": [{"fn": "x:y"}]}
    _, _, (done,), _ = await play(control, says("yo"), task)
    assert not done.HasField("env_reward")


async def test_greedy_and_pinned(control):
    _, proxy, _, _ = await play(control, says("yo"), greedy=True, pinned_version=4)
    start = proxy.starts[0]
    assert (start.sampling.temperature, start.pinned_version) == (0.0, 4)
    assert start.HasField("pinned_version")


async def test_siblings_share_the_environment_seed_and_differ_in_sampling(control):  # EN-03, SEED-01
    async with (
        ScriptedProxy(says("yo")) as proxy,
        running_env(control) as env,
        RunnerSide(env.address, spec(), FILES, proxy.address) as runner,
    ):
        for sibling in range(4):
            await runner.assign(f"t{sibling}", env_seed=5, sampling_seed=derive(7, "g", sibling))
        done = await runner.finals(4)
    seeds = {json.loads(control.blobs[d.grading_blob])["info"]["seed"] for d in done}
    assert seeds == {5}
    assert len({start.sampling.seed for start in proxy.starts}) == 12


@pytest.mark.parametrize(
    "text", ["ok\x00tail", "lone \ud800 surrogate", "literal \\u0000 stays", "価格 €\u202e \U0001f6d2"]
)
@pytest.mark.parametrize("entry_point", ["Echo", "InProcess"])
async def test_text_that_databases_refuse(control, text, entry_point):  # RS-01, EN-08
    env = {"entry_point": f"testkit.environments:{entry_point}", "config": {"first": text, "n_turns": 1}}
    running, _, (done,), _ = await play(control, says("yo"), {"env": env})
    clean = text.replace("\x00", "\ufffd").replace("\ud800", "\ufffd")
    assert done.nul_replaced == (clean != text)
    document = json.loads(control.blobs[done.grading_blob].decode("utf-8"))
    assert document["messages"][0]["content"] == clean
    prompt = TOKENIZER.decode(list(running.tokens(done.token_blob).token_ids), skip_special_tokens=False)
    assert clean in prompt


@pytest.mark.parametrize("entry_point", ["Echo", "InProcess"])
async def test_five_megabytes_of_observation(control, entry_point):
    env = {"entry_point": f"testkit.environments:{entry_point}", "config": {"first": "x" * 5_000_000}}
    _, _, (lost,), _ = await play(control, says("yo"), {"env": env})
    assert (lost.fault.code, lost.fault.kind) == ("observation_too_large", "env")
    assert "max_observation_tokens" in lost.fault.detail
    _, _, (done,), _ = await play(control, says("yo"), {"env": env, "max_observation_tokens": 50})
    assert done.finish_reason == "completed" and done.observations_cut == 1
