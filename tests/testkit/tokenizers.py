"""Small tokenizers and chat templates, as the files that a manifest carries."""

import json
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIALS = ["<|im_start|>", "<|im_end|>", "<s>"]


def byte_tokenizer(merges: list[tuple[str, str]] = (), specials: list[str] = SPECIALS) -> Tokenizer:  # type: ignore[assignment]
    """Byte-level BPE: every byte is a token, plus ``merges``, plus special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {piece: index for index, piece in enumerate([*alphabet, *("".join(pair) for pair in merges)])}
    tokenizer = Tokenizer(models.BPE(vocabulary, list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in specials])
    return tokenizer


def files(
    tokenizer: Tokenizer, *, template: str | None = CHATML, eos: str = "<|im_end|>", **settings: Any
) -> dict[str, bytes]:
    """A model's small files."""
    config = {"eos_token": eos, **settings}
    given = {
        "tokenizer.json": tokenizer.to_str().encode(),
        "tokenizer_config.json": json.dumps(config).encode(),
        "config.json": json.dumps({"max_position_embeddings": 4096}).encode(),
    }
    if template is not None:
        given["chat_template.jinja"] = template.encode()
    return given


def with_bos(tokenizer: Tokenizer, bos: str = "<s>") -> Tokenizer:
    """The same tokenizer, adding BOS wherever special tokens are asked for."""
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", special_tokens=[(bos, tokenizer.token_to_id(bos))]
    )
    return tokenizer
