"""keelmq restore controllers: directories of a whole group, or none; every refusal says what to do."""

import json
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner, Result

from cli.keelmq import app
from namesrv.plugins.controller.backup_file import encode_backup
from namesrv.plugins.controller.core.state_codec import state_to_json
from tests.support.ports import free_ports
from tests.unit.namesrv.plugins.controller.test_controller_restore import STATE


def restore(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["restore", "controllers", *map(str, arguments)])


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    state = msgspec.json.decode(state_to_json(STATE))
    path = tmp_path / "controllers.backup"
    path.write_bytes(encode_backup(group="keelmq", leader="n0", taken_ms=5, state=state))
    return path


@pytest.fixture
def configs(tmp_path: Path) -> list[Path]:
    peers = ";".join(f"n{index}-127.0.0.1:{port}" for index, port in enumerate(free_ports(2)))
    raft = ";".join(f"n{index}-127.0.0.1:{port}" for index, port in enumerate(free_ports(2)))
    paths = []
    for index in range(2):
        path = tmp_path / f"n{index}.conf"
        path.write_text(
            "enableControllerInNamesrv=true\ncontrollerDLegerGroup=keelmq\n"
            f"controllerDLegerSelfId=n{index}\ncontrollerDLegerPeers={peers}\ncontrollerRaftPeers={raft}\n"
            f"controllerRaftInsecure=true\ncontrollerStorePath={tmp_path / f'data{index}'}\n"
        )
        paths.append(path)
    return paths


def test_it_restores_all_members_of_this_host(backup: Path, configs: list[Path], tmp_path: Path) -> None:
    done = restore(backup, "-c", configs[0], "-c", configs[1])
    assert done.exit_code == 0, done.output
    assert "restored, 1 group with 3 brokers" in done.output and "start the brokers" in done.output
    for index in range(2):
        names = {path.name for path in (tmp_path / f"data{index}" / f"raft-n{index}").iterdir()}
        assert names == {"raft.lock", "raft.snapshot", "raft.standing"}
    again = restore(backup, "-c", configs[0], "-c", configs[1])
    assert again.exit_code == 1 and "is not empty" in again.output and "nothing was written" in again.output


def test_members_on_other_hosts_are_named(backup: Path, configs: list[Path]) -> None:
    done = restore(backup, "-c", configs[0], "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["restoreAlso"] == ["n1"]


def test_a_dry_run_writes_nothing(backup: Path, configs: list[Path], tmp_path: Path) -> None:
    shown = restore(backup, "-c", configs[0], "--dry-run")
    assert shown.exit_code == 0 and "Nothing was written" in shown.output
    assert not (tmp_path / "data0").exists()


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda data: data[:-3], "damaged or cut short"),
        (lambda data: b"{}", "it is not a backup of controllers"),
        (lambda data: b"", "it is not a backup of controllers"),
    ],
)
def test_a_damaged_file_changes_nothing(
    backup: Path, configs: list[Path], tmp_path: Path, spoil: object, said: str
) -> None:
    assert callable(spoil)
    backup.write_bytes(spoil(backup.read_bytes()))
    refused = restore(backup, "-c", configs[0])
    assert refused.exit_code == 1 and said in refused.output, refused.output
    assert not (tmp_path / "data0").exists()


def test_a_file_that_is_no_controllers(backup: Path, tmp_path: Path) -> None:
    other = tmp_path / "broker.conf"
    other.write_text("brokerName=b\n")
    refused = restore(backup, "-c", other)
    assert refused.exit_code == 1 and "is it the file of a controller?" in refused.output, refused.output
    assert "no such file" in restore(backup, "-c", tmp_path / "none.conf").output
