"""All operations of a broker in one table: what they work with, and who handles them."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from broker.assembly import cached_bytes
from broker.clients.admin import ClientAdmin
from broker.clients.calls import ConsumerCalls
from broker.clients.progress import Progress
from broker.deliveries import Deliveries
from broker.handlers.admin import BrokerHandlers, bind_broker_operations
from broker.handlers.parts import BrokerParts
from broker.handlers.statistics import StatisticsHandlers
from broker.live_settings import LiveSettings
from broker.metadata.handlers import MetadataHandlers
from broker.neighbours import Neighbours
from broker.not_served import NOT_SERVED
from broker.stats.runtime import RuntimeInfo
from broker.topics import PERM_READ, PERM_WRITE
from remoting.operation import OperationTable

if TYPE_CHECKING:
    from broker.app import Broker


def bind_operations(
    broker: "Broker", end_of_tick: Callable[[], None]
) -> tuple[OperationTable, BrokerHandlers, Deliveries]:
    """end_of_tick: once per loop iteration in which something is put."""
    config, metadata, clients, table = broker.config, broker.metadata, broker.clients, OperationTable()
    parts = BrokerParts(
        store=broker.store,
        topics=broker.topics,
        gate=broker.gate,
        pending=broker.pending,
        call_soon=asyncio.get_running_loop().call_soon,
        end_of_tick=end_of_tick,
        cluster_name=config.broker_cluster_name,
        broker_name=config.broker_name,
        message_bytes_max=config.max_message_size,
        replication_timeout_ms=config.slave_timeout,
        flush_timeout_ms=config.sync_flush_timeout,
        readable=bool(config.broker_permission & PERM_READ),
        permits_write=bool(config.broker_permission & PERM_WRITE),
        commit_offset=metadata.commit_by_pull,
        find_group=metadata.find_group,
        registry=clients.registry,
        locks=clients.locks,
        resets=metadata.resets,
        settings=config,
        cached_bytes=cached_bytes(),
        find_route=broker.find_route,
        reads=broker.stats.reads,
    )
    handlers = bind_broker_operations(table, parts)
    deliveries = Deliveries(config, metadata, clients, parts, handlers.send.writer)
    deliveries.bind(table)
    timers = deliveries.timers
    broker.stats.timer_counts = lambda: (timers.added, timers.delivered)
    MetadataHandlers(metadata, broker.store, parts.cached_bytes, reads=parts.reads).bind(table)
    clients.bind(table)
    ClientAdmin(metadata, broker.store, clients.registry, config, config.broker_name).bind(table)
    Progress(
        metadata,
        broker.store,
        clients.registry,
        config.broker_name,
        tps=broker.stats.tps,
        address=lambda: broker.address,
    ).bind(table)
    RuntimeInfo(parts, broker.stats, metadata.delays).bind(table)
    statistics = StatisticsHandlers(broker.store, broker.topics, broker.stats, broker.upkeep)
    statistics.bind(table)
    LiveSettings(broker, handlers).bind(table)
    ConsumerCalls(clients, broker.store).bind(table)
    Neighbours(broker).bind(table)
    table.not_served |= NOT_SERVED
    controlled = broker.controlled
    if controlled is not None:
        controlled.bind(table)
        parts.runtime_info = controlled.runtime_info
        parts.sends_to_master = controlled.sends_to_master
        parts.hand_on = controlled.hand_on
    else:
        statistics.bind_alone(table)
    return table, handlers, deliveries
