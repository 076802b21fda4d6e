"""When a broker that hands over at SIGTERM ends: RocketMQ's clients read the route every 30 s only."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import pytest

from broker.clients.core.registry import Client, ClientRegistry, Consumer
from broker.controller_mode.hand_over import HandOverError
from broker.controller_mode.planned_stop import LOOK_AT_CLIENTS_MS, LOOK_MS, PlannedStop
from broker.core.planned_stop import ANSWERS_MS, MASTER_LOST_MS, QUIET_MS, Observed, PlannedStopRule
from broker.core.role import Role
from tests.sim.raft.virtual import VirtualLoop
from tests.support.store_parts import FakePeer

MASTER = Role(1, 5, 1, "10.0.0.1:10911", 8)
SLAVE = Role(1, 6, 2, "10.0.0.2:10911", 9)
FORWARD_MS = 40_000
HAND_OVER_MS = 4_000
LOOKS_MS = LOOK_AT_CLIENTS_MS + 10 * LOOK_MS
"""It looks that often, so it ends that late at most."""


class Scene:
    """A master that is told to stop, in virtual time. Each hand-over takes `give_ms`."""

    def __init__(self, loop: VirtualLoop, role: Role = MASTER) -> None:
        self.loop, self.role = loop, role
        self.linked, self.refused, self.give_ms, self.given = True, False, 100, 0
        self.registry = ClientRegistry()
        self.announcements = 0
        self.forwarder = SimpleNamespace(count=0, last_taken_ms=0, senders=set[FakePeer]())
        self.settings = SimpleNamespace(
            shutdown_hand_over_timeout=HAND_OVER_MS,
            shutdown_forward_timeout=FORWARD_MS,
            forward_late_sends=True,
        )
        parts: dict[str, Any] = {"hand_over": self, "forwarder": self.forwarder, "registry": self.registry}
        self.stop = PlannedStop(
            **parts,
            role=lambda: self.role,
            is_linked=lambda: self.linked,
            announce=self.announce,
            config=cast(Any, self.settings),
        )

    def announce(self) -> None:
        assert self.stop.is_running, "name servers would show it as an alias again"
        self.announcements += 1

    @property
    def now_ms(self) -> int:
        return round(self.loop.time() * 1_000)

    async def give(self, *, leaves: bool) -> int:
        assert leaves
        await self.pass_ms(self.give_ms)
        if self.refused:
            raise HandOverError("no other member of the SyncStateSet is connected")
        self.given += 1
        self.become(SLAVE)
        return 2

    def become(self, role: Role) -> None:
        before, self.role = self.role, role
        self.stop.role_changed(before, role)

    def connect(self, connection_id: int, language: str, *, consumes: bool = False) -> None:
        client = Client(connection_id, f"c{connection_id}", "10.0.0.9:1", language, 479)
        groups = [Consumer("g", "CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_LAST_OFFSET", ())]
        self.registry.heartbeat(
            client, groups if consumes else [], [] if consumes else ["p"], now_ms=self.now_ms
        )

    def sends(self, peer: FakePeer) -> None:
        self.forwarder.senders.add(peer)
        self.forwarder.last_taken_ms = self.now_ms

    async def pass_ms(self, ms: int) -> None:
        over = self.loop.create_future()
        timer = self.loop.call_later(ms / 1_000, over.set_result, None)
        try:
            await over
        finally:
            timer.cancel()

    def at(self, ms: int, what: Callable[[], object]) -> None:
        self.loop.call_later(ms / 1_000, what)

    def lasts_ms(self) -> int:
        """From the signal to the end of the stay."""
        began_ms = self.now_ms
        with patch("broker.controller_mode.planned_stop.now_ms", lambda: self.now_ms):
            self.loop.run_until_complete(self.stop.run())
        return self.now_ms - began_ms


@pytest.fixture
def scene() -> Iterator[Scene]:
    loop = VirtualLoop()
    yield Scene(loop)
    loop.close()


@pytest.mark.parametrize("consumes", [False, True])
@pytest.mark.parametrize("language", ["JAVA", "CPP", "GO"])
def test_a_client_that_polls_the_route_is_waited_for(scene: Scene, language: str, consumes: bool) -> None:
    scene.connect(7, language, consumes=consumes)
    stayed_ms = scene.lasts_ms() - scene.give_ms
    assert scene.given == 1
    assert FORWARD_MS <= stayed_ms <= FORWARD_MS + LOOKS_MS


def test_it_ends_when_the_last_of_them_has_left(scene: Scene) -> None:
    scene.connect(7, "JAVA", consumes=True)
    scene.connect(8, "CPP")
    scene.at(5_000, lambda: scene.registry.closed(7))
    scene.at(9_000, lambda: scene.registry.closed(8))
    assert 9_000 <= scene.lasts_ms() <= 9_000 + LOOKS_MS


def test_a_producer_that_sent_before_its_first_heartbeat_is_waited_for(scene: Scene) -> None:
    """Java's and C++'s: the first heartbeat can be 30 s later than the first message (clients 2.1, 4.1)."""
    peer = FakePeer(7)
    scene.at(300, lambda: scene.sends(peer))
    assert scene.lasts_ms() >= FORWARD_MS
    scene.role, scene.forwarder.last_taken_ms, peer.closing = MASTER, 0, True
    assert scene.lasts_ms() < 1_000, "its connection is closed"


def test_our_own_clients_are_not_waited_for(scene: Scene) -> None:
    """They read the route after one forwarded answer."""
    scene.connect(7, "PYTHON", consumes=True)
    scene.connect(8, "PYTHON")
    scene.at(200, lambda: scene.sends(FakePeer(8)))
    assert 200 + QUIET_MS <= scene.lasts_ms() <= 200 + QUIET_MS + LOOKS_MS


def test_what_is_forwarded_is_answered_first(scene: Scene) -> None:
    scene.forwarder.count = 3
    scene.at(2_000, lambda: setattr(scene.forwarder, "count", 0))
    assert 2_000 <= scene.lasts_ms() <= 2_000 + LOOKS_MS


def test_clients_of_ours_that_go_on_sending_do_not_hold_it(scene: Scene) -> None:
    scene.connect(7, "PYTHON")
    scene.forwarder.last_taken_ms, scene.forwarder.count = 1 << 60, 1
    lasted_ms = scene.lasts_ms()
    assert HAND_OVER_MS + ANSWERS_MS <= lasted_ms <= HAND_OVER_MS + ANSWERS_MS + LOOKS_MS


@pytest.mark.parametrize(("key", "value"), [("shutdown_forward_timeout", 0), ("forward_late_sends", False)])
def test_nobody_is_waited_for_if_the_settings_say_so(scene: Scene, key: str, value: object) -> None:
    scene.connect(7, "JAVA")
    setattr(scene.settings, key, value)
    assert scene.lasts_ms() < 1_000 and scene.given == 1


def test_without_a_hand_over_it_ends_at_once(scene: Scene) -> None:
    scene.connect(7, "JAVA")
    scene.settings.shutdown_hand_over_timeout = 0
    assert scene.lasts_ms() == 0 and scene.role.is_master
    scene.settings.shutdown_hand_over_timeout = HAND_OVER_MS
    scene.refused = True
    assert scene.lasts_ms() == scene.give_ms, "nobody can take the mastership"
    scene.give_ms = 60_000
    assert scene.lasts_ms() == HAND_OVER_MS, "controllers that do not answer"


def test_a_slave_ends_at_once_unless_it_was_master_lately(scene: Scene) -> None:
    scene.connect(7, "JAVA")
    scene.role = SLAVE
    assert scene.lasts_ms() == 0
    scene.role = MASTER
    with patch("broker.controller_mode.planned_stop.now_ms", lambda: scene.now_ms):
        scene.become(SLAVE)  # by electMaster
    scene.loop.run_until_complete(scene.pass_ms(25_000))
    assert FORWARD_MS - 25_000 <= scene.lasts_ms() <= FORWARD_MS - 25_000 + LOOKS_MS
    scene.loop.run_until_complete(scene.pass_ms(1_000))
    assert scene.lasts_ms() == 0
    assert scene.given == 0


def test_an_alias_is_waited_for_by_its_producers(scene: Scene) -> None:
    """Name servers show it as an alias of the master (routeAliasesEnable): it is no alias from now on, and
    forwards until the producers have polled the route. Its consumers have others to read from."""
    scene.role, peer = SLAVE, FakePeer(7)
    scene.connect(6, "JAVA", consumes=True)
    scene.connect(7, "CPP")
    scene.sends(peer)
    assert FORWARD_MS <= scene.lasts_ms() <= FORWARD_MS + LOOKS_MS
    assert scene.announcements == 1
    scene.at(5_000, lambda: setattr(peer, "closing", True))
    assert 5_000 <= scene.lasts_ms() <= 5_000 + LOOKS_MS, "again, long after: it is an alias still"


def test_it_hands_over_again_if_it_is_elected_meanwhile(scene: Scene) -> None:
    """The new master died, and this broker was the one that had everything."""
    scene.connect(7, "JAVA")
    scene.at(10_000, lambda: scene.become(MASTER))
    lasted_ms = scene.lasts_ms()
    assert scene.given == 2
    assert 10_000 + FORWARD_MS <= lasted_ms <= 10_000 + FORWARD_MS + 2 * LOOKS_MS


def test_it_ends_when_the_whole_group_stops(scene: Scene) -> None:
    """Nobody is left to forward to."""
    scene.connect(7, "JAVA")
    scene.at(3_000, lambda: setattr(scene, "linked", False))
    assert 3_000 + MASTER_LOST_MS - LOOKS_MS <= scene.lasts_ms() <= 3_000 + MASTER_LOST_MS + LOOKS_MS


def test_answers_under_way_have_their_time_at_the_end() -> None:
    rule = PlannedStopRule(began_ms=0, demoted_ms=100, hand_over_ms=HAND_OVER_MS, forward_ms=FORWARD_MS)

    def may_end(now_ms: int, forwarding: int) -> bool:
        return rule.may_end(Observed(now_ms, 1, forwarding, last_send_ms=now_ms, linked_ms=now_ms))

    assert not may_end(FORWARD_MS + 99, 0)
    assert may_end(FORWARD_MS + 100, 0)
    assert not may_end(FORWARD_MS + 100, 5)
    assert may_end(FORWARD_MS + 100 + ANSWERS_MS, 5)
