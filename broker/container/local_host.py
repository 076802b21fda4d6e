"""LocalHost: runs brokers in this process, on this event loop."""

import asyncio
import logging
import os
import resource
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Final

import msgspec
from prometheus_client.core import Metric

from broker.admin.metrics import scrape
from broker.app.broker import Broker
from broker.app.process import ProcessParts
from broker.container.bounded_stop import Stop, bounded_stop, bounded_stops
from broker.container.config import ContainerConfig
from broker.container.core.identity import NOT_APPLIED, BrokerIdentity, canonical_name
from broker.container.host import CLOSING, BrokerRefused, InnerSetup
from broker.container.inner_config import InnerConfig, load_inner
from broker.controller_mode.broker_meta_file import BrokerMetaError
from broker.core.readiness import not_ready
from broker.put.handler_context import RetryStore
from broker.store.log.mapped_file import StoreError
from keelmq.remoting.operation import Access
from keelmq.remoting.operations.container import BrokerState, InnerBroker, Worker
from keelmq.runtime.config import ConfigError, with_settings
from keelmq.runtime.isolated_log import IsolatedLog
from keelmq.runtime.log_context import ContextThreadPool, LogContext, log_context
from keelmq.runtime.stop_steps import StopError
from keelmq.security.audit.log import AuditLog
from keelmq.security.metrics import scrape as security_scrape

logger = logging.getLogger(__name__)

THREADS_MAX: Final = 32
"""Python's default for a loop on a large machine. With two cores, the default is 6: if the disks of six
brokers hung, no thread would be left for the others to flush their stores."""


class _Running(msgspec.Struct):
    """A broker from the beginning of its start to the end of its stop. starting: its start, which is
    cancelled if it is still going on when the broker is stopped."""

    inner: InnerConfig
    broker: Broker
    log: LogContext
    life: AsyncExitStack
    state: BrokerState = BrokerState.STARTING
    starting: asyncio.Task[None] | None = None

    async def enter(self) -> None:
        """Starts the broker."""
        await self.life.enter_async_context(self.broker)


class LocalHost:
    """See BrokerHost."""

    def __init__(
        self,
        config: ContainerConfig,
        process: ProcessParts,
        *,
        number: int = 0,
        accesses: Sequence[Access | None] = (),
        audits: Sequence[AuditLog | None] = (),
    ) -> None:
        """number: of this process in its container. accesses, audits: of other servers of this process; its
        metrics include their counts."""
        self._config, self._process, self._number = config, process, number
        self._accesses, self._audits = accesses, audits
        self._running: dict[BrokerIdentity, _Running] = {}
        self._is_closing = False

    @staticmethod
    def share_threads() -> None:
        """Gives the event loop THREADS_MAX threads for work that waits for disks. Before the first start."""
        threads = ContextThreadPool(THREADS_MAX, thread_name_prefix="brokers")
        asyncio.get_running_loop().set_default_executor(threads)

    async def start(self, setup: InnerSetup) -> None:
        """See BrokerHost."""
        if self._is_closing:
            raise BrokerRefused(CLOSING)
        if setup.identity in self._running:
            raise BrokerRefused(f"{setup.identity.canonical_name} runs here already")
        try:
            inner = load_inner(setup.config_path, self._config)
            if inner.identity != setup.identity:
                raise BrokerRefused(
                    f"{setup.config_path} has changed: it is {inner.identity.canonical_name} now, and not "
                    f"{setup.identity.canonical_name}; remove that broker, and add the file again"
                )
            log, life = self._open_log(inner), AsyncExitStack()
            if isinstance(log, IsolatedLog):
                life.callback(log.close)
                log = log.context
            with log_context(log):
                broker = Broker(
                    inner.config,
                    inner.config_sources,
                    process=self._process,
                    escape_target=partial(self._find_escape_target, setup.identity),
                )
                running = _Running(inner, broker, log, life)
                self._running[setup.identity] = running
                name = f"start of {setup.identity.canonical_name}"
                running.starting = asyncio.create_task(running.enter(), name=name)
                await _started(running)
        except (ConfigError, BrokerMetaError, StoreError, StopError) as error:
            self._running.pop(setup.identity, None)
            raise BrokerRefused("; ".join(str(error).splitlines())) from error
        except BaseException:
            self._running.pop(setup.identity, None)
            raise
        running.state = BrokerState.SERVING
        logger.info("%s: %s", setup.identity.canonical_name, running.broker.status.describe())

    def broker(self, identity: BrokerIdentity) -> Broker:
        """Returns a broker that runs here; KeyError: it does not."""
        return self._running[identity].broker

    async def stop(self, identity: BrokerIdentity, *, hand_over: bool) -> None:
        """See BrokerHost."""
        running = self._running.get(identity)
        if running is None:
            return
        running.state = BrokerState.STOPPING
        try:
            config = running.inner.config
            leave_ms = config.shutdown_hand_over_timeout + config.shutdown_forward_timeout
            await bounded_stop(
                identity.canonical_name,
                partial(_stop, running, hand_over=hand_over),
                more_s=leave_ms / 1_000 if hand_over and running.broker.controlled else 0,
            )
        except StopError as error:
            raise BrokerRefused(str(error)) from error
        finally:
            self._running.pop(identity, None)

    async def brokers(self) -> list[InnerBroker]:
        """See BrokerHost."""
        return [self._describe(running) for running in self._running.values()]

    async def worker(self) -> Worker:
        """See BrokerHost."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return Worker(
            number=self._number,
            pid=os.getpid(),
            is_running=True,
            cpu_millis=int((usage.ru_utime + usage.ru_stime) * 1_000),
            resident_bytes=resident_bytes(),
        )

    async def metrics(self) -> Iterable[Metric]:
        """See BrokerHost."""
        serving = [each.broker for each in self._running.values() if each.state is BrokerState.SERVING]
        found: list[Metric] = []
        for broker in serving:
            try:
                sources = broker.metric_sources()
                await sources.measure()
                found += await scrape(sources)
            except Exception:
                logger.exception("%s: no metrics", broker.config.broker_name)
        accesses = [*self._accesses, *(access for broker in serving for access in broker.security.accesses)]
        audits = [*self._audits, *(broker.audit for broker in serving)]
        found += security_scrape(accesses, audits, self._process.tls, self._process.client_tls)
        return found

    async def change(self, settings: Mapping[str, str]) -> None:
        """See BrokerHost."""
        try:
            self._config.become(with_settings(self._config, settings, "the request"))
        except ConfigError as error:
            raise BrokerRefused(str(error)) from error
        self._process.limits.change(self._config.limits())

    async def restart(self) -> None:
        """See BrokerHost."""
        raise BrokerRefused(
            "the brokers are in the container's own process (containerProcesses=1): restart the program"
        )

    async def leave(self) -> None:
        """See BrokerHost. All hand over at the same time."""
        names, leaving = list(self._running), [_leave(each) for each in self._running.values()]
        for identity, result in zip(
            names, await asyncio.gather(*leaving, return_exceptions=True), strict=True
        ):
            if isinstance(result, Exception):
                logger.error("%s: the hand-over failed: %r", identity.canonical_name, result)

    async def close(self) -> None:
        """See BrokerHost. All stop at the same time, masters a little later. Ends in bounded time, even if
        some hang; the error names these."""
        self._is_closing = True
        slaves, masters = dict[str, Stop](), dict[str, Stop]()
        for identity, running in self._running.items():
            running.state = BrokerState.STOPPING
            group = masters if running.broker.status.role_name == "master" else slaves
            group[identity.canonical_name] = partial(_end, running)
        try:
            failed = await bounded_stops(slaves, masters)
        finally:
            self._running.clear()
        for failure in failed.values():
            logger.error("stopping: %s", failure)
        if failed:
            raise StopError("; ".join(map(str, failed.values())))

    def _find_escape_target(self, identity: BrokerIdentity) -> RetryStore | None:
        """Returns another broker of the same cluster that accepts messages: RocketMQ's local escape."""
        for other, running in self._running.items():
            broker = running.broker
            is_open = running.state is BrokerState.SERVING and broker.gate.writable
            if other != identity and other.cluster == identity.cluster and is_open:
                return broker.handlers.send_back
        return None

    def _open_log(self, inner: InnerConfig) -> LogContext | IsolatedLog:
        name = inner.identity.canonical_name
        if not inner.config.isolate_log_enable:
            return LogContext(name)
        return IsolatedLog(name, inner.config.log_path / name)

    def _describe(self, running: _Running) -> InnerBroker:
        broker, config = running.broker, running.inner.config
        controlled, listeners = broker.controlled, broker.listeners
        broker_id = config.broker_id if controlled is None else controlled.role.broker_id or NOT_APPLIED
        running.log.name = canonical_name(config.broker_cluster_name, config.broker_name, broker_id)
        quota = broker.retention.quota
        reasons = not_ready(broker.status.readiness) if running.state is BrokerState.SERVING else []
        is_open = running.state is BrokerState.SERVING
        fast = listeners.fast_address if is_open else None
        http = broker.http_address
        return InnerBroker(
            broker_cluster_name=config.broker_cluster_name,
            broker_name=config.broker_name,
            broker_id=broker_id,
            canonical_name=running.log.name,
            state=running.state,
            reason="; ".join(map(str, reasons)),
            not_ready=[each.reason for each in reasons],
            role=broker.status.role_name if is_open else "none",
            master_epoch=0 if controlled is None else controlled.role.epoch,
            address=broker.address if is_open else "",
            fast_address="" if fast is None else f"{broker.host}:{fast[1]}",
            ha_address=broker.status.ha_address if is_open else "",
            http_address="" if http is None else f"{http[0]}:{http[1]}",
            config_path=str(running.inner.path),
            store_path=str(config.store_path_root_dir),
            worker=self._number,
            store_bytes=quota.used_bytes if is_open else 0,
            quota_bytes=quota.quota_bytes if is_open else 0,
            connections=listeners.connection_count if is_open else 0,
            is_ready=is_open and not reasons,
        )


async def _leave(running: _Running) -> None:
    with log_context(running.log):
        await running.broker.leave()


async def _stop(running: _Running, *, hand_over: bool) -> None:
    if hand_over:
        try:
            await _leave(running)
        except Exception:
            logger.exception("the hand-over failed; the stop goes on")
    await _end(running)


async def _end(running: _Running) -> None:
    """Raises StopError."""
    with log_context(running.log):
        if running.starting is not None and not running.starting.done():
            running.starting.cancel()
            try:
                await asyncio.wait([running.starting])
            except asyncio.CancelledError:
                if running.starting.done():
                    raise
                raise StopError("a thread hangs while the broker starts; it was left running") from None
        await running.life.aclose()


async def _started(running: _Running) -> None:
    """Waits for the end of a start, and raises its error. If cancelled, it cancels the start, and raises
    CancelledError when the broker is stopped. Raises BrokerRefused: the broker was stopped meanwhile."""
    assert running.starting is not None
    cancelled: asyncio.CancelledError | None = None
    while not running.starting.done():
        try:
            await asyncio.wait([running.starting])
        except asyncio.CancelledError as error:
            cancelled = error
            running.starting.cancel()
    was_stopped = running.state is not BrokerState.STARTING
    if running.starting.cancelled() or running.starting.exception() is not None or cancelled:
        await running.life.aclose()
    if cancelled is not None:
        raise cancelled
    if was_stopped:
        raise BrokerRefused(CLOSING)
    running.starting.result()


def resident_bytes() -> int:
    """Returns the memory of this process."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:  # not Linux: the peak
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1_024
