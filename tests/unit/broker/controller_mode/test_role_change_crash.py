"""S5: a promotion that is torn away at any operation on the disk, or fails there, and is begun again.

Real store, real epoch file, real HaService. Whatever was left, the second promotion ends where one that was
not disturbed ends: a log of whole records, an epoch that begins at its end, no queue offset twice.
"""

from pathlib import Path
from random import Random

import pytest

from broker.ha.core.epochs import Epochs
from broker.ha.epoch_file import EpochFile
from broker.ha.service import HaService
from broker.store.log.sync_fault import SyncError
from broker.store.message_store import MessageStore
from keelmq.remoting.operation import LocalProtocolError
from keelmq.remoting.operations.controller import SyncStateSet
from tests.support.ha_parts import ha_service
from tests.support.store_disk import After, FailsOnce, StoreDisk, Torn
from tests.support.store_parts import FILE_BYTES, bodies, crash, open_store, put
from tests.unit.broker.ha.test_ha_service import FAST

EPOCH = 3
FLUSHED, LATER = 8, 4
"""Messages that are durable, and messages that are in the page cache: more than one file of the log."""
SURVIVALS = 4  # 0: a kill; else a power cut, each time another one


class NoController:
    """There are no slaves."""

    async def alter_sync_state_set(self, _new: frozenset[int], _epoch: int) -> SyncStateSet | None:
        return None

    async def read_sync_state_set(self, _epoch: int) -> SyncStateSet | None:
        return None


def slave(root: Path, *, half_message: bool = True) -> tuple[MessageStore, StoreDisk]:
    """A replica, perhaps in the middle of a message. What came last is in the page cache only."""
    store = open_store(root)
    for index in range(FLUSHED):
        put(store, b"flushed %d " % index * 30, queue_id=index % 2)
    store.set_confirm_offset(store.commit_log.max_offset)
    store.flush_checkpoint()
    epochs = EpochFile(root / "epochFileCheckpoint")
    epochs.save(Epochs.of([(1, 0), (2, store.commit_log.max_offset)]))
    epochs.prepare()  # at its start, so it is durable
    disk = StoreDisk(root)
    for index in range(LATER):
        put(store, b"later %d " % index * 30, queue_id=index % 2)
    half = bytes(store.commit_log.view(0, 60))
    store.become_slave()
    if half_message:
        store.commit_log.receive_view()[: len(half)] = half
        store.commit_log.received(len(half))
    return store, disk


def service_of(store: MessageStore) -> HaService:
    service = ha_service(
        store,
        epoch_path=store.root / "epochFileCheckpoint",
        settings=FAST,
    )
    service.log_epochs.load()
    return service


async def promote(service: HaService) -> None:
    alone = SyncStateSet(sync_state_set=[1], sync_state_set_epoch=9)
    await service.become_master(broker_id=1, epoch=EPOCH, sync_state_set=alone, controller=NoController())


async def check(store: MessageStore, *, complete: bool) -> None:
    """Begun again, it ends well. complete: nothing of the page cache was lost."""
    service = service_of(store)
    await promote(service)
    end = store.commit_log.max_offset
    epochs = service.log_epochs.now.pairs
    assert epochs[-1] == (EPOCH, end), "what is written from now on is of this epoch"
    assert [start for _, start in epochs] == sorted(start for _, start in epochs)
    assert EpochFile(store.root / "epochFileCheckpoint").load() == service.log_epochs.now
    while store.dispatcher.dispatch(64):
        pass
    found = [body for queue in range(2) for body in bodies(store, queue)]
    assert sum(body.startswith(b"flushed") for body in found) == FLUSHED
    assert len(found) == FLUSHED + LATER or not complete
    before = [store.max_queue_offset("TopicA", queue) for queue in range(2)]
    _, _, queue_offset = put(store, b"new", queue_id=0)
    assert queue_offset == before[0], "the next offset, neither a used one nor a hole"
    assert store.commit_log.view(end, 8), "and it stands where the epoch begins"
    await service.stop()
    crash(store)


@pytest.mark.parametrize("survival", range(SURVIVALS))
async def test_torn_away_at_every_operation_of_a_promotion(tmp_path: Path, survival: int) -> None:
    """Pitfalls 3, 8, 25 and 42."""
    operations, done = 0, False
    while not done:
        store, disk = slave(tmp_path / f"{operations}", half_message=survival < 2)
        service = service_of(store)
        with disk.watched(After(operations)):
            try:
                await promote(service)
                await service.log_epochs.finish()
                done = True
            except Torn:
                pass
        if survival == 0:
            left = disk.survivors_of_a_kill(tmp_path / f"{operations}-left")
        else:
            seed = survival + operations * SURVIVALS
            left = disk.survivors_of_a_power_cut(tmp_path / f"{operations}-left", Random(seed))
        await service.stop()
        crash(store)
        await check(open_store(left, master=False), complete=survival == 0)
        operations += 1
    assert operations > (5 if survival < 2 else 3)


async def test_a_failure_at_every_operation_of_a_promotion(tmp_path: Path) -> None:
    """The same process, the same epoch, once more: upstream keeps the epoch and never tries again."""
    operation = syncs = 0
    while True:
        store, disk = slave(tmp_path / f"{operation}")
        service, hook = service_of(store), FailsOnce(operation)
        with disk.watched(hook):
            try:
                await promote(service)
            except SyncError:  # pages may be lost: only a new process asks the disk again
                with pytest.raises(LocalProtocolError, match="could not be synced"):
                    await promote(service)
                assert service.mastership is None
                syncs += 1
                crash(store)
                store = open_store(tmp_path / f"{operation}", master=False)
                service = service_of(store)
                await promote(service)
            except OSError:
                assert service.mastership is None, "half a master takes no messages"
                await promote(service)
            await service.log_epochs.finish()
        assert service.mastership is not None and service.mastership.epoch == EPOCH
        await service.stop()
        await check(store, complete=True)
        if not hook.failed:
            break
        operation += 1
    assert operation > 5 and syncs and FILE_BYTES == 4_096
