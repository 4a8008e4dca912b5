"""Scoring tasks as messages."""

import json

import pytest

from headrace.client.rewards import RewardBatch, RewardItem, decode_batch, encode_batch

ITEM = RewardItem("job_1", "t0", 2, "exact", 3, "a.b:c", 5.0, "ab" * 32)


def test_a_batch_comes_back_as_it_was():
    message = encode_batch("127.0.0.1:7071", [ITEM, ITEM], 12.5)
    assert json.loads(message)["items"][0]["try"] == 3
    assert decode_batch(message) == RewardBatch("127.0.0.1:7071", (ITEM, ITEM), 12.5)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("{", "Expecting"),
        ("[]", "batch"),
        ("5", "batch"),
        ('{"items": []}', "'control_address' is missing"),
        ('{"control_address": "x"}', "'items' is missing"),
        ('{"control_address": "x", "items": [{"fn": "a:b"}]}', "job_id"),
        ('{"control_address": "x", "items": ["y"]}', "batch"),
    ],
)
def test_what_is_no_batch_is_named(message, words):
    with pytest.raises(ValueError, match=words):
        decode_batch(message)
