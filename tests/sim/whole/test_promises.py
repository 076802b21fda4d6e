"""The promises of the design that concern a group, each as a fixed scenario: protection on, the judge is
content; off, it finds what was promised broken. The programs are real, time, network and disks are not.
"""

import asyncio
import dataclasses
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any
from unittest import mock

import pytest
from msgspec.structs import replace

from broker.controller_mode.election_requests import ElectionRequests
from broker.core.sync_state_set import SyncStateSetManager
from broker.ha.core.epochs import Epochs
from broker.ha.core.master_link import LinkSettings
from broker.ha.dispatcher import Dispatcher
from broker.ha.ports import HaSettings
from broker.ha.service import HaService
from broker.metadata.service import Metadata
from broker.store.dispatching import RecordDispatcher
from broker.store.log.mapped_file import MappedFile
from keelmq.remoting.operation import Ok
from keelmq.remoting.operations.route import BrokerHeartbeatRequest
from namesrv.core.liveness import HeartbeatTable
from namesrv.plugins.controller.core.decide import Answer, decide_register
from namesrv.plugins.controller.core.reconcile import try_election
from namesrv.plugins.controller.election import reconcile_loop as elections
from namesrv.plugins.controller.election.death_proofs import DeathProofs
from namesrv.plugins.controller.election.hung_masters import HungMasters
from namesrv.plugins.controller.election.reconcile_loop import Elections
from namesrv.plugins.controller.requests import registration
from tests.sim.checkers import Violation
from tests.sim.whole.clients import Administrator, Consumer
from tests.sim.whole.group import Conditions, WholeGroup, play, seconds
from tests.sim.whole.programs import CONTROLLERS, HEARTBEAT_TIMEOUT_MS

KILLED_S = 0.3
PROVED_S, NEAR = 0.05, Conditions(delay_max_s=0.001)
"""Shorter than the grace after a lost connection."""
HUNG_S = HEARTBEAT_TIMEOUT_MS / 1_000 + 0.3
FOUND_HUNG_S = 1.2
"""Below the timeout. For the controllers' grace window (HUNG_S) after their start it takes longer."""
ROCKETMQ_REPORTS_MS = 5_000
ASYNCHRONOUS = Conditions(settings={"allAckInSyncStateSet": False})

Story = Callable[[WholeGroup], Coroutine[Any, Any, None]]
Switched = Callable[[], AbstractContextManager[object]]


def broken(story: Story, off: Switched, conditions: Conditions | None = None, seeds: int = 1) -> bool:
    """Without the protection: is a promise broken?"""
    with off():
        for seed in range(1, seeds + 1):
            try:
                play(seed, story, conditions or Conditions())
            except Violation:
                return True
    return False


def kept(story: Story, conditions: Conditions | None = None, seeds: int = 1, *, first: int = 1) -> WholeGroup:
    world = None
    for seed in range(first, first + seeds):
        world = play(seed, story, conditions or Conditions())
    assert world is not None
    return world


async def whole_group(
    world: WholeGroup, *, producers: int = 1, pause_s: float = 0.02, others: bool = False
) -> str:
    """Started, everybody in the SyncStateSet, and used for a while; the master's name."""
    world.start()
    world.start_clients(producers=producers, pause_s=pause_s, others=others)
    for client in world.clients[:producers]:
        client.in_flight = 1_000  # type: ignore[attr-defined]
    master = await world.whole()
    await seconds(0.3)
    return master.name


# -- S1 ------------------------------------------------------------------------------------------------------


async def expansion_without_answer(world: WholeGroup) -> None:
    """A replica joins; the controllers agree, their answer is lost; then the replica hears nothing more."""
    master = await whole_group(world)
    joining, other = world.others(master)
    world.kill(joining)
    await world.until(lambda: joining not in world.members, 5.0)
    await seconds(0.2)  # the answer to that has come
    world.revive(joining)
    world.cut(CONTROLLERS, [master])
    await world.until(lambda: joining in world.members, 5.0)
    world.cut([master], [joining])
    await seconds(0.4)
    world.kill(other)
    await seconds(0.06)  # they must not be missed at once: the other one would be elected, and is dead
    world.kill(master)
    await world.until(lambda: world.master is not None, 5.0)
    await world.conclude()


@contextmanager
def acks_of_the_agreed_set_only() -> Iterator[None]:
    def agreed_only(self: SyncStateSetManager) -> None:
        self.others = self.agreed.members - {self.broker_id}

    with mock.patch.object(SyncStateSetManager, "_update_others", agreed_only):
        yield


@pytest.mark.promise("S1")
def test_s1_nothing_is_lost_when_the_set_expands_and_the_reply_is_lost() -> None:
    """S1. Off: acknowledgements are counted over the agreed set only, not over the union."""
    kept(expansion_without_answer)
    assert broken(expansion_without_answer, acks_of_the_agreed_set_only)


# -- S2 ------------------------------------------------------------------------------------------------------


async def partitioned_master(world: WholeGroup) -> None:
    """The master and its clients are in one room, everybody else in the other."""
    master = await whole_group(world)
    world.late_only = not world.conditions.settings.get("allAckInSyncStateSet", True)
    producer, address = world.producer, world.brokers[master].address
    producer.stopping = True
    world.cut([master], [*world.others(master), *CONTROLLERS], both=True)
    for _ in range(60):
        world.do(producer, producer.send("T0", address))
        await seconds(0.05)
    assert world.master is not None, "another one was elected"
    await world.conclude()


@pytest.mark.promise("S2")
def test_s2_a_partitioned_master_acknowledges_nothing_that_the_new_one_lacks_all_ack() -> None:
    """S2 with allAckInSyncStateSet, whatever the lease does. Off: neither."""
    kept(partitioned_master, Conditions(settings={"isolationLeaseEnable": False}))
    neither = Conditions(settings={"isolationLeaseEnable": False, "allAckInSyncStateSet": False})
    assert broken(partitioned_master, nullcontext, neither)


@pytest.mark.promise("S2")
def test_s2_a_partitioned_master_acknowledges_nothing_late_with_the_lease() -> None:
    """S2 with asynchronous replication: nothing is acknowledged after another election. Off: no lease."""
    settings: dict[str, object] = {"allAckInSyncStateSet": False}
    kept(partitioned_master, Conditions(settings=settings))
    assert broken(
        partitioned_master, nullcontext, Conditions(settings=settings | {"isolationLeaseEnable": False})
    )


@contextmanager
def three_reports() -> Iterator[None]:
    """The rule before ADR 49: a report counts for three of haSendHeartbeatInterval, and nobody waits."""

    def long(*_terms: int, is_keelmq: bool) -> int:
        return 3 * ROCKETMQ_REPORTS_MS

    async def begins(_service: HaService) -> None:
        """The term of an elected slave begins at once."""

    with (
        mock.patch("broker.controller_mode.isolation_lease.report_lease_ms", long),
        mock.patch.object(HaService, "_end_reports", begins),
    ):
        yield


@pytest.mark.slow
@pytest.mark.promise("S2")
def test_s2_rocketmqs_report_interval_makes_no_lease_longer() -> None:
    """S2 with asynchronous replication and haSendHeartbeatInterval=5000. Off: ADR 49."""
    intervals = {"haSendHeartbeatInterval": ROCKETMQ_REPORTS_MS, "haHousekeepingInterval": 20_000}
    conditions = Conditions(settings={"allAckInSyncStateSet": False, **intervals})
    kept(partitioned_master, conditions)
    assert broken(partitioned_master, three_reports, conditions)


async def woken_master(world: WholeGroup) -> None:
    """The master is stopped for longer than its timeout; its clients go on, and find it when it wakes."""
    master = await whole_group(world)
    world.late_only = True
    producer, run = world.producer, world.brokers[master]
    producer.stopping = True
    await seconds(0.3)
    run.process.pause()
    for _ in range(50):
        world.do(producer, producer.send("T0", run.address))
        await seconds(0.05)
    if world.master is None or world.master is run:
        raise Violation("no other master was elected")
    run.process.resume()
    for _ in range(20):
        world.do(producer, producer.send("T0", run.address))
        await seconds(0.02)
    await world.conclude()


@pytest.mark.slow
@pytest.mark.promise("S2")
def test_s2_a_hung_master_that_wakes_acknowledges_nothing_late() -> None:
    """S2 with asynchronous replication: the lease is checked at the acknowledgement. Off: no lease."""
    settings: dict[str, object] = {"allAckInSyncStateSet": False}
    kept(woken_master, Conditions(settings=settings), seeds=3)
    assert broken(
        woken_master, nullcontext, Conditions(settings=settings | {"isolationLeaseEnable": False}), seeds=3
    )


async def master_found_hung_wakes(world: WholeGroup) -> None:
    """The master is found hung before its timeout. It wakes as soon as another one is elected, and is cut off
    from those who could tell it."""
    name = await whole_group(world)
    await seconds(HUNG_S)  # the controllers' grace window is over
    world.late_only = not world.conditions.settings.get("allAckInSyncStateSet", True)
    producer, run = world.producer, world.brokers[name]
    producer.stopping = True
    await seconds(0.3)
    begun = world.loop.time()
    run.process.pause()
    world.cut([name], [*world.others(name), *CONTROLLERS], both=True)
    while world.master is None or world.master is run:
        world.do(producer, producer.send("T0", run.address))
        await seconds(0.02)
        if world.loop.time() - begun > HUNG_S:
            raise Violation("no other master was elected")
    assert world.loop.time() - begun < FOUND_HUNG_S, "found before its timeout"
    run.process.resume()
    for _ in range(40):
        world.do(producer, producer.send("T0", run.address))
        await seconds(0.01)
    await world.conclude()


@contextmanager
def every_master_says_that_it_waits_for_all() -> Iterator[None]:
    def heartbeat(**fields: Any) -> BrokerHeartbeatRequest:
        return BrokerHeartbeatRequest(**{**fields, "all_ack_in_sync_state_set": True})

    of_settings = HaSettings.master_link.fget
    assert of_settings is not None

    def settings(config: HaSettings) -> LinkSettings:
        return replace(of_settings(config), is_watched=True)

    with (
        mock.patch("broker.controller_mode.service.BrokerHeartbeatRequest", heartbeat),
        mock.patch.object(HaSettings, "master_link", property(settings)),
    ):
        yield


@pytest.mark.slow
@pytest.mark.promise("S2")
def test_s2_a_master_found_hung_that_wakes_at_once_acknowledges_nothing_late() -> None:
    """S2 with allAckInSyncStateSet, whatever the lease does; only then are masters found hung before their
    timeout. Off: neither, and the master says that it waits for all."""
    kept(master_found_hung_wakes, Conditions(settings={"isolationLeaseEnable": False}), seeds=3)
    neither = Conditions(settings={"isolationLeaseEnable": False, "allAckInSyncStateSet": False})
    assert broken(master_found_hung_wakes, every_master_says_that_it_waits_for_all, neither, seeds=3)


# -- S3 ------------------------------------------------------------------------------------------------------


async def metadata_before_a_switch(world: WholeGroup) -> None:
    """An administrator and a consumer at work; then nothing reaches the replicas any more, and the master
    dies before it has noticed."""
    master = await whole_group(world, others=True)
    made = [len(world.judge.topics) + len(world.judge.groups), len(world.judge.offsets)]
    admin = next(each for each in world.clients if isinstance(each, Administrator))
    consumer = next(each for each in world.clients if isinstance(each, Consumer))
    place = world.addresses().index(world.brokers[master].address)
    for _ in range(6):
        admin.address_index = consumer.address_index = place
        await world.do(admin, admin.make())
        await world.do(consumer, consumer.pull("T0", 0))
        await world.do(consumer, consumer.commit("T0", 0))
    assert len(world.judge.topics) + len(world.judge.groups) > made[0]
    assert len(world.judge.offsets) >= made[1] > 0 or world.judge.offsets
    world.cut([master], world.others(master))
    for _ in range(4):
        admin.address_index = consumer.address_index = place
        world.do(admin, admin.make())
        world.do(consumer, consumer.commit("T0", 0))
        await seconds(0.08)
    world.kill(master)
    world.network.mend()
    await world.until(lambda: world.master is not None, 5.0)
    await world.conclude()


@contextmanager
def metadata_acknowledged_at_once() -> Iterator[None]:
    async def at_once(self: Metadata, store: object, version: object) -> None:
        return

    with mock.patch.object(Metadata, "replicated", at_once):
        yield


@pytest.mark.promise("S3")
def test_s3_topics_groups_and_offsets_acknowledged_before_a_switch_exist_after_it() -> None:
    """S3. Off: changes of metadata are answered before the replicas have them."""
    kept(metadata_before_a_switch, seeds=2)
    assert broken(metadata_before_a_switch, metadata_acknowledged_at_once, seeds=3)


# -- S4 ------------------------------------------------------------------------------------------------------


async def crash_with_an_unconfirmed_tail(world: WholeGroup) -> None:
    """Messages that no replica has got stand in the master's log, unconfirmed; everybody dies, and the master
    alone comes back."""
    master = await whole_group(world)
    world.cut([master], [*world.others(master), *CONTROLLERS], both=True)
    for name in world.others(master):
        world.kill(name)
    await seconds(0.4)
    world.kill(master)
    world.network.mend()
    await world.until(lambda: world.group is not None and world.group.master_broker_id is None, 5.0)
    world.revive(master)
    await world.until(lambda: world.master is not None, 5.0)
    await seconds(0.5)
    await world.conclude()


@contextmanager
def dispatch_in_slices() -> Iterator[None]:
    """A long tail takes time, and messages come in between; here the tail is short, so the time is made."""

    def dispatch_later(self: Dispatcher) -> None:
        self._is_scheduled = True
        asyncio.get_running_loop().call_later(0.2, self._turn)

    with mock.patch.object(Dispatcher, "_schedule", dispatch_later):
        yield


@contextmanager
def queues_end_where_consumers_see_it() -> Iterator[None]:
    real = RecordDispatcher.scan

    def forgetful(dispatcher: RecordDispatcher, records_max: int) -> bool:
        is_behind = real(dispatcher, records_max)
        for queue in dispatcher.queues.each():
            queue.next_offset = queue.max_offset
        return is_behind

    with mock.patch.object(RecordDispatcher, "scan", forgetful):
        yield


@pytest.mark.promise("S4")
def test_s4_queue_offsets_are_never_reused_after_a_crash() -> None:
    """S4. Off: the tail that is not dispatched yet is not counted."""
    with dispatch_in_slices():
        kept(crash_with_an_unconfirmed_tail)
        assert broken(crash_with_an_unconfirmed_tail, queues_end_where_consumers_see_it)


# -- S5 ------------------------------------------------------------------------------------------------------


def demoted_and_torn_away(operation: int) -> Story:
    """A master with a tail of its own returns as a slave, and its machine loses power before that operation
    on its files; then the same for the heir that is promoted."""

    async def story(world: WholeGroup) -> None:
        master = await whole_group(world, pause_s=0.01)
        world.producer.body_bytes = (20,)  # so a record ends wherever another one did
        world.cut([master], world.others(master))
        await seconds(0.7)
        world.kill(master)
        await world.until(lambda: world.master is not None, 5.0)
        world.network.mend()
        world.revive(master)
        torn = tear(world, master, operation)
        await world.until(lambda: torn() or world.brokers[master].name in world.members, 5.0)
        world.revive(master)
        await world.whole()
        transfer_target = await next_transfer_target(world, operation)
        world.revive(transfer_target)
        await world.conclude()

    return story


def tear(world: WholeGroup, name: str, operation: int) -> Callable[[], bool]:
    """Before the operation of that number, from now on. The answer: has it happened?"""
    process, left = world.brokers[name].process, [operation]

    def count(what: str) -> None:
        left[0] -= 1
        if left[0] == 0:
            world.note("", f"{name} is about to {what}")
            world.kill(name, power=operation % 2 == 0)

    process.on_disk = count
    return lambda: left[0] <= 0


async def next_transfer_target(world: WholeGroup, operation: int) -> str:
    """Kills the master; whoever is promoted then is torn away in the middle of it."""
    master = world.master
    assert master is not None
    for name in world.others(master.name):
        tear(world, name, operation)
    world.kill(master.name)
    await seconds(0.5)
    for name in world.disks:
        world.brokers[name].process.on_disk = None
        world.revive(name)
    return master.name


POWER = Conditions(power=True, settings={"flushDiskType": "SYNC_FLUSH"})
OPERATIONS = range(1, 41)
SOME = range(3, 41, 12)


@pytest.mark.slow
@pytest.mark.promise("S5")
def test_s5_truncation_and_role_change_survive_a_crash_at_any_operation() -> None:
    """S5; broker-ha pitfalls 3 and 8. Off: the two tests below."""
    for operation in SOME:
        play(operation, demoted_and_torn_away(operation), POWER)


@pytest.mark.long
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.promise("S5")
def test_s5_truncation_and_role_change_survive_a_crash_at_every_operation(operation: int) -> None:
    play(operation, demoted_and_torn_away(operation), POWER)


@contextmanager
def cuts_leave_the_bytes() -> Iterator[None]:
    with mock.patch.object(MappedFile, "zero_from", lambda self, position, *, allocate: None):
        yield


@pytest.mark.slow
@pytest.mark.promise("S5")
def test_s5_without_zeros_behind_the_cut_a_crash_brings_the_tail_back() -> None:
    """S5, protection off: what lies behind a cut stays in the file, and is found again."""
    assert any(
        broken(demoted_and_torn_away(operation), cuts_leave_the_bytes, POWER, seeds=2)
        for operation in range(24, 40)
    )


@contextmanager
def a_term_without_an_epoch_entry() -> Iterator[None]:
    with mock.patch.object(Epochs, "append", lambda self, epoch, start: self):
        yield


@pytest.mark.promise("S5")
def test_s5_without_the_epoch_entry_of_a_term_replicas_differ() -> None:
    """S5, protection off: bytes are taken for those of an older epoch."""
    assert any(
        broken(demoted_and_torn_away(operation), a_term_without_an_epoch_entry, POWER) for operation in SOME
    )


# -- S8 ------------------------------------------------------------------------------------------------------


async def without_a_master(world: WholeGroup) -> None:
    """Nobody who may win lives; those who may not do. It is said why, and once one is back, it serves."""
    master = await whole_group(world)
    for name in world.others(master):
        world.kill(name)
    await world.until(lambda: world.members == [master], 5.0)
    world.kill(master)
    for name in world.others(master):
        world.revive(name)
    await seconds(12.0)
    assert world.master is None
    active = next(run for run in world.controllers.values() if run.is_active)
    assert active.plugin is not None
    reasons = active.plugin.elections.retries
    if not any("no member of the SyncStateSet" in retry.reason for retry in reasons.values()):
        raise Violation(f"nobody says why there is no master: {reasons}")
    world.revive(master)
    await world.until(lambda: world.master is not None, 1.5, "no master again")
    await world.conclude()


@contextmanager
def elections_only_on_death() -> Iterator[None]:
    """No retries, no period, no requests of brokers."""

    async def nothing(self: ElectionRequests) -> None:
        await asyncio.Event().wait()

    with (
        mock.patch.object(Elections, "_failed", lambda self, name, reason: None),
        mock.patch.object(Elections, "check_all_groups", lambda self: None),
        mock.patch.object(ElectionRequests, "run", nothing),
    ):
        yield


@pytest.mark.slow
@pytest.mark.promise("S8")
def test_s8_a_group_without_master_is_always_elected_for_and_says_why_not() -> None:
    """S8; pain 1-4, 11. Off: an election that failed is not tried again."""
    kept(without_a_master)
    assert broken(without_a_master, elections_only_on_death)


SCAN_S = 0.5
"""scanInactiveMasterInterval of the controllers here."""


def all_die_at_once(*, power: bool) -> Story:
    """Within some ms, and the master and the next best stay away: the last one has everything."""

    async def story(world: WholeGroup) -> None:
        master = await whole_group(world)
        dying = [master, *world.others(master)]
        world.producer.stopping = True
        await seconds(0.3)
        for name in dying:
            world.kill(name, power=power)
            await seconds(0.015 if power else 0.001)  # a killed process is proved dead within milliseconds
        await seconds(2 * HUNG_S)
        world.revive(dying[-1])
        await world.until(
            lambda: world.master is not None,
            SCAN_S + HEARTBEAT_TIMEOUT_MS / 1_000,
            "no master although one is back",
        )
        assert world.master is not None and world.master.name == dying[-1]
        world.producer.stopping = False
        await world.conclude()

    return story


@contextmanager
def the_dying_count_as_alive() -> Iterator[None]:
    with mock.patch.object(HeartbeatTable, "is_doubtful", lambda self, key, now_ms: False):
        yield


@pytest.mark.parametrize("power", [False, True], ids=["killed", "without power"])
@pytest.mark.promise("S8")
def test_s8_nobody_is_elected_who_died_with_the_master(power: bool) -> None:
    """S8. Off: the controllers elect the one whose connection closed, or that fell silent, some ms later; it
    is the whole SyncStateSet then, and the group waits for it."""
    conditions = Conditions(power=power, settings={"flushDiskType": "SYNC_FLUSH"})
    # Without power the next best may be elected in the 15 ms before it dies, too: one seed in twelve.
    kept(all_die_at_once(power=power), conditions, seeds=1 if power else 2, first=2)
    # With all-ack the master sends heartbeats more often than its slaves, so it rarely times out before them.
    heartbeats_alike = dataclasses.replace(
        conditions, settings={**conditions.settings, "allAckInSyncStateSet": False}
    )
    assert broken(all_die_at_once(power=power), the_dying_count_as_alive, heartbeats_alike, seeds=24)


async def the_elected_one_dies_too(world: WholeGroup) -> None:
    """It has acknowledged something alone: nobody else is elected, and it is, as soon as it is back."""
    master = await whole_group(world)
    third = world.others(master)[1]
    world.cut([third], world.disks)
    world.cut(world.disks, [third])
    await world.until(lambda: third not in world.members, 5.0)
    world.kill(master)
    await world.until(lambda: world.master is not None, 5.0)
    assert world.master is not None
    elected, acked = world.master.name, len(world.judge.acked)
    await world.until(lambda: len(world.judge.acked) > acked + 3, 5.0)
    world.kill(elected)
    world.network.mend()
    world.revive(master)
    await seconds(HUNG_S + 2 * SCAN_S)
    if world.master is not None:
        raise Violation(f"{world.master.name} is master, and has not what {elected} acknowledged")
    assert world.members == [elected]
    world.revive(elected)
    await world.until(
        lambda: world.master is not None, SCAN_S + HEARTBEAT_TIMEOUT_MS / 1_000, "it is back, and no master"
    )
    assert world.master is not None and world.master.name == elected
    await world.conclude()


@contextmanager
def anybody_may_win() -> Iterator[None]:
    def unclean(*arguments: Any, **named: Any) -> Any:
        return try_election(*arguments, **{**named, "unclean": True})

    with mock.patch.object(elections, "try_election", unclean):
        yield


@pytest.mark.promise("S8")
def test_s8_an_elected_one_that_died_is_elected_again_when_it_is_back() -> None:
    """S8. Off: somebody else is elected meanwhile, without what it had acknowledged."""
    kept(the_elected_one_dies_too)
    assert broken(the_elected_one_dies_too, anybody_may_win)


# -- S9 ------------------------------------------------------------------------------------------------------


async def gap_after(world: WholeGroup, fault: Callable[[str], None]) -> float:
    """From the fault to the first message that another master has accepted since, in s."""
    master = await whole_group(world, pause_s=0.005)
    begun, stored = world.loop.time(), len(world.producer.outcomes)
    fault(master)

    def accepted() -> bool:
        new = world.producer.outcomes[stored:]
        return any(isinstance(outcome, Ok) and sent > begun for sent, _answered, outcome in new)

    return await world.until(accepted, 10.0)


async def killed_master(world: WholeGroup) -> None:
    gap_s = await gap_after(world, world.kill)
    if gap_s > KILLED_S:
        raise Violation(f"{gap_s:.3f} s without an accepted write after a kill")
    await world.conclude()


async def proved_master(world: WholeGroup) -> None:
    gap_s = await gap_after(world, world.kill)
    if gap_s > PROVED_S:
        raise Violation(f"{gap_s:.3f} s without an accepted write after a kill")
    await world.conclude()


async def lost_connections(world: WholeGroup) -> None:
    """The master's connections to all controllers break, again and again; it lives, and opens others."""
    name = await whole_group(world)
    group, process = world.group, world.brokers[name].process
    controllers = {world.hosts[each] for each in CONTROLLERS}
    for _ in range(5):
        for end in list(world.network.ends[process]):
            if end.there in controllers:
                end.abort()
        await seconds(0.5)
    assert group is not None and world.group is not None
    if world.group.master_epoch != group.master_epoch:
        raise Violation("a live master was replaced because its connections broke")
    await world.conclude()


async def hung_master(world: WholeGroup) -> None:
    gap_s = await gap_after(world, lambda name: world.brokers[name].process.pause())
    if gap_s > HUNG_S:
        raise Violation(f"{gap_s:.3f} s without an accepted write after a SIGSTOP")
    await world.conclude()


@contextmanager
def connections_mean_nothing() -> Iterator[None]:
    with mock.patch.object(HeartbeatTable, "connection_closed", lambda self, connection_id, now_ms: []):
        yield


@contextmanager
def heartbeats_count_for_ever() -> Iterator[None]:
    real = HeartbeatTable.record_heartbeat

    def record_heartbeat(self: HeartbeatTable, *arguments: Any, **named: Any) -> Any:
        return real(self, *arguments, **{**named, "timeout_ms": 60_000})

    with mock.patch.object(HeartbeatTable, "record_heartbeat", record_heartbeat):
        yield


@pytest.mark.slow
@pytest.mark.promise("S9")
def test_s9_fail_over_of_a_killed_master_takes_300_ms_at_most() -> None:
    """S9, in virtual time: the steps of the protocol, not the machine's. Off: only heartbeats are watched."""
    kept(killed_master, seeds=4)
    assert broken(killed_master, connections_mean_nothing)


@contextmanager
def nothing_is_proved() -> Iterator[None]:
    with mock.patch.object(DeathProofs, "suspect", lambda self, keys: None):
        yield


@contextmanager
def a_close_is_a_proof() -> Iterator[None]:
    async def prove(self: DeathProofs, key: Any, suspicion: int, *_target: Any) -> None:
        self._liveness.proved_dead(key, suspicion, self._clock())
        self._on_proof()

    with mock.patch.object(DeathProofs, "_prove", prove):
        yield


@pytest.mark.slow
@pytest.mark.promise("S9")
def test_s9_a_killed_master_is_replaced_without_the_grace() -> None:
    """S9: its address refuses connections. Off: only the close of its connection is seen."""
    kept(proved_master, NEAR, seeds=3)
    assert broken(proved_master, nothing_is_proved, NEAR)


@pytest.mark.slow
@pytest.mark.promise("S9")
def test_s9_a_master_that_accepts_connections_stays_master() -> None:
    """S9. Off: the controllers take a closed connection for a proof."""
    kept(lost_connections, NEAR, seeds=3)
    assert broken(lost_connections, a_close_is_a_proof, NEAR)


@pytest.mark.slow
@pytest.mark.promise("S9")
def test_s9_fail_over_of_a_hung_master_takes_the_configured_timeout() -> None:
    """S9, of a master that may acknowledge alone. Off: the timeout that a heartbeat names is not honoured."""
    kept(hung_master, ASYNCHRONOUS, seeds=2)
    assert broken(hung_master, heartbeats_count_for_ever, ASYNCHRONOUS)


async def found_hung(world: WholeGroup) -> None:
    name = await whole_group(world)
    await seconds(HUNG_S)  # the controllers' grace window is over
    world.brokers[name].process.pause()
    await world.until(lambda: world.master not in (None, world.brokers[name]), FOUND_HUNG_S, "still hung")
    world.brokers[name].process.resume()
    await world.conclude()


@contextmanager
def slaves_report_nothing() -> Iterator[None]:
    with mock.patch.object(HungMasters, "check", lambda self, broker_name: None):
        yield


@pytest.mark.slow
@pytest.mark.promise("S9")
def test_s9_a_hung_master_that_waits_for_all_is_found_before_its_timeout() -> None:
    """S9. Off: the reports of its replicas are not looked at."""
    kept(found_hung, seeds=4)
    assert broken(found_hung, slaves_report_nothing)


# -- S10 -----------------------------------------------------------------------------------------------------

SWITCH_P99_S = 0.2


async def planned_switches(world: WholeGroup) -> None:
    """electMaster, then SIGTERM of a master, while messages go on, to those who are master no more, too."""
    master = await whole_group(world, producers=2, pause_s=0.005)
    for client in world.clients[:2]:
        client.outcomes.clear()  # type: ignore[attr-defined]
    transfer_target = world.brokers[world.others(master)[0]].broker_id
    assert transfer_target is not None
    if not await world.do(world.operator, world.operator.elect(transfer_target)):
        raise Violation(f"electMaster: {world.operator.last}")
    await world.until(lambda: world.master is not None and world.master.broker_id == transfer_target, 2.0)
    await seconds(0.5)
    leaving = await world.whole()
    await world.stop_broker(leaving.name)
    await seconds(0.5)
    outcomes = [each for client in world.clients[:2] for each in client.outcomes]  # type: ignore[attr-defined]
    failed = [outcome for _, _, outcome in outcomes if not isinstance(outcome, Ok)]
    took = sorted(answered - sent for sent, answered, _ in outcomes)
    if failed:
        raise Violation(f"{len(failed)} of {len(outcomes)} sends failed: {failed[0]}")
    if took[len(took) * 99 // 100] > SWITCH_P99_S:
        raise Violation(f"p99 of the sends is {took[len(took) * 99 // 100]:.3f} s")
    await world.conclude()


@pytest.mark.slow
@pytest.mark.promise("S10")
def test_s10_a_planned_switch_fails_no_send() -> None:
    """S10. Off: a slave does not hand on what comes to it."""
    kept(planned_switches, seeds=2)
    assert broken(planned_switches, nullcontext, Conditions(settings={"forwardLateSends": False}))


# -- S11 -----------------------------------------------------------------------------------------------------


async def everybody_moves(world: WholeGroup) -> None:
    """One after the other gets another address: replicas, the master, controllers. Nobody does anything."""
    await whole_group(world, others=True)
    for number, name in enumerate([*world.disks, *CONTROLLERS], 50):
        kill = world.kill if name in world.disks else world.kill_controller
        kill(name)
        world.hosts[name] = f"10.0.3.{number}"
        world.revive(name)
        await world.whole()
    await world.conclude()


@contextmanager
def addresses_are_for_life() -> Iterator[None]:
    def first_address(state: Any, view: Any, **request: Any) -> Any:
        group = state.brokers.get(request["broker_name"])
        known = None if group is None else group.replicas.get(request["broker_id"])
        if known is not None and known.address != request["broker_address"]:
            return Answer(group)
        return decide_register(state, view, **request)

    with mock.patch.object(registration, "decide_register", first_address):
        yield


@pytest.mark.slow
@pytest.mark.promise("S11")
def test_s11_an_address_change_of_any_process_needs_no_operator() -> None:
    """S11; pain 43-46. Off: the controllers keep the first address of a broker."""
    kept(everybody_moves)
    assert broken(everybody_moves, addresses_are_for_life)


# -- ADR 16 --------------------------------------------------------------------------------------------------


async def power_lost_for_a_moment(world: WholeGroup) -> None:
    """The master's machine is back before anybody has missed it, without what was not on its disk."""
    master = await whole_group(world, pause_s=0.005)
    for _ in range(3):
        await seconds(0.3)
        world.kill(master, power=True)
        world.revive(master)
        master = (await world.whole()).name
    await world.conclude()


@contextmanager
def masters_go_on() -> Iterator[None]:
    def goes_on(state: Any, view: Any, **request: Any) -> Any:
        group = state.brokers.get(request["broker_name"])
        if group is not None and group.master_broker_id == request["broker_id"]:
            return Answer(group)
        return decide_register(state, view, **request)

    with mock.patch.object(registration, "decide_register", goes_on):
        yield


@pytest.mark.slow
def test_a_master_that_begins_anew_has_lost_its_term() -> None:
    """S1, S5; docs/adr/0016. Nothing is flushed before it is acknowledged, and still nothing is lost: the
    others have it. Off: the master goes on in its term."""
    conditions = Conditions(power=True)
    kept(power_lost_for_a_moment, conditions, seeds=3)
    assert broken(power_lost_for_a_moment, masters_go_on, conditions, seeds=3)
