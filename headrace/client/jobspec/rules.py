"""What types alone cannot say: combinations of keys that cannot run, or that would be ignored without a word."""

from collections import Counter
from collections.abc import Iterator

from headrace.client.jobspec.model import JobSpec
from headrace.client.jobspec.problems import Problem, pointer
from headrace.client.jobspec.tasks import RewardBlock, TaskBlock


def check(spec: JobSpec) -> list[Problem]:
    """Every reason why a well-typed spec is refused."""
    return [
        *_asynchrony(spec),
        *_batch(spec),
        *_algorithm(spec),
        *_task_names(spec),
        *(problem for index, task in enumerate(spec.tasks) for problem in _task(spec, index, task)),
        *_resources(spec),
        *_evaluation(spec),
    ]


def _asynchrony(spec: JobSpec) -> Iterator[Problem]:
    for found in spec.policy.validate():
        yield Problem(pointer(["async", found.field]), found.message, found.fix)


def _batch(spec: JobSpec) -> Iterator[Problem]:
    batch, policy, k = spec.batch, spec.policy, spec.siblings_per_group
    if batch.group_size < 2:
        yield Problem(
            "/batch/group_size",
            f"{spec.algorithm.type} compares siblings of a group, and one alone has advantage 0",
            "use 2 or more",
        )
    if policy.max_inflight is not None and policy.max_inflight < k:
        yield Problem(
            "/async/max_inflight",
            f"a group issues k = {k} attempts (group_size * redundancy), more than max_inflight {policy.max_inflight}",
            f"use {k} or more, or a smaller group",
        )
    if spec.buffer.capacity is not None and spec.buffer.capacity < batch.groups * k:
        yield Problem(
            "/buffer/capacity",
            f"a batch of {batch.groups} groups with k = {k} siblings could never fill",
            f"use {batch.groups * k} or more, or null",
        )
    if policy.interaction == "lockstep" and spec.resources.env_slots < batch.groups * k:
        yield Problem(
            "/resources/env_slots",
            f"a lockstep batch needs all its {batch.groups} x {k} environments at once",
            f"use {batch.groups * k} or more, fewer groups, or interaction: trajectory",
        )
    if spec.resources.env_slots < k:
        yield Problem("/resources/env_slots", f"a group of k = {k} never fits", f"use {k} or more, or a smaller group")


def _algorithm(spec: JobSpec) -> Iterator[Problem]:
    algorithm = spec.algorithm
    if algorithm.correction.type == "none" and algorithm.correction.cap is not None:
        yield _ignored("/algorithm/correction/cap", "correction type none has no cap", "set type to tis or icepop")
    if algorithm.selection.type == "none" and algorithm.selection.cap is not None:
        yield _ignored("/algorithm/selection/cap", "selection type none has no cap", "set type to ipw")
    if algorithm.kl.coef == 0 and algorithm.kl.estimator is not None:
        yield _ignored("/algorithm/kl/estimator", "with coef 0 there is no penalty", "set coef above 0")
    if algorithm.updates_per_step > spec.batch.groups:
        yield Problem(
            "/algorithm/updates_per_step",
            f"{algorithm.updates_per_step} updates cannot share {spec.batch.groups} whole groups",
            f"use at most {spec.batch.groups}",
        )


def _task_names(spec: JobSpec) -> Iterator[Problem]:
    counts = Counter(task.name for task in spec.tasks)
    for index, task in enumerate(spec.tasks):
        if counts[task.name] > 1:
            yield Problem(
                pointer(["tasks", index, "name"]), f"{task.name!r} is used twice", "give each task its own name"
            )


def _task(spec: JobSpec, index: int, task: TaskBlock) -> Iterator[Problem]:
    at: list[str | int] = ["tasks", index]
    mapping = spec.affinity.hw_mapping
    if task.affinity is not None and task.affinity not in mapping:
        known = ", ".join(sorted(mapping)) or "it is empty"
        yield Problem(
            pointer([*at, "affinity"]),
            f"tag {task.affinity!r} is not in affinity.hw_mapping ({known})",
            "map the tag to pools, or leave it out",
        )
    if task.sampling.max_tokens >= spec.model.max_len:
        yield Problem(
            pointer([*at, "sampling", "max_tokens"]),
            f"a turn of {task.sampling.max_tokens} tokens leaves no room for a prompt in max_len {spec.model.max_len}",
            "use fewer, or raise model.max_len",
        )
    yield from _sampling(at, task)
    names = Counter(_name(reward) for reward in task.rewards)
    for position, reward in enumerate(task.rewards):
        yield from _reward([*at, "rewards", position], reward, names)


def _sampling(at: list[str | int], task: TaskBlock) -> Iterator[Problem]:
    sampling = task.sampling
    why = "the trainer scores the full softmax, so importance weights against a truncated distribution are wrong"
    if sampling.top_p != 1:
        yield Problem(pointer([*at, "sampling", "top_p"]), why, "use 1")
    if sampling.top_k != 0:
        yield Problem(pointer([*at, "sampling", "top_k"]), why, "use 0")
    if sampling.temperature == 0:
        yield Problem(
            pointer([*at, "sampling", "temperature"]),
            "siblings drawn greedily are all the same, so nothing is learned",
            "use a temperature above 0; eval.greedy measures temperature 0",
        )


def _reward(at: list[str | int], reward: RewardBlock, names: Counter[str]) -> Iterator[Problem]:
    if reward.env == (reward.fn is not None):
        yield Problem(pointer(at), "a reward is either `env: true` or a grader `fn`", "give exactly one of them")
        return
    if names[_name(reward)] > 1:
        yield Problem(pointer(at), f"reward name {_name(reward)!r} is used twice in this task", "set a distinct `name`")
    if reward.env:
        for key in ("timeout_s", "retries"):
            if getattr(reward, key) is not None:
                yield _ignored(pointer([*at, key]), "the environment's own reward has no grader call", "leave it out")


def _name(reward: RewardBlock) -> str:
    return reward.name or (reward.fn.rpartition(":")[2] if reward.fn else "env")


def _resources(spec: JobSpec) -> Iterator[Problem]:
    inference = spec.resources.inference
    if inference.max < inference.min:
        yield Problem("/resources/inference/max", f"below min {inference.min}", "use min or more")
    if inference.kv_tokens < spec.model.max_len:
        yield Problem(
            "/resources/inference/kv_tokens",
            f"one trajectory of model.max_len {spec.model.max_len} tokens does not fit the cache",
            f"use {spec.model.max_len} or more",
        )


def _evaluation(spec: JobSpec) -> Iterator[Problem]:
    evaluation = spec.eval
    is_on = evaluation.at_start or evaluation.at_end or evaluation.every > 0
    if is_on and not (evaluation.sampled or evaluation.greedy):
        yield Problem(
            "/eval/sampled",
            "evaluation is on, but neither sampled nor greedy",
            "turn one on, or set at_start and at_end false and every 0",
        )


def _ignored(at: str, why: str, fix: str) -> Problem:
    return Problem(at, f"would be ignored: {why}", f"{fix}, or leave this key out" if fix != "leave it out" else fix)
