"""Grader of the calculator task."""

import re

_FINAL = re.compile(r"answer\s*([+-]?\d{1,9})\s*$", re.ASCII)


def grade(completion: str, answer: str) -> float:
    """1.0 when the last thing that ``completion`` says is ``answer <number>`` with the right number, else 0.0.

    Args:
        completion: the model's text, its last turn or all of them.
        answer: the right result; ``+046`` and ``46`` are the same number.
    """
    final = _FINAL.search(completion)
    return float(final is not None and int(final[1]) == int(answer))
