"""What an application may see of every message that goes out or comes in: traces, metrics, contexts.

    class Timing(ClientHook):
        def after_send(self, trace): histogram.observe(trace.took_ms)

    Producer("127.0.0.1:9876", hooks=[Timing()])

A hook runs inside the client's loop, so it must not wait. One that raises costs no message: the error is
logged with its traceback. before_send may give back another message, e.g. with a trace context among its
properties.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from client.message import Message, MessageExt

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SendTrace:
    """One send (or one batch of `messages`) from call to answer. `error` None: acknowledged. `msg_id`: the
    UNIQ_KEY, of a batch that of its first message."""

    group: str
    topic: str
    msg_id: str
    messages: int
    body_bytes: int
    broker_name: str
    started_wall_ms: int
    took_ms: int
    attempts: int
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class ConsumeTrace:
    """One call of a listener. `error` None: consumed."""

    group: str
    messages: tuple[MessageExt, ...]
    started_wall_ms: int
    took_ms: int
    error: BaseException | None = None


class ClientHook:
    """Override what you want to see."""

    def before_send(self, message: Message) -> Message:
        return message

    def after_send(self, trace: SendTrace) -> None:
        pass

    def before_consume(self, messages: Sequence[MessageExt]) -> None:
        pass

    def after_consume(self, trace: ConsumeTrace) -> None:
        pass


class Hooks:
    """All hooks of one client, called in the order given."""

    def __init__(self, hooks: Iterable[ClientHook] = ()) -> None:
        self._hooks = tuple(hooks)

    def __bool__(self) -> bool:
        return bool(self._hooks)

    def before_send(self, message: Message) -> Message:
        for hook in self._hooks:
            changed = _guarded(hook.before_send, message)
            message = changed if isinstance(changed, Message) else message
        return message

    def after_send(self, trace: SendTrace) -> None:
        for hook in self._hooks:
            _guarded(hook.after_send, trace)

    def before_consume(self, messages: Sequence[MessageExt]) -> None:
        for hook in self._hooks:
            _guarded(hook.before_consume, messages)

    def after_consume(self, trace: ConsumeTrace) -> None:
        for hook in self._hooks:
            _guarded(hook.after_consume, trace)


def _guarded(call: Callable[[Any], Any], value: object) -> object:
    try:
        return call(value)
    except Exception:  # an observer's fault is no reason to lose what it observes
        logger.exception("client hook %s failed", call.__qualname__)
        return None
