"""Credits as messages; both sides of a transfer use them."""

from collections.abc import Iterable

from headrace.wire.weights.v1 import weights_pb2 as pb
from weightstore.transfer import Credit


def credits_to_wire(credits: Iterable[Credit]) -> pb.Credits:
    return pb.Credits(
        credits=[
            pb.Credit(bucket=credit.bucket, offset=credit.offset, nbytes=credit.nbytes, tag=credit.tag)
            for credit in credits
        ]
    )


def credits_from_wire(message: pb.Credits) -> list[Credit]:
    return [Credit(credit.bucket, credit.offset, credit.nbytes, credit.tag) for credit in message.credits]
