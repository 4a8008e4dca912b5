"""One task of the mixture: an environment, its rewards, and how answers are sampled."""

from typing import Annotated, Literal

from pydantic import Field, JsonValue

from headrace.client.jobspec.base import Block, Count, Ident, ImportPath, Seconds


class TimeoutsBlock(Block):
    """Deadlines of one episode."""

    reset_s: Seconds = Field(30.0, description="`reset` of the environment.")
    step_s: Seconds = Field(30.0, description="One `step`; past it the episode ends with `step_timeout`.")
    episode_s: Seconds = Field(600.0, description="The whole episode, generation included.")


class EnvBlock(Block):
    """The environment, by import path: a gymnasium-style class with text actions."""

    entry_point: ImportPath = Field(description="`package.module:Class`, importable where env_svc runs.")
    config: dict[str, JsonValue] = Field(default_factory=dict, description="Keyword arguments of its constructor.")
    max_turns: Annotated[int, Field(ge=1, le=1 << 16)] = Field(
        16, description="Answers per episode; then it ends truncated (`max_turns`)."
    )
    isolation: Literal["auto", "inline", "thread", "process"] = Field(
        "auto",
        description="Where it runs: on the event loop, in a thread, or in a process of its own. `auto`: what the "
        "class declares as `isolation`, else the loop for coroutine methods and a process for others.",
    )
    observation_role: Literal["user", "tool"] = Field(
        "user", description="Role of observations in the chat template, where they are plain text."
    )
    timeouts: TimeoutsBlock = Field(default_factory=TimeoutsBlock, description="Deadlines.")


class RewardBlock(Block):
    """One reward: the environment's own (`env: true`), or a grader (`fn`)."""

    env: bool = Field(False, description="Use the sum of what the environment's `step` returned.")
    fn: ImportPath | None = Field(None, description="Grader, importable where reward_svc runs.")
    name: Ident | None = Field(None, description="Key of the stored score. Filled with `env` or the function's name.")
    weight: Annotated[float, Field(ge=-1e6, le=1e6)] = Field(1.0, description="Factor in the sum of rewards.")
    timeout_s: Seconds | None = Field(None, description="Time limit of one grading. Filled with 10 for graders.")
    retries: Annotated[int, Field(ge=0, le=100)] | None = Field(
        None, description="Repeats after a grader raised. Filled with 1 for graders."
    )


class SamplingBlock(Block):
    """How answers are drawn. Engines get this in full and never read the model's generation_config."""

    temperature: Annotated[float, Field(ge=0, le=100)] = Field(1.0, description="Above 0.")
    max_tokens: Annotated[int, Field(ge=1, le=1 << 20)] = Field(64, description="Generated tokens per turn.")
    stop: tuple[Annotated[str, Field(min_length=1, max_length=100)], ...] = Field(
        (), description="Tokens that end a turn, besides the tokenizer's end of text; each must be one token."
    )
    top_p: Annotated[float, Field(gt=0, le=1)] = Field(
        1.0, description="1: behaviour logprobs are of the full softmax."
    )
    top_k: Annotated[int, Field(ge=0, le=1 << 30)] = Field(0, description="0: the whole vocabulary.")


class TaskBlock(Block):
    """A task of the mixture."""

    name: Ident = Field(description="Unique in the job.")
    weight: Annotated[float, Field(gt=0, le=1e6)] = Field(1.0, description="Share of the groups of a step.")
    prompts: Count | None = Field(
        None, description="Prompts of the task, one group each; then it has run out. null: seeds without end."
    )
    env: EnvBlock = Field(description="Environment.")
    rewards: tuple[RewardBlock, ...] = Field(
        (RewardBlock(env=True),), min_length=1, max_length=32, description="Their weighted sum is the reward."
    )
    sampling: SamplingBlock = Field(default_factory=SamplingBlock, description="Sampling.")
    affinity: Ident | None = Field(None, description="Tag looked up in `affinity.hw_mapping`; null: any pool.")
    max_observation_tokens: Annotated[int, Field(ge=1, le=1 << 20)] = Field(
        4096, description="Longer observations are cut, and the cut is counted."
    )
    overflow_reward: Annotated[float, Field(ge=-1e9, le=1e9)] = Field(
        0.0, description="Added to the reward of an episode that is cut for want of context or tokens."
    )
    on_length: Literal["end", "act"] = Field(
        "end", description="A turn cut at `sampling.max_tokens` ends the episode truncated, or is played as it is."
    )
