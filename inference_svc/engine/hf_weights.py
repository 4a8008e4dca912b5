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
        """Raise LoadRefused unless ``tensors`` names every tensor (one name is enough) in its shape and exactly.

        A float may become a wider one; nothing is rounded, no whole number becomes a float, and tied names agree.
        """
        unknown = sorted(set(tensors) - set(self._targets))
        missing = sorted(names[0] for names in self._tied if not any(name in tensors for name in names))
        if unknown or missing:
            raise LoadRefused(f"the weights do not fit the model: missing {missing[:5]}, unknown {unknown[:5]}")
        for name, source in tensors.items():
            shape, expected = tuple(source.shape), tuple(self._targets[name].shape)
            if shape != expected:
                raise LoadRefused(f"tensor {name} has shape {shape}; the model needs {expected}")
            dtype, held = dtype_of(source), self._targets[name].dtype
            if not _is_exact(dtype, held):
                raise LoadRefused(f"tensor {name} is {dtype}; the model holds {held}, and nothing is cast")
        for names in self._tied:
            first, *others = [name for name in names if name in tensors]
            for other in others:
                if not _is_same(tensors[first], tensors[other]):
                    raise LoadRefused(f"{first} and {other} are tied but hold different values; give one of them")

    def copy(self, tensors: Tensors) -> int:
        """Copy checked ``tensors`` into the live ones, widening where those are wider; returns the bytes written."""
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
        return as_torch(source.array).view(dtype_of(source))
    # torch warns about views of read-only memory, although nothing here writes to it.
    return torch.from_numpy(source) if source.flags.writeable else torch.tensor(source)


def dtype_of(source: Any) -> torch.dtype:
    """The dtype of ``as_torch(source)``, without touching the values."""
    if isinstance(source, torch.Tensor):
        return source.dtype
    dtype: torch.dtype = getattr(torch, source.dtype if isinstance(source, TypedArray) else source.dtype.name)
    return dtype


def _is_exact(source: torch.dtype, target: torch.dtype) -> bool:
    """Whether every value of ``source`` is one of ``target``."""
    if source == target:
        return True
    are_floats = source.is_floating_point and target.is_floating_point
    return are_floats and torch.finfo(source).bits < torch.finfo(target).bits


def _is_same(one: Any, other: Any) -> bool:
    """Bit for bit; what lies in the same memory is not compared."""
    if dtype_of(one) != dtype_of(other):
        return False
    left, right = as_torch(one), as_torch(other)
    return left.data_ptr() == right.data_ptr() or torch.equal(_bits(left), _bits(right))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)
