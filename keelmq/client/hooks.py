"""Hooks that are called for every message that is sent or consumed: for traces, metrics and trace contexts.

    class Timing(ClientHook):
        def after_send(self, trace): histogram.observe(trace.took_ms)

    Producer("127.0.0.1:9876", hooks=[Timing()])

A hook runs in the client's event loop, so it must not block. An exception in a hook is logged with its
traceback and loses no message. before_send may return another message, for example with a trace context among
its properties. RocketMQ's message trace is keelmq/client/tracing.py.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from keelmq.client.core.send_result import SendResult
from keelmq.client.message import Message, MessageExt
from keelmq.runtime.tls.contexts import ClientTls
from keelmq.security.signer import Credentials

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SendTrace:
    """One send (or one batch of `messages`) from call to result. `error` None: acknowledged; a cancelled send
    has a CancelledError. `msg_id`: the UNIQ_KEY, of a batch that of its first message. `sent`: the messages
    as before_send() returned them, with their UNIQ_KEYs and, if acknowledged, results. `broker_addr`: the
    master of the last attempt."""

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
    """A commit or rollback that a broker received. `from_check`: as the response to the broker's check."""

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
    """Base of hooks: override the methods of interest. attached() is called before all others for a client,
    except use_credentials(), and detached() after them. `client_tls`: the client's, set before attached(),
    for a hook with connections of its own."""

    client_tls: ClientTls | None = None

    def use_credentials(self, credentials: Credentials) -> None:
        """Called before attached() if the client has credentials, for hooks that send something."""

    def attached(self, namesrv_addr: str) -> None:
        """Called once for each client. A hook that raises here is not used for that client."""

    async def detached(self) -> None:
        """Called when the client closes. May wait for a moment, to send what the hook collected."""

    def before_send(self, message: Message) -> Message:
        """Returns the message to send: this one, or another one in its place."""
        return message

    def after_send(self, trace: SendTrace) -> None:
        """Called when a send or batch ended, with or without success."""

    def before_consume(self, group: str, messages: Sequence[MessageExt]) -> None:
        """Called before each listener call. The ConsumeTrace of this call has the same `messages` object."""

    def after_consume(self, trace: ConsumeTrace) -> None:
        """Called after each listener call."""

    def after_end_transaction(self, trace: TransactionTrace) -> None:
        """Called when a broker received a commit or rollback."""


class Hooks:
    """All hooks of one client, called in the given order."""

    def __init__(
        self,
        hooks: Iterable[ClientHook],
        namesrv_addr: str,
        tls: ClientTls | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self._hooks, self._namesrv_addr = tuple(hooks), namesrv_addr
        self._tls, self._credentials = tls, credentials
        self._attached = False

    def __bool__(self) -> bool:
        return bool(self._hooks)

    def attach(self) -> None:
        """Attaches all hooks once; later calls do nothing. A hook that raises here is not used for this
        client."""
        if not self._attached:
            self._attached = True
            self._hooks = tuple(hook for hook in self._hooks if self._begins(hook))

    def _begins(self, hook: ClientHook) -> bool:
        try:
            hook.client_tls = self._tls
            if self._credentials is not None:
                hook.use_credentials(self._credentials)
            hook.attached(self._namesrv_addr)
        except Exception:
            logger.exception("client hook %s failed: it is not used", hook.attached.__qualname__)
            return False
        return True

    async def detach(self) -> None:
        """Detaches all hooks. Safe to repeat, and without attach()."""
        if not self._attached:
            return
        self._attached = False
        for hook in self._hooks:
            try:
                await hook.detached()
            except Exception:
                logger.exception("client hook %s failed", hook.detached.__qualname__)

    def before_send(self, message: Message) -> Message:
        """Returns the message as the hooks changed it; attaches them first."""
        self.attach()
        for hook in self._hooks:
            changed = _guarded(hook.before_send, message)
            message = changed if isinstance(changed, Message) else message
        return message

    def after_send(self, trace: SendTrace) -> None:
        """Calls after_send() of each hook."""
        for hook in self._hooks:
            _guarded(hook.after_send, trace)

    def before_consume(self, group: str, messages: Sequence[MessageExt]) -> None:
        """Calls before_consume() of each hook; attaches them first."""
        self.attach()
        for hook in self._hooks:
            _guarded(hook.before_consume, group, messages)

    def after_consume(self, trace: ConsumeTrace) -> None:
        """Calls after_consume() of each hook."""
        for hook in self._hooks:
            _guarded(hook.after_consume, trace)

    def after_end_transaction(self, trace: TransactionTrace) -> None:
        """Calls after_end_transaction() of each hook; attaches them first."""
        self.attach()
        for hook in self._hooks:
            _guarded(hook.after_end_transaction, trace)


def _guarded(call: Callable[..., Any], *values: object) -> object:
    try:
        return call(*values)
    except Exception:  # a hook's error must not lose the message
        logger.exception("client hook %s failed", call.__qualname__)
        return None
