"""Sends of messages that are laid by: half messages for their producer's decision, timer messages for their
time. What is refused, and how they are put.
"""

from typing import Final

from broker.handlers.parts import BrokerParts
from broker.handlers.send_commands import SendCommand
from broker.handlers.writer import Letter, Refused, Stored, Writer
from broker.store.record import PROPERTIES_BYTES_MAX, property_value
from broker.timers.times import TIMER_PROPERTIES, deliver_at, out_ms, recall_key
from broker.transactions.messages import half_letter, is_half
from remoting.clock import wall_ms
from remoting.codes import ResponseCode

ROOM_BYTES: Final = 512
"""Of properties that the broker adds to such a message until it is delivered."""


class LaidBySends:
    def __init__(self, parts: BrokerParts, writer: Writer) -> None:
        self._parts, self._writer, self._levels = parts, writer, parts.store.delay_levels

    def refuse(self, command: SendCommand, properties: bytes) -> Refused | None:
        """None also for every other message."""
        half = is_half_send(command, properties)
        if half or any(property_value(properties, name) for name in TIMER_PROPERTIES):
            if len(properties) > PROPERTIES_BYTES_MAX - ROOM_BYTES:
                remark = f"properties of {len(properties)} bytes leave no room for those of the broker"
                return Refused(ResponseCode.MESSAGE_ILLEGAL, remark)
            return self._refuse_half(command, properties) if half else self._refuse_timer(command, properties)
        return None

    def put(self, command: SendCommand, letter: Letter, properties: bytes) -> Stored | Refused:
        """The letter of a message that refuse() let pass, laid by or not. A delay level wins over a timer,
        and a transaction is never delayed."""
        halves = self._parts.halves
        if halves is not None and is_half_send(command, properties):
            half = half_letter(letter)
            stored = self._writer.put(half)
            if isinstance(stored, Stored):
                halves.stored(half, stored)
            return stored
        now = wall_ms()
        deliver_ms = None if letter.delay_level else deliver_at(properties, now)
        if deliver_ms is not None and deliver_ms > now:
            letter.timer_out_ms = out_ms(deliver_ms, self._parts.settings.timer_precision_ms)
        return self._writer.put(letter)

    def _refuse_half(self, command: SendCommand, properties: bytes) -> Refused | None:
        if command.ext.batch or not property_value(properties, b"PGROUP"):
            remark = "a transactional message is no batch, and names its producers' group (PGROUP)"
            return Refused(ResponseCode.MESSAGE_ILLEGAL, remark)
        if self._parts.halves is None:
            return Refused(ResponseCode.NO_PERMISSION, "this broker takes no transactional messages")
        return self._parts.halves.refuse()

    def _refuse_timer(self, command: SendCommand, properties: bytes) -> Refused | None:
        now, settings, timers = wall_ms(), self._parts.settings, self._parts.timers
        if self._levels.level_of(properties):
            return None
        try:
            deliver_ms = deliver_at(properties, now)
        except ValueError as error:
            return Refused(ResponseCode.MESSAGE_ILLEGAL, str(error))
        if deliver_ms is None:
            return None
        if command.ext.batch:
            return Refused(ResponseCode.MESSAGE_ILLEGAL, "a batch is not delayed")
        if deliver_ms <= now:  # stored at once; but a recall would be nothing that consumers understand
            is_recall = recall_key(properties) is not None
            remark = "the message to be recalled is due already"
            return Refused(ResponseCode.MESSAGE_ILLEGAL, remark) if is_recall else None
        if timers is None or not settings.timer_wheel_enable:
            remark = "timer message is not enabled, timerWheelEnable is false"
            return Refused(ResponseCode.SYSTEM_ERROR, remark)
        if timers.is_full:
            return Refused(ResponseCode.SYSTEM_ERROR, "timer message is under flow control: too many wait")
        if deliver_ms - now > settings.timer_max_delay_sec * 1_000:
            remark = f"{deliver_ms - now} ms is above timerMaxDelaySec {settings.timer_max_delay_sec}"
            return Refused(ResponseCode.MESSAGE_ILLEGAL, f"the delay of {remark}")
        return None


def is_half_send(command: SendCommand, properties: bytes) -> bool:
    """A consumer that sends a transaction's message back for a later retry sends all of its properties."""
    is_retry = command.ext.reconsume_times > 0 and property_value(properties, b"DELAY") not in (None, b"0")
    return not is_retry and is_half(properties)
