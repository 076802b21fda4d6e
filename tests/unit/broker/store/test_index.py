"""The message index: equal to the peer's file byte for byte, found again after every kind of end."""

import random
import shutil
import time
from pathlib import Path

import pytest

from broker.message.record import index_keys, java_hash, key_hash
from broker.store.index import index_file
from broker.store.index.index_file import HEADER, IndexFile, file_bytes_of
from broker.store.index.message_index import PENDING_RECORDS_MAX, MessageIndex
from broker.store.log.mapped_file import MappedFile
from broker.store.message_store import MessageStore, StoreConfig
from broker.store.offline import offline_store
from tests.support.store_parts import BORN_HOST, TOPIC, crash, cut_demoted, open_store

FIXTURES = Path(__file__).parents[3] / "fixtures" / "store"
FOREVER = 1 << 62


def put_keyed(store: MessageStore, keys: str, unique: str = "", *, timestamp: int = 1_000) -> int:
    """A confirmed message; its offset."""
    properties = f"UNIQ_KEY\x01{unique}\x02" if unique else ""
    if keys:
        properties += f"KEYS\x01{keys}\x02"
    offset, end, _ = store.put(TOPIC, 0, b"body", properties.encode(), 0, 0, 1, BORN_HOST, 0, 0, timestamp)
    store.set_confirm_offset(end)
    return offset


def found(store: MessageStore, key: str, limit: int = 64, begin: int = 0, end: int = FOREVER) -> list[int]:
    assert store.index is not None
    return store.index.find(java_hash("TopicA#"), key.encode(), limit, begin, end)


def settle(store: MessageStore) -> None:
    while store.dispatcher.catch_up_index(100):
        pass


def peer_config(root: Path) -> StoreConfig:
    return StoreConfig(
        root,
        commit_log_file_bytes=65_536,
        consume_queue_file_bytes=6_000,
        index_slots=500,
        index_entries=2_000,
    )


def test_the_index_of_the_peers_log_is_the_peers_index(tmp_path: Path) -> None:
    """Made again from the log alone: hashes, slots, chains, times and header, byte for byte."""
    shutil.copytree(FIXTURES, tmp_path / "store")
    (theirs,) = (FIXTURES / "index").iterdir()
    shutil.rmtree(tmp_path / "store" / "index")
    store = offline_store(peer_config(tmp_path / "store"))
    store.load()
    settle(store)
    store.close()
    (ours,) = (tmp_path / "store" / "index").iterdir()
    assert len(ours.name) == len(theirs.name)
    assert ours.read_bytes() == theirs.read_bytes()


def test_the_peers_index_is_read_and_kept(tmp_path: Path) -> None:
    shutil.copytree(FIXTURES, tmp_path / "store")
    store = offline_store(peer_config(tmp_path / "store"))
    store.load()
    assert store.index is not None
    assert store.index.find(java_hash("FxNormal#"), b"key-0", 64, 0, FOREVER) == [0, 43_508]
    assert store.index.find(java_hash("FxNormal#"), b"no-such-key", 64, 0, FOREVER) == []
    settle(store)
    store.close()
    (theirs,) = (FIXTURES / "index").iterdir()
    assert (tmp_path / "store" / "index" / theirs.name).read_bytes() == theirs.read_bytes()


@pytest.mark.parametrize("seed", range(20))
def test_key_hash_is_javas(seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(50):
        prefix = f"topic-{dice.randrange(10)}#"
        alphabet = dice.choice(
            ["0123456789ABCDEF", "0:@AN", "AO-", "".join(map(chr, range(1, 128))), "aé名😀"]
        )
        key = "".join(dice.choice(alphabet) for _ in range(dice.choice([1, 2, 32, 1_500])))
        wanted = abs(java_hash(prefix + key))
        assert key_hash(java_hash(prefix), key.encode()) == (0 if wanted == 2**31 else wanted)


def test_unique_keys_are_found_by_the_same_hash(tmp_path: Path) -> None:
    """They are hashed another way when they are stored."""
    store = open_store(tmp_path, commit_log_file_bytes=1 << 16)
    for key in ("7F0000010D2E1B6D0586512A6E6C0001", "N:A@9", "O", "lower", "é", "a-b", "A" * 1_500):
        offset = put_keyed(store, "", key)
        assert found(store, key) == [offset]
    store.close()


def test_a_hash_whose_absolute_value_overflows_is_0() -> None:
    assert java_hash("polygenelubricants") == -(2**31)
    assert key_hash(java_hash("poly"), b"genelubricants") == 0


def test_keys_are_blank_separated_and_the_unique_one_comes_first(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    offset = put_keyed(store, "order-1  order-2", "AC110001")
    for key in ("AC110001", "order-1", "order-2"):
        assert found(store, key) == [offset]
    assert found(store, "order-1  order-2") == found(store, "") == found(store, "order") == []
    assert index_keys(b"KEYS\x01a b\x02XKEYS\x01no\x02UNIQ_KEY\x01u") == (b"u", b"a b")
    assert index_keys(b"XUNIQ_KEY\x01no\x02") == (b"", b"")
    store.close()


def test_the_newest_win_and_times_bound(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    offsets = [put_keyed(store, "k", timestamp=10_000 + 2_000 * index) for index in range(10)]
    assert found(store, "k", limit=3) == offsets[-3:]
    assert found(store, "k", begin=12_000, end=16_000) == offsets[1:4]
    assert found(store, "k", begin=12_999, end=13_000) == offsets[1:2]  # to a second: the caller looks again
    assert found(store, "k", end=9_999) == []
    store.close()


def test_full_files_are_followed_by_the_next(tmp_path: Path) -> None:
    store = open_store(tmp_path, index_entries=8)
    offsets = [put_keyed(store, "a b c", timestamp=index + 1) for index in range(20)]
    settle(store)
    assert len(list((tmp_path / "index").iterdir())) >= 60 // 7
    for key in "abc":
        assert found(store, key) == offsets
    store.close()
    store = open_store(tmp_path, index_entries=8)
    for key in "abc":
        assert found(store, key) == offsets
    store.close()


def test_truncation_takes_the_index_along(tmp_path: Path) -> None:
    store = open_store(tmp_path, index_entries=8, index_slots=3)
    offsets = [put_keyed(store, "a b", f"u{index}") for index in range(10)]
    for cut in (7, 6, 2, 0):
        cut_demoted(store, offsets[cut])
        assert found(store, "a") == found(store, "b") == offsets[:cut]
        assert [found(store, f"u{index}") for index in range(cut, 10)] == [[]] * (10 - cut)
        assert found(store, f"u{max(cut - 1, 0)}") == offsets[max(cut - 1, 0) : cut]
    again = put_keyed(store, "a")
    assert found(store, "a") == [again]
    assert store.index is not None
    store.become_slave()
    store.cutter.reset_to(0)
    assert found(store, "a") == []
    store.close()


@pytest.mark.parametrize("saved", [0, 1, 5, 30])
def test_after_a_crash_the_index_is_whole_again(tmp_path: Path, saved: int) -> None:
    """The process dies with `saved` messages in the header on disk; slots are newer, entries may be."""
    store = open_store(tmp_path, index_entries=50, index_slots=7)
    offsets = []
    for index in range(30):
        offsets.append(put_keyed(store, "k", f"u{index}", timestamp=index + 1))
        settle(store)
        if index + 1 == saved:
            store.flush_checkpoint(index_too=True)
    crash(store)
    for path in (tmp_path / "index").iterdir():
        before = HEADER.unpack_from(path.read_bytes())
        assert before[5] <= 2 * max(saved, 0) + 1
    store = open_store(tmp_path, index_entries=50, index_slots=7)
    settle(store)
    assert found(store, "k") == offsets
    assert [found(store, f"u{index}") for index in range(30)] == [[offset] for offset in offsets]
    store.close()


def test_a_crashed_peers_doubtful_files_are_made_again(tmp_path: Path) -> None:
    """Another program's abort file: what is newer than the checkpoint's index timestamp (here 0) goes."""
    shutil.copytree(FIXTURES, tmp_path / "store")
    (tmp_path / "store" / "abort").write_text("4711")
    (path,) = (tmp_path / "store" / "index").iterdir()
    path.write_bytes(path.read_bytes()[:1_000] + b"\x7f" * (path.stat().st_size - 1_000))
    store = offline_store(peer_config(tmp_path / "store"))
    store.load()
    settle(store)
    assert store.index is not None
    assert store.index.find(java_hash("FxNormal#"), b"key-0", 64, 0, FOREVER) == [0, 43_508]
    store.close()


def test_a_file_of_other_settings_is_made_again(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    offset = put_keyed(store, "k")
    store.close()
    store = open_store(tmp_path, index_slots=11)
    assert found(store, "k") == []
    settle(store)
    assert found(store, "k") == [offset]
    store.close()


def test_a_replica_indexes_what_it_dispatches(tmp_path: Path) -> None:
    master, slave = open_store(tmp_path / "m"), open_store(tmp_path / "s", master=False)
    offsets = [put_keyed(master, "k", f"u{index}") for index in range(40)]
    while slave.commit_log.max_offset < master.commit_log.max_offset:
        piece = master.commit_log.view(slave.commit_log.max_offset, 777)
        slave.commit_log.receive_view()[: len(piece)] = piece
        slave.commit_log.received(len(piece))
    slave.set_confirm_offset(offsets[20])
    while slave.dispatcher.dispatch(3):
        pass
    assert found(slave, "k") == offsets[:20]
    slave.set_confirm_offset(FOREVER)
    while slave.dispatcher.dispatch(3):
        pass
    assert found(slave, "k") == offsets
    master.close()
    slave.close()


def test_keys_are_written_many_at_once_and_found_before(tmp_path: Path) -> None:
    """Records wait for company, for a question, or for the upkeep's next round; a question finds all."""
    store = open_store(tmp_path, index_entries=3 * PENDING_RECORDS_MAX)
    assert store.index is not None
    offsets = [put_keyed(store, "k  k2", f"u{index}") for index in range(PENDING_RECORDS_MAX - 1)]
    assert not list((tmp_path / "index").iterdir())
    offsets.append(put_keyed(store, "k", "last"))
    assert len(list((tmp_path / "index").iterdir())) == 1
    offsets.append(put_keyed(store, "k", "one"))
    assert found(store, "k", limit=1_000) == offsets
    assert store.index.last() == (1_000, offsets[-1])
    offsets.append(put_keyed(store, "k", "two"))
    assert store.index.last() == (1_000, offsets[-1])
    offsets.append(put_keyed(store, "k", "three"))
    assert not store.dispatcher.catch_up_index(100)
    cut_demoted(store, offsets[-2])
    assert found(store, "k", limit=1_000) == offsets[:-2]
    assert found(store, "two") == found(store, "three") == []
    store.close()


def test_a_full_disk_stops_the_index_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(tmp_path)
    put_keyed(store, "k")
    real = MappedFile.reserve

    def full(file: MappedFile, start: int, count: int) -> None:
        if "index" in file.path.parts:
            raise OSError(28, "No space left on device")
        real(file, start, count)

    assert store.index is not None
    store.index.truncate(0)
    store.index.offset = 0
    monkeypatch.setattr(MappedFile, "reserve", full)
    second = put_keyed(store, "k")
    assert not store.dispatcher.catch_up_index(10)
    assert "No space left" in store.index.fault
    assert store.max_queue_offset("TopicA", 0) == 2  # messages go on
    monkeypatch.undo()
    settle(store)
    assert found(store, "k") == [0, second]
    assert store.index.fault == ""
    store.close()


@pytest.mark.parametrize("slots_at_once", [1, 2, 5, 8])
def test_the_header_never_counts_what_is_not_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slots_at_once: int
) -> None:
    monkeypatch.setattr(index_file, "SLOTS_AT_ONCE", slots_at_once)
    path = tmp_path / "20260101000000000"
    file = IndexFile(path, 5, 10)
    file.make_room(3)
    file.append([key_hash(0, b"\x07")], [100], [5_000])
    state = file.state()
    file.append([key_hash(0, b"\x0c")], [200], [6_000])
    file.save(state)
    header = HEADER.unpack_from(path.read_bytes())
    assert header == (5_000, 5_000, 100, 100, 1, 2)
    file.close()
    assert path.stat().st_size == file_bytes_of(5, 10)
    file = IndexFile(path, 5, 10)
    assert file.find(12, 9, 0, FOREVER) == []  # its slot names an entry that is not counted
    file.mend_slots()
    assert file.find(7, 9, 0, FOREVER) == [100]
    assert file.used_slots == 1
    file.close()


def test_expired_files_are_taken_out(tmp_path: Path) -> None:
    store = open_store(tmp_path, index_entries=8)
    offsets = [put_keyed(store, "k") for _ in range(30)]
    index = store.index
    assert isinstance(index, MessageIndex)
    settle(store)
    before = len(list((tmp_path / "index").iterdir()))
    gone = index.expired(offsets[10])
    for file in gone:
        file.delete()
    assert len(gone) == 1
    assert len(list((tmp_path / "index").iterdir())) == before - 1
    assert found(store, "k") == offsets[7:]
    store.close()


def wait_for_files(path: Path, count: int) -> None:
    """The index prepares a file in a thread."""
    deadline = time.monotonic() + 10
    while len(list(path.iterdir())) < count:
        assert time.monotonic() < deadline, f"no {count} files in {path}"


def test_the_next_file_is_ready_before_it_is_needed(tmp_path: Path) -> None:
    index = MessageIndex(tmp_path, slots=1_000, entries=120_000)
    index.load(0, 1, abnormal=False, trusted_ms=None)
    for begin in range(0, 130_000, 1_000):
        records = [(7, begin + number, 1_000, b"", b"k%d" % (begin + number)) for number in range(1_000)]
        if begin == 119_000:
            wait_for_files(tmp_path, 2)
            prepared = {path.stat().st_ino for path in tmp_path.iterdir()}
        index.add(records, begin + 1_000)
    assert {path.stat().st_ino for path in tmp_path.iterdir()} == prepared
    assert [index.find(7, b"k%d" % at, 9, 0, FOREVER) for at in (0, 119_998, 119_999, 129_999)] == [
        [0], [119_998], [119_999], [129_999],
    ]  # fmt: skip
    index.flush()
    index.close()
    again = MessageIndex(tmp_path, slots=1_000, entries=120_000)
    again.load(0, 130_000, abnormal=True, trusted_ms=None)
    assert again.offset == 129_999
    assert again.find(7, b"k129999", 9, 0, FOREVER) == [129_999]
    again.close()


def test_a_prepared_file_that_nobody_needed_goes(tmp_path: Path) -> None:
    index = MessageIndex(tmp_path, slots=10, entries=60_000)
    index.load(0, 1, abnormal=False, trusted_ms=None)
    for begin in range(0, 58_000, 1_000):
        index.add([(7, begin + number, 1_000, b"", b"k") for number in range(1_000)], begin + 1_000)
    wait_for_files(tmp_path, 2)
    index.close()
    assert len(list(tmp_path.iterdir())) == 1
