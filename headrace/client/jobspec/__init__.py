"""The job spec `headrace/v1`: frozen models, one parser, errors with JSON pointers.

spec = load("job.yaml", ["async.alpha=2"])      # or parse(dict), parse_json(text)
spec.resolve().canonical_json()                 # what travels as spec_json and is stored with the job
spec.policy                                     # headrace.core.async_policy.AsyncPolicy
"""

from headrace.client.jobspec.loading import apply_overrides, load, read_document, read_yaml
from headrace.client.jobspec.model import JobSpec
from headrace.client.jobspec.parsing import parse, parse_json
from headrace.client.jobspec.plain import printable, read_json
from headrace.client.jobspec.problems import Problem, SpecError
from headrace.client.jobspec.tasks import EnvBlock, RewardBlock, SamplingBlock, TaskBlock, TimeoutsBlock

__all__ = [
    "EnvBlock",
    "JobSpec",
    "Problem",
    "RewardBlock",
    "SamplingBlock",
    "SpecError",
    "TaskBlock",
    "TimeoutsBlock",
    "apply_overrides",
    "load",
    "parse",
    "parse_json",
    "printable",
    "read_document",
    "read_json",
    "read_yaml",
]
