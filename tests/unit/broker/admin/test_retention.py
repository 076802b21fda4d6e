"""Retention: which files go and when, what follows them, and a full disk."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from random import Random

import pytest

from broker.admin.retention_service import INDEX_PAUSE_MS, RetentionService
from broker.admission.send_gate import DISK_FULL, SendGate
from broker.config.store_settings import StoreSettings, hours_of
from broker.core.retention import HELD_MS_MAX, OldFile, RetentionDecision, RetentionRules, decide_retention
from broker.store.message_store import MessageStore
from broker.store.queue.reading import GetStatus
from tests.sim.whole.machines import MachineLoop, virtual_machines
from tests.support.full_disk import full_disk
from tests.support.handler_context import send_gate
from tests.support.handler_parts import Broker
from tests.support.store_parts import FILE_BYTES, bodies, open_store, put_many
from tests.unit.broker.store.test_index import found, put_keyed

HOUR_MS = 3_600_000
NOON = 12
RULES = RetentionRules(reserved_ms=72 * HOUR_MS)
NOW_MS = 1_000 * HOUR_MS
FILES = [OldFile((index + 1) * 100, NOW_MS - age * HOUR_MS) for index, age in enumerate((99, 73, 71, 1))]


def verdict(
    used: float, *, hour: int = NOON, was_full: bool = False, force: bool = True, requested: bool = False
) -> RetentionDecision:
    rules = RetentionRules(force=force)
    return decide_retention(
        rules, FILES, used_ratio=used, hour=hour, now_ms=NOW_MS, was_full=was_full, requested=requested
    )  # fmt: skip


@pytest.mark.parametrize(
    ("used", "hour", "wanted"),
    [
        (0.10, NOON, RetentionDecision(0, False, False)),
        (0.10, 4, RetentionDecision(2, False, False)),
        (0.76, NOON, RetentionDecision(2, False, False)),
        (0.86, NOON, RetentionDecision(4, True, False)),
        (0.91, NOON, RetentionDecision(4, True, True)),
    ],
)
def test_levels_of_the_disk(used: float, hour: int, wanted: RetentionDecision) -> None:
    assert verdict(used, hour=hour) == wanted


def test_full_ends_at_the_forcible_level_and_not_before() -> None:
    assert verdict(0.88, was_full=True).is_full
    assert verdict(0.851, was_full=True).is_full
    assert not verdict(0.85, was_full=True).is_full
    assert not verdict(0.88).is_full


def test_without_force_young_files_stay_and_the_disk_is_full_all_the_same() -> None:
    assert verdict(0.95, force=False) == RetentionDecision(2, False, True)


def test_asked_for_by_an_operator() -> None:
    assert verdict(0.10, requested=True) == RetentionDecision(2, False, False)


@pytest.mark.parametrize(
    ("bytes_max", "used", "wanted"),
    [
        (0, 0.10, RetentionDecision(0, False, False)),
        (
            500,
            0.10,
            RetentionDecision(0, False, False),
        ),  # the log has 450 bytes, 50 of them in the file that is written
        (450, 0.10, RetentionDecision(0, False, False)),
        (449, 0.10, RetentionDecision(1, True, False)),
        (150, 0.10, RetentionDecision(3, True, False)),
        (449, 0.76, RetentionDecision(2, True, False)),  # more are old enough
        (150, 0.76, RetentionDecision(3, True, False)),
        (1, 0.10, RetentionDecision(4, True, False)),  # the last one is not among them
    ],
)
def test_the_log_has_a_size(bytes_max: int, used: float, wanted: RetentionDecision) -> None:
    rules = RetentionRules(bytes_max=bytes_max)
    found = decide_retention(
        rules, FILES, used_ratio=used, hour=NOON, now_ms=NOW_MS, was_full=False, log=(0, 450)
    )  # fmt: skip
    assert found == wanted


def test_settings() -> None:
    settings = StoreSettings.model_validate(
        {"deleteWhen": "04;16", "fileReservedTime": "48", "diskMaxUsedSpaceRatio": "99",
         "diskSpaceCleanForciblyRatio": "10", "diskSpaceWarningLevelRatio": "99"}
    )  # fmt: skip
    rules = settings.retention
    assert (rules.reserved_ms, rules.hours) == (48 * HOUR_MS, frozenset({4, 16}))
    assert (rules.used_ratio, rules.forcibly_ratio, rules.warning_ratio) == (0.95, 0.30, 0.90)
    with pytest.raises(ValueError, match="not 00 to 23"):
        hours_of("04;24")


def retention_of(
    store: MessageStore,
    gate: SendGate,
    usage: Callable[[Path], float],
    *,
    held: int = 1 << 60,
    on_emptied: Callable[[Mapping[tuple[str, int], int]], Awaitable[None]] | None = None,
    **settings: object,
) -> RetentionService:
    every_hour = ";".join(map(str, range(24)))
    made = StoreSettings.model_validate({"deleteWhen": every_hour} | settings)

    async def nothing(ends: Mapping[tuple[str, int], int]) -> None:
        pass

    return RetentionService(
        store,
        gate,
        made,
        held_offset=lambda: held,
        on_emptied=on_emptied or nothing,
        roll_timers=lambda log_offset: None,
        usage=usage,
    )


def log_files(store: MessageStore) -> list[str]:
    return sorted(path.name for path in store.commit_log.directory.iterdir() if path.name.isdecimal())


def make_old(store: MessageStore, count: int) -> None:
    for name in log_files(store)[:count]:
        os.utime(store.commit_log.directory / name, (1, 1))


async def test_expired_files_go_and_everything_follows(tmp_path: Path) -> None:
    store = open_store(tmp_path, index_entries=8)
    put_many(store, 150, queues=3)
    offsets = [put_keyed(store, "k") for _ in range(80)]
    store.flush()
    assert len(log_files(store)) > 5
    make_old(store, 2)
    before = len(list((tmp_path / "consumequeue" / "TopicA" / "1").iterdir()))
    await retention_of(store, send_gate(), lambda _: 0.1).clean()
    begin = 2 * FILE_BYTES
    assert store.commit_log.min_offset == begin
    assert int(log_files(store)[0]) == begin
    low = store.min_queue_offset("TopicA", 1)
    assert low > 0
    assert store.get("TopicA", 1, 0, 32, 1 << 20, None).status is GetStatus.OFFSET_TOO_SMALL
    assert bodies(store, 1, low)[0] == b"message %d" % (3 * low + 1)
    assert len(list((tmp_path / "consumequeue" / "TopicA" / "1").iterdir())) < before
    assert found(store, "k", limit=99) == [offset for offset in offsets if offset >= begin]
    store.close()
    store = open_store(tmp_path, index_entries=8)
    assert store.commit_log.min_offset == begin
    assert store.min_queue_offset("TopicA", 1) == low
    store.close()


def test_a_log_that_is_written_all_the_time_keeps_its_size(tmp_path: Path) -> None:
    """Files go within a second of being too many, at any hour, however young they are."""
    loop, limit = MachineLoop(Random(1)), 3 << 20

    async def story() -> None:
        broker = Broker(tmp_path)
        log = broker.store.commit_log
        retention = retention_of(
            broker.store, broker.gate, lambda _: 0.1, deleteWhen="", maxCommitLogBytes=limit
        )
        running = loop.create_task(retention.run())
        for _ in range(60):
            for _ in range(10):
                broker.send(b"x" * 50_000)
            broker.tick()
            broker.store.flush()
            await asyncio.sleep(1.1)
            assert log.max_offset - log.min_offset <= limit
        assert log.min_offset > 20 << 20
        assert log.max_offset - log.min_offset > limit - log.file_bytes, "no more than necessary"
        running.cancel()
        broker.store.close()

    with virtual_machines(loop, 1):
        loop.run_until_complete(story())
    loop.close()


def test_a_log_that_cannot_grow_is_cleaned_at_once(tmp_path: Path) -> None:
    """Not with the next round, in ten seconds: producers are waiting."""
    loop = MachineLoop(Random(1))

    async def story() -> None:
        broker = Broker(tmp_path)
        for _ in range(60):
            broker.send(b"x" * 50_000)
        broker.tick()
        broker.store.flush()
        running = loop.create_task(retention_of(broker.store, broker.gate, lambda _: 0.86).run())
        begin = loop.time()
        while loop.time() < begin + 5:  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.05)
        assert broker.store.commit_log.min_offset == 0, "above the forcible level, but there is time"
        with full_disk(tmp_path):
            while broker.store.commit_log.has_room():
                broker.send(b"x" * 50_000)
            while broker.store.commit_log.min_offset == 0:
                assert loop.time() < begin + 5.3
                await asyncio.sleep(0.05)
        running.cancel()
        broker.store.close()

    with virtual_machines(loop, 1):
        loop.run_until_complete(story())
    loop.close()


async def test_the_last_file_and_what_is_not_durable_stay(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put_many(store, 200)
    make_old(store, 99)
    retention = retention_of(store, send_gate(), lambda _: 0.1, deleteFileBatchMax=99)
    await retention.clean()
    assert store.commit_log.min_offset == 0  # nothing was flushed yet
    store.flush()
    await retention.clean()
    assert len(log_files(store)) == 1
    store.close()


async def test_a_round_is_bounded_and_stops_when_the_disk_is_better(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put_many(store, 400)
    store.flush()
    files = len(log_files(store))
    await retention_of(store, send_gate(), lambda _: 0.86, deleteFileBatchMax=3).clean()
    assert len(log_files(store)) == files - 3
    usage = iter((0.86, 0.86, 0.84))
    await retention_of(store, send_gate(), lambda _: next(usage)).clean()
    assert len(log_files(store)) == files - 5
    store.close()


async def test_a_replica_that_copies_holds_files_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path)
    put_many(store, 200)
    store.flush()
    now = [1_000]
    monkeypatch.setattr("broker.admin.retention_service.now_ms", lambda: now[0])
    make_old(store, 3)
    retention = retention_of(store, send_gate(), lambda _: 0.1, held=FILE_BYTES + 1)
    await retention.clean()
    assert store.commit_log.min_offset == FILE_BYTES  # the first one nobody needs
    now[0] += 2 * HELD_MS_MAX
    await retention.clean()
    assert store.commit_log.min_offset == FILE_BYTES  # old, and held for as long as it takes
    forced = retention_of(store, send_gate(), lambda _: 0.86, held=FILE_BYTES + 1, deleteFileBatchMax=1)
    await forced.clean()
    assert store.commit_log.min_offset == FILE_BYTES
    now[0] += HELD_MS_MAX
    await forced.clean()
    assert store.commit_log.min_offset == 2 * FILE_BYTES
    store.close()


async def test_a_reader_keeps_what_it_reads(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put_many(store, 100, queues=1)
    store.flush()
    result = store.get("TopicA", 0, 0, 4, 1 << 20, None)
    held = [bytes(view) for view in result.views]
    make_old(store, 1)
    await retention_of(store, send_gate(), lambda _: 0.1).clean()
    assert store.commit_log.min_offset == FILE_BYTES
    assert [bytes(view) for view in result.views] == held
    store.close()


async def test_full_disk_refuses_sends_reads_go_on_and_room_ends_it(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    assert broker.send(b"first") is not None
    broker.tick()
    used = [0.95]
    retention = retention_of(broker.store, broker.gate, lambda _: used[0])
    await retention.clean()
    reply = broker.send(b"refused")
    assert reply is not None
    assert reply.code == 14
    assert "diskSpaceWarningLevelRatio" in (reply.remark or "")
    assert bodies(broker.store) == [b"first"]
    used[0] = 0.88
    await retention.clean()
    assert broker.gate.is_closed_by(DISK_FULL)  # not before the forcible level
    used[0] = 0.5
    await retention.clean()
    reply = broker.send(b"second")
    assert reply is not None
    assert reply.code == 0
    broker.store.close()


async def test_no_room_for_the_next_file(tmp_path: Path) -> None:
    """The log cannot grow: sends are refused, reads go on, and room ends it without a restart."""
    broker = Broker(tmp_path)
    retention = retention_of(broker.store, broker.gate, lambda _: 0.1)
    broker.send(b"first")
    broker.tick()
    with full_disk(tmp_path / "commitlog"):
        codes = set()
        for _ in range(30):
            reply = broker.send(b"x" * 50_000)
            assert reply is not None
            codes.add(reply.code)
            broker.tick()
        assert codes == {0, 1}
        retention.watch_room()
        reply = broker.send(b"x")
        assert reply is not None
        assert reply.code == 14
        assert "No space left" in (reply.remark or "")
        assert bodies(broker.store)[0] == b"first"
    async with asyncio.timeout(10):
        while broker.gate.is_closed_by(DISK_FULL):
            retention.watch_room()
            await asyncio.sleep(0.001)
    reply = broker.send(b"x" * 50_000)
    assert reply is not None
    assert reply.code == 0
    broker.store.close()


async def test_the_background_task(tmp_path: Path) -> None:
    """It catches the index up, and cleans when its time has come, or at once when asked."""
    store = open_store(tmp_path)
    offset = put_keyed(store, "k")
    put_many(store, 200)
    store.flush()
    make_old(store, 1)
    assert store.index is not None
    store.index.reset_to(0)
    retention = retention_of(store, send_gate(), lambda _: 0.1)
    retention.requested = True
    task = asyncio.create_task(retention.run())
    async with asyncio.timeout(10):
        while store.commit_log.min_offset == 0:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    assert store.index.offset == store.dispatch_offset
    assert found(store, "k") == [offset]  # the only file of the index stays
    task.cancel()
    store.close()


async def until(condition: Callable[[], bool], within_s: float) -> None:
    """Of virtual time."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within_s
    while not condition():
        assert loop.time() < deadline
        await asyncio.sleep(0.05)


def test_an_index_far_behind_delays_neither_retention_nor_the_disk_s_watch(tmp_path: Path) -> None:
    """As after years without one: it takes more than an hour, and the disk fills in a minute."""
    loop, limit = MachineLoop(Random(1)), 3 << 20

    async def story() -> None:
        broker = Broker(tmp_path)
        store, gate = broker.store, broker.gate
        slices: list[float] = []

        def far_behind(records_max: int) -> bool:
            slices.append(loop.time())
            return True

        store.dispatcher.catch_up_index = far_behind  # type: ignore[method-assign]
        used = [0.1]
        retention = retention_of(store, gate, lambda _: used[0], deleteWhen="", maxCommitLogBytes=limit)
        running = loop.create_task(retention.run())
        for _ in range(120):
            broker.send(b"x" * 50_000)
        broker.tick()
        store.flush()
        assert store.commit_log.max_offset > limit
        log = store.commit_log
        await until(lambda: log.max_offset - log.min_offset <= limit, within_s=1.5)
        used[0] = 0.95
        await until(lambda: gate.is_closed_by(DISK_FULL), within_s=11)
        used[0] = 0.5
        await until(lambda: not gate.is_closed_by(DISK_FULL), within_s=1.5)
        per_second = len(slices) / (slices[-1] - slices[0])
        assert per_second > 0.9 * 1_000 / INDEX_PAUSE_MS, "the catching up is as fast as it was"
        running.cancel()
        store.close()

    with virtual_machines(loop, 1):
        loop.run_until_complete(story())
    loop.close()


def test_a_full_disk_is_looked_at_every_second(tmp_path: Path) -> None:
    """On virtual time: room that somebody made ends the refusals within ROOM_MS, long before the next round
    of deletion, and one look a second is all that it costs."""
    loop = MachineLoop(Random(1))
    looks: list[float] = []
    used = [0.95]

    def usage(_: Path) -> float:
        looks.append(loop.time())
        return used[0]

    async def story() -> None:
        broker = Broker(tmp_path)
        retention = retention_of(broker.store, broker.gate, usage, cleanFileForciblyEnable=False)
        running = loop.create_task(retention.run())
        await until(lambda: broker.gate.is_closed_by(DISK_FULL), within_s=11)
        full_since = loop.time()
        await until(lambda: loop.time() - full_since >= 6.8, within_s=8)
        assert [round(each - full_since) for each in looks] == [0, 1, 2, 3, 4, 5, 6]
        used[0] = 0.88
        await until(lambda: len(looks) == 8, within_s=1.1)
        assert broker.gate.is_closed_by(DISK_FULL), "not before the forcible level"
        used[0] = 0.5
        await until(lambda: not broker.gate.is_closed_by(DISK_FULL), within_s=1.1)
        reply = broker.send(b"taken")
        assert reply is not None and reply.code == 0
        count = len(looks)
        used[0] = 0.95
        await until(lambda: broker.gate.is_closed_by(DISK_FULL), within_s=10.1)
        assert len(looks) == count + 1, "a disk with room is looked at with the round of deletion only"
        running.cancel()
        broker.store.close()

    with virtual_machines(loop, 1):
        loop.run_until_complete(story())
    loop.close()
