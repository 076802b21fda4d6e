"""The epochs of a log are found again by its master's log: bytes that differ, and bytes that are damaged."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from broker.backup.checksums import StoreChecksums
from broker.ha.core.epochs import Epochs
from broker.ha.ports import FoundEpochs
from broker.healing.lost_epochs import EpochFinder
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Failed, Ok, Outcome
from keelmq.remoting.operations.store_copies import (
    GET_LOG_CHECKSUMS,
    GET_REPLICA_DIGEST,
    EpochStart,
    LogRange,
    ReplicaDigest,
)
from tests.support.healing import DirectClient, Replica, flip, group_of
from tests.support.store_parts import crash, open_store, put

EPOCH = 3
"""The last one of group_of()."""


class MasterClient(DirectClient):
    """Answers 29044 and 29045, too, as the master."""

    def __init__(self, master: Replica) -> None:
        super().__init__([master])
        self.master, self.is_rocketmq = master, False

    async def call(self, address: str, operation: Any, header: Any, *rest: Any, **more: Any) -> Outcome[Any]:
        store = self.master.store
        if self.is_rocketmq:
            return Failed(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "no")
        if operation is GET_LOG_CHECKSUMS:
            return Ok(None, await StoreChecksums(store).of_log(header))
        if operation is not GET_REPLICA_DIGEST:
            return await super().call(address, operation, header, *rest, **more)
        digest = ReplicaDigest(
            cluster="C",
            broker_name="b",
            broker_id=1,
            is_master=True,
            min_offset=store.commit_log.min_offset,
            max_offset=store.commit_log.max_offset,
            confirm_offset=store.confirm_offset,
            dispatch_offset=store.dispatch_offset,
            cut_count=0,
            epochs=[EpochStart(epoch=epoch, start_offset=at) for epoch, at in self.master.epochs.pairs],
            damaged=[LogRange(start_offset=each.start, end_offset=each.end) for each in store.damage.ranges],
        )
        return Ok(None, digest)


def finder(mine: Replica, client: MasterClient) -> EpochFinder:
    async def peers() -> Sequence[str]:
        return [client.master.name]

    return EpochFinder(mine.store, client, broker_name="b", peers=peers)  # type: ignore[arg-type]


def end(*replicas: Replica) -> None:
    for each in replicas:
        crash(each.store)


async def test_equal_logs_have_equal_epochs(tmp_path: Path) -> None:
    mine, master = replicas = group_of(tmp_path, 2)
    log_end = mine.store.commit_log.max_offset
    assert await finder(mine, MasterClient(master))(EPOCH) == FoundEpochs(master.epochs, log_end)
    assert not mine.store.damage
    end(*replicas)


async def test_another_history_ends_the_log(tmp_path: Path) -> None:
    mine, master = replicas = group_of(tmp_path, 2)
    same = mine.store.commit_log.max_offset
    for replica, body in ((mine, b"mine"), (master, b"master"), (master, b"more")):
        replica.store.become_master()
        put(replica.store, body)
    master.store.set_confirm_offset(master.store.commit_log.max_offset)
    assert await finder(mine, MasterClient(master))(EPOCH) == FoundEpochs(master.epochs, same)
    end(*replicas)


async def test_a_damaged_record_is_no_other_history(tmp_path: Path) -> None:
    mine, master = replicas = group_of(tmp_path, 2)
    start, stop = mine.places[5]
    flip(mine.store, stop - 20)
    flip(mine.store, start + 89)
    log_end = mine.store.commit_log.max_offset
    assert await finder(mine, MasterClient(master))(EPOCH) == FoundEpochs(master.epochs, log_end)
    assert mine.store.damage.overlaps(start, stop) is not None
    end(*replicas)


async def test_a_damaged_master_proves_nothing(tmp_path: Path) -> None:
    """Also if it does not know of the damage yet."""
    mine, master = replicas = group_of(tmp_path, 2)
    start, stop = master.places[5]
    flip(master.store, stop - 20)
    flip(master.store, start + 89)
    for _ in range(2):
        found = await finder(mine, MasterClient(master))(EPOCH)
        assert isinstance(found, str) and "damaged" in found
    assert master.store.damage and not mine.store.damage
    end(*replicas)


async def test_an_empty_log_is_not_compared(tmp_path: Path) -> None:
    """A replica that was killed before its first message: any master may be followed."""
    mine, master = replicas = group_of(tmp_path, 2)
    crash(mine.store)
    mine.store = open_store(tmp_path / "empty", master=False)
    client = MasterClient(master)
    client.is_rocketmq = True
    assert await finder(mine, client)(EPOCH) == FoundEpochs(Epochs(), 0)
    end(*replicas)


async def test_a_master_of_rocketmq_is_not_compared(tmp_path: Path) -> None:
    mine, master = replicas = group_of(tmp_path, 2)
    client = MasterClient(master)
    client.is_rocketmq = True
    found = await finder(mine, client)(EPOCH)
    assert isinstance(found, str) and "--resync" in found
    end(*replicas)
