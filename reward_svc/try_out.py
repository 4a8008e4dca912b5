"""`python -m reward_svc.try_out`: one grader, no queue. {"fn", "document"} on standard input, its verdict on output."""

import json
import sys
from contextlib import redirect_stdout
from typing import Any

from reward_svc.call import GraderFault, grade, load


def try_out(fn: str, document: dict[str, Any]) -> dict[str, Any]:
    """score and components, or the fault that a job would report."""
    try:
        # Whatever the grader prints is not the verdict.
        with redirect_stdout(sys.stderr):
            score = grade(load(fn), document)
    except GraderFault as fault:
        return {"fault": {"code": fault.code, "detail": fault.detail}}
    return {"score": score.value, "components": score.components}


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    json.dump(try_out(asked["fn"], asked["document"]), sys.stdout)
