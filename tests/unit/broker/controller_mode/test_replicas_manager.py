"""Role changes as a whole: order of the steps, repetition after a failure, interruption, fencing.

The controller, the HA service and the rest of the broker are scripted; waiting is for conditions.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from broker.controller_mode.broker_id_registration import Identity
from broker.controller_mode.broker_meta_file import MetaFiles
from broker.controller_mode.replicas_manager import ReplicasManager
from broker.controller_mode.role_change import RoleChange
from broker.controller_mode.slave_sync import Leader
from broker.core.role import Role, RoleUpdate
from broker.ha.ports import EpochPassed, MasterHaAddress
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Failed, Ok, Operation, Outcome, Unknown, Wire
from keelmq.remoting.operations.controller import (
    ALTER_SYNC_STATE_SET,
    APPLY_BROKER_ID,
    ELECT_MASTER,
    GET_NEXT_BROKER_ID,
    GET_REPLICA_INFO,
    REGISTER_BROKER_TO_CONTROLLER,
    AlterSyncStateSetResponse,
    ApplyBrokerIdResponse,
    ElectMasterResponseBody,
    GetNextBrokerIdResponse,
    MasterInfo,
    NotifyBrokerRoleChangedRequest,
    RegisterBrokerToControllerResponse,
    ReplicaInfoRequest,
    SyncStateSet,
)
from keelmq.runtime.backoff import Backoff
from keelmq.runtime.tasks import TaskSet
from tests.unit.broker.ha.test_ha_service import until

FILE_BYTES = 4_096

pytestmark = pytest.mark.timeout(20)


class FakeController:
    """Answers from `master`; `script` holds outcomes that come first, per code."""

    def __init__(self) -> None:
        self.master = MasterInfo()
        self.members = SyncStateSet()
        self.script: dict[int, list[Outcome[Any]]] = {}
        self.asked: list[int] = []
        self.last: dict[int, Wire] = {}

    async def call(
        self, operation: Operation[Any, Any], header: Wire, body: object = None, **_: object
    ) -> Outcome[Any]:
        self.asked.append(operation.code)
        self.last[operation.code] = header
        await asyncio.sleep(0)
        if waiting := self.script.get(operation.code):
            return waiting.pop(0)
        match operation.code:
            case GET_NEXT_BROKER_ID.code:
                return Ok(GetNextBrokerIdResponse(cluster_name="C", broker_name="b", next_broker_id=2))
            case APPLY_BROKER_ID.code:
                return Ok(ApplyBrokerIdResponse())
            case REGISTER_BROKER_TO_CONTROLLER.code:
                alive = self.master.model_dump()
                return Ok(RegisterBrokerToControllerResponse(**alive), self.members)
            case GET_REPLICA_INFO.code:
                return Ok(self.master, self.members)
            case ELECT_MASTER.code if self.master.master_broker_id is None:
                return Failed(ResponseCode.CONTROLLER_ELECT_MASTER_FAILED, "nobody")
            case ELECT_MASTER.code:
                members = ElectMasterResponseBody(sync_state_set=self.members.sync_state_set)
                return Ok(self.master, members, ResponseCode.CONTROLLER_MASTER_STILL_EXIST)
            case _:
                raise AssertionError(f"nobody expected {operation.name}")

    def elect(self, broker_id: int, epoch: int, address: str = "") -> None:
        address = address or ("me:1" if broker_id == 2 else "m:1")
        self.master = MasterInfo(
            master_broker_id=broker_id, master_address=address, master_epoch=epoch, sync_state_set_epoch=epoch
        )
        self.members = SyncStateSet(sync_state_set=[broker_id], sync_state_set_epoch=epoch)


class Scene:
    """All that a RoleChange acts on, in one; writes down what happens."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.ha_address: str | None = "m:2"
        self.fail_next = 0
        self.log_epoch = 0
        self.writable = False
        self.changed = asyncio.Event()

    def note(self, line: str) -> None:
        self.log.append(line)
        self.changed.set()

    # -- HaService

    async def become_master(
        self, *, broker_id: int, epoch: int, sync_state_set: SyncStateSet, controller: object
    ) -> None:
        self.note(f"ha master {epoch} {sync_state_set.sync_state_set}")
        if epoch < self.log_epoch:
            raise EpochPassed(epoch, self.log_epoch)
        if self.fail_next:
            self.fail_next -= 1
            raise OSError("disk full")

    async def become_slave(
        self, *, broker_id: int, epoch: int, master_ha_address: str, master_file_bytes: int | None
    ) -> None:
        assert master_file_bytes == FILE_BYTES
        self.note(f"ha slave {epoch} {master_ha_address}")
        if epoch < self.log_epoch:
            raise EpochPassed(epoch, self.log_epoch)

    async def leave_role(self, reason: str) -> None:
        self.note("leave role")

    def adopt_sync_state_set(self, sync_state_set: SyncStateSet) -> None:
        self.note(f"adopt {sync_state_set.sync_state_set}")

    # -- SendGate, PendingReplies and MessagesIn

    def close(self, reason: str, remark: str) -> None:
        self.writable = False

    def open(self, reason: str) -> None:
        self.writable = True
        self.note("unfence")

    def is_closed_by(self, reason: str) -> bool:
        return False

    def term_ends(self) -> None:
        self.note("fence")

    def term_begins(self) -> None:
        assert not self.writable

    def fail_all(self, code: int, remark: str) -> None:
        assert not self.writable

    def close_clients(self) -> None:
        self.note("clients away")

    # -- Metadata and SlaveSync

    async def begin_term(self, epoch: int, replicas: object, *, on_released: object) -> None:
        self.note(f"serve master {epoch}")

    def end_term(self) -> None:
        self.note("end of the term")

    def follow(self, leader: Leader | None) -> None:
        if leader is not None:
            self.note(f"follow {leader.epoch}")

    async def find_master(self, master_address: str) -> MasterHaAddress | None:
        self.note(f"find {master_address}")
        return MasterHaAddress(self.ha_address, FILE_BYTES) if self.ha_address else None

    def role_change(self) -> RoleChange:
        me: Any = self
        return RoleChange(
            me,
            gate=me,
            pending=me,
            metadata=me,
            sync=me,
            messages_in=me,
            on_metadata_replicated=lambda: None,
            close_clients=self.close_clients,
        )

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(5):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


def identity_at(directory: Path, controller: Any, last_epoch: int | None) -> Identity:
    identity = Identity(
        MetaFiles(directory, cluster_name="C", broker_name="b"),
        controller,
        cluster_name="C",
        broker_name="b",
        broker_address=lambda: "me:1",
        on_registered=lambda: None,
        last_epoch=lambda: last_epoch,
    )
    identity.load()
    return identity


class Broker:
    def __init__(self, directory: Path) -> None:
        self.controller, self.scene, self.tasks = FakeController(), Scene(), TaskSet()
        self.directory = directory
        self.changes: list[tuple[int, int, list[str]]] = []
        self.confirmed: list[int] = []
        self.refused: list[int] = []
        self.heard: list[frozenset[int]] = []
        self.unfit_because = ""

    def changed(self, before: Role, after: Role, took_ms: int) -> None:
        assert took_ms >= 0
        self.changes.append((before.epoch, after.epoch, self.scene.log[-1:]))
        self.scene.note(f"announce {after.epoch}")

    def confirm(self, asked_ms: int) -> None:
        self.confirmed.append(asked_ms)
        self.scene.changed.set()

    def start(self) -> ReplicasManager:
        controller: Any = self.controller
        identity = identity_at(self.directory, controller, None)
        self.manager = ReplicasManager(
            identity,
            controller,
            self.scene.role_change(),
            cluster_name="C",
            broker_name="b",
            poll_period_ms=60_000,
            on_change=self.changed,
            on_confirmed=self.confirm,
            on_sync_state_set=self.heard.append,
            unfit_because=lambda: self.unfit_because,
            on_refused=lambda: self.refused.append(self.manager.refused_epoch),
        )
        self.manager.start(self.tasks)
        return self.manager


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    made = Broker(tmp_path)
    yield made
    await made.tasks.stop()


async def test_a_new_broker_gets_an_id_and_becomes_slave(broker: Broker) -> None:
    broker.controller.elect(1, epoch=1)
    manager = broker.start()
    await broker.scene.until(lambda: "announce 1" in broker.scene.log)
    assert broker.scene.log == [
        "fence",
        "find m:1",
        "ha slave 1 m:2",
        "end of the term",
        "follow 1",
        "announce 1",
    ]
    assert not broker.scene.writable
    assert manager.role == Role(2, 1, 1, "m:1", 1, "me:1")
    assert (broker.directory / ".broker.meta").exists()


async def test_the_order_of_a_promotion(broker: Broker) -> None:
    broker.controller.elect(1, epoch=1)
    manager = broker.start()
    await broker.scene.until(lambda: "announce 1" in broker.scene.log)
    broker.scene.log.clear()
    manager.notify_broker_role_changed(
        NotifyBrokerRoleChangedRequest(master_address="me:1", master_epoch=2, master_broker_id=2),
        SyncStateSet(sync_state_set=[2], sync_state_set_epoch=2),
    )
    await broker.scene.until(lambda: "announce 2" in broker.scene.log)
    assert broker.scene.log == ["fence", "ha master 2 [2]", "serve master 2", "unfence", "announce 2"]
    assert manager.role.is_master and broker.scene.writable
    assert broker.changes == [(0, 1, ["follow 1"]), (1, 2, ["unfence"])]


async def test_only_a_demotion_sends_clients_away(broker: Broker) -> None:
    broker.controller.elect(2, epoch=1)
    manager = broker.start()
    await broker.scene.until(lambda: "announce 1" in broker.scene.log)
    manager.offer(RoleUpdate(2, 2, "me:1", frozenset({2}), 2))
    await broker.scene.until(lambda: "announce 2" in broker.scene.log)
    assert "clients away" not in broker.scene.log
    broker.scene.log.clear()
    manager.offer(RoleUpdate(3, 1, "m:1", frozenset({1}), 3))
    await broker.scene.until(lambda: "announce 3" in broker.scene.log)
    assert broker.scene.log[:3] == ["fence", "clients away", "find m:1"]


async def test_a_failed_change_stays_fenced_and_is_repeated(
    broker: Broker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Upstream stores the epoch first, so that a failed change is final (pitfall 25)."""
    monkeypatch.setattr("keelmq.runtime.tasks.random.random", lambda: 1.0)
    broker.scene.fail_next = 1
    broker.controller.elect(2, epoch=4)
    manager = broker.start()
    await broker.scene.until(lambda: "ha master 4 [2]" in broker.scene.log)
    assert not broker.scene.writable and manager.role.epoch == 0
    await broker.scene.until(lambda: "announce 4" in broker.scene.log)
    assert broker.scene.log.count("ha master 4 [2]") == 2
    assert broker.scene.writable
    assert (
        "replicas manager: no role change at masterEpoch 4: disk full; trying again in 100 ms" in caplog.text
    )
    assert "Traceback" not in caplog.text


async def searching(broker: Broker) -> ReplicasManager:
    """A slave whose master's HA address is not known yet."""
    broker.scene.ha_address = None
    broker.controller.elect(1, epoch=1)
    manager = broker.start()
    await broker.scene.until(lambda: "find m:1" in broker.scene.log)
    return manager


async def test_newer_news_interrupt_the_search_for_the_masters_ha_address(broker: Broker) -> None:
    manager = await searching(broker)
    manager.offer(RoleUpdate(2, 2, "me:1", frozenset({2}), 2))
    await broker.scene.until(lambda: "announce 2" in broker.scene.log)
    assert manager.role.is_master
    assert not [line for line in broker.scene.log if line.startswith("ha slave")]


async def test_a_master_that_has_moved_is_looked_for_at_its_new_address(broker: Broker) -> None:
    """Of the same term: it was elected at the address that it had before, and has registered since."""
    manager = await searching(broker)
    manager.offer(RoleUpdate(1, 1, "moved:1", frozenset({1}), 1))
    await broker.scene.until(lambda: "find moved:1" in broker.scene.log)
    broker.scene.ha_address = "moved:2"
    await broker.scene.until(lambda: "announce 1" in broker.scene.log)
    assert manager.role.master_address == "moved:1"


async def test_repeated_and_older_news_do_nothing(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", logger="broker.controller_mode.replicas_manager")
    broker.controller.elect(2, epoch=3)
    manager = broker.start()
    await broker.scene.until(lambda: "announce 3" in broker.scene.log)
    seen = len(broker.scene.log)
    for epoch, master in ((3, 2), (2, 1), (1, 2)):
        caplog.clear()
        manager.offer(RoleUpdate(epoch, master, "me:1" if master == 2 else "x:1"))
        await until(lambda: any("role stays" in line for line in caplog.messages), "decided")
    assert len(broker.scene.log) == seen


async def test_a_master_whose_term_was_ended_is_fenced_until_there_is_a_new_one(broker: Broker) -> None:
    broker.controller.elect(2, epoch=3)
    manager = broker.start()
    await broker.scene.until(lambda: "announce 3" in broker.scene.log)
    broker.controller.master = MasterInfo(master_epoch=4)
    manager.poll_now()
    await broker.scene.until(lambda: not broker.scene.writable)
    broker.controller.elect(2, epoch=5)
    await broker.scene.until(lambda: "announce 5" in broker.scene.log)  # the election loop finds it
    assert broker.scene.writable


@pytest.mark.parametrize(
    ("master", "epoch", "address", "confirms"),
    [
        (2, 3, "me:1", True),
        (2, 3, "copy:1", False),  # a process with a copy of our disk has taken the id
        (2, 4, "me:1", False),  # elected again, but the role change is not done
        (1, 3, "m:1", False),
        (1, 4, "m:1", False),
    ],
)
async def test_which_answer_is_a_proof_for_the_isolation_lease(
    broker: Broker, master: int, epoch: int, address: str, confirms: bool
) -> None:
    broker.controller.elect(2, epoch=3)
    manager = broker.start()
    await broker.scene.until(lambda: "announce 3" in broker.scene.log)
    await broker.scene.until(lambda: bool(broker.confirmed))  # by the poll that the role change asks for
    broker.confirmed.clear()
    broker.controller.elect(master, epoch, address)
    await manager.read_sync_state_set(3)
    assert bool(broker.confirmed) == confirms


async def test_unknown_id_at_the_controller_keeps_us_fenced_and_explains(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    wiped: Outcome[Any] = Failed(ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED, "unknown")
    broker.controller.script[REGISTER_BROKER_TO_CONTROLLER.code] = [wiped, wiped]
    broker.controller.elect(1, epoch=1)
    broker.start()
    await broker.scene.until(lambda: "announce 1" in broker.scene.log)  # after two refusals it works
    assert "their store was wiped" in caplog.text
    assert broker.controller.asked.count(GET_NEXT_BROKER_ID.code) == 1  # never a new id


async def test_lost_replies_repeat_with_the_same_check_code(broker: Broker) -> None:
    broker.controller.script = {
        GET_NEXT_BROKER_ID.code: [Unknown("lost")],
        APPLY_BROKER_ID.code: [Unknown("lost"), Failed(ResponseCode.CONTROLLER_NOT_LEADER, "")],
    }
    broker.controller.elect(1, epoch=1)
    broker.start()
    await broker.scene.until(lambda: "announce 1" in broker.scene.log)
    assert broker.controller.asked.count(APPLY_BROKER_ID.code) == 3


async def test_alter_is_asked_only_as_master_and_a_fence_makes_us_look(broker: Broker) -> None:
    broker.controller.elect(1, epoch=1)
    manager = broker.start()
    await broker.scene.until(lambda: "announce 1" in broker.scene.log)
    assert await manager.alter_sync_state_set(frozenset({1, 2}), 1) is None
    assert ALTER_SYNC_STATE_SET.code not in broker.controller.asked
    broker.controller.elect(2, epoch=2)
    manager.poll_now()
    await broker.scene.until(lambda: "announce 2" in broker.scene.log)
    agreed = SyncStateSet(sync_state_set=[1, 2], sync_state_set_epoch=3)
    fenced: Outcome[Any] = Failed(ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH, "old")
    answers: list[Outcome[Any]] = [Ok(AlterSyncStateSetResponse(), agreed), fenced]
    broker.controller.script[ALTER_SYNC_STATE_SET.code] = answers
    assert await manager.alter_sync_state_set(frozenset({1, 2}), 2) == agreed
    broker.controller.elect(1, epoch=3)
    assert await manager.alter_sync_state_set(frozenset({2}), 3) is None
    await broker.scene.until(lambda: "announce 3" in broker.scene.log)


async def test_a_master_in_doubt_reads_with_a_fence_and_polls_without(broker: Broker) -> None:
    """So that no 1001 on top of the doubted epoch can be accepted after the answer."""
    broker.controller.elect(2, epoch=4)
    manager = broker.start()
    await broker.scene.until(lambda: "announce 4" in broker.scene.log)
    assert await manager.read_sync_state_set(7) == broker.controller.members
    without_fence = ReplicaInfoRequest(broker_name="b", broker_id=2, broker_address="me:1")
    assert broker.controller.last[GET_REPLICA_INFO.code] == without_fence.model_copy(
        update={"master_broker_id": 2, "master_epoch": 4, "fence_sync_state_set_epoch": 7}
    )
    manager.poll_now()
    await until(lambda: broker.controller.last[GET_REPLICA_INFO.code] == without_fence)


async def test_a_link_that_told_of_a_later_term_ends_no_task(broker: Broker) -> None:
    """The master began another term at the same address, and we are cut off from the controllers: the log has
    the new epoch, the role not yet. Found by the whole-group simulator."""
    broker.controller.elect(1, epoch=1)
    manager = broker.start()
    await broker.scene.until(lambda: "announce 1" in broker.scene.log)
    broker.scene.ha_address, broker.scene.log_epoch = "m:3", 2
    asked = broker.controller.asked.count(GET_REPLICA_INFO.code)
    await manager.refresh_ha_address()
    assert broker.scene.log[-1] == "ha slave 1 m:3"
    await until(lambda: broker.controller.asked.count(GET_REPLICA_INFO.code) > asked, "polls at once")


@pytest.mark.parametrize("master", [1, 2])
async def test_late_news_are_no_trouble(
    broker: Broker, master: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Cut off from the controllers, the log learns of epoch 3 from the master's link; then a notification of
    epoch 2 arrives that was on its way all the time. Found by the whole-group simulator."""
    broker.controller.elect(1, epoch=1)
    manager = broker.start()
    await broker.scene.until(lambda: "announce 1" in broker.scene.log)
    broker.scene.log_epoch = 3
    broker.controller.elect(1, epoch=3)
    manager.offer(RoleUpdate(2, master, "me:1" if master == 2 else "m:1", frozenset({master}), 2))
    await broker.scene.until(lambda: "announce 3" in broker.scene.log)
    assert manager.role == Role(2, 3, 1, "m:1", 3, "me:1") and not manager.fault
    assert not broker.tasks.deaths and "importControllerState" not in caplog.text


async def test_late_news_wait_for_controllers_that_do_not_answer(broker: Broker) -> None:
    broker.controller.elect(1, epoch=1)
    manager = broker.start()
    await broker.scene.until(lambda: "announce 1" in broker.scene.log)
    broker.scene.log_epoch = 3
    broker.controller.script[GET_REPLICA_INFO.code] = [Unknown("lost")]
    manager.offer(RoleUpdate(2, 1, "m:1", frozenset({1}), 2))
    await until(lambda: not broker.controller.script[GET_REPLICA_INFO.code])
    assert manager.role == Role(2, 1, 1, "m:1", 1, "me:1") and not broker.tasks.deaths
    broker.controller.elect(1, epoch=3)
    manager.poll_now()
    await broker.scene.until(lambda: "announce 3" in broker.scene.log)


async def test_controllers_that_know_less_than_the_log_are_told_of(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """Asked again, they say the same: what they knew is lost."""
    broker.scene.log_epoch = 3
    broker.controller.elect(1, epoch=2)
    broker.start()
    await until(lambda: "masterEpoch 2 is below epoch 3 of the log" in caplog.text)
    assert "importControllerState" in caplog.text and broker.controller.asked.count(GET_REPLICA_INFO.code)
    broker.controller.elect(1, epoch=3)
    await broker.scene.until(lambda: "announce 3" in broker.scene.log)


async def test_the_same_master_with_a_new_ha_port_is_dialled_again(broker: Broker) -> None:
    broker.controller.elect(1, epoch=1)
    manager = broker.start()
    await broker.scene.until(lambda: "announce 1" in broker.scene.log)
    broker.scene.ha_address = "m:3"
    await manager.refresh_ha_address()
    await manager.refresh_ha_address()
    assert [line for line in broker.scene.log if line.startswith("ha slave")] == [
        "ha slave 1 m:2",
        "ha slave 1 m:3",
    ]


# -- a promotion that does not work ------------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The supervisor's pauses."""
    monkeypatch.setattr("keelmq.runtime.tasks.RESTART", Backoff(first_ms=1, max_ms=2))


@pytest.mark.usefixtures("quick")
async def test_a_mastership_that_cannot_be_taken_is_given_back(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """To another member of the SyncStateSet: it has everything, and nothing was stored in this term."""
    broker.scene.fail_next = 1 << 30
    broker.controller.elect(2, epoch=4)
    broker.controller.members = SyncStateSet(sync_state_set=[2, 3], sync_state_set_epoch=4)
    other = MasterInfo(master_broker_id=3, master_address="m:1", master_epoch=5, sync_state_set_epoch=5)
    broker.controller.script[ELECT_MASTER.code] = [Ok(other, ElectMasterResponseBody(sync_state_set=[3]))]
    manager = broker.start()
    await broker.scene.until(lambda: "announce 5" in broker.scene.log)
    assert broker.scene.log.count("ha master 4 [2, 3]") == 3
    assert manager.role == Role(2, 5, 3, "m:1", 5, "me:1") and not manager.fault
    assert "cannot become master at masterEpoch 4: disk full" in caplog.text


@pytest.mark.usefixtures("quick")
async def test_without_anybody_to_give_it_to_the_broker_says_why_and_falls_silent(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """The controllers clear a master that they do not hear. It goes on trying, and is well when it can be."""
    broker.scene.fail_next = 1 << 30
    broker.controller.elect(2, epoch=4)
    manager = broker.start()
    await broker.scene.until(lambda: bool(manager.fault))
    assert "disk full" in manager.fault and not broker.scene.writable
    assert "the group stays without a master" in caplog.text
    broker.scene.fail_next = 0
    await broker.scene.until(lambda: "announce 4" in broker.scene.log)
    assert not manager.fault and broker.scene.writable


@pytest.mark.usefixtures("quick")
async def test_who_fell_silent_may_be_elected_again(broker: Broker) -> None:
    broker.scene.fail_next = 3
    broker.controller.elect(2, epoch=4)
    manager = broker.start()
    await broker.scene.until(lambda: bool(manager.fault))
    broker.controller.master = MasterInfo(master_epoch=5)
    manager.poll_now()
    await until(lambda: not manager.fault)


async def test_a_broker_that_has_lost_its_end_refuses_to_be_master(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """For the life of its process: what it has told the controllers stays true, whatever it hears later."""
    broker.unfit_because = "the end of the log is lost"
    broker.controller.elect(2, epoch=4)
    manager = broker.start()
    await until(lambda: broker.refused == [4])
    manager.offer(RoleUpdate(4, 2, "me:1", frozenset({2}), 5))
    manager.offer(RoleUpdate(3, 2, "me:1", frozenset({2}), 5))
    broker.controller.elect(1, epoch=5)
    manager.poll_now()
    await broker.scene.until(lambda: "announce 5" in broker.scene.log)  # it copies what it has lost
    assert not [line for line in broker.scene.log if line.startswith("ha master")]
    assert broker.refused == [4] and not manager.fault
    refusals = [each for each in caplog.messages if "refuses to be master" in each]
    assert refusals == ["this broker refuses to be master at masterEpoch 4: the end of the log is lost"]


async def test_a_term_that_was_refused_is_not_begun_later(broker: Broker) -> None:
    broker.unfit_because = "the end of the log is lost"
    broker.controller.elect(2, epoch=4)
    manager = broker.start()
    await until(lambda: broker.refused == [4])
    broker.unfit_because = ""
    heard = len(broker.heard)
    manager.poll_now()
    await until(lambda: len(broker.heard) > heard)
    broker.controller.elect(2, epoch=5)
    manager.poll_now()
    await broker.scene.until(lambda: "announce 5" in broker.scene.log)
    assert [line for line in broker.scene.log if line.startswith("ha master")] == ["ha master 5 [2]"]


async def test_a_broker_that_has_lost_its_end_refuses_what_ended_before_it_came(broker: Broker) -> None:
    """There is no master any more: a late word of its election begins nothing."""
    broker.unfit_because = "the end of the log is lost"
    broker.controller.master = MasterInfo(master_epoch=5)
    broker.start()
    await until(lambda: broker.refused == [5])


async def test_a_refused_mastership_goes_to_a_member_that_was_kept(broker: Broker) -> None:
    broker.unfit_because = "the end of the log is lost"
    broker.controller.elect(2, epoch=4)
    broker.controller.members = SyncStateSet(sync_state_set=[2, 3], sync_state_set_epoch=4)
    other = MasterInfo(master_broker_id=3, master_address="m:1", master_epoch=5, sync_state_set_epoch=5)
    broker.controller.script[ELECT_MASTER.code] = [Ok(other, ElectMasterResponseBody(sync_state_set=[3]))]
    manager = broker.start()
    await broker.scene.until(lambda: "announce 5" in broker.scene.log)
    assert manager.role.master_broker_id == 3 and not broker.refused


@pytest.mark.usefixtures("quick")
async def test_a_promotion_that_does_not_end_is_a_failure(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Pitfall 42: upstream waits for ever, with the role lock held."""
    monkeypatch.setattr("broker.controller_mode.role_change.PROMOTION_MS", 20)
    real, stuck = broker.scene.become_master, 3

    async def become_master(**role_update: Any) -> None:
        nonlocal stuck
        if stuck:
            stuck -= 1
            await asyncio.Event().wait()
        await real(**role_update)

    monkeypatch.setattr(broker.scene, "become_master", become_master)
    broker.controller.elect(2, epoch=4)
    manager = broker.start()
    await broker.scene.until(lambda: "announce 4" in broker.scene.log)
    assert "did not end within 20 ms" in caplog.text
    assert broker.scene.writable and not manager.fault


# -- a second process with the id --------------------------------------------------------------------------

TAKEN = Failed(
    ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED, "brokerId 2 of b is registered at x:1 now"
)
WORKS = Failed(ResponseCode.CONTROLLER_INVALID_REQUEST, "brokerId 2 is in use at x:1")


@pytest.mark.parametrize("epoch", [4, 3], ids=["a new epoch", "the same epoch"])
async def test_a_master_that_was_replaced_meanwhile_serves_no_more(broker: Broker, epoch: int) -> None:
    """It was paused, and a copy of its disk has taken its place: both have the id that the update names."""
    broker.controller.elect(2, epoch=3)
    manager = broker.start()
    await broker.scene.until(lambda: "announce 3" in broker.scene.log)
    del broker.scene.log[:]
    broker.controller.script[REGISTER_BROKER_TO_CONTROLLER.code] = [WORKS]
    broker.controller.elect(2, epoch, "x:1")
    manager.poll_now()
    await until(lambda: not broker.controller.script[REGISTER_BROKER_TO_CONTROLLER.code])
    assert broker.scene.log == ["fence", "clients away", "leave role", "end of the term"]
    assert manager.role == Role(2, address="me:1") and "x:1" in manager.fault
    asked = broker.controller.asked.count(REGISTER_BROKER_TO_CONTROLLER.code)
    polls = broker.controller.asked.count(GET_REPLICA_INFO.code)
    manager.poll_now()
    await until(lambda: broker.controller.asked.count(GET_REPLICA_INFO.code) > polls)
    assert broker.controller.asked.count(REGISTER_BROKER_TO_CONTROLLER.code) == asked, "it takes nothing back"
    assert not broker.scene.writable and manager.role.epoch == 0


async def test_a_slave_that_was_replaced_meanwhile_copies_no_more(broker: Broker) -> None:
    """No role update names a slave's address: the controllers refuse its poll."""
    broker.controller.elect(1, epoch=3)
    manager = broker.start()
    await broker.scene.until(lambda: "announce 3" in broker.scene.log)
    broker.controller.script[GET_REPLICA_INFO.code] = [TAKEN]
    broker.controller.script[REGISTER_BROKER_TO_CONTROLLER.code] = [WORKS]
    manager.poll_now()
    await until(lambda: not broker.controller.script[REGISTER_BROKER_TO_CONTROLLER.code])
    assert "leave role" in broker.scene.log and manager.role.epoch == 0


async def test_a_broker_that_controllers_have_at_an_older_address_registers_again(broker: Broker) -> None:
    """They were restored from a backup that was made before it moved, and nobody works at that address."""
    broker.controller.elect(1, epoch=3)
    manager = broker.start()
    await broker.scene.until(lambda: "announce 3" in broker.scene.log)
    broker.controller.script[GET_REPLICA_INFO.code] = [TAKEN]
    manager.poll_now()
    await broker.scene.until(lambda: broker.scene.log.count("announce 3") == 2)
    assert manager.role == Role(2, 3, 1, "m:1", 3, "me:1") and not manager.fault
    assert not broker.tasks.deaths
