"""deploy/systemd: units that systemd can read, with commands and options that exist."""

import shlex
from pathlib import Path

import pytest
from typer.main import get_command

from cli.keelmq import app
from tests.deploy.conftest import ROOT

UNITS = sorted((ROOT / "deploy" / "systemd").glob("*"))


def settings(path: Path) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for line in path.read_text().splitlines():
        if line.startswith("["):
            section = found.setdefault(line.strip("[]"), {})
        elif line and not line.startswith("#"):
            key, _, value = line.partition("=")
            assert value, line
            section[key] = value
    return found


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_its_command_exists(path: Path) -> None:
    unit = settings(path)
    assert unit["Unit"]["Description"]
    if path.suffix == ".timer":
        assert unit["Timer"]["OnCalendar"]
        assert path.with_suffix(".service") in UNITS
        return
    program, *words = shlex.split(unit["Service"]["ExecStart"])
    assert Path(program).name == "keelmq"
    command = get_command(app)
    while words and not words[0].startswith("-"):
        command = command.commands[words.pop(0)]  # type: ignore[attr-defined]
    options = {name for parameter in command.params for name in parameter.opts}
    assert {word for word in words if word.startswith("-")} <= options
    writable = unit["Service"]["ReadWritePaths"].split()
    assert any(words[words.index("--output") + 1].startswith(path) for path in writable)


@pytest.mark.parametrize("name", ["keelmq-analytics.service", "keelmq-analytics-stream.service"])
def test_only_what_is_named_can_be_written(name: str) -> None:
    """The engine's scratch files are in the unit's own /tmp."""
    service = settings(ROOT / "deploy" / "systemd" / name)["Service"]
    assert (service["ProtectSystem"], service["PrivateTmp"]) == ("strict", "yes")


def test_there_are_units() -> None:
    assert {path.name for path in UNITS} == {
        "keelmq-analytics.service",
        "keelmq-analytics.timer",
        "keelmq-analytics-stream.service",
    }
