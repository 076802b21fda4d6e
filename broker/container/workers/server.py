"""WorkerServer: a worker's end of the connection to its supervisor. It serves commands around any BrokerHost.

A worker ends when its supervisor closes it, or is gone: end of the stream. It stops its brokers in order in
both cases.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Final

from broker.container.bounded_stop import CANCELLED_S_MAX
from broker.container.core.frames import FRAME_BYTES_MAX, FrameError
from broker.container.core.identity import BrokerIdentity
from broker.container.host import BrokerHost, BrokerRefused, HostObserver, InnerSetup
from broker.container.workers.channel import Channel
from broker.container.workers.messages import (
    ORDERS,
    Answer,
    Begin,
    BrokerFailed,
    BrokerRestarted,
    Brokers,
    Cancel,
    Change,
    Close,
    Command,
    DescribeWorker,
    Done,
    Leave,
    ListBrokers,
    MetricsText,
    Ping,
    ReadMetrics,
    Refused,
    Request,
    Result,
    Start,
    Stop,
    WorkerState,
    from_supervisor,
)
from broker.container.workers.metrics_text import to_text
from keelmq.runtime import loop_watch
from keelmq.runtime.config import ConfigError
from keelmq.runtime.stop_steps import StopError

logger = logging.getLogger(__name__)

COMMANDS_MAX: Final = 2_000
"""Commands at the same time: twice what a supervisor has open, since pings are not counted there."""
SIGNAL_GRACE_S: Final = 60.0
"""After SIGTERM or SIGINT, how long a worker waits for orders of the supervisor, which got the same signal
and stops its workers one by one."""

MakeHost = Callable[[Begin, HostObserver], AbstractAsyncContextManager[BrokerHost]]
"""Raises ConfigError when it begins."""


class WorkerServer:
    """Serves one supervisor. Also the HostObserver of its host."""

    def __init__(
        self,
        make_host: MakeHost,
        *,
        on_stopping: Callable[[], None] = lambda: None,
        signal_grace_s: float = SIGNAL_GRACE_S,
        bytes_max: int = FRAME_BYTES_MAX,
    ) -> None:
        """on_stopping: called when the brokers begin their final stop."""
        self._make_host, self._on_stopping, self._signal_grace_s = make_host, on_stopping, signal_grace_s
        self._channel = Channel(self, bytes_max)
        self._host: BrokerHost | None = None
        self._begin: asyncio.Future[Request | None] = asyncio.get_running_loop().create_future()
        self._ended = asyncio.Event()
        self._commands: dict[int, asyncio.Task[None]] = {}
        self._last_of: dict[BrokerIdentity, asyncio.Task[None]] = {}
        self._orders_open = 0
        self._last_order_s = 0.0
        self._closing: asyncio.Task[None] | None = None

    async def serve(self, end: socket.socket) -> None:
        """Returns when all brokers are stopped. end: of the socket pair. Raises StopError: some brokers were
        not stopped in order."""
        loop = asyncio.get_running_loop()
        loop_watch.start()
        await loop.create_unix_connection(lambda: self._channel, sock=end)
        try:
            begin = await self._begin
            if begin is None:
                return
            assert isinstance(begin.command, Begin)
            try:
                async with self._make_host(begin.command, self) as self._host:
                    self._answer(begin.id, Done())
                    await self._ended.wait()
                    await self._close_host()
            except ConfigError as error:
                self._answer(begin.id, Refused(text=str(error)))
        finally:
            self._channel.close()

    def signalled(self) -> None:
        """A terminal signals the whole process group, and systemd every process of a service, so the
        supervisor gets the signal, too. It knows the order in which brokers stop: a worker waits for its
        commands, and stops without them only after signal_grace_s."""
        logger.debug("a signal: waiting for the supervisor")
        asyncio.get_running_loop().call_later(self._signal_grace_s, self._check_supervisor)

    def _check_supervisor(self) -> None:
        loop = asyncio.get_running_loop()
        waited_s = loop.time() - self._last_order_s
        if self._orders_open or waited_s < self._signal_grace_s:
            loop.call_later(max(1.0, self._signal_grace_s - waited_s), self._check_supervisor)
        elif not self._ended.is_set():
            logger.warning("stopping after a signal: the supervisor has sent no command for %d s", waited_s)
            self._end()

    # -- HostObserver --------------------------------------------------------------------------------------

    def broker_failed(self, identity: BrokerIdentity, reason: str) -> None:
        """See HostObserver."""
        self._channel.send(BrokerFailed(identity=identity, reason=reason))

    def broker_restarted(self, identity: BrokerIdentity) -> None:
        """See HostObserver."""
        self._channel.send(BrokerRestarted(identity=identity))

    # -- Receiver ------------------------------------------------------------------------------------------

    def received(self, payload: bytes) -> None:
        """Called by the channel."""
        message = from_supervisor(payload)
        if isinstance(message, Cancel):
            if (task := self._commands.get(message.id)) is not None:
                task.cancel()
        elif isinstance(message.command, Begin) and not self._begin.done():
            self._begin.set_result(message)
        elif self._host is None or self._closing is not None:
            self._answer(message.id, Refused(text="the worker is starting or stopping"))
        elif len(self._commands) >= COMMANDS_MAX:
            self._answer(message.id, Refused(text=f"the worker has {COMMANDS_MAX} commands at once"))
        else:
            self._run(message, self._host)

    def lost(self, reason: str) -> None:
        """Called by the channel."""
        if not self._begin.done():
            self._begin.set_result(None)
        if not self._ended.is_set():
            logger.error("lost the connection to the supervisor: %s; stopping all brokers", reason)
            self._end()

    def _end(self) -> None:
        self._ended.set()

    # -- commands ------------------------------------------------------------------------------------------

    def _run(self, request: Request, host: BrokerHost) -> None:
        """Carries out a command in a separate task, so that a long start does not delay the next ping.
        Commands for one broker run one after the other."""
        command, before = request.command, None
        if isinstance(command, Start | Stop):
            before = self._last_of.get(command.identity)
        task = asyncio.create_task(self._serve(request, host, before), name=f"command {command.kind}")
        self._commands[request.id] = task
        task.add_done_callback(lambda _: self._commands.pop(request.id, None))
        if isinstance(command, Start | Stop):
            self._last_of[command.identity] = task
            identity = command.identity
            task.add_done_callback(lambda task: self._forget(identity, task))

    def _forget(self, identity: BrokerIdentity, task: asyncio.Task[None]) -> None:
        if self._last_of.get(identity) is task:
            del self._last_of[identity]

    async def _serve(self, request: Request, host: BrokerHost, before: asyncio.Task[None] | None) -> None:
        is_order = isinstance(request.command, ORDERS)
        self._orders_open += is_order
        try:
            self._answer(request.id, await self._result(request, host, before))
        finally:
            self._orders_open -= is_order
            self._last_order_s = asyncio.get_running_loop().time() if is_order else self._last_order_s
        if isinstance(request.command, Close):
            self._end()

    async def _result(self, request: Request, host: BrokerHost, before: asyncio.Task[None] | None) -> Result:
        seconds = request.deadline_ms / 1000
        try:
            async with asyncio.timeout(seconds) as deadline:
                if before is not None:
                    await asyncio.wait([before])
                return await self._carry_out(request.command, host)
        except (BrokerRefused, StopError) as error:
            return Refused(text=str(error))
        except Exception as error:
            if isinstance(error, TimeoutError) and deadline.expired():
                return Refused(text=f"{request.command.kind}: not done within {seconds:g} s, and given up")
            logger.exception("the command %s failed", request.command.kind)
            return Refused(
                text=f"{request.command.kind}: {type(error).__name__}: {error}; the log has the traceback"
            )

    async def _carry_out(self, command: Command, host: BrokerHost) -> Result:
        match command:
            case Start():
                await host.start(InnerSetup(command.identity, command.config_path))
            case Stop():
                await host.stop(command.identity, hand_over=command.hand_over)
            case Change():
                await host.change(command.settings)
            case ListBrokers():
                return Brokers(brokers=await host.brokers())
            case DescribeWorker():
                return WorkerState(worker=await host.worker())
            case ReadMetrics():
                return MetricsText(text=to_text(await host.metrics()))
            case Leave():
                await host.leave()
            case Close():
                await self._close_host()
            case Ping():
                pass
            case Begin():
                return Refused(text="the worker has begun already")
        return Done()

    def _answer(self, number: int, result: Result) -> None:
        try:
            self._channel.send(Answer(id=number, result=result))
        except FrameError as error:
            self._channel.send(Answer(id=number, result=Refused(text=f"the answer is too large: {error}")))

    # -- end -----------------------------------------------------------------------------------------------

    async def _close_host(self) -> None:
        """Runs once, for the first caller; a caller that gives up does not interrupt it."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._stop_brokers(), name="stop the brokers")
        await asyncio.shield(self._closing)

    async def _stop_brokers(self) -> None:
        self._on_stopping()
        closing = [task for task in self._commands.values() if task.get_name() == "command close"]
        others = [task for task in self._commands.values() if task not in closing]
        for task in others:
            task.cancel()
        if others:  # a start may hang in a thread; the host's close() bounds it
            await asyncio.wait(others, timeout=CANCELLED_S_MAX)
        assert self._host is not None
        await self._host.close()
