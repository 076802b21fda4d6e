"""UserExchange: a new group, a new name server and one that was down get the users and ACLs of all others."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from broker.app.broker import Broker
from broker.config.broker_config import BrokerConfig
from broker.metadata import user_exchange
from cli.credentials import read_credentials
from cli.init_security import SecurityOptions, create
from keelmq.client.admin import AdminClient
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.operation import Failed, OperationTable
from keelmq.remoting.operations.auth import (
    SYNC_USERS,
    AclInfo,
    PolicyEntryInfo,
    PolicyInfo,
    SyncUsersRequest,
    UserInfo,
    UserRows,
)
from keelmq.runtime.config import load_config
from keelmq.runtime.tls.contexts import ClientTls, TlsSettings
from keelmq.security import user_sync
from keelmq.security.signer import signer_of
from keelmq.security.user_store import UserStore
from namesrv.app import Namesrv
from namesrv.config import NamesrvConfig
from tests.support.server_parts import until

ALICE = UserInfo(username="alice", password="alice-secret")
ACL = AclInfo(
    subject="User:alice",
    policies=[
        PolicyInfo(
            policy_type="Custom",
            entries=[PolicyEntryInfo(resource="Topic:orders", actions=["Pub"], decision="Allow")],
        )
    ],
)


class Secured:
    """Name servers and brokers of one cluster, closed by one directory of `keelmq init-security`."""

    def __init__(self, directory: Path, stack: AsyncExitStack) -> None:
        self.directory, self.stack = directory, stack
        self.security = directory / "security"
        create(self.security, SecurityOptions("DefaultCluster", ("127.0.0.1",)))
        found = read_credentials(self.security / "admin" / "credentials.yml")
        self.credentials, self.tls = found.credentials, ClientTls.of(found.tls)
        self.name_servers: list[str] = []

    async def name_server(self, name: str, *, port: int = 0, stack: AsyncExitStack | None = None) -> Namesrv:
        """stack: closes it instead of the end of the test."""
        given = {"listenPort": str(port), "kvConfigPath": str(self.directory / f"{name}.json")}
        (config,) = load_config(NamesrvConfig, path=None, environ={}, overrides={**self.common(), **given})
        server = await (stack or self.stack).enter_async_context(Namesrv(config))
        if not port:
            self.name_servers.append("{}:{}".format(*server.address))
        return server

    async def broker(self, name: str, **keys: str) -> Broker:
        given = {
            "brokerName": name,
            "listenPort": "0",
            "storePathRootDir": str(self.directory / name),
            "mappedFileSizeCommitLog": "16777216",
            "namesrvAddr": ";".join(self.name_servers),
            "brokerIP1": "127.0.0.1",
            **keys,
        }
        (config,) = load_config(BrokerConfig, path=None, environ={}, overrides={**self.common(), **given})
        return await self.stack.enter_async_context(Broker(config))

    def common(self) -> dict[str, str]:
        return {"securityPath": str(self.security), "bindAddress": "127.0.0.1", "httpPort": "-1"}

    def admin(self) -> AdminClient:
        client = RemotingClient(OperationTable(), signer=signer_of(self.credentials), tls=self.tls)
        self.stack.push_async_callback(client.close)
        return AdminClient(client)


@pytest.fixture(autouse=True)
def _short_period(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_exchange, "PERIOD_MS", 50)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Secured]:
    async with cluster_in(tmp_path) as found:
        yield found


@asynccontextmanager
async def cluster_in(directory: Path) -> AsyncIterator[Secured]:
    async with AsyncExitStack() as stack:
        yield Secured(directory, stack)


def store_of(server: Namesrv) -> UserStore:
    assert server.users is not None
    return server.users


def has_alice(store: UserStore) -> bool:
    found = store.user("alice")
    return found is not None and found.password == "alice-secret" and store.acl("User:alice") is not None


async def test_what_one_broker_was_told_reaches_every_server(cluster: Secured) -> None:
    """As Java's `createUser -c`, which changes brokers only; also a name server and a group that are new."""
    first = await cluster.name_server("n1")
    broker = await cluster.broker("broker-a")
    admin = cluster.admin()
    await admin.auth.create_user(broker.address, ALICE)
    await admin.auth.create_acl(broker.address, ACL)
    await until(lambda: has_alice(store_of(first)))

    second = await cluster.name_server("n2")
    other = await cluster.broker("broker-b")
    await until(lambda: has_alice(other.users) and has_alice(store_of(second)))
    assert store_of(second).user("admin") == store_of(first).user("admin") == other.users.user("admin")


async def test_a_change_at_a_name_server_reaches_brokers(cluster: Secured) -> None:
    server = await cluster.name_server("n1")
    broker = await cluster.broker("broker-a")
    admin = cluster.admin()
    await admin.auth.create_user(cluster.name_servers[0], ALICE)
    await admin.auth.create_acl(cluster.name_servers[0], ACL)
    await until(lambda: has_alice(broker.users))
    await admin.auth.delete_user(broker.address, "alice")
    await until(lambda: store_of(server).user("alice") is None and store_of(server).acl("User:alice") is None)


async def test_a_server_that_was_down_brings_no_deleted_user_and_no_old_password_back(
    cluster: Secured,
) -> None:
    async with AsyncExitStack() as first_run:
        server = await cluster.name_server("n1", stack=first_run)
        await cluster.broker("broker-a", namesrvAddr=cluster.name_servers[0])
        admin = cluster.admin()
        await admin.auth.create_user(cluster.name_servers[0], ALICE)
        await admin.auth.create_user(cluster.name_servers[0], UserInfo(username="bob", password="old-secret"))
        port = server.address[1]
    broker = await cluster.broker("broker-b", namesrvAddr=cluster.name_servers[0])
    await admin.auth.create_user(broker.address, UserInfo(username="bob", password="new-secret"))
    await admin.auth.create_user(broker.address, ALICE)
    await admin.auth.delete_user(broker.address, "alice")
    server = await cluster.name_server("n1", port=port)
    assert store_of(server).user("alice") is not None, "it was down when the user was deleted"
    await until(lambda: store_of(server).user("alice") is None)
    await until(lambda: getattr(store_of(server).user("bob"), "password", "") == "new-secret")
    assert broker.users.user("alice") is None


async def test_more_rows_than_one_request_takes(cluster: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_sync, "ROWS_BYTES_MAX", 50)  # less than one row
    server = await cluster.name_server("n1")
    broker = await cluster.broker("broker-a")
    admin = cluster.admin()
    for number in range(20):
        at = broker.address if number % 2 else cluster.name_servers[0]
        await admin.auth.create_user(at, UserInfo(username=f"user-{number}", password="its-secret"))
    await until(lambda: len(store_of(server).users()) == len(broker.users.users()) == 21)


async def test_a_cancellation_in_the_moment_of_a_change_ends_the_exchange() -> None:
    """asyncio.wait_for() of Python 3.11 drops a cancellation that comes with the event; brokers hung."""
    table = SimpleNamespace(watchers=[])
    metadata: Any = SimpleNamespace(gate=SimpleNamespace(writable=False), users=table, acls=table)
    nothing: Any = None
    task = asyncio.create_task(
        user_exchange.UserExchange(nothing, metadata, nothing, ["127.0.0.1:9"], verifies=True).run()
    )
    for _ in range(3):
        await asyncio.sleep(0)  # it waits for a change now
    table.watchers[0]()
    task.cancel()
    await asyncio.wait([task], timeout=5)
    assert task.cancelled()


async def test_only_members_get_rows_and_only_with_tls(cluster: Secured) -> None:
    server = await cluster.name_server("n1")
    admin = RemotingClient(OperationTable(), signer=signer_of(cluster.credentials), tls=cluster.tls)
    body = UserRows(wanted_users=["admin"])
    outcome = await admin.call(cluster.name_servers[0], SYNC_USERS, SyncUsersRequest(), body)
    assert isinstance(outcome, Failed) and outcome.code == 16, outcome
    await admin.close()
    config = server.config
    assert config.member_credentials is not None
    (plain_config,) = load_config(
        NamesrvConfig,
        path=None,
        environ={},
        overrides={
            **cluster.common(),
            "listenPort": "0",
            "tls.server.mode": "permissive",
            "kvConfigPath": str(cluster.directory / "plain.json"),
        },
    )
    plain = await cluster.stack.enter_async_context(Namesrv(plain_config))
    member = RemotingClient(OperationTable(), signer=signer_of(config.member_credentials, proof=True))
    address = "{}:{}".format(*plain.address)
    outcome = await member.call(address, SYNC_USERS, SyncUsersRequest(), body)
    assert isinstance(outcome, Failed) and "only over TLS" in outcome.remark, outcome
    await member.close()
    ca = TlsSettings(ca=cluster.security / "ca.crt")
    member = RemotingClient(
        OperationTable(), signer=signer_of(config.member_credentials, proof=True), tls=ClientTls.of(ca)
    )
    outcome = await member.call(address, SYNC_USERS, SyncUsersRequest(), body)
    assert outcome.body.users[0]["username"] == "admin", outcome
    await member.close()


async def test_without_verified_certificates_nothing_is_sent(
    cluster: Secured, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever listens on the port of a name server that is down must not get passwords."""
    caplog.set_level(logging.INFO)
    server = await cluster.name_server("n1")
    broker = await cluster.broker(
        "broker-a", **{"tls.client.trustCertPath": "", "tls.client.authServer": "false"}
    )
    await cluster.admin().auth.create_user(broker.address, ALICE)
    await asyncio.wait_for(broker.user_exchange.run(), 5)
    assert store_of(server).user("alice") is None
    assert "their certificates are not verified" in caplog.text
