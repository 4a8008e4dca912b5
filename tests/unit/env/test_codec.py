"""Text to ids and back: append-only, one BOS, nothing rewritten, nothing lost."""

import time

import pytest
from testkit.tokenizers import CHATML, byte_tokenizer, files, with_bos

from env_svc.codec import Codec, as_messages
from env_svc.faults import EnvFault, JobRefused

THINKING = (
    "{% set last = namespace(i=-1) %}{% for m in messages %}{% if m.role == 'assistant' %}"
    "{% set last.i = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and loop.index0 != last.i %}{{ m.content.split('</think>')[-1].lstrip('\\n') }}"
    "{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
OPENED = CHATML.replace("<|im_start|>assistant\n", "<|im_start|>assistant\n<think>\n")
MERGING = (
    "{% for m in messages %}"
    "{% if m.role == 'tool' %}"
    "{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user\n{% endif %}"
    "[{{ m.content }}]"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>\n{% endif %}"
    "{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
USER = [{"role": "user", "content": "U1"}]


@pytest.fixture(scope="module")
def tokenizer():
    return byte_tokenizer(merges=[("a", "b")])


def make(tokenizer, template=CHATML, **settings):
    return Codec.from_files(files(tokenizer, template=template, **settings))


def encode(tokenizer, text):
    return tokenizer.encode(text, add_special_tokens=False).ids


async def test_sampled_ids_are_never_encoded_again(tokenizer):  # TOK-01
    codec = make(tokenizer)
    sampled = [tokenizer.token_to_id("a"), tokenizer.token_to_id("b")]
    assert codec.text(sampled) == "ab" and encode(tokenizer, "ab") != sampled
    row = await codec.first(USER) + sampled
    row += await codec.later([{"role": "tool", "content": "ab"}], sampled)
    assert tokenizer.decode(row, skip_special_tokens=False) == (
        "<|im_start|>user\nU1<|im_end|>\n<|im_start|>assistant\nab<|im_end|>\n"
        "<|im_start|>tool\nab<|im_end|>\n<|im_start|>assistant\n"
    )


async def test_an_end_mark_that_was_sampled_is_not_written_twice(tokenizer):  # TOK-07
    codec = make(tokenizer)
    end = tokenizer.token_to_id("<|im_end|>")
    sampled = [*encode(tokenizer, "hi"), end]
    with_end = await codec.later(USER, sampled)
    without = await codec.later(USER, sampled[:-1])
    assert without == [end, *with_end]
    assert tokenizer.decode(with_end, skip_special_tokens=False).startswith("\n<|im_start|>user")


async def test_a_row_is_the_template_of_the_whole_talk(tokenizer):  # TOK-11
    codec = make(tokenizer, MERGING)
    end = tokenizer.token_to_id("<|im_end|>")
    said = [*encode(tokenizer, "call"), end]
    results = [{"role": "tool", "content": "A"}, {"role": "tool", "content": "B"}]
    row = await codec.first(USER) + said + await codec.later(results, said)
    whole = [*USER, {"role": "assistant", "content": "call"}, *results]
    assert row == await codec.first(whole)
    assert "<|im_start|>user\n[A][B]<|im_end|>" in tokenizer.decode(row, skip_special_tokens=False)


async def test_a_template_that_drops_old_thoughts_cannot_touch_sampled_ids(tokenizer):  # TOK-02
    codec = make(tokenizer, THINKING)
    assert codec.rewrites_history and not make(tokenizer).rewrites_history
    end = tokenizer.token_to_id("<|im_end|>")
    first = await codec.first(USER)
    said = [*encode(tokenizer, "<think>t1</think>A1"), end]
    later = await codec.later([{"role": "user", "content": "U2"}], said)
    text = tokenizer.decode([*first, *said, *later], skip_special_tokens=False)
    assert "<think>t1</think>A1<|im_end|>\n<|im_start|>user\nU2<|im_end|>" in text


async def test_a_generation_prompt_that_opens_a_thought(tokenizer):  # TOK-12
    codec = make(tokenizer, OPENED)
    said = [*encode(tokenizer, "7*6=42</think>\n\n42"), tokenizer.token_to_id("<|im_end|>")]
    row = await codec.first(USER) + said
    text = tokenizer.decode(row, skip_special_tokens=False)
    assert text.endswith("<think>\n7*6=42</think>\n\n42<|im_end|>") and text.count("<think>") == 1


@pytest.mark.parametrize("template", ["<s>" + CHATML, None])
async def test_exactly_one_bos(template):  # TOK-09
    tokenizer = with_bos(byte_tokenizer())
    bos = tokenizer.token_to_id("<s>")
    codec = make(tokenizer, template, bos_token="<s>")
    ids = await codec.first(USER)
    assert ids[0] == bos and ids.count(bos) == 1
    assert bos not in await codec.later(USER, ids[-1:])


async def test_bos_that_only_the_settings_ask_for():
    tokenizer = byte_tokenizer()
    bos = tokenizer.token_to_id("<s>")
    asked = make(tokenizer, None, bos_token={"content": "<s>"}, add_bos_token=True)
    unasked = make(tokenizer, None, bos_token="<s>")
    assert (await asked.first(USER))[0] == bos
    assert bos not in await unasked.first(USER)
    assert (await asked.first([{"role": "user", "content": "<s>x"}])).count(bos) == 1


async def test_special_tokens_in_the_middle_stay(tokenizer):  # TOK-15
    codec = make(tokenizer)
    special = tokenizer.token_to_id("<s>")
    ids = [tokenizer.token_to_id("a"), special, tokenizer.token_to_id("b")]
    assert codec.text(ids) == "a<s>b"
    later = await codec.later([{"role": "tool", "content": "obs"}], ids)
    assert "tool\nobs<|im_end|>" in tokenizer.decode(later, skip_special_tokens=False)


def test_only_a_stop_token_at_the_end_is_left_out_of_the_text(tokenizer):
    codec = make(tokenizer)
    (end,) = codec.stop_token_ids(())
    ids = [end, tokenizer.token_to_id("a"), end]
    assert codec.text(ids, (end,)) == "<|im_end|>a"
    assert codec.text([], (end,)) == ""


def test_characters_split_over_tokens(tokenizer):  # TOK-10
    codec = make(tokenizer)
    globe = encode(tokenizer, "\U0001f30d")
    assert len(globe) == 4 and codec.text(globe) == "\U0001f30d"
    assert codec.text(globe[:3]).count("\ufffd") == 1
    mixed = "価格 abc \U0001f6d2 \u202e"
    assert codec.text(encode(tokenizer, mixed)) == mixed


def test_replacement_characters_that_were_sampled_are_text(tokenizer):  # TOK-16
    codec = make(tokenizer)
    real = encode(tokenizer, "\ufffd")
    assert codec.text(real * 200) == "\ufffd" * 200

    def seconds(n):
        ids = real * n
        started = time.process_time()
        codec.text(ids)
        return time.process_time() - started

    codec.text(real * 20_000)
    shorter, longer = (min(seconds(n) for _ in range(5)) for n in (20_000, 80_000))
    assert longer < 4 * 2.5 * shorter  # four times the tokens; quadratic work would take 16 times as long


async def test_cut_by_tokens(tokenizer):  # EN-08
    codec = make(tokenizer)
    text = "Prix réduit: 12 € - 価格 - \u202e abc - \U0001f6d2"
    assert await codec.cut(text, 1000) == (text, False)
    for limit in range(1, 60):
        head, was_cut = await codec.cut(text, limit)
        assert text.startswith(head) and was_cut == (head != text)
        # A character whose bytes straddle the limit may stay whole.
        assert len(encode(tokenizer, head)) <= limit + 3


async def test_megabytes_are_cut_without_encoding_them(tokenizer):
    head, was_cut = await make(tokenizer).cut("x" * 5_000_000, 16)
    assert head == "x" * 16 and was_cut


def test_stops_are_single_tokens_and_the_models_end(tokenizer):
    codec = make(tokenizer)
    end, start = (tokenizer.token_to_id(t) for t in ("<|im_end|>", "<|im_start|>"))
    assert codec.stop_token_ids(["<|im_start|>", "<|im_end|>", "x"]) == (start, end, tokenizer.token_to_id("x"))
    with pytest.raises(JobRefused, match="'stop here' is 9 tokens"):
        codec.stop_token_ids(["stop here"])


def test_end_ids_from_configs(tokenizer):
    given = files(tokenizer, eos="")
    given["generation_config.json"] = b'{"eos_token_id": [5, 6]}'
    assert Codec.from_files(given).stop_token_ids(()) == (5, 6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokenizer.json": None}, "tokenizer.json is missing"),
        ({"tokenizer.json": b"{}"}, "tokenizer.json cannot be read"),
        ({"config.json": b"["}, "config.json is not JSON"),
        ({"chat_template.jinja": b"{% if %}"}, "cannot be compiled"),
    ],
)
def test_broken_files_are_named(tokenizer, change, message):
    given = {name: data for name, data in (files(tokenizer) | change).items() if data is not None}
    with pytest.raises(JobRefused, match=message):
        Codec.from_files(given)


async def test_a_template_that_refuses_or_reaches_out(tokenizer):
    refusing = make(tokenizer, "{{ raise_exception('no system role') }}")
    with pytest.raises(EnvFault, match="no system role"):
        await refusing.first(USER)
    reaching = make(tokenizer, "{{ messages.__class__.__mro__ }}")
    with pytest.raises(EnvFault, match="template_error"):
        await reaching.first(USER)
    silent = make(tokenizer, "x{% if add_generation_prompt %}y{% endif %}")
    with pytest.raises(EnvFault, match="assistant's content"):
        await silent.later(USER, [1])


def test_observations_as_messages():
    assert as_messages("x", "tool") == [{"role": "tool", "content": "x"}]
    assert as_messages(USER, "tool") == USER


async def test_demo_like_templates_and_tools(tokenizer):
    template = "{% if tools %}{{ tools | tojson }}{% endif %}" + CHATML
    ids = await make(tokenizer, template).first(USER, [{"name": "é"}])
    assert tokenizer.decode(ids, skip_special_tokens=False).startswith('[{"name": "é"}]<|im_start|>user')
