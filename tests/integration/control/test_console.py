"""The console in a real browser: it loads without a complaint, and what models wrote stays text."""

import asyncio
import json
import shutil
from hashlib import sha256
from pathlib import Path

import pytest
from testkit.control_plane import Served
from testkit.rows import add_attempt, add_job, add_metric, add_step

from control_plane.blobs import service as blobs

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
MARKUP = "<img src=x onerror=\"document.title='pwned'\">"
NAME = "</script><b>x"


async def test_page_allows_no_foreign_script(served: Served) -> None:
    page = await served.http.get(f"{served.http_url}/")
    assert "script-src 'self'" in page.headers["content-security-policy"]
    assert "unsafe" not in page.headers["content-security-policy"]
    for name in ("console.js", "job.js", "charts.js", "dom.js", "console.css", "icon.svg"):
        assert (await served.http.get(f"{served.http_url}/console/{name}")).status_code == 200
    assert (await served.http.get(f"{served.http_url}/console/routes.py")).status_code == 422


def test_scripts_never_read_markup() -> None:
    folder = Path(__file__).parents[3] / "control_plane" / "console" / "static"
    for path in folder.glob("*.js"):
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
        await add_job(connection, name=NAME, reason=MARKUP)
        await add_attempt(connection, "t1", grading_blob=digest, reason=MARKUP)
        await add_metric(connection, f"reward/{MARKUP}", [(1, 0.25), (2, 0.5)])
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
