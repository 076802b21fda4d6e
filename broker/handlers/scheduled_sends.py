"""Sends of scheduled messages: half messages, which wait for their producer's decision, and timer messages.

Decides which are refused, and stores the others. The MessageWriter handles delay levels.
"""

from typing import Final

from broker.admission.send_gate import PutRefused
from broker.message.record import PROPERTIES_BYTES_MAX, is_half, property_value
from broker.message.timer_properties import TIMER_PROPERTIES, deliver_at, key_of, out_ms, recall_key
from broker.put.handler_context import HandlerContext
from broker.put.message_to_store import MessageToStore, PutMessageResult
from broker.put.message_writer import MessageWriter
from broker.put.send_commands import SendCommand
from broker.transactions.messages import COPY_ROOM_BYTES, half_message
from keelmq.remoting.codes import ResponseCode
from keelmq.runtime.clock import wall_ms

ROOM_BYTES: Final = 512
"""Room for the properties that the broker adds to such a message until it is delivered."""


class ScheduledSends:
    def __init__(self, context: HandlerContext, writer: MessageWriter) -> None:
        self._context, self._writer, self._levels = context, writer, context.store.delay_levels

    def refuse(self, command: SendCommand, properties: bytes) -> PutRefused | None:
        """Returns why a half message or a timer message is refused. None for every other message."""
        half = is_half_send(command, properties)
        if half or any(property_value(properties, name) for name in TIMER_PROPERTIES):
            if len(properties) > PROPERTIES_BYTES_MAX - ROOM_BYTES:
                return _no_room(properties)
            return self._refuse_half(command, properties) if half else self._refuse_timer(command, properties)
        return None

    def put(
        self, command: SendCommand, to_store: MessageToStore, properties: bytes
    ) -> PutMessageResult | PutRefused:
        """Stores a message that refuse() accepted: as a half message, as a timer message, or as it is.

        A delay level wins over a timer, and a half message is never delayed.
        """
        transactions = self._context.transactional_messages
        if transactions is not None and is_half_send(command, properties):
            half = half_message(to_store)
            if len(half.properties) > PROPERTIES_BYTES_MAX - COPY_ROOM_BYTES:  # it has UNIQ_KEY twice
                return _no_room(half.properties)
            stored = self._writer.put(half)
            if isinstance(stored, PutMessageResult):
                transactions.stored(half, stored)
            return stored
        now = wall_ms()
        deliver_ms = None if to_store.delay_level else deliver_at(properties, now)
        if deliver_ms is not None and deliver_ms > now:
            to_store.timer_out_ms = out_ms(deliver_ms, self._context.settings.timer_precision_ms)
        return self._writer.put(to_store)

    def _refuse_half(self, command: SendCommand, properties: bytes) -> PutRefused | None:
        if command.ext.batch or not property_value(properties, b"PGROUP"):
            remark = "a transactional message is no batch, and names its producers' group (PGROUP)"
            return PutRefused(ResponseCode.MESSAGE_ILLEGAL, remark)
        if self._context.transactional_messages is None:
            return PutRefused(ResponseCode.NO_PERMISSION, "this broker takes no transactional messages")
        return self._context.transactional_messages.refuse()

    def _refuse_timer(self, command: SendCommand, properties: bytes) -> PutRefused | None:
        now, settings, timers = wall_ms(), self._context.settings, self._context.timers
        if self._levels.level_of(properties):
            return None
        try:
            deliver_ms = deliver_at(properties, now)
        except ValueError as error:
            return PutRefused(ResponseCode.MESSAGE_ILLEGAL, str(error))
        if deliver_ms is None:
            return None
        if command.ext.batch:
            return PutRefused(ResponseCode.MESSAGE_ILLEGAL, "a batch is not delayed")
        recalled = recall_key(properties)
        if recalled is not None and not recalled.startswith(key_of(command.ext.topic, b"")):
            remark = "a message recalls only messages of its own topic"  # for which its sender has the right
            return PutRefused(ResponseCode.NO_PERMISSION, remark)
        if deliver_ms <= now:  # such a message is stored at once, but no consumer would understand a recall
            remark = "the message to be recalled is due already"
            return None if recalled is None else PutRefused(ResponseCode.MESSAGE_ILLEGAL, remark)
        if timers is None or not settings.timer_wheel_enable:
            remark = "timer message is not enabled, timerWheelEnable is false"
            return PutRefused(ResponseCode.SYSTEM_ERROR, remark)
        if timers.is_full:
            return PutRefused(ResponseCode.SYSTEM_ERROR, "timer message is under flow control: too many wait")
        if deliver_ms - now > settings.timer_max_delay_sec * 1_000:
            remark = f"{deliver_ms - now} ms is above timerMaxDelaySec {settings.timer_max_delay_sec}"
            return PutRefused(ResponseCode.MESSAGE_ILLEGAL, f"the delay of {remark}")
        return None


def _no_room(properties: bytes) -> PutRefused:
    remark = f"properties of {len(properties)} bytes leave no room for those of the broker"
    return PutRefused(ResponseCode.MESSAGE_ILLEGAL, remark)


def is_half_send(command: SendCommand, properties: bytes) -> bool:
    """Returns whether it is a half message. A retry is not one: a consumer that sends a message of a
    transaction back for a later retry sends all of its properties."""
    is_retry = command.ext.reconsume_times > 0 and property_value(properties, b"DELAY") not in (None, b"0")
    return not is_retry and is_half(properties)
