"""A client batch on a disk without room: all items or none, the documented code, and it goes on with room."""

import errno
from pathlib import Path

import pytest

from broker.admission.send_gate import DISK_FULL
from broker.message.record import decode
from broker.store.log.mapped_file import MappedFile
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.command import RemotingCommand
from tests.support.batch_parts import item
from tests.support.full_disk import full_disk
from tests.support.handler_parts import Broker

ITEMS = 5
BATCH = b"".join(item(b"%d" % number + b"x" * 9_000) for number in range(ITEMS))


def batch(broker: Broker) -> RemotingCommand:
    reply = broker.send(BATCH, m=True)
    assert reply is not None
    broker.tick()
    return reply


def stored(broker: Broker) -> list[tuple[int, bytes]]:
    """(queue offset, first byte) of everything that consumers can see."""
    queue, log = broker.store.find_queue("TopicA", 0), broker.store.commit_log
    units = [queue.unit(at) for at in range(queue.max_offset)] if queue is not None else []
    records = [decode(log.view(offset, size)) for offset, size, _ in units]
    return [(record.queue_offset, record.body[:1]) for record in records]


def whole(batches: int) -> list[tuple[int, bytes]]:
    return [(n, b"%d" % (n % ITEMS)) for n in range(batches * ITEMS)]


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    return Broker(tmp_path)


def test_no_room_for_the_next_file(broker: Broker, tmp_path: Path) -> None:
    """1, "create mapped file failed": the batch that does not fit into the file is not begun in it."""
    assert batch(broker).code == ResponseCode.SUCCESS
    fits = 1
    with full_disk(tmp_path / "commitlog"):
        while (reply := batch(broker)).code == ResponseCode.SUCCESS:
            fits += 1
        for _ in range(3):
            assert reply.code == ResponseCode.SYSTEM_ERROR
            assert reply.remark == "create mapped file failed: No space left on device"
            assert stored(broker) == whole(fits)
            reply = batch(broker)
    reply = batch(broker)
    assert reply.code == ResponseCode.SUCCESS and reply.ext_fields["queueOffset"] == str(fits * ITEMS)
    assert len(reply.ext_fields["msgId"].split(",")) == ITEMS
    assert stored(broker) == whole(fits + 1)
    broker.store.close()


def test_a_store_that_takes_nothing(broker: Broker) -> None:
    """14: the disk is above diskSpaceWarningLevelRatio."""
    assert batch(broker).code == ResponseCode.SUCCESS
    broker.gate.close(DISK_FULL, "the disk is full: diskSpaceWarningLevelRatio")
    reply = batch(broker)
    assert reply.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "diskSpaceWarningLevelRatio" in (reply.remark or "") and stored(broker) == whole(1)
    broker.gate.open(DISK_FULL)
    assert batch(broker).code == ResponseCode.SUCCESS and stored(broker) == whole(2)
    broker.store.close()


def test_no_room_for_the_queue(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch is in the log and answered; its queue catches up when there is room, whole and once."""
    assert batch(broker).code == ResponseCode.SUCCESS
    real = MappedFile.reserve

    def full(file: MappedFile, start: int, count: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(MappedFile, "reserve", full)
    seen = stored(broker)
    for _ in range(400):
        if batch(broker).code != ResponseCode.SUCCESS or broker.store.dispatcher.dispatch_fault:
            break
    else:
        pytest.fail("the queue never needed blocks")
    assert stored(broker)[: len(seen)] == seen
    monkeypatch.setattr(MappedFile, "reserve", real)
    broker.tick()
    while broker.store.dispatcher.dispatch(1_000):
        pass
    found = stored(broker)
    assert found == whole(len(found) // ITEMS)
    broker.store.close()
