"""One episode as a value: its tokens, whose they are, and what may come next.

    observing ──observe──► ready ──ask──► generating ──take(stop)──► acting ──act──► observing
        │                    │                 │                        │
        └────────────────────┴──────── over ◄──┴────────────────────────┘

Tokens are only ever appended, except that a discarded turn loses what it held; nothing is tokenised again. Generated
spans carry the loss, everything else (observations, role marks, an end mark that was not sampled) does not. What ended
a turn is read from its finish reason, never from the value of its last token.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Phase(StrEnum):
    """Where an episode stands."""

    OBSERVING = "observing"
    READY = "ready"
    GENERATING = "generating"
    ACTING = "acting"
    OVER = "over"


TRANSITIONS: dict[Phase, frozenset[Phase]] = {
    Phase.OBSERVING: frozenset({Phase.READY, Phase.OVER}),
    Phase.READY: frozenset({Phase.GENERATING, Phase.OVER}),
    Phase.GENERATING: frozenset({Phase.ACTING, Phase.OVER}),
    Phase.ACTING: frozenset({Phase.OBSERVING, Phase.OVER}),
    Phase.OVER: frozenset(),
}


class Ending(StrEnum):
    """Why an episode ended with a trajectory. All but COMPLETED are truncations."""

    COMPLETED = "completed"
    ENV_TRUNCATED = "env_truncated"
    MAX_TURNS = "max_turns"
    MAX_TOKENS = "max_tokens"
    CONTEXT_LENGTH = "context_length"


class Verdict(StrEnum):
    """What became of a chunk of generated tokens."""

    KEPT = "kept"
    FENCED = "fenced"  # of another assignment epoch, or of a turn that is over
    DUPLICATE = "duplicate"  # starts before what is held: dropped
    GAP = "gap"  # starts after what is held: dropped, the turn has to be asked for again


class EpisodeError(Exception):
    """The episode was used against its rules; the message tells what was held when it happened."""


@dataclass(frozen=True, slots=True)
class EpisodeLimits:
    """max_len: tokens of the whole row; max_turns: None for no limit; max_turn_tokens: generated tokens of one turn.

    on_length: ``end`` truncates the episode at a turn that was cut; ``act`` plays the cut text and goes on.
    """

    max_len: int
    max_turn_tokens: int
    max_turns: int | None = None
    on_length: str = "end"

    def __post_init__(self) -> None:
        if self.max_len < 1 or self.max_turn_tokens < 1 or (self.max_turns is not None and self.max_turns < 1):
            raise ValueError(f"limits must be at least 1: {self}")
        if self.on_length not in ("end", "act"):
            raise ValueError(f"on_length is {self.on_length!r}; choose one of end, act")


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens of the current turn as they arrive; ``offset`` counts from the turn's first generated token."""

    epoch: int
    offset: int
    token_ids: Sequence[int]
    logprobs: Sequence[float]
    policy_version: int
    worker_id: str
    weight_digest: str
    finish: str | None = None  # stop | length; None: more follows
    discarded_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of generated tokens of one behaviour version, from one replica and one set of weights."""

    policy_version: int
    worker_id: str
    weight_digest: str
    n_tokens: int


@dataclass(frozen=True, slots=True)
class Span:
    """Generated tokens [start, start + n_tokens) of the row."""

    start: int
    n_tokens: int


@dataclass(frozen=True, slots=True)
class Ask:
    """A turn to generate: the prompt is the row so far."""

    turn: int
    epoch: int
    max_new_tokens: int
    n_kept: int


class Episode:
    """The state machine of one episode. See the module's picture."""

    def __init__(self, limits: EpisodeLimits) -> None:
        self._limits = limits
        self.phase = Phase.OBSERVING
        self.token_ids: list[int] = []
        self.logprobs: list[float] = []
        self.segments: list[Segment] = []
        self.spans: list[Span] = []
        self.turn_finishes: list[str] = []
        self.turn_rewards: list[float | None] = []
        self.ending: Ending | None = None
        self.discarded_tokens = 0
        self.dropped_chunks = 0
        self._turn_start = 0
        self._max_new_tokens = 0
        self._epoch = 0

    @property
    def epoch(self) -> int:
        """The assignment epoch whose chunks are accepted."""
        return self._epoch

    @property
    def may_act(self) -> bool:
        """A turn ended in a way that the environment gets to see."""
        return self.phase is Phase.ACTING

    @property
    def n_turns(self) -> int:
        """Turns whose generation ended."""
        return len(self.turn_finishes)

    @property
    def n_generated(self) -> int:
        """Generated tokens held: the loss mask's sum."""
        return len(self.logprobs)

    @property
    def start_version(self) -> int | None:
        """v0, the version of the first kept token; None before it."""
        return self.segments[0].policy_version if self.segments else None

    @property
    def is_truncated(self) -> bool:
        """The episode, or any of its turns, was cut."""
        return "length" in self.turn_finishes or self.ending not in (None, Ending.COMPLETED)

    @property
    def episode_return(self) -> float | None:
        """Sum of the rewards that the environment gave; None when it gave none at all."""
        given = [reward for reward in self.turn_rewards if reward is not None]
        return sum(given) if given else None

    @property
    def turn_token_ids(self) -> list[int]:
        """Generated tokens of the current or last turn."""
        return self.token_ids[self._turn_start :] if self.phase is Phase.GENERATING else self._last_turn()

    @property
    def prompt_token_ids(self) -> list[int]:
        """What the current turn is conditioned on."""
        return self.token_ids[: self._turn_start] if self.phase is Phase.GENERATING else list(self.token_ids)

    def observe(self, token_ids: Sequence[int]) -> None:
        """Append what the environment said. A row that would leave no room for a token ends instead."""
        self._expect(Phase.OBSERVING, "observe")
        if len(self.token_ids) + len(token_ids) >= self._limits.max_len:
            self._end(Ending.CONTEXT_LENGTH)
            return
        self.token_ids += token_ids
        self._enter(Phase.READY)

    def ask(self) -> Ask:
        """Begin a turn: at most the tokens that fit into the window."""
        self._expect(Phase.READY, "ask")
        self._turn_start = len(self.token_ids)
        self._max_new_tokens = min(self._limits.max_turn_tokens, self._limits.max_len - self._turn_start)
        self._enter(Phase.GENERATING)
        return self.ask_again()

    def ask_again(self) -> Ask:
        """Ask for the rest of the turn under a new epoch; chunks of the former one are fenced from here on."""
        self._expect(Phase.GENERATING, "ask again")
        self._epoch += 1
        return Ask(self.n_turns, self._epoch, self._max_new_tokens, self._n_held())

    def take(self, chunk: Chunk) -> Verdict:
        """Keep a chunk iff it is of this epoch and starts where the held tokens end.

        Raises:
            EpisodeError: ids and logprobs do not pair up, or more tokens came than were asked for.
        """
        verdict = self._judge(chunk)
        if verdict is not Verdict.KEPT:
            self.dropped_chunks += 1
            return verdict
        if len(chunk.token_ids) != len(chunk.logprobs):
            raise self._error(f"a chunk has {len(chunk.token_ids)} ids and {len(chunk.logprobs)} logprobs")
        if self._n_held() + len(chunk.token_ids) > self._max_new_tokens:
            raise self._error(f"more than the {self._max_new_tokens} tokens asked for")
        if chunk.token_ids:
            self.token_ids += chunk.token_ids
            self.logprobs += chunk.logprobs
            self._add_segment(chunk)
        if chunk.finish is not None:
            self._close_turn(chunk.finish)
        return verdict

    def act(self, reward: float | None, *, terminated: bool, truncated: bool) -> None:
        """The environment took the turn's text."""
        self._expect(Phase.ACTING, "act")
        self.turn_rewards.append(reward)
        max_turns = self._limits.max_turns
        if terminated:
            self._end(Ending.COMPLETED)
        elif truncated:
            self._end(Ending.ENV_TRUNCATED)
        elif max_turns is not None and self.n_turns >= max_turns:
            self._end(Ending.MAX_TURNS)
        else:
            self._enter(Phase.OBSERVING)

    def loss_mask(self) -> list[int]:
        """1 for generated tokens, 0 elsewhere; shape [len(token_ids)]."""
        mask = [0] * len(self.token_ids)
        for span in self.spans:
            mask[span.start : span.start + span.n_tokens] = [1] * span.n_tokens
        return mask

    def check(self) -> None:
        """Raise EpisodeError when an invariant is broken."""
        held = self._n_held() if self.phase is Phase.GENERATING else 0
        if sum(span.n_tokens for span in self.spans) + held != len(self.logprobs):
            raise self._error("spans do not cover the logprobs")
        if sum(segment.n_tokens for segment in self.segments) != len(self.logprobs):
            raise self._error("segments do not cover the logprobs")
        if len(self.token_ids) > self._limits.max_len:
            raise self._error("the row is longer than max_len")
        ends = [0, *(span.start + span.n_tokens for span in self.spans)]
        if any(span.start < end for span, end in zip(self.spans, ends, strict=False)):
            raise self._error("spans overlap")

    def _judge(self, chunk: Chunk) -> Verdict:
        if self.phase is not Phase.GENERATING or chunk.epoch != self._epoch:
            return Verdict.FENCED
        if chunk.discarded_tokens:
            self._discard(chunk.discarded_tokens)
        held = self._n_held()
        if chunk.offset == held:
            return Verdict.KEPT
        return Verdict.GAP if chunk.offset > held else Verdict.DUPLICATE

    def _discard(self, n_reported: int) -> None:
        held = self._n_held()
        # The proxy may have thrown away tokens that never reached this side.
        self.discarded_tokens += max(held, n_reported)
        if not held:
            return
        del self.token_ids[self._turn_start :]
        del self.logprobs[-held:]
        while held:
            last = self.segments.pop()
            if last.n_tokens > held:
                self.segments.append(_resized(last, last.n_tokens - held))
            held -= min(held, last.n_tokens)

    def _add_segment(self, chunk: Chunk) -> None:
        n_tokens = len(chunk.token_ids)
        segment = Segment(chunk.policy_version, chunk.worker_id, chunk.weight_digest, n_tokens)
        if self.segments and _resized(self.segments[-1], n_tokens) == segment:
            segment = _resized(segment, self.segments.pop().n_tokens + n_tokens)
        self.segments.append(segment)

    def _close_turn(self, finish: str) -> None:
        if finish not in ("stop", "length"):
            raise self._error(f"finish reason {finish!r} is neither stop nor length")
        if self._n_held():
            self.spans.append(Span(self._turn_start, self._n_held()))
        self.turn_finishes.append(finish)
        if finish == "stop" or self._limits.on_length == "act":
            self._enter(Phase.ACTING)
        elif self._max_new_tokens < self._limits.max_turn_tokens:
            self._end(Ending.CONTEXT_LENGTH)
        else:
            self._end(Ending.MAX_TOKENS)

    def _last_turn(self) -> list[int]:
        if not self.spans or self.spans[-1].start < self._turn_start:
            return []
        span = self.spans[-1]
        return self.token_ids[span.start : span.start + span.n_tokens]

    def _n_held(self) -> int:
        return len(self.token_ids) - self._turn_start

    def _end(self, ending: Ending) -> None:
        self.ending = ending
        self._enter(Phase.OVER)

    def _enter(self, phase: Phase) -> None:
        if phase not in TRANSITIONS[self.phase]:
            raise self._error(f"no way to {phase}")
        self.phase = phase

    def _expect(self, phase: Phase, what: str) -> None:
        if self.phase is not phase:
            raise self._error(f"cannot {what}")

    def _error(self, what: str) -> EpisodeError:
        return EpisodeError(
            f"{what} (phase {self.phase}, turn {self.n_turns}, epoch {self._epoch}, "
            f"{len(self.token_ids)} tokens of {self._limits.max_len}, finishes {self.turn_finishes})"
        )


class PhaseClock:
    """Seconds spent in each phase of an attempt's life. Times are arguments; phases are free names."""

    def __init__(self, phase: str, now_s: float) -> None:
        self._phase, self._since_s = phase, now_s
        self._seconds: dict[str, float] = {}

    def enter(self, phase: str, now_s: float) -> None:
        """Close the current phase and begin another."""
        self._seconds[self._phase] = self._seconds.get(self._phase, 0.0) + now_s - self._since_s
        self._phase, self._since_s = phase, now_s

    def seconds(self, now_s: float) -> dict[str, float]:
        """Seconds by phase up to now, the running one included."""
        running = self._seconds.get(self._phase, 0.0) + now_s - self._since_s
        return {**self._seconds, self._phase: running}


def _resized(segment: Segment, n_tokens: int) -> Segment:
    return Segment(segment.policy_version, segment.worker_id, segment.weight_digest, n_tokens)
