"""From options and a version's small files to an engine. Torch is imported only where the hf engine is built."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from inference_svc.engine.checks import Limits
from inference_svc.engine.engine import Engine
from inference_svc.engine.scripted import (
    LengthScript,
    ScriptedEngine,
    ScriptedSettings,
    hashed_logits,
    prescribed_lengths,
)
from inference_svc.worker.options import EngineOptions

CONFIG_FILE = "config.json"


class CannotBuild(Exception):
    """No engine can be made from these files and options; the message says why."""


BuildEngine = Callable[[str, EngineOptions, Mapping[str, bytes]], tuple[Engine, Limits]]


def build_engine(kind: str, options: EngineOptions, files: Mapping[str, bytes]) -> tuple[Engine, Limits]:
    """An engine of ``kind`` that holds no weights yet, and its limits. May take seconds: call it from a thread.

    Raises CannotBuild.
    """
    return _build_hf(options, files) if kind == "hf" else _build_scripted(options, files)


def _build_hf(options: EngineOptions, files: Mapping[str, bytes]) -> tuple[Engine, Limits]:
    from inference_svc.engine.hf import HfEngine
    from inference_svc.engine.hf_batching import BatchingSettings, UnsupportedModel
    from inference_svc.engine.hf_model import build_model, config_from_files

    batching = BatchingSettings(
        page_size=options.page_size,
        n_blocks=-(-options.kv_tokens // options.page_size),
        max_running=options.max_running,
        max_batch_tokens=max(options.max_batch_tokens, options.max_running),
    )
    try:
        model = build_model(config_from_files(files))
        engine = HfEngine(model, batching, max_length=options.max_len or None)
    except UnsupportedModel as error:
        raise CannotBuild(str(error)) from error
    return engine, engine.limits


def _build_scripted(options: EngineOptions, files: Mapping[str, bytes]) -> tuple[Engine, Limits]:
    try:
        config = json.loads(files.get(CONFIG_FILE, b"{}"))
        vocab_size = int(config["vocab_size"]) if CONFIG_FILE in files else options.vocab_size
        script = _length_script(config.get("scripted") or {})
        timing: dict[str, Any] = {k: float(v) for k, v in ((config.get("scripted") or {}).get("engine") or {}).items()}
        settings = replace(
            ScriptedSettings(
                vocab_size=vocab_size,
                max_length=options.max_len or ScriptedSettings().max_length,
                max_running=options.max_running,
                t0_s=options.t0_s,
                per_running_s=options.per_running_s,
                per_kv_token_s=options.per_kv_token_s,
                seed=options.seed,
                kv_tokens=options.kv_tokens,
            ),
            **timing,
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CannotBuild(f"{CONFIG_FILE} does not describe a scripted engine: {error!r}") from error
    logits = hashed_logits(settings.seed, vocab_size)
    engine = ScriptedEngine(settings, logits=prescribed_lengths(logits, script) if script else logits)
    return engine, engine.limits


def _length_script(scripted: Mapping[str, Any]) -> LengthScript | None:
    """From ``scripted.lengths`` of a model's config: ``{mark, digits, stop, letters}``, all token ids."""
    lengths = scripted.get("lengths")
    if lengths is None:
        return None
    return LengthScript(
        int(lengths["mark"]),
        tuple(int(token) for token in lengths["digits"]),
        int(lengths["stop"]),
        tuple(int(token) for token in lengths["letters"]),
    )
