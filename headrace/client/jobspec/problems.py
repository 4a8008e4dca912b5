"""What is wrong with a job spec, as data: a JSON pointer, a sentence, and the fix."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """One refusal. `pointer` is an RFC 6901 JSON pointer into the spec; empty for the document itself."""

    pointer: str
    message: str
    fix: str = ""

    def __str__(self) -> str:
        return f"{self.pointer or '/'}: {self.message}" + (f" ({self.fix})" if self.fix else "")


class SpecError(ValueError):
    """The spec is refused; `problems` lists every reason that was found, in document order where possible."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems: tuple[Problem, ...] = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


def pointer(parts: Sequence[str | int]) -> str:
    """RFC 6901: `~` and `/` inside a key are escaped."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)
