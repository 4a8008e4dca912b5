"""What the job counts of those that redundancy kills: their rewards, where they were known."""

from testkit.jobs import TOOLS, Job, make_policy, running


def killed(job: Job) -> dict[str, float | None]:
    told: dict[str, float | None] = job.state.censoring.report()[job.groups[0].task]["killed"]
    return told


def redundant(**fields: object) -> Job:
    return running(redundancy=1.5, group_size=4, policy=make_policy(alpha=0), **fields)


def test_a_reward_that_a_grader_still_owes_is_not_known() -> None:
    job = redundant(tasks=(TOOLS,))
    members = job.members(job.groups[0])
    for member in members:
        job.finish(member)
    for member in members[:4]:
        job.grade(member)
    assert (killed(job)["n"], killed(job)["reward_known_share"], killed(job)["mean_reward"]) == (2.0, 0.0, None)
