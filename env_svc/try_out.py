"""`python -m env_svc.try_out`: one environment, no service. A probe as JSON on standard input, its answer on output."""

import asyncio
import sys

from google.protobuf import json_format

from env_svc.probe import probe
from env_svc.process_host import ProcessPool
from headrace.wire.environments.v1.environments_pb2 import ProbeRequest


async def try_out(document: str) -> str:
    """The answer to a ProbeRequest in protobuf's JSON form, in the same form."""
    pool = ProcessPool(1)
    try:
        answer = await probe(json_format.Parse(document, ProbeRequest()), pool)
    finally:
        await pool.close()
    return json_format.MessageToJson(answer, preserving_proto_field_name=True)


if __name__ == "__main__":
    sys.stdout.write(asyncio.run(try_out(sys.stdin.read())))
