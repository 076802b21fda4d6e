"""keelmq repair asks the group before it gives anything up: what it refuses, and what it then does."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from broker.controller_mode.broker_meta_file import META_NAME, BrokerMeta, encode_meta
from broker.ha.epoch_file import EpochFile
from cli.keelmq import app
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Call, CommandError, Empty, OperationTable, Reply
from keelmq.remoting.operations.broker import GET_BROKER_RUNTIME_INFO, CommitLogOffsets
from keelmq.remoting.operations.controller import (
    GET_METADATA_INFO,
    GET_SYNC_STATE_DATA,
    BrokerReplicasInfo,
    ControllerMetadata,
    ReplicaIdentity,
    ReplicasInfo,
)
from keelmq.remoting.operations.store_copies import (
    GET_REPLICA_DIGEST,
    READ_LOG,
    LogRange,
    ReadLogRequest,
    ReplicaDigest,
)
from keelmq.remoting.servers.tcp import TcpServer
from tests.support.healing import Replica, flip, group_of
from tests.support.store_parts import crash, open_store

OWN_ID, PEER_ID = 1, 2


class Peer:
    """The controllers and the other replica, at one address. `store`: of the replica, which is master."""

    def __init__(self, replica: Replica) -> None:
        self.replica, self.address = replica, ""
        self.master_id: int | None = PEER_ID
        self.in_sync = [PEER_ID]
        self.damaged: list[LogRange] = []
        self.confirmed = replica.store.confirm_offset
        self.is_rocketmq = False
        self.others = [PEER_ID]

    async def metadata(self, header: Empty, call: Call) -> ControllerMetadata:
        return ControllerMetadata(
            group="g",
            controller_leader_id="n0",
            controller_leader_address=self.address,
            is_leader=True,
            peers=f"n0:{self.address}",
        )

    async def replicas(self, header: Empty, call: Call) -> Reply:
        def at(broker_id: int) -> ReplicaIdentity:
            address = self.address if broker_id == PEER_ID else "127.0.0.1:1"
            return ReplicaIdentity(
                broker_name="b", broker_id=broker_id, broker_address=address, alive=broker_id == PEER_ID
            )

        group = ReplicasInfo(
            master_broker_id=self.master_id,
            master_address=self.address,
            in_sync_replicas=[at(each) for each in self.in_sync],
            not_in_sync_replicas=[at(each) for each in [OWN_ID, *self.others] if each not in self.in_sync],
        )
        return Reply(body=BrokerReplicasInfo(replicas_info_table={"b": group}))

    async def digest(self, header: Empty, call: Call) -> Reply:
        self._known()
        return Reply(
            body=ReplicaDigest(
                cluster="c", broker_name="b", broker_id=PEER_ID, is_master=True, min_offset=0,
                max_offset=self.confirmed, confirm_offset=self.confirmed, dispatch_offset=self.confirmed,
                cut_count=0, damaged=self.damaged,
            )
        )  # fmt: skip

    async def read_log(self, header: ReadLogRequest, call: Call) -> Reply:
        self._known()
        return await self.replica.reads().read_log(header, call)

    async def runtime(self, header: Empty, call: Call) -> Reply:
        table = {"commitLogMinOffset": "0", "commitLogMaxOffset": str(self.confirmed)}
        return Reply(body=CommitLogOffsets(table=table))

    def _known(self) -> None:
        if self.is_rocketmq:
            raise CommandError(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "no")


@asynccontextmanager
async def group(tmp_path: Path, hurt: tuple[int, ...] = (6,)) -> AsyncIterator[tuple[Path, Peer]]:
    """A stopped store with damaged records, and the rest of its group, which is sound."""
    mine, other = group_of(tmp_path, 2)
    for number in hurt:
        flip(mine.store, mine.places[number][1] - 20)
        flip(mine.store, mine.places[number][0] + 90)
    root = mine.store.root
    mine.store.close()
    EpochFile(root / "epochFileCheckpoint").save(mine.epochs)
    (root / META_NAME).write_bytes(encode_meta(BrokerMeta("c", "b", OWN_ID, "x;1")))
    peer, table = Peer(other), OperationTable()
    bindings: list[tuple[Any, Any]] = [
        (GET_METADATA_INFO, peer.metadata),
        (GET_SYNC_STATE_DATA, peer.replicas),
        (GET_REPLICA_DIGEST, peer.digest),
        (READ_LOG, peer.read_log),
        (GET_BROKER_RUNTIME_INFO, peer.runtime),
    ]
    for operation, handler in bindings:
        table.bind(operation, handler)
    server = TcpServer(table, host="127.0.0.1", port=0, name="the group")
    await server.start()
    peer.address = "{}:{}".format(*server.address)
    try:
        yield root, peer
    finally:
        await server.close()
        crash(other.store)


async def repair(root: Path, peer: Peer, *flags: str) -> Result:
    command = ["repair", "--store", str(root), "-a", peer.address, *flags]
    return await asyncio.to_thread(CliRunner().invoke, app, command)


def content(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


async def test_a_resync_needs_another_sound_copy(tmp_path: Path) -> None:
    async with group(tmp_path) as (root, peer):
        before = content(root)
        changes: list[tuple[dict[str, Any], str]] = [
            ({"in_sync": [OWN_ID]}, "the only one of b that is in sync"),
            ({"in_sync": [OWN_ID, PEER_ID], "master_id": OWN_ID}, "no other replica of b is master"),
            ({"confirmed": peer.confirmed - 1}, "it was confirmed up to"),
            ({"damaged": [LogRange(start_offset=5, end_offset=9)]}, "has a damaged log, at 5..9"),
            ({"is_rocketmq": True, "confirmed": 3}, "it was confirmed up to"),
        ]
        for changed, why in changes:
            kept = {name: getattr(peer, name) for name in changed}
            for name, value in changed.items():
                setattr(peer, name, value)
            refused = await repair(root, peer, "--resync", "--yes")
            assert refused.exit_code == 1 and why in refused.output, refused.output
            assert content(root) == before
            for name, value in kept.items():
                setattr(peer, name, value)
        nobody = await asyncio.to_thread(
            CliRunner().invoke, app, ["repair", "--store", str(root), "--resync", "--yes"]
        )
        assert nobody.exit_code == 1 and "give them with -a" in nobody.output
        assert content(root) == before
        done = await repair(root, peer, "--resync", "--yes")
        assert done.exit_code == 0 and "moved aside" in done.output, done.output
        assert f"master {peer.address} (id 2) has the log 0..{peer.confirmed}" in done.output


async def test_a_resync_from_a_rocketmq_master(tmp_path: Path) -> None:
    async with group(tmp_path) as (root, peer):
        peer.is_rocketmq = True
        done = await repair(root, peer, "--resync", "--yes")
        assert done.exit_code == 0, done.output


async def test_what_another_replica_has_is_not_lost(tmp_path: Path) -> None:
    async with group(tmp_path) as (root, peer):
        before = content(root)
        for flags in (("--yes",), (), ("--yes", "--gone", str(PEER_ID)), ("--yes", "--alone")):
            refused = await repair(root, peer, "--mark-lost", "all", *flags)
            assert refused.exit_code == 1 and "has a sound copy" in refused.output, refused.output
            assert "queue TopicA 0: queue offset 3" in refused.output
        assert content(root) == before


async def test_a_replica_that_cannot_be_asked_could_have_it(tmp_path: Path) -> None:
    async with group(tmp_path) as (root, peer):
        peer.replica.store.damage.add(*peer.replica.places[6], "test")
        peer.others = [PEER_ID, 3]
        before = content(root)
        refused = await repair(root, peer, "--mark-lost", "all", "--yes")
        assert refused.exit_code == 1 and "replica 3 (127.0.0.1:1) could have" in refused.output, (
            refused.output
        )
        assert "--gone 3" in refused.output
        assert content(root) == before
        shown = await repair(root, peer, "--mark-lost", "all", "--gone", "3")
        assert shown.exit_code == 0 and "1 message would be lost" in shown.output, shown.output
        assert content(root) == before
        done = await repair(root, peer, "--mark-lost", "all", "--gone", "3", "--yes")
        assert done.exit_code == 0 and "1 message is marked as lost" in done.output, done.output
        store = open_store(root)
        assert not store.damage
        crash(store)
        again = await repair(root, peer, "--mark-lost", "all", "--yes")
        assert again.exit_code == 0 and "no damaged range" in again.output


async def test_a_range_that_is_named(tmp_path: Path) -> None:
    async with group(tmp_path, (6, 12)) as (root, peer):
        places = peer.replica.places
        for number in (6, 12):
            peer.replica.store.damage.add(*places[number], "test")
        start, end = places[12]
        for wrong in (f"{start}-{end + 1}", "x", f"{start}"):
            refused = await repair(root, peer, "--mark-lost", wrong, "--yes")
            assert refused.exit_code == 1, refused.output
        done = await repair(root, peer, "--mark-lost", f"{start}-{end}", "--yes")
        assert done.exit_code == 0, done.output
        left = await repair(root, peer, "--mark-lost", "all")
        assert f"damaged {places[6][0]}-{places[6][1]}" in left.output and str(start) not in left.output


def test_wrong_usage(tmp_path: Path) -> None:
    for flags in (["--gone", "1"], ["--alone"], ["--mark-lost", "all", "--queues"]):
        done = CliRunner().invoke(app, ["repair", "--store", str(tmp_path), *flags])
        assert done.exit_code == 2
