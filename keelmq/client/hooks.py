"""Hooks that see every message that is sent or consumed: for traces, metrics and trace contexts.

    class Timing(ClientHook):
        def after_send(self, trace): histogram.observe(trace.took_ms)

    Producer("127.0.0.1:9876", hooks=[Timing()])

A hook runs in the client's event loop, so it must not block. A hook that raises costs no message: the error
is logged with its traceback. before_send may return another message, for example with a trace context among
its properties. RocketMQ's message trace is keelmq/client/tracing.py.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from keelmq.client.core.send_result import SendResult
from keelmq.client.message import Message, MessageExt

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SendTrace:
    """One send (or one batch of `messages`) from call to answer. `error` None: acknowledged; a cancelled
    send has a CancelledError. `msg_id`: the UNIQ_KEY, of a batch that of its first message. `sent`: the
    messages as before_send() returned them, with their UNIQ_KEYs and, if acknowledged, results.
    `broker_addr`: the master of the last attempt."""

    group: str
    topic: str
    msg_id: str
    messages: int
    body_bytes: int
    broker_name: str
    started_wall_ms: int
    took_ms: int
    attempts: int
    error: BaseException | None = None
    sent: tuple[Message, ...] = ()
    msg_ids: tuple[str, ...] = ()
    results: tuple[SendResult, ...] = ()
    broker_addr: str = ""


@dataclass(frozen=True, slots=True)
class TransactionTrace:
    """A broker was told how a transaction ended. `from_check`: in answer to the broker's check."""

    group: str
    message: Message | MessageExt
    msg_id: str
    transaction_id: str
    committed: bool
    from_check: bool
    broker_addr: str


@dataclass(frozen=True, slots=True)
class ConsumeTrace:
    """One call of a listener. `error` None: consumed."""

    group: str
    messages: tuple[MessageExt, ...]
    started_wall_ms: int
    took_ms: int
    error: BaseException | None = None


class ClientHook:
    """Override the methods of interest. attached() is called before all others for a client, detached()
    after them: there a hook may wait for a moment, and send what it collected."""

    def attached(self, namesrv_addr: str) -> None:
        pass

    async def detached(self) -> None:
        pass

    def before_send(self, message: Message) -> Message:
        return message

    def after_send(self, trace: SendTrace) -> None:
        pass

    def before_consume(self, group: str, messages: Sequence[MessageExt]) -> None:
        """The same `messages` object is in the ConsumeTrace of this call."""

    def after_consume(self, trace: ConsumeTrace) -> None:
        pass

    def after_end_transaction(self, trace: TransactionTrace) -> None:
        pass


class Hooks:
    """All hooks of one client, called in the order given."""

    def __init__(self, hooks: Iterable[ClientHook], namesrv_addr: str) -> None:
        self._hooks, self._namesrv_addr = tuple(hooks), namesrv_addr
        self._attached = False

    def __bool__(self) -> bool:
        return bool(self._hooks)

    def attach(self) -> None:
        """Attaches all hooks once; later calls do nothing. A hook that raises here sees nothing of this
        client."""
        if not self._attached:
            self._attached = True
            self._hooks = tuple(hook for hook in self._hooks if self._begins(hook))

    def _begins(self, hook: ClientHook) -> bool:
        try:
            hook.attached(self._namesrv_addr)
        except Exception:
            logger.exception("client hook %s failed: it is left out", hook.attached.__qualname__)
            return False
        return True

    async def detach(self) -> None:
        """Safe to repeat, and without attach()."""
        if not self._attached:
            return
        self._attached = False
        for hook in self._hooks:
            try:
                await hook.detached()
            except Exception:
                logger.exception("client hook %s failed", hook.detached.__qualname__)

    def before_send(self, message: Message) -> Message:
        self.attach()
        for hook in self._hooks:
            changed = _guarded(hook.before_send, message)
            message = changed if isinstance(changed, Message) else message
        return message

    def after_send(self, trace: SendTrace) -> None:
        for hook in self._hooks:
            _guarded(hook.after_send, trace)

    def before_consume(self, group: str, messages: Sequence[MessageExt]) -> None:
        self.attach()
        for hook in self._hooks:
            _guarded(hook.before_consume, group, messages)

    def after_consume(self, trace: ConsumeTrace) -> None:
        for hook in self._hooks:
            _guarded(hook.after_consume, trace)

    def after_end_transaction(self, trace: TransactionTrace) -> None:
        self.attach()
        for hook in self._hooks:
            _guarded(hook.after_end_transaction, trace)


def _guarded(call: Callable[..., Any], *values: object) -> object:
    try:
        return call(*values)
    except Exception:  # a hook's error must not lose the message
        logger.exception("client hook %s failed", call.__qualname__)
        return None
