"""Whole tables in answers: 21 and 201 in pages when they do not fit into a frame, 43 refused then."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from broker.app.broker import Broker
from broker.metadata import handlers, offsets, pages
from broker.metadata.encoded_rows import EncodedRows
from broker.metadata.groups import Group
from broker.metadata.pages import page_of
from keelmq.client.admin import AdminClient
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.frame import FRAME_BYTES_MAX
from keelmq.remoting.operation import CommandError, Empty, Failed, Ok, Operation, Wire
from keelmq.remoting.operations.broker import GET_ALL_TOPIC_CONFIG
from keelmq.remoting.operations.broker_metadata import (
    GET_ALL_CONSUMER_OFFSET,
    GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    GroupPageRequest,
    SubscriptionGroupConfig,
)
from keelmq.remoting.operations.route import DataVersion, TopicConfig, TopicPageRequest
from keelmq.remoting.paged_table import PAGES_MAX, PagedTable
from tests.unit.broker.app.test_broker_app import config

VERSION = DataVersion(counter=3)
VERSION_TEXT = '{"counter":3,"stateVersion":0,"timestamp":0}'


def encoded(count: int) -> EncodedRows:
    names = tuple(f"T{number:02}" for number in range(count))
    texts = [b'"%b":1' % name.encode() for name in names]
    return EncodedRows(VERSION, names, texts, sum(len(text) + 1 for text in texts))


def names_of(table: EncodedRows, **asked: Any) -> list[str]:
    page = page_of(table, "rows", **{"seq": None, "count_max": None, "version": None, **asked})
    body = page.body(b'{"a":1,"rows":{},"z":{}}', b"rows")
    assert page.total == (None if len(page.texts) == len(table.names) else len(table.names))
    return list(json.loads(body)["rows"])


def test_a_table_that_fits_is_sent_whole() -> None:
    """Also to those who ask for a page: RocketMQ's readers take an answer without a total for the table."""
    assert names_of(encoded(20), seq=5, count_max=3) == list(encoded(20).names)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "ANSWER_BYTES_MAX", 80)  # of nine rows


@pytest.mark.usefixtures("small")
def test_pages_follow_each_other_while_the_version_is_the_same() -> None:
    table = encoded(20)
    assert names_of(table, seq=0, count_max=5) == list(table.names[:5])
    assert names_of(table, seq=5, count_max=5, version=VERSION_TEXT) == list(table.names[5:10])
    for version in (None, "", "{", VERSION_TEXT.replace("3", "4")):
        assert names_of(table, seq=5, count_max=5, version=version) == list(table.names[:5])
    assert names_of(table, seq=-5, count_max=5, version=VERSION_TEXT) == list(table.names[:5])
    assert names_of(table, seq=99, count_max=5, version=VERSION_TEXT) == []


@pytest.mark.usefixtures("small")
def test_no_page_leaves_one_row() -> None:
    """RocketMQ's readers ask for no more when one row is missing (#11041)."""
    assert names_of(encoded(16), seq=10, count_max=5, version=VERSION_TEXT) == list(encoded(16).names[10:])


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("asked", [{}, {"seq": 0}, {"seq": 0, "count_max": 0}, {"seq": 0, "count_max": 15}])
def test_what_does_not_fit_is_refused_with_the_limit(asked: dict[str, int]) -> None:
    with pytest.raises(CommandError, match="at most 80") as refused:
        names_of(encoded(20), **asked)
    assert refused.value.code == ResponseCode.SYSTEM_ERROR


def test_a_reader_begins_again_with_a_new_version() -> None:
    table, other = PagedTable[int](), DataVersion(counter=4)
    assert (table.seq, table.version_text) == (0, None)
    assert not table.take({"a": 1, "b": 1}, VERSION, 4)
    assert (table.seq, table.version_text) == (2, VERSION_TEXT)
    assert not table.take({"a": 2, "c": 2}, other, 3)
    assert table.take({"d": 2}, other, 3)
    assert table.rows == {"a": 2, "c": 2, "d": 2}
    assert table.take({"e": 3}, other, None) and table.rows == {"e": 3}, "a server without pages"


def test_a_reader_does_not_ask_for_ever() -> None:
    with pytest.raises(ValueError, match="1 of 2 rows after 2 pages"):
        _ = [table := PagedTable[int](), table.take({"a": 1}, VERSION, 2), table.take({}, VERSION, 2)]
    table = PagedTable[int]()
    with pytest.raises(ValueError, match=f"{PAGES_MAX} pages"):
        for number in range(PAGES_MAX + 1):
            table.take({"a": 1}, DataVersion(counter=number), 2)


# -- a broker --------------------------------------------------------------------------------------------


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with Broker(config(tmp_path)) as broker:
        topics, groups = broker.topics, broker.metadata.groups
        topics.change({f"T{number}": TopicConfig(topic_name=f"T{number}") for number in range(30)})
        groups.change(
            {
                f"G{number}": Group(SubscriptionGroupConfig(group_name=f"G{number}"), {"T1": number % 2})
                for number in range(30)
            }
        )
        for number in range(30):
            broker.metadata.offsets.commit(f"G{number}", "T1", 3, number)
        yield broker


async def ask(broker: Broker, operation: Operation[Any, Any], header: Wire) -> Ok[Any] | Failed:
    client = RemotingClient()
    outcome = await client.call(broker.address, operation, header)
    await client.close()
    assert isinstance(outcome, Ok | Failed)
    return outcome


async def test_whole_tables_have_no_header_field(broker: Broker) -> None:
    """RocketMQ's slaves of 5.3.4 to 5.4 take any field for that of a page, and stop their synchronization."""
    client = RemotingClient()
    for operation in (GET_ALL_TOPIC_CONFIG, GET_ALL_SUBSCRIPTIONGROUP_CONFIG):
        outcome = await client.call(broker.address, operation, Empty())
        assert isinstance(outcome, Ok)
        assert outcome.header.model_dump(exclude_none=True) == {}
    groups = outcome.body
    assert groups.subscription_group_table["G7"].group_name == "G7"
    assert groups.forbidden_table["G7"] == {"T1": 1}
    assert groups.data_version == broker.metadata.groups.data_version
    await client.close()


async def test_our_admin_client_reads_pages(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "ANSWER_BYTES_MAX", 4_000)
    for module in ("keelmq.client.admin.brokers", "keelmq.client.admin.groups"):
        monkeypatch.setattr(f"{module}.PAGE_ROWS", 7)
    async with AdminClient() as admin:
        assert await admin.brokers.topics(broker.address) == broker.topics.table.rows
        groups = await admin.groups.list_groups(broker.address)
    assert groups == {name: row.config for name, row in broker.metadata.groups.table.rows.items()}
    for operation, page in (
        (GET_ALL_TOPIC_CONFIG, TopicPageRequest(topic_seq=0, max_topic_num=1_000)),
        (GET_ALL_SUBSCRIPTIONGROUP_CONFIG, GroupPageRequest(group_seq=0, max_group_num=1_000)),
    ):
        for header in (Empty(), page):
            refused = await ask(broker, operation, header)
            assert isinstance(refused, Failed) and "at most 4000" in refused.remark


async def test_all_offsets(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """In slices; 100,000 rows held the loop for 700 ms. What does not fit is refused with the limit."""
    monkeypatch.setattr(offsets, "SLICE_ROWS", 4)
    table, turns = broker.metadata.offsets, 0
    table.table.rows["gone@G"] = {}

    async def other_work() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    task = asyncio.create_task(other_work())
    before = {
        name: {str(queue): offset for queue, offset in row.items()} for name, row in table.table.rows.items()
    }
    counter = table.data_version.counter
    body = json.loads(await table.body(10_000))
    task.cancel()
    assert turns >= 6
    assert before.items() <= body["offsetTable"].items(), "the transaction service may add its rows meanwhile"
    assert counter <= body["dataVersion"]["counter"] <= table.data_version.counter
    monkeypatch.setattr(handlers, "ANSWER_BYTES_MAX", 200)
    refused = await ask(broker, GET_ALL_CONSUMER_OFFSET, Empty())
    assert isinstance(refused, Failed) and "200 bytes" in refused.remark


async def test_any_answer_that_does_not_fit_names_the_limit(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It was an internal error, with a traceback for each."""

    async def too_much(*arguments: object) -> bytes:
        return bytes(FRAME_BYTES_MAX)

    monkeypatch.setattr(broker.metadata.offsets, "body", too_much)
    refused = await ask(broker, GET_ALL_CONSUMER_OFFSET, Empty())
    assert isinstance(refused, Failed) and refused.code == ResponseCode.SYSTEM_ERROR
    assert f"{FRAME_BYTES_MAX} is the limit" in refused.remark and "internal" not in refused.remark
    assert "Traceback" not in caplog.text and "the answer to code 43 is not sent" in caplog.text


@pytest.mark.parametrize(
    ("code", "asked"),
    [(21, {}), (21, {"topicSeq": "0", "maxTopicNum": "2000"}), (201, {}), (201, {"groupSeq": "0"})],
)
async def test_an_answer_with_the_whole_table_has_no_fields(
    code: int, asked: dict[str, str], tmp_path: Path
) -> None:
    """A slave or an mqadmin of RocketMQ 5.3.4 to 5.4 that sees any field in this answer requires
    totalTopicNum, and stops copying: no field may be added, whatever it is for."""
    async with Broker(config(tmp_path)) as broker:
        host, _, port = broker.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        header = {
            "code": code,
            "flag": 0,
            "language": "JAVA",
            "opaque": 7,
            "version": 501,
            "extFields": asked,
        }
        text = json.dumps(header).encode()
        writer.write((len(text) + 4).to_bytes(4, "big") + len(text).to_bytes(4, "big") + text)
        size = int.from_bytes(await reader.readexactly(4), "big")
        frame = await reader.readexactly(size)
        answer = json.loads(frame[4 : 4 + int.from_bytes(frame[1:4], "big")])
        writer.close()
        await writer.wait_closed()
    assert answer["opaque"] == 7 and answer["code"] == 0
    assert not answer.get("extFields")
