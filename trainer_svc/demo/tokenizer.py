"""The demo tokenizer: one id per word or character, whitespace carries nothing."""

from tokenizers import Regex, Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Sequence, Split, WhitespaceSplit
from transformers import PreTrainedTokenizerFast

SPECIALS = ("<|pad|>", "<|unk|>", "<|user|>", "<|assistant|>", "<|end|>")
WORDS = ("Left", "Down", "Right", "Up", "calc", "answer", "error")
CHARACTERS = "SFHG#0123456789+-"

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role == 'assistant' %}<|assistant|>{{ message.content }}<|end|>"
    "{% else %}<|user|>{{ message.content }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""Every role but the assistant's writes ``<|user|>``: system text and tool results are observations alike."""


def build_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer that ``AutoTokenizer`` loads back; its decoding joins tokens without spaces."""
    entries = (*SPECIALS, *WORDS, *CHARACTERS)
    model = WordLevel({entry: index for index, entry in enumerate(entries)}, unk_token="<|unk|>")
    tokenizer = Tokenizer(model)
    words = "|".join(WORDS)
    entry = Split(Regex(rf"{words}|\S"), behavior="isolated")
    tokenizer.pre_tokenizer = Sequence([WhitespaceSplit(), entry])
    tokenizer.decoder = Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<|pad|>",
        unk_token="<|unk|>",
        eos_token="<|end|>",
        additional_special_tokens=["<|user|>", "<|assistant|>"],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=512,
    )
