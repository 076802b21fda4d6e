"""What was sent before this process was stopped never counts as sent after it, wherever the stop was."""

from random import Random

import pytest

from broker.core import pauses
from broker.core.lease import Lease, ReplicaLeases
from broker.core.pauses import PAUSE_MS, PauseDetector
from broker.ha.core.master_link import MasterLink, MasterLog
from tests.support.ha_parts import link_settings

TICK_MS = 100
END_MS = 20_000


class Loop:
    """An event loop that polls, reads what was there when it polled, and then runs its timer; it may be
    stopped between any two of these steps. The kernel keeps what arrives meanwhile."""

    def __init__(self, seed: int) -> None:
        self.dice = Random(seed)
        self.now_ms = 1_000
        self.detector = PauseDetector(self.now_ms)
        self.due_ms = self.now_ms + TICK_MS
        self.sends = sorted(self.dice.randrange(1_000, END_MS) for _ in range(200))
        self.worst_ms = self.stops = 0

    def step(self, took_ms: int) -> None:
        self.now_ms += took_ms
        if self.dice.random() < 0.02:
            self.stops += 1
            self.now_ms += self.dice.choice((50, 200, 400, 1_000, 5_000))

    def run(self) -> int:
        """Returns by how much a time was too late, in ms."""
        while self.now_ms < END_MS:
            self.step(self.dice.randrange(0, 3))
            polled_ms = self.now_ms  # what arrives later is read in the next turn
            self.step(self.dice.randrange(0, 3))
            arrived = [each for each in self.sends if each <= polled_ms]
            if arrived:
                self.sends = self.sends[len(arrived) :]
                late_ms = self.detector.sent_ms(self.now_ms) - arrived[-1]
                self.worst_ms = max(self.worst_ms, late_ms)
            self.step(0)
            if self.now_ms >= self.due_ms:
                self.detector.tick(self.now_ms)
                self.due_ms = self.now_ms + TICK_MS
            next_ms = min([self.due_ms, *self.sends[:1]])
            self.now_ms = max(self.now_ms, min(next_ms, self.due_ms))
        return self.worst_ms


def worst(seeds: range) -> int:
    return max(Loop(seed).run() for seed in seeds)


def test_what_waited_counts_as_of_before_the_stop() -> None:
    assert worst(range(300)) <= PAUSE_MS + TICK_MS


def test_without_the_turn_after_the_stop_it_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """The poll before the stop did not see what is read in the turn after it."""

    def tick(self: PauseDetector, now_ms: int) -> bool:
        self._ticked_ms = now_ms
        return False

    monkeypatch.setattr(PauseDetector, "tick", tick)
    assert worst(range(300)) > PAUSE_MS + TICK_MS


def test_without_the_detector_it_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pauses.PauseDetector, "sent_ms", lambda self, now_ms: now_ms)
    assert worst(range(300)) > PAUSE_MS + TICK_MS


def test_two_stops_in_a_row() -> None:
    """The bytes of the first one may not be read before the second one."""
    detector = PauseDetector(1_000)
    assert detector.tick(1_100) is False and detector.sent_ms(1_150) == 1_150
    assert detector.sent_ms(4_000) == 1_100, "read before the timer ran"
    assert detector.tick(4_000) is True and detector.sent_ms(4_001) == 1_100
    assert detector.sent_ms(9_000) == 1_100, "stopped again"
    assert detector.tick(9_000) is True and detector.sent_ms(9_001) == 1_100
    assert detector.tick(9_100) is False and detector.sent_ms(9_101) == 9_101


def test_the_lease_of_a_master_that_was_stopped_is_not_renewed_by_what_waited() -> None:
    """Both in-sync slaves reported while it was stopped, one was elected, and its end of the link comes last.
    The answers of controllers count from the sending of the heartbeat, and the last one left before."""
    stopped_ms, resumed_ms = 10_000, 15_000
    detector = PauseDetector(stopped_ms)
    lease = Lease(timeout_ms=3_000, replica_leases=ReplicaLeases(keelmq_ms=3_000, foreign_ms=3_000))
    lease.heartbeat_answered("n0", stopped_ms - 200, stopped_ms - 190)
    lease.confirmed("n0", stopped_ms - 100)
    links = {each: MasterLink(MasterLog(1 << 20), link_settings(), now_ms=stopped_ms) for each in (2, 3)}
    assert not lease.is_over(stopped_ms, {2, 3}, links)
    assert lease.is_over(resumed_ms, {2, 3}, links), "at once, before anything was read"

    lease.heartbeat_answered("n0", stopped_ms - 1, resumed_ms)  # the answer waited in the kernel
    lease.confirmed("n0", stopped_ms - 1)
    assert lease.is_over(resumed_ms, {2, 3}, links)
    for link in links.values():  # as MasterProtocol.data_received() does
        link.receive_data(b"", resumed_ms)
        link.heard_ms = detector.sent_ms(resumed_ms)
    assert lease.is_over(resumed_ms, {2, 3}, links)
