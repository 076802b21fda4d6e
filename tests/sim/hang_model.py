"""A master, its slaves and a controller on noisy machines, as far as the search for hung masters goes.

The rules are the real ones (Silence, MasterWatch, hung_from_ms). Machines stop for up to 400 ms every few
seconds, and processes get the CPU late. One packet in a hundred is lost: it is sent again after 200 ms, then
400 ms, and what follows it waits.
"""

import heapq
from bisect import bisect_right
from collections.abc import Callable
from random import Random

from broker.controller_mode.controller_client import OFTEN_MS
from broker.ha.core.master_watch import MasterWatch
from keelmq.health.silence import Silence
from namesrv.plugins.controller.core.hang import HEARTBEAT_SILENCE_MIN_MS, MasterHeartbeat, hung_from_ms
from namesrv.plugins.controller.election.hung_masters import CONFIRM_MS

LOSS, RESEND_MS = 0.01, 200.0
PAUSE_MS, PAUSE_EVERY_MS = 400.0, 8_000.0
LATE_MS, VERY_LATE, VERY_LATE_MS = 3.0, 0.01, 100.0
TICK_MS, HEARTBEAT_MS = 100, 1_000
START_MS = 10_000
HOUR_MS = 3_600_000
EPOCH = 1


class Machine:
    """Runs, and stops now and then."""

    def __init__(self, dice: Random) -> None:
        self.dice = dice
        self.hangs_ms = float("inf")
        self._begins, self._ends = [0.0], [0.0]  # of its pauses, ascending

    def runs_at(self, at_ms: float) -> float:
        """Returns when it does what is due at `at_ms`."""
        while at_ms >= self._ends[-1]:
            self._begins.append(self._ends[-1] + self.dice.expovariate(1 / PAUSE_EVERY_MS))
            self._ends.append(self._begins[-1] + self.dice.uniform(0, PAUSE_MS))
        pause = bisect_right(self._begins, at_ms) - 1
        late_ms = self.dice.expovariate(1 / LATE_MS)
        if self.dice.random() < VERY_LATE:
            late_ms += self.dice.uniform(0, VERY_LATE_MS)
        ran_ms = max(at_ms, self._ends[pause]) + late_ms
        return ran_ms if ran_ms < self.hangs_ms else float("inf")


class Stream:
    """One direction of a TCP connection: when what is sent arrives, in order."""

    def __init__(self, dice: Random) -> None:
        self.dice, self.arrived_ms = dice, 0.0

    def arrives_at(self, sent_ms: float) -> float:
        delay_ms, again_ms = self.dice.uniform(0.1, 2.0), RESEND_MS
        while self.dice.random() < LOSS:
            delay_ms += again_ms
            again_ms *= 2
        self.arrived_ms = max(self.arrived_ms, sent_ms + delay_ms)
        return self.arrived_ms


class Slave:
    """Ticks, reads its link, and reports to the controller at once and every second."""

    def __init__(self, model: "Model") -> None:
        self.model, self.machine = model, Machine(model.dice)
        self.link, self.reports = Stream(model.dice), Stream(model.dice)
        self.read_ms = START_MS
        self.watch = MasterWatch(START_MS, self.report)
        self.reported: int | None = None  # as the controller has it
        model.at(START_MS, self.tick)
        model.at(START_MS, self.heartbeat)

    def tick(self) -> None:
        now_ms = int(self.model.now_ms)
        self.watch.tick(now_ms, self.read_ms)
        self.model.at(self.machine.runs_at(self.model.now_ms + TICK_MS), self.tick)

    def heartbeat(self) -> None:
        self.report()
        self.model.at(self.machine.runs_at(self.model.now_ms + HEARTBEAT_MS), self.heartbeat)

    def sent(self, by_ms: float) -> None:
        """The master has sent it something."""
        self.model.at(self.machine.runs_at(self.link.arrives_at(by_ms)), self.read)

    def read(self) -> None:
        self.read_ms = int(self.model.now_ms)

    def report(self) -> None:
        silent = EPOCH if self.watch.is_silent else None

        def received() -> None:
            self.reported = silent
            if silent is not None:
                self.model.check()

        arrives_ms = self.reports.arrives_at(self.model.now_ms)
        self.model.at(self.model.controller.runs_at(arrives_ms), received)


class Model:
    """`found`: when the controller found the master hung. With `quorum` false it asks no slave."""

    def __init__(self, seed: int, slaves: int, *, quorum: bool = True) -> None:
        self.dice = Random(seed)
        self.now_ms = float(START_MS)
        self.found: list[int] = []
        self.quorum = quorum
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self.master, self.controller = Machine(self.dice), Machine(self.dice)
        self.slaves = [Slave(self) for _ in range(slaves)]
        self.heartbeats = Silence(HEARTBEAT_SILENCE_MIN_MS, START_MS)
        self._checks = 0
        self.requests, self.answers = Stream(self.dice), Stream(self.dice)
        self.at(START_MS, self.send_links)
        self.at(START_MS, self.send_heartbeat)

    def at(self, at_ms: float, action: Callable[[], None]) -> None:
        if at_ms != float("inf"):
            self._count += 1
            heapq.heappush(self._queue, (at_ms, self._count, action))

    def run(self, until_ms: float) -> list[int]:
        while self._queue and self._queue[0][0] <= until_ms:
            self.now_ms, _, action = heapq.heappop(self._queue)
            action()
        return self.found

    def hang(self, at_ms: float) -> None:
        self.master.hangs_ms = at_ms

    def send_links(self) -> None:
        for slave in self.slaves:
            slave.sent(self.now_ms)
        self.at(self.master.runs_at(self.now_ms + TICK_MS), self.send_links)

    def send_heartbeat(self) -> None:
        """The next one leaves when this one is answered, or its time is over."""
        sent_ms = self.now_ms
        gone_on = [False]

        def received() -> None:
            self.heartbeats.heard(int(self.now_ms))
            self.check()
            self.at(self.master.runs_at(self.answers.arrives_at(self.now_ms)), go_on)

        def go_on() -> None:
            if not gone_on[0]:
                gone_on[0] = True
                due_ms = max(sent_ms + OFTEN_MS, self.now_ms)
                self.at(self.master.runs_at(due_ms), self.send_heartbeat)

        self.at(self.controller.runs_at(self.requests.arrives_at(sent_ms)), received)
        self.at(self.master.runs_at(sent_ms + HEARTBEAT_MS), go_on)

    def check(self) -> None:
        """As HungMasters.check(), with its one timer; without a quorum each slave is taken for silent."""
        self._checks += 1
        number = self._checks
        reports = [slave.reported if self.quorum else EPOCH for slave in self.slaves]
        heartbeat = MasterHeartbeat(EPOCH, self.heartbeats.heard_ms + self.heartbeats.threshold_ms)
        from_ms = hung_from_ms(heartbeat, reports, master_epoch=EPOCH)
        if from_ms is None:
            return
        if self.now_ms < from_ms:
            self.at(from_ms, lambda: self.check() if number == self._checks else None)
            return
        heard_ms = self.heartbeats.heard_ms

        def confirm() -> None:
            if self.heartbeats.heard_ms == heard_ms:
                self.found.append(int(self.now_ms))
                self.heartbeats.begin(int(self.now_ms))

        self.at(self.now_ms + CONFIRM_MS, confirm)
