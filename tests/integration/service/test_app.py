"""The life of a service process against a scripted control plane over real gRPC."""

import asyncio
import hashlib
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import grpc.aio
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from testkit.control import ScriptedControl, serving

from headrace.cli.up.ports import free_port
from headrace.service.app import ServiceApp
from headrace.service.control_client import BLOB_BATCH_BYTES, ControlClient
from headrace.service.errors import AddressInUse, RegistrationFailed
from headrace.service.grpc import channel
from headrace.service.settings import ServiceSettings


def settings(address: str, **more: object) -> ServiceSettings:
    return ServiceSettings(control_address=address, name="env-0", rpc_timeout_s=2, **more)  # type: ignore[arg-type]


async def until(condition: Callable[[], object], deadline_s: float = 5.0) -> None:
    async with asyncio.timeout(deadline_s):
        while not condition():
            await asyncio.sleep(0.01)


async def test_register_heartbeat_drain_deregister() -> None:
    control = ScriptedControl()
    async with serving(control) as address:
        app = ServiceApp(settings(address, labels={"pool": "cpu"}), kind="env", capabilities={"slots": "4"})
        app.on_stats = lambda: {"running": 3.0}
        drained: list[str] = []

        async def drain() -> None:
            drained.append("drained")

        app.on_drain = drain
        running = asyncio.create_task(app.run())
        await until(lambda: len(control.heartbeats) >= 2)
        told = control.registered[0]
        assert (told.kind, told.name, told.address) == ("env", "env-0", app.address)
        assert dict(told.labels) == {"pool": "cpu"}
        assert dict(told.capabilities) == {"slots": "4"}
        assert control.heartbeats[0].stats["running"] == 3.0
        app.stop()
        await asyncio.wait_for(running, 5)
        assert drained == ["drained"]
        assert control.deregistered == [app.worker_id]


async def test_a_forgotten_process_registers_again_under_the_same_incarnation() -> None:
    port = free_port()
    first, second = ScriptedControl(), ScriptedControl()
    async with serving(first, f"127.0.0.1:{port}") as address:
        app = ServiceApp(settings(address), kind="env")
        running = asyncio.create_task(app.run())
        await until(lambda: first.heartbeats)
    # The control plane is gone for a while, then back with no memory.
    await asyncio.sleep(0.3)
    assert not running.done()
    async with serving(second, f"127.0.0.1:{port}"):
        await until(lambda: second.registered)
        assert second.registered[0].incarnation == first.registered[0].incarnation
        await until(lambda: len(second.heartbeats) >= 2)
        app.stop()
        await asyncio.wait_for(running, 5)


async def test_the_control_plane_can_ask_for_a_drain() -> None:
    control = ScriptedControl()
    async with serving(control) as address:
        app = ServiceApp(settings(address), kind="env")
        running = asyncio.create_task(app.run())
        await until(lambda: control.heartbeats)
        control.draining.add("env-0")
        await asyncio.wait_for(running, 5)


async def test_registration_gives_up_with_a_reason() -> None:
    app = ServiceApp(settings(f"127.0.0.1:{free_port()}", register_timeout_s=0.5), kind="env")
    with pytest.raises(RegistrationFailed, match=r"no control plane answered at 127\.0\.0\.1:\d+ within 0\.5 s"):
        await asyncio.wait_for(app.run(), 5)


async def test_a_refusal_is_not_retried() -> None:
    control = ScriptedControl(refusing=grpc.StatusCode.INVALID_ARGUMENT)
    async with serving(control) as address:
        app = ServiceApp(settings(address), kind="env")
        with pytest.raises(RegistrationFailed, match="INVALID_ARGUMENT: told to refuse"):
            await asyncio.wait_for(app.run(), 2)


async def test_a_busy_port_is_said() -> None:
    control = ScriptedControl()
    async with serving(control) as address:
        port = int(address.rpartition(":")[2])
        app = ServiceApp(settings(address, port=port), kind="env")
        with pytest.raises(AddressInUse, match="choose another --port"):
            await asyncio.wait_for(app.run(), 5)


async def test_what_main_raises_ends_the_process_and_is_raised() -> None:
    control = ScriptedControl()

    async def main() -> None:
        raise ValueError("the engine died")

    async with serving(control) as address:
        app = ServiceApp(settings(address), kind="env")
        with pytest.raises(ValueError, match="the engine died"):
            await asyncio.wait_for(app.run(main), 5)
        assert control.deregistered == [app.worker_id]


async def test_a_drain_has_a_deadline() -> None:
    control = ScriptedControl()
    async with serving(control) as address:
        app = ServiceApp(settings(address, drain_timeout_s=0.2), kind="env")

        async def never() -> None:
            await asyncio.Event().wait()

        app.on_drain = never
        running = asyncio.create_task(app.run(never))
        await until(lambda: control.heartbeats)
        app.stop()
        await asyncio.wait_for(running, 5)


async def test_health_reflection_and_metrics() -> None:
    control = ScriptedControl()
    async with serving(control) as address:
        app = ServiceApp(settings(address), kind="env")
        app.add_service("headrace.wire.environments.v1.Environments")
        running = asyncio.create_task(app.run())
        await until(lambda: control.registered)
        async with channel(app.address) as link:
            health = health_pb2_grpc.HealthStub(link)
            for name in ("", "headrace.wire.environments.v1.Environments"):
                answer = await health.Check(health_pb2.HealthCheckRequest(service=name), timeout=2)
                assert answer.status == health_pb2.HealthCheckResponse.SERVING
            asked = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
            replies = reflection_pb2_grpc.ServerReflectionStub(link).ServerReflectionInfo(asked, timeout=2)
            listed = [s.name async for reply in replies for s in reply.list_services_response.service]
            assert "headrace.wire.environments.v1.Environments" in listed
        async with httpx.AsyncClient(trust_env=False) as http:
            metrics = (await http.get(f"http://{control.registered[0].metrics_address}/metrics")).text
        assert 'headrace_rpcs_total{code="OK",method="/grpc.health.v1.Health/Check"}' in metrics
        app.stop()
        await asyncio.wait_for(running, 5)


async def test_blobs_travel_in_calls_of_about_a_mebibyte_and_big_ones_alone() -> None:
    control = ScriptedControl()
    data = [bytes([i]) * size for i, size in enumerate([400_000, 400_000, 400_000, 6 * BLOB_BATCH_BYTES])]
    blobs = {hashlib.sha256(item).hexdigest(): item for item in data}
    async with serving(control) as address:
        client = ControlClient(address)
        await client.put_blobs(blobs)
        assert control.put_calls == 3
        assert await client.get_blobs([*blobs, "0" * 64]) == blobs
        await client.close()


async def test_calls_outlive_a_restart_of_the_control_plane() -> None:
    port = free_port()
    client = ControlClient(f"127.0.0.1:{port}", give_up_s=10)
    control = ScriptedControl()
    putting = asyncio.create_task(client.put_blobs({"0" * 64: b"x"}))
    await asyncio.sleep(0.4)
    async with serving(control, f"127.0.0.1:{port}"):
        await asyncio.wait_for(putting, 8)
    assert control.blobs
    with pytest.raises(grpc.aio.AioRpcError):
        await client.get_blobs(["0" * 64], give_up_s=0.3)
    await client.close()


PROGRAM = """
import sys
from headrace.service.app import ServiceApp, run_service
from headrace.service.settings import ServiceSettings
settings = ServiceSettings.from_args()
async def main():
    await ServiceApp(settings, kind="env").run()
run_service(main)
"""


async def _spawn(address: str, log_file: Path, repository: Path, *flags: str) -> asyncio.subprocess.Process:
    argv = [sys.executable, "-c", PROGRAM, "--control-address", address, "--log-file", str(log_file), *flags]
    return await asyncio.create_subprocess_exec(*argv, cwd=repository, stderr=subprocess.PIPE)


async def test_a_process_ends_with_zero_on_sigterm(tmp_path: Path, repository: Path) -> None:
    control = ScriptedControl()
    async with serving(control) as address:
        process = await _spawn(address, tmp_path / "env.log", repository)
        await until(lambda: control.heartbeats, 20)
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 10) == 0
    assert len(control.deregistered) == 1
    lines = (tmp_path / "env.log").read_text().splitlines()
    assert any('"event": "registered"' in line and '"worker_id"' in line for line in lines)


async def test_a_process_without_a_control_plane_ends_with_five(tmp_path: Path, repository: Path) -> None:
    flags = ["--register-timeout-s", "0.5"]
    process = await _spawn(f"127.0.0.1:{free_port()}", tmp_path / "env.log", repository, *flags)
    _, said = await asyncio.wait_for(process.communicate(), 20)
    assert process.returncode == 5
    assert b"is it running, and is --control-address right?" in said
