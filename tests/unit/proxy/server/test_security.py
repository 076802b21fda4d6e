"""The gRPC server of a broker with authentication and authorization: who gets in, and what they may do."""

import hashlib
import hmac
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from broker.app.broker import Broker
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.operation import Ok
from keelmq.runtime.config import ConfigError
from keelmq.security.signer import signer_of
from proxy.core.authorization import AUTHORIZATION, DATE_TIME
from proxy.server.app import make_server
from proxy.server.config import ProxyConfig
from proxy.wire import messaging_pb2 as pb
from tests.unit.broker.metadata.test_secure_broker import ADMIN, KEYS
from tests.unit.proxy.server import parts
from tests.unit.proxy.server.parts import GROUP, METADATA, TOPIC, GrpcClient, handle_of, serving

TIME = "20261129T221500Z"
AUTH_CREATE_USER, AUTH_CREATE_ACL = 3001, 3006


def signed_by(name: str, secret: str | None = None) -> tuple[tuple[str, str], ...]:
    digest = hmac.digest((secret or f"{name}-secret").encode(), TIME.encode(), hashlib.sha1).hex()
    text = f"MQv2-HMAC-SHA1 Credential={name}, SignedHeaders={DATE_TIME}, Signature={digest}"
    return (*METADATA, (AUTHORIZATION, text), (DATE_TIME, TIME))


ALICE, MALLORY = signed_by("alice"), signed_by("mallory")


@pytest.fixture
async def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[GrpcClient]:
    """alice has rights to topic T and group g, mallory to others."""
    async with serving(tmp_path, memberProofRequired=False, **KEYS) as (broker, client):
        for name, topic, group in (("alice", "T", "g"), ("mallory", "M", "m")):
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
        yield client


async def as_admin(broker: Broker, code: int, fields: dict[str, Any], body: dict[str, Any]) -> None:
    operation = broker.operations.handlers[code][0]
    client = RemotingClient(signer=signer_of(ADMIN, proof=True))
    made = operation.request_body.model_validate(body)
    outcome = await client.call(broker.address, operation, operation.request.model_validate(fields), made)
    await client.close()
    assert isinstance(outcome, Ok), outcome


def sending(topic: pb.Resource = TOPIC) -> pb.SendMessageRequest:
    message = pb.Message(topic=topic, body=b"one", system_properties=pb.SystemProperties(message_id="01a"))
    return pb.SendMessageRequest(messages=[message])


async def receive(client: GrpcClient, metadata: Any, group: pb.Resource = GROUP) -> Any:
    call = client.receiving(parts.receive_request(group=group), metadata=metadata)
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
    for name, request in CALLS[:4]:
        assert (await client.call(name, request, metadata=MALLORY)).status.code == pb.FORBIDDEN, name
    assert (await receive(client, MALLORY))[0].status.code == pb.FORBIDDEN
    subscribed = pb.Subscription(group=GROUP, subscriptions=[pb.SubscriptionEntry(topic=TOPIC)])
    for sent in (
        pb.Settings(client_type=pb.PRODUCER, publishing=pb.Publishing(topics=[TOPIC])),
        pb.Settings(client_type=pb.SIMPLE_CONSUMER, subscription=subscribed),
    ):
        assert (await settings(client, ALICE, sent)).status.code == pb.OK
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await settings(client, MALLORY, sent)
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_an_empty_heartbeat_needs_no_right(client: GrpcClient) -> None:
    found = await client.call("Heartbeat", pb.HeartbeatRequest(), metadata=MALLORY)
    assert found.status.code == pb.OK


def test_mqproxy_has_no_users() -> None:
    config = ProxyConfig.model_validate({"namesrvAddr": "127.0.0.1:1", "authenticationEnabled": True})
    with pytest.raises(ConfigError, match="mqproxy cannot check signatures"):
        make_server(config)
