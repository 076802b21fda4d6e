"""Builds a broker's store, topics and metadata from the configuration; helpers for the start and the end of
the store.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Callable

from broker.admission.send_gate import SendGate
from broker.config.broker_config import BrokerConfig
from broker.ha.core.epochs import Epochs
from broker.message.delay_levels import DelayLevels
from broker.message.record import host_bytes
from broker.metadata.ports import StoreQueues
from broker.metadata.service import Metadata
from broker.metadata.topics import PERM_WRITE, TopicTable
from broker.store.log.sync_fault import SyncError
from broker.store.message_store import MessageStore, StoreConfig
from broker.store.recovery import Between
from keelmq.runtime.clock import now_ms
from keelmq.runtime.config import ConfigError
from keelmq.runtime.rate_limited_log import RateLimitedLogger

logger = logging.getLogger(__name__)

CHECKPOINT_EVERY = 2
"""Flushes per checkpoint: with the default interval, one a second."""

LOG_PERIOD_MS = 5_000
"""Interval of the log line about a disk that cannot be written."""

MEMORY_PERCENT = 40
"""accessMessageInMemoryMaxRatio."""


def make_store(
    config: BrokerConfig,
    topics: TopicTable,
    *,
    on_queue: Callable[[str, int], None],
    on_sync_fault: Callable[[str], None],
) -> MessageStore:
    """Returns the store, not loaded. on_queue(topic, queueId): a record of a new queue was dispatched.
    on_sync_fault(text): called in the thread whose sync failed."""
    return MessageStore(
        StoreConfig(
            root=config.store_path_root_dir,
            commit_log_file_bytes=config.mapped_file_size_commit_log,
            consume_queue_file_bytes=config.mapped_file_size_consume_queue,
            batch_queue_file_bytes=config.mapper_file_size_batch_consume_queue,
            delay_levels=DelayLevels(config.message_delay_level),
            check_crc_on_recover=config.check_crc_on_recover,
            append_prop_crc=config.enabled_append_prop_crc,
            verify_prop_crc=config.force_verify_prop_crc,
            zeros_ahead=config.sync_flush,
            index_enable=config.message_index_enable,
            index_slots=config.max_hash_slot_num,
            index_entries=config.max_index_num,
        ),
        topics=topics,
        on_queue=on_queue,
        on_sync_fault=on_sync_fault,
    )


def make_gate(config: BrokerConfig) -> SendGate:
    """Returns the gate of sends, closed."""
    return SendGate(
        wait=config.waits_for_replicas or config.sync_flush,
        permits_write=bool(config.broker_permission & PERM_WRITE),
        accept_from_ms=config.start_accept_send_request_time_stamp,
        min_in_sync=config.min_in_sync_replicas if config.has_ha_port else 1,
    )


def make_topics(config: BrokerConfig, *, on_change: Callable[[], None]) -> TopicTable:
    """Returns the topics, not loaded. on_change: announces a change to the name servers."""
    made = TopicTable(
        config.store_path_root_dir / "config" / "topics.json",
        broker_name=config.broker_name,
        cluster_name=config.broker_cluster_name,
        auto_create=config.auto_create_topic_enable,
        default_queue_nums=config.default_topic_queue_nums,
        trace_topic=config.msg_trace_topic_name if config.trace_topic_enable else "",
        on_change=on_change,
    )
    made.creation = config.topic_creation()
    return made


def make_metadata(config: BrokerConfig, topics: TopicTable, gate: SendGate, store: MessageStore) -> Metadata:
    """Returns the metadata, not loaded."""
    made = Metadata(
        config.store_path_root_dir / "config",
        topics,
        gate,
        StoreQueues(store),
        auto_create_groups=config.auto_create_subscription_group,
        waits=config.enable_controller_mode and config.waits_for_replicas,
        timeout_ms=config.slave_timeout,
        flush_period_ms=config.flush_consumer_offset_interval,
    )
    made.groups.creation = config.group_creation()
    return made


def cached_bytes() -> int:
    """Returns how many bytes of the log's tail are assumed to be in the machine's memory."""
    pages, page_bytes = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return pages * page_bytes * MEMORY_PERCENT // 100


def store_host(host: str, port: int) -> bytes:
    """Returns this broker's address in records: 4 address bytes (16 of an IPv6 address), and the port."""
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        logger.warning(
            "brokerIP1: %s cannot be resolved on this host, so message ids do not name this broker, and "
            "retries of C++ consumers fail; set brokerIP1 to an IP address", host,
        )  # fmt: skip
        return bytes(4) + port.to_bytes(4, "big")
    addresses = [str(address[0]).partition("%")[0] for _, _, _, _, address in found]
    return host_bytes(min(addresses, key=lambda address: ":" in address), port)


async def flush_forever(store: MessageStore, interval_ms: Callable[[], int]) -> None:
    """Writes changes to the disk, in a thread, each interval_ms(); every CHECKPOINT_EVERY rounds with a
    checkpoint. Writes nothing more after a sync fault, which the store has logged. Runs until it is
    cancelled."""
    rounds, flushed = 0, -1
    limited_logger = RateLimitedLogger(logger, period_ms=LOG_PERIOD_MS, level=logging.ERROR)
    while True:
        await asyncio.sleep(interval_ms() / 1000)
        rounds += 1
        checkpoint = rounds % CHECKPOINT_EVERY == 0
        seen = store.commit_log.max_offset + store.dispatch_offset
        if seen != flushed and not store.sync_fault.text:
            try:
                await asyncio.to_thread(store.flush_checkpoint if checkpoint else store.flush)
            except SyncError:
                continue
            except OSError as error:
                limited_logger.tell(now_ms(), "stored messages cannot be made durable yet: %s", error)
                continue
            flushed = seen if checkpoint else flushed


def load_store(
    config: BrokerConfig,
    store: MessageStore,
    epochs: Epochs,
    between: Between,
    recover: Callable[[Between], None] | None,
) -> None:
    """Loads the store. epochs: of its log. recover(between): prepares it for its role. A store that cannot be
    loaded is closed and unlocked: a container tries again. Raises StoreError, ConfigError."""
    store.numbers.term_of = epochs.term_of
    try:
        store.load(between)
        if recover is not None:
            recover(between)
    except BaseException as error:
        store.close(clean=False)
        if isinstance(error, OSError):
            raise unusable(config, error) from error
        raise


async def close_store(store: MessageStore, *, is_trusted: bool) -> None:
    """Closes the store. is_trusted: its disk had no fault. Without that, or if the last flush fails, the
    store is left as a crash leaves it, and the next start checks the end of the log."""
    end = store.commit_log.max_offset
    if is_trusted:
        try:
            await asyncio.to_thread(store.flush)
            await asyncio.to_thread(store.close, clean=True)
        except OSError as error:
            logger.error("the store cannot be closed cleanly: %s; the next start checks its end", error)
        else:
            logger.info("store closed at offset %d", end)
            return
    store.close(clean=False)


def unusable(config: BrokerConfig, error: OSError) -> ConfigError:
    """Returns the start's message about a file or directory that it cannot use."""
    where, why = error.filename or config.store_path_root_dir, error.strerror or str(error)
    if isinstance(error, FileExistsError | NotADirectoryError):
        why = "not a directory"
    return ConfigError(f"storePathRootDir: cannot use {where}: {why}")
