"""The twelve commands of users and ACLs: flags, requests, layouts, JSON, and no password in any text."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import typer
from typer.testing import CliRunner

from cli.mqadmin.main import app
from cli.mqadmin.shell import is_read
from cli.mqadmin.targets import UserServers
from keelmq.client.admin import AdminClient, AdminError
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Call, CommandError, Operation, Reply
from keelmq.remoting.operations import auth as wire
from keelmq.remoting.operations.route import ClusterInfo
from keelmq.security.core.member_proof import PROOF
from keelmq.security.core.signature import SecretKey, verify
from tests.support.admin_parts import InThread, mqadmin
from tests.support.fake_cluster import Server

USER = {"username": "alice", "userType": "Normal", "userStatus": "enable"}
ACL = {
    "subject": "User:alice",
    "policies": [
        {
            "policyType": "Custom",
            "entries": [
                {
                    "resource": "Topic:t*",
                    "actions": ["Pub", "Sub"],
                    "sourceIps": ["10.0.0.0/8"],
                    "decision": "Allow",
                }
            ],
        }
    ],
}
OPERATIONS = (
    wire.AUTH_CREATE_USER, wire.AUTH_UPDATE_USER, wire.AUTH_DELETE_USER, wire.AUTH_GET_USER,
    wire.AUTH_LIST_USER, wire.AUTH_CREATE_ACL, wire.AUTH_UPDATE_ACL, wire.AUTH_DELETE_ACL,
    wire.AUTH_GET_ACL, wire.AUTH_LIST_ACL,
)  # fmt: skip


class World(InThread):
    """Two brokers with the user alice and her ACL; requests of the signing user have to be right."""

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        self.asked: list[tuple[str, dict[str, str], Any]] = []
        self.proofs: list[str] = []
        self.with_passwords = False
        async with Server() as self.broker, Server() as self.other:
            for each in (self.broker, self.other):
                for operation in OPERATIONS:
                    self._bind(each, operation)
            yield

    def _bind(self, server: Server, operation: Operation[Any, Any]) -> None:
        async def handle(request: Any, call: Call) -> Reply | None:
            fields = dict(call.ext_fields)
            if "AccessKey" in fields:
                assert verify(SecretKey(b"12345678"), fields, call.raw_body, call.version)
                self.proofs.append(fields[PROOF])
            header = request.model_dump(by_alias=True, exclude_none=True)
            body = json.loads(call.raw_body) if call.raw_body else None
            self.asked.append((operation.name, header, body))
            if header.get("username") == "taken":
                raise CommandError(ResponseCode.NO_PERMISSION, "The user is existed")
            password = {"password": "top-secret"} if self.with_passwords else {}
            knows = header.get("username", "alice") == "alice" and server is self.broker
            answers: dict[str, Any] = {
                "authGetUser": USER | password if knows else None,
                "authListUser": [USER | password],
                "authGetAcl": ACL if header.get("subject") == "User:alice" else None,
                "authListAcl": [ACL],
            }
            return Reply(body=answers.get(operation.name))

        server.table.bind(operation, handle)


@pytest.fixture(scope="module")
def worlds() -> Iterator[World]:
    with World().running() as world:
        yield world


@pytest.fixture
def world(worlds: World) -> World:
    worlds.asked.clear()
    worlds.proofs.clear()
    worlds.with_passwords = False
    return worlds


GRANT = ["-s", "User:alice", "-r", "Topic:t*", "-a", "Pub,Sub", "-d", "Allow", "-i", "10.0.0.0/8"]


@pytest.mark.parametrize(
    ("command", "flags", "asked"),
    [
        ("createUser", ["-u", "bob", "-p", "pw", "-t", "Super"],
         ("authCreateUser", {"username": "bob"}, {"username": "bob", "password": "pw", "userType": "Super"})),
        ("updateUser", ["-u", "alice", "-s", "disable"],
         ("authUpdateUser", {"username": "alice"}, {"username": "alice", "userStatus": "disable"})),
        ("deleteUser", ["-u", "alice"], ("authDeleteUser", {"username": "alice"}, None)),
        ("getUser", ["-u", "alice"], ("authGetUser", {"username": "alice"}, None)),
        ("listUser", ["-f", "li"], ("authListUser", {"filter": "li"}, None)),
        ("createAcl", GRANT, ("authCreateAcl", {"subject": "User:alice"}, ACL)),
        ("updateAcl", GRANT, ("authUpdateAcl", {"subject": "User:alice"}, ACL)),
        ("deleteAcl", ["-s", "User:alice", "-r", "Topic:t*"],
         ("authDeleteAcl", {"subject": "User:alice", "resource": "Topic:t*"}, None)),
        ("getAcl", ["-s", "User:alice"], ("authGetAcl", {"subject": "User:alice"}, None)),
        ("listAcl", ["-s", "a", "-r", "t"],
         ("authListAcl", {"subjectFilter": "a", "resourceFilter": "t"}, None)),
    ],
)  # fmt: skip
def test_requests(world: World, command: str, flags: list[str], asked: tuple[str, Any, Any]) -> None:
    result = mqadmin(command, "-b", world.broker.address, *flags)
    assert result.exit_code == 0, result.output
    assert world.asked[-1] == asked


def test_layouts_and_json_without_passwords(world: World) -> None:
    world.with_passwords = True
    shown = mqadmin("listUser", "-b", world.broker.address)
    assert shown.stdout.splitlines()[1].split() == ["alice", "Normal", "enable"]
    as_json = mqadmin("getUser", "-u", "alice", "-b", world.broker.address, "--json")
    assert json.loads(as_json.stdout)[0]["found"] == [USER]
    assert "top-secret" not in shown.output + as_json.output
    acls = mqadmin("listAcl", "-b", world.broker.address)
    assert acls.stdout.splitlines()[1].split() == [
        "User:alice", "Custom", "Topic:t*", "Pub,Sub", "10.0.0.0/8", "Allow",
    ]  # fmt: skip


def test_absent_and_refused(world: World) -> None:
    for flags in (["getUser", "-u", "bob"], ["deleteUser", "-u", "bob"], ["getAcl", "-s", "User:bob"]):
        result = mqadmin(*flags, "-b", world.broker.address)
        assert result.exit_code == 1
        assert "bob" in result.stderr
    assert not [each for each in world.asked if each[0].startswith("authDelete")]
    refused = mqadmin("createUser", "-u", "taken", "-p", "top-secret", "-b", world.broker.address)
    assert refused.exit_code == 1
    assert "NO_PERMISSION, The user is existed" in refused.stderr
    assert "top-secret" not in refused.output


def test_passwords_from_a_prompt_and_from_a_file(world: World, tmp_path: Path) -> None:
    flags = ["createUser", "-u", "bob", "-b", world.broker.address]
    prompted = CliRunner().invoke(app, flags, input="top-secret\ntop-secret\n")
    assert prompted.exit_code == 0, prompted.output
    assert "top-secret" not in prompted.output
    assert world.asked[-1][2]["password"] == "top-secret"
    file = tmp_path / "password"
    file.write_text("from a file\n")
    assert mqadmin(*flags, "--passwordFile", str(file)).exit_code == 0
    assert world.asked[-1][2]["password"] == "from a file"
    assert mqadmin(*flags, "--passwordFile", str(file), "-p", "x").exit_code == 2
    assert mqadmin("updateUser", "-u", "bob", "-b", world.broker.address).exit_code == 2


def test_copies(world: World) -> None:
    ends = ["-f", world.broker.address, "-t", world.other.address]
    without = mqadmin("copyUser", *ends)
    assert without.exit_code == 1
    assert "does not return the password of alice" in without.stderr
    world.with_passwords = True
    assert mqadmin("copyUser", *ends).exit_code == 0
    assert world.asked[-1] == (
        "authCreateUser", {"username": "alice"}, {**USER, "password": "top-secret"}
    )  # fmt: skip
    some = mqadmin("copyUser", *ends, "-u", "alice,bob", "--json")
    assert some.exit_code == 4
    assert json.loads(some.stdout)[0]["ok"] is True
    assert mqadmin("copyAcl", *ends).exit_code == 0
    assert world.asked[-1] == ("authCreateAcl", {"subject": "User:alice"}, ACL)


def test_credentials_sign_and_prove(world: World, tmp_path: Path) -> None:
    file = tmp_path / "tools.yml"
    file.write_text("accessKey: rocketmq2\nsecretKey: 12345678\n")
    file.chmod(0o600)
    flags = ["listUser", "-b", world.broker.address, "--credentials", str(file)]
    assert mqadmin(*flags).exit_code == 0
    assert mqadmin(*flags).exit_code == 0
    assert len(set(world.proofs)) == 2
    file.chmod(0o644)
    warned = mqadmin(*flags)
    assert warned.exit_code == 0
    assert "chmod 600" in warned.stderr
    file.chmod(0o666)
    refused = mqadmin(*flags)
    assert refused.exit_code == 2
    assert "chmod 600" in refused.stderr
    assert "12345678" not in warned.output + refused.output


def test_lists_are_reads() -> None:
    """A list that got no answer has changed nothing."""
    assert [each.name for each in OPERATIONS if is_read(each.name)] == [
        "authGetUser", "authListUser", "authGetAcl", "authListAcl",
    ]  # fmt: skip


class NameServers:
    """They list these clusters."""

    def __init__(self, *names: str) -> None:
        self.names, self.name_servers = names, self

    async def cluster_info(self, address: str) -> ClusterInfo:
        return ClusterInfo(cluster_addr_table={name: ["broker-a"] for name in self.names})


async def test_name_servers_alone_mean_their_only_cluster() -> None:
    alone = UserServers(namesrv_addr="n")
    assert (await alone.named(cast(AdminClient, NameServers("c1")))).cluster_name == "c1"
    for names, listed in (((), "none"), (("c2", "c1"), "c1, c2")):
        with pytest.raises(AdminError, match=f"not one cluster but: {listed}; give -c CLUSTERNAME"):
            await alone.named(cast(AdminClient, NameServers(*names)))


@pytest.mark.parametrize("given", [("b", "c", "n"), (None, "c", None), (None, None, None)])
def test_targets_of_users_that_mean_nothing(given: tuple[str | None, str | None, str | None]) -> None:
    with pytest.raises(typer.BadParameter):
        UserServers(*given).check()
    UserServers(namesrv_addr="n").check()
