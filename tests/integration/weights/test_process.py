"""`python -m weightstore` as an operator runs it, and what importing the package does not do."""

import asyncio
import signal
import subprocess
import sys

import numpy as np
import pytest
from testkit.control import ScriptedControl, serving
from testkit.weight_node import START_S, child, version

from headrace.client.weights import WeightsClient
from weightstore import Publisher, Puller


async def test_a_node_registers_serves_drains_and_leaves_nothing() -> None:
    control = ScriptedControl()
    async with serving(control) as control_address:
        arguments = ("--control-address", control_address, "--name", "weights-0", "--memory-cap-bytes", "100000000")
        async with child("-m", "weightstore", *arguments) as process:
            async with asyncio.timeout(START_S):
                while not control.registered:
                    await process.pause()
            registered = control.registered[0]
            assert (registered.kind, registered.name) == ("weights", "weights-0")
            client = WeightsClient.at(registered.address)
            async with Publisher([registered.address]) as publisher, Puller() as puller:
                published = await publisher.publish(version(0), {"w": np.arange(1000.0)})
                await client.commit("job", 0, published.manifest.digest, epoch=1)
                staged = await puller.pull(published.manifest, registered.address)
                np.testing.assert_array_equal(staged.tensors()["w"], np.arange(1000.0))
                status = await client.status("job")
                assert status.incarnation == registered.incarnation
                assert status.cap_bytes == 100_000_000
            await client.close()
            process.signal(signal.SIGTERM)
            assert await process.exit_code() == 0
        assert control.deregistered == [f"weights-0@{registered.incarnation}"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--memory-cap-bytes", "0"], "memory-cap-bytes"),
        (["--window", "many"], "window"),
        (["--chunks", "3"], "--chunks"),
    ],
)
def test_settings_that_do_not_hold_end_the_process_with_2(arguments: list[str], problem: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "weightstore", *arguments], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 2
    assert problem in done.stderr


def test_importing_the_store_loads_neither_ucx_nor_torch() -> None:
    code = "import sys, weightstore, weightstore.node; print([m for m in ('ucxx', 'torch') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.strip() == "[]"
