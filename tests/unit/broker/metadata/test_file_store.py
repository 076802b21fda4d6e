"""Tables that are written in the background: the loop waits for no disk, an answer waits for its file."""

import asyncio
import json
import logging
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from broker.app.broker import Broker as Program
from broker.controller_mode.slave_sync import Leader, SlaveSync
from broker.metadata import file_store
from broker.metadata.core.table import Update, Version
from broker.metadata.files import MetadataFile, RowTexts, document, row_text
from broker.metadata.groups import GroupTable
from broker.metadata.service import Metadata
from broker.metadata.store import data_version
from broker.metadata.topics import TopicTable
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import CommandError, Failed, Ok
from keelmq.remoting.operations.broker import (
    PULL_MESSAGE,
    SEND_MESSAGE_V2,
    PullMessageRequest,
    SendMessageRequestV2,
)
from keelmq.remoting.operations.broker_metadata import (
    UPDATE_AND_CREATE_TOPIC,
    CreateTopicRequest,
    MetadataVersions,
)
from keelmq.remoting.operations.route import TopicConfig
from tests.support.handler_parts import Broker
from tests.support.metadata_parts import open_metadata
from tests.support.server_parts import until
from tests.unit.broker.app.test_broker_app import config

FULL = OSError(28, "No space left on device", "topics.json")


class Disk:
    """Writes of whole files: counted, held back, or refused."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.threads: list[int] = []
        self.names: list[str] = []
        self.may_write = threading.Event()
        self.may_write.set()
        self.error: OSError | None = None
        save = MetadataFile.save

        def counted(file: MetadataFile, value: Mapping[str, Any], turn: int) -> bool:
            self.threads.append(threading.get_ident())
            self.names.append(file.path.name)
            assert self.may_write.wait(10)
            if self.error is not None:
                raise self.error
            return save(file, value, turn)

        patch.setattr(MetadataFile, "save", counted)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


@pytest.fixture
async def metadata(tmp_path: Path, disk: Disk) -> AsyncIterator[Metadata]:
    made = open_metadata(tmp_path)
    made.write_in_background()
    yield made
    disk.error = None
    disk.may_write.set()
    await made.end()


def row(name: str, count: int = 4) -> TopicConfig:
    return TopicConfig(topic_name=name, read_queue_nums=count, write_queue_nums=count)


def reopened(tmp_path: Path) -> TopicTable:
    table = TopicTable(tmp_path / "config" / "topics.json", broker_name="b-a", cluster_name="C1")
    table.load()
    return table


async def test_a_change_is_in_force_at_once_and_answered_when_it_is_on_disk(
    tmp_path: Path, metadata: Metadata, disk: Disk
) -> None:
    disk.may_write.clear()
    version = metadata.topics.alter(row("T"), {})
    answer = asyncio.create_task(metadata.replicated(metadata.topics, version))
    await until(lambda: bool(disk.threads))
    assert metadata.topics.get("T") is not None and not answer.done()
    disk.may_write.set()
    await answer
    assert reopened(tmp_path).table.version == version
    assert threading.get_ident() not in disk.threads


async def test_changes_that_come_during_a_write_share_the_next_one(
    tmp_path: Path, metadata: Metadata, disk: Disk
) -> None:
    disk.may_write.clear()
    metadata.topics.update(row("T0"))
    await until(lambda: bool(disk.threads))
    for number in range(1, 200):
        metadata.topics.update(row(f"T{number}"))
    answers = [asyncio.create_task(metadata.on_disk(metadata.topics)) for _ in range(50)]
    disk.may_write.set()
    await asyncio.gather(*answers)
    assert len(disk.threads) == 2
    assert {f"T{number}" for number in range(200)} <= reopened(tmp_path).topics.keys()


async def test_a_row_is_made_text_once(metadata: Metadata, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ten thousand topics, one that is changed costs one."""
    for number in range(50):
        metadata.topics.update(row(f"T{number}"))
    await metadata.topics.saved()
    made: list[tuple[int, Any]] = []

    def counted(plain: Any) -> str:
        made.append((threading.get_ident(), plain["topicName"]))
        return row_text(plain)

    monkeypatch.setattr(file_store, "row_text", counted)
    metadata.topics.update(row("T7", 9))
    await metadata.topics.saved()
    ((thread, name),) = made
    assert name == "T7" and thread != threading.get_ident()


async def test_a_full_disk_is_an_answer_and_the_change_is_written_later(
    tmp_path: Path, metadata: Metadata, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    disk.error = FULL
    for name in "TU":
        with pytest.raises(
            CommandError, match=r"cannot write topics\.json: No space left on device; the change"
        ):
            await metadata.replicated(metadata.topics, metadata.topics.alter(row(name), {}))
    assert metadata.fault and [record.levelname for record in caplog.records] == ["ERROR"]
    disk.error = None
    metadata.topics.try_again()
    await metadata.topics.saved()
    assert not metadata.fault and {"T", "U"} <= reopened(tmp_path).topics.keys()


async def test_a_clean_stop_writes_what_is_left(tmp_path: Path, disk: Disk) -> None:
    metadata = open_metadata(tmp_path)
    metadata.write_in_background()
    assert metadata.find_group("g") is not None
    metadata.topics.update(row("T"))
    await metadata.end()
    assert "T" in reopened(tmp_path).topics
    groups = GroupTable(tmp_path / "config" / "subscriptionGroup.json")
    groups.load()
    assert groups.get("g") is not None


async def test_a_full_disk_at_the_end_is_told(
    tmp_path: Path, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    metadata = open_metadata(tmp_path)
    metadata.write_in_background()
    disk.error = FULL
    metadata.topics.update(row("T"))
    await metadata.end()
    assert f"cannot write {metadata.topics.path}: [Errno 28]" in caplog.records[-1].getMessage()


def test_a_file_is_written_as_it_was() -> None:
    """RocketMQ's tools read these files: as json.dumps(indent) would write them."""
    rows = {"é": {"a": [1, {"b": None}], "c": {}}, "x\n": {"text": "two\nlines"}}
    value = {"dataVersion": {"counter": 1}, "none": {}, "rows": rows}
    texts = RowTexts({key: row_text(each) for key, each in rows.items()})
    assert document(value | {"rows": texts, "none": RowTexts()}) == json.dumps(
        value | {"none": {}}, indent="\t", ensure_ascii=False
    )
    assert document({}) == "{}"


# -- sends that create their topic ---------------------------------------------------------------------------


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    made = Broker(tmp_path)
    made.topics.write_in_background()
    return made


@pytest.mark.parametrize("wait", [False, True])
async def test_a_send_is_answered_when_its_new_topic_is_on_disk(
    broker: Broker, disk: Disk, wait: bool
) -> None:
    broker.gate.wait = wait
    disk.may_write.clear()
    assert broker.send(b="New") is None
    assert broker.send(b="New", i="WAIT\x01false") is None, "the topic is there, and not on disk"
    broker.tick()
    broker.replicated()
    assert broker.answers() == [] and len(broker.topics.unwritten) == 1
    known = broker.send(i="WAIT\x01false")
    assert known is not None and known.code == 0, "an old topic does not wait"
    disk.may_write.set()
    await broker.topics.saved()
    assert [reply.code for reply in broker.answers()] == [0, 0]
    assert not broker.topics.unwritten
    fast = broker.send(b="New", i="WAIT\x01false")
    assert fast is not None and fast.code == 0
    assert threading.get_ident() not in disk.threads


async def test_a_send_whose_topic_cannot_be_written_is_told_so(broker: Broker, disk: Disk) -> None:
    disk.error = FULL
    for _ in range(2):
        assert broker.send(b="New") is None
        with pytest.raises(OSError, match="No space left"):
            await broker.topics.saved()
        (reply,) = broker.answers()
        assert reply.code == ResponseCode.FLUSH_DISK_TIMEOUT and reply.ext_fields["queueId"] == "0"
        assert reply.remark == "the message is stored, and its new topic cannot be written to the disk"
    disk.error = None
    broker.topics.try_again()
    await broker.topics.saved()
    assert broker.topics.topics["New"].open_queue_count == 4


# -- the program ---------------------------------------------------------------------------------------------


async def test_no_file_is_written_in_the_thread_of_the_loop(
    tmp_path: Path, disk: Disk, client: RemotingClient
) -> None:
    """Creating a topic by an administrator or by a message; a group by a pull."""
    async with Program(config(tmp_path)) as program:
        disk.threads.clear()
        disk.names.clear()
        created = CreateTopicRequest(
            topic="A", default_topic="TBW102", read_queue_nums=4, write_queue_nums=4, perm=6,
            topic_filter_type="SINGLE_TAG",
        )  # fmt: skip
        assert isinstance(await client.call(program.address, UPDATE_AND_CREATE_TOPIC, created), Ok)
        sent = SendMessageRequestV2(a="g", b="T", e=0, g=1)
        assert isinstance(await client.call(program.address, SEND_MESSAGE_V2, sent, b"body"), Ok)
        assert {"A", "T"} <= read_names(tmp_path / "store"), "before they were answered"
        pull = PullMessageRequest(
            consumer_group="new", topic="T", queue_id=0, queue_offset=0, max_msg_nums=10
        )
        assert isinstance(await client.call(program.address, PULL_MESSAGE, pull), Ok)
        await until(lambda: "subscriptionGroup.json" in disk.names)
        assert threading.get_ident() not in disk.threads


def read_names(store: Path) -> set[str]:
    table = json.loads((store / "config" / "topics.json").read_text())["topicConfigTable"]
    return set(table)


# -- a replica -----------------------------------------------------------------------------------------------


class Caller:
    """The client of a replica: its polls acknowledge what they name."""

    def __init__(self) -> None:
        self.named: list[MetadataVersions] = []

    async def call(self, address: str, operation: object, header: object, body: Any, **more: Any) -> Failed:
        self.named.append(body)
        return Failed(ResponseCode.SYSTEM_ERROR, "later")


@asynccontextmanager
async def following(metadata: Metadata) -> AsyncIterator[Caller]:
    """What a replica of this metadata asks its master, from now on."""
    caller = Caller()
    sync = SlaveSync(caller, metadata, cluster="C1", broker_name="b-a")  # type: ignore[arg-type]
    sync.follow(Leader("10.0.0.1:10911", 1, 2))
    task = asyncio.create_task(sync.run())
    try:
        yield caller
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_replica_acknowledges_what_is_on_its_disk(
    metadata: Metadata, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    disk.may_write.clear()
    whole = metadata.topics.to_wire(Update(Version(1, 5, 7), {"T": row("T")}))
    assert metadata.topics.accept(whole) is None and metadata.topics.get("T") is not None
    async with following(metadata) as caller:
        await until(lambda: bool(disk.threads))
        assert caller.named == []
        disk.may_write.set()
        await until(lambda: bool(caller.named))
    assert caller.named[0].versions["topics"].counter == 5
    disk.error = FULL
    assert (
        metadata.topics.accept(whole.model_copy(update={"version": data_version(Version(1, 6, 8))})) is None
    )
    async with following(metadata) as caller:
        await until(lambda: "cannot write topics.json" in caplog.text)
        assert caller.named == []
