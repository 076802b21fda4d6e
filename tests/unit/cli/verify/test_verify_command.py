"""keelmq verify with brokers of this process, and with files."""

import asyncio
import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from broker.admin.repair import log_files
from broker.app.broker import Broker
from broker.backup.checksums import Search, search_damage
from broker.backup.manifest import BackupError
from broker.store.queue.consume_queue import UNIT_BYTES
from cli.keelmq import app
from cli.verify.command import lines_of
from cli.verify.core.compare import Difference
from cli.verify.group import GroupComparison, GroupReport
from cli.verify.members import unlisted
from keelmq.client.admin import AdminClient, AdminError
from keelmq.client.admin.brokers import BrokerAdmin
from keelmq.client.admin.controllers import ControllerAdmin
from keelmq.client.admin.name_servers import NameServerAdmin
from keelmq.client.admin.store_copies import StoreCopyAdmin
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.codes import RequestCode, ResponseCode
from keelmq.remoting.operation import Ok
from keelmq.remoting.operations.controller import BrokerReplicasInfo, ReplicaIdentity, ReplicasInfo
from keelmq.remoting.operations.route import BrokerData, ClusterInfo
from keelmq.remoting.operations.store_copies import (
    CHECKSUM_BYTES_MAX,
    PIECE_BYTES_MIN,
    QueueChecksums,
    QueueChecksumsRequest,
)
from tests.support.store_parts import FILE_BYTES, crash, open_store, put_many
from tests.unit.broker.app.test_broker_app import config, send
from tests.unit.broker.backup.test_store_backup import backed_up, filled

OF_VERIFY = (
    RequestCode.KEELMQ_GET_REPLICA_DIGEST,
    RequestCode.KEELMQ_GET_LOG_CHECKSUMS,
    RequestCode.KEELMQ_GET_QUEUE_CHECKSUMS,
    RequestCode.KEELMQ_CHECK_LOG_RECORDS,
)

SLAVE: dict[str, object] = {"broker_id": 1, "broker_role": "SLAVE", "ha_master_address": "127.0.0.1:1"}


def verify(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["verify", *map(str, arguments)])


async def compared(*brokers: Broker) -> GroupReport:
    async with AdminClient() as admin:
        comparison = GroupComparison(admin, "b", bytes_per_second=0, tell=lambda *_: None)
        return await comparison.run([each.address for each in brokers])


# -- brokers -----------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_two_brokers_with_the_same_files(tmp_path: Path) -> None:
    client = RemotingClient()
    async with Broker(config(tmp_path / "one")) as one:
        for number in range(300):
            assert isinstance(await send(client, one, b"%d" % number * 300), Ok)
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    async with Broker(config(tmp_path / "one")) as one, Broker(config(tmp_path / "two")) as two:
        report = await compared(one, two)
        assert report.differences == [] and report.silent == {} and report.is_equal
        assert (report.start, report.end) == (0, one.store.confirm_offset)
        assert report.entries == 300 and report.queues == 1
    await client.close()


@pytest.mark.slow
async def test_a_replica_that_is_truncated_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by a fail-over: it had unconfirmed bytes. What is compared was confirmed, and stays."""
    client = RemotingClient()
    async with Broker(config(tmp_path / "one")) as one:
        for number in range(30):
            assert isinstance(await send(client, one, b"%d" % number), Ok)
    await client.close()
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    monkeypatch.setattr("broker.backup.checksums.UNITS_AT_ONCE", 1)
    ask = StoreCopyAdmin.queue_checksums
    async with Broker(config(tmp_path / "one")) as one, Broker(config(tmp_path / "two")) as two:

        async def truncate() -> None:
            while True:
                two.store.cutter.truncate(two.store.commit_log.max_offset)
                await asyncio.sleep(0)

        async def queue_checksums(
            admin: StoreCopyAdmin, address: str, request: QueueChecksumsRequest
        ) -> QueueChecksums:
            cuts = asyncio.create_task(truncate())
            try:
                return await ask(admin, address, request)
            finally:
                cuts.cancel()

        monkeypatch.setattr(StoreCopyAdmin, "queue_checksums", queue_checksums)
        report = await compared(one, two)
        assert report.differences == [] and report.silent == {}


@pytest.mark.slow
async def test_two_logs_that_differ(tmp_path: Path) -> None:
    client = RemotingClient()
    async with (
        Broker(config(tmp_path / "one")) as one,
        Broker(config(tmp_path / "two")) as two,
    ):
        for broker in (one, two):
            assert isinstance(await send(client, broker, b"x" * 500), Ok)
        report = await compared(one, two)
        # the time and the address of the broker are in a record
        differences = [each for each in report.differences if each.kind == "log"]
        assert differences and not any(each.is_decided for each in differences)
        for difference in differences:
            assert set(difference.brokers) == {one.address, two.address}, "nobody knows which one is right"
        shown = "\n".join(lines_of(report))
        assert "DIFFERENT log" in shown and "it is not known which copy is right" in shown
        assert "next: do not overwrite or delete any replica" in shown and "--resync" not in shown
    await client.close()


def of_log(report: GroupReport) -> list[Difference]:
    """The tables differ as well: this slave has no master to copy them from."""
    return [each for each in report.differences if each.kind == "log"]


async def stored_bodies(root: Path) -> list[tuple[int, bytes]]:
    """Writes 20 messages to a new store; returns (CommitLog offset of the body, body)."""
    client = RemotingClient()
    async with Broker(config(root)) as broker:
        for number in range(20):
            assert isinstance(await send(client, broker, b"body-%02d-" % number * 30), Ok)
    await client.close()
    log = (root / "store" / "commitlog" / f"{0:020}").read_bytes()
    return [(log.index(body), body) for body in (b"body-%02d-" % number * 30 for number in range(20))]


def flip(root: Path, offset: int) -> None:
    with (root / "store" / "commitlog" / f"{0:020}").open("r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ 1]))


@pytest.mark.slow
@pytest.mark.parametrize("damaged_role", ["master", "slave"])
async def test_the_damaged_replica_is_named_whatever_its_role(tmp_path: Path, damaged_role: str) -> None:
    bodies = await stored_bodies(tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    flip(tmp_path / "two", bodies[7][0] + 20)
    of_sound, of_damaged = (SLAVE, {}) if damaged_role == "master" else ({}, SLAVE)
    async with (
        Broker(config(tmp_path / "one", **of_sound)) as sound,
        Broker(config(tmp_path / "two", **of_damaged)) as damaged,
    ):
        report = await compared(sound, damaged)
        assert report.master == (sound if damaged_role == "slave" else damaged).address
        (difference,) = of_log(report)
        assert difference.brokers == (damaged.address,) and difference.is_decided
        start = bodies[7][0] - 88
        assert difference.offset == start and f"damaged at {damaged.address}: the checksum" in difference.text
        (step,) = report.log_steps()
        assert (step.overwrites, step.source) == (damaged.address, sound.address)
        assert report.value()["next"] == [step.text]
        (known,) = damaged.store.damage.ranges
        assert known.start == start and not sound.store.damage, "its broker knows what it has to heal"


@pytest.mark.slow
async def test_replicas_with_different_damaged_records_keep_them(tmp_path: Path) -> None:
    """One has the only sound copy of one record, the other one that of another."""
    bodies = await stored_bodies(tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    flip(tmp_path / "one", bodies[3][0])
    flip(tmp_path / "two", bodies[16][0])
    flip(tmp_path / "two", bodies[4][0] - 80)  # BODYCRC, in the record behind the other's
    async with Broker(config(tmp_path / "one")) as one, Broker(config(tmp_path / "two", **SLAVE)) as two:
        report = await compared(one, two)
        named = [each.brokers for each in of_log(report)]
        assert named == [(one.address,), (two.address,), (two.address,)]
        (step,) = report.log_steps()
        assert step.overwrites is None and "each may have the only sound copy" in step.text


@pytest.mark.slow
async def test_a_replica_that_cannot_check_records(tmp_path: Path) -> None:
    """An older version: its copy may be sound, so nobody is told to overwrite the other."""
    bodies = await stored_bodies(tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    flip(tmp_path / "two", bodies[7][0])
    async with Broker(config(tmp_path / "one")) as one, Broker(config(tmp_path / "two", **SLAVE)) as two:
        del one.operations.handlers[RequestCode.KEELMQ_CHECK_LOG_RECORDS]
        report = await compared(one, two)
        (difference,) = of_log(report)
        assert not difference.is_decided and "its version cannot check records" in difference.text
        assert [each.overwrites for each in report.log_steps()] == [None]


@pytest.mark.slow
async def test_more_places_than_are_examined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bodies = await stored_bodies(tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    for at, _ in bodies[::4]:
        flip(tmp_path / "two", at)
    monkeypatch.setattr("cli.verify.group.DIVERGENCES_MAX", 3)
    async with Broker(config(tmp_path / "one")) as one, Broker(config(tmp_path / "two", **SLAVE)) as two:
        report = await compared(one, two)
        assert len(report.verdicts) == 3 and not report.is_examined
        assert [each.overwrites for each in report.log_steps()] == [None]


@pytest.mark.slow
async def test_a_record_that_is_longer_than_the_first_reach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its begin and its end are looked for again, farther away."""
    bodies = await stored_bodies(tmp_path)
    (at, body), start = bodies[7], bodies[7][0] - 88
    flip(tmp_path, at)
    asked = []

    def search(data: bytes, *asked_for: int, **options: Any) -> Search:
        asked.append(len(data))
        return search_damage(data, *asked_for, **options)

    monkeypatch.setattr("broker.backup.checksums.search_damage", search)
    monkeypatch.setattr("broker.backup.checksums.REACHES", (32, 17 << 20))
    async with AdminClient() as admin, Broker(config(tmp_path)) as broker:
        found = await admin.store_copies.check_log_records(broker.address, at + 100, at + 110)
        (part,) = found.damaged
        assert (part.start_offset, part.end_offset > at + len(body)) == (start, True)
        assert asked == [74, broker.store.confirm_offset]


async def test_one_replica_left_is_not_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Broker(config(tmp_path)) as broker:
        group = BrokerData(cluster="C", broker_name="b", broker_addrs={0: broker.address})

        async def cluster_info(admin: NameServerAdmin, namesrv_addr: str) -> ClusterInfo:
            return ClusterInfo(broker_addr_table={"b": group}, cluster_addr_table={"C": ["b"]})

        monkeypatch.setattr(NameServerAdmin, "cluster_info", cluster_info)
        found = await asyncio.to_thread(verify, "-n", "127.0.0.1:1")
        assert found.exit_code == 1 and "nothing to compare: 1 replica answered" in found.output


async def run_with_controllers(
    monkeypatch: pytest.MonkeyPatch, brokers: list[Broker], sets: ReplicasInfo | AdminError
) -> Result:
    """Runs verify for a group of which the name servers list `brokers`, and the controllers have `sets`."""
    group = BrokerData(
        cluster="C",
        broker_name="b",
        broker_addrs={number: each.address for number, each in enumerate(brokers)},
    )

    async def cluster_info(admin: NameServerAdmin, namesrv_addr: str) -> ClusterInfo:
        return ClusterInfo(broker_addr_table={"b": group}, cluster_addr_table={"C": ["b"]})

    async def broker_config(admin: BrokerAdmin, address: str) -> dict[str, str]:
        return {"enableControllerMode": "true", "controllerAddr": "127.0.0.1:1"}

    async def sync_state_sets(
        admin: ControllerAdmin, controllers: str, names: list[str]
    ) -> BrokerReplicasInfo:
        assert (controllers, names) == ("127.0.0.1:1", ["b"])
        if isinstance(sets, AdminError):
            raise sets
        return BrokerReplicasInfo(replicas_info_table={"b": sets})

    monkeypatch.setattr(NameServerAdmin, "cluster_info", cluster_info)
    monkeypatch.setattr(BrokerAdmin, "broker_config", broker_config)
    monkeypatch.setattr(ControllerAdmin, "sync_state_sets", sync_state_sets)
    return await asyncio.to_thread(verify, "-n", "127.0.0.1:1")


def replica(broker_id: int, address: str) -> ReplicaIdentity:
    return ReplicaIdentity(broker_name="b", broker_id=broker_id, broker_address=address)


async def test_a_member_that_only_the_controllers_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of three replicas are equal; the third died, and the name servers have removed it."""
    async with Broker(config(tmp_path / "one")) as one:
        pass
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    async with Broker(config(tmp_path / "one")) as one, Broker(config(tmp_path / "two")) as two:
        both = [replica(1, "other-name-of-one:10911"), replica(2, two.address)]
        whole = ReplicasInfo(master_broker_id=1, in_sync_replicas=both[:1], not_in_sync_replicas=both[1:])
        assert (await run_with_controllers(monkeypatch, [one, two], whole)).exit_code == 0
        dead = whole.model_copy(update={"not_in_sync_replicas": [both[1], replica(3, "127.0.0.1:1")]})
        found = await run_with_controllers(monkeypatch, [one, two], dead)
        assert found.exit_code == 1 and "b: 127.0.0.1:1: " in found.output and "are equal" in found.output
        silent = AdminError("getControllerMetaData", "127.0.0.1:1", "connection refused")
        unknown = await run_with_controllers(monkeypatch, [one, two], silent)
        assert unknown.exit_code == 1 and "the members of the groups are not known" in unknown.output


def test_replicas_that_a_route_lacks() -> None:
    broker = BrokerData(cluster="C", broker_name="b", broker_addrs={0: "a:1", 2: "a:2"})
    info = ReplicasInfo(
        master_broker_id=1,
        in_sync_replicas=[replica(1, "x:1"), replica(4, "a:4")],
        not_in_sync_replicas=[replica(2, "x:2"), replica(3, "a:3"), replica(5, "a:1")],
    )
    assert unlisted(broker, info) == ["a:3", "a:4"]
    no_master = broker.model_copy(update={"broker_addrs": {2: "a:2"}})
    assert unlisted(no_master, info) == ["x:1", "a:3", "a:4", "a:1"]
    assert unlisted(broker, ReplicasInfo()) == []


async def test_the_limits_of_a_check_of_records(tmp_path: Path) -> None:
    client = RemotingClient()
    async with AdminClient(client) as admin, Broker(config(tmp_path)) as broker:
        assert isinstance(await send(client, broker, b"x" * 500), Ok)
        end = broker.store.confirm_offset
        whole = await admin.store_copies.check_log_records(broker.address, 300, 301)
        assert (whole.damaged, whole.records) == ([], 1)
        flip(tmp_path, 300)
        (part,) = (await admin.store_copies.check_log_records(broker.address, 300, 301)).damaged
        (known,) = broker.store.damage.ranges
        assert (known.start, known.end) == (part.start_offset, part.end_offset), "so that it is healed"
        for start, stop in ((0, end + 1), (5, 5), (9, 5), (0, (1 << 20) + 1)):
            with pytest.raises(AdminError, match=r"\[\d+, \d+\)"):
                await admin.store_copies.check_log_records(broker.address, start, stop)
    await client.close()


async def test_a_broker_that_does_not_know_the_request(tmp_path: Path) -> None:
    """RocketMQ's: it is named, and the others are compared."""
    async with Broker(config(tmp_path / "one")) as one, Broker(config(tmp_path / "two")) as java:
        for code in OF_VERIFY:
            del java.operations.handlers[code]
        report = await compared(one, java, one)
        assert report.incomparable == [java.address]
        assert "cannot be compared" in report.silent[java.address]
        alone = await compared(java)
        assert alone.compared == [] and not alone.is_well
        assert "nothing to compare" in lines_of(alone)[-1]


async def test_the_limits_of_a_request(tmp_path: Path) -> None:
    client = RemotingClient()
    async with AdminClient(client) as admin, Broker(config(tmp_path)) as broker:
        assert isinstance(await send(client, broker, b"x" * 500), Ok)
        end = broker.store.confirm_offset
        whole = await admin.store_copies.log_checksums(broker.address, 0, end, 1 << 20)
        assert len(whole) == 1
        pieces = await admin.store_copies.log_checksums(broker.address, 0, end, PIECE_BYTES_MIN)
        assert len(pieces) == -(-end // PIECE_BYTES_MIN)
        for start, stop, size in (
            (0, end + 1, 1 << 20),  # not confirmed
            (0, CHECKSUM_BYTES_MAX + 1, 1 << 20),
            (0, PIECE_BYTES_MIN * 5_000, PIECE_BYTES_MIN),
            (end, 0, 1 << 20),
        ):
            with pytest.raises(Exception, match=r"\[\d+, \d+\)"):
                await admin.store_copies.log_checksums(broker.address, start, stop, size)
    await client.close()


@pytest.mark.slow
async def test_a_replica_whose_disk_does_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are equal, and all is not well."""
    client = RemotingClient()
    async with Broker(config(tmp_path / "one")) as one:
        assert isinstance(await send(client, one, b"x"), Ok)
    await client.close()
    for name in ("two", "three"):
        shutil.copytree(tmp_path / "one", tmp_path / name)
    async with (
        Broker(config(tmp_path / "one")) as one,
        Broker(config(tmp_path / "two")) as two,
        Broker(config(tmp_path / "three")) as three,
    ):
        addresses = {number: each.address for number, each in enumerate((one, two, three))}
        group = BrokerData(cluster="C", broker_name="b", broker_addrs=addresses)

        async def cluster_info(admin: NameServerAdmin, namesrv_addr: str) -> ClusterInfo:
            return ClusterInfo(broker_addr_table={"b": group}, cluster_addr_table={"C": ["b"]})

        def unreadable(offset: int) -> int:
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(NameServerAdmin, "cluster_info", cluster_info)
        well = await asyncio.to_thread(verify, "-n", "127.0.0.1:1")
        assert well.exit_code == 0 and "3 replicas are equal" in well.output, well.output
        monkeypatch.setattr(three.store.commit_log, "open_file", unreadable)
        found = await asyncio.to_thread(verify, "-n", "127.0.0.1:1")
        assert "2 replicas are equal" in found.output and f"b: {three.address}: " in found.output
        assert "Input/output error" in found.output and found.exit_code == 1, found.output


async def test_one_request_for_checksums_at_a_time(tmp_path: Path) -> None:
    client = RemotingClient()
    async with AdminClient(client) as admin, Broker(config(tmp_path)) as broker:
        assert isinstance(await send(client, broker, b"x" * 500), Ok)
        end = broker.store.confirm_offset
        said = await asyncio.gather(
            *(admin.store_copies.log_checksums(broker.address, 0, end, 1 << 20) for _ in range(8)),
            return_exceptions=True,
        )
        served = [each for each in said if isinstance(each, list)]
        refused = [each for each in said if not isinstance(each, list)]
        assert served and all(getattr(each, "code", 0) == ResponseCode.SYSTEM_BUSY for each in refused)
    await client.close()


# -- files -------------------------------------------------------------------------------------------------


def test_a_whole_store_and_a_flipped_byte(tmp_path: Path) -> None:
    filled(tmp_path / "store")
    whole = verify("--from-dir", tmp_path / "store", "--json")
    assert whole.exit_code == 0, whole.output
    value = json.loads(whole.output)
    assert value["records"] == 100 and value["faults"] == [] and value["epochs"] == [[1, 0], [4, 2000]]
    path = tmp_path / "store" / "commitlog" / f"{0:020}"
    content = bytearray(path.read_bytes())
    before = bytes(content)
    content[2_000] ^= 1
    path.write_bytes(content)
    found = verify("--from-dir", tmp_path / "store")
    assert found.exit_code == 1 and "FAULT" in found.output and "next: keep this store" in found.output
    assert path.read_bytes() == bytes(content), "it changes nothing"
    path.write_bytes(before)


def test_a_queue_that_points_elsewhere(tmp_path: Path) -> None:
    filled(tmp_path / "store")
    path = tmp_path / "store" / "consumequeue" / "TopicA" / "1" / f"{0:020}"
    content = bytearray(path.read_bytes())
    content[20 * 3 + 7] ^= 4  # the log offset of entry 3
    path.write_bytes(content)
    found = verify("--from-dir", tmp_path / "store")
    assert found.exit_code == 1 and "queue TopicA 1: entry 3 points to" in found.output
    assert "next: keelmq repair --store DIR --queues" in found.output


def _lost_file(root: Path) -> None:
    (root / "commitlog" / f"{FILE_BYTES:020}").unlink()


def _empty_file(root: Path) -> None:
    os.truncate(root / "commitlog" / f"{FILE_BYTES:020}", 0)


def _damaged_end(root: Path) -> None:
    last = max(log_files(root))
    with last.open("r+b") as file:
        (size,) = struct.unpack(">i", file.read(4))
        file.seek(size + 4)  # the magic code of its second record
        file.write(bytes(4))


def _hole_in_a_queue(root: Path) -> None:
    with (root / "consumequeue" / "TopicA" / "1" / f"{0:020}").open("r+b") as file:
        file.seek(3 * UNIT_BYTES)
        file.write(bytes(2 * UNIT_BYTES))


def _shorter_queue(root: Path) -> None:
    max((root / "consumequeue" / "TopicA" / "1").iterdir()).unlink()


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        (_lost_file, f"the file before it ends at {FILE_BYTES}"),
        (_empty_file, f"has 0 bytes, and the others {FILE_BYTES}"),
        (_damaged_end, "its next record is damaged or missing"),
        (_hole_in_a_queue, "queue TopicA 1: entry 3 is missing"),
        (_shorter_queue, "queue TopicA 1: entry 40 is missing"),
    ],
)
def test_messages_that_no_start_brings_back(
    tmp_path: Path, damage: Callable[[Path], None], fault: str
) -> None:
    root = tmp_path / "store"
    filled(root)
    damage(root)
    found = verify("--from-dir", root)
    assert found.exit_code == 1 and fault in found.output, found.output
    assert "the next start adds them" not in found.output
    of_queue = "queue" in fault
    assert (
        "repair --store DIR --queues" if of_queue else "restore a backup to another directory"
    ) in found.output
    if not of_queue:
        with pytest.raises(BackupError, match=fault):
            backed_up(root, tmp_path / "backup")


def test_records_that_are_not_in_a_queue_yet_are_no_fault(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    put_many(store, 10)
    end = store.commit_log.max_offset
    put_many(store, 1)
    store.dispatcher.confirm_offset = end
    crash(store)
    for path in (tmp_path / "store" / "consumequeue").glob("*/*/*"):
        path.unlink()
    found = verify("--from-dir", tmp_path / "store")
    assert found.exit_code == 0 and "11 records without an entry" in found.output, found.output


def test_more_queues_than_files_that_may_be_open(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put_many(store, 180, queues=60)
    store.close()
    command = [
        "sh",
        "-c",
        f"ulimit -n 40; exec {sys.executable} -m cli.keelmq verify --from-dir {tmp_path} --json",
    ]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert found.returncode == 0, found.stderr
    value = json.loads(found.stdout)
    assert (value["records"], value["unqueued"], value["faults"]) == (180, 0, [])


def test_backups_are_checked_as_well(tmp_path: Path) -> None:
    filled(tmp_path / "store")
    backup = backed_up(tmp_path / "store", tmp_path / "backup")
    assert "the backup is whole" in verify("--from-dir", backup).output
    path = backup / "log" / f"{0:020}"
    path.write_bytes(path.read_bytes()[:-1])
    found = verify("--from-dir", backup)
    assert found.exit_code == 1 and "is damaged" in found.output


def test_one_of_the_two_ways(tmp_path: Path) -> None:
    assert verify().exit_code == 2
    assert verify("-n", "127.0.0.1:1", "--from-dir", tmp_path).exit_code == 2
    nothing = verify("--from-dir", tmp_path)
    assert nothing.exit_code == 1 and "it is not a broker's store" in nothing.output


def test_nobody_answers() -> None:
    assert verify("-n", "127.0.0.1:1").exit_code == 3


def test_an_option_of_the_other_way_is_a_usage_error(tmp_path: Path) -> None:
    """--epoch-file is of files, --group of replicas: without it something else would be checked."""
    of_files = verify("-n", "127.0.0.1:1", "--epoch-file", tmp_path / "epochs")
    assert of_files.exit_code == 2 and "--epoch-file" in of_files.output
    of_replicas = verify("--from-dir", tmp_path, "--group", "broker-a")
    assert of_replicas.exit_code == 2 and "--group" in of_replicas.output
