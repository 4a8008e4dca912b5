"""What the job spec accepts, what it refuses, and how it says so."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.client.jobspec import JobSpec, SpecError, apply_overrides, load, parse, parse_json, read_yaml
from headrace.client.jobspec.plain import printable
from headrace.client.jobspec.reference import reference
from headrace.core import async_policy
from headrace.core.async_policy import PRESETS


def document(**blocks: Any) -> dict[str, Any]:
    return {
        "schema": "headrace/v1",
        "name": "job",
        "max_steps": 3,
        "model": {"path": "model"},
        "tasks": [{"name": "lake", "env": {"entry_point": "a.b:C"}}],
        **blocks,
    }


def task(**blocks: Any) -> dict[str, Any]:
    return document(tasks=[{"name": "lake", "env": {"entry_point": "a.b:C"}, **blocks}])


def problems(data: object) -> dict[str, str]:
    with pytest.raises(SpecError) as refused:
        parse(data)
    return {problem.pointer: f"{problem.message} | {problem.fix}" for problem in refused.value.problems}


@pytest.mark.parametrize("preset", PRESETS)
def test_preset_fills_the_policy_and_resolving_twice_changes_nothing(preset: str) -> None:
    spec = parse(document(**{"async": {"preset": preset}}, resources={"env_slots": 512}))
    resolved = spec.resolve()
    assert spec.policy == resolved.policy == PRESETS[preset]
    assert resolved.resolve() == resolved
    assert parse_json(resolved.canonical_json()) == resolved


GIVEN = st.fixed_dictionaries(
    {},
    optional={
        "interaction": st.sampled_from(get_args(async_policy.Interaction)),
        "reward": st.sampled_from(get_args(async_policy.RewardAt)),
        "load_at": st.sampled_from(get_args(async_policy.LoadAt)),
        "on_load": st.sampled_from(get_args(async_policy.OnLoad)),
        "overlap": st.sampled_from(get_args(async_policy.Overlap)),
        "train_on": st.sampled_from(get_args(async_policy.TrainOn)),
        "alpha": st.none() | st.integers(0, 3),
        "on_stale": st.sampled_from(get_args(async_policy.OnStale)),
        "repack": st.booleans(),
        "local_batch": st.none() | st.just(64),
        "overcommit": st.just(1.5),
        "max_inflight": st.none() | st.just(512),
    },
)


@given(preset=st.sampled_from(list(PRESETS)), given_fields=GIVEN)
def test_a_preset_only_fills_fields(preset: str, given_fields: dict[str, Any]) -> None:
    """What was given stands; a combination that cannot run is refused at a field, whoever filled it."""
    expected = replace(PRESETS[preset], **given_fields)
    data = document(**{"async": {"preset": preset, **given_fields}}, resources={"env_slots": 512})
    if refused := expected.validate():
        assert {f"/async/{problem.field}" for problem in refused} <= problems(data).keys()
    else:
        spec = parse(data)
        assert spec.policy == spec.resolve().policy == expected


def test_given_fields_win_over_the_preset_null_included() -> None:
    policy = parse(document(**{"async": {"preset": "bounded", "alpha": None, "overcommit": 2}})).policy
    assert (policy.alpha, policy.overcommit) == (None, 2.0)


def test_null_where_it_bounds_nothing_is_the_presets_own_value() -> None:
    nothing = dict.fromkeys(("interaction", "load_at", "overcommit", "repack", "on_stale"))
    assert (
        parse(document(**{"async": {"preset": "sync", **nothing}}, resources={"env_slots": 512})).policy
        == PRESETS["sync"]
    )


@pytest.mark.parametrize(
    ("data", "pointer", "part"),
    [
        (document(optimzer={}), "/optimzer", "did you mean 'optimizer'"),
        (document(**{"async": {"max_staleness": 1}}), "/async/max_staleness", "async.alpha"),
        (task(env={"entry_point": "a.b:C", "max_turn": 3}), "/tasks/0/env/max_turn", "max_turns"),
        (document(max_steps="3"), "/max_steps", 'got "3"'),
        (document(seed=True), "/seed", "got true"),
        (document(batch={"groups": 1.0}), "/batch/groups", "got 1.0"),
        (document(batch={"group_size": 1}), "/batch/group_size", "use 2 or more"),
        (document(batch={"redundancy": 0.5}), "/batch/redundancy", "1"),
        (document(**{"async": {"alpha": -1}}), "/async/alpha", "0"),
        (document(**{"async": {"alpha": 0, "load_at": "get_batch"}}), "/async/alpha", "load_at"),
        (document(**{"async": {"max_inflight": 7}}), "/async/max_inflight", "k = 8"),
        (document(resources={"env_slots": 4}), "/resources/env_slots", "k = 8"),
        (document(**{"async": {"preset": "sync"}}, resources={"env_slots": 100}), "/resources/env_slots", "192"),
        (task(sampling={"top_p": 0.9}), "/tasks/0/sampling/top_p", "use 1"),
        (task(sampling={"top_k": 20}), "/tasks/0/sampling/top_k", "use 0"),
        (task(sampling={"temperature": 0}), "/tasks/0/sampling/temperature", "greedy"),
        (task(sampling={"max_tokens": 256}), "/tasks/0/sampling/max_tokens", "max_len"),
        (task(rewards=[{"env": True, "fn": "a:b"}]), "/tasks/0/rewards/0", "exactly one"),
        (task(rewards=[{}]), "/tasks/0/rewards/0", "exactly one"),
        (task(rewards=[{"env": True, "retries": 1}]), "/tasks/0/rewards/0/retries", "ignored"),
        (task(rewards=[{"fn": "a:f"}, {"fn": "b:f"}]), "/tasks/0/rewards/0", "twice"),
        (task(rewards=[]), "/tasks/0/rewards", "at least 1"),
        (task(affinity="big"), "/tasks/0/affinity", "hw_mapping"),
        (task(env={"entry_point": "no colon"}), "/tasks/0/env/entry_point", "package.module:Name"),
        (document(algorithm={"correction": {"type": "none", "cap": 2}}), "/algorithm/correction/cap", "ignored"),
        (document(algorithm={"kl": {"estimator": "k3"}}), "/algorithm/kl/estimator", "ignored"),
        (document(algorithm={"updates_per_step": 25}), "/algorithm/updates_per_step", "24"),
        (document(eval={"sampled": False, "greedy": False}), "/eval/sampled", "neither"),
        (document(resources={"inference": {"min": 3}}), "/resources/inference/max", "min"),
        (document(seed=2**53), "/seed", "2**53"),
        (document(optimizer={"lr": float("nan")}), "/optimizer/lr", "finite"),
        (document(optimizer={"lr": "inf"}), "/optimizer/lr", "number"),
        (document(name="a\x00"), "/name", "U+0000"),
        (document(labels={"a": "\udc00"}), "/labels/a", "surrogate"),
        (task(env={"entry_point": "a.b:C", "config": {"k": {"\x00": 1}}}), "/tasks/0/env/config/k", "U+0000"),
        (document(schema="headrace/v2"), "/schema", "headrace/v1"),
        ([], "", "mapping"),
        ({}, "/schema", "required"),
    ],
)
def test_refusal_has_pointer_reason_and_fix(data: object, pointer: str, part: str) -> None:
    assert part in problems(data)[pointer]


def test_one_bad_key_of_a_task_is_the_only_problem() -> None:
    assert list(problems(task(wieght=2))) == ["/tasks/0/wieght"]


def test_tasks_of_one_name_are_refused() -> None:
    twice = document()["tasks"] * 2
    assert set(problems(document(tasks=twice))) == {"/tasks/0/name", "/tasks/1/name"}


def test_text_that_spells_an_escape_survives() -> None:
    spec = parse(document(name="six characters: \\u0000"))
    assert json.loads(spec.canonical_json())["name"] == "six characters: \\u0000"


def test_redundant_siblings_are_counted_in_decimals() -> None:
    assert parse(document(batch={"group_size": 10, "redundancy": 1.1})).siblings_per_group == 11


def test_learning_rate_zero_is_a_control_not_an_error() -> None:
    assert parse(document(optimizer={"lr": 0})).optimizer.lr == 0


def test_digest_is_of_the_meaning() -> None:
    written_out = json.loads(parse(document()).resolve().canonical_json())
    assert parse(dict(reversed(written_out.items()))).digest() == parse(document()).digest()
    assert parse(document(seed=1)).digest() != parse(document()).digest()


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(), max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
KEYS = st.sampled_from([*sorted(document()), "async", "batch", "algorithm", "limits", "optimizer", "eval", "affinity"])


@settings(max_examples=300)
@given(st.dictionaries(KEYS, JSON_VALUES, max_size=4))
def test_any_data_is_a_spec_or_a_spec_error(changes: dict[str, Any]) -> None:
    try:
        spec = parse(document(**changes))
    except SpecError as error:
        assert error.problems
        for problem in error.problems:
            json.dumps(str(problem), ensure_ascii=False).encode()
    else:
        assert parse_json(spec.resolve().canonical_json()) == spec.resolve()


@given(st.text(st.characters(), max_size=20))
def test_printable_text_can_be_encoded_and_keeps_what_can_be(text: str) -> None:
    shown = printable(text)
    shown.encode()
    assert "\x00" not in shown
    assert printable(shown) == shown
    if not any("\ud800" <= character <= "\udfff" for character in text):
        assert shown == text.replace("\x00", "\ufffd")


def test_printable_text_marks_each_lone_surrogate_and_joins_pairs() -> None:
    assert printable("a\ud800b\udfff") == "a\ufffdb\ufffd"
    assert printable("\ud83d\ude00") == "\U0001f600"


def test_yaml_reads_numbers_and_words_as_people_mean_them() -> None:
    assert read_yaml("a: 4e-4\nb: on\nc: no\nd:\ne: 1.5\nf: -3\ng: true\nh: 1:30\ni: ~") == {
        "a": 4e-4,
        "b": "on",
        "c": "no",
        "d": None,
        "e": 1.5,
        "f": -3,
        "g": True,
        "h": "1:30",
        "i": None,
    }


@pytest.mark.parametrize("text", ["a: 1\na: 2", "a: &x 1\nb: *x", "a: [1", "a: \x00", "\ufeff\x01", "? [1]\n: 2"])
def test_yaml_that_cannot_be_meant_is_refused(text: str) -> None:
    with pytest.raises(SpecError):
        parse(read_yaml(text))


def test_file_is_loaded_with_overrides(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps(document()))
    spec = load(path, ["async.alpha=2", "tasks.lake.weight=3", "tasks.0.env.max_turns=5", "optimizer.lr=4e-4"])
    assert isinstance(spec, JobSpec)
    assert (spec.policy.alpha, spec.tasks[0].weight, spec.tasks[0].env.max_turns) == (2, 3.0, 5)
    assert spec.optimizer.lr == 4e-4


@pytest.mark.parametrize("override", ["async.alpha", "=1", "tasks.sea.weight=1", "name.x=1", "tasks.9.weight=1"])
def test_override_that_leads_nowhere_is_refused(override: str) -> None:
    with pytest.raises(SpecError):
        apply_overrides(document(), [override])


def test_missing_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="cannot read"):
        load(tmp_path / "none.yaml")


def test_reference_page_is_current(repository: Path) -> None:
    page = (repository / "docs" / "job-spec.md").read_text()
    assert page == reference(), "run: python -m headrace.client.jobspec > docs/job-spec.md"


def test_every_key_has_a_meaning() -> None:
    rows = [line for line in reference().splitlines() if line.startswith("| `")]
    assert all(line.split(" | ")[-1].rstrip(" |") for line in rows)
