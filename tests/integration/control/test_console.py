"""The console in a real browser: it loads without a complaint, and what models wrote stays text."""

import asyncio
import json
import shutil
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path

import pytest
from testkit.control_plane import Served
from testkit.rows import (
    add_attempt,
    add_group,
    add_job,
    add_metric,
    add_reward,
    add_step,
    add_version,
    add_worker,
)

from control_plane.blobs import service as blobs

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
STATIC = Path(__file__).parents[3] / "control_plane" / "console" / "static"
MARKUP = "<img src=x onerror=\"document.title='pwned'\">"
NAME = "</script><b>x"
LAGS = {
    "surplus": {"s_train": {"0": 3}},
    "trained": {"s_gen": {"0": 6, "1": 2}, "residence": {"1": 8}, "s_train": {"1": 6, "2": 2}},
}
SIDE = {"mean_tokens": 6.5, "mean_reward": None, "reward_known_share": 0.0}
CENSORED = {
    "strata": [{"up_to_tokens": 8, "kept": 4, "killed": 1, "completion_probability": 0.8}],
    "kept": {**SIDE, "n": 4.0},
    "killed": {**SIDE, "n": 2.0},
    "length_distance": 0.25,
}
PROGRESS = {
    "staleness": {"calculator": LAGS},
    "censoring": {"calculator": CENSORED},
    "flow": {"depth": 2.0, "depth_mean": 1.5, "littles_law_ratio": 1.0},
    "routing": {"routed": 2327, "regret_s": {"calculator": 1.25}, "profile_s_per_token": {"calculator/fast": 0.0125}},
    "evaluated": {"0": {"calculator/sampled": 0.25}, "8": {"calculator/sampled": 0.75}},
}


async def test_page_allows_no_foreign_script(served: Served) -> None:
    page = await served.http.get(f"{served.http_url}/")
    assert "script-src 'self'" in page.headers["content-security-policy"]
    assert "unsafe" not in page.headers["content-security-policy"]
    for path in set(STATIC.iterdir()) - {STATIC / "index.html"}:
        assert (await served.http.get(f"{served.http_url}/console/{path.name}")).status_code == 200
    assert (await served.http.get(f"{served.http_url}/console/routes.py")).status_code == 422


def test_scripts_never_read_markup() -> None:
    for path in STATIC.glob("*.js"):
        code = path.read_text()
        for name in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "https://"):
            assert name not in code, f"{path.name} uses {name}"


async def dom(url: str, profile: Path) -> tuple[str, str]:
    assert CHROMIUM is not None
    process = await asyncio.create_subprocess_exec(
        *(CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
        *("--virtual-time-budget=3000", "--timeout=15000", "--enable-logging=stderr", f"--user-data-dir={profile}"),
        *("--dump-dom", url),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(60):
            out, told = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return out.decode(), "\n".join(line for line in told.decode().splitlines() if "CONSOLE" in line)


@pytest.mark.skipif(CHROMIUM is None, reason="no browser: chromium is not here")
async def test_what_models_write_is_shown_as_text(served: Served, tmp_path: Path) -> None:
    document = json.dumps({"messages": [{"role": "assistant", "content": MARKUP}]}).encode()
    digest = sha256(document).hexdigest()
    await blobs.store(served.context, [(digest, document)])
    async with served.context.database.begin() as connection:
        await add_job(connection, name=NAME, reason=MARKUP, progress={**PROGRESS, "staleness": {MARKUP: LAGS}})
        await add_attempt(connection, "t1", grading_blob=digest, reason=MARKUP)
        await add_group(connection, "grp_1", 1, task=MARKUP)
        await add_metric(connection, f"reward/{MARKUP}", [(1, 0.25), (2, 0.5)])
        await add_reward(connection, "t1", reward_name=MARKUP)
        await add_worker(connection, MARKUP, "env", stats={MARKUP: MARKUP})
        await add_step(connection, 1)
    job, job_complaints = await dom(f"{served.http_url}/#/jobs/job_1", tmp_path / "a")
    said, said_complaints = await dom(f"{served.http_url}/#/jobs/job_1/trajectories/t1", tmp_path / "b")
    assert (job_complaints, said_complaints) == ("", "")
    for page in (job, said):
        assert "<title>Headrace</title>" in page
        assert "<img" not in page
        assert "&lt;img src=x onerror=" in page
    assert "&lt;/script&gt;&lt;b&gt;x" in job
    assert "<path" in job


@pytest.mark.skipif(CHROMIUM is None, reason="no browser: chromium is not here")
async def test_a_job_shows_its_buffer_staleness_time_losses_and_fleet(served: Served, tmp_path: Path) -> None:
    ledger = {"issued": {"train": {"calculator": 10}}, "closed": {"train": {"calculator": {"surplus": 2}}}}
    start = datetime.now(UTC) - timedelta(seconds=1000)
    async with served.context.database.begin() as connection:
        await add_job(connection, progress=PROGRESS, ledger=ledger, started_at=start)
        for number, (state, version) in enumerate((("ready", 3), ("complete", 2), ("open", 1), ("open", None))):
            await add_group(connection, f"grp_{number}", number, state=state)
            await add_attempt(connection, f"t{number}", group_id=f"grp_{number}", state="ready", start_version=version)
        await add_step(connection, 1, seconds={"buffer_wait": 0.25, "train_wall": 0.5, "step": 0.75, "fetch": 0.125})
        await add_version(connection, 3, seconds={"n_workers": 2, "load": 0.004})
        await add_reward(connection, "t0", queue_s=0.25, grader_s=250.0)
        await add_worker(connection, "reward-0", "reward", registered_at=start)
        stats = {"policy_version": 2.0, "kv_tokens_used": 128.0, "kv_tokens_total": 1024.0}
        await add_worker(connection, "inference-0", "inference", stats=stats)
    page, complaints = await dom(f"{served.http_url}/#/jobs/job_1", tmp_path)
    assert complaints == ""
    assert "not up to date" not in page
    told = {
        "the buffer's bars": "v3: ready 1 groups",
        "stale groups, too": "v1: open 1 groups",
        "groups without a token": "no token yet: open 1 groups",
        "the line of alpha": ">α 1<",
        "a lag that alpha forbids": '<rect class="over"',
        "how many went through one update": "1: 6 of 8",
        "a part of a step": "1: waiting for a batch 0.25 s",
        "inside training": "fetching the batch 0.125 s",
        "kept against killed": "0.25 apart",
        "a loss": ">surplus<",
        "regret": "1.3 s",
        "the change held out": "+0.5",
        "a load, per worker": "2 ms",
        "utilisation": "25 %",
        "what a worker serves": "v2 (1 behind)",
    }
    missing = [what for what, words in told.items() if words not in page]
    assert missing == []
