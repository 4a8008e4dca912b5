"""A runner's stream, as the service behind it sees it."""

from collections.abc import Callable
from dataclasses import dataclass

from headrace.wire.trainer.v1 import trainer_pb2 as pb


@dataclass(frozen=True, slots=True)
class Stream:
    """Where the stream's events go; two streams are never the same, even with the same sink."""

    emit: Callable[[pb.TrainerEvent], object]
