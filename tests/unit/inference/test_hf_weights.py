"""What the hf engine takes as weights: exactly the values that were sent, or nothing."""

import numpy as np
import pytest
import torch

from inference_svc.engine.engine import LoadRefused, Tensors, TypedArray
from inference_svc.engine.hf_weights import LiveWeights

FINE = np.array([[1.0009765625]], dtype=np.float32)  # 1 + 2**-10; the step of bfloat16 at 1 is 2**-7
HALF = TypedArray(np.array([[0x3F81]], dtype=np.uint16), "bfloat16")  # 1 + 2**-7
BIG = np.array([16777217], dtype=np.int64)  # 2**24 + 1, no float32


class Toy(torch.nn.Module):
    """One weight of ``dtype`` and a count."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1, 1, dtype=dtype))
        self.register_buffer("count", torch.zeros(1, dtype=torch.int64))


class Tied(torch.nn.Module):
    """A head that is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Parameter(torch.eye(2))
        self.head = self.embed


def loaded(model: torch.nn.Module, tensors: Tensors) -> dict[str, torch.Tensor]:
    weights = LiveWeights(model)
    weights.check(tensors)
    weights.copy(tensors)
    return model.state_dict()


def test_a_wider_float_holds_the_same_value() -> None:
    state = loaded(Toy(torch.float32), {"weight": HALF, "count": BIG})
    assert (state["weight"].item(), state["count"].item()) == (1.0078125, 16777217)


@pytest.mark.parametrize(
    ("dtype", "tensors", "name"),
    [
        (torch.bfloat16, {"weight": FINE, "count": BIG}, "weight"),
        (torch.float16, {"weight": HALF, "count": BIG}, "weight"),
        (torch.float32, {"weight": FINE.astype(np.float64), "count": BIG}, "weight"),
        (torch.float32, {"weight": BIG.reshape(1, 1), "count": BIG}, "weight"),
        (torch.float32, {"weight": FINE, "count": BIG.astype(np.float32)}, "count"),
        (torch.float32, {"weight": FINE, "count": BIG.astype(np.int32)}, "count"),
    ],
)
def test_nothing_is_rounded_or_cast(dtype: torch.dtype, tensors: Tensors, name: str) -> None:
    with pytest.raises(LoadRefused, match=f"tensor {name} is .* nothing is cast"):
        loaded(Toy(dtype), tensors)


@pytest.mark.parametrize("names", [("embed",), ("head",), ("embed", "head")])
def test_one_name_of_a_tied_tensor_is_enough(names: tuple[str, ...]) -> None:
    new = np.array([[2, 0], [0, 1]], dtype=np.float32)
    state = loaded(Tied(), {name: new.copy() for name in names})
    assert (state["head"] @ torch.tensor([1.0, 0.0]))[0] == 2


def test_two_values_for_a_tied_tensor_are_refused() -> None:
    model = Tied()
    new = np.array([[2, 0], [0, 1]], dtype=np.float32)
    for other in (np.eye(2, dtype=np.float32), TypedArray(np.zeros((2, 2), dtype=np.uint16), "bfloat16")):
        with pytest.raises(LoadRefused, match="embed and head are tied"):
            loaded(model, {"embed": new, "head": other})
    assert torch.equal(model.embed, torch.eye(2))
