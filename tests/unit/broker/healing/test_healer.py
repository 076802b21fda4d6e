"""The healer at one replica: whom it asks, what it writes and in which order, and what a crash leaves."""

import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from broker.healing import service
from broker.healing.journal import FILE_NAME, HealJournal
from broker.message.lost_record import lost_records
from broker.message.record import PROPERTIES_BYTES_MAX
from broker.store.damage import DamagedRange
from keelmq.remoting.command import response_frame
from keelmq.remoting.operation import Reply
from tests.support.healing import DirectClient, Replica, flip, group_of, healer_of, log_of
from tests.support.store_disk import After, StoreDisk, Torn
from tests.support.store_parts import BORN_HOST, FILE_BYTES, TOPIC, bodies, crash, open_store, put

BODY_BYTES_MAX = 16_000_000
"""The largest maxMessageSize."""


def hurt(replica: Replica, first: int, last: int) -> DamagedRange:
    """Damages these records, and names the range."""
    start, end = replica.places[first][0], replica.places[last][1]
    for number in range(first, last + 1):
        flip(replica.store, replica.places[number][1] - 20)
        flip(replica.store, replica.places[number][0] + 89)
    replica.store.damage.add(start, end, "test")
    return replica.store.damage.ranges[0]


def end(*replicas: Replica) -> None:
    for each in replicas:
        crash(each.store)


async def test_a_range_is_healed_and_counted(tmp_path: Path) -> None:
    mine, other = replicas = group_of(tmp_path, 2)
    sound = log_of(other.store)
    damaged = hurt(mine, 3, 5)
    healer = healer_of(mine, DirectClient(replicas), ["1"])
    assert await healer.heal(mine.store.damage.ranges)
    assert log_of(mine.store) == sound
    assert not mine.store.damage
    assert (healer.healed_ranges, healer.healed_bytes) == (1, damaged.end - damaged.start)
    assert not healer.failures and not healer.verdicts
    assert not (mine.store.root / FILE_NAME).exists()
    end(*replicas)


async def test_each_replica_gives_what_it_has(tmp_path: Path) -> None:
    """No replica has all of it."""
    mine, left, right = replicas = group_of(tmp_path, 3)
    sound = log_of(mine.store)
    hurt(mine, 3, 8)
    hurt(left, 3, 5)
    hurt(right, 6, 8)
    assert await healer_of(mine, DirectClient(replicas), ["1", "2"]).heal(mine.store.damage.ranges)
    assert log_of(mine.store) == sound and not mine.store.damage
    assert await healer_of(left, DirectClient(replicas), ["2", "0"]).heal(left.store.damage.ranges)
    assert log_of(left.store) == sound and not left.store.damage
    end(*replicas)


async def test_the_largest_record_that_a_broker_takes(tmp_path: Path) -> None:
    """It is larger than an answer usually is, and has to fit into a frame. So has what is around it."""
    files = {"commit_log_file_bytes": 40 << 20}
    mine, other = replicas = group_of(tmp_path, 2, messages=4, **files)
    for each in replicas:
        each.store.become_master()
    large, properties = (
        random.Random(5).randbytes(BODY_BYTES_MAX),
        b"a\x01" + b"b" * (PROPERTIES_BYTES_MAX - 2),
    )
    for body in (b"before", large, large, b"behind"):
        for each in replicas:
            each.store.put(TOPIC, 0, body, properties, 0, 0, 1_000, BORN_HOST, 0, 0, 1_000)
    for each in replicas:
        each.store.set_confirm_offset(each.store.commit_log.max_offset)
    sound, end_offset = log_of(other.store), mine.store.confirm_offset
    start = mine.places[-1][1]
    for offset in range(start + 50, end_offset, 1 << 20):
        flip(mine.store, offset)
    mine.store.damage.add(start, end_offset, "test")
    client = DirectClient(replicas)
    sizes = list[int]()

    def in_a_frame(reply: Reply) -> Reply:
        sizes.append(len(response_frame(1, 0, None, reply.header, reply.body)))
        return reply

    client.forged = in_a_frame
    healer = healer_of(mine, client, ["1"])
    assert await healer.heal(mine.store.damage.ranges), healer.verdicts
    assert log_of(mine.store) == sound and not mine.store.damage
    assert max(sizes) > BODY_BYTES_MAX and len(sizes) >= 4
    end(*replicas)


async def test_why_it_is_not_healed_is_told(tmp_path: Path) -> None:
    replicas = mine, *_ = group_of(tmp_path, 4)
    damaged = hurt(mine, 3, 3)
    hurt(replicas[1], 3, 3)
    client = DirectClient(replicas)
    client.foreign, client.silent = {"2"}, {"3"}
    healer = healer_of(mine, client, ["1", "2", "3"])
    before = log_of(mine.store)
    assert not await healer.heal(mine.store.damage.ranges)
    assert log_of(mine.store) == before and mine.store.damage.ranges == (damaged,)
    assert healer.failures == {"damaged": 1, "not_supported": 1, "no_answer": 1}
    told = healer.verdict_on(damaged)
    assert "1: damaged" in told and "2: not_supported" in told and "--mark-lost" not in told
    for peers, hint in ((["1"], "--mark-lost"), (["2"], "--resync"), ([], "no other replica is known")):
        healer = healer_of(mine, client, peers)
        await healer.heal(mine.store.damage.ranges)
        assert hint in healer.verdict_on(damaged)
        assert hint in mine.store.damage.describe(), "for the status"
    end(*replicas)


async def test_forged_answers_are_not_written(tmp_path: Path) -> None:
    mine, other = replicas = group_of(tmp_path, 2)
    damaged = hurt(mine, 3, 5)
    before, client = log_of(mine.store), DirectClient(replicas)
    beyond = mine.places[6][1]

    def longer(reply: Reply) -> Reply:
        data = bytes(other.store.commit_log.view(damaged.start, beyond - damaged.start))
        return replace(reply, body=data)

    def flipped(reply: Reply) -> Reply:
        data = bytearray(reply.body)  # type: ignore[call-overload]
        data[95] ^= 1
        return replace(reply, body=bytes(data))

    def of_no_epoch(reply: Reply) -> Reply:
        header: Any = reply.header
        return replace(reply, header=header.model_copy(update={"epochs": "1@5"}))

    def garbled(reply: Reply) -> Reply:
        header: Any = reply.header
        return replace(reply, header=header.model_copy(update={"epochs": "x"}))

    for forged, reason in (
        (longer, "outside"),
        (flipped, "checksum"),
        (of_no_epoch, "epochs"),
        (garbled, "refused"),
    ):
        client.forged = forged
        healer = healer_of(mine, client, ["1"])
        await healer.heal(mine.store.damage.ranges)
        assert healer.failures == {reason: 1}
        assert log_of(mine.store) == before and mine.store.damage.ranges == (damaged,)
    end(*replicas)


async def test_what_is_not_confirmed_waits(tmp_path: Path) -> None:
    mine, _ = replicas = group_of(tmp_path, 2)
    hurt(mine, 3, 5)
    mine.store.dispatcher.confirm_offset = mine.places[5][1] - 1
    client = DirectClient(replicas)
    healer = healer_of(mine, client, ["1"])
    assert healer.due() == []
    mine.store.set_confirm_offset(mine.places[5][1])
    assert healer.due() == list(mine.store.damage.ranges)
    end(*replicas)


async def test_a_cut_is_never_overwritten(tmp_path: Path) -> None:
    """The log is cut after the bytes were prepared; what comes behind the cut is another master's."""
    mine, other = replicas = group_of(tmp_path, 2)
    damaged = hurt(mine, 3, 5)
    data = bytes(other.store.commit_log.view(damaged.start, damaged.end - damaged.start))
    rewrite = mine.store.rewrite(damaged.start, data)
    mine.store.cutter.truncate(mine.places[4][0])
    mine.store.become_master()
    put(mine.store, b"of another term")
    after = log_of(mine.store)
    assert not rewrite.run()
    rewrite.close()
    assert log_of(mine.store) == after
    end(*replicas)


async def test_a_cut_while_the_peer_answers(tmp_path: Path) -> None:
    mine, _ = replicas = group_of(tmp_path, 2)
    hurt(mine, 3, 5)
    client = DirectClient(replicas)

    def cut(reply: Reply) -> Reply:
        mine.store.cutter.truncate(mine.places[4][0])
        return reply

    client.forged = cut
    healer = healer_of(mine, client, ["1"])
    await healer.heal(mine.store.damage.ranges)
    assert healer.failures == {"cut": 1}
    assert not healer.healed_ranges
    assert mine.store.commit_log.max_offset == mine.places[4][0]
    end(*replicas)


async def test_retention_deletes_the_file_meanwhile(tmp_path: Path) -> None:
    mine, _ = replicas = group_of(tmp_path, 2)
    hurt(mine, 3, 5)
    client = DirectClient(replicas)

    def expire(reply: Reply) -> Reply:
        mine.store.commit_log.take_oldest().delete()
        mine.store.damage.remove_below(mine.store.commit_log.min_offset)
        return reply

    client.forged = expire
    after = log_of(mine.store)[FILE_BYTES:]
    await healer_of(mine, client, ["1"]).heal(mine.store.damage.ranges)
    assert log_of(mine.store) == after and not mine.store.damage
    end(*replicas)


async def test_a_silent_peer_is_asked_once_in_an_attempt(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """There may be hundreds of ranges, and each request waits for its timeout."""
    mine, *_ = replicas = group_of(tmp_path, 3)
    for number in (3, 8, 12):
        hurt(mine, number, number)
    client = DirectClient(replicas)
    client.silent, client.foreign = {"1"}, {"2"}
    healer = healer_of(mine, client, ["1", "2"])
    for _ in range(2):
        await healer.heal(mine.store.damage.ranges)
    assert [peer for peer, _, _ in client.asked] == ["1", "2"] * 2
    told = [record.message for record in caplog.records if "is not healed" in record.message]
    assert len(told) == 3, "the same verdict is logged once"
    assert all("1: no_answer; 2: not_supported" in text for text in told)
    end(*replicas)


# -- crashes -----------------------------------------------------------------------------------------------


def prepared(tmp_path: Path) -> tuple[Path, Replica, bytes]:
    """A stopped store with a damaged range, which is named, a sound replica, and the sound log."""
    mine, other = group_of(tmp_path, 2)
    sound = log_of(other.store)
    hurt(mine, 3, 5)
    mine.store.close()
    return tmp_path / "0", other, sound


async def heal_on(root: Path, other: Replica) -> None:
    store = open_store(root, master=False)
    mine = Replica("0", store, other.epochs, other.places)
    try:
        await healer_of(mine, DirectClient([mine, other]), ["1"]).heal(store.damage.ranges)
    finally:
        crash(store)


@pytest.mark.parametrize("is_power_cut", [False, True])
async def test_a_crash_at_every_step(tmp_path: Path, is_power_cut: bool) -> None:
    """Afterwards the range is healed, or named and healed by the next start; never half, and not named."""
    root, other, sound = prepared(tmp_path / "made")
    dice, steps = random.Random(7), 0
    while True:
        work = tmp_path / f"work{steps}"
        shutil.copytree(root, work)
        disk = StoreDisk(work)
        store = open_store(work, master=False)
        mine = Replica("0", store, other.epochs, other.places)
        healer = healer_of(mine, DirectClient([mine, other]), ["1"])
        try:
            with disk.watched(After(steps)):
                await healer.heal(store.damage.ranges)
            is_done = True
        except Torn:
            is_done = False
        left = tmp_path / f"left{steps}"
        if is_power_cut:
            disk.survivors_of_a_power_cut(left, dice)
        else:
            disk.survivors_of_a_kill(left)
        crash(store)
        await check_left(left, other, sound)
        shutil.rmtree(work)
        shutil.rmtree(left)
        if is_done:
            break
        steps += 1
    assert steps > 5
    crash(other.store)


async def check_left(root: Path, other: Replica, sound: bytes) -> None:
    raw = (root / "commitlog" / "0".zfill(20)).read_bytes()
    store = open_store(root, master=False)
    mine = Replica("0", store, other.epochs, other.places)
    start, stop = other.places[3][0], other.places[5][1]
    is_sound = raw[start:stop] == sound[start:stop]
    assert is_sound or store.damage.overlaps(start, stop) is not None, "damaged, and not named"
    healer = healer_of(mine, DirectClient([mine, other]), ["1"])
    await healer.finish()
    assert HealJournal(root).read() is None
    await healer.heal(store.damage.ranges)
    assert log_of(store) == sound and not store.damage
    assert len(bodies(store)) == len(other.places) // 2
    crash(store)


async def test_an_interrupted_healing_needs_no_peer(tmp_path: Path) -> None:
    root, other, sound = prepared(tmp_path)
    store = open_store(root, master=False)
    mine = Replica("0", store, other.epochs, other.places)
    damaged = store.damage.ranges[0]
    await leave_journal(mine, other)
    flip(store, damaged.start + 5)
    await healer_of(mine, DirectClient([]), []).finish()
    assert log_of(store) == sound and not store.damage
    end(mine, other)


async def leave_journal(mine: Replica, other: Replica) -> None:
    """As a crash leaves it behind the first step."""

    class Stopped(Exception):
        pass

    def stop(*args: object) -> Any:
        raise Stopped

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(type(mine.store), "rewrite", lambda *args: Rewriting())
        patch.setattr(Rewriting, "run", stop)
        await healer_of(mine, DirectClient([mine, other]), ["1"]).heal(mine.store.damage.ranges)
    assert HealJournal(mine.store.root).read() is not None


class Rewriting:
    """A rewrite that does nothing."""

    def run(self) -> bool:
        return True

    def close(self) -> None:
        pass


async def test_a_journal_of_another_history_is_dropped(tmp_path: Path) -> None:
    """The log was cut, and another master's records are there now."""
    root, other, _ = prepared(tmp_path)
    store = open_store(root, master=False)
    mine = Replica("0", store, other.epochs, other.places)
    await leave_journal(mine, other)
    cut = mine.places[4][0]
    store.cutter.truncate(cut)
    store.become_master()
    for number in range(30):
        put(store, b"of epoch 9: %d" % number)
    store.set_confirm_offset(store.commit_log.max_offset)
    mine.epochs = mine.epochs.drop_above(cut).append(9, cut)
    after = log_of(store)
    await healer_of(mine, DirectClient([]), []).finish()
    assert log_of(store) == after
    assert HealJournal(root).read() is None
    end(mine, other)


# -- queues ------------------------------------------------------------------------------------------------


async def test_records_that_were_not_dispatched_get_their_entries(tmp_path: Path) -> None:
    mine, other = replicas = group_of(tmp_path, 2)
    numbers = [10, 11, 12]
    whole = bodies(other.store)
    hurt(mine, 20, 25)
    queue = mine.store.find_queue("TopicA", 0)
    assert queue is not None
    for number in numbers:
        mine.store.rewrite_unit(queue, number, 0, 2**31 - 1, 1)
    assert len(mine.store.get("TopicA", 0, 10, 32, 1 << 20, None).views) == 0 or True
    assert await healer_of(mine, DirectClient(replicas), ["1"]).heal(mine.store.damage.ranges)
    assert bodies(mine.store) == whole
    end(*replicas)


async def test_a_mark_of_another_replica_is_taken_over(tmp_path: Path) -> None:
    """An operator has marked the range as lost there: it is passed here, too, and the logs are equal."""
    mine, other = replicas = group_of(tmp_path, 2)
    damaged = hurt(mine, 6, 9)
    mark = lost_records(damaged.start, damaged.end, file_bytes=FILE_BYTES, stored_ms=5)
    other.store.commit_log.view(damaged.start, len(mark))[:] = mark
    healer = healer_of(mine, DirectClient(replicas), ["1"])
    assert await healer.heal(mine.store.damage.ranges)
    assert log_of(mine.store) == log_of(other.store) and not mine.store.damage
    assert healer.lost_bytes == damaged.end - damaged.start
    for queue_id in (0, 1):
        found, at = list[int](), 0
        while True:
            result = mine.store.get("TopicA", queue_id, at, 32, 1 << 20, None)
            if result.next_begin_offset == at:
                break
            found += numbers_in(result)
            at = result.next_begin_offset
        lost = {number // 2 for number in range(6, 10) if number % 2 == queue_id}
        assert found == [each for each in range(20) if each not in lost]
    end(*replicas)


def numbers_in(result: Any) -> list[int]:
    from tests.support.store_parts import records_in

    return [record.queue_offset for record in records_in(result)] if result.views else []


def test_the_task_is_gentle() -> None:
    """One MiB per pause at most."""
    assert service.PAUSE_S >= 0.05
    assert service.AGAIN.max_ms >= 30_000


async def test_a_healed_record_that_is_not_dispatched_keeps_its_queue_offset(tmp_path: Path) -> None:
    """Its header was damaged when it was scanned, so nothing told of which queue it is; and then this replica
    is elected."""
    sound, hurt = group_of(tmp_path, 2)
    at = len(sound.places) - 3
    (start, end), (_, stop) = sound.places[at : at + 2]
    queue_id, content = at % 2, bytes(sound.store.commit_log.view(start, stop - start))
    number = sound.store.queues.get("TopicA", queue_id).max_offset - 2  # of the damaged one
    hurt.store.cutter.truncate(start)
    view = hurt.store.commit_log.receive_view()
    view[: len(content)] = content
    view[4] ^= 1
    hurt.store.commit_log.received(len(content))
    hurt.store.set_confirm_offset(stop)
    while hurt.store.dispatcher.scan(10):
        pass
    assert [(each.start, each.end) for each in hurt.store.damage.ranges] == [(start, end)]
    assert await healer_of(hurt, DirectClient([sound]), ["0"]).heal(hurt.store.damage.ranges)
    hurt.store.become_master()
    assert put(hurt.store, b"new", queue_id=queue_id)[2] == number + 1
    hurt.store.set_confirm_offset(hurt.store.commit_log.max_offset)
    while hurt.store.dispatcher.dispatch(10):
        pass
    assert bodies(hurt.store, queue_id)[number + 1 :] == [b"new"]
    assert not hurt.store.damage and bytes(hurt.store.commit_log.view(start, len(content))) == content
    crash(hurt.store)
    crash(sound.store)
