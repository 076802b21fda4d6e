"""The scrub: what it finds, its rounds, its position over restarts."""

import asyncio
from pathlib import Path

import pytest

from broker.store import scrub as scrub_module
from broker.store.message_store import MessageStore
from broker.store.scrub import Scrub
from tests.support.store_parts import FILE_BYTES, open_store, put, put_many
from tests.unit.broker.ha.test_ha_service import until
from tests.unit.broker.store.test_damaged_log import flip, of_queue, read, write, zero
from tests.unit.broker.store.test_damaged_log import records as records_of_all

pytestmark = pytest.mark.usefixtures("small_slices")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    store = open_store(tmp_path)
    put_many(store, 400)
    store.close()
    return tmp_path


def scrub_of(store: MessageStore, *, cached_bytes: int = 1 << 30) -> Scrub:
    scrub = Scrub(store, bytes_per_second=lambda: 1 << 20, cached_bytes=cached_bytes)
    scrub.load()
    return scrub


async def whole_round(scrub: Scrub) -> int:
    steps, rounds = 0, scrub.rounds
    while await scrub.step():
        steps += 1
    assert scrub.rounds == rounds + 1
    return steps


@pytest.mark.parametrize("cached_bytes", [0, 1 << 30])
async def test_it_names_exactly_what_is_damaged(root: Path, cached_bytes: int) -> None:
    hurt = [of_queue(root)[number] for number in (0, 50, 51, 150)]
    for record in hurt:
        flip(root, record)
    store = open_store(root)
    assert not store.log_check.is_all_whole
    scrub = scrub_of(store, cached_bytes=cached_bytes)
    steps = await whole_round(scrub)
    assert steps >= store.commit_log.max_offset // 2_000 and scrub.round_ms
    assert [(each.start, each.end) for each in store.damage.ranges] == [
        (record.offset, record.offset + record.size) for record in hurt
    ]
    assert scrub.checked_bytes == store.commit_log.max_offset
    store.close()


async def test_a_whole_log_needs_no_check_by_readers_any_more(root: Path) -> None:
    store = open_store(root)
    assert not store.log_check.is_all_whole
    await whole_round(scrub_of(store))
    assert store.log_check.is_all_whole
    store.close()


async def test_what_was_just_written_is_left_to_the_next_round(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [5_000]
    monkeypatch.setattr(scrub_module, "now_ms", lambda: clock[0])
    store = open_store(root)
    scrub = scrub_of(store)
    assert await scrub.step()
    end = scrub.round_end
    put_many(store, 100)
    store.flush()
    while await scrub.step():
        pass
    assert (scrub.rounds, scrub.checked_bytes) == (1, end)
    clock[0] += scrub_module.ROUND_MS_MIN - 1
    assert not await scrub.step()
    clock[0] += 1
    assert await scrub.step() and scrub.round_end == store.commit_log.max_offset
    store.close()


async def test_unconfirmed_and_unsynced_records_are_not_checked(root: Path) -> None:
    store = open_store(root)
    put_many(store, 10)  # not synced
    scrub = scrub_of(store)
    await scrub.step()
    assert scrub.round_end == store.commit_log.flushed_offset < store.commit_log.max_offset
    store.close()


async def test_it_goes_on_after_a_restart(root: Path) -> None:
    flip(root, of_queue(root)[0])
    store = open_store(root)
    scrub = scrub_of(store)
    task = asyncio.ensure_future(scrub.run())
    await until(lambda: scrub.checked_bytes > 0)
    task.cancel()
    await asyncio.wait([task])
    assert scrub.position >= scrub.checked_bytes > 0
    store.close()
    store = open_store(root)
    again = scrub_of(store)
    assert again.position == scrub.position
    await whole_round(again)
    assert again.checked_bytes == store.commit_log.max_offset - scrub.position
    store.close()


async def test_after_a_whole_round_a_start_begins_anew(root: Path) -> None:
    store = open_store(root)
    scrub = scrub_of(store)
    await whole_round(scrub)
    scrub.save()
    store.close()
    flip(root, of_queue(root)[0])
    store = open_store(root)
    again = scrub_of(store)
    assert again.position == 0 and again.rounds == 1
    await whole_round(again)
    assert len(store.damage.ranges) == 1
    store.close()


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[1]", b'{"position":1e99,"rounds":1,"roundMs":0}', b"\0" * 9]
)
async def test_a_bad_position_is_the_beginning(root: Path, content: bytes) -> None:
    (root / "scrubPosition").write_bytes(content)
    store = open_store(root)
    assert scrub_of(store).position == 0
    store.close()


async def test_a_position_in_a_record_goes_back_to_its_file(root: Path) -> None:
    (root / "scrubPosition").write_text(f'{{"position":{FILE_BYTES + 100},"rounds":0,"roundMs":0}}')
    store = open_store(root)
    scrub = scrub_of(store)
    await whole_round(scrub)
    assert scrub.checked_bytes == store.commit_log.max_offset - FILE_BYTES and not store.damage
    store.close()


async def test_damage_that_is_gone_is_healed(root: Path) -> None:
    hurt = of_queue(root)[50]
    good = read(root, hurt.offset, hurt.size)
    zero(root, hurt)
    store = open_store(root)
    await whole_round(scrub_of(store))
    assert len(store.damage.ranges) == 1
    write(root, hurt.offset, good)
    await whole_round(scrub_of(store))
    assert not store.damage
    store.close()


async def test_a_cut_during_a_read_discards_it(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flip(root, of_queue(root)[0])
    store = open_store(root)
    scrub = scrub_of(store)

    async def cut_meanwhile(function, *arguments):  # type: ignore[no-untyped-def]
        result = function(*arguments)
        store.become_slave()
        store.cutter.reset_to(0)
        return result

    monkeypatch.setattr(asyncio, "to_thread", cut_meanwhile)
    assert not await scrub.step() and not store.damage
    store.close()


async def test_a_disk_that_cannot_be_read_is_told(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(root)
    scrub = scrub_of(store)

    def check_file(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(scrub_module, "check_file", check_file)
    assert await scrub.step()
    assert scrub.fault.startswith("the log cannot be read at 0") and scrub.position == FILE_BYTES
    monkeypatch.undo()
    await scrub.step()
    assert scrub.fault == ""
    store.close()


def replica_with(root: Path, store: MessageStore, count: int) -> MessageStore:
    """A replica that has copied `count` bytes of the store's first file, and dispatched what is whole."""
    replica = open_store(root, master=False)
    receive(replica, store, count)
    return replica


def receive(replica: MessageStore, store: MessageStore, count: int) -> None:
    part = bytes(store.commit_log.view(replica.commit_log.max_offset, count))
    replica.commit_log.receive_view()[:count] = part
    replica.commit_log.received(count)
    replica.set_confirm_offset(replica.commit_log.max_offset)
    while replica.dispatcher.dispatch(100):
        pass


@pytest.mark.parametrize("arrives_later", [False, True])
async def test_a_part_of_a_record_is_no_damage(root: Path, tmp_path: Path, arrives_later: bool) -> None:
    """A replica syncs what has arrived, and its confirmOffset may be in the middle of a record, too."""
    store, records = open_store(root), of_queue(root)
    cut = records[5].offset + 50
    replica = replica_with(tmp_path / "replica", store, cut)
    replica.flush()
    if arrives_later:
        receive(replica, store, 200)  # not synced
        assert replica.commit_log.flushed_offset == cut < replica.dispatch_offset
    scrub = scrub_of(replica)
    await whole_round(scrub)
    assert not replica.damage and scrub.checked_bytes == records[5].offset
    replica.close()
    store.close()


async def test_damage_in_front_of_a_part_of_a_record_is_found(root: Path, tmp_path: Path) -> None:
    store, records = open_store(root), of_queue(root)
    cut = records[5].offset + 50
    replica = replica_with(tmp_path / "replica", store, cut)
    replica.flush()
    receive(replica, store, 200)
    before = next(each for each in records_of_all(root) if each.offset + each.size == records[5].offset)
    flip(replica.root, before)
    await whole_round(scrub := scrub_of(replica))
    assert [(each.start, each.end) for each in replica.damage.ranges] == [(before.offset, records[5].offset)]
    assert scrub.checked_bytes == records[5].offset
    replica.close()
    store.close()


async def test_a_round_ends_at_a_log_that_was_cut(root: Path) -> None:
    store = open_store(root)
    scrub = scrub_of(store)
    assert await scrub.step()
    store.become_slave()
    cut = next(each.offset for each in of_queue(root) if each.offset >= scrub.position + 200)
    store.cutter.truncate(cut)
    await whole_round(scrub)
    assert not store.damage and scrub.checked_bytes == cut
    store.close()


@pytest.mark.parametrize("is_hurt", [False, True])
async def test_damaged_properties_stay_damaged(tmp_path: Path, is_hurt: bool) -> None:
    """BODYCRC does not cover them, but who has found them has looked at the checksum of the record."""
    store = open_store(tmp_path, append_prop_crc=True)
    begin, end, _ = put(store, b"body", tags="red")
    put_many(store, 5)
    store.flush()
    if is_hurt:
        at = read(tmp_path, begin, end - begin).index(b"red")
        write(tmp_path, begin + at, b"bed")
    store.damage.add(begin, end, "a test")
    await whole_round(scrub_of(store))
    assert bool(store.damage) == is_hurt
    store.close()


@pytest.mark.parametrize("is_hurt", [False, True])
async def test_the_longest_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_hurt: bool) -> None:
    """maxMessageSize may be 16,000,000: such a record is good, also behind a damaged one."""
    monkeypatch.undo()
    store = open_store(tmp_path, commit_log_file_bytes=32 << 20)
    begin, end, _ = put(store, b"first")
    put(store, b"y" * 16_000_000)
    put(store, b"last")
    store.set_confirm_offset(store.commit_log.max_offset)
    store.flush()
    if is_hurt:
        (path,) = (each for each in (tmp_path / "commitlog").iterdir() if each.name.isdigit())
        with path.open("r+b") as file:
            file.seek(begin + 4)
            file.write(b"\0")
    await whole_round(scrub_of(store))
    assert [(each.start, each.end) for each in store.damage.ranges] == ([(begin, end)] if is_hurt else [])
    store.close()


@pytest.mark.parametrize("is_lost", [True, False])
async def test_a_lost_list_of_damage_makes_it_begin_anew(
    root: Path, is_lost: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Also if the range is in front of the position."""
    hurt = of_queue(root)[0]
    flip(root, hurt)
    store = open_store(root)
    scrub = scrub_of(store)
    await scrub.step()
    assert store.damage.ranges and scrub.position > hurt.offset + hurt.size
    store.flush_checkpoint()
    scrub.save()
    store.close()
    if is_lost:
        (root / "damagedRanges").unlink()
    store = open_store(root)
    again = scrub_of(store)
    assert (again.position == 0) is is_lost
    assert (f"{root / 'damagedRanges'} is lost" in caplog.text) is is_lost
    await whole_round(again)
    assert store.damage.ranges
    store.close()
