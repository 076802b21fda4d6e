"""The gRPC server of a broker with authentication and authorization: who gets in, and what they may do."""

import asyncio
import contextlib
import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from broker.app.broker import Broker
from broker.clients.proxied_requests import Sender
from keelmq.client.cluster.routes import make_route
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.codes import MASTER_ID, ResponseCode
from keelmq.remoting.command import RemotingCommand, encode
from keelmq.remoting.operation import Failed, Ok, OperationTable, Outcome, Reply
from keelmq.remoting.operations.clients import SERVE_FOR_CLIENT, ServeForClientRequest
from keelmq.remoting.operations.route import (
    GET_BROKER_CLUSTER_INFO,
    GET_ROUTEINFO_BY_TOPIC,
    BrokerData,
    ClusterInfo,
    QueueData,
    TopicRouteData,
)
from keelmq.remoting.operations.transactions import END_TRANSACTION, EndTransactionRequest
from keelmq.remoting.servers.tcp import TcpServer
from keelmq.runtime.config import ConfigError
from keelmq.security.signer import Credentials, optional_signer, signer_of
from proxy.core.authorization import AUTHORIZATION, DATE_TIME, credential_of
from proxy.core.times import duration
from proxy.core.transactions import half_message_of
from proxy.server.app import ProxyProgram
from proxy.server.config import ProxyConfig
from proxy.server.masters import BrokerRequest, TcpMasters
from proxy.wire import messaging_pb2 as pb
from tests.unit.broker.metadata.test_secure_broker import ADMIN, KEYS, MEMBER
from tests.unit.proxy.server import parts
from tests.unit.proxy.server.parts import (
    GROUP,
    HOST,
    METADATA,
    TOPIC,
    GrpcClient,
    create,
    handle_of,
    queue_of,
    serving,
)

TIME = "20261129T221500Z"
AUTH_CREATE_USER, AUTH_CREATE_ACL, AUTH_DELETE_ACL = 3001, 3006, 3008


def signed_by(name: str, secret: str | None = None) -> tuple[tuple[str, str], ...]:
    digest = hmac.digest((secret or f"{name}-secret").encode(), TIME.encode(), hashlib.sha1).hex()
    text = f"MQv2-HMAC-SHA1 Credential={name}, SignedHeaders={DATE_TIME}, Signature={digest}"
    return (*METADATA, (AUTHORIZATION, text), (DATE_TIME, TIME))


ALICE, MALLORY = signed_by("alice"), signed_by("mallory")


@contextlib.asynccontextmanager
async def secured(path: Path, **settings: Any) -> AsyncIterator[tuple[Broker, GrpcClient]]:
    """alice and bob have rights to topic T and group g, mallory to others."""
    async with serving(path, memberProofRequired=False, **(KEYS | settings)) as (broker, client):
        for name, topic, group in (("alice", "T", "g"), ("bob", "T", "g"), ("mallory", "M", "m")):
            await as_admin(
                broker, AUTH_CREATE_USER, {"username": name}, {"username": name, "password": f"{name}-secret"}
            )
            entries = [
                {"resource": f"Topic:{topic}", "actions": ["Pub", "Sub"], "decision": "Allow"},
                {"resource": f"Group:{group}", "actions": ["Sub"], "decision": "Allow"},
            ]
            subject = f"User:{name}"
            policies = [{"policyType": "Custom", "entries": entries}]
            await as_admin(
                broker, AUTH_CREATE_ACL, {"subject": subject}, {"subject": subject, "policies": policies}
            )
        yield broker, client


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[Broker, GrpcClient]]:
    async with secured(tmp_path) as found:
        yield found


@pytest.fixture
def client(served: tuple[Broker, GrpcClient]) -> GrpcClient:
    return served[1]


async def as_admin(
    broker: Broker, code: int, fields: dict[str, Any], body: dict[str, Any] | None = None
) -> None:
    operation = broker.operations.handlers[code][0]
    client = RemotingClient(signer=signer_of(ADMIN, proof=True))
    made = None if body is None else operation.request_body.model_validate(body)
    header = operation.request.model_validate(fields)
    outcome = await client.call(broker.address, operation, header, made, timeout_ms=60_000)
    await client.close()
    assert isinstance(outcome, Ok), outcome


def sending(topic: pb.Resource = TOPIC) -> pb.SendMessageRequest:
    message = pb.Message(topic=topic, body=b"one", system_properties=pb.SystemProperties(message_id="01a"))
    return pb.SendMessageRequest(messages=[message])


async def receive(client: GrpcClient, metadata: Any, group: pb.Resource = GROUP, **more: Any) -> Any:
    call = client.receiving(parts.receive_request(group=group, **more), metadata=metadata)
    return [each async for each in call]


async def test_a_user_with_rights_is_served(client: GrpcClient) -> None:
    assert (await client.call("SendMessage", sending(), metadata=ALICE)).status.code == pb.OK
    answers = await receive(client, ALICE)
    handles = [handle_of(each.message) for each in answers if each.HasField("message")]
    assert len(handles) == 1
    entries = [pb.AckMessageEntry(message_id="m", receipt_handle=each) for each in handles]
    request = pb.AckMessageRequest(group=GROUP, topic=TOPIC, entries=entries)
    # Another user's handle: neither under the names that it has, nor under one's own.
    found = await client.call("AckMessage", request, metadata=MALLORY)
    assert found.entries[0].status.code == pb.FORBIDDEN
    own = pb.AckMessageRequest(group=pb.Resource(name="m"), topic=pb.Resource(name="M"), entries=entries)
    found = await client.call("AckMessage", own, metadata=MALLORY)
    assert found.entries[0].status.code == pb.INVALID_RECEIPT_HANDLE
    found = await client.call("AckMessage", request, metadata=ALICE)
    assert found.status.code == pb.OK


BAD = [
    METADATA,
    signed_by("alice", "wrong"),
    signed_by("nobody"),
    signed_by("inner"),
    (*METADATA, (AUTHORIZATION, "garbage")),
]
CALLS = [
    ("QueryRoute", pb.QueryRouteRequest(topic=TOPIC)),
    ("QueryAssignment", pb.QueryAssignmentRequest(topic=TOPIC, group=GROUP)),
    ("Heartbeat", pb.HeartbeatRequest(group=GROUP)),
    ("SendMessage", sending()),
    ("QueryOffset", pb.QueryOffsetRequest(message_queue=queue_of())),
    ("GetOffset", pb.GetOffsetRequest(message_queue=queue_of(), group=GROUP)),
    ("UpdateOffset", pb.UpdateOffsetRequest(message_queue=queue_of(), group=GROUP, offset=1)),
    ("RecallMessage", pb.RecallMessageRequest(topic=TOPIC, recall_handle="h")),
    ("EndTransaction", pb.EndTransactionRequest(topic=TOPIC, transaction_id="t")),
    ("AckMessage", pb.AckMessageRequest(topic=TOPIC, group=GROUP)),
    ("ChangeInvisibleDuration", pb.ChangeInvisibleDurationRequest(topic=TOPIC, group=GROUP)),
    ("ForwardMessageToDeadLetterQueue", pb.ForwardMessageToDeadLetterQueueRequest(topic=TOPIC, group=GROUP)),
    ("NotifyClientTermination", pb.NotifyClientTerminationRequest(group=GROUP)),
]


@pytest.mark.parametrize("metadata", BAD, ids=["none", "wrong", "unknown", "member", "garbage"])
async def test_every_call_needs_a_right_signature(client: GrpcClient, metadata: Any) -> None:
    """Also that of a member is no way in: clients of gRPC are never members."""
    for name, request in CALLS:
        found = await client.call(name, request, metadata=metadata)
        assert found.status.code == pb.UNAUTHORIZED, name
        assert found.status.message
    assert [each.status.code for each in await receive(client, metadata)] == [pb.UNAUTHORIZED]
    assert (await client.pull(metadata=metadata)).status.code == pb.UNAUTHORIZED
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await settings(client, metadata, pb.Settings(publishing=pb.Publishing(topics=[TOPIC])))
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def settings(client: GrpcClient, metadata: Any, sent: pb.Settings) -> pb.TelemetryCommand:
    stream = client.telemetry(metadata=metadata)
    await stream.write(pb.TelemetryCommand(settings=sent))
    answer = await stream.read()
    if not isinstance(answer, pb.TelemetryCommand):
        raise AssertionError(f"the stream ended: {await stream.code()}")
    await stream.done_writing()
    return answer


async def test_a_user_without_rights_is_refused(client: GrpcClient) -> None:
    await client.call("SendMessage", sending(), metadata=ALICE)
    for name, request in CALLS[:7]:
        assert (await client.call(name, request, metadata=MALLORY)).status.code == pb.FORBIDDEN, name
    assert (await receive(client, MALLORY))[0].status.code == pb.FORBIDDEN
    assert (await client.pull(metadata=MALLORY)).status.code == pb.FORBIDDEN
    assert (await client.pull(metadata=MALLORY, group=pb.Resource(name="m"))).status.code == pb.FORBIDDEN
    subscribed = pb.Subscription(group=GROUP, subscriptions=[pb.SubscriptionEntry(topic=TOPIC)])
    for sent in (
        pb.Settings(client_type=pb.PRODUCER, publishing=pb.Publishing(topics=[TOPIC])),
        pb.Settings(client_type=pb.SIMPLE_CONSUMER, subscription=subscribed),
    ):
        assert (await settings(client, ALICE, sent)).status.code == pb.OK
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await settings(client, MALLORY, sent)
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_nobody_ends_the_client_of_another_user(served: tuple[Broker, GrpcClient]) -> None:
    """Client ids are no secret: they are made of host, process and time."""
    broker, client = served
    assert broker.listeners.proxy is not None
    sent = pb.Settings(client_type=pb.PRODUCER, publishing=pb.Publishing(topics=[TOPIC]))
    stream = client.telemetry(metadata=ALICE)
    await stream.write(pb.TelemetryCommand(settings=sent))
    assert (await stream.read()).status.code == pb.OK
    await client.call("SendMessage", sending(), metadata=ALICE)
    answers = await receive(client, ALICE, auto_renew=True, invisible_duration=None)
    assert any(each.HasField("message") for each in answers)
    request = pb.NotifyClientTerminationRequest(group=GROUP)
    for metadata, left in ((MALLORY, 1), (signed_by("bob"), 1), (ALICE, 0)):
        await client.call("NotifyClientTermination", request, metadata=metadata)
        assert sum(broker.listeners.proxy.clients().values()) == left
        answers = await receive(client, ALICE, long_polling_timeout=duration(2_000))
        assert any(each.HasField("message") for each in answers) == (not left)
    stream.cancel()


async def test_an_empty_heartbeat_needs_no_right(client: GrpcClient) -> None:
    found = await client.call("Heartbeat", pb.HeartbeatRequest(), metadata=MALLORY)
    assert found.status.code == pb.OK


async def test_a_user_with_rights_pulls(client: GrpcClient) -> None:
    await client.call("SendMessage", sending(), metadata=ALICE)
    found = await client.pull(metadata=ALICE)
    assert (found.status.code, set(found.bodies)) == (pb.OK, {"one"})
    for name, request in CALLS[4:7]:
        answer = await client.call(name, request, metadata=ALICE)
        assert answer.status.code in (pb.OK, pb.OFFSET_NOT_FOUND), name


async def test_who_has_no_right_to_a_topic_does_not_learn_whether_it_exists(tmp_path: Path) -> None:
    absent = pb.Resource(name="absent")
    calls: list[tuple[str, Any, Any]] = [
        ("QueryRoute", CALLS[0][1], pb.QueryRouteRequest(topic=absent)),
        ("QueryAssignment", CALLS[1][1], pb.QueryAssignmentRequest(topic=absent, group=GROUP)),
        ("SendMessage", sending(), sending(absent)),
    ]
    async with secured(tmp_path, auto_create_topic_enable=False) as (broker, client):
        await create(broker, "T", message_type="FIFO")
        for name, *requests in calls:
            found = [await client.call(name, each, metadata=MALLORY) for each in requests]
            assert [each.status.code for each in found] == [pb.FORBIDDEN, pb.FORBIDDEN], name
        for topic in (TOPIC, absent):
            queue = pb.MessageQueue(topic=topic, id=-1, broker=pb.Broker(name="broker-a"))
            own = pb.Resource(name="m")
            answers = await receive(client, MALLORY, own, message_queue=queue)
            assert answers[0].status.code == pb.FORBIDDEN


# -- requests to the master of another group ---------------------------------------------------------------


async def half_message(client: GrpcClient) -> EndTransactionRequest:
    message = pb.Message(
        topic=TOPIC,
        body=b"half",
        system_properties=pb.SystemProperties(message_id="01a", message_type=pb.TRANSACTION),
    )
    found = await client.call("SendMessage", pb.SendMessageRequest(messages=[message]), metadata=ALICE)
    half = half_message_of(found.entries[0].transaction_id)
    return half.end("T", pb.COMMIT, pb.SOURCE_CLIENT)


async def at_other_master(
    broker: Broker, request: BrokerRequest, credentials: Credentials | None = MEMBER
) -> Outcome[Any]:
    data = BrokerData(cluster="c", broker_name="broker-a", broker_addrs={MASTER_ID: broker.address})
    client = RemotingClient(signer=optional_signer(credentials))
    route = make_route("T", TopicRouteData(queue_datas=[], broker_datas=[data]))
    found = await TcpMasters(client, for_clients=True).call(route, "broker-a", request)
    await client.close()
    return found


def sender_of(metadata: tuple[tuple[str, str], ...]) -> Sender:
    return Sender("192.0.2.7:41", credential_of(dict(metadata)))


async def test_another_master_judges_a_request_as_its_clients(served: tuple[Broker, GrpcClient]) -> None:
    """What only it can check, too: the topic of a half message. So a stolen transaction id is no use."""
    broker, client = served
    header = await half_message(client)
    for metadata in (METADATA, MALLORY, signed_by("alice", "wrong"), signed_by("inner")):
        request = BrokerRequest(END_TRANSACTION, header, sender=sender_of(metadata))
        found = await at_other_master(broker, request)
        assert isinstance(found, Failed) and found.code == ResponseCode.NO_PERMISSION
    found = await at_other_master(broker, BrokerRequest(END_TRANSACTION, header, sender=sender_of(ALICE)))
    assert isinstance(found, Ok)
    answers = await receive(client, ALICE)
    assert [each.message.body for each in answers if each.HasField("message")] == [b"half"]


@pytest.mark.parametrize("credentials", [None, Credentials("alice", "alice-secret")])
async def test_only_members_send_requests_for_clients(
    served: tuple[Broker, GrpcClient], credentials: Credentials | None
) -> None:
    broker, client = served
    request = BrokerRequest(END_TRANSACTION, await half_message(client), sender=sender_of(ALICE))
    found = await at_other_master(broker, request, credentials)
    assert isinstance(found, Failed) and found.code == ResponseCode.NO_PERMISSION


@pytest.mark.parametrize(
    ("address", "body"),
    [
        ("nowhere", encode(RemotingCommand(END_TRANSACTION.code))),
        ("192.0.2.7:41", b""),
        ("192.0.2.7:41", bytes(40)),
        ("192.0.2.7:41", encode(RemotingCommand(SERVE_FOR_CLIENT.code))),
    ],
    ids=["address", "empty", "garbage", "nested"],
)
async def test_what_is_no_request_of_a_client(
    served: tuple[Broker, GrpcClient], address: str, body: bytes
) -> None:
    client = RemotingClient(signer=signer_of(MEMBER))
    header = ServeForClientRequest(client_address=address)
    found = await client.call(served[0].address, SERVE_FOR_CLIENT, header, body)
    await client.close()
    assert isinstance(found, Failed) and found.code != ResponseCode.NO_PERMISSION


async def test_who_lost_the_right_gets_no_half_message_on_an_open_stream(tmp_path: Path) -> None:
    """Producers of a topic are asked in turn."""
    async with secured(tmp_path, transactionTimeOut=100, transactionCheckInterval=100) as (broker, client):
        sent = pb.Settings(client_type=pb.PRODUCER, publishing=pb.Publishing(topics=[TOPIC]))
        streams = [client.telemetry(metadata=signed_by(name)) for name in ("alice", "bob")]
        for stream in streams:
            await stream.write(pb.TelemetryCommand(settings=sent))
            assert (await stream.read()).status.code == pb.OK
        await as_admin(broker, AUTH_DELETE_ACL, {"subject": "User:bob"})
        await half_message(client)
        of_alice, of_bob = streams
        reading = asyncio.ensure_future(of_bob.read())
        for _ in range(3):
            assert (await of_alice.read()).HasField("recover_orphaned_transaction_command")
        done, _ = await asyncio.wait([reading], timeout=0)
        assert not done
        of_bob.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reading


# -- mqproxy: brokers judge its clients --------------------------------------------------------------------


@contextlib.asynccontextmanager
async def proxied(broker: Broker, **more: Any) -> AsyncIterator[GrpcClient]:
    """A proxy alone, whose name server knows one broker."""
    data = BrokerData(cluster="c", broker_name="broker-a", broker_addrs={MASTER_ID: broker.address})
    queues = QueueData(broker_name="broker-a", read_queue_nums=1, write_queue_nums=1, perm=6)

    async def route(header: Any, call: Any) -> Reply:
        return Reply(body=TopicRouteData(queue_datas=[queues], broker_datas=[data]))

    async def cluster(header: Any, call: Any) -> Reply:
        return Reply(body=ClusterInfo(broker_addr_table={"broker-a": data}, cluster_addr_table={}))

    table = OperationTable()
    table.bind(GET_ROUTEINFO_BY_TOPIC, route)
    table.bind(GET_BROKER_CLUSTER_INFO, cluster)
    name_server = TcpServer(table, host=HOST, port=0, name="namesrv")
    await name_server.start()
    settings = {
        "namesrvAddr": f"{HOST}:{name_server.address[1]}", "grpcServerPort": 0, "bindAddress": HOST,
        "grpcClientConsumerMinLongPollingTimeoutMillis": 0, "authenticationEnabled": True, "httpPort": -1,
        **more,
    }  # fmt: skip
    try:
        async with (
            ProxyProgram(ProxyConfig.model_validate(settings)) as proxy,
            grpc.aio.insecure_channel(f"{HOST}:{proxy.server.port}") as channel,
        ):
            yield GrpcClient(channel)
    finally:
        await name_server.close()


INNER = {"innerClientAuthenticationCredentials": KEYS["inner_client_authentication_credentials"]}


async def test_clients_of_mqproxy_have_their_own_rights(served: tuple[Broker, GrpcClient]) -> None:
    broker, _ = served
    async with proxied(broker, **INNER) as client:
        await test_a_user_with_rights_is_served(client)
        await test_a_user_without_rights_is_refused(client)
        await test_a_user_with_rights_pulls(client)
        for metadata in BAD:
            for name, request in CALLS:
                found = await client.call(name, request, metadata=metadata)
                assert found.status.code == pb.UNAUTHORIZED, name
        # What the proxy remembers is no right to send.
        assert (await client.call("SendMessage", sending(), metadata=ALICE)).status.code == pb.OK
        await as_admin(broker, AUTH_DELETE_ACL, {"subject": "User:alice"})
        assert (await client.call("SendMessage", sending(), metadata=ALICE)).status.code == pb.FORBIDDEN


@pytest.mark.parametrize("key", [("inner", "wrong"), ("alice", "alice-secret")], ids=["wrong", "no member"])
async def test_mqproxy_with_a_wrong_key_serves_nobody(
    served: tuple[Broker, GrpcClient], key: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """It says once what to set."""
    wrong = json.dumps({"accessKey": key[0], "secretKey": key[1]})
    async with proxied(served[0], innerClientAuthenticationCredentials=wrong) as client:
        for _ in range(3):
            found = await client.call("SendMessage", sending(), metadata=ALICE)
            assert found.status.code == pb.UNAUTHORIZED
    assert caplog.text.count("refuses the key of this proxy") == 1
    assert "set innerClientAuthenticationCredentials" in caplog.text


async def test_mqproxy_without_a_key_says_once_what_to_set(
    served: tuple[Broker, GrpcClient], caplog: pytest.LogCaptureFixture
) -> None:
    async with proxied(served[0], authenticationEnabled=False) as client:
        for _ in range(3):
            found = await client.call("SendMessage", sending(), metadata=ALICE)
            assert found.status.code != pb.OK
    assert caplog.text.count("this proxy has no key: set authenticationEnabled=true") == 1


async def test_a_wrong_signature_of_a_client_is_no_wrong_key(
    served: tuple[Broker, GrpcClient], caplog: pytest.LogCaptureFixture
) -> None:
    async with proxied(served[0], **INNER) as client:
        for metadata in (signed_by("alice", "wrong"), METADATA, MALLORY):
            found = await client.call("SendMessage", sending(), metadata=metadata)
            assert found.status.code in (pb.UNAUTHORIZED, pb.FORBIDDEN)
    assert "key" not in caplog.text


def test_mqproxy_with_security_needs_the_key_of_members() -> None:
    config = ProxyConfig.model_validate({"namesrvAddr": "127.0.0.1:1", "authenticationEnabled": True})
    with pytest.raises(ConfigError, match="mqproxy has no users"):
        ProxyProgram(config)
