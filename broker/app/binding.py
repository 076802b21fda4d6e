"""The operations of a broker in one table: makes their handlers, and the context that the handlers share."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from broker.admin.live_settings import LiveSettings
from broker.admin.notifications import Notifications
from broker.admin.retention_service import RetentionService
from broker.admin.runtime_info import RuntimeInfo
from broker.admin.statistics import StatisticsHandlers
from broker.admission.pending_replies import PendingReplies
from broker.admission.send_forwarder import no_other_master
from broker.admission.send_gate import SendGate
from broker.app.assembly import cached_bytes
from broker.app.background_services import BackgroundServices, make_transactions
from broker.app.handlers import BrokerHandlers, bind_broker_operations
from broker.app.plain_replication import PlainReplication
from broker.app.status import BrokerStatus
from broker.backup.handlers import StoreCopyHandlers
from broker.backup.service import StoreBackups
from broker.clients.admin import ClientAdmin
from broker.clients.agreement_report import agreement_report
from broker.clients.calls import ConsumerCalls
from broker.clients.consume_stats import ConsumeStats
from broker.clients.deletion_previews import DeletionPreviews
from broker.clients.service import Clients
from broker.config.broker_config import BrokerConfig
from broker.controller_mode.service import ControllerMode
from broker.ha.core.epochs import Epochs
from broker.healing.log_reads import LogReads
from broker.metadata.broker_users import BrokerUsers, ChangesAtMaster
from broker.metadata.handlers import MetadataHandlers
from broker.metadata.service import Metadata
from broker.metadata.topics import PERM_READ
from broker.put.handler_context import HandlerContext, RetryStore
from broker.put.message_writer import MessageWriter
from broker.stats.service import BrokerStats
from broker.store.message_store import MessageStore
from broker.store.scrub import Scrub
from broker.timers.service import TimerService
from broker.transactions.service import TransactionService
from keelmq.remoting.codes import RequestCode
from keelmq.remoting.config_store import ConfigSources
from keelmq.remoting.messages.unique_keys import UniqueKeys
from keelmq.remoting.operation import OperationTable
from keelmq.remoting.operations.route import TopicRouteData
from keelmq.runtime.clock import now_ms
from keelmq.security.program import ProgramSecurity
from keelmq.security.user_requests import UserRequests
from keelmq.upstream.wire import reasons, wire_verdicts


class ServedParts(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a broker that its operations work on.

    controlled: None without controller mode. plain: None without slaves, and in controller mode. end_of_tick:
    called once per loop iteration in which something was put. find_route: asks the name servers.
    escape_target: see HandlerContext. epochs: of the log, now.
    """

    config: BrokerConfig
    config_sources: ConfigSources
    store: MessageStore
    gate: SendGate
    pending: PendingReplies
    metadata: Metadata
    users: BrokerUsers
    security: ProgramSecurity
    clients: Clients
    stats: BrokerStats
    retention: RetentionService
    scrub: Scrub
    backups: StoreBackups
    epochs: Callable[[], Epochs]
    controlled: ControllerMode | None
    plain: PlainReplication | None
    end_of_tick: Callable[[], None]
    find_route: Callable[[str], Awaitable[TopicRouteData | None]]
    escape_target: Callable[[], RetryStore | None]
    status: BrokerStatus
    settings_changed: Callable[[], None]


def bind_operations(
    parts: ServedParts,
) -> tuple[OperationTable, BrokerHandlers, BackgroundServices, LiveSettings]:
    """Returns the table, the handlers of the data path, the services to which the handlers pass messages, and
    the settings that can change. Called in the event loop's thread."""
    config, store, metadata, table = parts.config, parts.store, parts.metadata, OperationTable()
    table.access = parts.security.access
    writer = MessageWriter(
        store,
        parts.gate,
        parts.pending,
        call_soon=asyncio.get_running_loop().call_soon,
        end_of_tick=parts.end_of_tick,
    )
    transactions = make_transactions(config, metadata, parts.clients, store, writer)
    timers = TimerService(store, metadata, writer, settings=config)
    context = _handler_context(parts, transactions, timers)
    handlers = bind_broker_operations(table, context, writer)
    services = BackgroundServices(
        context,
        writer,
        metadata,
        parts.clients,
        transactions=transactions,
        timers=timers,
        runtime_info=RuntimeInfo(context, parts.stats, metadata.delays),
    )
    services.bind(table)
    parts.clients.bind(table)
    _bind_metadata(table, parts, context)
    settings = _bind_admin(table, parts, context, handlers)
    refused = reasons(wire_verdicts().request)
    table.unsupported |= {int(RequestCode[name]): why for name, why in refused.items()}
    parts.pending.latency.watch(table, parts.stats.creations.watchers(metadata.topics.is_system))
    if parts.security.accesses:

        def answer_waiting() -> None:
            """A waiting request was checked when it arrived: its user may have lost the right since."""
            handlers.pull.expire(sys.maxsize)
            services.pop.handlers.expire(sys.maxsize)

        parts.security.when_changed(answer_waiting)
        metadata.users.watchers.append(answer_waiting)
        metadata.acls.watchers.append(answer_waiting)
    return table, handlers, services, settings


def _handler_context(
    parts: ServedParts, transactions: TransactionService, timers: TimerService
) -> HandlerContext:
    config, metadata, replication = parts.config, parts.metadata, parts.controlled or parts.plain
    return HandlerContext(
        store=parts.store,
        topics=metadata.topics,
        gate=parts.gate,
        pending=parts.pending,
        call_soon=asyncio.get_running_loop().call_soon,
        cluster_name=config.broker_cluster_name,
        broker_name=config.broker_name,
        message_bytes_max=config.max_message_size,
        replication_timeout_ms=config.slave_timeout,
        flush_timeout_ms=config.sync_flush_timeout,
        runtime_info=lambda: {
            **parts.scrub.runtime_info(),
            **_runtime_info(metadata, replication),
            **parts.status.grpc_info(),
            **agreement_report(parts.clients.registry, metadata, parts.store),
        },
        readable=bool(config.broker_permission & PERM_READ),
        commit_offset=metadata.commit_by_pull,
        find_group=metadata.find_group,
        registry=parts.clients.registry,
        locks=parts.clients.locks,
        sends_to_master=_never if replication is None else replication.sends_to_master,
        resets=metadata.resets,
        forward_to_master=no_other_master if replication is None else replication.forward_to_master,
        find_route=parts.find_route,
        escape_target=parts.escape_target,
        settings=config,
        cached_bytes=cached_bytes(),
        new_unique_key=UniqueKeys().next,
        now_ms=now_ms,
        reads=parts.stats.reads,
        transactional_messages=transactions,
        timers=timers,
    )


def _never() -> bool:
    return False


def _bind_metadata(table: OperationTable, parts: ServedParts, context: HandlerContext) -> None:
    """Topics, groups, offsets, users, and the requests of tools about clients and their progress."""
    config, metadata, store, registry = parts.config, parts.metadata, parts.store, parts.clients.registry
    MetadataHandlers(
        metadata,
        store,
        context.cached_bytes,
        reads=context.reads,
        forward_to_master=context.forward_to_master,
    ).bind(table)
    ClientAdmin(metadata, store, registry, config, config.broker_name).bind(table)
    stats = ConsumeStats(
        metadata,
        store,
        registry,
        config.broker_name,
        tps=parts.stats.tps,
        address=lambda: parts.status.address,
    )
    stats.bind(table)
    DeletionPreviews(metadata, store, registry, stats.behind).bind(table)
    ConsumerCalls(parts.clients, store, broker_name=config.broker_name).bind(table)
    UserRequests(
        parts.users,
        member=parts.security.member_name,
        forward=ChangesAtMaster(parts.gate, context.forward_to_master).forward,
    ).bind(table)


def _bind_admin(
    table: OperationTable, parts: ServedParts, context: HandlerContext, handlers: BrokerHandlers
) -> LiveSettings:
    """The broker itself: its identity, settings, statistics and role."""
    config, metadata, controlled = parts.config, parts.metadata, parts.controlled
    statistics = StatisticsHandlers(
        parts.store, metadata.topics, parts.stats, parts.retention, context.registry
    )
    statistics.bind(table)
    StoreCopyHandlers(
        config, parts.store, metadata, parts.backups, identity=parts.status.identity, epochs=parts.epochs
    ).bind(table)
    LogReads(parts.store, epochs=parts.epochs, broker_name=config.broker_name).bind(table)
    settings = LiveSettings(
        config,
        parts.config_sources,
        topics=metadata.topics,
        groups=metadata.groups,
        gate=parts.gate,
        detected=parts.status.detected_settings,
        on_change=parts.settings_changed,
    )
    settings.bind(table)
    Notifications(
        config.broker_name, hint=None if controlled is None else controlled.hint, ha_info=parts.status.ha_info
    ).bind(table)
    if (replication := controlled or parts.plain) is not None:
        replication.bind(table)
    else:
        statistics.bind_alone(table)
    return settings


def _runtime_info(
    metadata: Metadata, replication: ControllerMode | PlainReplication | None
) -> Mapping[str, str]:
    found = {} if replication is None else dict(replication.runtime_info())
    if idle := metadata.without_effect():
        found["attributesWithoutEffect"] = "; ".join(idle)
    return found
