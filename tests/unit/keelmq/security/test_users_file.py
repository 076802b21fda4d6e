"""users.json and acls.json: private, durable, read again when they change."""

import json
from collections.abc import Awaitable
from pathlib import Path
from typing import cast

import pytest

from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Call, CommandError, Peer
from keelmq.remoting.operations.auth import SyncUsersRequest, UserRows
from keelmq.runtime import durable_file
from keelmq.security.core.user_changes import TOMBSTONE_MS
from keelmq.security.core.users import User, UserStatus, UserType
from keelmq.security.file_users import FileUsersConfig, load_users, users_directory
from keelmq.security.user_store import FileUserStore
from keelmq.security.user_sync import SyncUsers
from keelmq.security.users_file import BadUsersFile, UsersFile
from tests.unit.keelmq.security.parts import acl_of

ALICE = User("alice", "swordfish")
ACL = acl_of("alice", "Topic:t* Pub,Sub Allow 10.0.0.0/8")


def loaded(directory: Path) -> UsersFile:
    users = UsersFile(directory)
    users.load()
    return users


def test_absent_files_are_empty(tmp_path: Path) -> None:
    users = loaded(tmp_path)
    assert (users.users(), users.acls()) == ([], [])
    assert list(tmp_path.iterdir()) == []


def test_what_is_put_is_there_after_a_restart(tmp_path: Path) -> None:
    users = loaded(tmp_path / "config")
    generation = users.generation
    users.put_user(ALICE)
    users.put_acl(ACL)
    assert users.generation == generation + 2
    again = loaded(tmp_path / "config")
    assert (again.user("alice"), again.acl("User:alice")) == (ALICE, ACL)
    assert not users.poll()


def test_deleting_a_user_deletes_its_acl_and_its_secret(tmp_path: Path) -> None:
    users = loaded(tmp_path)
    users.put_user(ALICE)
    users.put_acl(ACL)
    users.delete_user("alice")
    assert "swordfish" not in "".join(path.read_text() for path in tmp_path.iterdir())
    users.delete_user("nobody")
    again = loaded(tmp_path)
    assert (again.users(), again.acls()) == ([], [])
    assert "swordfish" not in "".join(path.read_text() for path in tmp_path.iterdir())


def test_files_are_private_from_the_first_byte_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modes = []
    replace = durable_file.os.replace

    def replaced(aside: Path, path: Path) -> None:
        modes.append(Path(aside).stat().st_mode & 0o777)
        replace(aside, path)

    monkeypatch.setattr(durable_file.os, "replace", replaced)
    users = loaded(tmp_path)
    users.put_user(ALICE)
    users.put_user(User("bob", "secret"))
    assert set(modes) == {0o600}
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620])
def test_files_that_others_may_open_are_refused(tmp_path: Path, mode: int) -> None:
    loaded(tmp_path).put_user(ALICE)
    (tmp_path / "users.json").chmod(mode)
    with pytest.raises(BadUsersFile, match=rf"mode {mode:o}: others may open it; chmod 600"):
        loaded(tmp_path)


def test_an_edit_is_read_again(tmp_path: Path) -> None:
    users = loaded(tmp_path)
    users.put_user(ALICE)
    generation, changed_ms = users.generation, users.all_users()["alice"].changed_ms
    text = users.users_path.read_text().replace("enable", "disable")
    users.users_path.write_text(text)
    assert users.poll()
    assert users.generation > generation
    assert users.user("alice") == User("alice", "swordfish", status=UserStatus.DISABLE)
    assert not users.poll()
    assert users.all_users()["alice"].changed_ms > changed_ms, "the edit is newer at other servers"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "is not JSON"),
        ("[]", 'has no list "users"'),
        ('{"users":[7]}', r"users\[0\]: a stored user is not a JSON object"),
        ('{"users":[{"username":"a"}]}', r"users\[0\]: password can not be blank"),
        ('{"users":[{"username":"a","password":"p"},{"username":"a","password":"q"}]}', "a is there twice"),
    ],
)
def test_a_broken_edit_keeps_the_last_good_state(
    tmp_path: Path, text: str, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    users = loaded(tmp_path)
    users.put_user(ALICE)
    generation = users.generation
    good = users.users_path.read_text()
    users.users_path.write_text(text)
    with pytest.raises(BadUsersFile, match=says):
        loaded(tmp_path)
    assert not users.poll() and not users.poll()
    assert (users.user("alice"), users.generation) == (ALICE, generation)
    assert caplog.text.count("the last good ones stay") == 1
    users.users_path.write_text(good)
    assert not users.poll() and users.problem is None


@pytest.mark.parametrize("text", ['{"acls":[{"subject":"a"}]}', '{"acls":{}}'])
def test_broken_acls(tmp_path: Path, text: str) -> None:
    path = tmp_path / "acls.json"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(BadUsersFile, match="acls"):
        loaded(tmp_path)


def test_a_failed_write_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    users = loaded(tmp_path)
    users.put_user(ALICE)
    generation = users.generation

    def full(descriptor: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(durable_file.os, "fsync", full)
    with pytest.raises(OSError, match="disk full"):
        users.put_user(User("bob", "secret"))
    assert (users.user("bob"), users.generation) == (None, generation)
    assert loaded(tmp_path).user("alice") == ALICE


async def refusal_of(change: Awaitable[None]) -> str:
    with pytest.raises(CommandError) as error:
        await change
    assert error.value.code == ResponseCode.SYSTEM_ERROR
    return error.value.remark


async def test_a_change_does_not_overwrite_a_broken_edit(tmp_path: Path) -> None:
    store = FileUserStore(loaded(tmp_path))
    await store.save_user(ALICE)
    store.files.users_path.write_text("{ half an edit")
    remark = await refusal_of(store.save_user(User("bob", "secret")))
    assert remark == f"{store.files.users_path} is not JSON; nothing was changed"
    assert store.files.users_path.read_text() == "{ half an edit"
    assert store.user("bob") is None


async def test_a_change_keeps_an_edit_that_nobody_has_polled_yet(tmp_path: Path) -> None:
    store, other = FileUserStore(loaded(tmp_path)), loaded(tmp_path)
    other.put_user(ALICE)
    await store.save_user(User("bob", "secret"))
    assert [user.username for user in loaded(tmp_path).users()] == ["alice", "bob"]


@pytest.mark.parametrize("name", ["users.json", "acls.json"])
async def test_a_file_that_others_may_open_refuses_changes(tmp_path: Path, name: str) -> None:
    store = FileUserStore(loaded(tmp_path))
    await store.save_user(ALICE)
    await store.save_acl(ACL)
    (tmp_path / name).chmod(0o644)
    remark = await refusal_of(store.save_user(User("bob", "secret")))
    assert f"{name} has secrets in it and mode 644" in remark and "; nothing was changed" in remark
    assert store.user("bob") is None
    (tmp_path / name).chmod(0o600)
    assert [user.username for user in loaded(tmp_path).users()] == ["alice"]


async def test_a_full_disk_says_how_much_of_a_change_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FileUserStore(loaded(tmp_path))
    await store.save_user(ALICE)
    await store.save_acl(ACL)
    replace, full = durable_file.os.replace, [store.files.users_path]

    def replaced(aside: Path, path: Path) -> None:
        if path in full:
            raise OSError(28, "No space left on device", str(path))
        replace(aside, path)

    monkeypatch.setattr(durable_file.os, "replace", replaced)
    remark = await refusal_of(store.save_user(User("bob", "secret")))
    assert remark.endswith("users.json: No space left on device; nothing was changed")
    remark = await refusal_of(store.remove_user("alice"))
    assert remark.endswith("No space left on device; a part of it is done: repeat it later")
    assert (store.user("alice"), store.acl("User:alice")) == (ALICE, None)
    full.clear()
    await store.remove_user("alice")
    assert (loaded(tmp_path).users(), store.users()) == ([], [])


def test_rocketmqs_stored_form_is_read(tmp_path: Path) -> None:
    path = tmp_path / "users.json"
    path.write_text(
        json.dumps({"users": [{"username": "a", "password": "p", "userType": 1, "userStatus": 2}]})
    )
    path.chmod(0o600)
    user = loaded(tmp_path).user("a")
    assert user is not None and user.is_super and not user.is_enabled


def test_a_copy_of_an_old_file_deletes_nobody_and_restores_no_password(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As when the directory of `keelmq init-security`, which had users.json, was copied to a server again."""
    users = loaded(tmp_path)
    users.put_user(User("admin", "first-password", UserType.SUPER), first=True)
    old = users.users_path.read_bytes()
    users.put_user(User("admin", "new-password", UserType.SUPER))
    users.put_user(ALICE)
    users.put_user(User("bob", "bobs-password"))
    users.delete_user("bob")
    users.users_path.write_bytes(old)
    assert users.poll()
    for each in (users, loaded(tmp_path)):
        assert {user.username: user.password for user in each.users()} == {
            "admin": "new-password",
            "alice": ALICE.password,
        }
        assert each.all_users()["bob"].is_deleted
    assert "lacks users or ACLs, or has older ones: admin, alice stay as before" in caplog.text


def test_an_edit_that_brings_a_deleted_user_back_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    users = loaded(tmp_path)
    users.put_user(ALICE)
    with_alice = users.users_path.read_bytes()
    users.delete_user("alice")
    users.users_path.write_bytes(with_alice)
    assert users.poll() and users.user("alice") is None
    assert "has older ones: alice stay as before" in caplog.text and "updateUser" in caplog.text


def test_deleted_rows_stay_for_ninety_days_without_the_password(tmp_path: Path) -> None:
    now_ms = [TOMBSTONE_MS * 10]
    users = UsersFile(tmp_path, clock=lambda: now_ms[0])
    users.put_user(ALICE)
    users.put_acl(acl_of("alice", "Topic:orders Pub Allow"))
    users.delete_user("alice")
    assert ALICE.password.encode() not in users.users_path.read_bytes()
    assert users.all_users()["alice"].is_deleted and users.all_acls()["User:alice"].is_deleted
    assert not users.users() and users.user("alice") is None and users.acl("User:alice") is None
    assert not users.merge([ALICE], []), "an older version of it"
    now_ms[0] += TOMBSTONE_MS + 10
    users.put_user(User("bob", "bobs-password"))
    assert "alice" not in loaded(tmp_path).all_users()


@pytest.mark.parametrize(
    "change", [{"changedMs": -1}, {"changedMs": "1"}, {"changedMs": 2**60}, {"deleted": 1}]
)
def test_times_that_no_server_writes_are_refused(tmp_path: Path, change: dict[str, object]) -> None:
    path = tmp_path / "users.json"
    path.write_text(json.dumps({"users": [{"username": "a", "password": "p", **change}]}))
    path.chmod(0o600)
    with pytest.raises(BadUsersFile, match=r"users\[0\]: (changedMs|deleted)"):
        loaded(tmp_path)


def test_users_are_beside_the_state_of_the_program_and_taken_over_once(tmp_path: Path) -> None:
    """Not in securityPath, which is copied to servers."""
    security, state = tmp_path / "security", tmp_path / "kvConfig.json"
    UsersFile(security).put_user(ALICE)
    config = FileUsersConfig(security_path=security, authentication_enabled=True)
    assert users_directory(config, state) == tmp_path / "kvConfig.users"
    store = load_users(config, state)
    assert store is not None and store.user("alice") == ALICE
    store.files.delete_user("alice")
    UsersFile(security).put_user(User("bob", "bobs-password"))
    again = load_users(config, state)
    assert again is not None and not again.users()


class AnonymousPeer:
    """The other end of a TLS connection."""

    is_tls = True


async def test_rows_are_for_members_whatever_is_checked_before(tmp_path: Path) -> None:
    """With memberAuthenticationRequired=false everybody may send what members send."""
    users = loaded(tmp_path)
    users.put_user(ALICE)
    call = Call(cast(Peer, AnonymousPeer()), body=UserRows(wanted_users=["alice"]))
    with pytest.raises(CommandError, match="only members of the cluster exchange users"):
        await SyncUsers(FileUserStore(users)).sync_users(SyncUsersRequest(), call)
