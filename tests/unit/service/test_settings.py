"""Flags over variables over defaults; what does not hold is said with the flag's name and exit code 2."""

import pytest
from pydantic import Field

from headrace.service.settings import ServiceSettings


class EngineSettings(ServiceSettings):
    """A service with fields of its own."""

    lanes: int = Field(32, ge=1, description="requests at once")
    is_sharing: bool = Field(True, description="share prefixes")
    pools: list[str] = Field(default_factory=list, description="pools served")
    model_dir: str | None = None


def test_flags_win_over_variables_and_variables_over_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_LANES", "4")
    monkeypatch.setenv("HEADRACE_NAME", "from-env")
    settings = EngineSettings.from_args(["--lanes", "8"])
    assert (settings.lanes, settings.name, settings.port) == (8, "from-env", 0)


@pytest.mark.parametrize(
    ("argv", "field", "value"),
    [
        (["--labels", "pool=compute,tag=lake"], "labels", {"pool": "compute", "tag": "lake"}),
        (["--labels", '{"pool": "compute"}'], "labels", {"pool": "compute"}),
        (["--labels", ""], "labels", {}),
        (["--pools", '["a", "b"]'], "pools", ["a", "b"]),
        (["--no-is-sharing"], "is_sharing", False),
        (["--model-dir", "123"], "model_dir", "123"),
        (["--drain-timeout-s", "0.5"], "drain_timeout_s", 0.5),
        (["--log-file", "x.log"], "log_file", "x.log"),
    ],
)
def test_flags_of_every_kind(argv: list[str], field: str, value: object) -> None:
    assert getattr(EngineSettings.from_args(argv), field) == value


def test_labels_from_the_environment_need_no_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_LABELS", "pool=a,zone=b")
    assert EngineSettings.from_args([]).labels == {"pool": "a", "zone": "b"}


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--lanes", "0"], ["--lanes", "HEADRACE_LANES", "greater than or equal to 1", "'0'"]),
        (["--lanes", "many"], ["--lanes", "integer"]),
        (["--labels", "pool"], ["--labels", "key=value"]),
        (["--port", "70000"], ["--port"]),
        (["--log-level", "LOUD"], ["--log-level"]),
        (["--lane", "3"], ["--lane"]),
        (["--unknown"], ["--unknown"]),
    ],
)
def test_bad_settings_exit_with_two_and_name_the_flag(
    argv: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        EngineSettings.from_args(argv)
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert all(word in said for word in words), said


def test_settings_are_frozen() -> None:
    settings = EngineSettings.from_args([])
    with pytest.raises(ValueError, match="frozen"):
        settings.lanes = 1  # type: ignore[misc]


def test_a_name_is_made_from_kind_host_and_pid_when_none_is_given() -> None:
    assert EngineSettings.from_args(["--name", "env-3"]).resolved_name("env") == "env-3"
    assert EngineSettings.from_args([]).resolved_name("env").startswith("env-")
