"""A model directory without weights, for the scripted engine and the scripted trainer: a tokenizer and their timing."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from tokenizers import Regex, Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split

END = "<|end|>"
VOCABULARY = ("<|pad|>", END, "#", *"0123456789", "a", "b", "c")


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds. An engine step takes t0 + per_running x requests + per_kv_token x tokens held; a trainer's step
    train + train_per_token x tokens trained."""

    t0_s: float = 0.002
    per_running_s: float = 0.0
    per_kv_token_s: float = 0.0
    train_s: float = 0.0
    train_per_token_s: float = 0.0


def save(path: Path, timing: Timing, *, max_len: int = 4096, n_parameters: int = 4096) -> Path:
    """Write the directory. An answer is as long as its prompt says: ``#`` and three digits at its end."""
    ids = {text: index for index, text in enumerate(VOCABULARY)}
    tokenizer = Tokenizer(WordLevel(ids, unk_token="<|pad|>"))
    tokenizer.pre_tokenizer = Split(Regex(r"<\|\w+\|>|."), behavior="isolated")
    tokenizer.decoder = Fuse()
    names = asdict(timing)
    engine = {name: names[name] for name in ("t0_s", "per_running_s", "per_kv_token_s")}
    trainer = {"t0_s": timing.train_s, "per_token_s": timing.train_per_token_s, "n_parameters": n_parameters}
    lengths = {
        "mark": ids["#"],
        "digits": [ids[digit] for digit in "0123456789"],
        "stop": ids[END],
        "letters": [ids[letter] for letter in "abc"],
    }
    config = {
        "architectures": ["ScriptedForCausalLM"],
        "vocab_size": len(VOCABULARY),
        "max_position_embeddings": max_len,
        "eos_token_id": ids[END],
        "scripted": {"engine": engine, "trainer": trainer, "lengths": lengths},
    }
    path.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": END}))
    (path / "config.json").write_text(json.dumps(config, indent=1))
    return path
