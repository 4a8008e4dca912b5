"""`python -m env_svc` as a process, its probe, and what it loads."""

import asyncio
import math
import os
import subprocess
import sys

from testkit.controls import RecordingControl
from testkit.env_services import running_env
from testkit.proxies import ScriptedProxy, Turn
from testkit.runners import RunnerSide, spec
from testkit.tokenizers import byte_tokenizer, files

from headrace.service.grpc import channel
from headrace.wire.environments.v1 import environments_pb2, environments_pb2_grpc

TOKENIZER = byte_tokenizer()
END = TOKENIZER.token_to_id("<|im_end|>")


async def test_a_process_registers_plays_and_drains_on_sigterm():
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    async with RecordingControl() as control, ScriptedProxy(lambda _: Turn([1, END])) as proxy:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "env_svc", "--control-address", control.address, "--name", "env-0"),
            *("--slots", "4", "--log-level", "WARNING"),
            env=environment,
        )
        try:
            async with asyncio.timeout(20):
                while not control.workers:
                    await asyncio.sleep(0.05)
            (registered,) = control.workers.values()
            assert registered.kind == "env" and registered.capabilities["slots"] == "4"
            async with RunnerSide(registered.address, spec(), files(TOKENIZER), proxy.address) as runner:
                assert runner.opened.slots == 4 and runner.opened.worker_id.startswith("env-0@")
                await runner.assign("t0")
                assert (await runner.final()).finish_reason == "completed"
                control.stats.clear()
                async with asyncio.timeout(5):
                    # Acknowledged: else the drain would wait for a runner that has gone.
                    while not any(stats.get("attempts_unacknowledged") == 0 for stats in control.stats.values()):
                        await asyncio.sleep(0.05)
            process.terminate()
            async with asyncio.timeout(10):
                assert await process.wait() == 0
            assert not control.workers
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


async def _probe(**fields):
    async with RecordingControl() as control, running_env(control) as env, channel(env.address) as to_env:
        stub = environments_pb2_grpc.EnvironmentsStub(to_env)
        return await stub.Probe(environments_pb2.ProbeRequest(**fields), timeout=20)


async def test_a_probe_plays_scripted_turns():  # EN-05
    answer = await _probe(
        entry_point="env_svc.environments.frozen_lake:FrozenLake",
        config_json='{"desc": ["SFF", "HFH", "FFG"]}',
        actions=["Right", "down", "DOWN.", "<answer>Right</answer>", "never played"],
    )
    assert not answer.HasField("fault")
    assert list(answer.rewards) == [0, 0, 0, 1] and answer.is_done and len(answer.observations) == 5


async def test_a_probe_tells_what_is_wrong():
    hanging = {"entry_point": "testkit.environments:Hanging", "actions": ["x"], "deadline_s": 0.5}
    assert (await _probe(**hanging)).fault.code == "step_timeout"
    assert (await _probe(entry_point="nope:Env")).fault.code == "env_import"
    assert (await _probe(entry_point="testkit.environments:Echo", config_json="[")).fault.code == "env_config"
    unscored = await _probe(entry_point="testkit.environments:Echo", config_json="{}", actions=["x"])
    assert math.isnan(unscored.rewards[0]) and not unscored.is_done


def test_environments_load_no_heavy_library():
    code = (
        "import sys, env_svc.__main__, env_svc.environments.frozen_lake, reward_svc.__main__;"
        "heavy = ('torch', 'transformers', 'sqlalchemy', 'weightstore', 'control_plane');"
        "print([name for name in heavy if name in sys.modules])"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"
