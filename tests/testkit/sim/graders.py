"""Scripted reward workers behind a broker that loses and repeats messages. The first report of a reward stands."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from testkit.sim.world import World


class Graders:
    def __init__(self, world: "World") -> None:
        self.world, self.rng = world, world.rng

    def grade(self, payload: Mapping[str, Any]) -> None:
        world = self.world
        for item in payload["items"]:
            if world.happens("reward_lost"):
                continue
            for _ in range(1 + world.happens("duplicate")):
                world.clock.after(self.rng.uniform(0.02, 1.0) * world.pace, self._report, item)

    async def _report(self, item: Mapping[str, Any]) -> None:
        """Two runs of a grader need not agree."""
        world = self.world
        fault: dict[str, Any] = {}
        if world.happens("retryable"):
            fault = {"code": "grader_lost", "retryable": True}
        elif world.happens("abstained"):
            fault = {"code": "abstained", "retryable": False}
        await world.database.report_reward(
            {
                "trajectory_id": item["trajectory_id"],
                "attempt": item["attempt"],
                "reward_name": item["reward_name"],
                "job_id": item["job_id"],
                "state": "unscorable" if fault else "scored",
                "score": None if fault else self.rng.choice([0.0, 1.0, 3.0]),
                "components": {},
                "fault": fault,
                "try": item["try_number"],
            }
        )
        if world.runner is not None:
            world.clock.after(0.02, world.runner.collect)
