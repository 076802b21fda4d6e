"""What the faults flip, zero, truncate and lose do to a store, and how it is seen whether it was healed."""

import random
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from broker.backup.log_records import records_in
from broker.backup.offline_check import StoreCheck, check_stopped
from broker.store.offline import offline_store
from broker.store.queue.consume_queue import UNIT, UNIT_BYTES
from broker.store.settings import NamedTopic, StoreConfig
from cli.lab.chaos.bursts import runs_of
from cli.lab.chaos.damage import DERIVED, Ledger, Surgeon
from cli.lab.chaos.history import DAMAGED, Damage, Scrub
from cli.lab.chaos.plan import DAMAGE_FAMILIES, DEFAULT_FAMILIES, SINGLE, kinds_of
from cli.lab.chaos.run import ChaosOptions, possible
from cli.lab.chaos.stage import ChaosLauncher, Stage
from cli.lab.chaos.traffic import Recorder
from cli.lab.cluster import Cluster
from cli.lab.numbered_batches import BatchTemplate
from keelmq.client import MessageExt

FILE_BYTES = 64 << 10
HOST = bytes([127, 0, 0, 1, 0, 0, 0x2A, 0x9F])
SEEDS = range(20)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A store of 1,000 messages that was stopped in order, and the end of its log."""
    root = tmp_path_factory.mktemp("whole") / "store"
    store = offline_store(
        StoreConfig(
            root=root,
            commit_log_file_bytes=FILE_BYTES,
            consume_queue_file_bytes=20_000,
            index_slots=64,
            index_entries=256,
        )
    )
    store.load()
    store.become_master()
    for number in range(1_000):
        properties = b"UNIQ_KEY\x01%032d\x02" % number
        store.put(NamedTopic("T"), number & 3, b"x" * 100, properties, 0, 0, 1, HOST, 0, 0, 1_700_000_000_000)
    end = store.commit_log.max_offset
    store.set_confirm_offset(end)
    store.close()
    (root / "config").mkdir()
    (root / "config" / "topics.json").write_text("{}")
    (root / ".broker.meta").write_text("identity")
    return root, end


@pytest.fixture
def store(whole: tuple[Path, int], tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole[0], tmp_path / "store"))


def surgeon(ledger: Ledger, seed: int, store: Path, end: int) -> Surgeon:
    return Surgeon(ledger, random.Random(seed), program="broker-1", store=store, end=end)


def contents(store: Path) -> dict[str, bytes]:
    return {str(path.relative_to(store)): path.read_bytes() for path in store.rglob("*") if path.is_file()}


def faults_of(store: Path) -> list[str]:
    found = StoreCheck(store)
    for _ in check_stopped(store, found):
        pass
    return found.faults


@pytest.mark.parametrize("seed", SEEDS)
def test_a_flipped_bit_is_one_bit_that_the_check_finds(
    whole: tuple[Path, int], store: Path, seed: int
) -> None:
    before, ledger = contents(store), Ledger()
    damage = surgeon(ledger, seed, store, whole[1]).strike("flip")
    assert damage is not None and damage.file.startswith("commitlog/")
    after = contents(store)
    (changed,) = (name for name in before if before[name] != after[name])
    different = [
        at for at, (one, two) in enumerate(zip(before[changed], after[changed], strict=True)) if one != two
    ]
    assert (changed, different) == (damage.file, [damage.start])
    assert (before[changed][damage.start] ^ after[changed][damage.start]).bit_count() == 1
    raw = before[changed]
    at, _, body_end = max(
        each for each in records_in(raw, int(Path(changed).name), len(raw)) if each[0] <= damage.start
    )
    inside = damage.start - at
    assert inside < 12 or 28 <= inside < 36 or at + 88 <= damage.start < body_end, "no checksum covers it"
    assert ledger.allowed(["broker-0", "broker-1"]) == "broker-1"
    assert faults_of(store), f"nobody sees {damage}"
    (store / changed).write_bytes(before[changed])
    assert ledger.allowed(["broker-0", "broker-1"]) is None and not faults_of(store)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_damage_reaches_what_not_all_have_confirmed(
    whole: tuple[Path, int], store: Path, seed: int
) -> None:
    end = whole[1] // 3
    before = contents(store)
    for kind in ("flip", "zero"):
        damage = surgeon(Ledger(), seed, store, end).strike(kind)
        assert damage is not None
        assert int(Path(damage.file).name) + damage.start + damage.length <= end, damage
    after = contents(store)
    assert all(after[name] == raw for name, raw in before.items() if not name.startswith("commitlog"))
    assert surgeon(Ledger(), seed, store, 0).strike("flip") is None
    assert surgeon(Ledger(), seed, store, 0).strike("zero") is None


def test_a_zeroed_page_is_open_until_its_bytes_are_back(whole: tuple[Path, int], store: Path) -> None:
    before, ledger = contents(store), Ledger()
    damage = surgeon(ledger, 1, store, whole[1]).strike("zero")
    assert damage is not None and (damage.start % 4_096, damage.length) == (0, 4_096)
    assert contents(store)[damage.file][damage.start :][: damage.length] == bytes(4_096)
    (wound,) = ledger.open_of("broker-1")
    assert "zero of 4096 bytes" in str(wound) and faults_of(store)
    (store / damage.file).write_bytes(before[damage.file])
    assert not wound.is_open
    (store / damage.file).unlink()
    assert wound.is_open


def test_truncate_and_lose_take_files_that_are_made_again_and_never_the_identity(
    whole: tuple[Path, int], tmp_path: Path
) -> None:
    seen: dict[str, set[str]] = {"truncate": set(), "lose": set()}
    for seed in SEEDS:
        for kind, names in seen.items():
            store = Path(shutil.copytree(whole[0], tmp_path / f"{kind}-{seed}"))
            before = contents(store)
            damage = surgeon(Ledger(), seed, store, whole[1]).strike(kind)
            assert damage is not None
            after = contents(store)
            (changed,) = (name for name in before if before[name] != after.get(name))
            assert changed == damage.file
            assert (changed in after) == (kind == "truncate")
            if kind == "truncate":
                assert after[changed] == before[changed][: damage.start]
            assert len(before[changed]) == damage.start + damage.length
            names.add(changed.split("/")[0])
    assert seen["lose"] <= set(DERIVED) and seen["truncate"] <= {*DERIVED, "commitlog"}
    assert {"consumequeue", "config", "checkpoint"} <= seen["lose"] and "commitlog" in seen["truncate"]


def test_a_cut_log_file_is_open_until_it_has_its_end_again(whole: tuple[Path, int], store: Path) -> None:
    before = contents(store)
    for seed in range(1_000):
        ledger = Ledger()
        damage = surgeon(ledger, seed, store, whole[1]).strike("truncate")
        if damage is not None and damage.file.startswith("commitlog/"):
            break
    assert damage is not None
    assert ledger.open_of("broker-1")
    (store / damage.file).write_bytes(before[damage.file])
    assert not ledger.open_of("broker-1")


@pytest.mark.parametrize("kind", ["truncate", "lose"])
def test_lost_entries_are_open_until_they_are_there_again(
    whole: tuple[Path, int], tmp_path: Path, kind: str
) -> None:
    """Those of records that all replicas have confirmed."""
    seen = 0
    for seed in range(24):
        for end in (whole[1], whole[1] // 2, 0):
            store, ledger = Path(shutil.copytree(whole[0], tmp_path / f"{seed}-{end}")), Ledger()
            damage = surgeon(ledger, seed, store, end).strike(kind)
            if damage is None or not damage.file.startswith("consumequeue/"):
                continue
            before = (whole[0] / damage.file).read_bytes()
            lost = [*UNIT.iter_unpack(before)][damage.start // UNIT_BYTES :]
            confirmed = [unit for unit in lost if unit[1] and sum(unit[:2]) <= end]
            assert len(ledger.open_of("broker-1")) == (1 if confirmed else 0)
            first = damage.start // UNIT_BYTES * UNIT_BYTES
            back = before[: first + len(confirmed) * UNIT_BYTES].ljust(len(before), b"\0")
            (store / damage.file).write_bytes(back)
            assert not ledger.open_of("broker-1"), "later ones were not confirmed"
            if confirmed:
                (store / damage.file).write_bytes(before[: first + 15].ljust(len(before), b"\0"))
                assert ledger.open_of("broker-1"), "a part of the first one is not there"
                seen += 1
    assert seen > 0


def test_the_first_of_several_files_of_a_queue_is_never_lost(whole: tuple[Path, int], store: Path) -> None:
    """A start takes it for one that retention has deleted."""
    lost = set[str]()
    directory = store / "consumequeue" / "T" / "0"
    for start in (20_000, 40_000):
        shutil.copy(directory / f"{0:020d}", directory / f"{start:020d}")
    for seed in range(300):
        damage = surgeon(Ledger(), seed, store, whole[1]).strike("lose")
        assert damage is not None
        lost.add(damage.file)
        source = whole[0] / damage.file
        shutil.copy(source if source.exists() else directory / f"{0:020d}", store / damage.file)
    assert f"consumequeue/T/0/{0:020d}" not in lost
    assert {f"consumequeue/T/0/{40_000:020d}", f"consumequeue/T/1/{0:020d}"} <= lost


def test_records_end_at_the_first_byte_that_is_none(whole: tuple[Path, int]) -> None:
    first = whole[0] / "commitlog" / f"{0:020d}"
    raw = bytearray(first.read_bytes())
    found = list(records_in(bytes(raw), 0, len(raw)))
    assert len(found) > 100 and all(body_end - at == 188 for at, _, body_end in found)
    raw[found[5][0]] ^= 0x40
    assert list(records_in(bytes(raw), 0, len(raw))) == found[:5]
    assert list(records_in(bytes(raw), 0, found[2][0])) == found[:2]


def test_every_replica_is_checked_at_the_end(whole: tuple[Path, int], tmp_path: Path) -> None:
    names = ("broker-0", "broker-1", "broker-2")
    roots = {name: Path(shutil.copytree(whole[0], tmp_path / name)) for name in names[:2]}
    roots["broker-2"] = tmp_path / "broker-2"
    brokers = [SimpleNamespace(name=name, settings={"storePathRootDir": str(roots[name])}) for name in names]
    cluster = SimpleNamespace(brokers=brokers, name_servers=[])
    stage = Stage(
        cast(Cluster, cluster), ChaosLauncher(tmp_path, None), Recorder(lambda: 7, lambda entry: None)
    )
    damage = Surgeon(
        stage.ledger, random.Random(3), program="broker-1", store=roots["broker-1"], end=whole[1]
    ).strike("flip")
    assert isinstance(damage, Damage)
    sound, damaged, empty = stage.scrubs()
    assert sound == Scrub(t=7, program="broker-0", records=1_000)
    assert damaged.unhealed and damaged.faults and "flip of 1 bytes" in damaged.unhealed[0]
    assert "is not a broker's store" in empty.faults[0]


def test_damage_is_injected_only_when_it_is_asked_for() -> None:
    assert not DAMAGE_FAMILIES & set(DEFAULT_FAMILIES) and "power" in DEFAULT_FAMILIES
    assert not DAMAGE_FAMILIES & set(possible(ChaosOptions()))
    assert possible(ChaosOptions(families=("flip", "lose"))) == ["flip", "lose"]
    assert set(kinds_of(DAMAGE_FAMILIES)) <= SINGLE


def test_messages_of_full_load_become_runs() -> None:
    def stored(offset: int, body: bytes) -> MessageExt:
        return MessageExt("t", body, {}, 0, offset, 0, 0, 0, 0, "", 0, "", 0, 0)

    def bodies(sender: int, number: int) -> list[bytes]:
        raw = BatchTemplate(sender, 3).encode(number)
        step = len(raw) // 3
        return [raw[at + 20 : at + 120] for at in range(0, len(raw), step)]

    one, two = bodies(0, 1), bodies(1, 1)
    broken = [bytes(100), b"foreign"]
    messages = [
        stored(5 + at, body) for at, body in enumerate([*one, *two[1:], *broken, one[0], two[0], one[1]])
    ]
    assert runs_of(messages) == [
        (5, 0, 1, 0, 3),
        (8, 1, 1, 1, 2),
        (10, DAMAGED, 0, 0, 2),
        (12, 0, 1, 0, 1),
        (13, 1, 1, 0, 1),
        (14, 0, 1, 1, 1),
    ]
    assert runs_of([messages[0], messages[2]]) == [(5, 0, 1, 0, 1), (7, 0, 1, 2, 1)]
    assert runs_of([stored(5, one[0]), stored(7, one[1])]) == [(5, 0, 1, 0, 1), (7, 0, 1, 1, 1)]
