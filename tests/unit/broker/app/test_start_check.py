"""A start that is refused has changed no byte, no size, no name and no time; and what doctor says of it."""

import json
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from broker.app.broker import Broker
from broker.app.start_check import start_refusal
from broker.controller_mode.broker_meta_file import BrokerMeta, BrokerMetaError, encode_meta
from broker.ha.core.epochs import UNBOUNDED, Epochs
from broker.ha.epoch_file import EpochFile
from broker.store import store_check
from broker.store.log.mapped_file import StoreError, lock_directory
from broker.store.message_store import MessageStore
from broker.store.recovery import Between
from keelmq.remoting.operations.broker_metadata import SubscriptionGroupConfig
from keelmq.runtime.config import ConfigError
from tests.support.ports import free_port
from tests.support.server_parts import until
from tests.support.store_parts import bodies, open_store, put, put_many
from tests.unit.broker.app.test_broker_app import config

LOG_BYTES, QUEUE_BYTES = 65_536, 2_000
State = dict[str, tuple[int, int, int, bytes]]


def state(root: Path) -> State:
    """Mode, size, time and content of everything."""
    found: State = {}
    for path in sorted(root.rglob("*")):
        stat = path.lstat()
        found[str(path.relative_to(root))] = (
            stat.st_mode, stat.st_size, stat.st_mtime_ns, path.read_bytes() if path.is_file() else b"",
        )  # fmt: skip
    return found


def filled(root: Path, messages: int = 250) -> None:
    store = open_store(root, commit_log_file_bytes=LOG_BYTES, consume_queue_file_bytes=QUEUE_BYTES)
    put_many(store, messages, queues=1)
    put(store, queue_id=1)
    store.set_confirm_offset(store.commit_log.max_offset)
    store.close()
    (root / "config").mkdir(exist_ok=True)
    (root / "config" / "topics.json").write_text('{"topicConfigTable":{},"dataVersion":{}}')


def _meta(root: Path, name: str) -> None:
    (root / ".broker.meta").write_bytes(encode_meta(BrokerMeta("DefaultCluster", name, 1, "x")))


def _larger(path: Path) -> None:
    with path.open("ab") as file:
        file.truncate(3 * LOG_BYTES)


def queue(root: Path, number: int = 0) -> Path:
    return root / "consumequeue" / "TopicA" / "0" / f"{number * QUEUE_BYTES:020d}"


def log_file(root: Path) -> Path:
    return min((root / "commitlog").iterdir())


KINDS: dict[str, tuple[Callable[[Path], object], dict[str, object], str]] = {
    "larger queue files asked for": (
        lambda root: None,
        {"mapped_file_size_consume_queue": 6_000_000},
        "has 2000 bytes, mappedFileSizeConsumeQueue says 6000000: the files have 2000 bytes: "
        "set mappedFileSizeConsumeQueue=2000",
    ),
    "smaller queue files asked for": (
        lambda root: None,
        {"mapped_file_size_consume_queue": 1_000},
        "set mappedFileSizeConsumeQueue=2000",
    ),
    "a larger log file asked for": (
        lambda root: None,
        {"mapped_file_size_commit_log": 1 << 24},
        "set mappedFileSizeCommitLog=65536",
    ),
    "a smaller log file asked for": (
        lambda root: None,
        {"mapped_file_size_commit_log": 16_384},
        "set mappedFileSizeCommitLog=65536",
    ),
    "queue files of two sizes": (
        lambda root: os.truncate(root / "consumequeue" / "TopicA" / "1" / ("0" * 20), 6_000_000),
        {},
        "no size fits all files (3 of 2000 bytes, 1 of 6000000 bytes): stop the broker and run "
        "keelmq repair --store STORE --queues --queue-file-bytes 2000",
    ),
    "larger queue files asked for, and one has lost its end": (
        lambda root: os.truncate(queue(root, 1), 501),
        {"mapped_file_size_consume_queue": 6_000_000},
        "set mappedFileSizeConsumeQueue=2000",
    ),
    "a log file that continues none": (
        lambda root: shutil.copy(log_file(root), root / "commitlog" / f"{5 * LOG_BYTES:020d}"),
        {},
        "behind it are missing after a power failure or a fault of the disk, or its name is wrong: the "
        "messages at",
    ),
    "a hole between two log files": (
        lambda root: shutil.copy(log_file(root), root / "commitlog" / f"{2 * LOG_BYTES:020d}"),
        {},
        f"{LOG_BYTES:020d} is missing after a power failure",
    ),
    "another broker's identity": (lambda root: _meta(root, "other"), {}, "belongs to DefaultCluster/other"),
    "a damaged identity": (
        lambda root: (root / ".broker.meta").write_bytes(b"{}"),
        {},
        "checksum does not match",
    ),
    "topics that do not parse": (
        lambda root: (root / "config" / "topics.json").write_text("{"),
        {},
        "the topic table is damaged",
    ),
    "a group with a wrong type": (
        lambda root: (root / "config" / "subscriptionGroup.json").write_text(
            json.dumps({"subscriptionGroupTable": {"g": {"groupName": "g", "retryQueueNums": "x"}}})
        ),
        {},
        "is damaged",
    ),
    "a DLedger CommitLog": (
        lambda root: (root / "dledger-n0" / "data").mkdir(parents=True),
        {},
        "dledger-n0/data has the messages of a DLedger CommitLog: let consumers read them from RocketMQ, "
        "then move STORE/dledger-n0 away",
    ),
    "topics in RocksDB": (
        lambda root: _rocksdb(root / "config" / "topics"),
        {},
        "shows that the topics are in RocksDB: write them into a file with RocketMQ's mqadmin "
        "rocksDBConfigToJson, then move STORE/config/topics away",
    ),
    "all tables in one RocksDB": (
        lambda root: _rocksdb(root / "config" / "metadata"),
        {},
        "rocksDBConfigToJson, then move STORE/config/metadata away",
    ),
    "popped messages in RocksDB": (
        lambda root: _rocksdb(root / "kvStore"),
        {},
        "mqadmin exportPopRecord, then move STORE/kvStore away",
    ),
    "a directory that is a file": (
        lambda root: (shutil.rmtree(root / "consumequeue"), (root / "consumequeue").write_text("x")),
        {},
        "not a directory",
    ),
}


def _rocksdb(path: Path) -> None:
    path.mkdir(parents=True)
    (path / "CURRENT").write_text("MANIFEST-000005\n")


async def refused(tmp_path: Path, settings: dict[str, object], says: str) -> None:
    before = state(tmp_path)
    with pytest.raises((ConfigError, StoreError, BrokerMetaError)) as caught:
        async with Broker(config(tmp_path, **settings)):
            pass
    assert says.replace("STORE", str(tmp_path / "store")) in str(caught.value)
    assert state(tmp_path) == before


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_refused_start_changes_nothing(tmp_path: Path, kind: str, is_clean: bool) -> None:
    make, settings, says = KINDS[kind]
    root = tmp_path / "store"
    filled(root)
    if not is_clean:
        (root / "abort").write_text("keelmq 1")
    (root / "commitlog" / "next.prepared").write_bytes(b"left by a crash")
    make(root)
    await refused(tmp_path, settings, says)
    assert says.replace("STORE", str(root)) in str(start_refusal(config(tmp_path, **settings)))


async def test_a_store_that_is_in_use(tmp_path: Path) -> None:
    filled(tmp_path / "store")
    descriptor = lock_directory(tmp_path / "store")
    try:
        await refused(tmp_path, {}, "in use by another broker process")
        assert start_refusal(config(tmp_path)) is None  # a running broker is no fault
    finally:
        os.close(descriptor)


PORTS = ["listen_port", "fast_listen_port", "http_port", "ha_listen_port", "metrics_prom_exporter_port"]


@pytest.mark.parametrize("key", PORTS)
async def test_a_port_that_is_taken(tmp_path: Path, key: str) -> None:
    filled(tmp_path / "store")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        settings: dict[str, object] = {"listen_port": free_port(), "fast_listen_port": -1, key: port}
        if key == "metrics_prom_exporter_port":
            settings |= {"metrics_exporter_type": "PROM", "broker_ip1": "127.0.0.1"}
        if key == "ha_listen_port":
            settings |= {"enable_controller_mode": True, "controller_addr": "127.0.0.1:1"}
            settings |= {"namesrv_addr": "127.0.0.1:1"}
        await refused(tmp_path, settings, f"cannot listen on 127.0.0.1:{port}")


async def test_a_port_that_follows_from_another_is_taken(tmp_path: Path) -> None:
    """httpPort is listenPort + 10000 unless it is set."""
    filled(tmp_path / "store")
    with socket.socket() as taken:
        listen_port = next(port for port in range(20_000, 50_000) if _binds(taken, port + 10_000))
        taken.listen()
        settings: dict[str, object] = {"listen_port": listen_port, "fast_listen_port": -1, "http_port": 0}
        await refused(tmp_path, settings, f"cannot listen on 127.0.0.1:{listen_port + 10_000}")


def _binds(made: socket.socket, port: int) -> bool:
    try:
        made.bind(("127.0.0.1", port))
    except OSError:
        return False
    return True


async def test_a_disk_without_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path / "store")
    monkeypatch.setattr(store_check, "START_BYTES_MIN", 1 << 60)
    await refused(tmp_path, {}, f"bytes free, {1 << 60} are needed")


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
@pytest.mark.parametrize("part", ["", "commitlog/" + "0" * 20, "consumequeue/TopicA/0", "checkpoint"])
async def test_files_of_another_user(part: str) -> None:
    with _as_nobody() as base:
        os.chown(base / "store" / part, 0, 0)
        os.chmod(base / "store" / part, 0o755 if not part or "TopicA" in part else 0o644)
        os.seteuid(65_534)
        try:
            await refused(base, {}, f"{base / 'store' / part}: uid 65534 cannot write it")
        finally:
            os.seteuid(0)


@contextmanager
def _as_nobody() -> Iterator[Path]:
    """A store that uid 65534 may use."""
    base = Path("/tmp") / f"keelmq-start-{os.getpid()}"
    filled(base / "store")
    for path in (base, *base.rglob("*")):
        os.chown(path, 65_534, 65_534)
    try:
        yield base
    finally:
        shutil.rmtree(base)


async def test_a_start_that_nothing_refuses(tmp_path: Path) -> None:
    """The check refuses no store that is whole, new, or cut off behind its last record."""
    assert start_refusal(config(tmp_path)) is None
    async with Broker(config(tmp_path)):
        pass
    shutil.rmtree(tmp_path / "store")
    filled(tmp_path / "store", messages=3)
    end = len(log_file(tmp_path / "store").read_bytes().rstrip(b"\0"))
    os.truncate(log_file(tmp_path / "store"), end + 2)  # the length of its properties is 0
    assert start_refusal(config(tmp_path)) is None
    async with Broker(config(tmp_path)) as broker:
        assert broker.store.max_queue_offset("TopicA", 0) == 3


async def test_a_store_is_loaded_with_the_epochs_of_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a start after a crash takes the first record behind a gap of queue offsets for damaged. Later
    it knows the epochs that begin."""
    filled(tmp_path / "store", messages=30)
    EpochFile(tmp_path / "store" / "epochFileCheckpoint").save(Epochs.of([(1, 0), (2, 500)]))
    terms, real = list[tuple[int, int]](), MessageStore.load

    def load(store: MessageStore, between: Between) -> None:
        terms.append(store.numbers.term_of(600))
        real(store, between)

    monkeypatch.setattr(MessageStore, "load", load)
    controller = f"127.0.0.1:{free_port()}"
    async with Broker(config(tmp_path, enable_controller_mode=True, controller_addr=controller)) as broker:
        assert broker.controlled is not None
        await broker.controlled.ha.log_epochs.save(Epochs.of([(1, 0), (2, 500), (3, 550)]))
        terms.append(broker.store.numbers.term_of(600))
        assert broker.store.numbers.term_of(549) == (500, 550)
    assert terms == [(500, UNBOUNDED), (550, UNBOUNDED)]


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("cut", [{(0, 0): 501}, {(0, 1): 1_980, (0, 2): 999}, {(0, 2): 40}, {(1, 0): 1_000}])
async def test_a_start_with_queue_files_that_have_lost_their_ends(
    tmp_path: Path, cut: dict[tuple[int, int], int], is_clean: bool
) -> None:
    """Lone ones, the first, the last and one between, by (queueId, number); doctor does not complain either.
    The scrub of the broker makes the entries in the middle again."""
    root = tmp_path / "store"
    filled(root)
    if not is_clean:
        (root / "abort").write_text("keelmq 1")
    for (queue_id, number), size in cut.items():
        os.truncate(root / "consumequeue" / "TopicA" / str(queue_id) / f"{number * QUEUE_BYTES:020d}", size)
    assert start_refusal(config(tmp_path)) is None
    async with Broker(config(tmp_path, scrub_bytes_per_second=1 << 30)) as broker:
        store = broker.store
        assert [store.max_queue_offset("TopicA", queue_id) for queue_id in (0, 1)] == [250, 1]
        await until(lambda: broker.scrub.rounds > 0)
        assert bodies(store) == [b"message %d" % number for number in range(250)]
        assert bodies(store, 1) == [b"body"] and not store.damage


async def test_a_lost_directory_of_tables_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A new broker, and a store with its tables, are not."""
    async with Broker(config(tmp_path)):
        pass
    async with Broker(config(tmp_path)):
        pass
    assert "has no table" not in caplog.text
    filled(tmp_path / "store", messages=3)
    (tmp_path / "store" / "config" / "topics.json").unlink()
    async with Broker(config(tmp_path)):
        pass
    assert f"{tmp_path / 'store' / 'config'} has no table: topics, groups and" in caplog.text


async def test_settings_of_rocketmq_without_effect_are_logged_and_shown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A table that RocketMQ wrote loads, whatever it asks for."""
    filled(tmp_path / "store")
    topics = {
        f"t{number}": {"topicName": f"t{number}", "attributes": {"cleanup.policy": "COMPACTION"}}
        for number in range(30)
    }
    group = {"groupName": "g", "attributes": {"lite.bind.topic": "t0"}}
    config_path = tmp_path / "store" / "config"
    (config_path / "topics.json").write_text(json.dumps({"topicConfigTable": topics}))
    (config_path / "subscriptionGroup.json").write_text(json.dumps({"subscriptionGroupTable": {"g": group}}))
    with caplog.at_level("WARNING"):
        async with Broker(config(tmp_path)) as broker:
            shown = broker.services.runtime_info.table()["attributesWithoutEffect"]
            groups = broker.metadata.groups
            groups.update(SubscriptionGroupConfig(group_name="g", attributes={"-lite.bind.topic": ""}))
            fewer = broker.services.runtime_info.table()["attributesWithoutEffect"]
    said = [line for line in caplog.messages if "without effect" in line]
    assert len(said) == 21 and "attributes of 11 more" in said[-1]
    assert "topic t0: cleanup.policy=COMPACTION: there is no compaction" in shown
    assert "attributes of 10 more" in fewer
