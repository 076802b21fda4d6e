"""A cluster of real processes with authentication and authorization on, and its administrator."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from cli.lab.cluster import Cluster, Launcher, Program
from keelmq import Credentials, TlsSettings
from keelmq.client.admin import AdminClient, AdminError
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.operation import Empty, Ok
from keelmq.remoting.operations.auth import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from keelmq.remoting.operations.broker_metadata import UPDATE_AND_CREATE_TOPIC, CreateTopicRequest
from keelmq.remoting.operations.clients import GET_CONSUMER_LIST_BY_GROUP, ConsumerGroupRequest
from keelmq.security.signer import signer_of
from tests.support.raft_certificates import Authority

START_TIMEOUT_S = 30.0
ADMIN = Credentials("administrator", "admin-secret-4d1")
MEMBER = Credentials("cluster-member", "member-secret-9e2")
EVERYTHING_ON = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": json.dumps({"username": ADMIN.access_key, "password": ADMIN.secret_key}),
    "innerClientAuthenticationCredentials": json.dumps(
        {"accessKey": MEMBER.access_key, "secretKey": MEMBER.secret_key}
    ),
}


@dataclass
class Secured:
    """`client`: signs as the administrator."""

    cluster: Cluster
    client: RemotingClient
    checks_routes: bool = True
    """Name servers have users, too; RocketMQ's have none."""

    @property
    def namesrv(self) -> str:
        return self.cluster.namesrv_addr

    async def master(self) -> Program:
        """The one broker, or the first that takes writes."""
        return self.cluster.brokers[0]

    async def servers(self) -> list[str]:
        """All that have users and ACLs of their own."""
        name_servers = self.namesrv.split(";") if self.checks_routes else []
        return [*name_servers, (await self.master()).address]

    async def stored(self, topic: str) -> int:
        """How many messages its first queue has."""
        async with AdminClient(self.client) as admin:
            stats = await admin.brokers.topic_stats((await self.master()).address, topic)
        return sum(each.max_offset for each in stats.queues.values())

    async def members_of(self, group: str) -> int:
        """How many consumers the broker knows."""
        header = ConsumerGroupRequest(consumer_group=group)
        address = (await self.master()).address
        outcome = await self.client.call(address, GET_CONSUMER_LIST_BY_GROUP, header)
        return len(outcome.body.consumer_id_list) if isinstance(outcome, Ok) else 0

    async def until_routed(self, topic: str) -> None:
        """The name server knows the topic."""

        async def known() -> bool:
            async with AdminClient(self.client) as admin:
                try:
                    return bool((await admin.name_servers.topic_route(self.namesrv, topic)).queue_datas)
                except AdminError:
                    return False

        await self.cluster.until(f"a route of {topic}", known, timeout_s=START_TIMEOUT_S)

    async def create_topic(self, topic: str, queues: int = 1) -> None:
        header = CreateTopicRequest(
            topic=topic, default_topic="TBW102", read_queue_nums=queues, write_queue_nums=queues, perm=6
        )
        address = (await self.master()).address
        outcome = await self.client.call(address, UPDATE_AND_CREATE_TOPIC, header, Empty())
        assert isinstance(outcome, Ok), outcome
        await self.until_routed(topic)

    async def create_user(self, user: Credentials, rights: Mapping[str, list[str]]) -> None:
        """rights: resource -> actions, on every server."""
        async with AdminClient(self.client) as admin:
            for address in await self.servers():
                await admin.auth.create_user(
                    address,
                    UserInfo(username=user.access_key, password=user.secret_key, user_type="Normal"),
                )
                entries = [
                    PolicyEntryInfo(resource=resource, actions=actions, decision="Allow")
                    for resource, actions in rights.items()
                ]
                if entries:
                    acl = AclInfo(
                        subject=f"User:{user.access_key}",
                        policies=[PolicyInfo(policy_type="Custom", entries=entries)],
                    )
                    await admin.auth.create_acl(address, acl)


@contextlib.asynccontextmanager
async def secured(
    directory: Path,
    *,
    http: bool = False,
    tls: Authority | None = None,
    checks_routes: bool = True,
    namesrv_settings: Mapping[str, str] | None = None,
    broker_settings: Mapping[str, str] | None = None,
    launcher: Launcher | None = None,
    more: Mapping[str, str] | None = None,
) -> AsyncIterator[Secured]:
    """Every program is up, and the broker is registered. tls: all connections must be TLS. checks_routes
    False: the name server serves clients without asking who they are. more: settings of both programs."""
    users = directory / "users"
    users.mkdir(parents=True, mode=0o700, exist_ok=True)
    everywhere = {**EVERYTHING_ON, **_tls_settings(tls), **(more or {})}
    open_to_clients = {"authenticationEnabled": "false", "authorizationEnabled": "false"}
    cluster = Cluster(
        directory / "cluster",
        name_servers=1,
        brokers=1,
        http=http,
        launcher=launcher,
        namesrv_settings={
            **everywhere,
            "usersPath": str(users),
            **({} if checks_routes else open_to_clients),
            **(namesrv_settings or {}),
        },
        broker_settings={**everywhere, "mappedFileSizeCommitLog": "16777216", **(broker_settings or {})},
    )
    client = RemotingClient(
        signer=signer_of(ADMIN, proof=True), tls=False if tls is None else TlsSettings(ca=tls.path)
    )
    try:
        cluster.start()
        found = Secured(cluster, client, checks_routes)
        await cluster.until("a registered broker", lambda: _is_registered(found), timeout_s=START_TIMEOUT_S)
        yield found
    finally:
        await client.close()
        await asyncio.to_thread(cluster.close)


def _tls_settings(authority: Authority | None) -> dict[str, str]:
    if authority is None:
        return {}
    files = authority.issue("localhost")
    files.key.chmod(0o600)
    return {
        "tls.server.mode": "enforcing",
        "tls.server.certPath": str(files.certificate),
        "tls.server.keyPath": str(files.key),
        "tls.enable": "true",
        "tls.client.trustCertPath": str(files.trust),
    }


async def _is_registered(found: Secured) -> bool:
    async with AdminClient(found.client, timeout_ms=1_000) as admin:
        try:
            info = await admin.name_servers.cluster_info(found.cluster.namesrv_addr)
        except AdminError:
            return False
    return found.cluster.broker_name in info.broker_addr_table
