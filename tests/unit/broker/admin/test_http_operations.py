"""The broker's operations over HTTP: which ones, and that they are those of TCP with its checks."""

import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from broker.admin.http_operations import HTTP_OPERATIONS, OF_CLIENTS, OF_MEMBERS, OF_TOOLS
from broker.admission.send_gate import ROLE
from broker.app.broker import Broker
from broker.metadata.broker_users import BrokerUsers, ChangesAtMaster
from broker.metadata.handlers import MetadataHandlers
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.codes import RequestCode, ResponseCode
from keelmq.remoting.operation import Failed, Ok, OperationTable, Outcome, Role, Unknown, Wire
from keelmq.remoting.operations.broker import TopicRequest
from keelmq.remoting.operations.broker_metadata import GET_TOPIC_CONFIG
from keelmq.remoting.operations.examples import EXAMPLES
from keelmq.remoting.servers.http_app import add_operations, new_app
from keelmq.security.core.acls import Action
from keelmq.security.core.rules import required_contexts, role_of, rule_of
from keelmq.security.signer import Credentials
from keelmq.security.user_requests import UserRequests
from tests.support.http_parts import LOADED_S, app_client
from tests.support.metadata_parts import ReplicasT, begin_term, open_metadata
from tests.support.store_parts import open_store
from tests.unit.broker.app.test_broker_app import config
from tests.unit.broker.app.test_plain_replication import make_group, until
from tests.unit.broker.clients.test_consumer_calls import Consumer
from tests.unit.broker.metadata.test_secure_broker import KEYS, Desk
from tests.unit.keelmq.security.audit.test_audit_programs import lines_of

NEW_TOPIC = EXAMPLES["updateAndCreateTopic"][0]
JSON = {"content-type": "application/json"}
ADMIN, ALICE = ("admin", "admin-secret"), ("alice", "alice-secret")


@asynccontextmanager
async def http_of(broker: Broker) -> AsyncIterator[httpx.AsyncClient]:
    assert broker.http_address is not None
    base = "http://{}:{}".format(*broker.http_address)
    async with httpx.AsyncClient(base_url=base, timeout=LOADED_S) as http:
        yield http


async def posts_of(http: httpx.AsyncClient) -> dict[str, Any]:
    """Path -> what OpenAPI says, of the operations of request codes."""
    paths = (await http.get("/openapi.json")).json()["paths"]
    return {path: each["post"] for path, each in paths.items() if "post" in each}


# ---- which ones ----


async def test_every_operation_is_served_or_has_its_reason(tmp_path: Path) -> None:
    """A new operation must be put into one of the tuples."""
    bound: set[int] = set()
    controlled = {"enable_controller_mode": True, "controller_addr": "127.0.0.1:1"}
    for name, more in (("alone", {}), ("controlled", controlled)):
        async with Broker(config(tmp_path / name, **more)) as broker:
            bound |= set(broker.operations.handlers)
            assert not any(operation.oneway for operation, _ in served(broker))
    decided = [*HTTP_OPERATIONS, *OF_CLIENTS, *OF_MEMBERS, *OF_TOOLS]
    assert sorted(decided) == sorted(bound), sorted(bound.symmetric_difference(decided))


def served(broker: Broker) -> list[tuple[Any, Any]]:
    return [each for code, each in broker.operations.handlers.items() if code in HTTP_OPERATIONS]


@pytest.mark.parametrize("code", [*HTTP_OPERATIONS, *OF_CLIENTS, *OF_MEMBERS, *OF_TOOLS], ids=int)
def test_what_only_members_may_send_is_not_served(code: RequestCode) -> None:
    assert rule_of(code).members_only == (code in OF_MEMBERS)


def test_no_token_reads_what_its_role_does_not_say() -> None:
    """Only the role of a token is checked, so a user with Get may do all that `read` may."""
    for code in HTTP_OPERATIONS:
        if role_of(code) is Role.READ:
            needed = required_contexts(code, dict.fromkeys(rule_of(code).fields, "x"), b"", "c")
            assert all(Action.GET in each.actions for each in needed.contexts), code


@pytest.mark.slow
async def test_the_routes_are_the_operations(tmp_path: Path) -> None:
    async with Broker(config(tmp_path, http_port=0)) as broker, http_of(broker) as http:
        posts = await posts_of(http)
        assert {each["x-rocketmq-code"] for each in posts.values()} == {
            operation.code for operation, _ in served(broker)
        }
        for path in ("sendMessage", "pullMessage", "popMessage", "heartBeat", "pullMetadata"):
            assert (await http.post(f"/v1/{path}", json={})).status_code == 404


# ---- input ----

GARBAGE: list[tuple[bytes, dict[str, str]]] = [
    (b"", {}),
    (b"{}", JSON),
    (b"{", JSON),
    (b"[1]", JSON),
    (b"\xff\xfe", JSON),
    (b"[" * 100_000, JSON),
    (b'{"body": [[]], "topic": {}, "group": 1e99, "queueId": "x"}', JSON),
    (b'{"topic": "\\ud800", "group": "\\ud800", "consumerGroup": "\\ud800", "body": "\\ud800"}', JSON),
    (b'{"topic": "", "group": "", "queueId": -1, "index": -9, "count": 1e300, "body": null}', JSON),
    (b"topic=T", {"content-type": "application/x-www-form-urlencoded"}),
    (b"<a/>", {"content-type": "text/xml"}),
]


@pytest.mark.slow
async def test_any_input_is_answered_in_words(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """No server error and no traceback, whatever is sent to any operation."""
    caplog.set_level(logging.ERROR)
    async with Broker(config(tmp_path)) as broker, app_client(app_of(broker.operations)) as http:
        for path, described in (await posts_of(http)).items():
            for body, headers in GARBAGE:
                answer = await http.post(path, content=body, headers=headers)
                assert answer.status_code in (200, 400, 409, 422), (path, body[:80], answer.text)
                if answer.status_code != 200:
                    assert answer.headers["content-type"] == "application/problem+json"
                    assert answer.json()["detail"]
            if described["requestBody"].get("required"):
                empty = await http.post(path)
                assert empty.status_code == 422 and empty.json()["problems"][0]["loc"][0] == "body"
    assert not caplog.records, caplog.text


async def test_the_examples_are_understood(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    async with Broker(config(tmp_path)) as broker, app_client(app_of(broker.operations)) as http:
        statuses = {}
        for path in await posts_of(http):
            answer = await http.post(path, json=EXAMPLES[path.removeprefix("/v1/")][0])
            statuses[path] = answer.status_code
            assert answer.status_code in (200, 409), (path, answer.text)
        done = [path for path, status in statuses.items() if status == 200]
        assert len(done) > len(statuses) * 2 // 3, statuses
    assert not caplog.records, caplog.text


# ---- what they do ----


async def test_what_http_changes_tcp_reads(tmp_path: Path) -> None:
    client = RemotingClient()
    async with Broker(config(tmp_path, http_port=0)) as broker, http_of(broker) as http:
        assert (await http.post("/v1/updateAndCreateTopic", json=NEW_TOPIC)).json() == {}
        found = await client.call(broker.address, GET_TOPIC_CONFIG, TopicRequest(topic="TopicTest"))
        assert isinstance(found, Ok) and found.body.write_queue_nums == 8
        conflict = await http.post("/v1/updateAndCreateTopic", json={**NEW_TOPIC, "topic": "TBW102"})
        assert (conflict.status_code, conflict.json()["code"]) == (409, ResponseCode.INVALID_PARAMETER)
        stats = (await http.post("/v1/getTopicStatsInfo", json={"topic": "TopicTest"})).json()["body"]
        queues = [json.loads(each)["queueId"] for each in stats["offsetTable"]]
        assert queues == list(range(8))  # standard JSON, while TCP has fastjson's
        lines = {"content": b"maxMessageSize=5000", "headers": {"content-type": "text/plain"}}
        assert (await http.post("/v1/updateBrokerConfig", **lines)).status_code == 200
        assert broker.config.max_message_size == 5_000
    await client.close()


@pytest.mark.slow
async def test_consumers_are_asked_for_http(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """307: by the connection that the consumer has; a consumer that is silent is an unknown outcome."""
    monkeypatch.setattr(
        "broker.clients.calls.ConsumerCalls.__init__.__kwdefaults__",
        {"answer_ms_max": 200, "status_ms_max": 200},
    )
    consumer, asked = Consumer(), {"consumerGroup": "g", "clientId": "c@1"}
    async with Broker(config(tmp_path, http_port=0)) as broker, http_of(broker) as http:
        nobody = await http.post("/v1/getConsumerRunningInfo", json=asked)
        assert nobody.status_code == 409 and "not online" in nobody.json()["detail"]
        await consumer.join(broker)
        told = await http.post("/v1/getConsumerRunningInfo", json=asked)
        assert told.json() == {"body": {"properties": {}}}, told.text
        consumer.silent = True
        silent = await http.post("/v1/getConsumerRunningInfo", json=asked)
        assert silent.status_code == 504 and "has not answered" in silent.json()["detail"]
        await consumer.client.close()


async def test_a_slave_forwards_changes_of_users(tmp_path: Path) -> None:
    user = {"username": "alice", "body": {"password": "alice-secret", "userType": "Normal"}}
    async with make_group(tmp_path) as group:
        master = await group.start("m", 0)
        slave = await group.start("s", 1, httpPort=0)
        async with http_of(slave) as http:
            await until(lambda: master.address in slave.gate.remark, "the slave knows its master")
            made = await http.post("/v1/authCreateUser", json=user)
            assert made.status_code == 200, made.text
            assert master.users.user("alice") is not None
            topic = await http.post("/v1/updateAndCreateTopic", json=NEW_TOPIC)
            assert topic.status_code == 409 and "slave" in topic.json()["detail"]


async def test_a_forwarded_change_of_unknown_outcome_is_504(tmp_path: Path) -> None:
    """The master may have carried it out, or has, and its replicas do not confirm it."""
    metadata = open_metadata(tmp_path)
    outcomes: list[Outcome[Any]] = [
        Unknown("the connection was lost"),
        Failed(ResponseCode.FLUSH_SLAVE_TIMEOUT, "not known to be on every replica"),
        Failed(ResponseCode.NO_PERMISSION, "The user is not exist"),
    ]

    async def to_master(operation: object, header: Wire, body: Wire | None) -> Outcome[Any]:
        return outcomes.pop(0)

    forward, table = ChangesAtMaster(metadata.gate, to_master).forward, OperationTable()
    metadata.gate.close(ROLE, "it is a slave")
    UserRequests(BrokerUsers(metadata), forward=forward).bind(table)
    async with app_client(app_of(table)) as http:
        for status, says in ((504, "connection was lost"), (504, "every replica"), (409, "not exist")):
            answer = await http.post("/v1/authDeleteUser", json={"username": "alice"})
            assert answer.status_code == status and says in answer.json()["detail"], answer.text
    metadata.close()


def app_of(table: OperationTable) -> Any:
    app = new_app("broker")
    add_operations(app, table, role_of, HTTP_OPERATIONS)
    return app


async def test_a_change_that_replicas_do_not_confirm_is_504(tmp_path: Path) -> None:
    metadata, store, table = (
        open_metadata(tmp_path, waits=True, timeout_ms=60),
        open_store(tmp_path),
        OperationTable(),
    )
    MetadataHandlers(metadata, store).bind(table)
    begin_term(metadata, 1, ReplicasT(lambda epoch: {9}), lambda: None)
    async with app_client(app_of(table)) as http:
        answer = await http.post("/v1/updateAndCreateTopic", json=NEW_TOPIC)
    assert answer.status_code == 504 and "not known to be on every replica" in answer.json()["detail"]
    metadata.close()
    store.close()


# ---- who may ----


async def test_users_have_the_rights_of_tcp(tmp_path: Path) -> None:
    keys = {**KEYS, "http_port": 0, "audit_enable": True, "audit_path": tmp_path / "audit"}
    async with Broker(config(tmp_path, **keys)) as broker, http_of(broker) as http:
        desk = Desk(broker)
        anonymous = await http.post("/v1/updateAndCreateTopic", json=NEW_TOPIC)
        assert anonymous.status_code == 401 and "WWW-Authenticate" in anonymous.headers
        user = {"username": "alice", "body": {"password": "alice-secret"}}
        assert (await http.post("/v1/authCreateUser", json=user, auth=ADMIN)).status_code == 200
        assert await desk.send(Credentials(*ADMIN), "TopicTest")
        await desk.may("alice", "Topic:TopicTest Get")
        mine = await http.post("/v1/getTopicConfig", json={"topic": "TopicTest"}, auth=ALICE)
        assert mine.status_code == 200, mine.text
        for path, body in (
            ("updateAndCreateTopic", NEW_TOPIC),
            ("authListUser", {}),
            ("authCreateUser", user),
        ):
            answer = await http.post(f"/v1/{path}", json=body, auth=ALICE)
            assert answer.status_code == 403, answer.text
        told = [
            each.get("password") for each in (await http.post("/v1/authListUser", auth=ADMIN)).json()["body"]
        ]
        assert told == [None] * len(told)
        await desk.close()
    done, refused = (lines_of(tmp_path / "audit", refused=each) for each in (False, True))
    assert {(each["operation"], each["user"]) for each in done} >= {("AUTH_CREATE_USER", "admin")}
    assert {(each["operation"], each.get("user")) for each in refused} >= {
        ("UPDATE_AND_CREATE_TOPIC", "alice")
    }


async def test_a_read_only_port_reads(tmp_path: Path) -> None:
    async with Broker(config(tmp_path, http_port=0, http_read_only=True)) as broker, http_of(broker) as http:
        assert (await http.post("/v1/getAllTopicConfig")).status_code == 200
        refused = await http.post("/v1/updateAndCreateTopic", json=NEW_TOPIC)
        assert refused.status_code == 403 and "httpReadOnly" in refused.json()["detail"]
