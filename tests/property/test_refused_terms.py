"""Any order of deaths, lost ends, late heartbeats and elections: whoever begins a term has every acknowledged
message.

The elections are the real ones (core/), the replicas are numbers: how many messages a log has.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import pytest

from namesrv.plugins.controller.core.apply import apply
from namesrv.plugins.controller.core.decide import decide_register, elect_event
from namesrv.plugins.controller.core.elect import LiveInfo, LiveView, Loss, Verdict
from namesrv.plugins.controller.core.events import AlterSyncStateSet, AnyEvent, ApplyBrokerId, ElectMaster
from namesrv.plugins.controller.core.reconcile import Retry, try_election
from namesrv.plugins.controller.core.state import BrokerSet, State
from tests.support.slices import first

NAME, CLUSTER, IDS = "b", "C1", (1, 2, 3)


@dataclass
class Replica:
    """messages: in its log. lost_end: how many there were confirmed, if its log has lost some; else 0. epoch:
    of its last messages. serves: the masterEpoch of the term that it has begun; 0: it is no master. sent:
    heartbeats on their way."""

    messages: int = 0
    lost_end: int = 0
    epoch: int = 0
    serves: int = 0
    refused: int = -1
    is_up: bool = True
    sent: deque[LiveInfo] = field(default_factory=deque)


class Group:
    """One broker group, whose three replicas are in the SyncStateSet and have a message, and its controller,
    which knows what has been delivered to it."""

    def __init__(self) -> None:
        self.state, self.acknowledged = State(), 0
        self.replicas = {each: Replica() for each in IDS}
        self.heard: dict[int, LiveInfo] = {}
        for each in IDS:
            address = f"b{each}:1"
            self.happens(
                ApplyBrokerId(
                    ts=1,
                    broker_name=NAME,
                    cluster_name=CLUSTER,
                    broker_id=each,
                    broker_address=address,
                    register_check_code=f"{address};0",
                )
            )
        for each in IDS:
            self.heartbeats(each)
            self.arrives(each)
        self.elects(1)
        for each in IDS:
            self.hears_of_its_role(each)
        self.expands(1)
        self.writes(1)

    @property
    def group(self) -> BrokerSet:
        return self.state.brokers[NAME]

    @property
    def view(self) -> LiveView:
        return LiveView(self.heard, lost={each: Loss(None, 0) for each in IDS if each not in self.heard})

    def happens(self, event: AnyEvent) -> None:
        self.state = apply(self.state, event).state

    def master(self) -> Replica | None:
        """Who serves as the master that the controllers name."""
        named = self.group.master_broker_id
        found = None if named is None else self.replicas[named]
        return (
            found if found is not None and found.is_up and found.serves == self.group.master_epoch else None
        )

    # -- steps -------------------------------------------------------------------------------------------

    def heartbeats(self, broker_id: int) -> None:
        one = self.replicas[broker_id]
        if one.is_up:
            confirmed = one.lost_end or one.messages
            info = LiveInfo(
                f"b{broker_id}:1", one.epoch, one.messages, confirmed,
                is_unfit=one.lost_end > 0, refused_epoch=one.refused if one.lost_end else -1,
            )  # fmt: skip
            one.sent.append(info)

    def arrives(self, broker_id: int) -> None:
        if self.replicas[broker_id].sent:
            self.heard[broker_id] = self.replicas[broker_id].sent.popleft()

    def is_missed(self, broker_id: int) -> None:
        """The controller finds that a dead process is not active."""
        one = self.replicas[broker_id]
        if not one.is_up:
            one.sent.clear()
            self.heard.pop(broker_id, None)

    def dies(self, broker_id: int) -> None:
        one = self.replicas[broker_id]
        one.is_up, one.serves = False, 0

    def loses_its_end(self, broker_id: int) -> None:
        one = self.replicas[broker_id]
        self.dies(broker_id)
        if one.messages:
            one.lost_end = one.lost_end or one.messages
            one.messages -= 1

    def starts(self, broker_id: int) -> None:
        one = self.replicas[broker_id]
        if one.is_up:
            return
        one.is_up, one.refused = True, -1
        decision = decide_register(
            self.state, self.view, cluster_name=CLUSTER, broker_name=NAME, broker_id=broker_id,
            broker_address=f"b{broker_id}:1", epoch=one.epoch,
        )  # fmt: skip
        if isinstance(decision, ElectMaster):
            self.happens(decision)

    def hears_of_its_role(self, broker_id: int) -> None:
        one, group = self.replicas[broker_id], self.group
        if not one.is_up or group.master_epoch <= one.serves:
            return
        if group.master_broker_id != broker_id:
            one.serves = 0
            if group.master_broker_id is None and one.lost_end:
                one.refused = max(one.refused, group.master_epoch)
        elif one.lost_end:
            one.refused = max(one.refused, group.master_epoch)
        elif group.master_epoch > one.refused:
            assert one.messages >= self.acknowledged, f"{broker_id} begins {group} with {one}"
            one.epoch = one.serves = group.master_epoch

    def copies(self, broker_id: int) -> None:
        one, master = self.replicas[broker_id], self.master()
        if one.is_up and master is not None and one is not master:
            one.messages, one.epoch = master.messages, master.epoch
            if one.messages >= one.lost_end:
                one.lost_end = 0

    def _alters(self, members: set[int]) -> None:
        group = self.group
        assert group.master_broker_id is not None
        self.happens(
            AlterSyncStateSet(
                ts=1,
                broker_name=NAME,
                master_broker_id=group.master_broker_id,
                new_sync_state_set=tuple(sorted(members)),
                expected_master_epoch=group.master_epoch,
                expected_sync_state_set_epoch=group.sync_state_set_epoch,
            )
        )

    def expands(self, broker_id: int) -> None:
        if (master := self.master()) is not None:
            equal = {each for each, one in self.replicas.items() if one.messages == master.messages}
            self._alters(set(self.group.sync_state_set) | (equal & {each for each in IDS if self._up(each)}))

    def shrinks(self, broker_id: int) -> None:
        if self.master() is not None and broker_id != self.group.master_broker_id:
            self._alters(set(self.group.sync_state_set) - {broker_id})

    def _up(self, broker_id: int) -> bool:
        return self.replicas[broker_id].is_up

    def writes(self, broker_id: int) -> None:
        """A message that every member of the SyncStateSet has is acknowledged."""
        master, members = self.master(), self.group.sync_state_set
        if master is None:
            return
        slaves = [self.replicas[each] for each in members if self.replicas[each] is not master]
        if all(each.is_up and each.messages == master.messages for each in slaves):
            self.acknowledged = master.messages = master.messages + 1
            for each in slaves:
                each.messages, each.epoch = master.messages, master.epoch

    def elects(self, broker_id: int) -> None:
        retry = Retry(1, 0, 0, "")
        election = try_election(self.group, self.view, retry, now_ms=10, unclean=False, clear_after_ms=1)
        if election is not None and election.verdict is not Verdict.WAIT:
            self.happens(elect_event(self.group, election, self.view))

    # -- several at once, so that long stories are found -------------------------------------------------

    def fails(self, broker_id: int) -> None:
        self.dies(broker_id)
        self.is_missed(broker_id)

    def comes(self, broker_id: int) -> None:
        for step in (Group.starts, Group.hears_of_its_role, Group.heartbeats):
            step(self, broker_id)
        while self.replicas[broker_id].sent:
            self.arrives(broker_id)

    def settles(self, broker_id: int) -> None:
        self.elects(broker_id)
        for each in IDS:
            self.hears_of_its_role(each)


STEPS = (
    Group.heartbeats, Group.arrives, Group.is_missed, Group.dies, Group.loses_its_end, Group.loses_its_end,
    Group.starts, Group.hears_of_its_role, Group.copies, Group.expands, Group.shrinks, Group.writes,
    Group.writes, Group.elects, Group.fails, Group.fails, Group.comes, Group.comes, Group.comes,
    Group.settles, Group.settles, Group.settles,
)  # fmt: skip
Step = Callable[[Group, int], None]
STEPS_MAX = 300


def play(story: list[tuple[Step, int]]) -> Group:
    group = Group()
    for step, broker_id in story:
        step(group, broker_id)
        assert not list(group.group.problems())
    return group


RESTARTED: list[tuple[Step, int]] = [
    (Group.loses_its_end, 2),
    (Group.starts, 2),
    (Group.dies, 1),
    (Group.is_missed, 1),
    (Group.dies, 3),
    (Group.is_missed, 3),
    (Group.elects, 2),  # by the heartbeat of its process before
    (Group.hears_of_its_role, 2),
    (Group.heartbeats, 2),
    (Group.arrives, 2),
]
"""Broker 2 restarts without its end before its death is noticed, and is elected alone."""


@pytest.mark.parametrize("seed", first(100, range(1_000)))
def test_who_begins_a_term_has_every_acknowledged_message(seed: int) -> None:
    dice = Random(seed)
    play([(dice.choice(STEPS), dice.choice(IDS)) for _ in range(STEPS_MAX)])


def test_a_member_that_comes_back_is_elected() -> None:
    group = play(RESTARTED)
    assert group.group.sync_state_set == {2} and group.master() is None
    for step in (Group.elects, Group.starts, Group.heartbeats, Group.arrives, Group.elects):
        step(group, 3)
    group.hears_of_its_role(3)
    assert group.master() is group.replicas[3]


def test_nobody_takes_the_place_of_a_master_that_has_begun() -> None:
    """It has acknowledged a message alone, and lost it: no other replica has it."""
    alone: list[tuple[Step, int]] = [
        (Group.dies, 1),
        (Group.is_missed, 1),
        (Group.dies, 3),
        (Group.is_missed, 3),
        (Group.elects, 2),
        (Group.hears_of_its_role, 2),
        (Group.writes, 2),
        (Group.loses_its_end, 2),
        (Group.starts, 2),
    ]
    group = play(alone)
    for _ in range(3):
        for broker_id in (1, 2, 3):
            for step in (
                Group.starts,
                Group.hears_of_its_role,
                Group.heartbeats,
                Group.arrives,
                Group.elects,
            ):
                step(group, broker_id)
    assert group.master() is None and group.group.sync_state_set == {2}
