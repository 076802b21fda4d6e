"""StoreSettings: the settings of the index, batch queues, checksums and retention. A part of BrokerConfig.

Ratios outside RocketMQ's bounds are replaced by the nearest bound, as in RocketMQ. Source: RocketMQ 5.3.3
MessageStoreConfig.
"""

from pathlib import Path
from typing import Self

from pydantic import Field, field_validator, model_validator

from broker.core.retention import RetentionRules
from broker.store.queue.batch_queue import BATCH_UNIT_BYTES
from keelmq.remoting.telemetry import TelemetryConfig

HOUR_MS = 3_600_000


class StoreSettings(TelemetryConfig):
    """Names are RocketMQ's keys; the description has the unit."""

    message_index_enable: bool = Field(True, description="make messages findable by their keys")
    max_hash_slot_num: int = Field(5_000_000, ge=1, le=500_000_000, description="slots of an index file")
    max_index_num: int = Field(20_000_000, ge=3, le=500_000_000, description="entries of an index file")
    mapper_file_size_batch_consume_queue: int = Field(
        13_800_000, ge=46, description="bytes per ConsumeQueue file of a topic with BatchCQ, 46 per entry"
    )
    check_crc_on_recover: bool = Field(
        True, alias="checkCRCOnRecover", description="check the CRC of records after a crash"
    )
    enabled_append_prop_crc: bool = Field(
        False,
        alias="enabledAppendPropCRC",
        description="store every record with a CRC of all of it, as its last property (20 bytes)",
    )
    force_verify_prop_crc: bool = Field(
        False,
        alias="forceVerifyPropCRC",
        description="with checkCRCOnRecover: check that CRC, where a record has it, instead of its body's",
    )

    scrub_bytes_per_second: int = Field(
        16 << 20,
        ge=0,
        description="bytes of the CommitLog per second that are read and checked in the background, to find "
        "damage before a reader does; 0: none (ours)",
    )
    file_reserved_time: int = Field(72, ge=0, description="hours that CommitLog files are kept")
    delete_when: str = Field(
        "04", description="hours of the day, `;` between them, at which older files are deleted"
    )
    max_commit_log_bytes: int = Field(
        0,
        ge=0,
        description="bytes of CommitLog above which its oldest files go, whatever their age; at least two "
        "files; 0: no limit (ours)",
    )
    delete_file_batch_max: int = Field(10, gt=0, description="files per round of deletion")
    clean_file_forcibly_enable: bool = Field(
        True, description="delete the oldest files, whatever their age, when the disk is nearly full"
    )
    clean_resource_interval: int = Field(10_000, ge=100, description="ms between two checks for old files")
    disk_max_used_space_ratio: int = Field(
        75, description="percent of the disk from which old files go at any hour; 10 to 95"
    )
    disk_space_clean_forcibly_ratio: int = Field(
        85, description="percent from which files go whatever their age; 30 to 85"
    )
    disk_space_warning_level_ratio: int = Field(
        90, description="percent from which messages are refused, with code 14; 35 to 90"
    )
    replicas_per_disk_partition: int = Field(
        1,
        ge=1,
        description="brokers that share a disk partition, each with an equal quota of it, of which "
        "diskMaxUsedSpaceRatio then is a percentage; 1: no quota",
    )
    backup_path: Path | None = Field(
        None,
        description="directory, on another disk, below which startStoreBackup writes; not set: this broker "
        "makes no backups (ours)",
    )
    quota_percent_for_disk_partition: float = Field(
        1.0,
        gt=0,
        le=1,
        description="the quota as a part of the partition, for unequal ones, instead of "
        "replicasPerDiskPartition; 1: no quota (in RIP-31, not in RocketMQ)",
    )
    logical_disk_space_clean_forcibly_threshold: float = Field(
        0.8, gt=0, le=1, description="part of the quota from which the oldest files go whatever their age"
    )

    @field_validator("disk_max_used_space_ratio")
    @classmethod
    def _clamp_used(cls, ratio: int) -> int:
        return min(max(ratio, 10), 95)

    @field_validator("disk_space_clean_forcibly_ratio")
    @classmethod
    def _clamp_forcibly(cls, ratio: int) -> int:
        return min(max(ratio, 30), 85)

    @field_validator("disk_space_warning_level_ratio")
    @classmethod
    def _clamp_warning(cls, ratio: int) -> int:
        return min(max(ratio, 35), 90)

    @field_validator("mapper_file_size_batch_consume_queue")
    @classmethod
    def _whole_units(cls, size: int) -> int:
        if size % BATCH_UNIT_BYTES:
            raise ValueError(f"mapperFileSizeBatchConsumeQueue must be a multiple of {BATCH_UNIT_BYTES}")
        return size

    @model_validator(mode="after")
    def _one_quota(self) -> Self:
        if self.replicas_per_disk_partition > 1 and self.quota_percent_for_disk_partition < 1:
            raise ValueError(
                "replicasPerDiskPartition and quotaPercentForDiskPartition both set the quota "
                f"({self.replicas_per_disk_partition}, {self.quota_percent_for_disk_partition}): remove one"
            )
        return self

    @field_validator("delete_when")
    @classmethod
    def _hours(cls, text: str) -> str:
        hours_of(text)
        return text

    @property
    def retention(self) -> RetentionRules:
        """The rules by which old log files are deleted."""
        return RetentionRules(
            reserved_ms=self.file_reserved_time * HOUR_MS,
            hours=hours_of(self.delete_when),
            force=self.clean_file_forcibly_enable,
            used_ratio=self.disk_max_used_space_ratio / 100,
            forcibly_ratio=self.disk_space_clean_forcibly_ratio / 100,
            warning_ratio=self.disk_space_warning_level_ratio / 100,
            bytes_max=self.max_commit_log_bytes,
            replicas=self.replicas_per_disk_partition,
            quota_percent=self.quota_percent_for_disk_partition,
            logical_forcibly_ratio=self.logical_disk_space_clean_forcibly_threshold,
        )


def hours_of(text: str) -> frozenset[int]:
    """Returns the hours of a text: "04;16" -> {4, 16}. Raises ValueError."""
    parts = [part.strip() for part in text.split(";") if part.strip()]
    hours = frozenset(int(part) if part.isascii() and part.isdigit() else -1 for part in parts)
    if not all(0 <= hour <= 23 for hour in hours):
        raise ValueError(f"{text!r} has an hour that is not 00 to 23 (several: 04;16)")
    return hours
