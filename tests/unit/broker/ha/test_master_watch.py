"""When a slave says that its master is silent: what it reads, and when it must not judge."""

from broker.ha.core.master_watch import SILENT_MIN_MS, MasterWatch


class Watched:
    """A slave that ticks every 100 ms on virtual time."""

    def __init__(self) -> None:
        self.now_ms = 5_000
        self.read_ms: int | None = 5_000
        self.changes = 0
        self.watch = MasterWatch(self.now_ms, self.changed)

    def changed(self) -> None:
        self.changes += 1

    def tick(self, count: int = 1, *, hears: bool = False) -> bool:
        for _ in range(count):
            self.now_ms += 100
            if hears:
                self.read_ms = self.now_ms - 3
            self.watch.tick(self.now_ms, self.read_ms)
        return self.watch.is_silent


def test_a_master_that_sends_nothing_is_silent_until_it_sends_again() -> None:
    slave = Watched()
    assert not slave.tick(20, hears=True)
    assert not slave.tick(SILENT_MIN_MS // 100 - 1)
    assert slave.tick() and slave.changes == 1
    assert slave.tick(5) and slave.changes == 1, "said once"
    assert not slave.tick(hears=True) and slave.changes == 2


def test_it_takes_longer_if_the_master_has_paused_before() -> None:
    slave = Watched()
    slave.tick(5, hears=True)
    slave.tick(4)
    slave.tick(hears=True)  # a gap of 500 ms
    assert not slave.tick(7)
    assert slave.tick()


def test_a_closed_link_says_nothing() -> None:
    slave = Watched()
    slave.tick(5, hears=True)
    slave.tick(7)
    assert slave.watch.is_silent
    slave.read_ms = None
    assert not slave.tick() and slave.changes == 2, "taken back"
    assert not slave.tick(50)
    slave.read_ms = slave.now_ms
    assert not slave.tick(5), "a new link is watched from its beginning"


def test_a_slave_that_was_stopped_itself_does_not_judge() -> None:
    """Its timer may run before it reads what waited."""
    slave = Watched()
    slave.tick(5, hears=True)
    slave.now_ms += 5_000
    assert not slave.tick()
    assert not slave.tick(5), "it begins anew"
    assert slave.tick()
