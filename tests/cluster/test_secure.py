"""A cluster with everything on: a signed producer loses nothing in a fail-over, and the new master knows the
same users and ACLs."""

from pathlib import Path

import pytest

from cli.lab.cluster import Program
from cli.lab.secure import secured
from keelmq import Credentials, Message, Producer, SendError
from keelmq.client.admin import AdminClient
from keelmq.remoting.client import sign_with
from keelmq.remoting.operations.auth import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from keelmq.remoting.operations.route import TopicConfig
from keelmq.runtime.clock import now_ms
from keelmq.security.signer import signer_of
from tests.support.harness import LONG_GRACE, SAFE, TOPIC, Harness

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

ALICE, MALLORY = Credentials("alice", "alice-secret"), Credentials("mallory", "mallory-secret")
RIGHTS = {f"Topic:{TOPIC}": ["Pub", "Sub"], "Group:*": ["Sub"]}


def acl_of(user: Credentials, rights: dict[str, list[str]]) -> AclInfo:
    entries = [
        PolicyEntryInfo(resource=resource, actions=actions, decision="Allow")
        for resource, actions in rights.items()
    ]
    policies = [PolicyInfo(policy_type="Custom", entries=entries)]
    return AclInfo(subject=f"User:{user.access_key}", policies=policies)


async def create_users(admin: AdminClient, address: str) -> None:
    for user in (ALICE, MALLORY):
        info = UserInfo(username=user.access_key, password=user.secret_key, user_type="Normal")
        await admin.auth.create_user(address, info)
    await admin.auth.create_acl(address, acl_of(ALICE, RIGHTS))


async def refusal_of(running: Harness, topic: str, credentials: Credentials | None) -> str:
    """Why a send is refused; "": it is stored."""
    async with Producer(running.cluster.namesrv_addr, "g", credentials=credentials) as producer:
        try:
            await producer.send(Message(topic, b"one more"), timeout_ms=5_000)
        except SendError as error:
            return str(error)
    return ""


def refusals_among_members(programs: list[Program]) -> list[str]:
    """Lines of their logs: no member may refuse another one."""
    lines = [line for program in programs for line in program.log_path.read_text().splitlines()]
    return [line for line in lines if " of this program: " in line or " refused request " in line]


async def test_a_fail_over_with_everything_on(tmp_path: Path) -> None:
    settings = SAFE | {"minInSyncReplicas": "1"}
    with secured(tmp_path, "KeelCluster") as keys:
        async with (
            Harness(
                tmp_path, brokers=2, broker_settings=settings | keys, namesrv_settings=keys | LONG_GRACE
            ) as running,
            AdminClient() as admin,
        ):
            old = await running.master()
            for program in (old, *running.cluster.name_servers):
                await create_users(admin, program.address)
            await admin.brokers.update_topic(old.address, TopicConfig(topic_name=TOPIC))
            sign_with(signer_of(ALICE))  # of the traffic, and of what reads it back
            running.produce()
            await running.acked(200)
            running.cluster.kill(old)
            running.ack_log.killed(now_ms())
            new = await running.new_master(old)
            await running.acked(200)

            sign_with(None)
            for topic, credentials, why in (
                (TOPIC, None, "username cannot be null."),
                (TOPIC, Credentials("alice", "wrong"), "check signature failed."),
                (TOPIC, Credentials("nobody", "secret"), "check signature failed."),
                (TOPIC, MALLORY, "no permission to access Topic:harness"),
                ("other", ALICE, "no permission to access Topic:other"),
            ):
                assert why in await refusal_of(running, topic, credentials), (topic, credentials)

            running.cluster.start_program(old)
            sign_with(signer_of(ALICE))
            report = await running.compare()
            assert report.lost == 0 and report.damaged == 0, report
            assert report.kills == 1 and max(report.gaps_ms) < 3_000, report
            assert running.reasons("(connection_refused)")

            sign_with(None)
            assert await refusal_of(running, TOPIC, ALICE) == ""
            # The route may still be read: only the broker decides now.
            await admin.auth.update_acl(new.address, acl_of(ALICE, {f"Topic:{TOPIC}": ["Sub"]}))
            assert "no permission to access Topic:harness" in await refusal_of(running, TOPIC, ALICE)
            picture = await running.all_in_sync()
            slave = next(replica for replica in picture.replicas if replica.role == "slave")
            assert slave.broker_id is not None
            await admin.controllers.elect_master(  # the controller asks the master to hand over
                running.cluster.controller_addr,
                cluster_name=running.cluster.cluster_name,
                broker_name=running.cluster.broker_name,
                broker_id=slave.broker_id,
            )
            assert (await running.new_master(new)).name == slave.name
            assert refusals_among_members(running.cluster.programs) == []
