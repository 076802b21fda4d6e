"""A data directory of RocketMQ is taken over and given back: 4.9, 5.1 (captured) and 5.3.

The directory was captured from 5.1.4; the other versions are made of it, by what they write differently. What
RocketMQ would find afterwards is read here with nothing but struct and json.
"""

import json
import shutil
import struct
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from broker.app.broker import Broker
from broker.config.broker_config import BrokerConfig
from broker.store.queue.reading import GetStatus
from tests.support.server_parts import until
from tests.support.store_parts import put

FIXTURE: Final = Path(__file__).parents[3] / "fixtures" / "store"
LOG_BYTES: Final = 65_536
RECORD: Final = struct.Struct(">iiiiiqq")
"""TOTALSIZE | MAGICCODE | BODYCRC | QUEUEID | FLAG | QUEUEOFFSET | PHYSICALOFFSET"""
V1_MAGIC, BLANK_MAGIC = -626843481, -875286124
UNIT: Final = struct.Struct(">qiq")


def _as_4_9(root: Path) -> None:
    """No epochs, timers or identity; three times in the checkpoint, and no version of the offsets."""
    for name in ("brokerIdentity", "epochFileCheckpoint", "epochFileCheckpoint.bak"):
        (root / name).unlink()
    for name in ("timercheck", "timermetrics", "topicQueueMapping.json", "messageRequestMode.json"):
        (root / "config" / name).unlink()
    checkpoint = (root / "checkpoint").read_bytes()
    (root / "checkpoint").write_bytes(checkpoint[:24] + bytes(len(checkpoint) - 24))
    offsets = root / "config" / "consumerOffset.json"
    text = offsets.read_text()
    offsets.write_text("{" + text[text.index('"offsetTable"') :])


def _as_5_1(root: Path) -> None:
    """As captured."""


def _as_5_3(root: Path) -> None:
    """With the files of the timer wheel, users in RocksDB, and a RocksDB that nothing uses."""
    (root / "timerwheel").write_bytes(bytes(4_096))
    (root / "timerlog").mkdir()
    (root / "timerlog" / ("0" * 20)).write_bytes(bytes(4_096))
    for database in (root / "rocksdbstore", root / "config" / "users", root / "config" / "acls"):
        database.mkdir()
        (database / "CURRENT").write_text("MANIFEST-000004\n")


def config(root: Path) -> BrokerConfig:
    return BrokerConfig.model_validate(
        {
            "brokerClusterName": "FxCluster",
            "brokerName": "broker-a",
            "listenPort": 0,
            "brokerIP1": "127.0.0.1",
            "storePathRootDir": root,
            "mappedFileSizeCommitLog": LOG_BYTES,
            "mappedFileSizeConsumeQueue": 6_000,
            "maxHashSlotNum": 500,
            "maxIndexNum": 2_000,
        }
    )


def log_records(root: Path) -> Iterator[tuple[int, int, int, bytes]]:
    """Yields (offset, queueId, queue offset, the record) to the log's end, as RocketMQ's start does."""
    files = sorted((root / "commitlog").glob("0*"))
    for path in files:
        content, at = path.read_bytes(), 0
        assert len(content) == LOG_BYTES, "RocketMQ refuses files of another size"
        while at + 8 <= LOG_BYTES:
            size, magic = struct.unpack_from(">ii", content, at)
            if magic == BLANK_MAGIC:
                break
            if not size:
                return
            _, _, _, queue_id, _, number, offset = RECORD.unpack_from(content, at)
            assert magic == V1_MAGIC and offset == int(path.name) + at
            yield offset, queue_id, number, content[at : at + size]
            at += size


def topic_of(record: bytes) -> str:
    (body_bytes,) = struct.unpack_from(">i", record, 84)
    length = record[88 + body_bytes]
    return record[89 + body_bytes : 89 + body_bytes + length].decode()


@pytest.mark.parametrize("as_version", [_as_4_9, _as_5_1, _as_5_3])
async def test_taken_over_and_given_back(tmp_path: Path, as_version: Callable[[Path], None]) -> None:
    root = tmp_path / "store"
    shutil.copytree(FIXTURE, root)
    as_version(root)
    had = sum(1 for _ in log_records(root))
    async with Broker(config(root)) as broker:
        store = broker.store
        for seen in json.loads((FIXTURE / "messages.json").read_text()):
            found = store.get(seen["topic"], seen["queueId"], seen["queueOffset"], 1, 1 << 20, None)
            assert found.status is GetStatus.FOUND and len(found.views[0]) == seen["storeSize"]
        offsets = broker.metadata.offsets
        assert (
            offsets.query("FxGroup", "FxNormal", 0) == 14
            and offsets.query("FxOrderGroup", "FxNormal", 3) == 26
        )
        assert "FxNormal" in broker.metadata.topics.topics
        put(store, b"a new one")
        # the open delayed messages, and with its progress no timer that RocketMQ has delivered
        await until(lambda: broker.scrub.rounds > 0 and broker.metadata.delays.get(16) == 2)
        assert not store.damage and broker.scrub.entries.rewritten == 0
        if as_version is not _as_4_9:
            await until(lambda: broker.services.timers.unread == 0 and not len(broker.services.timers.wheel))
            assert store.max_queue_offset("FxTimer", 0) == 2
        end = store.commit_log.max_offset
    _is_whole_for_rocketmq(root, had, end)


def _is_whole_for_rocketmq(root: Path, had: int, end: int) -> None:
    records = list(log_records(root))
    assert len(records) > had and records[-1][0] + len(records[-1][3]) == end
    queues = defaultdict[tuple[str, int], list[tuple[int, int]]](list)
    for offset, queue_id, number, record in records:
        queue = queues[topic_of(record), queue_id]
        assert number == len(queue), "the numbers of a queue have no gap"
        queue.append((offset, len(record)))
    for (topic, queue_id), expected in queues.items():
        content = (root / "consumequeue" / topic / str(queue_id) / ("0" * 20)).read_bytes()
        assert len(content) == 6_000
        units = [UNIT.unpack_from(content, number * 20)[:2] for number in range(len(expected) + 1)]
        assert units == [*expected, (0, 0)]
    physical, logics, index, *_ = struct.unpack_from(">5q", (root / "checkpoint").read_bytes())
    assert min(physical, logics, index) > 0 and not (root / "abort").exists()
    tables: dict[str, Any] = {
        name: json.loads((root / "config" / name).read_text()) for name in ("topics.json", "delayOffset.json")
    }
    assert tables["topics.json"]["topicConfigTable"]["FxNormal"]["writeQueueNums"] == 4
    assert tables["delayOffset.json"]["offsetTable"]["16"] == 2
