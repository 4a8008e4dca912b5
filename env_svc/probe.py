"""Plays scripted turns in an environment of its own process, to see whether a plug-in works."""

import asyncio
import json
import math
from typing import Any

from env_svc.contract import Observation
from env_svc.faults import AttemptFault, EnvFault
from env_svc.hosts import EnvHost
from env_svc.process_host import ProcessHost, ProcessPool
from env_svc.records import fault_message
from env_svc.spec import PluginSpec
from env_svc.text import Cleaner
from headrace.wire.environments.v1 import environments_pb2

MAX_OBSERVATION_CHARACTERS = 65_536
DEADLINE_S = 30.0


async def probe(request: environments_pb2.ProbeRequest, pool: ProcessPool) -> environments_pb2.ProbeResponse:
    """Reset, then one step per action until the episode ends. A failure is part of the answer, as its `fault`.

    Rewards that the environment leaves to graders are NaN.
    """
    response = environments_pb2.ProbeResponse()
    deadline_s = request.deadline_s or DEADLINE_S
    try:
        config = _config(request.config_json)
        async with asyncio.timeout(deadline_s):
            child = await pool.acquire()
        spec = PluginSpec(request.entry_point, config, request.split)
        await _play(ProcessHost(spec, pool, child), request, response, deadline_s)
    except TimeoutError:
        response.fault.CopyFrom(fault_message(EnvFault("busy", f"no process was free within {deadline_s:g} s")))
    except AttemptFault as fault:
        response.fault.CopyFrom(fault_message(fault))
    return response


async def _play(
    host: EnvHost,
    request: environments_pb2.ProbeRequest,
    response: environments_pb2.ProbeResponse,
    deadline_s: float,
) -> None:
    try:
        reset = await host.reset(request.seed, deadline_s)
        response.observations.append(_text(reset.observation))
        for action in request.actions:
            step = await host.step(action, deadline_s)
            response.observations.append(_text(step.observation))
            response.rewards.append(math.nan if step.reward is None else step.reward)
            response.is_done = step.terminated or step.truncated
            if response.is_done:
                return
    finally:
        await host.close()


def _config(config_json: str) -> dict[str, Any]:
    try:
        config = json.loads(config_json or "{}")
    except ValueError as error:
        raise EnvFault("env_config", f"config_json is not JSON: {error}", retryable=False) from None
    if not isinstance(config, dict):
        raise EnvFault("env_config", "config_json must be an object", retryable=False)
    return config


def _text(observation: Observation) -> str:
    text = observation if isinstance(observation, str) else json.dumps(observation, ensure_ascii=False)
    return Cleaner().text(text)[:MAX_OBSERVATION_CHARACTERS]
