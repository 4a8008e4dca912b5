"""Environment service, real proxy, real workers with the scripted engine: episodes live through swaps and losses."""

import pytest
from testkit.controls import RecordingControl
from testkit.engines import VOCAB_SIZE
from testkit.env_services import running_env
from testkit.proxy_stack import running_stack, until
from testkit.runners import RunnerSide, spec
from testkit.tokenizers import files
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

ENTRIES = ["<|user|>", "<|assistant|>", "<|end|>", "<|unk|>", "Left", "Down", "Right", "Up", *"SFHG#0123456789"]
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'assistant' %}<|assistant|>{{ m.content }}<|end|>"
    "{% else %}<|user|>{{ m.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
LAKE = {
    "env": {
        "entry_point": "env_svc.environments.frozen_lake:FrozenLake",
        "config": {"max_turns": 6},
        "timeouts": {"reset_s": 5, "step_s": 5, "episode_s": 30},
    },
    "sampling": {"max_tokens": 12},
    "on_length": "act",
}


def lake_files():
    # The tiny model speaks 48 ids; each of them has to mean something.
    entries = [*ENTRIES, *(f"x{number}" for number in range(VOCAB_SIZE - len(ENTRIES)))]
    vocabulary = {entry: index for index, entry in enumerate(entries)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<|unk|>"))
    split = pre_tokenizers.Split(Regex(r"Left|Down|Right|Up|\S"), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), split])
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(["<|user|>", "<|assistant|>", "<|end|>"])
    return files(tokenizer, template=TEMPLATE, eos="<|end|>")


def check(env, done):
    """A stored row agrees with itself and with its outcome."""
    tokens = env.tokens(done.token_blob)
    n_generated = sum(span.n_tokens for span in tokens.spans)
    assert n_generated == len(tokens.logprobs) == sum(s.n_tokens for s in tokens.segments) == done.n_generated_tokens
    assert len(tokens.token_ids) == done.n_tokens and all(lp <= 0 for lp in tokens.logprobs)
    assert all(s.weight_digest and s.worker_id for s in tokens.segments)
    versions = [s.policy_version for s in tokens.segments]
    assert versions == sorted(versions)
    return versions


@pytest.mark.parametrize("mode", ["continue", "discard"])
async def test_episodes_live_through_a_swap(mode):
    async with (
        running_stack() as stack,
        RecordingControl() as control,
        running_env(control) as env,
        RunnerSide(env.address, spec(LAKE, max_len=256), lake_files(), stack.address) as runner,
    ):
        for number in range(16):
            await runner.assign(f"t{number}", env_seed=number // 8, sampling_seed=number)
        await until(lambda: len(runner.started) >= 16)
        await stack.serve(2, mode=mode)
        outcomes = await runner.finals(16, timeout_s=30)
        assert {o.finish_reason for o in outcomes} <= {"completed", "env_truncated"}, outcomes
        versions = [check(env, done) for done in outcomes]
        assert any(1 in row for row in versions) and any(2 in row for row in versions)
        last_started = dict(runner.started)
        assert {o.key.trajectory_id: o.segments[0].policy_version for o in outcomes} == last_started
        assert (sum(o.discarded_tokens for o in outcomes) > 0) == (mode == "discard")


async def test_episodes_live_through_a_lost_worker():
    async with (
        running_stack() as stack,
        RecordingControl() as control,
        running_env(control) as env,
        RunnerSide(env.address, spec(LAKE, max_len=256), lake_files(), stack.address) as runner,
    ):
        for number in range(8):
            await runner.assign(f"t{number}", env_seed=number, sampling_seed=number)
        await until(lambda: len(runner.started) >= 8)
        gone = stack.workers.pop("inference-0@a")
        await gone.stop()
        await stack.name_workers()
        outcomes = await runner.finals(8, timeout_s=30)
        for done in outcomes:
            assert done.finish_reason in ("completed", "env_truncated"), done
            check(env, done)


async def test_an_abort_frees_the_workers():
    async with (
        running_stack(n_workers=1, options={"t0_s": 0.1}) as stack,
        RecordingControl() as control,
        running_env(control) as env,
        RunnerSide(env.address, spec(LAKE, max_len=256), lake_files(), stack.address) as runner,
    ):
        await runner.assign("t0")
        await until(lambda: stack.load == 1)
        await runner.abort("t0", "evicted_stale")
        assert (await runner.final()).fault.code == "evicted_stale"
        await until(lambda: stack.load == 0)
