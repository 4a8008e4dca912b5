"""A scripted trainer: it trains what is one step ahead of it, once, and answers the same request from memory."""

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from testkit.sim.links import Link

from headrace.core.job import actions as do
from headrace.core.job import events as did

if TYPE_CHECKING:
    from testkit.sim.world import World


class TrainerMisused(AssertionError):
    """It was asked for something that would train a batch twice, out of order, or under a used number."""


@dataclass
class Store:
    """The weight store and the checkpoints, which outlive a trainer. A node that dies takes the bytes along."""

    sealed: dict[int, str] = field(default_factory=dict)
    here: set[int] = field(default_factory=set)  # versions with their bytes
    checkpoints: set[int] = field(default_factory=lambda: {0})

    def seal(self, version: int, digest: str) -> None:
        if self.sealed.setdefault(version, digest) != digest:
            raise TrainerMisused(f"version {version} is sealed as {self.sealed[version]}, pushed as {digest}")
        self.here.add(version)


class Trainer:
    """One incarnation. `step` is what its parameters have seen."""

    def __init__(self, world: "World", worker_id: str) -> None:
        self.world, self.worker_id = world, worker_id
        self.rng: random.Random = world.rng
        self.is_alive, self.is_open = True, False
        self.step = 0
        self.epoch = 0
        self.link: Link | None = None
        self.parts: dict[tuple[int, int], dict[int, do.TrainStep]] = {}
        self.answers: dict[tuple[int, int], did.StepFinished] = {}
        self.pushed: set[int] = set()  # versions whose bytes it can push again

    def open(self, link: Link, restore_step: int | None) -> None:
        if not self.is_alive or link.epoch < self.epoch:
            return
        self.link, self.epoch = link, link.epoch
        is_attached, self.is_open = self.is_open, True
        if not is_attached:
            self.step = max(c for c in self.world.store.checkpoints if c <= (restore_step or 0))
        self.answer(did.TrainerOpened(self.worker_id, self.step, is_attached))

    def command(self, epoch: int, action: do.Action) -> None:
        if not self.is_alive or epoch < self.epoch:
            return
        match action:
            case do.PublishState(version, _, step):
                again = self._publish_again if version in self.world.store.sealed else self._publish
                self.world.clock.after(self.rng.uniform(0.01, 0.3) * self.world.pace, again, version, step)
            case do.TrainStep():
                self._train(action)
            case do.CloseTraining(path):
                self.answer(did.TrainingClosed(path))

    def answer(self, event: did.Event) -> None:
        if self.is_alive and self.link is not None:
            self.link.answer(self.world.hear, self.link, event)

    def _publish_again(self, version: int, step: int) -> None:
        """The store lost its bytes; a trainer restored to another step cannot make them."""
        if self.is_alive and (version in self.pushed or step == self.step):
            store = self.world.store
            store.seal(version, store.sealed[version])
            self.answer(did.StatePublished(version, store.sealed[version], 10))

    def _publish(self, version: int, step: int) -> None:
        if self.is_alive:
            if step != self.step:
                raise TrainerMisused(f"asked to publish step {step} while at {self.step}")
            self.pushed.add(version)
            # Trainers compute other bytes, each its own; the job's model is the same for all.
            digest = f"v{version}/step{self.step}/{self.worker_id if self.step else 'model'}"
            self.world.store.seal(version, digest)
            self.answer(did.StatePublished(version, digest, 10))

    def _train(self, part: do.TrainStep) -> None:
        """Parts come one by one, some of them again; the step is trained when all have come."""
        key = (part.step, part.publish_version)
        if key in self.answers:
            if self.answers[key].batch_digest != self._whole(key).batch_digest:
                raise TrainerMisused(f"step {part.step} was trained with another batch")
            self.answer(self.answers[key])
            return
        known = self.parts.setdefault(key, {})
        if part.part in known:
            if known[part.part] != part:
                raise TrainerMisused(f"part {part.part} of step {part.step} came with other groups")
            return
        if part.step != self.step + 1:
            raise TrainerMisused(f"asked for step {part.step} while at {self.step}")
        known[part.part] = part
        if len(known) == part.n_parts:
            self.world.clock.after(self.rng.uniform(0.3, 2.0) * self.world.pace, self._finish, key)

    def _whole(self, key: tuple[int, int]) -> do.TrainStep:
        return self.parts[key][max(self.parts[key])]

    def _finish(self, key: tuple[int, int]) -> None:
        if not self.is_alive or key in self.answers:
            return
        step, version = key
        if step != self.step + 1:
            raise TrainerMisused(f"trains step {step} at {self.step}")
        self.step = step
        every = self.world.plan.checkpoint_every
        if every and step % every == 0:
            self.world.store.checkpoints.add(step)
        digest = f"v{version}/step{step}/{self.worker_id}"
        self.world.store.seal(version, digest)
        self.pushed.add(version)
        newest = max(c for c in self.world.store.checkpoints if c <= step)
        batch = self._whole(key).batch_digest
        self.answers[key] = did.StepFinished(step, batch, version, digest, 10, checkpoint_step=newest)
        self.answer(self.answers[key])
