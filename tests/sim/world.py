"""Virtual time and a virtual network. The only randomness is World.random: same seed, same run."""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

EVENTS_MAX = 2_000_000
"""A run that needs more is a loop without end, and fails."""


@dataclass(frozen=True)
class Conditions:
    """What this seed's network does to a message: lose it, delay it (ms, both ends included). straggling: so
    many requests to controllers come when nobody waits for them any more."""

    loss: float
    delay_min_ms: int
    delay_max_ms: int
    straggling: float = 0.0


@dataclass
class World:
    seed: int
    now_ms: int = 1_000
    random: Random = field(init=False)
    conditions: Conditions = field(init=False)
    history: list[str] = field(default_factory=list)
    _queue: list[tuple[int, int, Callable[[], None]]] = field(default_factory=list)
    count: int = 0
    _count: int = 0
    _cut: set[frozenset[str]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.conditions = self.random.choice(
            [
                Conditions(0.0, 1, 3),
                Conditions(0.0, 1, 30, straggling=0.05),
                Conditions(0.02, 1, 20, straggling=0.01),
                Conditions(0.2, 1, 60),
            ]
        )

    def at(self, delay_ms: int, action: Callable[[], None]) -> None:
        """Run the action later; actions of the same instant run in the order asked for."""
        self._count += 1
        heapq.heappush(self._queue, (self.now_ms + delay_ms, self._count, action))

    def every(self, period_ms: int, action: Callable[[], None]) -> None:
        def again() -> None:
            action()
            self.at(period_ms, again)

        self.at(period_ms, again)

    def run_until(self, end_ms: int) -> None:
        for _ in range(EVENTS_MAX):
            if not self._queue or self._queue[0][0] > end_ms:
                self.now_ms = end_ms
                return
            self.now_ms, _count, action = heapq.heappop(self._queue)
            action()
        raise AssertionError(f"seed {self.seed}: more than {EVENTS_MAX} events")

    def note(self, text: str) -> None:
        self.history.append(f"{self.now_ms:>7} {text}")

    def cut(self, one: str, other: str) -> None:
        self._cut.add(frozenset((one, other)))

    def heal(self) -> None:
        self._cut.clear()

    def calm(self) -> None:
        """From now on every message arrives, and in time: what is lost at the very end heals after it."""
        self.conditions = replace(self.conditions, loss=0.0, straggling=0.0)

    def connected(self, one: str, other: str) -> bool:
        return frozenset((one, other)) not in self._cut

    def delay_ms(self) -> int:
        return self.random.randint(self.conditions.delay_min_ms, self.conditions.delay_max_ms)

    def send(self, sender: str, receiver: str, deliver: Callable[[], None]) -> None:
        """One message over the network: lost, late, or never if the two are cut off when it arrives."""

        def arrive() -> None:
            if self.connected(sender, receiver):
                deliver()

        if self.random.random() >= self.conditions.loss:
            self.at(self.delay_ms(), arrive)
