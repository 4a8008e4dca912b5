"""Models for the hf engine: built from a config alone, their weights coming by a load as every other version does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from inference_svc.engine.hf_batching import UnsupportedModel

CONFIG_FILE = "config.json"


def config_from_files(files: Mapping[str, bytes]) -> dict[str, Any]:
    """The model's config out of a manifest's small files. Raises UnsupportedModel when it is absent or not JSON."""
    if CONFIG_FILE not in files:
        raise UnsupportedModel(f"the manifest carries no {CONFIG_FILE}, only {sorted(files)}")
    try:
        config = json.loads(files[CONFIG_FILE])
    except ValueError as error:
        raise UnsupportedModel(f"{CONFIG_FILE} is not JSON: {error}") from error
    if not isinstance(config, dict) or "model_type" not in config:
        raise UnsupportedModel(f"{CONFIG_FILE} names no model_type")
    return config


def build_model(config: Mapping[str, Any], dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """A causal language model of this config on the CPU, in evaluation mode, with random weights in ``dtype``."""
    fields = {key: value for key, value in config.items() if key not in ("model_type", "dtype", "torch_dtype")}
    try:
        resolved = AutoConfig.for_model(config["model_type"], **fields)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(resolved, dtype=dtype)
    except (ValueError, KeyError, TypeError) as error:
        raise UnsupportedModel(f"model_type {config.get('model_type')!r} cannot be built: {error}") from error
    model.train(False)
    model.requires_grad_(False)
    return model


def read_directory(path: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Config and state dict of a Hugging Face causal-LM directory, read locally. Raises UnsupportedModel."""
    if not (path / CONFIG_FILE).is_file():
        raise UnsupportedModel(f"{path} has no {CONFIG_FILE}; give a Hugging Face model directory")
    model = AutoModelForCausalLM.from_pretrained(path, dtype="auto", local_files_only=True)
    config = json.loads((path / CONFIG_FILE).read_bytes())
    return config, {name: tensor.detach() for name, tensor in model.state_dict().items()}
