"""The control plane's decisions that need no database."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.blobs.codec import WrongDigest, pack, unpack
from control_plane.http import __main__ as openapi
from control_plane.http.answers import encode
from control_plane.http.cursors import Cursors, page
from control_plane.http.problems import ProblemError
from control_plane.hub import Hub
from control_plane.ids import encode as encode_id
from control_plane.ids import new_id
from control_plane.jobs.phases import ALLOWED, GRANTED, TERMINAL
from control_plane.ledger.equation import equations
from control_plane.probes.modules import missing_name
from control_plane.series.downsample import downsample
from control_plane.text_safety import safe_json, safe_text
from headrace.core.job.state import PHASE_TRANSITIONS, Phase
from headrace.core.ledger import AttemptState, Ledger

POINTS = st.lists(st.none() | st.floats(allow_nan=False), max_size=300).map(lambda values: list(enumerate(values)))


@given(POINTS, st.integers(4, 60))
def test_downsampled_series_keeps_ends_order_and_extremes(points: list[Any], max_points: int) -> None:
    thin = downsample(points, max_points)
    assert len(thin) <= max(max_points, 0)
    assert thin == sorted(thin, key=lambda point: point[0])
    assert set(thin) <= set(points)
    if points:
        assert (thin[0], thin[-1]) == (points[0], points[-1])
        values = [value for _, value in points if value is not None]
        kept = [value for _, value in thin if value is not None]
        assert not values or (min(kept), max(kept)) == (min(values), max(values))


def test_too_few_points_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 4"):
        downsample([], 3)


@given(st.binary(max_size=5000))
def test_blob_survives_packing(data: bytes) -> None:
    from hashlib import sha256

    digest = sha256(data).hexdigest()
    assert unpack(pack(digest, data)) == {digest: data}


def test_blob_of_another_digest_or_with_a_part_missing_is_not_returned() -> None:
    from hashlib import sha256
    from random import Random

    data = Random(1).randbytes(2 << 20)
    rows = pack(sha256(data).hexdigest(), data)
    assert len(rows) > 1
    assert unpack(rows[:-1]) == {}
    with pytest.raises(WrongDigest):
        pack("0" * 64, data)
    with pytest.raises(WrongDigest):
        unpack([{**row, "digest": "0" * 64} for row in rows])


@given(st.integers(0, 2**128 - 1), st.integers(0, 2**128 - 1))
def test_ids_sort_as_their_numbers(one: int, other: int) -> None:
    assert (encode_id(one) < encode_id(other)) == (one < other)


def test_ids_carry_their_prefix_and_differ() -> None:
    ids = {new_id("job") for _ in range(100)}
    assert len(ids) == 100
    assert all(name.startswith("job_") and len(name) == 30 for name in ids)


def test_cursor_continues_only_the_list_it_came_from() -> None:
    cursors = Cursors(b"k" * 32)
    cursor = cursors.make({"list": "jobs"}, ["id", 3])
    assert cursors.read({"list": "jobs"}, cursor, 2) == ["id", 3]
    for scope, parts, reader in (
        ({"list": "groups"}, 2, cursors),
        ({"list": "jobs"}, 1, cursors),
        ({"list": "jobs"}, 2, Cursors(b"x" * 32)),
    ):
        with pytest.raises(ProblemError) as refused:
            reader.read(scope, cursor, parts)
        assert refused.value.code == "invalid_cursor"


@given(st.text())
def test_any_text_as_a_cursor_is_refused_politely(text: str) -> None:
    with pytest.raises(ProblemError):
        Cursors(b"k" * 32).read({"list": "jobs"}, text, 1)


def test_page_has_a_cursor_only_if_there_is_more() -> None:
    rows = [{"id": number} for number in range(3)]
    assert page(rows, 2, lambda row: str(row["id"])) == {"items": rows[:2], "next_cursor": "1"}
    assert page(rows, 3, lambda row: str(row["id"]))["next_cursor"] is None


def test_numbers_without_an_end_are_null() -> None:
    assert json.loads(encode({"a": float("nan"), "b": [float("inf")], "c": 1.5})) == {"a": None, "b": [None], "c": 1.5}


def test_unsafe_text_is_marked_and_cut() -> None:
    assert safe_text("a\x00\ud800" + "b" * 10, limit=5) == "a\ufffd\ufffdb…"
    assert safe_json({"k\x00": ["\udc00", float("nan"), 1]}) == {"k\ufffd": ["\ufffd", None, 1]}


async def test_hub_wakes_waiters_and_sleeps_over_nothing() -> None:
    hub = Hub()
    waiting = asyncio.create_task(hub.wait("jobs", 5))
    await asyncio.sleep(0)
    hub.notify("workers")
    hub.notify("jobs")
    assert await waiting
    seen = hub.changes("jobs")
    hub.notify("jobs")
    assert await hub.wait("jobs", 0, since=seen)
    assert not await hub.wait("jobs", 0.01, since=hub.changes("jobs"))
    assert hub._sleepers == {}


def test_wishes_agree_with_the_phases_of_the_job_machine() -> None:
    assert {phase for phase, following in PHASE_TRANSITIONS.items() if not following} == {Phase(p) for p in TERMINAL}
    for wish, target in (("pause", Phase.PAUSING), ("cancel", Phase.CANCELLING)):
        for phase in ALLOWED[wish]:  # type: ignore[index]
            reachable = PHASE_TRANSITIONS[Phase(phase)]
            assert target in reachable or (wish == "cancel" and Phase.CANCELLED in reachable)
    assert all(not ALLOWED[wish] & GRANTED[wish] for wish in ALLOWED)


STATES = st.sampled_from([AttemptState.TRAINED, AttemptState.SURPLUS, AttemptState.READY, AttemptState.RUNNING])


@given(st.lists(STATES, max_size=30))
def test_equation_balances_for_what_the_ledger_recorded(states: list[AttemptState]) -> None:
    ledger, live = Ledger(), (AttemptState.READY, AttemptState.RUNNING)
    for state in states:
        ledger.issue("train", "lake")
        if state not in live:
            ledger.close("train", "lake", state, 1)
    recorded = ledger.to_json([("train", "lake", state.value) for state in states if state in live])
    counted = [("train", "lake", state.value, 1) for state in states]
    assert all(equation["balanced"] for equation in equations(recorded, counted))
    if states:
        [short] = equations(recorded, counted[1:])
        assert short["left"] == short["right"] == len(states)
        assert not short["balanced"]


@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("reward_svc.graders.calculator:grade", None),
        ("reward_svc.graders.calculator:no_such", "does not define no_such"),
        ("reward_svc.graders.no_such_module:grade", "no module"),
        ("somewhere_else.module:grade", None),
        ("json:loads", None),
        ("math:no_such", None),
    ],
)
def test_names_are_looked_up_without_importing(path: str, part: str | None) -> None:
    found = missing_name(path)
    assert (found is None) if part is None else (found is not None and part in found)


def test_looking_up_a_name_runs_no_user_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "hr_probe_package"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('imported')")
    (package / "open.py").write_text("from os import *")
    (package / "closed.py").write_text(
        "if True:\n    def there(): ...\ntry:\n    x = 1\nexcept ValueError:\n    y = 2\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert missing_name("hr_probe_package.open:anything") is None
    assert [missing_name(f"hr_probe_package.closed:{name}") for name in ("there", "x", "y")] == [None] * 3
    assert missing_name("hr_probe_package.closed:absent") is not None
    assert "hr_probe_package" not in sys.modules


def test_openapi_document_is_current(repository: Path) -> None:
    stored = (repository / "openapi.json").read_text()
    assert stored == openapi.text(), "run: python -m control_plane.http > openapi.json"


def test_every_operation_answers_problems_and_has_a_summary(repository: Path) -> None:
    document = json.loads((repository / "openapi.json").read_text())
    for path in document["paths"].values():
        for operation in path.values():
            assert operation["summary"]
            assert operation["responses"]["4XX"]["content"].keys() == {"application/problem+json"}


def test_control_plane_loads_no_torch_and_no_environment(repository: Path) -> None:
    code = (
        "import sys, control_plane.process; "
        "heavy = {'torch', 'transformers', 'env_svc', 'reward_svc', 'trainer_svc', 'inference_svc', 'weightstore'}; "
        "sys.exit(', '.join(heavy & set(sys.modules)) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=repository, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
