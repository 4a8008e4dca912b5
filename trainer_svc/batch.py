"""Rows of a training batch and their padded tensors."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headrace.core.packing import pack_by_tokens


@dataclass(frozen=True, slots=True)
class Row:
    """One trajectory, shape [T] per field: ids, loss mask, behaviour logprobs, behaviour versions.

    ``advantage`` is the same for all its tokens. ``mask`` is all zero for a row that must not train; it then counts
    in no denominator. ``weight`` multiplies the row's loss (1 unless inverse-propensity weighting is on).
    ``temperature`` is the one it was sampled at, so that both sides' logprobs mean the same distribution.
    """

    ids: Sequence[int]
    mask: Sequence[int]
    behaviour: Sequence[float]
    advantage: float
    task: str
    lag: int = 0
    weight: float = 1.0
    temperature: float = 1.0
    versions: Sequence[int] = ()

    def __post_init__(self) -> None:
        if not len(self.ids) == len(self.mask) == len(self.behaviour):
            raise ValueError(f"row has {len(self.ids)} ids, {len(self.mask)} mask, {len(self.behaviour)} logprobs")

    @property
    def n_loss_tokens(self) -> int:
        """Generated tokens that train."""
        return sum(self.mask)


@dataclass(frozen=True, slots=True)
class Padded:
    """Rows right-padded to the longest: ids [S, T] long, others [S, T] float, advantages and temperatures [S, 1]."""

    rows: tuple[int, ...]
    ids: Tensor
    attention: Tensor
    mask: Tensor
    behaviour: Tensor
    advantages: Tensor
    temperatures: Tensor


def pad_rows(rows: Sequence[Row], indices: Sequence[int], device: torch.device | str = "cpu") -> Padded:
    """Tensors of ``rows[i] for i in indices``, in that order."""
    width = max(len(rows[index].ids) for index in indices)

    def fill(field: str, dtype: torch.dtype) -> Tensor:
        table = torch.zeros((len(indices), width), dtype=dtype)
        for line, index in enumerate(indices):
            values = getattr(rows[index], field)
            table[line, : len(values)] = torch.as_tensor(values, dtype=dtype)
        return table.to(device)

    lengths = torch.tensor([len(rows[index].ids) for index in indices])
    attention = (torch.arange(width)[None, :] < lengths[:, None]).long().to(device)

    def column(field: str) -> Tensor:
        return torch.tensor([[getattr(rows[index], field)] for index in indices], dtype=torch.float32, device=device)

    return Padded(
        tuple(indices),
        fill("ids", torch.long),
        attention,
        fill("mask", torch.float32),
        fill("behaviour", torch.float32),
        column("advantage"),
        column("temperature"),
    )


def micro_batches(
    rows: Sequence[Row], indices: Sequence[int], budget_tokens: int, device: torch.device | str = "cpu"
) -> list[Padded]:
    """``indices`` cut by token budget (padding counted) into padded micro-batches."""
    packs = pack_by_tokens([len(rows[index].ids) for index in indices], budget_tokens)
    return [pad_rows(rows, [indices[place] for place in pack], device) for pack in packs]
