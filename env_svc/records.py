"""What is written down of an attempt, and the messages and blobs made of it."""

import json
from dataclasses import dataclass, field
from typing import Any

from env_svc.codec import Messages
from env_svc.contract import Step
from env_svc.faults import AttemptFault, InfraFault
from env_svc.outbox import Key
from env_svc.spec import TaskSpec
from env_svc.text import Cleaner
from headrace.core.episode import Ending, Episode, Segment
from headrace.wire.common.v1 import common_pb2
from headrace.wire.environments.v1 import environments_pb2

MAX_INFO_BYTES = 1024 * 1024


@dataclass(slots=True)
class Record:
    """An attempt as it happens: tokens in `episode`, text and scores beside it."""

    key: Key
    task: TaskSpec
    temperature: float
    env_worker_id: str
    episode: Episode
    info: dict[str, Any] = field(default_factory=dict)
    env_version: str = ""
    messages: Messages = field(default_factory=list)
    completions: list[str] = field(default_factory=list)
    components: dict[str, float] = field(default_factory=dict)
    invalid_actions: int = 0
    cut_observations: int = 0
    cleaner: Cleaner = field(default_factory=Cleaner)

    def heard(self, messages: Messages) -> Messages:
        """Write an observation down; returns it clean."""
        cleaned: Messages = self.cleaner.value(messages)
        self.messages += cleaned
        return cleaned

    def said(self, text: str) -> None:
        """Write the model's turn down."""
        self.completions.append(text)
        self.messages.append({"role": "assistant", "content": self.cleaner.text(text)})

    def stepped(self, step: Step) -> None:
        """The environment's answer to a turn. A turn that was cut is truncated, not invalid."""
        was_cut = self.episode.turn_finishes[-1] == "length"
        self.invalid_actions += step.info.get("is_valid") is False and not was_cut
        self.info |= step.info
        components = step.info.get("reward_components")
        if isinstance(components, dict):
            self.components |= {
                name: float(value) for name, value in components.items() if isinstance(value, int | float)
            }
        self.episode.act(step.reward, terminated=step.terminated, truncated=step.truncated)

    @property
    def env_reward(self) -> float | None:
        """The return: all rewards of the environment, plus `overflow_reward` when tokens ran out. None: not scored."""
        given = self.episode.episode_return
        ran_out = self.episode.ending in (Ending.MAX_TOKENS, Ending.CONTEXT_LENGTH)
        if ran_out and (self.task.has_env_reward or given is not None):
            return (given or 0.0) + self.task.overflow_reward
        return given

    def blobs(self) -> tuple[bytes, bytes]:
        """The serialized TrajectoryTokens and the graders' JSON document."""
        return self._tokens().SerializeToString(deterministic=True), self._grading()

    def _tokens(self) -> environments_pb2.TrajectoryTokens:
        episode = self.episode
        rewards = enumerate(episode.turn_rewards)
        return environments_pb2.TrajectoryTokens(
            token_ids=episode.token_ids,
            spans=[environments_pb2.TokenSpan(start=s.start, n_tokens=s.n_tokens) for s in episode.spans],
            logprobs=episode.logprobs,
            segments=[segment_message(segment) for segment in episode.segments],
            temperature=self.temperature,
            turn_rewards=[environments_pb2.TurnReward(turn=t, reward=r) for t, r in rewards if r is not None],
        )

    def _grading(self) -> bytes:
        info = self.cleaner.value(self.info)
        completions = [self.cleaner.text(text) for text in self.completions]
        document = {
            "completion": completions[-1] if completions else "",
            "completions": completions,
            "messages": self.messages,
            "answer": info.get("answer"),
            "info": info if _size(info) <= MAX_INFO_BYTES else {"omitted": "info is larger than 1 MiB"},
            "task": self.task.name,
            "env": {"entry_point": self.task.plugin.entry_point, "version": self.cleaner.text(self.env_version)},
            "env_reward": self.env_reward,
            "finish_reason": str(self.episode.ending),
            "is_truncated": self.episode.is_truncated,
        }
        return json.dumps(document, ensure_ascii=False, allow_nan=False).encode("utf-8")


def finished(
    record: Record, token_blob: str, grading_blob: str, phases: environments_pb2.PhaseSeconds
) -> environments_pb2.Outcome:
    """The outcome of an attempt that has a trajectory."""
    episode = record.episode
    return environments_pb2.Outcome(
        finished=environments_pb2.AttemptFinished(
            key=record.key.message(),
            token_blob=token_blob,
            n_tokens=len(episode.token_ids),
            n_generated_tokens=episode.n_generated,
            n_turns=episode.n_turns,
            segments=[segment_message(segment) for segment in episode.segments],
            env_reward=record.env_reward,
            reward_components=record.components,
            finish_reason=str(episode.ending),
            is_truncated=episode.is_truncated,
            grading_blob=grading_blob,
            phases=phases,
            env_worker_id=record.env_worker_id,
            discarded_tokens=episode.discarded_tokens,
            invalid_actions=record.invalid_actions,
            nul_replaced=record.cleaner.n_replaced,
            observations_cut=record.cut_observations,
        )
    )


def failed(record: Record, fault: AttemptFault, phases: environments_pb2.PhaseSeconds) -> environments_pb2.Outcome:
    """The outcome of an attempt that has none."""
    episode = record.episode
    return environments_pb2.Outcome(
        failed=environments_pb2.AttemptFailed(
            key=record.key.message(),
            fault=fault_message(fault),
            n_generated_tokens=episode.n_generated,
            start_version=episode.start_version,
            phases=phases,
            discarded_tokens=episode.discarded_tokens,
            is_reward_known=episode.ending is not None and record.env_reward is not None,
        )
    )


def unknown(key: Key) -> environments_pb2.Outcome:
    """The answer about an attempt that this process does not have."""
    fault = InfraFault("unknown_attempt", "this process does not have the attempt")
    return environments_pb2.Outcome(
        failed=environments_pb2.AttemptFailed(key=key.message(), fault=fault_message(fault))
    )


def fault_message(fault: AttemptFault) -> common_pb2.Fault:
    """A fault on the wire; its text is cleaned like any other."""
    detail = Cleaner().text(fault.detail)[:2000]
    return common_pb2.Fault(code=fault.code, kind=fault.kind, detail=detail, retryable=fault.retryable)


def segment_message(segment: Segment) -> common_pb2.Segment:
    """A segment on the wire."""
    return common_pb2.Segment(
        policy_version=segment.policy_version,
        worker_id=segment.worker_id,
        weight_digest=segment.weight_digest,
        n_tokens=segment.n_tokens,
    )


def _size(value: Any) -> int:
    return len(json.dumps(value, ensure_ascii=False))
