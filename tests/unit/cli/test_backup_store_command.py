"""keelmq backup store and keelmq restore store, of a stopped broker."""

import errno
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from broker.backup import restore
from cli.backup import store as commands
from cli.keelmq import app
from keelmq.client.admin import AdminClient
from keelmq.client.admin.store_copies import StoreCopyAdmin
from keelmq.remoting.operations.store_copies import StoreBackup
from tests.support.store_parts import bodies, open_store
from tests.unit.broker.backup.test_store_backup import COUNT, filled


def keelmq(*arguments: object) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments)])


def test_there_and_back(tmp_path: Path) -> None:
    end = filled(tmp_path / "store")
    saved = keelmq("backup", "store", tmp_path / "saved", "--from-dir", tmp_path / "store", "--json")
    assert saved.exit_code == 0, saved.output
    assert json.loads(saved.output)["endOffset"] == end
    checked = keelmq("restore", "store", tmp_path / "saved", tmp_path / "new", "--dry-run")
    assert checked.exit_code == 0 and "is whole" in checked.output and not (tmp_path / "new").exists()
    done = keelmq("restore", "store", tmp_path / "saved", tmp_path / "new")
    assert done.exit_code == 0 and "a new brokerId" in done.output, done.output
    store = open_store(tmp_path / "new")
    assert len(bodies(store)) == COUNT // 2
    store.close()


def test_refusals_say_what_to_do(tmp_path: Path) -> None:
    filled(tmp_path / "store")
    assert keelmq("backup", "store", "x").exit_code == 2, "of which broker?"
    keelmq("backup", "store", tmp_path / "saved", "--from-dir", tmp_path / "store")
    again = keelmq("backup", "store", tmp_path / "saved", "--from-dir", tmp_path / "store")
    assert again.exit_code == 1 and "choose another name" in again.output
    onto = keelmq("restore", "store", tmp_path / "saved", tmp_path / "store")
    assert onto.exit_code == 1 and "is not empty" in onto.output
    none = keelmq("restore", "store", tmp_path / "nothing", tmp_path / "new")
    assert none.exit_code == 1 and "it is not a backup of a store" in none.output
    nobody = keelmq("backup", "store", "x", "-b", "127.0.0.1:1")
    assert nobody.exit_code == 3, nobody.output


@pytest.mark.parametrize("options", [(), ("--with-identity",)])
@pytest.mark.parametrize("target", ["store", "saved", "file", "new"])
def test_a_dry_run_refuses_what_the_restore_refuses(
    tmp_path: Path, target: str, options: tuple[str, ...]
) -> None:
    filled(tmp_path / "store")
    (tmp_path / "file").touch()
    keelmq("backup", "store", tmp_path / "saved", "--from-dir", tmp_path / "store")
    wanted = keelmq("restore", "store", tmp_path / "saved", tmp_path / target, *options, "--dry-run")
    done = keelmq("restore", "store", tmp_path / "saved", tmp_path / target, *options)
    assert (wanted.exit_code, wanted.stderr) == (done.exit_code, done.stderr)
    assert done.exit_code == (0 if target == "new" else 1)


def test_a_copy_is_not_made_inside_its_source(tmp_path: Path) -> None:
    filled(tmp_path / "store")
    inside = keelmq("backup", "store", tmp_path / "store" / "saved", "--from-dir", tmp_path / "store")
    assert inside.exit_code == 1 and "choose a directory outside it" in inside.stderr
    assert not list((tmp_path / "store").glob("saved*"))
    keelmq("backup", "store", tmp_path / "saved", "--from-dir", tmp_path / "store")
    (tmp_path / "link").symlink_to(tmp_path / "saved")
    for source, target in (("saved", "saved/new"), ("saved", "link/new"), ("saved", ".")):
        refused = keelmq("restore", "store", tmp_path / source, tmp_path / target)
        assert refused.exit_code == 1 and " is in " in refused.stderr, refused.output
    assert not (tmp_path / "saved" / "new").exists()


def test_a_restore_onto_a_full_disk_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path / "store")
    keelmq("backup", "store", tmp_path / "saved", "--from-dir", tmp_path / "store")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(restore, "write_all", full)
    failed = keelmq("restore", "store", tmp_path / "saved", tmp_path / "new")
    assert failed.exit_code == 1
    assert failed.stderr == (
        f"keelmq: the restore into {tmp_path / 'new'} failed: No space left on device; "
        f"remove what is in {tmp_path / 'new'} before you repeat it\n"
    )


def test_a_broker_that_was_restarted_during_its_backup(monkeypatch: pytest.MonkeyPatch) -> None:
    async def begun(self: AdminClient, address: str, name: str, *, bytes_per_second: int) -> StoreBackup:
        return StoreBackup(state="copying", name=name)

    async def after_its_restart(self: AdminClient, address: str) -> StoreBackup:
        return StoreBackup()

    monkeypatch.setattr(StoreCopyAdmin, "start_store_backup", begun)
    monkeypatch.setattr(StoreCopyAdmin, "store_backup", after_its_restart)
    monkeypatch.setattr(commands, "POLL_S", 0)
    ended = keelmq("backup", "store", "monday", "-b", "127.0.0.1:1")
    assert ended.exit_code == 1 and "another" not in ended.stderr, ended.output
    assert "127.0.0.1:1 was restarted before backup monday was complete: begin it again" in ended.stderr
