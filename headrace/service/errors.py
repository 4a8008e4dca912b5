"""Errors that end a service process, each with the exit code it is reported by."""


class ServiceFailed(Exception):
    """The process cannot go on. Its message is the last line that the operator sees."""

    exit_code = 1


class RegistrationFailed(ServiceFailed):
    """The control plane did not take this process in before `register_timeout_s` passed."""

    exit_code = 5


class AddressInUse(ServiceFailed):
    """The gRPC port named in the settings belongs to another process."""
