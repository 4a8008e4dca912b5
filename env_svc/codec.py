"""Text to token ids and back, append-only: what was said is never tokenised again.

Two modes. With a chat template in the model's files, messages are rendered by it; without one, text is encoded as it
is. In both, a later observation is encoded on its own and appended:

    row:  [template(first messages)] [sampled ids] [what the template puts between an answer and the next one] …

The middle part is found by rendering a stand-in conversation whose answer is a mark, and taking what follows the mark;
so a template that rewrites older turns (drops their thoughts) cannot touch ids that were sampled.
"""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from env_svc.contract import Observation
from env_svc.faults import EnvFault, JobRefused

ANSWER_MARK = "⟪headrace:answer⟫"
CACHED_TEXTS = 20_000
LONG_TEXT = 32_768
CHARACTERS_PER_TOKEN = 32

Messages = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The small files of a model that say how text becomes ids."""

    tokenizer: Tokenizer
    settings: Mapping[str, Any]  # tokenizer_config.json
    chat_template: str | None
    eos_token_ids: tuple[int, ...]
    max_len: int | None  # the model's own window

    @classmethod
    def parse(cls, files: Mapping[str, bytes]) -> "ModelFiles":
        """From file names and contents. Raises JobRefused, naming the file."""
        if "tokenizer.json" not in files:
            raise JobRefused(f"model_files: tokenizer.json is missing (have: {', '.join(sorted(files)) or 'nothing'})")
        try:
            tokenizer = Tokenizer.from_str(files["tokenizer.json"].decode("utf-8"))
        except Exception as error:
            raise JobRefused(f"model_files: tokenizer.json cannot be read: {error}") from error
        tokenizer.no_padding()
        tokenizer.no_truncation()
        settings, config = _json(files, "tokenizer_config.json"), _json(files, "config.json")
        generation = _json(files, "generation_config.json")
        return cls(
            tokenizer=tokenizer,
            settings=settings,
            chat_template=_template(files, settings),
            eos_token_ids=_eos(tokenizer, settings, config, generation),
            max_len=config.get("max_position_embeddings"),
        )


class Codec:
    """Encoder and decoder of one model. ``max_len``: the model's own window, None where its files do not say."""

    def __init__(self, files: ModelFiles) -> None:
        self._tokenizer = files.tokenizer
        self._eos = files.eos_token_ids
        self.max_len = files.max_len
        self._names = {name: _content(files.settings.get(name)) for name in _SPECIAL_NAMES}
        self._adds_bos = bool(files.settings.get("add_bos_token"))
        self._render = _renderer(files.chat_template, self._names) if files.chat_template else None
        self._encode_cached = lru_cache(CACHED_TEXTS)(self._encode)
        self._later_cached = lru_cache(CACHED_TEXTS)(self._later_text)
        self.rewrites_history = self._render is not None and _rewrites_history(self._render)

    @classmethod
    def from_files(cls, files: Mapping[str, bytes]) -> "Codec":
        """Raises JobRefused."""
        return cls(ModelFiles.parse(files))

    @property
    def has_template(self) -> bool:
        """Whether messages are rendered by a chat template."""
        return self._render is not None

    def stop_token_ids(self, stop: Sequence[str]) -> tuple[int, ...]:
        """Ids that end a turn: the model's end of sequence and the named tokens.

        Raises:
            JobRefused: a stop is not exactly one token.
        """
        named = []
        for text in stop:
            token_id = self._tokenizer.token_to_id(text)
            ids = [token_id] if token_id is not None else self._encode(text)
            if len(ids) != 1:
                raise JobRefused(f"sampling.stop: {text!r} is {len(ids)} tokens; name single tokens")
            named.append(ids[0])
        return tuple(dict.fromkeys([*named, *self._eos]))

    async def first(self, messages: Messages, tools: Any = None) -> list[int]:
        """Ids of the opening messages, up to where the model's first turn begins; one BOS, if the model has one.

        Raises:
            EnvFault: ``template_error``.
        """
        if self._render is None:
            return await self._off_loop(_plain(messages), self._encode_first)
        text = self._rendered(messages, tools)
        return await self._off_loop(text, self._encode_cached)

    async def later(self, messages: Messages, turn_ids: Sequence[int]) -> list[int]:
        """Ids between the model's last token and its next turn, for what was observed since.

        ``turn_ids`` are the sampled ids of the turn before: an end mark that the model itself produced is not
        written twice.
        """
        if self._render is None:
            return await self._off_loop(_plain(messages), self._encode_cached)
        text = self._later_cached(json.dumps(messages))
        end = self._tokenizer.id_to_token(turn_ids[-1]) if turn_ids else None
        return await self._off_loop(text.removeprefix(end) if end else text, self._encode_cached)

    def text(self, token_ids: Sequence[int], stop_token_ids: Sequence[int] = ()) -> str:
        """Text of sampled ids without the stop token that ended them; other special tokens stay visible."""
        ids = list(token_ids)
        if ids and ids[-1] in stop_token_ids:
            ids.pop()
        return self._tokenizer.decode(ids, skip_special_tokens=False)

    async def cut(self, text: str, max_tokens: int) -> tuple[str, bool]:
        """The longest beginning of ``text`` that is at most ``max_tokens`` tokens, and whether something was cut."""
        # Tokens longer than this on average are no text, and encoding megabytes to keep a page of them is wasteful.
        head = text[: max_tokens * CHARACTERS_PER_TOKEN]
        encoding = self._tokenizer.encode(head, add_special_tokens=False)
        if len(encoding.ids) > max_tokens:
            head = head[: encoding.offsets[max_tokens - 1][1]]
        return head, len(head) < len(text)

    async def _off_loop(self, text: str, encode: Callable[[str], tuple[int, ...]]) -> list[int]:
        if len(text) < LONG_TEXT:
            return list(encode(text))
        return list(await asyncio.to_thread(encode, text))

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def _encode_first(self, text: str) -> tuple[int, ...]:
        ids = self._encode(text)
        bos = self._tokenizer.token_to_id(self._names["bos_token"]) if self._names["bos_token"] else None
        if bos is None or (ids and ids[0] == bos):
            return ids
        is_added = self._adds_bos or self._tokenizer.encode("", add_special_tokens=True).ids[:1] == [bos]
        return (bos, *ids) if is_added else ids

    def _later_text(self, messages_json: str) -> str:
        stand_in = [{"role": "user", "content": "u"}, {"role": "assistant", "content": ANSWER_MARK}]
        text = self._rendered([*stand_in, *json.loads(messages_json)], None)
        _, mark, after = text.partition(ANSWER_MARK)
        if not mark:
            raise EnvFault("template_error", "the chat template does not write the assistant's content as it is")
        return after

    def _rendered(self, messages: Messages, tools: Any) -> str:
        assert self._render is not None
        try:
            return self._render(messages, tools, True)
        except TemplateError as error:
            raise EnvFault("template_error", f"the chat template refused the messages: {error}") from error


Renderer = Callable[[Messages, Any, bool], str]
_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token")


def as_messages(observation: Observation, role: str) -> Messages:
    """An observation as chat messages; plain text speaks as ``role``."""
    return [{"role": role, "content": observation}] if isinstance(observation, str) else observation


def _plain(messages: Messages) -> str:
    return "\n".join(str(message["content"]) for message in messages)


def _renderer(source: str, names: Mapping[str, str]) -> Renderer:
    def refuse(message: str) -> None:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
    environment.globals["raise_exception"] = refuse
    try:
        template = environment.from_string(source)
    except TemplateError as error:
        raise JobRefused(f"model_files: the chat template cannot be compiled: {error}") from error

    def render(messages: Messages, tools: Any, add_generation_prompt: bool) -> str:
        given = {name: value for name, value in names.items() if value}
        return template.render(
            messages=messages, tools=tools, add_generation_prompt=add_generation_prompt, documents=None, **given
        )

    return render


def _rewrites_history(render: Renderer) -> bool:
    """Whether an older turn looks different once another follows it."""
    thought = "<think>\nt\n</think>\n\nA"
    talk = [{"role": "user", "content": "U"}, {"role": "assistant", "content": thought}]
    try:
        before = render(talk, None, False)
        after = render([*talk, *talk], None, False)
    except TemplateError:
        return False
    return not after.startswith(before)


def _json(files: Mapping[str, bytes], name: str) -> dict[str, Any]:
    if name not in files:
        return {}
    try:
        value = json.loads(files[name])
    except ValueError as error:
        raise JobRefused(f"model_files: {name} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise JobRefused(f"model_files: {name} is not a JSON object")
    return value


def _template(files: Mapping[str, bytes], settings: Mapping[str, Any]) -> str | None:
    if "chat_template.jinja" in files:
        return files["chat_template.jinja"].decode("utf-8")
    template = settings.get("chat_template")
    if isinstance(template, list):  # named templates
        named = {entry["name"]: entry["template"] for entry in template}
        return named.get("default")
    return template


def _content(token: Any) -> str:
    """A special token's text; files write it plain or as an object."""
    return str(token.get("content", "")) if isinstance(token, Mapping) else str(token or "")


def _eos(tokenizer: Tokenizer, *sources: Mapping[str, Any]) -> tuple[int, ...]:
    settings, *configs = sources
    ids: list[int] = []
    named = tokenizer.token_to_id(_content(settings.get("eos_token")))
    if named is not None:
        ids.append(named)
    for config in configs:
        given = config.get("eos_token_id")
        ids += given if isinstance(given, list) else [given] if given is not None else []
    return tuple(dict.fromkeys(ids))
