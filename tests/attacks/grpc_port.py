"""Attacks on the gRPC port of brokers, as clients of RocketMQ 5 would make them: on topics, on messages of
other clients, and on transactions. At the master, and at the replica, which forwards to it."""

import asyncio
import hashlib
import hmac
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final

import grpc
import grpc.aio

from proxy.core.authorization import AUTHORIZATION, DATE_TIME
from proxy.core.times import duration
from proxy.wire import messaging_pb2 as pb
from tests.attacks.attacker import Attacker
from tests.attacks.clients import CHECKED_S
from tests.attacks.frames import CLOSED, Answer, Identity
from tests.attacks.judging import carried_out, seen
from tests.attacks.model import Outcome, attack
from tests.attacks.stage import ALICE, ALICES, BROKER_NAME, MALLORY, ORDERS, OWN, OWN_GROUP, SECRET, Stage
from tests.attacks.topic import NAMES, OFFSETS, READ, WRITE, by_both
from tests.unit.proxy.server.parts import (
    ENDED_MEANWHILE,
    METADATA,
    GrpcClient,
    handle_of,
    pull_request,
    queue_of,
    receive_request,
)

TIME: Final = "20261130T010203Z"
TRIES: Final = 5
"""Of an attack whose stream the server may end while it is written to: the client then does not read why."""
TOPIC, GROUP = pb.Resource(name=ORDERS), pb.Resource(name=ALICES)
QUEUE: Final = queue_of(BROKER_NAME, topic=TOPIC)
PORTS: Final = (("", "grpc", ""), ("-at-replica", "grpc-replica", " at the replica"))
"""Suffix of the id, the server, the end of the sentence."""


def metadata_of(who: Identity | None) -> tuple[tuple[str, str], ...]:
    if who is None:
        return METADATA
    digest = hmac.digest(who.secret.encode(), TIME.encode(), hashlib.sha1).hex()
    text = f"MQv2-HMAC-SHA1 Credential={who.name}, SignedHeaders={DATE_TIME}, Signature={digest}"
    return (*METADATA, (AUTHORIZATION, text), (DATE_TIME, TIME))


@asynccontextmanager
async def client_of(stage: Stage, server: str, *, plain: bool = False) -> AsyncIterator[GrpcClient]:
    address = stage.addresses[server]
    options = [("grpc.ssl_target_name_override", "localhost"), ("grpc.use_local_subchannel_pool", 1)]
    credentials = grpc.ssl_channel_credentials(stage.authority.pem)
    is_tls = stage.is_closed and not plain
    async with (
        grpc.aio.secure_channel(address, credentials, options)
        if is_tls
        else grpc.aio.insecure_channel(address, options)
    ) as channel:
        yield GrpcClient(channel)


def answer_of(response: Any) -> Answer:
    status = response.status
    return Answer(0 if status.code == pb.OK else status.code, status.message)


async def call(
    stage: Stage, server: str, name: str, request: Any, by: Identity | None, *, plain: bool = False
) -> Answer:
    async with client_of(stage, server, plain=plain) as client:
        try:
            return answer_of(await client.call(name, request, metadata=metadata_of(by)))
        except grpc.aio.AioRpcError as error:
            return Answer(CLOSED, f"no answer: {error.code().name}")


async def receive(stage: Stage, server: str, group: str, by: Identity | None) -> list[Any]:
    queue = pb.MessageQueue(topic=TOPIC, id=-1, broker=pb.Broker(name=BROKER_NAME))
    request = receive_request(
        group=pb.Resource(name=group), message_queue=queue, batch_size=1, invisible_duration=duration(10_000)
    )
    async with client_of(stage, server) as client:
        return [each async for each in client.receiving(request, metadata=metadata_of(by), timeout=30.0)]


async def alices_handle(stage: Stage) -> str:
    """Of a message that alice has received."""
    sent = pb.Message(
        topic=TOPIC, body=SECRET, system_properties=pb.SystemProperties(message_id="01for-handle")
    )
    for _ in range(20):
        await call(stage, "grpc", "SendMessage", pb.SendMessageRequest(messages=[sent]), ALICE)
        answers = await receive(stage, "grpc", ALICES, ALICE)
        for each in answers:
            if each.HasField("message"):
                return handle_of(each.message)
    raise AssertionError(f"alice receives nothing: {answers}")


How = Callable[[Attacker, Identity | None, str], Coroutine[Any, Any, Outcome]]


def at_both(id: str, name: str, *, asset: str, success: str) -> Callable[[How], How]:
    """Declares four attacks of one function: by nobody and by mallory, at the master and at the replica."""

    def declare(how: How) -> How:
        for suffix, server, where in PORTS:

            async def done(attacker: Attacker, by: Identity | None, server: str = server) -> Outcome:
                return await how(attacker, by, server)

            by_both(f"grpc/{id}{suffix}", f"{name}{where}", asset=asset, success=success)(done)
        return how

    return declare


@at_both("receive", "receives alice's messages", asset=READ, success="the answer has a message")
async def receives(attacker: Attacker, by: Identity | None, server: str) -> Outcome:
    answers = await receive(attacker.stage, server, OWN_GROUP, by)
    messages = [each.message for each in answers if each.HasField("message")]
    return seen(any(SECRET in each.body for each in messages), answer_of(answers[0]))


@at_both("send", "sends to alice's topic", asset=WRITE, success="the topic has one message more")
async def sends(attacker: Attacker, by: Identity | None, server: str) -> Outcome:
    before = await attacker.stage.end_of(ORDERS)
    message = pb.Message(
        topic=TOPIC, body=b"forged", system_properties=pb.SystemProperties(message_id="01forged")
    )
    request = pb.SendMessageRequest(messages=[message])
    answer = await call(attacker.stage, server, "SendMessage", request, by)
    return seen(await attacker.stage.end_of(ORDERS) > before, answer)


@at_both("pull", "pulls alice's messages", asset=READ, success="the answer has a message")
async def pulls(attacker: Attacker, by: Identity | None, server: str) -> Outcome:
    request = pull_request(0, message_queue=QUEUE, group=pb.Resource(name=OWN_GROUP))
    async with client_of(attacker.stage, server) as client:
        stream = client.streaming("PullMessage", request, metadata=metadata_of(by), timeout=30.0)
        answers = [each async for each in stream]
    messages = [each.message for each in answers if each.HasField("message")]
    return seen(any(SECRET in each.body for each in messages), answer_of(answers[0]))


@at_both("commit-offset", "moves the offset of alice's group", asset=OFFSETS, success="it is moved")
async def commits_offset(attacker: Attacker, by: Identity | None, server: str) -> Outcome:
    request = pb.UpdateOffsetRequest(group=GROUP, message_queue=QUEUE, offset=0)
    return carried_out(await call(attacker.stage, server, "UpdateOffset", request, by))


@by_both("grpc/read-offset", "reads the offset of alice's group", asset=NAMES, success="the answer has it")
async def reads_offset(attacker: Attacker, by: Identity | None) -> Outcome:
    commit = pb.UpdateOffsetRequest(group=GROUP, message_queue=QUEUE, offset=0)
    await call(attacker.stage, "grpc", "UpdateOffset", commit, ALICE)
    request = pb.GetOffsetRequest(group=GROUP, message_queue=QUEUE)
    return carried_out(await call(attacker.stage, "grpc", "GetOffset", request, by))


@by_both("grpc/end", "reads how many messages alice's topic has", asset=NAMES, success="the answer says it")
async def reads_end(attacker: Attacker, by: Identity | None) -> Outcome:
    request = pb.QueryOffsetRequest(message_queue=QUEUE, query_offset_policy=pb.END)
    return carried_out(await call(attacker.stage, "grpc", "QueryOffset", request, by))


@by_both("grpc/route", "reads the route of alice's topic", asset=NAMES, success="the answer has its queues")
async def route(attacker: Attacker, by: Identity | None) -> Outcome:
    return carried_out(
        await call(attacker.stage, "grpc", "QueryRoute", pb.QueryRouteRequest(topic=TOPIC), by)
    )


@at_both("ack", "acknowledges a message of alice's group", asset=OFFSETS, success="it is acknowledged")
async def acks(attacker: Attacker, by: Identity | None, server: str) -> Outcome:
    entry = pb.AckMessageEntry(message_id="m", receipt_handle=await alices_handle(attacker.stage))
    request = pb.AckMessageRequest(topic=TOPIC, group=GROUP, entries=[entry])
    return carried_out(await call(attacker.stage, server, "AckMessage", request, by))


@by_both("grpc/hide", "hides a message from alice's group", asset=OFFSETS, success="it is invisible")
async def hides(attacker: Attacker, by: Identity | None) -> Outcome:
    handle = await alices_handle(attacker.stage)
    request = pb.ChangeInvisibleDurationRequest(
        topic=TOPIC, group=GROUP, receipt_handle=handle, invisible_duration=duration(3_600_000)
    )
    return carried_out(await call(attacker.stage, "grpc", "ChangeInvisibleDuration", request, by))


@at_both("dead-letter", "makes a message of alice's group a dead letter", asset=OFFSETS, success="it is one")
async def dead_letters(attacker: Attacker, by: Identity | None, server: str) -> Outcome:
    request = dead_letter(await alices_handle(attacker.stage))
    return carried_out(await call(attacker.stage, server, "ForwardMessageToDeadLetterQueue", request, by))


def dead_letter(handle: str) -> pb.ForwardMessageToDeadLetterQueueRequest:
    return pb.ForwardMessageToDeadLetterQueueRequest(
        topic=TOPIC, group=GROUP, receipt_handle=handle, message_id="m"
    )


@at_both("commit", "commits a half message of alice", asset=WRITE, success="it is committed")
async def commits(attacker: Attacker, by: Identity | None, server: str) -> Outcome:
    request = await commit_of_half(attacker.stage, TOPIC)
    return carried_out(await call(attacker.stage, server, "EndTransaction", request, by))


@attack(
    "grpc/commit-own",
    "commits a half message of alice, and names a topic of its own",
    asset=WRITE,
    success="it is committed",
    answer="the half message is not from producer group",
    open=False,
)
async def commits_under_its_own_topic(attacker: Attacker) -> Outcome:
    request = await commit_of_half(attacker.stage, pb.Resource(name=OWN))
    return carried_out(await call(attacker.stage, "grpc", "EndTransaction", request, MALLORY))


async def half_message(stage: Stage) -> str:
    """Returns the transaction id of a half message that alice has just sent."""
    system = pb.SystemProperties(message_id="01half", message_type=pb.TRANSACTION)
    request = pb.SendMessageRequest(messages=[pb.Message(topic=TOPIC, body=SECRET, system_properties=system)])
    async with client_of(stage, "grpc") as client:
        sent = await client.call("SendMessage", request, metadata=metadata_of(ALICE))
    return str(sent.entries[0].transaction_id)


async def commit_of_half(stage: Stage, topic: pb.Resource) -> pb.EndTransactionRequest:
    return pb.EndTransactionRequest(
        topic=topic, message_id="01half", transaction_id=await half_message(stage), resolution=pb.COMMIT
    )


async def may(attacker: Attacker, server: str) -> list[str]:
    """Returns what alice may do, and what is refused to her."""
    stage, handle = attacker.stage, await alices_handle(attacker.stage)
    calls = (
        ("QueryRoute", pb.QueryRouteRequest(topic=TOPIC)),
        ("EndTransaction", await commit_of_half(stage, TOPIC)),
        ("ForwardMessageToDeadLetterQueue", dead_letter(handle)),
    )
    answers = [(name, await call(stage, server, name, request, ALICE)) for name, request in calls]
    return [f"{name}: {answer}" for name, answer in answers if answer.code]


@by_both(
    "grpc/check-half",
    "says that it produces for alice's topic, and waits for the check of a half message",
    asset=READ,
    success="it gets alice's half message",
)
async def checks(attacker: Attacker, by: Identity | None) -> Outcome:
    for _ in range(TRIES):
        outcome = await _check(attacker, by)
        if outcome.answer != ENDED_MEANWHILE:
            break
    return outcome


async def _check(attacker: Attacker, by: Identity | None) -> Outcome:
    settings = pb.Settings(client_type=pb.PRODUCER, publishing=pb.Publishing(topics=[TOPIC]))
    async with client_of(attacker.stage, "grpc") as client:
        stream = client.telemetry(metadata=metadata_of(by))
        try:
            await stream.write(pb.TelemetryCommand(settings=settings))
            await stream.read()
            async with asyncio.timeout(CHECKED_S):
                await half_message(attacker.stage)
                asked = (await stream.read()).recover_orphaned_transaction_command
            return Outcome(SECRET in asked.message.body, "alice's half message is sent to it")
        except grpc.aio.AioRpcError as error:
            return Outcome(False, str(error.details()))
        except TimeoutError:
            return Outcome(False, "nothing is sent to it")
        finally:
            stream.cancel()


@by_both(
    "grpc/exists",
    "finds out whether a topic exists",
    asset=NAMES,
    success="the answers for one of alice and for none differ",
    open=False,
)
async def exists(attacker: Attacker, by: Identity | None) -> Outcome:
    answers = []
    for name in (ORDERS, "%RETRY%absent"):
        request = pb.QueryRouteRequest(topic=pb.Resource(name=name))
        answers.append(await call(attacker.stage, "grpc", "QueryRoute", request, by))
    return seen(answers[0].code != answers[1].code, answers[0])


@attack(
    "grpc/plain",
    "alice's client connects without TLS",
    asset="what crosses the network",
    success="it is served",
)
async def without_tls(attacker: Attacker) -> Outcome:
    request = pb.QueryRouteRequest(topic=TOPIC)
    return carried_out(await call(attacker.stage, "grpc", "QueryRoute", request, ALICE, plain=True))
