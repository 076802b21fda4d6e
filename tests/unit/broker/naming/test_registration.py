"""The bodies of 103: one while the topics fit, and parts of which a name server takes each as a change."""

import json
import zlib
from typing import Any

import pytest

from broker.metadata.encoded_rows import EncodedRows
from broker.naming import registration
from broker.naming.registration import (
    ONE_REQUEST_BYTES_MAX,
    RegisteredBroker,
    RegistrationBodies,
    RegistrationBody,
    bodies_of,
    registration_of,
)
from keelmq.remoting.body import body_bytes
from keelmq.remoting.command import RemotingCommand, encode, header_fields
from keelmq.remoting.frame import FRAME_BYTES_MAX
from keelmq.remoting.operations.route import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigSerializeWrapper,
)

VERSION = DataVersion(counter=7, state_version=2, timestamp=1_700_000_000_000)
BROKER = RegisteredBroker(cluster_name="c", broker_name="b", address="h:1", ha_address="h:2", broker_id=0)


def topics(count: int) -> EncodedRows:
    rows = {f"T{number:03}": TopicConfig(topic_name=f"T{number:03}") for number in range(count)}
    texts = [b'"%b":%b' % (name.encode(), body_bytes(row)) for name, row in rows.items()]
    return EncodedRows(VERSION, tuple(rows), texts, sum(len(text) + 1 for text in texts))


def wrapper_of(body: RegistrationBody) -> Any:
    return json.loads(body.raw)["topicConfigSerializeWrapper"]


def test_topics_that_fit_are_sent_as_ever() -> None:
    rows = {f"T{number:03}": TopicConfig(topic_name=f"T{number:03}") for number in range(5)}
    wrapper = TopicConfigSerializeWrapper(
        topic_config_table=rows, data_version=VERSION, mapping_data_version=DataVersion()
    )
    (body,) = bodies_of(topics(5), part_topics=2, splits=False)
    assert body.raw == body_bytes(RegisterBrokerBody(topic_config_serialize_wrapper=wrapper))
    header = header_fields(registration_of(BROKER, body))
    assert header == {
        "brokerName": "b",
        "brokerAddr": "h:1",
        "clusterName": "c",
        "haServerAddr": "h:2",
        "brokerId": "0",
        "enableActingMaster": "false",
        "compressed": "false",
        "bodyCrc32": str(zlib.crc32(body.raw) & 0x7FFFFFFF),
    }


@pytest.mark.parametrize(("count", "sizes"), [(0, [0]), (1, [1]), (2, [2]), (5, [2, 2, 1]), (6, [2, 2, 2])])
def test_parts_hold_every_topic_once(count: int, sizes: list[int]) -> None:
    parts = bodies_of(topics(count), part_topics=2, splits=True)
    tables = [wrapper_of(part)["topicConfigTable"] for part in parts]
    assert [len(table) for table in tables] == sizes
    assert sorted(name for table in tables for name in table) == list(topics(count).names)
    for part in parts:
        assert part.crc32 == zlib.crc32(part.raw) & 0x7FFFFFFF


def test_no_two_parts_in_a_row_have_one_version() -> None:
    """RocketMQ's name server ignores a changed topic in a registration whose DataVersion it knows. The last
    part has the version of the table, and the next round begins with another one."""
    versions = [
        DataVersion.model_validate(wrapper_of(part)["dataVersion"])
        for part in bodies_of(topics(7), part_topics=2, splits=True)
    ]
    assert len(set(versions)) == 4 and versions[-1] == VERSION
    assert {version.state_version for version in versions} == {2}


def test_a_table_that_does_not_fit_is_split_anyway(monkeypatch: pytest.MonkeyPatch) -> None:
    size = topics(5).text_bytes
    monkeypatch.setattr(registration, "ONE_REQUEST_BYTES_MAX", size)
    assert len(bodies_of(topics(5), part_topics=2, splits=False)) == 1
    parts = bodies_of(topics(6), part_topics=2, splits=False)
    header = registration_of(BROKER, parts[1])
    assert (header.part_number, header.part_count) == (2, 3)


def test_long_names_make_smaller_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first has two topics: RocketMQ's name servers refuse an unknown broker with one."""
    monkeypatch.setattr(registration, "PART_BYTES_MAX", 10)
    parts = bodies_of(topics(5), part_topics=800, splits=True)
    assert [len(wrapper_of(part)["topicConfigTable"]) for part in parts] == [2, 1, 1, 1]


def test_the_largest_request_fits_into_a_frame() -> None:
    texts = [b'"%07d":%b' % (number, b"1" * 991) for number in range(ONE_REQUEST_BYTES_MAX // 1_002 + 1)]
    while sum(len(text) + 1 for text in texts) > ONE_REQUEST_BYTES_MAX:
        texts.pop()
    table = EncodedRows(VERSION, (), texts, sum(len(text) + 1 for text in texts))
    (body,) = bodies_of(table, part_topics=800, splits=False)
    fields = header_fields(registration_of(BROKER, body)) | {"signature": "s" * 60_000}
    assert len(encode(RemotingCommand(103, ext_fields=fields, body=body.raw))) <= FRAME_BYTES_MAX


async def test_all_name_servers_get_one_body(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each made its own, in the event loop. A large one is made by a thread."""
    for small_bytes in (registration.SMALL_BYTES, 0):
        monkeypatch.setattr(registration, "SMALL_BYTES", small_bytes)
        bodies, table = RegistrationBodies(), topics(5)
        first = await bodies.of(table, part_topics=2, splits=False)
        assert await bodies.of(table, part_topics=2, splits=False) is first
        assert len(await bodies.of(table, part_topics=2, splits=True)) == 3
        assert await bodies.of(topics(5), part_topics=2, splits=False) == first
