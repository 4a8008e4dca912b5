"""Reading a Hugging Face model directory: what it is, its small files, its parameters."""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from trainer_svc.errors import ModelUnusable

_SMALL_SUFFIXES = {".json", ".jinja", ".txt", ".model"}
_SMALL_BYTES = 64 << 20
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What a directory's config says, before any weight is loaded."""

    architecture: str
    vocab_size: int
    max_len: int


def inspect(path: str) -> ModelFacts:
    """Raises ModelUnusable with what is missing."""
    folder = Path(path)
    if not folder.is_dir():
        raise ModelUnusable(f"model.path {path!r} is no directory on the trainer's machine")
    try:
        config = json.loads((folder / "config.json").read_text())
    except FileNotFoundError:
        raise ModelUnusable(f"model.path {path!r} has no config.json; name a Hugging Face model directory") from None
    except (OSError, ValueError) as error:
        raise ModelUnusable(f"config.json of model.path {path!r} cannot be read: {error}") from None
    architecture = next(iter(config.get("architectures") or ()), "")
    if not architecture.endswith("ForCausalLM"):
        raise ModelUnusable(f"model.path {path!r} holds {architecture or 'no named architecture'}, not a causal LM")
    if not any((folder / name).exists() for name in _TOKENIZERS):
        # transformers would build an empty tokenizer without a word.
        raise ModelUnusable(f"model.path {path!r} has no tokenizer; save one there (tokenizer.json)")
    if not any(folder.glob("*.safetensors")) and not any(folder.glob("*.bin")):
        raise ModelUnusable(f"model.path {path!r} has no weights; save them there (model.safetensors)")
    return ModelFacts(architecture, int(config.get("vocab_size") or 0), int(config.get("max_position_embeddings") or 0))


def small_files(path: str) -> dict[str, bytes]:
    """Config, tokenizer and chat template by file name: what an engine needs beside the tensors."""
    return {
        file.name: file.read_bytes()
        for file in sorted(Path(path).iterdir())
        if file.is_file()
        and file.suffix in _SMALL_SUFFIXES
        and not file.name.endswith(".index.json")
        and file.stat().st_size <= _SMALL_BYTES
    }


def load(path: str, dtype: str, device: str) -> PreTrainedModel:
    """The model in evaluation mode. Raises ModelUnusable."""
    inspect(path)
    try:
        model = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype), local_files_only=True)
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise ModelUnusable(f"model.path {path!r} does not load: {error}") from error
    placed: PreTrainedModel = model.to(device).eval()  # type: ignore[arg-type]
    return placed
