"""29047: only whole, sound, confirmed records leave, and damage is found by the way."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from broker.ha.core.epochs import Epochs
from broker.healing.log_reads import RECORD_BYTES_MAX, LogReads
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import CommandError, Reply
from keelmq.remoting.operations.store_copies import READ_LOG_BYTES, ReadLogRequest
from tests.support.healing import flip, group_of
from tests.support.store_parts import crash, open_store, put


async def read(reads: LogReads, start: int, end: int, **more: Any) -> Reply:
    request = ReadLogRequest(broker_name="b", start_offset=start, end_offset=end, **more)
    return await reads.read_log(request, None)  # type: ignore[arg-type]


def place(reply: Reply) -> tuple[int, int, str]:
    header: Any = reply.header
    return header.start_offset, header.end_offset, header.epochs


async def test_whole_records_with_their_epochs(tmp_path: Path) -> None:
    (replica,) = group_of(tmp_path, 1)
    reads, places = replica.reads(), replica.places
    start, end = places[3][0], places[6][1]
    reply = await read(reads, start, end)
    assert place(reply) == (start, end, "1@0")
    assert reply.body == bytes(replica.store.commit_log.view(start, end - start))
    assert (await read(reads, start, end, only_checks=True)).body is None
    crash(replica.store)


async def test_a_range_of_two_files_is_read_in_two_steps(tmp_path: Path) -> None:
    (replica,) = group_of(tmp_path, 1)
    end = replica.store.confirm_offset
    at, parts = 0, list[bytes]()
    while at < end:
        reply = await read(replica.reads(), at, end)
        start, stop, _ = place(reply)
        assert start == at < stop
        parts.append(reply.body)  # type: ignore[arg-type]
        at = stop
    assert len(parts) > 1
    assert b"".join(parts) == replica.content()
    crash(replica.store)


async def test_what_is_not_confirmed_or_of_another_group_is_refused(tmp_path: Path) -> None:
    (replica,) = group_of(tmp_path, 1)
    end = replica.store.confirm_offset
    with pytest.raises(CommandError, match="not in the confirmed log"):
        await read(replica.reads(), end - 10, end + 1)
    with pytest.raises(CommandError, match="not in the confirmed log"):
        await read(replica.reads(), 10, 9)
    assert place(await read(replica.reads(), 10, 10)) == (10, 10, "")
    foreign = LogReads(replica.store, epochs=Epochs, broker_name="other")
    with pytest.raises(CommandError, match="of group other"):
        await read(foreign, 0, end)
    crash(replica.store)


async def test_damage_is_left_out_and_remembered(tmp_path: Path) -> None:
    """Nobody had found it before."""
    (replica,) = group_of(tmp_path, 1)
    reads, places, damage = replica.reads(), replica.places, replica.store.damage
    start, end = places[3][0], places[6][1]
    flip(replica.store, places[3][0] + 100)
    flip(replica.store, places[5][0] + 4)
    assert place(await read(reads, start, end))[:2] == (places[4][0], places[5][0])
    assert [(each.start, each.end) for each in damage.ranges] == [places[3]]
    assert place(await read(reads, places[5][0], end))[:2] == (places[6][0], end)
    assert [(each.start, each.end) for each in damage.ranges] == [places[3], places[5]]
    assert place(await read(reads, *places[5]))[:2] == (places[5][1], places[5][1]), "all of it is damaged"
    crash(replica.store)


async def test_bounds_that_are_none_here(tmp_path: Path) -> None:
    """A sound record is not called damaged because the question cuts it."""
    (replica,) = group_of(tmp_path, 1)
    start, end = replica.places[3]
    with pytest.raises(CommandError, match="ends behind"):
        await read(replica.reads(), start, end - 1)
    assert not replica.store.damage
    crash(replica.store)


async def test_a_range_of_another_log_damages_nothing_here(tmp_path: Path) -> None:
    """The logs of two replicas differ until one is cut; what is damaged there may begin in the middle of a
    record here, or of the blank one of a file's end."""
    (replica,) = group_of(tmp_path, 1)
    places, file_bytes = replica.places, replica.store.commit_log.file_bytes
    blank = max(end for _, end in places if end < file_bytes)
    (begin, middle), (_, end) = places[3:5]
    for start, stop in ((begin + 20, end), (middle - 1, end), (blank + 10, file_bytes)):
        with pytest.raises(CommandError, match="the range is another one"):
            await read(replica.reads(), start, stop)
    assert not replica.store.damage
    crash(replica.store)


async def test_what_is_not_dispatched_yet_is_not_called_damaged(tmp_path: Path) -> None:
    """At a replica, the confirmed log may end in the middle of a record."""
    (replica,) = group_of(tmp_path, 1)
    start, end = replica.places[3]
    slave = open_store(tmp_path / "slave", master=False)
    slave.commit_log.receive_view()[: end - 9] = replica.store.commit_log.view(0, end - 9)
    slave.commit_log.received(end - 9)
    slave.set_confirm_offset(end - 9)
    while slave.dispatcher.dispatch(10):
        pass
    with pytest.raises(CommandError, match="is not read up to"):
        await read(LogReads(slave, epochs=Epochs, broker_name="b"), start, end - 9)
    assert slave.dispatch_offset == start and not slave.damage
    crash(slave)
    crash(replica.store)


async def test_a_record_larger_than_an_answer(tmp_path: Path) -> None:
    store = open_store(tmp_path, commit_log_file_bytes=8 << 20)
    offset, end, _ = put(store, bytes(READ_LOG_BYTES + 5))
    put(store, b"next")
    store.set_confirm_offset(store.commit_log.max_offset)
    reads = LogReads(store, epochs=Epochs, broker_name="b")
    assert place(await read(reads, offset, store.confirm_offset))[:2] == (offset, end)
    crash(store)


async def test_a_record_that_fits_into_no_answer_is_not_called_damaged(tmp_path: Path) -> None:
    store = open_store(tmp_path, commit_log_file_bytes=32 << 20)
    offset, end, _ = put(store, bytes(RECORD_BYTES_MAX))
    store.set_confirm_offset(store.commit_log.max_offset)
    reads = LogReads(store, epochs=Epochs, broker_name="b")
    with pytest.raises(CommandError, match="keelmq repair --resync"):
        await read(reads, offset, end)
    assert not store.damage
    crash(store)


async def test_one_request_at_a_time(tmp_path: Path) -> None:
    (replica,) = group_of(tmp_path, 1)
    reads = replica.reads()
    first = asyncio.create_task(read(reads, *replica.places[0]))
    await asyncio.sleep(0)
    with pytest.raises(CommandError) as refused:
        await read(reads, *replica.places[0])
    assert refused.value.code == ResponseCode.SYSTEM_BUSY
    assert place(await first)[:2] == replica.places[0]
    crash(replica.store)
