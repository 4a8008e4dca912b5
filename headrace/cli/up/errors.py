"""What makes `headrace up` give up, each with an exit code and words that say what to do."""


class LaunchError(Exception):
    """The services cannot run here."""

    exit_code = 1


class AlreadyRunning(LaunchError):
    """A live launcher owns this data folder."""

    exit_code = 2


class NotReady(LaunchError):
    """A service did not become ready before the deadline."""

    exit_code = 6
