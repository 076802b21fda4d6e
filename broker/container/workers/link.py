"""Link: the supervisor's end of the connection to one worker process: requests, their deadlines, events."""

import asyncio
import itertools
import logging
from collections.abc import Callable
from typing import TypeVar

from broker.container.core.frames import FRAME_BYTES_MAX
from broker.container.host import BrokerRefused
from broker.container.workers.channel import Channel
from broker.container.workers.messages import (
    Answer,
    BrokerFailed,
    BrokerRestarted,
    Cancel,
    Command,
    MessageError,
    Ping,
    Refused,
    Request,
    Result,
    from_worker,
)

logger = logging.getLogger(__name__)

REQUESTS_MAX = 1_000
"""Open requests: several for each broker that a worker can have."""
ANSWER_GRACE_MS = 10_000
"""How long after a request's deadline, when the worker refuses it, that refusal may take."""

R = TypeVar("R", bound=Result)
Event = BrokerFailed | BrokerRestarted


class Link:
    """One connection, which is lost once. `name`: of the worker, for texts: "worker 1 (pid 77)"."""

    def __init__(
        self, name: str, on_event: Callable[[Event], None], bytes_max: int = FRAME_BYTES_MAX
    ) -> None:
        self.name = name
        self.channel = Channel(self, bytes_max)
        self.has_ended = asyncio.Event()
        self.reason = ""
        """Why it was lost."""
        self.is_given_up = False
        """Whether the supervisor has ended it, because the worker hangs or sends an invalid message."""
        self.heard = 0
        """Messages of the worker so far."""
        self._on_event = on_event
        self._ids = itertools.count(1)
        self._open: dict[int, asyncio.Future[Result]] = {}

    async def request(self, command: Command, result: type[R], *, deadline_ms: int, purpose: str) -> R:
        """Returns the worker's result. purpose: of the request, for texts: "starting c_a_0". Raises
        BrokerRefused: the worker refuses, ends meanwhile, or does not answer; in the last case it hangs, so
        the link is given up."""
        if self.has_ended.is_set():
            raise BrokerRefused(f"{purpose}: {self.name} does not run: {self.reason}")
        if len(self._open) >= REQUESTS_MAX:
            raise BrokerRefused(f"{purpose}: {self.name} has {REQUESTS_MAX} open requests; try again later")
        number = next(self._ids)
        answered = self._open[number] = asyncio.get_running_loop().create_future()
        try:
            self.channel.send(Request(id=number, deadline_ms=deadline_ms, command=command))
            async with asyncio.timeout((deadline_ms + ANSWER_GRACE_MS) / 1000):
                got = await answered
        except TimeoutError:
            self.give_up(f"it did not answer within {deadline_ms + ANSWER_GRACE_MS} ms ({purpose})")
            raise BrokerRefused(f"{purpose}: {self.name} does not answer, and is ended") from None
        except asyncio.CancelledError:
            self.channel.send(Cancel(id=number))
            raise
        finally:
            del self._open[number]
        if isinstance(got, Refused):
            raise BrokerRefused(got.text)
        if not isinstance(got, result):
            self.give_up(f"it answered {command.kind} with {got.kind}")
            raise BrokerRefused(f"{purpose}: {self.name} answered with {got.kind}, and is ended")
        return got

    def ping(self) -> None:
        """Sends a ping; `heard` grows when the answer comes."""
        self.channel.send(Request(id=next(self._ids), deadline_ms=ANSWER_GRACE_MS, command=Ping()))

    def give_up(self, reason: str) -> None:
        """Ends the link: the worker cannot be relied on."""
        self.is_given_up = True
        self.channel.abort(reason)

    # -- Receiver ------------------------------------------------------------------------------------------

    def received(self, payload: bytes) -> None:
        """Called by the channel."""
        try:
            message = from_worker(payload)
        except MessageError:
            self.is_given_up = True
            raise
        self.heard += 1
        if not isinstance(message, Answer):
            self._on_event(message)
            return
        answered = self._open.get(message.id)
        if answered is not None and not answered.done():  # else a ping's, or of a cancelled request
            answered.set_result(message.result)

    def lost(self, reason: str) -> None:
        """Called by the channel. Requests that are open fail."""
        self.reason = reason
        self.has_ended.set()
        for answered in self._open.values():
            if not answered.done():
                answered.set_result(Refused(text=f"{self.name} ended before it had answered: {reason}"))
