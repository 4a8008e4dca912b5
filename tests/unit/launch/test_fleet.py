"""What runs on one machine, and who is told which secret."""

from pathlib import Path

from headrace.cli.up.fleet import LaunchOptions, Wiring, reward_worker, services
from headrace.cli.up.layout import DataDir

OPTIONS = LaunchOptions(data_dir=DataDir(Path("run")), inference_workers=3, engine="scripted")
WIRING = Wiring("id", 8470, 7071, "postgresql://u:secret@h/db", "redis://:hidden@h/0")


def test_every_service_runs_once_and_inference_as_often_as_asked() -> None:
    names = [command.name for command in services(OPTIONS, WIRING)]
    assert names == [
        "control_plane",
        "weightstore-0",
        "trainer-0",
        "inference-0",
        "inference-1",
        "inference-2",
        "proxy-0",
        "env-0",
    ]


def test_secrets_travel_in_the_environment_of_those_who_need_them_alone() -> None:
    commands = [*services(OPTIONS, WIRING), reward_worker(0, OPTIONS, WIRING)]
    assert not [c.name for c in commands if any("secret" in word or "hidden" in word for word in c.argv)]
    assert [c.name for c in commands if "secret" in str(c.env)] == ["control_plane"]
    assert [c.name for c in commands if "hidden" in str(c.env)] == ["control_plane", "reward-0"]


def test_every_process_uses_one_thread_and_carries_the_launch_id() -> None:
    for command in [*services(OPTIONS, WIRING), reward_worker(0, OPTIONS, WIRING)]:
        assert command.env["OMP_NUM_THREADS"] == "1"
        assert command.env["HEADRACE_LAUNCH_ID"] == "id"
        assert Path(command.env["HEADRACE_DATA_DIR"]).is_absolute()


def test_trainers_and_proxies_come_in_numbers_for_jobs_at_once() -> None:
    options = LaunchOptions(data_dir=DataDir(Path("run")), trainers=2, proxies=3, trainer_backend="scripted")
    commands = services(options, WIRING)
    trainers = [command for command in commands if command.name.startswith("trainer-")]
    assert [command.name for command in trainers] == ["trainer-0", "trainer-1"]
    assert all(command.argv[command.argv.index("--backend") + 1] == "scripted" for command in trainers)
    assert [command.name for command in commands if command.name.startswith("proxy-")] == [
        "proxy-0",
        "proxy-1",
        "proxy-2",
    ]
