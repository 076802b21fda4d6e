"""Virtual time for asyncio and for the library: the clock jumps to the next timer, nothing ever waits."""

import asyncio
import contextlib
from collections.abc import Iterator
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pysyncobj.syncobj as library

from namesrv.plugins.controller import replicator
from namesrv.plugins.controller.raft import election_wait
from namesrv.plugins.controller.raft.membership import vote_eligibility

NUDGE_S = 1e-6  # the library has loops that end only when time passes


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop without sockets. Same timers, same order: same run."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 1000.0
        self._selector = SimpleNamespace(select=self._jump)

    def time(self) -> float:
        return self._now

    def _jump(self, timeout: float | None) -> tuple[()]:
        assert timeout is not None, "nothing is scheduled and somebody waits: a deadlock"
        self._now += max(timeout, 0.0)
        return ()

    def _process_events(self, event_list: object) -> None: ...
    def _write_to_self(self) -> None: ...


class Clock:
    """What the library takes for monotonic time; each process has its own rate and offset."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop, self._nudges = loop, 0
        self.rate, self.offset = 1.0, 0.0  # of the process that runs now

    def __call__(self) -> float:
        self._nudges += 1
        return self._loop.time() * self.rate + self.offset + self._nudges * NUDGE_S


class Pipe:
    """In the place of the library's PipeNotifier: `wake` is set by the process."""

    _PipeNotifier__pipeR = _PipeNotifier__pipeW = -1

    def __init__(self, poller: "Poller") -> None:
        self._poller = poller

    def notify(self) -> None:
        self._poller.wake()


class Poller:
    """In the place of poll(): hands over what has arrived."""

    def __init__(self) -> None:
        self.wake = lambda: None
        self.deliver = lambda: None

    def subscribe(self, *_: object) -> None: ...
    def unsubscribe(self, *_: object) -> None: ...

    def poll(self, _timeout: float) -> None:
        self.deliver()


class SameHashNode(replicator._Node):
    """Sets of nodes loop in the same order whatever PYTHONHASHSEED says."""

    def __hash__(self) -> int:
        return sum(self.id.encode())


@contextlib.contextmanager
def virtual_library(clock: Clock, random: Random, **more: Any) -> Iterator[None]:
    """The library and our raft thread see this clock and these dice only."""
    with contextlib.ExitStack() as stack:
        for owner, name, value in (
            (library, "monotonicTime", clock),
            (library, "random", random),
            (library, "createPoller", lambda _kind: Poller()),
            (library, "PipeNotifier", Pipe),
            (replicator, "_Node", SameHashNode),
            (replicator, "random", random),
            (election_wait, "random", random),
            (
                vote_eligibility,
                "secrets",
                SimpleNamespace(token_hex=lambda count: random.randbytes(count).hex()),
            ),
        ):
            stack.enter_context(mock.patch.object(owner, name, value))
        for name, value in more.items():
            stack.enter_context(mock.patch.object(replicator, name, value))
        yield
