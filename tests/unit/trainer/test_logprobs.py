"""Log-probabilities aligned with tokens: shift, padding, temperature, precision."""

from dataclasses import replace

import pytest
import torch
from testkit.tiny_models import row, tiny_model
from transformers import GPT2Config, GPT2LMHeadModel

from trainer_svc.batch import Row, pad_rows
from trainer_svc.logprobs import token_logprobs


@pytest.fixture(scope="module")
def model() -> object:
    return tiny_model()


def by_hand(model: object, entry: Row) -> list[float]:
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([entry.ids])).logits[0].double() / entry.temperature  # type: ignore[operator]
    table = logits.log_softmax(-1)
    return [0.0] + [float(table[place - 1, entry.ids[place]]) * entry.mask[place] for place in range(1, len(entry.ids))]


def ours(model: object, *rows: Row) -> list[list[float]]:
    with torch.no_grad():
        table = token_logprobs(model, pad_rows(rows, range(len(rows))))  # type: ignore[arg-type]
    return [line[: len(entry.ids)].tolist() for line, entry in zip(table, rows, strict=True)]


def test_entry_i_is_token_i(model: object) -> None:
    entry = row(7, 3, 1.0)
    assert ours(model, entry)[0] == pytest.approx(by_hand(model, entry), abs=1e-5)
    assert [value != 0 for value in ours(model, entry)[0]] == [False] * 3 + [True] * 4


def test_the_same_weights_have_no_gap_to_their_own_logprobs(model: object) -> None:
    entry = row(6, 3, 1.0)
    sampled = replace(entry, behaviour=by_hand(model, entry))
    assert ours(model, sampled)[0] == pytest.approx(sampled.behaviour, abs=1e-5)


def test_padding_changes_nothing(model: object) -> None:
    short, long = row(5, 2, 1.0), row(40, 10, 1.0)
    alone, together = ours(model, short)[0], ours(model, short, long)[0]
    assert together == pytest.approx(alone, abs=1e-5)


def test_padding_moves_no_position() -> None:
    """A model with learnt absolute positions: a shift by one would change every value."""
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=29, n_positions=64, n_embd=16, n_layer=2, n_head=2, bos_token_id=1, eos_token_id=2)
    absolute = GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        absolute.transformer.wpe.weight.normal_(0.0, 1.0)
    short, long = row(5, 2, 1.0), row(40, 10, 1.0)
    alone, together = ours(absolute, short)[0], ours(absolute, short, long)[0]
    assert together == pytest.approx(alone, abs=1e-4)
    assert alone == pytest.approx(by_hand(absolute, short), abs=1e-4)
    with torch.no_grad():
        shifted = absolute(input_ids=torch.tensor([short.ids]), position_ids=torch.arange(1, 1 + len(short.ids))[None])
    assert not torch.allclose(shifted.logits, absolute(input_ids=torch.tensor([short.ids])).logits, atol=1e-1)


def test_padding_is_by_length_and_not_by_value(model: object) -> None:
    """Padding and end of text are one id here, and the prompt holds it too: nothing but the length decides."""
    short = Row([5, 0, 6, 7, 0], [0, 0, 0, 1, 1], [0.0] * 5, 1.0, "a")
    batch = pad_rows([short, row(12, 4, 1.0)], [0, 1])
    assert batch.ids[0].tolist() == [5, 0, 6, 7, 0] + [0] * 7
    assert batch.attention[0].tolist() == [1] * 5 + [0] * 7
    assert batch.mask[0].tolist() == [0, 0, 0, 1, 1] + [0] * 7, "the end of text is trained, padding is not"
    together = ours(model, short, row(12, 4, 1.0))[0]
    assert together == pytest.approx(by_hand(model, short), abs=1e-5)
    assert together[4] != 0


def test_a_response_of_one_token_has_its_logprob(model: object) -> None:
    entry = row(6, 5, -0.5)
    assert ours(model, entry)[0][5] == pytest.approx(by_hand(model, entry)[5], abs=1e-5)
    assert entry.n_loss_tokens == 1


def test_both_sides_use_the_sampling_temperature(model: object) -> None:
    cold, warm = row(6, 3, 1.0, temperature=0.5), row(6, 3, 1.0, temperature=1.0)
    values = ours(model, cold, warm)
    assert values[0] == pytest.approx(by_hand(model, cold), abs=1e-5)
    assert values[1] == pytest.approx(by_hand(model, warm), abs=1e-5)
    assert values[0] != pytest.approx(values[1], abs=1e-2)


def test_temperature_and_precision_of_a_known_softmax() -> None:
    class Fixed(torch.nn.Module):
        """Answers the same logits everywhere."""

        def __init__(self, logits: list[float], dtype: torch.dtype) -> None:
            super().__init__()
            self.logits = torch.tensor(logits, dtype=dtype)

        def get_decoder(self) -> object:
            return lambda input_ids, **_: type("Out", (), {"last_hidden_state": torch.ones(*input_ids.shape, 1)})

        def get_output_embeddings(self) -> object:
            return lambda hidden: self.logits.expand(hidden.shape[0], -1)

    toy = Row([0, 1], [0, 1], [0.0, 0.0], 1.0, "a", temperature=0.5)
    assert ours(Fixed([2.0, 1.0, 0.0], torch.float32), toy)[0][1] == pytest.approx(-2.142932, abs=1e-6)
    close = Row([0, 1], [0, 1], [0.0, 0.0], 1.0, "a")
    assert ours(Fixed([20.06, 20.0], torch.float32), close)[0][1] == pytest.approx(-0.723597, abs=1e-5)
    half = ours(Fixed([2.0, 1.0, 0.0], torch.bfloat16), toy)[0][1]
    assert half == pytest.approx(-2.142932, abs=1e-6), "the softmax is in float32 whatever the logits are"
