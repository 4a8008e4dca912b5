"""The parts around an episode: barriers, gates, outboxes, clean text, the contract, specs."""

import asyncio
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from env_svc.contract import as_reset, as_step, load, make, n_bytes
from env_svc.faults import EnvFault, InfraFault, JobRefused
from env_svc.lockstep import Cohort, Cohorts
from env_svc.outbox import Key, Outbox
from env_svc.pauses import Gate
from env_svc.spec import PluginSpec, parse_job_spec
from env_svc.text import Cleaner, to_json
from env_svc.uploads import Uploads, digest_of
from headrace.wire.environments.v1 import environments_pb2

# --- lockstep


async def _settle():
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_cohort_is_released_together_and_turn_by_turn():
    cohort = Cohort(size=2, grace_s=10)
    cohort.join()
    cohort.join()
    first = asyncio.create_task(cohort.wait())
    await _settle()
    assert not first.done()
    await cohort.wait()
    await first
    again = asyncio.create_task(cohort.wait())
    await _settle()
    assert not again.done()
    cohort.leave()
    await again


async def test_a_cancelled_member_is_not_counted():
    cohort = Cohort(size=2, grace_s=10)
    cohort.join()
    cohort.join()
    gone = asyncio.create_task(cohort.wait())
    await _settle()
    gone.cancel()
    await _settle()
    other = asyncio.create_task(cohort.wait())
    await _settle()
    assert not other.done()
    cohort.leave()
    await asyncio.wait_for(other, 1)


async def test_members_elsewhere_are_waited_for_only_so_long():
    cohort = Cohort(size=8, grace_s=0.05)
    cohort.join()
    started = asyncio.get_running_loop().time()
    await asyncio.wait_for(cohort.wait(), 1)
    assert asyncio.get_running_loop().time() - started >= 0.04


def test_no_name_no_cohort_and_empty_ones_are_forgotten():
    async def body():
        cohorts = Cohorts(1)
        assert cohorts.join("", 3) is None
        first = cohorts.join("a", 1)
        assert first is not None
        cohorts.leave("a")
        assert cohorts.join("a", 1) is not first

    asyncio.run(body())


# --- pauses


async def test_a_gate_holds_and_gives_deadlines_their_time_back():
    gate = Gate(ttl_s=10)
    await gate.passed()
    async with asyncio.timeout(0.2) as deadline:
        with gate.extends(deadline):
            gate.pause()
            gate.pause()
            held = asyncio.create_task(gate.passed())
            await asyncio.sleep(0.3)
            assert not held.done() and not gate.is_open
            gate.resume()
            gate.resume()
            await held
            assert deadline.when() is not None
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05) as deadline:
            with gate.extends(deadline):
                gate.pause()
                gate.resume()
                await asyncio.sleep(1)


async def test_a_gate_gives_up_after_its_time():
    gate = Gate(ttl_s=0.05)
    gate.pause()
    with pytest.raises(InfraFault, match=r"limits\.pause_ttl_s"):
        await gate.passed()


# --- outbox

KEY = Key("t0", 1)


def _final(key=KEY):
    return environments_pb2.Outcome(finished=environments_pb2.AttemptFinished(key=key.message()))


async def _written(outbox):
    frames = []

    async def write(frame):
        frames.append(frame)

    task = asyncio.create_task(outbox.write(write))
    await asyncio.sleep(0.02)
    task.cancel()
    return [o.WhichOneof("outcome") for frame in frames for o in frame.outcomes], frames


async def test_an_outcome_is_kept_until_acknowledged():
    outbox = Outbox()
    outbox.started(KEY, 3)
    outbox.started(KEY, 4)
    assert (await _written(outbox))[0] == ["started"]
    outbox.finished(KEY, _final())
    assert (await _written(outbox))[0] == ["finished"]
    assert len(outbox) == 1 and outbox.is_known(KEY)
    outbox.restart()
    assert (await _written(outbox))[0] == ["finished"]
    outbox.acknowledge([KEY, KEY, Key("other", 1)])
    await asyncio.wait_for(outbox.emptied(), 1)
    outbox.restart()
    assert (await _written(outbox))[0] == [] and len(outbox) == 0
    assert outbox.is_known(KEY)  # a late repeat of its assignment starts nothing


async def test_frames_carry_at_most_64():
    outbox = Outbox()
    for number in range(150):
        outbox.finished(Key(f"t{number}", 1), _final(Key(f"t{number}", 1)))
    _, frames = await _written(outbox)
    assert [len(frame.outcomes) for frame in frames] == [64, 64, 22]


# --- uploads


class Sink:
    """Takes blobs slowly, and notes each call's size."""

    def __init__(self):
        self.calls = []

    async def put_blobs(self, blobs, *, give_up_s=None):
        self.calls.append(len(blobs))
        await asyncio.sleep(0.01)


async def test_blobs_that_wait_travel_together():
    sink = Sink()
    uploads = Uploads(sink, give_up_s=1)
    running = asyncio.create_task(uploads.run())
    digests = await asyncio.gather(*(uploads.put(b"%d" % n, b"x%d" % n) for n in range(20)))
    running.cancel()
    assert digests[3] == [digest_of(b"3"), digest_of(b"x3")]
    assert sum(sink.calls) == 40 and len(sink.calls) <= 2


# --- text


def test_cleaning_replaces_and_counts():
    cleaner = Cleaner()
    assert cleaner.text("a\x00b\ud800") == "a\ufffdb\ufffd" and cleaner.n_replaced == 2
    assert cleaner.text("\\u0000 € \U0001f6d2") == "\\u0000 € \U0001f6d2" and cleaner.n_replaced == 2
    assert cleaner.value({"k\x00": ["\x00", 1, None]}) == {"k\ufffd": ["\ufffd", 1, None]}


@given(st.text(st.characters(codec=None)))
def test_clean_text_can_be_stored_anywhere(text):
    cleaned = Cleaner().text(text)
    assert "\x00" not in cleaned and cleaned.encode("utf-8").decode("utf-8") == cleaned
    assert len(cleaned) == len(text)


class Scalar:
    """As array libraries' scalars are."""

    def tolist(self):
        return [1, math.nan]


def test_anything_becomes_json():
    value = {1: (2, {3}), "f": math.inf, "a": Scalar(), "o": json}
    plain = to_json(value)
    assert plain["1"] == [2, [3]] and plain["f"] is None and plain["a"] == [1, None] and "module" in plain["o"]
    json.dumps(plain, allow_nan=False)
    deep = []
    deep.append(deep)
    json.dumps(to_json(deep))


# --- contract


def test_five_tuples():
    step = as_step(([{"role": "tool", "content": "x"}], 1, 0, True, {"k": 1}))
    assert (step.reward, step.terminated, step.truncated) == (1.0, False, True)
    assert as_reset(("x", {})).observation == "x"
    assert n_bytes("é\ud800") == 5 and n_bytes([{"role": "a", "content": "é"}]) == 2


@pytest.mark.parametrize("raw", ["x", ("x",), (5, {}), ([{"content": "x"}], {}), ("x", None)])
def test_resets_that_break_the_contract(raw):
    with pytest.raises(EnvFault, match="reset must return"):
        as_reset(raw)


def test_split_goes_to_those_who_take_it():
    lake = make(PluginSpec("env_svc.environments.frozen_lake:FrozenLake", {}, "heldout"))
    _, info = lake.reset(seed=1)
    assert info["split"] == "heldout"
    assert make(PluginSpec("testkit.environments:Echo", {}, "heldout")).n_turns == 3
    assert load("json:JSONEncoder.encode")


# --- spec


def test_a_spec_fills_in_what_is_left_out():
    task = {"name": "t", "env": {"entry_point": "a:B"}}
    job = parse_job_spec(json.dumps({"tasks": [task], "model": {"max_len": 99}}))
    parsed = job.tasks["t"]
    assert job.max_len == 99 and parsed.has_env_reward and parsed.plugin.isolation == "auto"
    assert parsed.deadlines.step_s == 30.0 and parsed.sampling.top_p == 1.0
    assert parsed.limits(99).max_turn_tokens == parsed.sampling.max_tokens


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("{", "spec_json"),
        ("{}", "'tasks' is missing"),
        ('{"tasks": [{"name": "t"}]}', "'env' is missing"),
        ('{"tasks": [{"name": "t", "env": {"entry_point": "a:B", "timeouts": {"steps": 1}}}]}', "steps"),
        ('{"tasks": [{"name": "t", "env": {"entry_point": "a:B"}, "on_length": "cut"}]}', "on_length"),
        ('{"tasks": [{"name": "t", "env": {"entry_point": "a:B"}, "sampling": {"max_tokens": -1}}]}', "at least 1"),
    ],
)
def test_a_spec_that_does_not_do_names_the_field(spec, words):
    with pytest.raises(JobRefused, match=words):
        parse_job_spec(spec)
