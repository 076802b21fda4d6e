"""A broker with authentication and authorization, over its own port: who gets in, and what they may do."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from broker.app.broker import Broker
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Empty, Failed, Ok, Operation, OperationTable, Wire
from keelmq.remoting.operations.broker import (
    PULL_MESSAGE,
    SEND_MESSAGE_V2,
    VIEW_MESSAGE_BY_ID,
    PullMessageRequest,
    SendMessageRequestV2,
    ViewMessageRequest,
)
from keelmq.remoting.operations.clients import (
    CONSUMER_SEND_MSG_BACK,
    GET_CONSUME_STATS,
    HEART_BEAT,
    ConsumeStatsRequest,
    HeartbeatData,
    SendBackRequest,
)
from keelmq.remoting.operations.pop import POP_MESSAGE, PopMessageRequest
from keelmq.remoting.operations.transactions import END_TRANSACTION, EndTransactionRequest
from keelmq.security.signer import Credentials, signer_of
from tests.support.server_parts import until
from tests.unit.broker.app.test_broker_app import config

ADMIN = Credentials("admin", "admin-secret")
ALICE = Credentials("alice", "alice-secret")
BOB = Credentials("bob", "bob-secret")
MEMBER = Credentials("inner", "inner-secret")
KEYS = {
    "authentication_enabled": True,
    "authorization_enabled": True,
    "auto_create_topic_enable": True,
    "init_authentication_user": json.dumps({"username": "admin", "password": "admin-secret"}),
    "inner_client_authentication_credentials": json.dumps(
        {"accessKey": "inner", "secretKey": "inner-secret"}
    ),
}


class Desk:
    """A broker and a client for each user."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.clients: dict[str, RemotingClient] = {}

    def client(self, credentials: Credentials | None, *, proof: bool = False) -> RemotingClient:
        name = "" if credentials is None else credentials.access_key + credentials.secret_key
        if name not in self.clients:
            signer = None if credentials is None else signer_of(credentials, proof=proof)
            self.clients[name] = RemotingClient(OperationTable(), signer=signer)
        return self.clients[name]

    async def ask(
        self,
        credentials: Credentials | None,
        operation: Operation[Any, Any],
        header: Wire | None = None,
        body: Any = None,
        *,
        proof: bool = False,
    ) -> Any:
        client = self.client(credentials, proof=proof)
        return await client.call(self.broker.address, operation, header or Empty(), body)

    async def must(self, code: int, fields: dict[str, str], body: dict[str, Any] | None = None) -> None:
        """A change of users or ACLs by the administrator."""
        operation = self.broker.operations.handlers[code][0]
        made = None if body is None else operation.request_body.model_validate(body)
        outcome = await self.ask(ADMIN, operation, operation.request.model_validate(fields), made)
        assert isinstance(outcome, Ok), outcome

    async def may(self, user: str, *lines: str) -> None:
        """Each line is "Topic:t Pub,Sub"."""
        entries = [
            {"resource": line.split()[0], "actions": line.split()[1].split(","), "decision": "Allow"}
            for line in lines
        ]
        await self.must(
            3006, {"subject": f"User:{user}"}, {"policies": [{"policyType": "Custom", "entries": entries}]}
        )

    async def send(self, credentials: Credentials, topic: str, properties: str = "") -> Any:
        header = SendMessageRequestV2(
            a="p", b=topic, c="TBW102", d=1, e=0, f=4 if "TRAN_MSG" in properties else 0,
            g=int(time.time() * 1_000), h=0, i=properties, j=0, l=None, m=False,
        )  # fmt: skip
        return await self.ask(credentials, SEND_MESSAGE_V2, header, b"text")

    async def close(self) -> None:
        for client in self.clients.values():
            await client.close()


@asynccontextmanager
async def running(path: Path, **more: object) -> AsyncIterator[Desk]:
    async with Broker(config(path, **{**KEYS, **more})) as broker:
        desk = Desk(broker)
        try:
            yield desk
        finally:
            await desk.close()


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    """alice owns orders, bob owns notes."""
    async with running(tmp_path) as made:
        for name, topic in (("alice", "orders"), ("bob", "notes")):
            await made.must(3001, {"username": name}, {"password": f"{name}-secret"})
            await made.may(name, f"Topic:{topic} Pub,Sub,Get", f"Group:{name}s Sub,Get")
        assert isinstance(await made.send(ALICE, "orders"), Ok)
        yield made


def refused(outcome: Any, says: str) -> bool:
    return (
        isinstance(outcome, Failed) and outcome.code == ResponseCode.NO_PERMISSION and says in outcome.remark
    )


async def test_a_pop_without_its_time_is_served(desk: Desk) -> None:
    """RocketMQ 5.3.3 with ACLs took it for one of 1970 (#9862): its gRPC proxy sends no bornTime."""
    for born in ({}, {"born_time": 0}):
        pop = PopMessageRequest(consumer_group="alices", topic="orders", queue_id=-1, max_msg_nums=1, **born)
        found = await desk.ask(ALICE, POP_MESSAGE, pop)
        assert isinstance(found, Ok) or found.remark == "NO_MESSAGE_IN_QUEUE", found
    assert refused(await desk.ask(BOB, POP_MESSAGE, pop), "User:bob has no permission to access Topic:orders")


async def test_only_who_may_is_served(desk: Desk) -> None:
    assert isinstance(await desk.send(BOB, "notes"), Ok)
    assert refused(await desk.send(BOB, "orders"), "User:bob has no permission to access Topic:orders")
    assert refused(await desk.send(Credentials("alice", "wrong"), "orders"), "check signature failed.")
    assert refused(await desk.ask(None, HEART_BEAT, body=HeartbeatData(client_id="c")), "username cannot be")
    metadata = desk.broker.operations.handlers[29001][0]
    for credentials in (ADMIN, ALICE):
        answer = await desk.ask(
            credentials, metadata, metadata.request(broker_name="b", broker_id=2, master_epoch=1)
        )
        assert refused(answer, "is for members of this cluster only")
    answer = await desk.ask(MEMBER, metadata, metadata.request(broker_name="b", broker_id=2, master_epoch=1))
    assert refused(answer, "the proof of a member is missing")
    assert desk.broker.security.access is not None
    assert sum(desk.broker.security.access.refusals.values()) == 6


async def test_messages_of_others_are_looked_up(desk: Desk) -> None:
    """Requests that name an offset, but no topic."""
    view = ViewMessageRequest(offset=0)
    assert isinstance(await desk.ask(ALICE, VIEW_MESSAGE_BY_ID, view), Ok)
    assert refused(await desk.ask(BOB, VIEW_MESSAGE_BY_ID, view), "Topic:orders")
    back = SendBackRequest(group="bobs", offset=0, delay_level=1)
    assert refused(await desk.ask(BOB, CONSUMER_SEND_MSG_BACK, back), "Topic:orders")
    half = await desk.send(ALICE, "orders", "TRAN_MSG\x01true\x02PGROUP\x01p\x02UNIQ_KEY\x01k\x02")
    assert isinstance(half, Ok)
    offset = int(half.header.msg_id[-16:], 16)
    assert refused(await desk.ask(BOB, VIEW_MESSAGE_BY_ID, ViewMessageRequest(offset=offset)), "Topic:orders")
    end = EndTransactionRequest(
        producer_group="p",
        tran_state_table_offset=half.header.queue_offset,
        commit_log_offset=offset,
        commit_or_rollback=8,
        msg_id="k",
    )
    assert refused(await desk.ask(BOB, END_TRANSACTION, end), "Topic:orders")
    assert isinstance(await desk.ask(ALICE, END_TRANSACTION, end), Ok)


async def test_a_list_of_topics_is_checked_like_one(desk: Desk) -> None:
    asked = ConsumeStatsRequest(consumer_group="bobs", topic_list="notes;orders")
    assert refused(await desk.ask(BOB, GET_CONSUME_STATS, asked), "Topic:orders")


async def test_a_waiting_pull_ends_with_the_right_to_it(desk: Desk) -> None:
    await desk.send(BOB, "notes")
    pull = PullMessageRequest(
        consumer_group="bobs", topic="notes", queue_id=0, queue_offset=1, max_msg_nums=1, sys_flag=2 | 4,
        suspend_timeout_millis=20_000,
    )  # fmt: skip
    waiting = asyncio.create_task(desk.ask(BOB, PULL_MESSAGE, pull))
    await until(lambda: desk.broker.handlers.pull.waiting_count == 1)
    await desk.must(3008, {"subject": "User:bob"})
    answer = await asyncio.wait_for(waiting, 5)
    assert answer.code == ResponseCode.PULL_NOT_FOUND
    assert refused(await desk.ask(BOB, PULL_MESSAGE, pull), "Topic:notes")


def producer(client_id: str, group: str) -> HeartbeatData:
    return HeartbeatData.model_validate({"clientID": client_id, "producerDataSet": [{"groupName": group}]})


async def test_a_producer_of_another_user_is_not_taken_for_ours(desk: Desk) -> None:
    """Half messages are shown to their producers, and replies pushed to client ids."""
    assert isinstance(await desk.ask(BOB, HEART_BEAT, body=producer("bob-1", "p")), Ok)
    clients = desk.broker.clients
    assert clients.find_producer("p", "orders") is None
    assert clients.find_producer("p", "notes") is not None
    assert isinstance(await desk.ask(ALICE, HEART_BEAT, body=producer("alice-1", "p")), Ok)
    found = clients.find_producer("p", "orders")
    assert found is not None
    assert found is clients.peer_of(clients.registry.find_producer("alice-1") or 0)
    stolen = await desk.ask(BOB, HEART_BEAT, body=producer("alice-1", "p"))
    assert refused(stolen, "alice-1 is in use by a producer of another user")
    assert clients.registry.find_producer("alice-1") is None, "nobody can tell whose it is"
    assert clients.find_producer("p", "orders") is found
    assert isinstance(await desk.ask(ALICE, HEART_BEAT, body=producer("alice-1", "p")), Ok)


async def test_a_right_to_a_topic_is_no_right_to_push_replies(desk: Desk) -> None:
    operation = desk.broker.operations.handlers[325][0]
    fields = {"a": "p", "c": "TBW102", "d": 1, "e": 0, "f": 0, "g": 1, "h": 0, "j": 0}
    header = operation.request(b="notes", i="REPLY_TO_CLIENT\x01x\x02", **fields)
    assert refused(
        await desk.ask(BOB, operation, header, b"reply"), "replies go to DefaultCluster_REPLY_TOPIC"
    )
    await desk.may("bob", "Topic:DefaultCluster_REPLY_TOPIC Pub")
    header = operation.request(b="DefaultCluster_REPLY_TOPIC", i="REPLY_TO_CLIENT\x01x\x02", **fields)
    answer = await desk.ask(BOB, operation, header, b"reply")
    assert isinstance(answer, Failed) and "channel of <x> not found" in answer.remark


async def test_the_first_user_is_created_once(tmp_path: Path) -> None:
    async with running(tmp_path) as desk:
        await desk.must(3001, {"username": "root"}, {"password": "root-secret", "userType": "Super"})
        delete = desk.broker.operations.handlers[3003][0]
        root = Credentials("root", "root-secret")
        assert isinstance(await desk.ask(root, delete, delete.request(username="admin")), Ok)
    assert (tmp_path / "store" / "config" / "users.json").stat().st_mode & 0o777 == 0o600
    async with running(tmp_path) as desk:
        users = desk.broker.operations.handlers[3005][0]
        assert refused(await desk.ask(ADMIN, users, users.request()), "check signature failed.")
        answer = await desk.ask(root, users, users.request())
        assert [user.username for user in answer.body] == ["root"]
        assert answer.body[0].password is None


async def test_everything_is_as_it_was_without_the_keys(tmp_path: Path) -> None:
    async with Broker(config(tmp_path)) as broker:
        assert broker.operations.access is None
        desk = Desk(broker)
        assert isinstance(await desk.send(ALICE, "orders"), Ok)
        await desk.must(3001, {"username": "alice"}, {"password": "alice-secret"})
        await desk.close()


async def test_accounts_of_acl_1_0(tmp_path: Path) -> None:
    accounts = tmp_path / "conf"
    accounts.mkdir()
    (accounts / "plain_acl.yml").write_text(
        "accounts:\n- {accessKey: alice12, secretKey: alice-secret, topicPerms: [orders=PUB]}\n"
    )
    alice = Credentials("alice12", "alice-secret")
    off = {"authentication_enabled": False, "authorization_enabled": False}
    async with running(tmp_path / "store", **off, acl_enable=True, acl_path=accounts) as desk:
        assert isinstance(await desk.send(alice, "orders"), Ok)
        assert refused(await desk.send(alice, "notes"), "AclException")
        assert refused(await desk.send(Credentials("nobody1", "x"), "orders"), "Check signature failed")
