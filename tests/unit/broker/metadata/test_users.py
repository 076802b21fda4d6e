"""Users and ACLs as replicated tables: on every replica in sync, private on disk, newer with every change."""

import json
from pathlib import Path
from typing import Any

import pytest

from broker.admission.send_gate import ROLE
from broker.metadata.broker_users import BrokerUsers, ChangesAtMaster
from broker.metadata.service import Metadata
from broker.store.log.mapped_file import StoreError
from keelmq.remoting.operation import CommandError, Empty, Ok, Outcome, Wire
from keelmq.remoting.operations.auth import AUTH_DELETE_USER, UserRequest
from keelmq.security.core.users import User, UserType
from tests.support.metadata_parts import ReplicasT, begin_term, open_metadata
from tests.unit.keelmq.security.parts import acl_of

ALICE = User("alice", "alice-secret")
ACL = acl_of("alice", "Topic:orders Pub Allow")
ROOT = User("root", "root-secret", UserType.SUPER)


def sync(master: Metadata, replica: Metadata) -> None:
    """The replica takes everything that it lacks."""
    for name, table in replica.stores.items():
        update = master.stores[name].updates_since(table.data_version)
        if update is not None:
            assert table.accept(update) is None


async def test_a_replica_has_what_its_master_has(tmp_path: Path) -> None:
    master, replica = open_metadata(tmp_path / "m"), open_metadata(tmp_path / "r")
    begin_term(master, 1)
    users, copies = BrokerUsers(master), BrokerUsers(replica)
    await users.save_user(ALICE)
    await users.save_acl(ACL)
    before = copies.generation
    sync(master, replica)
    assert (copies.user("alice"), copies.acl("User:alice")) == (ALICE, ACL)
    assert copies.generation > before
    before = copies.generation
    await users.remove_user("alice")
    sync(master, replica)
    assert (copies.user("alice"), copies.acl("User:alice")) == (None, None)
    assert copies.generation > before
    for path in ("m", "r"):
        for name in ("users.json", "acls.json"):
            assert (tmp_path / path / "config" / name).stat().st_mode & 0o777 == 0o600


async def test_a_new_replica_gets_the_whole_tables(tmp_path: Path) -> None:
    master = open_metadata(tmp_path / "m")
    begin_term(master, 1)
    await BrokerUsers(master).save_user(ALICE)
    master.end_term()
    begin_term(master, 2)
    replica = open_metadata(tmp_path / "r")
    copies = BrokerUsers(replica)
    sync(master, replica)
    assert copies.user("alice") == ALICE
    assert copies.generation > 0


async def test_a_change_waits_for_the_replicas_in_sync(tmp_path: Path) -> None:
    master = open_metadata(tmp_path, waits=True, timeout_ms=20)
    begin_term(master, 1, ReplicasT(lambda epoch: (2,)))
    with pytest.raises(CommandError, match="not known to be on every replica in sync"):
        await BrokerUsers(master).save_user(ALICE)


async def test_removing_a_user_waits_for_the_replicas_too(tmp_path: Path) -> None:
    master = open_metadata(tmp_path, waits=True, timeout_ms=20)
    begin_term(master, 1)
    users = BrokerUsers(master)
    await users.save_user(ALICE)
    master.end_term()
    begin_term(master, 2, ReplicasT(lambda epoch: (2,)))
    with pytest.raises(CommandError, match="not known to be on every replica in sync"):
        await users.remove_user("alice")


async def test_each_change_is_a_new_generation(tmp_path: Path) -> None:
    """What was decided before must not count after it, on a replica as well."""
    master, replica = open_metadata(tmp_path / "m"), open_metadata(tmp_path / "r")
    begin_term(master, 1)
    users, copies = BrokerUsers(master), BrokerUsers(replica)
    sync(master, replica)
    for change in (
        users.save_user(ALICE),
        users.save_acl(ACL),
        users.remove_acl("User:alice"),
        users.remove_user("alice"),
    ):
        before = users.generation, copies.generation
        await change
        sync(master, replica)
        assert users.generation > before[0] and copies.generation > before[1]


async def test_who_is_not_master_changes_nothing(tmp_path: Path) -> None:
    metadata = open_metadata(tmp_path)
    begin_term(metadata, 1)
    users = BrokerUsers(metadata)
    await users.save_user(ALICE)
    metadata.gate.close(ROLE, "it is a slave")
    for change in (users.save_user(ROOT), users.remove_user("alice")):
        with pytest.raises(
            CommandError, match="changed at the master, and this broker is not: it is a slave"
        ):
            await change
    metadata.gate.open(ROLE)
    metadata.gate.min_in_sync = 2
    for change in (users.save_user(ROOT), users.remove_user("alice")):
        with pytest.raises(CommandError, match="in-sync replicas not enough"):
            await change
    assert list(users.users()) == [ALICE]


async def test_a_full_disk_is_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = open_metadata(tmp_path)
    begin_term(metadata, 1)

    def full(*_: object, **__: object) -> bool:
        raise OSError(28, "No space left on device", "users.json")

    monkeypatch.setattr(metadata.users.file, "save", full)
    with pytest.raises(CommandError, match=r"cannot write .*users.json: No space left on device"):
        await BrokerUsers(metadata).save_user(ALICE)
    assert list(BrokerUsers(metadata).users()) == []


async def test_a_change_is_forwarded_once(tmp_path: Path) -> None:
    """Two brokers that each take the other one for the master would forward it for ever."""
    metadata, sent = open_metadata(tmp_path), []

    async def to_master(operation: object, header: Wire, body: Wire | None) -> Outcome[Any] | None:
        sent.append(header)
        return Ok(Empty(), None)

    changes = ChangesAtMaster(metadata.gate, to_master)
    header = UserRequest(username="alice")
    assert not await changes.forward(AUTH_DELETE_USER, header, None)  # this is the master
    metadata.gate.close(ROLE, "it is a slave")
    assert await changes.forward(AUTH_DELETE_USER, header, None)
    assert sent == [header.model_copy(update={"forwarded": True})]
    with pytest.raises(CommandError, match="this broker is not: it is a slave"):
        await changes.forward(AUTH_DELETE_USER, sent[0], None)
    assert len(sent) == 1


async def test_they_are_read_again(tmp_path: Path) -> None:
    first = open_metadata(tmp_path)
    begin_term(first, 1)
    users = BrokerUsers(first)
    await users.save_user(ALICE)
    await users.save_acl(ACL)
    again = BrokerUsers(open_metadata(tmp_path))
    assert (list(again.users()), list(again.acls())) == ([ALICE], [ACL])


def test_a_damaged_table_stops_the_start_and_shows_no_secret(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    text = json.dumps({"users": {"alice": {"username": "a:b", "password": "hunter2"}}})
    (tmp_path / "config" / "users.json").write_text(text)
    (tmp_path / "config" / "users.json").chmod(0o600)
    with pytest.raises(
        StoreError, match=r"the table of users .* is damaged: alice: illegal username"
    ) as error:
        open_metadata(tmp_path)
    assert "hunter2" not in str(error.value)


async def test_no_older_version_is_kept_or_read(tmp_path: Path) -> None:
    """A deleted user's password must not stay on the disk, and a damaged file must not let that user in."""
    metadata = open_metadata(tmp_path)
    begin_term(metadata, 1)
    users = BrokerUsers(metadata)
    await users.save_user(ALICE)
    await users.save_user(ROOT)
    await users.save_acl(ACL)
    await users.remove_user("alice")
    for path in tmp_path.rglob("*"):
        assert path.is_dir() or ALICE.password.encode() not in path.read_bytes(), path
    file = metadata.users.file
    file.backup_path.write_bytes(file.path.read_bytes())
    file.path.write_text("{")
    with pytest.raises(StoreError, match="the table of users is damaged"):
        open_metadata(tmp_path)


async def test_files_that_others_may_open_are_refused(tmp_path: Path) -> None:
    metadata = open_metadata(tmp_path)
    begin_term(metadata, 1)
    await BrokerUsers(metadata).save_user(ALICE)
    metadata.users.path.chmod(0o644)
    with pytest.raises(StoreError, match=r"users is not used: .*users.json .* chmod 600"):
        open_metadata(tmp_path)
    metadata.users.path.chmod(0o600)
    assert BrokerUsers(open_metadata(tmp_path)).user("alice") == ALICE


def test_the_first_users_are_created_only_while_there_is_none(tmp_path: Path) -> None:
    metadata = open_metadata(tmp_path)
    metadata.first_users = [(ROOT, None), (ALICE, ACL)]
    begin_term(metadata, 1)
    users = BrokerUsers(metadata)
    assert (set(map(str, metadata.users.table.rows)), users.acl("User:alice")) == ({"root", "alice"}, ACL)
    metadata.users.change({}, {"alice": 0})
    metadata.end_term()
    begin_term(metadata, 2)
    assert set(metadata.users.table.rows) == {"root"}
