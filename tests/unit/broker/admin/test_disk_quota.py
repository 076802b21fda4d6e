"""The quota of a store: what counts against it, what goes because of it, and what an operator is told."""

import logging
from collections.abc import Mapping
from pathlib import Path

import pytest
from pydantic import ValidationError

from broker.admin import disk_quota, retention_service
from broker.admin.disk_quota import DiskQuota
from broker.admin.metrics import scrape
from broker.admin.retention_service import RetentionService
from broker.app.broker import Broker
from broker.config.store_settings import StoreSettings
from broker.core.retention import QuotaUse
from broker.store.message_store import MessageStore
from tests.support.handler_context import send_gate
from tests.support.store_parts import FILE_BYTES, open_store, put_many
from tests.unit.broker.admin.test_live_settings import broker, change, conf
from tests.unit.broker.store.test_index import put_keyed
from tests.unit.broker.store.test_inner_batch import items, open_batches, put_items

__all__ = ["broker", "conf"]  # fixtures
NO_HOURS = {"deleteWhen": ""}


def settings_of(**settings: object) -> StoreSettings:
    return StoreSettings.model_validate(NO_HOURS | settings)


def retention_of(
    store: MessageStore, size: Mapping[Path, int] | int, *, used: float = 0.2, **settings: object
) -> RetentionService:
    async def nothing(ends: Mapping[tuple[str, int], int]) -> None:
        pass

    return RetentionService(
        store,
        send_gate(),
        settings_of(**settings),
        held_offset=lambda: 1 << 60,
        on_emptied=nothing,
        roll_timers=lambda log_offset: None,
        usage=lambda _: used,
        size=lambda path: size if isinstance(size, int) else size[path],
    )


def sizes_of(root: Path, *parts: str) -> int:
    """Sizes, not blocks, of the files that have the names of a log, a queue or an index."""
    found = [path for part in parts for path in (root / part).rglob("*") if path.name.isdecimal()]
    return sum(path.stat().st_size for path in found if path.is_file())


def sizes_on_disk(root: Path) -> int:
    return sizes_of(root, "commitlog", "consumequeue", "batchconsumequeue", "index")


async def test_it_counts_the_files_while_they_come_and_go(tmp_path: Path) -> None:
    store = open_batches(tmp_path, index_entries=8)
    quota = DiskQuota(store, settings_of(replicasPerDiskPartition=2), size=lambda _: 10_000)
    assert quota.used_bytes == sizes_on_disk(tmp_path)
    seen = set()
    for round_ in range(12):
        put_many(store, 40, queues=1 + round_ % 4)
        put_items(store, items(3))
        put_keyed(store, f"k{round_}")
        store.set_confirm_offset(store.commit_log.max_offset)
        store.index.write_pending()  # type: ignore[union-attr]
        assert quota.used_bytes == sizes_on_disk(tmp_path)
        store.flush()
        if round_ % 3 == 2:
            await retention_of(store, 1, used=0.86, deleteFileBatchMax=3).clean()
            assert quota.used_bytes == sizes_on_disk(tmp_path)
        seen.add(quota.used_bytes)
    assert len(seen) > 5
    store.become_slave()
    store.cutter.truncate(store.commit_log.max_offset - 3 * FILE_BYTES)
    assert quota.used_bytes == sizes_on_disk(tmp_path)
    store.close()


async def test_the_oldest_files_go_down_to_the_threshold_of_the_quota(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put_many(store, 1_000)
    store.flush()
    total = 4 * sizes_on_disk(tmp_path)
    retention = retention_of(store, total, replicasPerDiskPartition=4, deleteFileBatchMax=99)
    (use,) = retention.quota.uses()
    assert use == QuotaUse(total // 4, sizes_on_disk(tmp_path), use.kept_bytes)
    before = store.commit_log.min_offset
    await retention.clean()
    assert store.commit_log.min_offset > before
    threshold = int(0.8 * (total // 4))
    rest = retention.quota.used_bytes  # the queues' files went last, so it is below by some of them
    assert threshold - rest < FILE_BYTES + use.used_bytes - sizes_of(tmp_path, "commitlog")
    assert rest <= threshold
    await retention.clean()
    assert retention.quota.used_bytes == rest, "no more than necessary"
    store.close()


@pytest.mark.parametrize(
    "settings", [{}, {"quotaPercentForDiskPartition": "1.0"}, {"replicasPerDiskPartition": "1"}]
)  # fmt: skip
async def test_without_a_quota_nothing_goes(tmp_path: Path, settings: dict[str, object]) -> None:
    store = open_store(tmp_path)
    put_many(store, 400)
    store.flush()
    retention = retention_of(store, 1, **settings)
    assert retention.quota.uses() == ()
    assert retention.quota.quota_bytes == 0
    await retention.clean()
    assert store.commit_log.min_offset == 0
    store.close()


@pytest.mark.parametrize("short", ["log", "queues", "neither"])
async def test_each_of_two_partitions_has_a_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short: str
) -> None:
    for module in (disk_quota, retention_service):
        monkeypatch.setattr(module, "on_one_partition", lambda store: False)
    store = open_store(tmp_path)
    put_many(store, 1_000)
    store.flush()
    log = sizes_of(tmp_path, "commitlog")
    queues = sizes_of(tmp_path, "consumequeue", "index")
    sizes = {store.commit_log.directory: 4 * log, store.root: 4 * queues}
    if short == "log":
        sizes[store.commit_log.directory] = 2 * log
    if short == "queues":
        sizes[store.root] = 2 * queues
    retention = retention_of(store, sizes, quotaPercentForDiskPartition=0.5, deleteFileBatchMax=1)
    uses = retention.quota.uses()
    assert [use.used_bytes for use in uses] == [log, queues]
    assert retention.quota.quota_bytes == sum(sizes.values()) // 2
    await retention.clean()
    assert (store.commit_log.min_offset > 0) is (short != "neither")
    store.close()


async def test_a_quota_below_what_always_stays_deletes_nothing_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(tmp_path, consume_queue_file_bytes=2_000_000)
    put_many(store, 400, queues=4)
    store.flush()
    retention = retention_of(store, 8_000_000, replicasPerDiskPartition=2)
    for _ in range(3):
        await retention.clean()
    assert store.commit_log.min_offset == 0
    told = [record.getMessage() for record in caplog.records if "cannot be met" in record.getMessage()]
    assert len(told) == 1 and "never deleted" in told[0]
    store.close()


async def test_the_caution_names_what_will_go_before_it_goes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    store = open_store(tmp_path)
    put_many(store, 1_000)
    store.flush()
    used = sizes_on_disk(tmp_path)
    settings = settings_of()
    caplog.clear()
    quota = DiskQuota(store, settings, size=lambda _: 2 * used)
    quota.tell()
    assert not caplog.records, "no quota, no line"
    settings.become(settings_of(replicasPerDiskPartition=4))
    quota.tell()
    quota.tell()
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "oldest messages are deleted" in record.getMessage()
    assert "cleanFileForciblyEnable=false" in record.getMessage()
    caplog.clear()
    settings.become(settings_of(quotaPercentForDiskPartition=0.9))
    quota.tell()
    assert "nothing has to be deleted now" in caplog.text
    settings.become(settings_of())
    quota.tell()
    assert "the disk quota was removed" in caplog.text
    store.close()


def test_two_ways_to_say_it_are_refused_together() -> None:
    with pytest.raises(ValidationError, match=r"both set the quota.*remove one"):
        settings_of(replicasPerDiskPartition=2, quotaPercentForDiskPartition=0.5)
    for key, value in (("quotaPercentForDiskPartition", 0), ("quotaPercentForDiskPartition", 1.5),
                       ("replicasPerDiskPartition", 0)):  # fmt: skip
        with pytest.raises(ValidationError):
            settings_of(**{key: value})
    rules = settings_of(replicasPerDiskPartition=3, logicalDiskSpaceCleanForciblyThreshold=0.5).retention
    assert (rules.replicas, rules.quota_percent, rules.logical_forcibly_ratio) == (3, 1.0, 0.5)


async def test_it_changes_at_run_time_and_is_measured(client: object, broker: Broker) -> None:
    async def measured() -> dict[str, float]:
        samples = [sample for family in await scrape(broker.metric_sources()) for sample in family.samples]
        return {
            sample.name: sample.value for sample in samples
            if sample.name.startswith("rocketmq_storage_quota") and sample.labels["files"] == "all"
        }  # fmt: skip

    assert await measured() == {"rocketmq_storage_quota_used_bytes": broker.retention.quota.used_bytes}
    answer = await change(client, broker, "quotaPercentForDiskPartition=0.999\n")  # type: ignore[arg-type]
    assert not answer.remark, answer
    total = disk_quota.partition_bytes(broker.store.root)
    assert broker.retention.quota.quota_bytes == int(total * 0.999)
    assert (await measured())["rocketmq_storage_quota_bytes"] == int(total * 0.999)
    refused = await change(client, broker, "replicasPerDiskPartition=2\n")  # type: ignore[arg-type]
    assert "both set the quota" in refused.remark
    answer = await change(
        client, broker, "replicasPerDiskPartition=2\nquotaPercentForDiskPartition=1\n"  # type: ignore[arg-type]
    )  # fmt: skip
    assert not answer.remark, answer
    assert broker.retention.quota.quota_bytes == total // 2
