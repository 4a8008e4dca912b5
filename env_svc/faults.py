"""Failures of one attempt. `kind` says who is to blame: the environment's author or the machinery."""

ENV, INFRA = "env", "infra"


class AttemptFault(Exception):
    """Ends an attempt without a trajectory. `code` is stable, `detail` names the field and the fix."""

    def __init__(self, code: str, detail: str, *, kind: str, retryable: bool = True) -> None:
        super().__init__(f"{code}: {detail}")
        self.code, self.detail, self.kind, self.retryable = code, detail, kind, retryable


class EnvFault(AttemptFault):
    """The environment failed: it raised, hung, died or broke the contract."""

    def __init__(self, code: str, detail: str, *, retryable: bool = True) -> None:
        super().__init__(code, detail, kind=ENV, retryable=retryable)


class InfraFault(AttemptFault):
    """Something around the environment failed; the same attempt elsewhere may well succeed."""

    def __init__(self, code: str, detail: str, *, retryable: bool = True) -> None:
        super().__init__(code, detail, kind=INFRA, retryable=retryable)


class JobRefused(Exception):
    """A job cannot be opened here; the message names the field and the fix."""


class StaleEpoch(Exception):
    """A runner with an older job epoch than one already seen."""
