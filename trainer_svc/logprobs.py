"""Log-probabilities that the trainer gives to tokens, aligned with them: entry i belongs to token i."""

import torch
from torch import Tensor
from transformers import PreTrainedModel

from trainer_svc.batch import Padded


def token_logprobs(model: PreTrainedModel, batch: Padded) -> Tensor:
    """log pi(token i | tokens before it) at the row's temperature, shape [S, T], softmax in float32.

    Entry 0 is 0 (nothing predicts the first token), and so is every masked-out entry: only the vocabulary rows of
    trained tokens are computed. Padding stands right of every token, so it changes neither attention nor positions.
    """
    hidden = model.get_decoder()(input_ids=batch.ids, attention_mask=batch.attention, use_cache=False).last_hidden_state
    wanted = batch.mask[:, 1:].bool()
    logits = model.get_output_embeddings()(hidden[:, :-1][wanted]).float()
    logits = logits / batch.temperatures.expand_as(batch.mask)[:, 1:][wanted][:, None]
    picked = logits.log_softmax(-1).gather(1, batch.ids[:, 1:][wanted][:, None]).squeeze(1)
    aligned = torch.zeros(batch.mask.shape, dtype=torch.float32, device=picked.device)
    aligned[:, 1:] = aligned[:, 1:].masked_scatter(wanted, picked)
    return aligned
