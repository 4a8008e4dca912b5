"""Weights in place: check everything first, then copy. Parameters keep their storage, so nothing else has to know."""

from __future__ import annotations

from typing import Any

import torch

from inference_svc.engine.engine import LoadRefused, Tensors, TypedArray


class LiveWeights:
    """A model's state dict by name, with tied names (one storage) known as one tensor."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._targets: dict[str, torch.Tensor] = model.state_dict(keep_vars=True)
        owners: dict[int, list[str]] = {}
        for name, target in self._targets.items():
            owners.setdefault(target.data_ptr(), []).append(name)
        self._tied = list(owners.values())

    def check(self, tensors: Tensors) -> None:
        """Raise LoadRefused unless ``tensors`` names every tensor (one of its names is enough) in its shape."""
        unknown = sorted(set(tensors) - set(self._targets))
        missing = sorted(names[0] for names in self._tied if not any(name in tensors for name in names))
        if unknown or missing:
            raise LoadRefused(f"the weights do not fit the model: missing {missing[:5]}, unknown {unknown[:5]}")
        for name, source in tensors.items():
            shape, expected = tuple(source.shape), tuple(self._targets[name].shape)
            if shape != expected:
                raise LoadRefused(f"tensor {name} has shape {shape}; the model needs {expected}")

    def copy(self, tensors: Tensors) -> int:
        """Copy checked ``tensors`` into the live ones, converting to their dtypes; returns the bytes written."""
        n_bytes = 0
        with torch.no_grad():
            for names in self._tied:
                name = next(name for name in names if name in tensors)
                target = self._targets[name]
                target.copy_(as_torch(tensors[name]))
                n_bytes += target.numel() * target.element_size()
        return n_bytes


def as_torch(source: Any) -> torch.Tensor:
    """A torch view of a numpy array or a TypedArray; a torch tensor as it is."""
    if isinstance(source, torch.Tensor):
        return source
    if isinstance(source, TypedArray):
        dtype: torch.dtype = getattr(torch, source.dtype)
        return as_torch(source.array).view(dtype)
    # torch warns about views of read-only memory, although nothing here writes to it.
    return torch.from_numpy(source) if source.flags.writeable else torch.tensor(source)
