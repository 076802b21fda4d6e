"""The requests by which a broker registers with a name server (103) and unregisters (104).

A topic table that does not fit into one frame is sent in parts, as RocketMQ's enableSplitRegistration does.
RocketMQ's name servers treat each part as a separate registration, and ignore changes of known topics in a
registration whose DataVersion they know. So consecutive parts have different versions, and only the last has
that of the table (RocketMQ increments its DataVersion with each part). KeelMQ's name servers get the number
of the part, and remove topics only after the last one (deleteTopicWithBrokerRegistration).
"""

import asyncio
import zlib
from collections.abc import Iterator, Sequence

import msgspec

from broker.metadata.encoded_rows import EncodedRows
from keelmq.remoting.address_text import parse_listeners, split_list
from keelmq.remoting.body import body_bytes
from keelmq.remoting.frame import FRAME_BYTES_MAX
from keelmq.remoting.operations.route import (
    DataVersion,
    RegisterBrokerBody,
    RegisterBrokerRequest,
    RegisterBrokerResponse,
    TopicConfigSerializeWrapper,
    UnregisterBrokerRequest,
)

ONE_REQUEST_BYTES_MAX = FRAME_BYTES_MAX - 128 * 1024
"""A body up to this size is sent whole. The rest of the frame is for the header, whose names and addresses an
operator has set, and its signature."""
PART_BYTES_MAX = 1024 * 1024
FIRST_PART_TOPICS_MIN = 2
"""RocketMQ's name servers refuse an unknown broker with one topic (code 1)."""
SMALL_BYTES = 256 * 1024
"""Up to this size, the loop makes a body itself; a thread makes a larger one."""

_NO_TOPICS = b'"topicConfigTable":{}'


class RegisteredBroker(msgspec.Struct, frozen=True, kw_only=True):
    """A broker as name servers know it. address: host:port that is announced to clients. ha_address:
    host:port that is announced to slaves; empty without controller mode. broker_id: 0 of a master.
    forwards_sends: as a slave it forwards messages of producers, and may be shown as an alias of its
    master. advertised_listeners: its address at each further listener, as a text."""

    cluster_name: str
    broker_name: str
    address: str
    ha_address: str
    broker_id: int
    forwards_sends: bool = False
    advertised_listeners: str = ""


class RegistrationBody(msgspec.Struct, frozen=True):
    """The body of one 103. crc32: of the body, without its sign bit. part_number: from 1."""

    raw: bytes
    crc32: int
    part_number: int = 1
    part_count: int = 1


class RegistrationBodies:
    """Makes the bodies once for all name servers, until the topics change."""

    def __init__(self) -> None:
        self._made_of: tuple[EncodedRows, int, bool] | None = None
        self._bodies: Sequence[RegistrationBody] = ()
        self._turn = asyncio.Lock()

    async def of(self, topics: EncodedRows, *, part_topics: int, splits: bool) -> Sequence[RegistrationBody]:
        """Returns the bodies of this version of the table. part_topics: splitRegistrationSize. splits:
        enableSplitRegistration; without it, a table is split only if it does not fit into one request. Does
        not wait if the table is small, or has not changed."""
        async with self._turn:
            made_of = topics, part_topics, splits
            if (
                self._made_of is None
                or self._made_of[0] is not topics
                or self._made_of[1:] != (part_topics, splits)
            ):
                if topics.text_bytes <= SMALL_BYTES:
                    self._bodies = bodies_of(topics, part_topics=part_topics, splits=splits)
                else:
                    self._bodies = await asyncio.to_thread(
                        bodies_of, topics, part_topics=part_topics, splits=splits
                    )
                self._made_of = made_of
            return self._bodies


def bodies_of(topics: EncodedRows, *, part_topics: int, splits: bool) -> Sequence[RegistrationBody]:
    """Returns one body, or those of the parts; see RegistrationBodies.of()."""
    if not splits and fits_one_request(topics):
        return (_body(topics.version, topics.texts, 1, 1),)
    parts = list(_parts(topics.texts, part_topics))
    count, version = len(parts), topics.version
    return tuple(
        _body(
            version.model_copy(update={"timestamp": version.timestamp - (count - number)}),
            texts,
            number,
            count,
        )
        for number, texts in enumerate(parts, 1)
    )


def fits_one_request(topics: EncodedRows, more_bytes: int = 0) -> bool:
    """Returns whether the table, with more_bytes in addition, can be registered in one request."""
    return topics.text_bytes + more_bytes <= ONE_REQUEST_BYTES_MAX


def registration_of(broker: RegisteredBroker, body: RegistrationBody) -> RegisterBrokerRequest:
    """Returns the header of 103 for a body."""
    is_part = body.part_count > 1
    return RegisterBrokerRequest(
        broker_name=broker.broker_name,
        broker_addr=broker.address,
        cluster_name=broker.cluster_name,
        ha_server_addr=broker.ha_address,
        broker_id=broker.broker_id,
        enable_acting_master=False,
        body_crc32=body.crc32,
        forwards_sends=broker.forwards_sends or None,
        advertised_listeners=broker.advertised_listeners or None,
        part_number=body.part_number if is_part else None,
        part_count=body.part_count if is_part else None,
    )


def unregistration_of(broker: RegisteredBroker) -> UnregisterBrokerRequest:
    """Returns the header of 104, which has no body."""
    return UnregisterBrokerRequest(
        broker_name=broker.broker_name,
        broker_addr=broker.address,
        cluster_name=broker.cluster_name,
        broker_id=broker.broker_id,
    )


def missing_listeners(request: RegisterBrokerRequest, answer: RegisterBrokerResponse) -> list[str]:
    """Returns the listeners of a broker that the name server does not have; RocketMQ's have none."""
    present = split_list(answer.listeners or "")
    return [name for name in parse_listeners(request.advertised_listeners or "") if name not in present]


def _parts(texts: Sequence[bytes], topics_max: int) -> Iterator[Sequence[bytes]]:
    """Divides the texts: at most topics_max in a part, and PART_BYTES_MAX unless one text is longer. One part
    if there are no texts."""
    start = size = 0
    for at, text in enumerate(texts):
        count = at - start
        full = count >= topics_max or size + len(text) > PART_BYTES_MAX
        if full and count >= (1 if start else FIRST_PART_TOPICS_MIN):
            yield texts[start:at]
            start, size = at, 0
        size += len(text) + 1
    yield texts[start:]


def _body(version: DataVersion, texts: Sequence[bytes], number: int, count: int) -> RegistrationBody:
    wrapper = TopicConfigSerializeWrapper(data_version=version, mapping_data_version=DataVersion())
    frame = body_bytes(RegisterBrokerBody(topic_config_serialize_wrapper=wrapper))
    head, tail = frame.split(_NO_TOPICS)
    raw = b'%b"topicConfigTable":{%b}%b' % (head, b",".join(texts), tail)
    return RegistrationBody(raw, zlib.crc32(raw) & 0x7FFFFFFF, number, count)
