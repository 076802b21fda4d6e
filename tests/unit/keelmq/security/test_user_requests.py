"""3001 to 3010 on files: what is created, refused, answered and never answered."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Call, Caller, CommandError, Operation, OperationTable, Wire
from keelmq.security.core.users import User, UserType
from keelmq.security.user_requests import UserRequests
from keelmq.security.user_store import FileUserStore
from keelmq.security.users_file import UsersFile
from tests.support.store_parts import FakePeer

ROOT = User("root", "root-secret", UserType.SUPER)
HELPER = User("helper", "helper-secret")


class As(Caller):
    """The caller of a request."""

    def __init__(self, user: str = "", *, is_member: bool = False) -> None:
        self.user, self.is_member = user, is_member


class Desk:
    """The handlers over files."""

    def __init__(self, path: Path, *, master: "Desk | None" = None) -> None:
        """master: changes are forwarded to it, by a member."""
        files = UsersFile(path)
        files.load()
        self.store = FileUserStore(files)
        self.table = OperationTable()
        self._master, self.forwarded = master, 0
        UserRequests(self.store, member="inner", forward=self._forward).bind(self.table)
        self.changes: dict[str, Any] = {}

    async def _forward(self, operation: Operation[Any, Any], header: Wire, body: Wire | None) -> bool:
        if self._master is None:
            return False
        self.forwarded += 1
        fields = {"forwarded": "true"} | header.model_dump(by_alias=True, exclude_none=True)
        made = None if body is None else body.model_dump(by_alias=True)
        await self._master.ask(operation.code, fields, made, by=As("inner", is_member=True))
        return True

    async def ask(
        self,
        code: int,
        fields: dict[str, str],
        body: dict[str, Any] | None = None,
        *,
        by: Caller | None = None,
    ) -> Any:
        operation, handler = self.table.handlers[code]
        made = None if body is None else operation.request_body.model_validate(body)
        call = Call(FakePeer(), made, caller=by or Caller(), changes={})
        answer = await handler(operation.request.model_validate(fields), call)
        self.changes = call.changes
        return answer


@pytest.fixture
async def desk(tmp_path: Path) -> Desk:
    made = Desk(tmp_path)
    for user in (ROOT, HELPER):
        await made.store.save_user(user)
    return made


NORMAL = {"password": "alice-secret"}


async def test_the_life_of_a_user(desk: Desk) -> None:
    alice = {"username": "alice"}
    await desk.ask(3001, alice, NORMAL)
    assert desk.changes == {
        "alice": (None, {"username": "alice", "userType": "Normal", "userStatus": "enable"})
    }
    await desk.ask(3001, alice, NORMAL)
    assert desk.changes == {}
    with pytest.raises(CommandError, match="The user is existed"):
        await desk.ask(3001, alice, {"password": "another"})
    await desk.ask(3002, alice, {"password": "another", "userStatus": "disable"})
    assert desk.changes["password of alice"] == ("old", "new")
    assert "another" not in str(desk.changes)
    user = desk.store.user("alice")
    assert user is not None and user.password == "another" and not user.is_enabled
    shown = (await desk.ask(3004, alice)).body
    assert shown.model_dump(exclude_none=True) == {
        "username": "alice",
        "user_type": "Normal",
        "user_status": "disable",
    }
    listed = (await desk.ask(3005, {"filter": "l"})).body
    assert [each.username for each in listed] == ["alice", "helper"]
    await desk.ask(3003, alice)
    await desk.ask(3003, alice)
    assert (await desk.ask(3004, alice)).body is None
    with pytest.raises(CommandError, match="The user is not exist"):
        await desk.ask(3002, alice, NORMAL)


async def test_the_life_of_an_acl(desk: Desk) -> None:
    entry = {"resource": "Topic:t", "actions": ["Pub"], "decision": "Allow"}
    body = {"policies": [{"policyType": "Custom", "entries": [entry]}]}
    subject = {"subject": "User:helper"}
    with pytest.raises(CommandError, match="The subject of User:alice is not exist"):
        await desk.ask(3006, {"subject": "User:alice"}, body)
    await desk.ask(3006, subject, body)
    more = {"policies": [{"policyType": "Custom", "entries": [{**entry, "resource": "Topic:u"}]}]}
    await desk.ask(3007, subject, more)
    acl = (await desk.ask(3009, subject)).body
    assert [each.resource for each in acl.policies[0].entries] == ["Topic:t", "Topic:u"]
    assert len((await desk.ask(3010, {"resourceFilter": "Topic:u"})).body[0].policies[0].entries) == 1
    await desk.ask(3008, {**subject, "resource": "Topic:t", "policyType": "Custom"})
    assert len((await desk.ask(3009, subject)).body.policies[0].entries) == 1
    await desk.ask(3008, subject)
    assert (await desk.ask(3009, subject)).body is None
    assert (await desk.ask(3010, {})).body is None


@pytest.mark.parametrize(
    ("code", "fields", "body"),
    [
        (3001, {"username": "new"}, {"password": "p", "userType": "Super"}),
        (3002, {"username": "helper"}, {"userType": "Super"}),
        (3002, {"username": "root"}, {"password": "mine"}),
        (3003, {"username": "root"}, None),
    ],
)
async def test_only_super_users_touch_super_users(
    desk: Desk, code: int, fields: dict[str, str], body: dict[str, Any] | None
) -> None:
    """Whoever may administer users could become a Super user by it."""
    before = desk.store.users()
    with pytest.raises(CommandError, match="User:helper is not a Super user") as error:
        await desk.ask(code, fields, body, by=As("helper"))
    assert error.value.code == ResponseCode.SYSTEM_ERROR
    assert desk.store.users() == before
    await desk.ask(code, fields, body, by=As("inner", is_member=True))
    assert desk.store.users() != before


@pytest.mark.parametrize(
    ("code", "username", "body", "is_known_here"),
    [
        (3001, "king", {"password": "king-secret", "userType": "Super"}, True),
        (3002, "helper", {"userType": "Super"}, True),
        (3002, "root", {"password": "mine"}, True),
        (3002, "root", {"password": "mine"}, False),
        (3003, "root", None, True),
        (3003, "root", None, False),
    ],
)
async def test_a_slave_gives_nobody_the_rights_of_a_member(
    desk: Desk, tmp_path: Path, code: int, username: str, body: dict[str, Any] | None, is_known_here: bool
) -> None:
    """It signs what it forwards as a member, and may lack users that the master has."""
    slave, before = Desk(tmp_path / "slave", master=desk), desk.store.users()
    for user in (ROOT, HELPER) if is_known_here else ():
        await slave.store.save_user(user)
    for claimed in ({}, {"forwardedFor": "root"}):
        with pytest.raises(CommandError, match="User:helper is not a Super user"):
            await slave.ask(code, {"username": username, **claimed}, body, by=As("helper"))
    assert desk.store.users() == before
    await slave.ask(code, {"username": username}, body, by=As("root"))
    assert desk.store.users() != before


async def test_what_a_slave_refuses_is_not_forwarded(desk: Desk, tmp_path: Path) -> None:
    slave = Desk(tmp_path / "slave", master=desk)
    for user in (ROOT, HELPER):
        await slave.store.save_user(user)
    for code, body in ((3002, {"password": "mine"}), (3003, None)):
        with pytest.raises(CommandError, match="User:helper is not a Super user"):
            await slave.ask(code, {"username": "root"}, body, by=As("helper"))
    assert slave.forwarded == 0


async def test_who_becomes_a_super_user_meanwhile_is_not_deleted(desk: Desk) -> None:
    await desk.ask(3001, {"username": "alice"}, NORMAL, by=As("root"))
    becomes = desk.ask(3002, {"username": "alice"}, {"userType": "Super"}, by=As("root"))
    deleted = desk.ask(3003, {"username": "alice"}, by=As("helper"))
    done = await asyncio.gather(becomes, deleted, return_exceptions=True)
    assert isinstance(done[1], CommandError) and "is not a Super user" in done[1].remark
    found = desk.store.user("alice")
    assert found is not None and found.is_super


async def test_a_user_says_in_vain_for_whom_a_request_is(desk: Desk) -> None:
    fields = {"username": "root", "forwarded": "true", "forwardedFor": "root"}
    for caller in (As("helper"), As("token:ops")):
        with pytest.raises(CommandError, match="is not a Super user"):
            await desk.ask(3003, fields, by=caller)


async def test_there_is_a_limit_of_users(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keelmq.security.user_requests.USERS_MAX", 3)
    await desk.ask(3001, {"username": "alice"}, NORMAL)
    with pytest.raises(CommandError, match="there are already 3 users"):
        await desk.ask(3001, {"username": "bob"}, NORMAL)


async def test_nobody_takes_the_name_of_the_members(desk: Desk) -> None:
    for code, body in ((3001, NORMAL), (3002, NORMAL), (3003, None)):
        with pytest.raises(CommandError, match="is the user of the cluster's members"):
            await desk.ask(code, {"username": "inner"}, body, by=As("root"))


@pytest.mark.parametrize(
    ("code", "fields", "body", "answer", "says"),
    [
        (3001, {}, NORMAL, ResponseCode.INVALID_PARAMETER, "can not be blank"),
        (3001, {"username": "a:b"}, NORMAL, ResponseCode.NO_PERMISSION, "illegal username"),
        (3001, {"username": "a"}, None, ResponseCode.NO_PERMISSION, "password can not be blank"),
        (3001, {"username": "a"}, {**NORMAL, "userType": "King"}, ResponseCode.NO_PERMISSION, "is none of"),
        (3006, {"subject": "helper"}, {"policies": []}, ResponseCode.NO_PERMISSION, "is not User:name"),
        (3008, {"subject": "User:helper", "resource": "x"}, None, ResponseCode.NO_PERMISSION, "resource"),
        (3009, {}, None, ResponseCode.INVALID_PARAMETER, "can not be blank"),
    ],
)  # fmt: skip
async def test_bad_requests(
    desk: Desk, code: int, fields: dict[str, str], body: dict[str, Any] | None, answer: int, says: str
) -> None:
    with pytest.raises(CommandError, match=says) as error:
        await desk.ask(code, fields, body)
    assert error.value.code == answer


async def test_a_full_disk_changes_nothing(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device", "users.json")

    monkeypatch.setattr("keelmq.security.users_file.replace_file", full)
    with pytest.raises(CommandError, match="No space left on device; nothing was changed"):
        await desk.ask(3001, {"username": "alice"}, NORMAL)
    assert desk.store.user("alice") is None
