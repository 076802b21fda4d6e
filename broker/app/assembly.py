"""The parts of a broker as its configuration asks for them: made here, wired and started in app.py."""

import asyncio
import logging
import os
import socket

from broker.config import BrokerConfig
from broker.delay.levels import DelayLevels
from broker.metadata.service import Metadata
from broker.pending import SendGate
from broker.store.message_store import MessageStore, StoreConfig
from broker.store.record import host_bytes
from broker.topics import TopicTable
from remoting.clock import now_ms
from remoting.complaints import Complaints

logger = logging.getLogger(__name__)

CHECKPOINT_EVERY = 2
"""Flushes per checkpoint: with the default interval, one a second."""

COMPLAINT_PERIOD_MS = 5_000

MEMORY_PERCENT = 40
"""accessMessageInMemoryMaxRatio."""


def make_store(config: BrokerConfig) -> MessageStore:
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
        )
    )


def make_topics(config: BrokerConfig) -> TopicTable:
    return TopicTable(
        config.store_path_root_dir / "config" / "topics.json",
        broker_name=config.broker_name,
        cluster_name=config.broker_cluster_name,
        auto_create=config.auto_create_topic_enable,
        default_queue_nums=config.default_topic_queue_nums,
        trace_topic=config.msg_trace_topic_name if config.trace_topic_enable else "",
    )


def make_metadata(config: BrokerConfig, topics: TopicTable, gate: SendGate) -> Metadata:
    return Metadata(
        config.store_path_root_dir / "config",
        topics,
        gate,
        auto_create_groups=config.auto_create_subscription_group,
        waits=config.waits_for_replicas,
        timeout_ms=config.slave_timeout,
        flush_period_ms=config.flush_consumer_offset_interval,
    )


def cached_bytes() -> int:
    """A log tail of so much is taken to be in the machine's memory."""
    pages, page_bytes = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return pages * page_bytes * MEMORY_PERCENT // 100


def store_host(host: str, port: int) -> bytes:
    """How records name this broker: 4 address bytes (16 where it has an IPv6 address only) and the port."""
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        logger.warning(
            "brokerIP1: %s cannot be resolved here; set it to an address: ids of messages lead nowhere, and "
            "retries of C++ consumers fail", host,
        )  # fmt: skip
        return bytes(4) + port.to_bytes(4, "big")
    addresses = [str(address[0]).partition("%")[0] for _, _, _, _, address in found]
    return host_bytes(min(addresses, key=lambda address: ":" in address), port)


async def flush_forever(store: MessageStore, interval_ms: int) -> None:
    """What changed goes to the disk, in a thread; now and then with a checkpoint."""
    rounds, flushed = 0, -1
    complaints = Complaints(logger, period_ms=COMPLAINT_PERIOD_MS, level=logging.ERROR)
    while True:
        await asyncio.sleep(interval_ms / 1000)
        rounds += 1
        checkpoint = rounds % CHECKPOINT_EVERY == 0
        seen = store.commit_log.max_offset + store.dispatch_offset
        if seen != flushed:
            try:
                await asyncio.to_thread(store.flush_checkpoint if checkpoint else store.flush)
            except OSError as error:
                complaints.tell(now_ms(), "what is stored cannot be made durable yet: %s", error)
                continue
            flushed = seen if checkpoint else flushed


async def close_store(store: MessageStore, *, is_trusted: bool) -> None:
    """is_trusted: nothing has gone wrong with its disk. Else, and where the disk is full, it is left as a
    crash leaves it: the next start looks at the end of the log."""
    end = store.commit_log.max_offset
    if is_trusted:
        try:
            await asyncio.to_thread(store.flush)
            store.close(clean=True)
        except OSError as error:
            logger.error("the store cannot be closed cleanly: %s; the next start looks at its end", error)
        else:
            logger.info("store closed at %d", end)
            return
    store.close(clean=False)
