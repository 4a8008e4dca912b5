"""What every block of the job spec shares: frozen, strict types, no unknown keys, finite numbers only."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

MAX_INT = 2**53 - 1
"""Largest integer that every JSON reader keeps exact."""

NAME_PATTERN = r"^[^\x00-\x1f\x7f]+$"
IDENT_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.-]*$"
SAMPLER_PATTERN = r"^(fifo|freshest|priority|[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*)$"
IMPORT_PATH_PATTERN = r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$"


class Block(BaseModel):
    """A block of the job spec. Types are strict: "1" is no number, 1.0 no integer, true no 1."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=())


Name = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=NAME_PATTERN)]
"""Shown to people: 1 to 200 characters, no control characters."""

Ident = Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=IDENT_PATTERN)]
"""Used as a key and a metric label: letters, digits, `_`, `.`, `-`."""

ImportPath = Annotated[str, StringConstraints(max_length=300, pattern=IMPORT_PATH_PATTERN)]
"""`package.module:Name`."""

Count = Annotated[int, Field(ge=1, le=MAX_INT)]
Natural = Annotated[int, Field(ge=0, le=MAX_INT)]
Seconds = Annotated[float, Field(gt=0, le=1e9)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
