"""Queries by key, id and time: as the handlers answer them, and RocketMQ's own captured answers."""

import shutil
from pathlib import Path

import pytest

from broker.config.client_settings import ClientSettings
from broker.handlers.query import QueryHandlers
from broker.message.record import decode, host_bytes
from broker.store.message_store import MessageStore
from broker.store.offline import offline_store
from broker.store.querying import earliest_time, find_by_key, offset_by_time, record_at
from keelmq.remoting.command import RemotingCommand
from keelmq.remoting.command import decode as decode_command
from keelmq.remoting.operation import Call, CommandError, Reply
from keelmq.remoting.operations.broker import (
    QueryMessageRequest,
    QueryMessageResponse,
    QueueRequest,
    SearchOffsetRequest,
    ViewMessageRequest,
)
from tests.support.handler_parts import Broker
from tests.support.store_parts import BORN_HOST, TOPIC, FakePeer, open_store
from tests.unit.broker.store.test_index import FIXTURES, FOREVER, peer_config, put_keyed, settle

FRAMES = FIXTURES.parent / "frames"
CALL = Call(FakePeer())


def captured(name: str) -> RemotingCommand:
    return decode_command((FRAMES / name).read_bytes()[4:])


@pytest.fixture
def peer_store(tmp_path: Path) -> MessageStore:
    shutil.copytree(FIXTURES, tmp_path / "store")
    store = offline_store(peer_config(tmp_path / "store"))
    store.load()
    settle(store)
    return store


def handlers(store: MessageStore, path: Path) -> QueryHandlers:
    broker = Broker(path)
    broker.store.close()
    broker.context.store = store
    return QueryHandlers(broker.context)


async def test_the_peers_query_is_answered_with_the_peers_bytes(
    peer_store: MessageStore, tmp_path: Path
) -> None:
    request = captured("12-query-message-mqadmin.req.bin")
    theirs = captured("12-query-message-mqadmin.resp.bin")
    header = QueryMessageRequest.model_validate(request.ext_fields)
    assert (header.unique_key_query, header.max_num) == (False, 64)
    reply = await handlers(peer_store, tmp_path / "b").query_message(header, CALL)
    assert isinstance(reply.body, bytes)
    assert isinstance(reply.header, QueryMessageResponse)
    assert set(theirs.ext_fields) == set(reply.header.model_dump(by_alias=True))
    assert reply.body.startswith(theirs.body)  # the fixture's log went on after the capture
    peer_store.close()


async def test_the_peers_view_by_id_is_answered_with_the_peers_bytes(
    peer_store: MessageStore, tmp_path: Path
) -> None:
    request = captured("33-view-message-mqadmin.req.bin")
    header = ViewMessageRequest.model_validate(request.ext_fields)
    reply = await handlers(peer_store, tmp_path / "b").view_message_by_id(header, CALL)
    assert reply.body == captured("33-view-message-mqadmin.resp.bin").body
    with pytest.raises(CommandError, match="can not find message by the offset: 36301"):
        await handlers(peer_store, tmp_path / "c").view_message_by_id(ViewMessageRequest(offset=36_301), CALL)
    peer_store.close()


async def test_nothing_found_is_code_22(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    query = QueryHandlers(broker.context)
    with pytest.raises(CommandError) as refused:
        await query.query_message(QueryMessageRequest(topic="TopicA", key="k", max_num=9), CALL)
    assert refused.value.code == 22
    assert refused.value.header == QueryMessageResponse(
        index_last_update_timestamp=0, index_last_update_phyoffset=0
    )
    broker.store.close()


async def test_a_sent_message_is_found_by_its_keys(tmp_path: Path) -> None:
    """Through the send handler: what the data path passes on is what the properties say."""
    broker = Broker(tmp_path)
    query = QueryHandlers(broker.context)
    for number in range(40):
        broker.send(b"%d" % number, i=f"KEYS\x01all n{number}\x02UNIQ_KEY\x01AC11{number:04X}")
    broker.send(b"without")
    broker.tick()

    async def asked(key: str, **more: object) -> list[bytes]:
        header = QueryMessageRequest.model_validate({"topic": "TopicA", "key": key, "maxNum": 64} | more)
        reply: Reply = await query.query_message(header, CALL)
        raw, found = reply.body, []
        assert isinstance(raw, bytes)
        while raw:
            record = decode(raw)
            found.append(record.body)
            raw = raw[record.size :]
        return found

    assert await asked("AC110007", _UNIQUE_KEY_QUERY="true") == [b"7"]
    assert await asked("n39") == [b"39"]
    assert await asked("all") == [b"%d" % number for number in range(40)]
    assert await asked("all", maxNum=3) == [b"37", b"38", b"39"]
    assert len(await asked("all", maxNum=3, _UNIQUE_KEY_QUERY="true")) == 32
    broker.context.settings = ClientSettings.model_validate({"defaultQueryMaxNum": 5})
    query = QueryHandlers(broker.context)
    assert len(await asked("all", maxNum=3, _UNIQUE_KEY_QUERY="true")) == 5
    broker.store.close()


def test_only_what_consumers_may_read_is_found(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    first = put_keyed(store, "k")
    offset, end, _ = store.put(TOPIC, 0, b"body", b"KEYS\x01k", 0, 0, 1, BORN_HOST, 0, 0, 1_000)
    assert record_at(store, first) is not None
    assert record_at(store, offset) is None
    assert [decode(view).offset for view in find_by_key(store, "TopicA", "k", 9, 0, FOREVER)] == [first]
    store.set_confirm_offset(end)
    assert [decode(view).offset for view in find_by_key(store, "TopicA", "k", 9, 0, FOREVER)] == [
        first,
        offset,
    ]
    store.close()


def test_another_key_of_the_same_hash_never_comes_out(tmp_path: Path) -> None:
    """ "Aa" and "BB" have one Java hash."""
    store = open_store(tmp_path)
    offset = put_keyed(store, "Aa")
    put_keyed(store, "BB")
    assert [decode(view).offset for view in find_by_key(store, "TopicA", "Aa", 9, 0, FOREVER)] == [offset]
    store.close()


def put_at(store: MessageStore, *times: int, host: bytes = BORN_HOST) -> None:
    for timestamp in times:
        store.put(TOPIC, 0, b"body", b"", 0, 0, 1, host, 0, 0, timestamp)
    store.set_confirm_offset(store.commit_log.max_offset)


@pytest.mark.parametrize(
    ("timestamp", "lower", "upper"),
    [(5, 0, 0), (10, 0, 0), (15, 1, 0), (20, 1, 3), (25, 4, 3), (30, 4, 4), (99, 5, 4)],
)
def test_search_by_time(tmp_path: Path, timestamp: int, lower: int, upper: int) -> None:
    """store.md pitfall 10: before the first, at repeats, after the last, in one file and over several."""
    for directory, file_bytes in (("one", 200_000), ("many", 40)):
        store = open_store(tmp_path / directory, consume_queue_file_bytes=file_bytes)
        put_at(store, 10, 20, 20, 20, 30)
        assert offset_by_time(store, "TopicA", 0, timestamp, upper=False) == lower
        assert offset_by_time(store, "TopicA", 0, timestamp, upper=True) == upper
        store.close()


def test_times_of_records_with_ipv6_hosts(tmp_path: Path) -> None:
    """store.md pitfalls 9 and 24: the place of the store timestamp follows from the record's own bits."""
    store = open_store(tmp_path)
    put_at(store, 10, 20, host=host_bytes("fd00::1", 4_660))
    put_at(store, 30)
    assert earliest_time(store, "TopicA", 0) == 10
    assert [offset_by_time(store, "TopicA", 0, at, upper=False) for at in (10, 11, 21, 31)] == [0, 1, 2, 3]
    store.close()


async def test_offsets_by_time_and_the_oldest_message(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    query = QueryHandlers(broker.context)
    put_at(broker.store, 10, 20)
    queue = {"topic": "TopicA", "queueId": "0"}
    for boundary, offset in ((None, 1), ("LOWER", 1), ("UPPER", 0)):
        header = SearchOffsetRequest.model_validate(queue | {"timestamp": "15", "boundaryType": boundary})
        assert (await query.search_offset(header, CALL)).offset == offset
    assert (await query.get_earliest_time(QueueRequest.model_validate(queue), CALL)).timestamp == 10
    unknown = QueueRequest(topic="TopicA", queue_id=3)
    assert (await query.get_earliest_time(unknown, CALL)).timestamp == -1
    broker.store.close()
