"""What a preview says is what the action does: each is compared with the deed, at real servers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from keelmq.client.admin import AdminClient
from keelmq.console.actions.action import Acting, Action, Preview
from keelmq.console.actions.consumers import DELETE_GROUP, RESET_OFFSET
from keelmq.console.actions.groups import CLEAN_BROKER_METADATA, ELECT_MASTER
from keelmq.console.actions.permissions import WIPE_WRITE_PERM
from keelmq.console.actions.topics import DELETE_TOPIC
from keelmq.console.actions.users import CREATE_USER, DELETE_ACL, DELETE_USER, UPDATE_ACL
from keelmq.health.status import ClusterStatus, GroupStatus, ReplicaStatus, Verdict
from keelmq.remoting.operation import Call, Reply
from keelmq.remoting.operations.auth import EXPLAIN_DELETE_ACL, EXPLAIN_DELETE_USER
from keelmq.remoting.operations.broker import EXPLAIN_DELETE_TOPIC
from keelmq.remoting.operations.broker_metadata import EXPLAIN_DELETE_GROUP
from keelmq.remoting.operations.clients import EXPLAIN_RESET_OFFSET, RESET_TO_END
from keelmq.remoting.queue_map import QueueKey, dump_queue_map
from tests.support.admin_parts import DEAD
from tests.support.fake_cluster import Server
from tests.unit.cli.mqadmin.test_mqadmin_broker import World as BrokerWorld
from tests.unit.cli.mqadmin.test_mqadmin_controller import World as ControllerWorld
from tests.unit.cli.mqadmin.test_previews import EXPLANATIONS
from tests.unit.namesrv.plugins.controller.test_controller_plugin import GROUP
from tests.unit.namesrv.test_namesrv_http import register

ORDERS = {"group": "g-orders", "topic": "orders"}
CLUSTER = {"cluster": "DefaultCluster"}
SET = {"cluster": "C1", "brokerName": GROUP}
ACL = {"subject": "User:bob", "resources": ["Topic:orders"], "actions": ["Pub"]}
BOB = {"username": "bob", "password": "a-long-passphrase-1"}

# An action, its parameters, whether it is possible, and a part of what the preview says.
OF_BROKERS: list[tuple[Action[Any], dict[str, Any], bool, str]] = [
    (RESET_OFFSET, {**ORDERS, "atMs": RESET_TO_END}, True, "about 6 messages are skipped"),
    (RESET_OFFSET, {**ORDERS, "atMs": 0}, True, "about 10 messages are consumed once more"),
    (RESET_OFFSET, {**ORDERS, "group": "nobody", "atMs": 0}, False, "group nobody does not exist"),
    (DELETE_GROUP, {**CLUSTER, "group": "TOOLS_CONSUMER"}, False, "belongs to the broker"),
    (DELETE_GROUP, {**CLUSTER, "group": "g-orders"}, True, "1 members are connected"),
    (WIPE_WRITE_PERM, {"brokerName": "broker-a"}, True, "orders"),
    (DELETE_TOPIC, {**CLUSTER, "topic": "TBW102"}, False, "conflict with system topic"),
    (DELETE_TOPIC, {**CLUSTER, "topic": "orders"}, True, "10 messages can no longer be read"),
    (UPDATE_ACL, {**CLUSTER, **ACL}, False, "user bob does not exist"),
    (CREATE_USER, {**CLUSTER, **BOB}, True, ""),
    (CREATE_USER, {**CLUSTER, **BOB, "userType": "Super"}, False, "it would be refused there"),
    (UPDATE_ACL, {**CLUSTER, **ACL}, True, ""),
    (DELETE_ACL, {**CLUSTER, "subject": "User:bob", "resource": "Nonsense:x"}, False, "it would be refused"),
    (DELETE_ACL, {**CLUSTER, "subject": "User:bob"}, True, ""),
    (DELETE_USER, {**CLUSTER, "username": "bob"}, True, ""),
]  # fmt: skip
OF_CONTROLLERS: list[tuple[Action[Any], dict[str, Any], bool, str]] = [
    (ELECT_MASTER, {**SET, "brokerId": 3}, False, "it would be refused"),
    (ELECT_MASTER, {**SET, "brokerId": 2}, True, ""),
    (CLEAN_BROKER_METADATA, {**SET, "brokerIds": [9]}, False, "it would be refused"),
    (CLEAN_BROKER_METADATA, {**SET, "brokerIds": [2]}, False, "it would be refused"),
    (CLEAN_BROKER_METADATA, {**SET, "brokerIds": [3]}, True, ""),
    (CLEAN_BROKER_METADATA, {**SET, "living": True}, True, "alive: 1;2"),
]


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[BrokerWorld]:
    with BrokerWorld(tmp_path).running() as world:
        yield world


async def previewed(acting: Acting, action: Action[Any], parameters: dict[str, Any]) -> Preview:
    return await action.preview(acting, action.parameters.model_validate(parameters))


async def compare(
    acting: Acting, action: Action[Any], parameters: dict[str, Any], possible: bool, said: str
) -> None:
    """Asks for the preview twice, then acts: the first preview has changed nothing."""
    first, again = [await previewed(acting, action, parameters) for _ in range(2)]
    case = (action.name, parameters, first)
    assert first == again and first.is_possible is possible, case
    assert any(said in each for each in (*first.warnings, *([""] if not said else []))), case
    outcomes = await action.run(acting, action.parameters.model_validate(parameters))
    if possible:
        assert all(each.outcome == "ok" for each in outcomes), (case, outcomes)
    else:
        assert any(each.outcome == "refused" for each in outcomes), (case, outcomes)


def test_previews_of_brokers_and_name_servers(brokers: BrokerWorld) -> None:
    async def compared() -> None:
        async with AdminClient() as admin:
            for case in OF_BROKERS:
                await compare(Acting(admin, (brokers.namesrv,)), *case)

    brokers.do(compared())


@pytest.mark.parametrize("is_rocketmq", [True, False])
def test_what_an_older_server_would_do_is_not_known(brokers: BrokerWorld, is_rocketmq: bool) -> None:
    """RocketMQ's servers do not know the requests, and an older KeelMQ answered some with less."""
    for table in (brokers.broker.operations, brokers.server.table):
        for code in [each for each in table.handlers if each in EXPLANATIONS]:
            del table.handlers[code]

    async def accepted(_: object, __: Call) -> Reply:
        return Reply()

    async def offsets(_: object, __: Call) -> Reply:
        return Reply(body=dump_queue_map("offsetTable", [(QueueKey("orders", "broker-a", 0), 9)]))

    if not is_rocketmq:
        for each in (EXPLAIN_DELETE_TOPIC, EXPLAIN_DELETE_GROUP, EXPLAIN_DELETE_USER, EXPLAIN_DELETE_ACL):
            brokers.broker.operations.bind(each, accepted)
        brokers.broker.operations.bind(EXPLAIN_RESET_OFFSET, offsets)

    async def previews() -> list[Preview]:
        explained = (RESET_OFFSET, DELETE_GROUP, WIPE_WRITE_PERM, DELETE_TOPIC, DELETE_USER, DELETE_ACL)
        async with AdminClient() as admin:
            acting = Acting(admin, (brokers.namesrv,))
            return [
                await previewed(acting, action, parameters)
                for action, parameters, *_ in OF_BROKERS
                if action in explained
            ]

    for preview in brokers.do(previews()):
        assert preview.is_possible and "cannot say" in " ".join(preview.warnings), preview


@pytest.mark.parametrize("is_silent", [True, False])
def test_a_server_that_cannot_say_may_have_what_another_lacks(brokers: BrokerWorld, is_silent: bool) -> None:
    async def previews() -> list[Preview]:
        async with Server() as other, AdminClient() as admin:
            second = DEAD if is_silent else other.address
            member = await register(
                brokers.server, second, 0, broker_name="broker-z", cluster="DefaultCluster"
            )
            acting = Acting(admin, (brokers.namesrv, second))
            cases: list[tuple[Action[Any], dict[str, Any]]] = [
                (DELETE_GROUP, {**CLUSTER, "group": "nobody"}),
                (DELETE_TOPIC, {**CLUSTER, "topic": "nothing"}),
                (DELETE_USER, {**CLUSTER, "username": "nobody"}),
            ]
            wipe = await previewed(acting, WIPE_WRITE_PERM, {"brokerName": "nothing"})
            found = [await previewed(Acting(admin, (brokers.namesrv,)), *case) for case in cases]
            await member.close()
            return [wipe, *found]

    for preview in brokers.do(previews()):
        assert preview.is_possible and len(preview.warnings) == 1, preview
        assert ("refused" if is_silent else "cannot say") in preview.warnings[0], preview


@pytest.mark.parametrize(
    ("action", "parameters"),
    [
        (DELETE_GROUP, {**CLUSTER, "group": "nobody"}),
        (DELETE_TOPIC, {**CLUSTER, "topic": "nothing"}),
        (WIPE_WRITE_PERM, {"brokerName": "nothing"}),
    ],
)
def test_what_no_server_has(brokers: BrokerWorld, action: Action[Any], parameters: dict[str, Any]) -> None:
    async def preview() -> Preview:
        async with AdminClient() as admin:
            return await previewed(Acting(admin, (brokers.namesrv,)), action, parameters)

    assert not brokers.do(preview()).is_possible


def test_previews_of_controllers(tmp_path: Path) -> None:
    with ControllerWorld(tmp_path).running() as world:
        replicas = [
            ReplicaStatus(
                broker_id=each, address=f"10.0.0.{each}:1", role="slave", is_alive=True, is_in_sync=True
            )
            for each in (1, 2, 3)
        ]
        group = GroupStatus(
            cluster="C1", broker_name=GROUP, verdict=Verdict.OK, has_controllers=True, replicas=replicas
        )
        status = ClusterStatus(taken_ms=0, took_ms=0, verdict=Verdict.OK, groups=[group])

        async def compared(address: str, cases: list[tuple[Action[Any], dict[str, Any], bool, str]]) -> None:
            async with AdminClient() as admin:
                for case in cases:
                    await compare(Acting(admin, (), (address,), status), *case)

        async def foreign() -> list[Preview]:
            async with AdminClient() as admin:
                acting = Acting(admin, (), (world.foreign.address,), status)
                return [
                    await previewed(acting, ELECT_MASTER, {**SET, "brokerId": 2}),
                    await previewed(acting, CLEAN_BROKER_METADATA, {**SET, "brokerIds": [3]}),
                ]

        world.do(compared(world.address, OF_CONTROLLERS))
        for preview in world.do(foreign()):
            assert preview.is_possible, "nobody knows"
            assert [each.partition(": ")[2][:22] for each in preview.warnings] == ["this server cannot say"]


def test_controllers_that_cannot_explain_an_election(tmp_path: Path) -> None:
    """What the status shows is then all that warns of a loss."""
    replicas = [
        ReplicaStatus(
            broker_id=each, address=f"10.0.0.{each}:1", role="slave", is_alive=each < 3, is_in_sync=each < 2,
            lag_bytes=None if each == 3 else 512,
        )
        for each in (1, 2, 3)
    ]  # fmt: skip
    group = GroupStatus(
        cluster="C1",
        broker_name=GROUP,
        verdict=Verdict.OK,
        has_controllers=True,
        replicas=replicas,
        sync_state_set=[1],
    )
    status = ClusterStatus(taken_ms=0, took_ms=0, verdict=Verdict.OK, groups=[group])

    outside = "is not in the SyncStateSet"

    async def warnings(address: str) -> list[list[str]]:
        async with AdminClient() as admin:
            acting = Acting(admin, (), (address,), status)
            found = [
                await previewed(acting, ELECT_MASTER, {**SET, "brokerId": each}) for each in (1, 2, 3, 4)
            ]
            assert all(each.is_possible for each in found)
            return [each.warnings[1:] for each in found]

    with ControllerWorld(tmp_path).running() as world:
        for address in (world.foreign.address, DEAD):
            assert world.do(warnings(address)) == [
                [],
                [f"broker 2 {outside} (512 bytes behind): messages that it lacks would be lost"],
                [
                    f"broker 3 {outside}: messages that it lacks would be lost",
                    "broker 3 does not answer",
                ],
                [f"broker 4 is not known in {GROUP}"],
            ]
