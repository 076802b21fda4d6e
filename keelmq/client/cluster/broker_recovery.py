"""Brokers and topics at which sends fail, and the one message at a time that tries them again.

An entry belongs to one broker name (it is silent, or refuses all sends), to one topic at one broker (it
refuses that topic), or to one topic that has no route. While there is an entry, one of its messages at a time
tries, and the others wait, so a fail-over costs a few dozen requests instead of thousands, on the machines
that hold an election. Messages that may go to any queue go to other brokers meanwhile. A success removes the
entry and wakes all waiting messages; an entry that no message uses is removed after IDLE_MS.
"""

import asyncio
import random
from collections.abc import Iterable
from dataclasses import dataclass, field

from keelmq.remoting.codes import ResponseCode
from keelmq.runtime.backoff import Backoff

RETRY = Backoff(first_ms=4, max_ms=500, factor=1.1)
"""Grows slowly: a fail-over takes some tens of ms, and the pause in progress at its end adds to it."""
BUSY_RETRY = Backoff(first_ms=100, max_ms=2_000)
"""After SYSTEM_BUSY: the broker is overloaded, and early retries add to its load."""
IDLE_MS = 60_000

OF_ONE_TOPIC = frozenset(
    {
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
    }
)
"""Refusals that say nothing about other topics of the broker."""

Key = tuple[str, str]
"""(broker name, topic): ("a", "") a broker, ("a", "T") a topic at it, ("", "T") a topic without a route."""


@dataclass(slots=True, eq=False)
class Recovery:
    """One entry. `failures` 0: no send failed, but the broker has been silent for long; then messages are not
    sent one at a time. `unreachable`: the broker has sent nothing since, so a message that may go to another
    broker does not try it. `due_ms`: when the next attempt may be made."""

    failures: int
    due_ms: float
    busy: bool
    unreachable: bool
    used_ms: int
    probing: bool = False
    pinged: bool = False  # a background task probes it
    waiting: dict["asyncio.Future[bool]", None] = field(default_factory=dict)
    _pausing: "asyncio.Future[None] | None" = None

    async def turn(self) -> bool:
        """Waits for the caller's turn. True: the caller makes the next attempt, and then calls end_turn().
        False: choose a queue again."""
        if not self.probing:
            self.probing = True
            return True
        waiting = asyncio.get_running_loop().create_future()
        self.waiting[waiting] = None
        try:
            return bool(await waiting)
        except asyncio.CancelledError:
            if waiting.done() and not waiting.cancelled() and waiting.result():
                self.end_turn()
            raise
        finally:
            self.waiting.pop(waiting, None)

    def end_turn(self) -> None:
        """Ends the caller's turn and wakes the next message."""
        for waiting in self.waiting:
            if not waiting.done():
                waiting.set_result(True)
                return
        self.probing = False

    async def until_due(self, now_ms: int) -> bool:
        """Waits until due_ms; only for the caller whose turn it is. False: something recovered meanwhile,
        choose a queue again."""
        if self.due_ms <= now_ms:
            return True
        self._pausing = asyncio.get_running_loop().create_future()
        try:
            done, _ = await asyncio.wait((self._pausing,), timeout=(self.due_ms - now_ms) / 1_000)
        finally:
            self._pausing = None
        return not done

    def release(self) -> None:
        """Wakes all waiting messages, to choose a queue again."""
        for waiting in self.waiting:
            if not waiting.done():
                waiting.set_result(False)
        if self._pausing is not None and not self._pausing.done():
            self._pausing.set_result(None)

    @property
    def is_unused(self) -> bool:
        """Returns whether no message tries this entry or waits for it."""
        return not self.probing and not self.waiting

    def failed_again(self, now_ms: int, draw: float) -> None:
        """Counts a failure and sets due_ms. `draw`: a random number from 0 up to 1."""
        self.failures += 1
        self._pause(now_ms, draw)

    def heard(self, *, busy: bool, now_ms: int, draw: float) -> None:
        """Handles a refusal: the broker answers again."""
        self.unreachable = False
        if busy and not self.busy:
            self.busy = True
            self._pause(now_ms, draw)
        self.busy = busy

    def _pause(self, now_ms: int, draw: float) -> None:
        self.due_ms = now_ms + (BUSY_RETRY if self.busy else RETRY).pause_ms(self.failures, draw)


class Recoveries:
    """The entries of one client; empty while no send fails."""

    def __init__(self, dice: random.Random | None = None) -> None:
        self._dice = dice or random.Random()
        self._failing: dict[Key, Recovery] = {}

    def __bool__(self) -> bool:
        return bool(self._failing)

    def __len__(self) -> int:
        return len(self._failing)

    def find(self, broker_name: str, topic: str, *, now_ms: int) -> tuple[Key, Recovery] | None:
        """Returns the entry that delays sends of this topic to this broker, with its key; None: there is
        none."""
        for key in ((broker_name, ""), (broker_name, topic)):
            found = self._failing.get(key)
            if found is not None:
                found.used_ms = now_ms
                return key, found
        return None

    def holds(self, key: Key, recovery: Recovery) -> bool:
        """Returns whether this entry is still in use under this key."""
        return self._failing.get(key) is recovery

    def may_try(self, broker_name: str, topic: str, *, now_ms: int) -> bool:
        """Returns whether a message that may go to any queue may go to this broker now."""
        found = self.find(broker_name, topic, now_ms=now_ms)
        if found is None:
            return True
        recovery = found[1]
        return not recovery.unreachable and not recovery.probing and recovery.due_ms <= now_ms

    def least_bad(self, broker_names: Iterable[str], topic: str, *, now_ms: int) -> str:
        """Returns the broker to wait for, if all of them fail."""

        def badness(name: str) -> tuple[bool, bool, float]:
            found = self.find(name, topic, now_ms=now_ms)
            return (found[1].probing, found[1].unreachable, found[1].due_ms) if found else (False, False, 0)

        return min(broker_names, key=badness)

    def no_route(self, broker_name: str, topic: str, *, now_ms: int) -> tuple[Key, Recovery]:
        """Returns the entry of a broker without a master; broker name "": of a topic without a route."""
        key = (broker_name, "" if broker_name else topic)
        return key, self._of(key, now_ms=now_ms)

    def unreachable(self, broker_name: str, *, now_ms: int) -> tuple[Key, Recovery]:
        """Returns the entry of a broker whose connection was lost, or could not be made."""
        key = (broker_name, "")
        recovery = self._of(key, now_ms=now_ms)
        recovery.unreachable = True
        return key, recovery

    def silent(self, broker_name: str, *, now_ms: int) -> tuple[Key, Recovery]:
        """Returns the entry of a broker that does not answer the sends that wait there."""
        key = (broker_name, "")
        recovery = self._failing.get(key)
        if recovery is None:
            recovery = self._failing[key] = Recovery(0, now_ms, busy=False, unreachable=True, used_ms=now_ms)
        return key, recovery

    def refused(self, broker_name: str, topic: str, code: int, *, now_ms: int) -> None:
        """Records a broker's refusal of a send."""
        whole = self._failing.get((broker_name, ""))
        busy = code == ResponseCode.SYSTEM_BUSY
        if whole is not None:
            whole.heard(busy=busy, now_ms=now_ms, draw=self._dice.random())
        if whole is None or code in OF_ONE_TOPIC:
            self._of((broker_name, topic if code in OF_ONE_TOPIC else ""), now_ms=now_ms, busy=busy)

    def failed_again(self, recovery: Recovery, *, now_ms: int) -> None:
        """Records another failed attempt of an entry."""
        recovery.failed_again(now_ms, self._dice.random())

    def succeeded(self, broker_name: str, topic: str) -> None:
        """Removes the entries of this broker and topic, after an acknowledged send."""
        self.forget((broker_name, ""))
        self.forget((broker_name, topic))

    def forget(self, key: Key) -> None:
        """Removes an entry and wakes all messages: those that wait for another broker may go to this one."""
        gone = self._failing.pop(key, None)
        if gone is not None:
            gone.release()
            for other in self._failing.values():
                other.release()

    def sweep(self, *, now_ms: int) -> None:
        """Removes entries that no message has used for IDLE_MS."""
        for key, recovery in list(self._failing.items()):
            if recovery.is_unused and now_ms - recovery.used_ms >= IDLE_MS:
                del self._failing[key]

    def _of(self, key: Key, *, now_ms: int, busy: bool = False) -> Recovery:
        recovery = self._failing.get(key)
        if recovery is None:
            recovery = self._failing[key] = Recovery(0, now_ms, busy, unreachable=False, used_ms=now_ms)
        if not recovery.failures:
            recovery.failed_again(now_ms, self._dice.random())
        recovery.used_ms = now_ms
        return recovery
