"""Inputs of the fuzzer of the gRPC port: requests that a client sends, and what no client sends.

The input with a number is always the same for a seed, made from valid requests of every method: fields with
impossible values, damaged bytes, other methods' messages. Only the receipt handles, transaction ids and
recall handles in it are those that the server has given out until then.
"""

from collections import deque
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, Final

import msgspec
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import EncodeError

from keelmq.runtime.clock import wall_ms
from proxy.core.times import duration, timestamp
from proxy.wire import messaging_pb2 as pb
from tests.fuzz.security import damage, damage_text

TOPICS: Final = ("T0", "T1", "Fifo", "Delay", "New0", "New1", "%RETRY%g0", "%DLQ%g0")
GROUPS: Final = ("g0", "g1", "fifo", "new")
BROKER: Final = "broker-a"
TYPES: Final = {method.name: method for method in pb.DESCRIPTOR.services_by_name["MessagingService"].methods}
KEPT: Final = 256
INTEGERS: Final = (
    -1, 0, 1, 2, 3, 4, 5, 16, 64, 1_000, 2**16, 2**31 - 1, 2**31, -(2**31), 2**53, 2**62, 2**63 - 1, -(2**63),
    253_402_300_799, 253_402_300_800,
)  # fmt: skip
TEXTS: Final = (
    "", " ", "\x00", "\x01\x02", "\x7f", "|", "||", "a || b", "*", "a b", "%", "%RETRY%", "T0", "g0", "KEYS",
    "POP_CK", "__SHARDINGKEY", "1 2 3 4", "K1 g0 T0 0 0 0 0 0 0 0 0", "é" * 40, "\U0001f600", "٣", "/../..",
    "a" * 127, "b" * 256, "c" * 20_000, "9" * 5_000, "x" * 70_000, "\n", "\u2028", "a = 1", "a > ", "((((a",
    "TAGS IS NOT NULL", "a BETWEEN 1 AND 2", "1.2.3.4", "[::1]", "host name", "\ufeff", "%s%n", "-1", "1e9",
)  # fmt: skip
FOREIGN_HANDLES: Final = (
    "0 0 0 0 0 0 0 0", "164 1700000000000 60000 1 0 broker-a 0 5",
    "1 1700000000000 60000 0 0 stock-broker 3 77 1234", "AAECAwQFBgcICQ==", "K2 g0 T0 0 x", "K1  T0 0 x",
)  # fmt: skip
"""Those of RocketMQ's proxy, of another version, and of no server."""
RAW: Final = (
    b"\xff", b"\x00", b"\x08", b"\x0a\xff\xff\xff\xff\x0f", b"\x80" * 11, b"\x0b" * 300, b"\x0b\x0c", b"\x0c",
    b"\x0a\x02\xc3\x28", b"\xed\xa0\x80", b"\x9a\x06\x04ufo!", b"\x0d", b"\x09\x01", b"\x07", b"\x0f",
)  # fmt: skip
METADATA: Final[tuple[tuple[str, str], ...]] = (("x-mq-client-id", "fuzz"), ("x-mq-language", "JAVA"))
ODD_METADATA: Final[tuple[tuple[tuple[str, str | bytes], ...], ...]] = (
    (),
    (("x-mq-client-id", ""),),
    (("x-mq-client-id", "a" * 256),),
    (("x-mq-client-id", "a"), ("x-mq-client-id", "b")),
    (("x-mq-client-id-bin", b"\xff\x00"),),
    (*METADATA, ("x-mq-namespace", "ns")),
    (*METADATA, ("x-mq-namespace", "%% !")),
    (*METADATA, ("x-mq-namespace", "n" * 300)),
    (("x-mq-client-id", "node"), ("x-mq-language", "HTTP")),
    (*METADATA, ("authorization", "MQv2-HMAC-SHA1 Credential=, SignedHeaders=x-mq-date-time, Signature=")),
    (*METADATA, ("authorization", "Basic eDp5"), ("x-mq-date-time", "yesterday")),
    (*METADATA, ("x-mq-trace-bin", b"\x00" * 900)),
    (*METADATA, ("grpc-accept-encoding", "gzip, br, nothing")),
)
DELIVERY_S: Final = 1_700_000_000
"""Long ago: delivered at once."""
WEIGHTS: Final[Mapping[str, int]] = {
    "SendMessage": 30, "ReceiveMessage": 16, "AckMessage": 24, "ChangeInvisibleDuration": 16, "Telemetry": 12,
    "EndTransaction": 16, "ForwardMessageToDeadLetterQueue": 8, "RecallMessage": 8, "QueryRoute": 8,
    "QueryAssignment": 8, "Heartbeat": 4, "NotifyClientTermination": 3, "PullMessage": 4, "UpdateOffset": 2,
    "GetOffset": 2, "QueryOffset": 2, "SyncLiteSubscription": 1,
}  # fmt: skip
ADMIN_METHODS: Final = (
    "apache.rocketmq.v2.Admin/ChangeLogLevel", "apache.rocketmq.v2.Admin/",
    "apache.rocketmq.v2.MessagingService/NoSuch", "apache.rocketmq.v1.MessagingService/SendMessage", "x/y",
)  # fmt: skip
KINDS: Final = (
    *(pb.NORMAL,) * 6, *(pb.TRANSACTION,) * 3, *(pb.DELAY,) * 2, pb.FIFO, pb.PRIORITY, pb.LITE,
)  # fmt: skip
STRANGE_METHOD: Final = 0.01
LATE: Final = 0.04


class Given(msgspec.Struct):
    """What the server has given out: the newest KEPT of each. in_an_hour_s: a time for delayed messages."""

    receipts: deque[tuple[str, str, str]]
    transactions: deque[tuple[str, str]]
    recalls: deque[tuple[str, str]]
    in_an_hour_s: int


def nothing_given() -> Given:
    """Returns what there is at first."""
    return Given(deque(maxlen=KEPT), deque(maxlen=KEPT), deque(maxlen=KEPT), wall_ms() // 1_000 + 3_600)


class Input(msgspec.Struct, frozen=True):
    """One call. path: of the method. frames: one, or those of a Telemetry stream. leaves: how the client ends
    a stream: it is cancelled, ended, or not read."""

    method: str
    path: str
    frames: tuple[bytes, ...]
    metadata: tuple[tuple[str, str | bytes], ...]
    timeout_s: float
    leaves: str = "reads"


def class_of(name: str) -> Any:
    """Returns the class of a message."""
    return getattr(pb, name)


class Maker:
    """Makes the inputs of one seed."""

    def __init__(self, seed: str, given: Given) -> None:
        self._seed, self._given = seed, given

    def make(self, number: int) -> Input:
        """Returns the input with this number."""
        random = Random(f"{self._seed} {number}")
        (method,) = random.choices(list(WEIGHTS), list(WEIGHTS.values()))
        path = f"apache.rocketmq.v2.MessagingService/{method}"
        count = random.choice((0, 1, 1, 2, 3, 40)) if method == "Telemetry" else 1
        frames = tuple(self._frame(random, method, number) for _ in range(count))
        metadata = METADATA if random.random() < 0.9 else random.choice(ODD_METADATA)
        timeout_s = random.choice((0.001, 0.01, 0.05)) if random.random() < LATE else 0.5
        leaves = random.choice(("reads", "reads", "cancels", "ends", "vanishes"))
        if random.random() < STRANGE_METHOD:
            method, path, frames = "strange", random.choice(ADMIN_METHODS), (frames or (b"",))
        return Input(method, path, frames, metadata, timeout_s, leaves)

    def _frame(self, random: Random, method: str, number: int) -> bytes:
        kind = random.random()
        if kind < 0.02:
            return random.randbytes(random.choice((0, 1, 5, 200, 5_000)))
        if kind < 0.05:
            other = random.choice(list(WEIGHTS))
            return serialized(VALID[other](random, self._given, number))
        message = VALID[method](random, self._given, number)
        if kind < 0.70:
            for _ in range(random.choice((0, 0, 1, 1, 1, 2, 4))):
                disturb(random, message)
        data = serialized(message)
        if kind < 0.70:
            return data
        if kind < 0.95:
            return damaged(random, data)
        return nested(random, data)


def serialized(message: Any) -> bytes:
    """Returns the bytes; none: protobuf itself refuses to write them."""
    try:
        return bytes(message.SerializeToString())
    except EncodeError:
        return b""


# -- valid requests --------------------------------------------------------------------------------------


def _topic(random: Random) -> pb.Resource:
    return pb.Resource(name=random.choice(TOPICS[:2] if random.random() < 0.7 else TOPICS))


def _group(random: Random) -> pb.Resource:
    return pb.Resource(name=random.choice(GROUPS[:2] if random.random() < 0.8 else GROUPS))


def _endpoints(random: Random) -> pb.Endpoints:
    addresses = [pb.Address(host=f"10.0.0.{each}", port=8081) for each in range(random.choice((0, 1, 1, 2)))]
    return pb.Endpoints(scheme=pb.IPv4, addresses=addresses)


def _queue(random: Random, topic: pb.Resource | None = None, *, id: int | None = None) -> pb.MessageQueue:
    name = BROKER if random.random() < 0.97 else "another"
    return pb.MessageQueue(
        topic=topic or _topic(random),
        id=random.choice((-1, -1, 0, 3)) if id is None else id,
        broker=pb.Broker(name=name),
    )


def _filter(random: Random) -> pb.FilterExpression:
    if random.random() < 0.8:
        return pb.FilterExpression(type=pb.TAG, expression=random.choice(("*", "*", "", "a", "a || b")))
    return pb.FilterExpression(type=pb.SQL, expression=random.choice(("a = 1", "TAGS = 'a'", "x", "")))


def _message(random: Random, given: Given, topic: pb.Resource, number: int) -> pb.Message:
    system = pb.SystemProperties(
        message_id=f"01{number:032X}",
        born_timestamp=timestamp(1_700_000_000_000),
        born_host=random.choice(("127.0.0.1", "a-host")),
        body_encoding=pb.IDENTITY,
        keys=random.choice(((), ("k",), ("k", "l"))),
    )
    if random.random() < 0.5:
        system.tag = random.choice(("a", "b", "c"))
    kind = random.choice(KINDS)
    if random.random() < 0.3:
        system.message_type = random.choice((kind, kind, *KINDS))
    if kind == pb.FIFO:
        system.message_group = random.choice("xyz")
    elif kind == pb.DELAY:
        times_s = DELIVERY_S, given.in_an_hour_s, given.in_an_hour_s, 4_000_000_000
        system.delivery_timestamp.seconds = random.choice(times_s)
    elif kind == pb.TRANSACTION:
        system.message_type = kind
    elif kind == pb.PRIORITY:
        system.priority = random.randrange(9)
    elif kind == pb.LITE and random.random() < 0.3:
        system.lite_topic = "l"
    users = {f"p{each}": "v" for each in range(random.choice((*(0,) * 12, 1, 3, 200)))}
    body = random.choice((*(b"x",) * 12, b"body" * 9, b"", b"y" * 3_000))
    return pb.Message(topic=topic, user_properties=users, system_properties=system, body=body)


def _send(random: Random, given: Given, number: int) -> pb.SendMessageRequest:
    topic = _topic(random)
    count = random.choice((*(1,) * 12, 2, 3, 0, 33))
    return pb.SendMessageRequest(messages=[_message(random, given, topic, number) for _ in range(count)])


def _receive(random: Random, given: Given, number: int) -> pb.ReceiveMessageRequest:
    request = pb.ReceiveMessageRequest(
        group=_group(random),
        message_queue=_queue(random),
        filter_expression=_filter(random),
        batch_size=random.choice((1, 8, 32)),
        auto_renew=random.random() < 0.5,
        long_polling_timeout=duration(random.choice((0, 5, 20_000))),
    )
    if not request.auto_renew:
        request.invisible_duration.CopyFrom(duration(random.choice((10_000, 10_000, 60_000, 1))))
    if random.random() < 0.5:
        request.attempt_id = random.choice("ab")
    return request


def _receipt(random: Random, given: Given) -> tuple[str, str, str]:
    """Returns group, topic and handle: as given out, damaged, of another group, or foreign."""
    group, topic, handle = random.choice(given.receipts) if given.receipts else ("g0", "T0", "")
    kind = random.random()
    if kind < 0.5:
        return group, topic, handle
    if kind < 0.75:
        damaged_handle = damage_text(random, handle).encode("utf-8", "replace").decode()
        return group, topic, damaged_handle[:90_000]
    if kind < 0.85:
        fields = handle.split(" ")
        fields[random.randrange(len(fields))] = str(random.choice(INTEGERS))
        return group, topic, " ".join(fields)
    if kind < 0.92:
        return random.choice(GROUPS), random.choice(TOPICS), handle
    return group, topic, random.choice(FOREIGN_HANDLES)


def _ack(random: Random, given: Given, number: int) -> pb.AckMessageRequest:
    group, topic, handle = _receipt(random, given)
    handles = [handle, *(_receipt(random, given)[2] for _ in range(random.choice((0, 0, 0, 2))))]
    return pb.AckMessageRequest(
        group=pb.Resource(name=group),
        topic=pb.Resource(name=topic),
        entries=[pb.AckMessageEntry(message_id="m", receipt_handle=each) for each in handles],
    )


def _change(random: Random, given: Given, number: int) -> pb.ChangeInvisibleDurationRequest:
    group, topic, handle = _receipt(random, given)
    return pb.ChangeInvisibleDurationRequest(
        group=pb.Resource(name=group),
        topic=pb.Resource(name=topic),
        receipt_handle=handle,
        invisible_duration=duration(random.choice((0, 1, 1_000, 30_000))),
        suspend=random.random() < 0.3,
    )


def _forward(random: Random, given: Given, number: int) -> pb.ForwardMessageToDeadLetterQueueRequest:
    group, topic, handle = _receipt(random, given)
    return pb.ForwardMessageToDeadLetterQueueRequest(
        group=pb.Resource(name=group), topic=pb.Resource(name=topic), receipt_handle=handle, message_id="m"
    )


def _end(random: Random, given: Given, number: int) -> pb.EndTransactionRequest:
    topic, text = random.choice(given.transactions) if given.transactions else ("T0", "")
    kind = random.random()
    if kind < 0.3:
        text = damage_text(random, text).encode("utf-8", "replace").decode()[:90_000]
    elif kind < 0.5:
        fields = (text or "broker-a 0 0 m").split(" ")
        fields[random.randrange(len(fields))] = str(random.choice(INTEGERS))
        text = " ".join(fields)
    resolution = random.choice((pb.COMMIT, pb.ROLLBACK, pb.TRANSACTION_RESOLUTION_UNSPECIFIED))
    return pb.EndTransactionRequest(
        topic=pb.Resource(name=topic), message_id="m", transaction_id=text, resolution=resolution
    )


def _recall(random: Random, given: Given, number: int) -> pb.RecallMessageRequest:
    topic, handle = random.choice(given.recalls) if given.recalls else ("T0", "x")
    if random.random() < 0.5:
        handle = damage_text(random, handle).encode("utf-8", "replace").decode()[:90_000]
    return pb.RecallMessageRequest(topic=pb.Resource(name=topic), recall_handle=handle)


def _telemetry(random: Random, given: Given, number: int) -> pb.TelemetryCommand:
    kind = random.random()
    if kind < 0.1:
        return pb.TelemetryCommand(
            status=pb.Status(code=pb.OK), thread_stack_trace=pb.ThreadStackTrace(nonce="n")
        )
    if kind < 0.2:
        return pb.TelemetryCommand(
            status=pb.Status(code=pb.FAILED_TO_CONSUME_MESSAGE),
            verify_message_result=pb.VerifyMessageResult(nonce="n"),
        )
    settings = pb.Settings(access_point=_endpoints(random), request_timeout=duration(3_000))
    settings.user_agent.language = random.choice((pb.JAVA, pb.GOLANG, pb.RUST))
    if random.random() < 0.5:
        settings.client_type = pb.PRODUCER
        settings.publishing.topics.extend(_topic(random) for _ in range(random.choice((0, 1, 3, 300))))
    else:
        settings.client_type = random.choice((pb.PUSH_CONSUMER, pb.SIMPLE_CONSUMER, pb.LITE_PUSH_CONSUMER))
        settings.subscription.group.CopyFrom(_group(random))
        entry = pb.SubscriptionEntry(topic=_topic(random), expression=_filter(random))
        settings.subscription.subscriptions.extend([entry] * random.choice((0, 1, 2, 500)))
        settings.subscription.long_polling_timeout.CopyFrom(duration(5_000))
    if random.random() < 0.1:
        settings.client_properties.update({f"p{each}": "v" for each in range(random.choice((1, 40)))})
    return pb.TelemetryCommand(settings=settings)


VALID: Final[Mapping[str, Callable[[Random, Given, int], Any]]] = {
    "SendMessage": _send,
    "ReceiveMessage": _receive,
    "AckMessage": _ack,
    "ChangeInvisibleDuration": _change,
    "ForwardMessageToDeadLetterQueue": _forward,
    "EndTransaction": _end,
    "RecallMessage": _recall,
    "Telemetry": _telemetry,
    "QueryRoute": lambda random, *_: pb.QueryRouteRequest(topic=_topic(random), endpoints=_endpoints(random)),
    "QueryAssignment": lambda random, *_: pb.QueryAssignmentRequest(
        topic=_topic(random), group=_group(random), endpoints=_endpoints(random)
    ),
    "Heartbeat": lambda random, *_: pb.HeartbeatRequest(group=_group(random), client_type=pb.PUSH_CONSUMER),
    "NotifyClientTermination": lambda random, *_: pb.NotifyClientTerminationRequest(group=_group(random)),
    "PullMessage": lambda random, *_: pb.PullMessageRequest(
        group=_group(random),
        message_queue=_queue(random, id=random.choice((0, 0, 3))),
        offset=random.choice((0, 1, 3)),
        batch_size=8,
        filter_expression=_filter(random),
        long_polling_timeout=duration(random.choice((0, 20))),
    ),
    "UpdateOffset": lambda random, *_: pb.UpdateOffsetRequest(
        group=_group(random), message_queue=_queue(random, id=0), offset=3
    ),
    "GetOffset": lambda random, *_: pb.GetOffsetRequest(
        group=_group(random), message_queue=_queue(random, id=0)
    ),
    "QueryOffset": lambda random, *_: pb.QueryOffsetRequest(
        message_queue=_queue(random, id=0), query_offset_policy=random.choice((pb.BEGINNING, pb.END))
    ),
    "SyncLiteSubscription": lambda random, *_: pb.SyncLiteSubscriptionRequest(
        topic=_topic(random), group=_group(random), lite_topic_set=["l"]
    ),
}


# -- what is wrong with them -----------------------------------------------------------------------------


def disturb(random: Random, message: Any) -> None:
    """Changes one field somewhere in the message to a value that its type permits."""
    fields = message.DESCRIPTOR.fields
    field = random.choice(fields)
    for _ in range(6):
        if field.message_type is None or random.random() < 0.2:
            break
        inner = _inner(random, message, field)
        if inner is None:
            break
        message = inner
        if not message.DESCRIPTOR.fields:
            return
        field = random.choice(message.DESCRIPTOR.fields)
    _put(random, message, field)


def _inner(random: Random, message: Any, field: FieldDescriptor) -> Any:
    """Returns the message that is the field's value, or one of several; None: there is none."""
    if field.message_type.GetOptions().map_entry:
        return None
    value = getattr(message, field.name)
    if not field.is_repeated:
        return value
    return random.choice(value) if value else None


def _put(random: Random, message: Any, field: FieldDescriptor) -> None:
    if random.random() < 0.2:
        message.ClearField(field.name)
    elif field.message_type is not None and field.message_type.GetOptions().map_entry:
        count = random.choice((1, 3, 129))
        getattr(message, field.name).update(
            {f"{random.choice(TEXTS)[:300]}{each or ''}": random.choice(TEXTS) for each in range(count)}
        )
    elif field.is_repeated:
        values = getattr(message, field.name)
        if field.message_type is not None:
            values.extend(list(values)[:1] * random.choice((1, 5, 1_100)))
        else:
            values.extend(_value(random, field) for _ in range(random.choice((1, 3, 40))))
    elif field.message_type is not None:
        getattr(message, field.name).SetInParent()
    else:
        setattr(message, field.name, _value(random, field))


def _value(random: Random, field: FieldDescriptor) -> Any:
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_STRING:
            text = random.choice(TEXTS)
            return text.encode() if field.type == FieldDescriptor.TYPE_BYTES else text
        case FieldDescriptor.CPPTYPE_BOOL:
            return random.random() < 0.5
        case FieldDescriptor.CPPTYPE_FLOAT | FieldDescriptor.CPPTYPE_DOUBLE:
            return random.choice((0.0, -1.0, float("nan"), float("inf"), 1e38))
        case FieldDescriptor.CPPTYPE_INT32 | FieldDescriptor.CPPTYPE_ENUM:
            return max(-(2**31), min(2**31 - 1, random.choice(INTEGERS)))
        case _:
            return random.choice(INTEGERS)


def damaged(random: Random, data: bytes) -> bytes:
    """Returns bytes that are nearly the message."""
    match random.randrange(5):
        case 0:
            at = random.randrange(len(data) + 1)
            return data[:at] + random.choice(RAW) + data[at:]
        case 1:
            return data + data[: random.randrange(len(data) + 1)]
        case 2:  # a text that is no UTF-8
            return data.replace(random.choice((b"T0", b"g0", b"a", b"m")), random.choice((b"\xff", b"\xc3(")))
        case 3:
            return data[: random.randrange(len(data) + 1)]
        case _:
            return damage(random, data, big=0.005)


def nested(random: Random, data: bytes) -> bytes:
    """Adds a field that nobody reads, with a message in a message in a message."""
    depth = random.choice((50, 99, 101, 500))
    if random.random() < 0.5:
        return data + b"\xa3\x06" * depth + b"\xa4\x06" * depth
    inner = b""
    for _ in range(depth):
        inner = b"\xa2\x06" + _varint(len(inner)) + inner
    return data + inner


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])
