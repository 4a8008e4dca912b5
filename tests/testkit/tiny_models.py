"""A real Qwen3 of a few thousand parameters with the demo tokenizer, made in milliseconds."""

from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from trainer_svc.batch import Row
from trainer_svc.demo.tokenizer import build_tokenizer


def tiny_model(seed: int = 0, *, is_tied: bool = True) -> Qwen3ForCausalLM:
    """Two layers of 16, float32, vocabulary of the demo tokenizer."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=29,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=128,
        tie_word_embeddings=is_tied,
        initializer_range=0.5,
        dtype="float32",
    )
    return Qwen3ForCausalLM(config).eval()


def save_tiny_model(path: Path, seed: int = 0, *, is_tied: bool = True) -> Path:
    """A complete Hugging Face directory."""
    tiny_model(seed, is_tied=is_tied).save_pretrained(path)
    build_tokenizer().save_pretrained(path)
    return path


def row(length: int, n_prompt: int, advantage: float, *, seed: int = 0, task: str = "a", **fields: object) -> Row:
    """A row of random ids whose tokens after the prompt train."""
    generator = torch.Generator().manual_seed(seed * 1000 + length)
    ids = torch.randint(5, 29, (length,), generator=generator).tolist()
    mask = [0] * n_prompt + [1] * (length - n_prompt)
    return Row(ids, mask, [-1.5 * bit for bit in mask], advantage, task, **fields)  # type: ignore[arg-type]
