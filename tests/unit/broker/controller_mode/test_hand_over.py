"""Planned hand-over (S10): the order of its steps, what happens when one fails, messages that come late."""

import asyncio
import errno
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.admission import send_forwarder, send_gate
from broker.admission.send_forwarder import FORWARDED_GROUP, SendForwarder
from broker.admission.send_gate import DISK_FULL, HAND_OVER, ROLE
from broker.controller_mode.hand_over import HandOver, HandOverError
from broker.core.role import Role
from broker.core.transfer_target import (
    Transfer,
    TransferCandidate,
    choose_transfer_target,
    fully_replicated,
    next_transfer,
)
from broker.metadata.service import Metadata
from broker.store.log.sync_fault import SyncError
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.command import RemotingCommand
from keelmq.remoting.operation import CommandError, Failed, Ok, Outcome, Unknown
from keelmq.remoting.operations import controller as wire
from keelmq.remoting.operations.broker import SendMessageResponse
from keelmq.remoting.operations.broker_metadata import MetadataUpdate, MetadataVersions, PullMetadataRequest
from keelmq.runtime.backoff import Backoff
from keelmq.runtime.clock import now_ms
from tests.support.controller_fakes import GROUP, Bench
from tests.support.handler_parts import Broker
from tests.support.metadata_parts import ReplicasT, begin_term, open_metadata
from tests.unit.broker.ha.test_ha_service import until

pytestmark = pytest.mark.timeout(20)

NEW_MASTER = "10.0.0.2:10911"
HALF_MESSAGE = "TRAN_MSG\x01true\x02UNIQ_KEY\x01AC12"


class Client:
    """Answers of the new master, one per call; the last one stays."""

    def __init__(self, *outcomes: Outcome[Any]) -> None:
        self.outcomes = list(outcomes)
        self.calls: list[tuple[str, Any, bytes]] = []

    async def call(
        self, address: str, _operation: object, header: Any, body: bytes = b"", **_: object
    ) -> Outcome[Any]:
        self.calls.append((address, header, body))
        await asyncio.sleep(0)
        return self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]


def stored(offset: int = 7) -> Outcome[Any]:
    return Ok(SendMessageResponse(msg_id="M", queue_id=0, queue_offset=offset, transaction_id="T"))


class Forwarding:
    """A broker whose gate holds or forwards."""

    def __init__(self, path: Path, *outcomes: Outcome[Any]) -> None:
        self.client, self.master, self.successor_is_due = Client(*outcomes), "", False
        self.broker = Broker(path)
        client: Any = self.client
        self.forwarder = SendForwarder(
            client,
            self.broker.gate,
            broker_name="b",
            master=lambda: self.master or None,
            send_here=self.broker.handlers.send.send,
            successor_is_due=lambda: self.successor_is_due,
        )
        self.broker.gate.hold_or_forward = self.forwarder.take

    def demote(self) -> None:
        self.broker.gate.close(ROLE, "slave")
        self.master = NEW_MASTER

    async def answers(self, count: int = 1) -> list[RemotingCommand]:
        found: list[RemotingCommand] = []
        async with asyncio.timeout(5):
            while len(found) < count:
                await asyncio.sleep(0.001)
                found += self.broker.answers()
        return found


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    made = Bench(tmp_path)
    await made.group_of(1, 2, 3)
    yield made


# -- late messages -----------------------------------------------------------------------------------------


async def test_a_slave_hands_on_what_a_client_with_an_old_route_sends(tmp_path: Path) -> None:
    scene = Forwarding(tmp_path, stored())
    scene.demote()
    assert scene.broker.send(b"hello", e="3", h="5", j="2") is None
    (answer,) = await scene.answers()
    assert (answer.code, answer.opaque, answer.ext_fields["queueOffset"]) == (0, 9, "7")
    assert answer.ext_fields["masterAddress"] == NEW_MASTER, "our client reads the route again"
    ((address, header, body),) = scene.client.calls
    assert (address, body, header.topic, header.queue_id) == (NEW_MASTER, b"hello", "TopicA", 3)
    assert (header.flag, header.reconsume_times, header.producer_group) == (5, 2, FORWARDED_GROUP)
    assert header.properties == "TAGS\x01TagA\x02UNIQ_KEY\x01AC11", "the same UNIQ_KEY"
    assert scene.broker.store.commit_log.max_offset == 0 and scene.forwarder.forwarded == 1


@pytest.mark.parametrize("lenient", [False, True])
async def test_a_forwarded_message_is_not_forwarded_again(tmp_path: Path, lenient: bool) -> None:
    scene = Forwarding(tmp_path, stored())
    scene.demote()
    answer = scene.broker.send(a=FORWARDED_GROUP, lenient=lenient)
    assert answer is not None and answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert scene.client.calls == []


async def test_a_new_master_that_is_not_ready_is_asked_by_one_at_a_time(tmp_path: Path) -> None:
    early = Failed(ResponseCode.SERVICE_NOT_AVAILABLE, "service not available now: role is changing")
    few = Failed(ResponseCode.SYSTEM_ERROR, "in-sync replicas not enough: 1 of at least 2")
    scene = Forwarding(tmp_path, *[early] * 3, *[few] * 3, stored())
    scene.demote()
    scene.broker.send()
    await until(lambda: len(scene.client.calls) >= 1)
    for _ in range(49):
        scene.broker.send()
    answers = await scene.answers(50)
    assert {answer.code for answer in answers} == {0}
    assert len(scene.client.calls) == 50 + 6, "not fifty that knock together"


async def test_a_message_does_not_wait_for_a_hung_master_that_was_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The route may name this broker as master some ms before it knows that itself."""
    monkeypatch.setattr(send_forwarder, "REPLACED_MS", 1)
    monkeypatch.setattr(send_forwarder, "REPLACED_STEP_MS", 1)
    monkeypatch.setattr(send_forwarder, "FORWARD_TIMEOUT_MS", 60_000)
    scene = Forwarding(tmp_path, stored())
    hangs = asyncio.Event()

    sent_to = list[str]()

    async def call(address: str, *_: object, **__: object) -> Outcome[Any]:
        sent_to.append(address)
        if address != NEW_MASTER:
            return stored()
        hangs.set()
        await asyncio.Event().wait()
        raise AssertionError("cancelled")

    monkeypatch.setattr(scene.client, "call", call)
    scene.demote()
    for _ in range(2):
        scene.broker.send()
    scene.broker.send(i=HALF_MESSAGE)
    await hangs.wait()
    assert scene.forwarder.count == 3, "they wait while that master is not replaced"
    scene.master = "10.0.0.9:1"
    answers = await scene.answers(3)
    assert sorted(answer.code for answer in answers) == [0, 0, ResponseCode.SYSTEM_ERROR]
    (half,) = (answer for answer in answers if answer.code)
    assert "may be stored" in (half.remark or ""), "a second half message would be committed as well"
    assert sorted(sent_to) == [NEW_MASTER] * 3 + ["10.0.0.9:1"] * 2
    await until(lambda: scene.forwarder.count == 0)


async def test_a_doubt_about_a_hung_master_is_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The successor refuses the message: the one before may have stored it."""
    monkeypatch.setattr(send_forwarder, "REPLACED_MS", 1)
    monkeypatch.setattr(send_forwarder, "REPLACED_STEP_MS", 1)
    scene = Forwarding(tmp_path, stored())

    async def call(address: str, *_: object, **__: object) -> Outcome[Any]:
        if address != NEW_MASTER:
            return Failed(ResponseCode.SYSTEM_BUSY, "busy")
        scene.master = "10.0.0.9:1"
        await asyncio.Event().wait()
        raise AssertionError("cancelled")

    monkeypatch.setattr(scene.client, "call", call)
    scene.demote()
    scene.broker.send()
    (answer,) = await scene.answers()
    assert answer.code == ResponseCode.SYSTEM_ERROR and "may be stored" in (answer.remark or "")


async def test_a_message_to_a_hung_master_is_stored_here_when_this_broker_is_its_successor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(send_forwarder, "REPLACED_MS", 1)
    monkeypatch.setattr(send_forwarder, "REPLACED_STEP_MS", 1)
    scene = Forwarding(tmp_path, stored())
    hangs = asyncio.Event()

    async def call(*_: object, **__: object) -> Outcome[Any]:
        hangs.set()
        await asyncio.Event().wait()
        raise AssertionError("cancelled")

    monkeypatch.setattr(scene.client, "call", call)
    scene.demote()
    scene.broker.send()
    await hangs.wait()
    scene.master = ""
    scene.broker.gate.open(ROLE)
    (answer,) = await scene.answers()
    assert answer.code == 0 and scene.broker.store.commit_log.max_offset > 0


@pytest.mark.parametrize(
    ("outcome", "code", "remark"),
    [
        (Failed(ResponseCode.TOPIC_NOT_EXIST, "no such topic"), 17, "no such topic"),
        (Failed(ResponseCode.SYSTEM_BUSY, "busy"), 2, "busy"),
        (Unknown("no answer"), 1, "may be stored"),
    ],
)
async def test_other_answers_are_passed_on(
    tmp_path: Path, outcome: Outcome[Any], code: int, remark: str
) -> None:
    scene = Forwarding(tmp_path, outcome)
    scene.demote()
    scene.broker.send()
    (answer,) = await scene.answers()
    assert answer.code == code and remark in (answer.remark or "")


async def test_what_is_held_is_stored_here_if_the_hand_over_fails(tmp_path: Path) -> None:
    scene = Forwarding(tmp_path, stored())
    scene.broker.gate.close(HAND_OVER, "going")
    assert [scene.broker.send(b"%d" % number) for number in range(3)] == [None] * 3
    assert scene.broker.store.commit_log.max_offset == 0 and scene.forwarder.count == 3
    scene.broker.gate.open(HAND_OVER)
    scene.forwarder.settle()
    answers = scene.broker.answers()
    assert [answer.ext_fields["queueOffset"] for answer in answers] == ["0", "1", "2"], "in order"
    assert scene.client.calls == [] and scene.forwarder.count == 0


async def test_what_is_held_goes_to_the_new_master_in_order(tmp_path: Path) -> None:
    scene = Forwarding(tmp_path, stored())
    scene.broker.gate.close(HAND_OVER, "going")
    for number in range(3):
        scene.broker.send(b"%d" % number)
    scene.demote()
    scene.broker.gate.open(HAND_OVER)
    scene.forwarder.settle()
    await scene.answers(3)
    assert [body for _, _, body in scene.client.calls] == [b"0", b"1", b"2"]


async def test_a_message_on_its_way_is_stored_here_when_this_broker_becomes_master(tmp_path: Path) -> None:
    scene = Forwarding(tmp_path, Failed(ResponseCode.SERVICE_NOT_AVAILABLE, "not yet"))
    scene.demote()
    scene.broker.send()
    await until(lambda: len(scene.client.calls) >= 2)
    scene.master = ""
    scene.broker.gate.open(ROLE)
    (answer,) = await scene.answers()
    assert (answer.code, answer.ext_fields["queueOffset"]) == (0, "0")


async def test_a_message_waits_for_a_master_that_is_not_known_yet(tmp_path: Path) -> None:
    """An alias of a master that died, before it hears of the election."""
    scene = Forwarding(tmp_path, stored())
    scene.broker.gate.close(ROLE, "slave")
    assert scene.broker.send() is None
    await until(lambda: scene.forwarder.count == 1)
    assert scene.broker.answers() == []
    scene.master = NEW_MASTER
    (answer,) = await scene.answers()
    assert (answer.code, answer.ext_fields["masterAddress"]) == (0, NEW_MASTER)
    assert scene.forwarder.count == 0


async def test_it_is_refused_when_there_is_none_for_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(send_forwarder, "FORWARD_TIMEOUT_MS", 30)
    scene = Forwarding(tmp_path, stored())
    scene.broker.gate.close(ROLE, "this broker is slave of h:1")
    assert scene.broker.send() is None
    (answer,) = await scene.answers()
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "slave of h:1" in (answer.remark or "")
    assert scene.client.calls == []


@pytest.mark.slow
async def test_all_are_refused_when_their_time_is_over_however_many_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They look for a master one at a time: without a limit, each one waits for the pauses of all before it,
    and is stored long after its client has given up."""
    monkeypatch.setattr(send_forwarder, "FORWARD_TIMEOUT_MS", 30)
    monkeypatch.setattr(send_forwarder, "RETRY", Backoff(first_ms=2_000, max_ms=2_000))
    monkeypatch.setattr("broker.admission.send_forwarder.random.random", lambda: 1.0)
    scene = Forwarding(tmp_path, stored())
    scene.broker.gate.close(ROLE, "this broker is slave of h:1")
    for _ in range(20):
        assert scene.broker.send() is None
    answers = await scene.answers(20)  # within 5 s; all pauses together take 40 s
    assert {answer.code for answer in answers} == {ResponseCode.SERVICE_NOT_AVAILABLE}
    await until(lambda: scene.forwarder.count == 0)


async def test_a_new_master_holds_messages_until_replicas_have_joined(tmp_path: Path) -> None:
    """The next master is alone in the SyncStateSet for some ms, and a client has few retries."""
    scene = Forwarding(tmp_path, stored())
    gate = scene.broker.gate
    gate.close(ROLE, "slave")
    gate.min_in_sync = 2
    gate.open(ROLE)
    for _ in range(20):
        assert scene.broker.send() is None
    assert scene.broker.answers() == [] and scene.broker.store.commit_log.max_offset == 0
    at_once = scene.broker.send(e="1", i="WAIT\x01false")
    assert at_once is not None and at_once.code == 0, "it waits for no replica"
    gate.in_sync = 2
    answers = await scene.answers(20)
    assert {answer.code for answer in answers} == {0} and scene.client.calls == []
    assert [answer.ext_fields["queueOffset"] for answer in answers] == [str(each) for each in range(20)]


async def test_a_master_without_replicas_says_so_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(send_gate, "GATHER_MS", 30)
    scene = Forwarding(tmp_path, stored())
    gate = scene.broker.gate
    gate.close(ROLE, "slave")
    gate.min_in_sync = 2
    gate.open(ROLE)
    assert scene.broker.send() is None
    (answer,) = await scene.answers()
    assert answer.code == ResponseCode.SYSTEM_ERROR and "in-sync replicas not enough" in (answer.remark or "")
    refused = scene.broker.send()
    assert refused is not None and refused.code == ResponseCode.SYSTEM_ERROR, "at once, from then on"


@pytest.mark.parametrize(("limit", "value"), [("TAKEN_MAX", 2), ("TAKEN_BYTES_MAX", 14)])
async def test_what_cannot_be_held_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    monkeypatch.setattr(send_forwarder, limit, value)
    scene = Forwarding(tmp_path, stored())
    scene.broker.gate.close(HAND_OVER, "the mastership goes to broker 2")
    answers = [scene.broker.send(b"5byte") for _ in range(3)]
    assert answers[:2] == [None, None]
    assert answers[2] is not None and answers[2].code == ResponseCode.SERVICE_NOT_AVAILABLE
    await scene.forwarder.close()


# -- the heir ----------------------------------------------------------------------------------------------


def test_the_transfer_target_is_the_one_with_the_longest_log() -> None:
    links = [TransferCandidate(3, 100), TransferCandidate(2, 100), TransferCandidate(4, 90)]
    assert (
        choose_transfer_target(links, None),
        choose_transfer_target(links, 4),
        choose_transfer_target(links, 9),
    ) == (2, 4, None)
    assert choose_transfer_target([], None) is None
    assert fully_replicated(links, 100) == {2, 3}


# -- the master --------------------------------------------------------------------------------------------


class Controller:
    def __init__(self, outcome: Outcome[Any]) -> None:
        self.outcome, self.asked = outcome, list[wire.ElectMasterRequest]()

    async def call(self, _operation: object, header: Any, **_: object) -> Outcome[Any]:
        self.asked.append(header)
        return self.outcome


class Manager:
    def __init__(self, demote: Callable[[], None]) -> None:
        self.demote = demote
        self.role = Role(1, 5, 1, "10.0.0.1:10911", 8)
        self.readings = 0

    def elected(self, outcome: Ok[Any]) -> bool:
        self.demote()
        self.role = Role(1, outcome.header.master_epoch, outcome.header.master_broker_id, NEW_MASTER, 9)
        return True

    async def read_sync_state_set(self, _epoch: int) -> None:
        self.readings += 1


class Link:
    learner = False

    def __init__(self, ack_offset: int) -> None:
        self.ack_offset = ack_offset


class Ha:
    """A master of {1, 2, 3} at masterEpoch 5, set epoch 8."""

    def __init__(self, store: Any, links: dict[int, Link]) -> None:
        self.store, self.links = store, links
        self.mastership = self
        self.sync_state_set_manager = self
        self.agreed = self
        self.members, self.epoch = frozenset({1, 2, 3}), 8


class Scene:
    def __init__(self, path: Path, outcome: Outcome[Any], links: dict[int, Link] | None = None) -> None:
        self.forwarding = Forwarding(path, stored())
        self.broker = self.forwarding.broker
        self.controller, self.manager = Controller(outcome), Manager(self.forwarding.demote)
        self.links = {2: Link(1 << 40), 3: Link(0)} if links is None else links
        parts: dict[str, Any] = {"ha": Ha(self.broker.store, self.links), "controller": self.controller}
        self.metadata = open_metadata(path / "metadata")
        self.replicas = ReplicasT(lambda epoch: {2, 3})
        self.hand_over = HandOver(
            cluster_name="c",
            broker_name="b",
            gate=self.broker.gate,
            pending=self.broker.pending,
            forwarder=self.forwarding.forwarder,
            metadata=self.metadata,
            manager=self.manager,  # type: ignore[arg-type]
            **parts,
        )

    def choosy(self, full: set[int], damaged: set[int]) -> "Choosy":
        choosy = Choosy(full, damaged)
        self.controller.call = choosy.call  # type: ignore[method-assign]
        return choosy


async def pull(metadata: Metadata, replica: int = 2) -> list[MetadataUpdate]:
    """The replica names what it has been told by now: everything."""
    request = PullMetadataRequest(broker_name="b-a", broker_id=replica, master_epoch=5)
    versions = {name: store.data_version for name, store in metadata.stores.items()}
    return await metadata.pull(request, MetadataVersions(versions=versions))


async def drain_looks(scene: Scene, count: int = 3) -> None:
    """From now on the drain has looked so often, and waits on."""
    with patch.object(scene.metadata, "is_behind", wraps=scene.metadata.is_behind) as look:
        await until(lambda: look.call_count >= count)


def elected(transfer_target: int = 2) -> Outcome[Any]:
    return Ok(wire.MasterInfo(master_broker_id=transfer_target, master_address=NEW_MASTER, master_epoch=6))


async def test_the_transfer_target_has_everything_before_it_is_elected(tmp_path: Path) -> None:
    scene = Scene(tmp_path, elected())
    scene.broker.gate.wait = True
    scene.links[2].ack_offset = 0
    scene.broker.send(b"before")
    end = scene.broker.store.commit_log.max_offset
    giving = asyncio.create_task(scene.hand_over.give(2))
    await until(lambda: not scene.broker.gate.writable)
    assert scene.broker.send(b"meanwhile") is None and scene.forwarding.forwarder.count == 1
    scene.links[2].ack_offset = end
    await drain_looks(scene)
    assert scene.controller.asked == [], "a reply still waits"
    scene.broker.replicated()
    assert await giving == 2
    (request,) = scene.controller.asked
    assert (request.broker_id, request.designate_elect) == (2, True)
    assert (request.master_broker_id, request.master_epoch, request.sync_state_set_epoch) == (1, 5, 8)
    assert request.equal_replicas == "1;2", "3 lacks something"
    assert scene.broker.store.commit_log.max_offset == end
    assert not scene.broker.gate.is_closed_by(HAND_OVER)


async def test_the_transfer_target_has_the_offsets_of_the_last_moment_before_it_is_elected(
    tmp_path: Path,
) -> None:
    """Oneway commits have no version for up to 100 ms, and a replica hears of versions only."""
    scene = Scene(tmp_path, elected())
    begin_term(scene.metadata, 5, scene.replicas)
    await pull(scene.metadata)
    assert scene.metadata.is_behind(3) and not scene.metadata.is_behind(2)
    scene.metadata.offsets.commit("G", "TopicA", 0, 7)
    assert not scene.metadata.is_behind(2), "a commit without a version is nothing to be behind of"
    giving = asyncio.create_task(scene.hand_over.give(2))
    await until(lambda: not scene.broker.gate.writable and scene.metadata.is_behind(2))
    await drain_looks(scene)
    assert scene.controller.asked == []
    assert await pull(scene.metadata) == []
    assert await giving == 2


async def test_metadata_that_does_not_reach_the_transfer_target_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.controller_mode.hand_over.DRAIN_MS", 30)
    scene = Scene(tmp_path, elected())
    begin_term(scene.metadata, 5, scene.replicas)
    with pytest.raises(HandOverError, match="and metadata"):
        await scene.hand_over.give(2)
    assert scene.controller.asked == [] and scene.broker.gate.writable


async def test_rocketmq_s_transfer_target_polls_metadata_and_is_not_waited_for(tmp_path: Path) -> None:
    scene = Scene(tmp_path, elected())
    begin_term(scene.metadata, 5, scene.replicas)
    scene.replicas.members = lambda epoch: {3}
    assert await scene.hand_over.give(2) == 2


@pytest.mark.parametrize(("leaves", "minimum", "kept"), [(True, 1, "2"), (True, 2, "1;2"), (False, 1, "1;2")])
async def test_who_leaves_is_kept_in_the_set_only_if_it_must(
    tmp_path: Path, leaves: bool, minimum: int, kept: str
) -> None:
    scene = Scene(tmp_path, elected())
    scene.broker.send()
    scene.broker.gate.min_in_sync = minimum
    await scene.hand_over.give(leaves=leaves)
    assert scene.controller.asked[0].equal_replicas == kept


async def test_a_master_whose_disk_failed_is_not_kept_in_the_set(tmp_path: Path) -> None:
    """Even below minInSyncReplicas: the new master would wait for acks that never come."""
    scene = Scene(tmp_path, elected())
    scene.broker.send()
    scene.broker.gate.min_in_sync = 2
    scene.broker.store.commit_log.sync_fault.latch(SyncError(errno.EIO, "Input/output error", "0"))
    await scene.hand_over.give(leaves=True)
    assert scene.controller.asked[0].equal_replicas == "2"


@pytest.mark.parametrize(
    ("outcome", "says"),
    [
        (Failed(ResponseCode.CONTROLLER_ELECT_MASTER_FAILED, "not alive"), "not alive"),
        (Unknown("no answer"), "was lost"),
    ],
)
async def test_a_hand_over_that_fails_changes_nothing(
    tmp_path: Path, outcome: Outcome[Any], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.controller_mode.hand_over.SWITCH_MS", 20)
    scene = Scene(tmp_path, outcome)
    scene.broker.gate.close(HAND_OVER, "for a message that is held")
    scene.broker.send()
    with pytest.raises(HandOverError, match=says):
        await scene.hand_over.give(2)
    assert scene.broker.gate.writable
    assert [answer.code for answer in scene.broker.answers()] == [0], "what was held is stored here"
    assert scene.manager.readings == isinstance(outcome, Unknown), "a late request is made void"


async def test_a_target_that_the_controllers_refuse_is_followed_by_the_next_one(tmp_path: Path) -> None:
    """Its log is damaged: the controllers know it by its heartbeats."""
    scene = Scene(tmp_path, elected(), {2: Link(1 << 40), 3: Link(1 << 40)})
    damaged = Failed(ResponseCode.CONTROLLER_ELECT_MASTER_FAILED, "8 bytes are damaged")
    answers: list[Outcome[Any]] = [damaged, elected(3)]
    with patch.object(scene.controller, "call", side_effect=answers) as call:
        assert await scene.hand_over.give() == 3
    assert [each.args[1].broker_id for each in call.call_args_list] == [2, 3]


async def test_if_all_targets_are_refused_it_stays_master(tmp_path: Path) -> None:
    damaged = Failed(ResponseCode.CONTROLLER_ELECT_MASTER_FAILED, "8 bytes are damaged")
    scene = Scene(tmp_path, damaged, {2: Link(1 << 40), 3: Link(1 << 40)})
    with pytest.raises(HandOverError, match="8 bytes are damaged"):
        await scene.hand_over.give()
    assert [each.broker_id for each in scene.controller.asked] == [2, 3, 2, 3], "with room, then without"
    assert scene.broker.gate.writable


class Choosy:
    """Controllers that know whose disk is full, and whose log is damaged."""

    def __init__(self, full: set[int], damaged: set[int]) -> None:
        self.full, self.damaged, self.asked = full, damaged, list[tuple[int, bool]]()

    async def call(self, _operation: object, header: Any, **_: object) -> Outcome[Any]:
        self.asked.append((header.broker_id, header.needs_room))
        if header.broker_id in self.damaged or (header.needs_room and header.broker_id in self.full):
            return Failed(ResponseCode.CONTROLLER_ELECT_MASTER_FAILED, "it is not elected")
        return elected(header.broker_id)


@pytest.mark.parametrize(
    ("full", "damaged", "for_room", "asked"),
    [
        ((), (), True, [(2, True)]),
        ({2}, (), True, [(2, True), (3, True)]),
        ({2}, (), False, [(2, True), (3, True)]),
        ({2, 3}, (), True, [(2, True), (3, True), None]),
        ({2, 3}, (), False, [(2, True), (3, True), (2, False)]),
        ({3}, {2}, True, [(2, True), (3, True), None]),
        ({3}, {2}, False, [(2, True), (3, True), (2, False), (3, False)]),
        ((), {2, 3}, False, [(2, True), (3, True), (2, False), (3, False), None]),
    ],
)
async def test_a_replica_with_room_takes_over(
    tmp_path: Path, full: set[int], damaged: set[int], for_room: bool, asked: list[tuple[int, bool] | None]
) -> None:
    """A master that stops takes one without room if there is no other; one whose disk is full does not."""
    scene = Scene(tmp_path, elected(), {2: Link(1 << 40), 3: Link(1 << 40)})
    choosy = scene.choosy(set(full), set(damaged))
    if asked[-1] is None:
        with pytest.raises(HandOverError, match="it is not elected"):
            await scene.hand_over.give(for_room=for_room)
        assert choosy.asked == asked[:-1] and scene.broker.gate.writable
    else:
        assert await scene.hand_over.give(for_room=for_room) == asked[-1][0]
        assert choosy.asked == asked


async def test_an_operator_may_name_a_replica_without_room(tmp_path: Path) -> None:
    scene = Scene(tmp_path, elected(), {2: Link(1 << 40), 3: Link(1 << 40)})
    choosy = scene.choosy({2, 3}, set())
    assert await scene.hand_over.give(3) == 3
    assert choosy.asked == [(3, False)]


@given(
    acks=st.dictionaries(st.integers(1, 6), st.integers(0, 3), max_size=6),
    full=st.sets(st.integers(1, 6)),
    wanted=st.none() | st.integers(1, 6),
    for_room=st.booleans(),
)
def test_whom_the_attempts_end_with(
    acks: dict[int, int], full: set[int], wanted: int | None, for_room: bool
) -> None:
    links = [TransferCandidate(broker_id, ack) for broker_id, ack in acks.items()]
    refused: set[Transfer] = set()
    while (attempt := next_transfer(links, refused, wanted=wanted, for_room=for_room)) is not None:
        assert attempt.broker_id in acks and attempt not in refused
        if not (attempt.needs_room and attempt.broker_id in full):
            break
        refused.add(attempt)
    pool = {each: ack for each, ack in acks.items() if wanted in (None, each)}
    with_room = {each: ack for each, ack in pool.items() if each not in full}
    best = with_room or ({} if for_room else pool)
    if wanted is not None and not for_room:
        best = pool
    expected = max(best, key=lambda each: (best[each], -each), default=None)
    assert (attempt.broker_id if attempt is not None else None) == expected
    assert len(refused) <= 2 * len(acks)


async def test_sends_wait_while_a_full_master_is_about_to_hand_over(tmp_path: Path) -> None:
    scene = Forwarding(tmp_path, stored())
    scene.successor_is_due = True
    scene.broker.gate.close(DISK_FULL, "the disk is full")
    assert scene.broker.send(b"held") is None
    scene.demote()
    (answer,) = await scene.answers()
    assert answer.code == ResponseCode.SUCCESS and answer.ext_fields["masterAddress"] == NEW_MASTER
    scene.master, scene.successor_is_due = "", False
    scene.broker.gate.open(ROLE)
    refused = scene.broker.send(b"no")
    assert refused is not None and refused.code == ResponseCode.SERVICE_NOT_AVAILABLE


async def test_metadata_that_cannot_be_committed_does_not_leave_the_gate_shut(tmp_path: Path) -> None:
    scene = Scene(tmp_path, elected())
    with (
        patch.object(scene.metadata, "commit_staged", side_effect=ValueError("not JSON")),
        pytest.raises(ValueError, match="not JSON"),
    ):
        await scene.hand_over.give()
    assert scene.manager.role.is_master and not scene.controller.asked
    assert scene.broker.gate.writable


async def test_a_slow_transfer_target_does_not_hold_up_producers_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.controller_mode.hand_over.DRAIN_MS", 30)
    scene = Scene(tmp_path, elected())
    scene.broker.send()
    started_ms = now_ms()
    with pytest.raises(HandOverError, match="not drained within 30 ms"):
        await scene.hand_over.give(3)
    assert now_ms() - started_ms < 1_000 and scene.broker.gate.writable
    assert scene.controller.asked == []


async def test_a_transfer_target_that_goes_away_ends_it(tmp_path: Path) -> None:
    scene = Scene(tmp_path, elected())
    scene.broker.send()
    giving = asyncio.create_task(scene.hand_over.give(3))
    await until(lambda: not scene.broker.gate.writable)
    del scene.links[3]
    with pytest.raises(HandOverError, match="left the SyncStateSet"):
        await giving


async def test_without_a_transfer_target_there_is_nothing_to_hand_over(tmp_path: Path) -> None:
    scene = Scene(tmp_path, elected(), links={})
    with pytest.raises(HandOverError, match="no other member"):
        await scene.hand_over.give()
    assert scene.broker.gate.writable


# -- the controller ----------------------------------------------------------------------------------------


async def test_a_master_that_drained_keeps_its_equals_in_the_set(bench: Bench) -> None:
    drained = {"master_broker_id": 1, "master_epoch": 1, "sync_state_set_epoch": 2}
    reply = await bench.elect(2, designate=True, equal_replicas="1;2;9", **drained)
    after = bench.broker_set
    assert (after.master_broker_id, after.master_epoch) == (2, 2)
    assert after.sync_state_set == {1, 2}, "not 3, which lacks something; not 9, which is nobody"
    assert isinstance(reply.body, wire.ElectMasterResponseBody) and reply.body.sync_state_set == [1, 2]


@pytest.mark.parametrize(
    "changed", [{"master_broker_id": 3}, {"master_epoch": 7}, {"sync_state_set_epoch": 1}]
)
async def test_the_word_of_another_term_counts_nothing(bench: Bench, changed: dict[str, int]) -> None:
    """A request that comes late, after the master has gone on, is void."""
    drained = {"master_broker_id": 1, "master_epoch": 1, "sync_state_set_epoch": 2} | changed
    with pytest.raises(CommandError):
        await bench.elect(2, designate=True, equal_replicas="1;2", **drained)
    assert bench.broker_set.master_broker_id == 1


@pytest.mark.parametrize("fully_replicated", ["1;\u00b2", "\u0661", "9" * 20, "9" * 5_000, "1;two", "-1"])
async def test_what_is_no_list_of_ids_is_an_invalid_request(bench: Bench, fully_replicated: str) -> None:
    drained = {"master_broker_id": 1, "master_epoch": 1, "sync_state_set_epoch": 2}
    with pytest.raises(CommandError, match="equalReplicas") as caught:
        await bench.elect(2, designate=True, equal_replicas=fully_replicated, **drained)
    assert caught.value.code == ResponseCode.CONTROLLER_INVALID_REQUEST
    assert bench.broker_set.master_broker_id == 1


async def test_an_operator_s_election_waits_for_the_master_to_hand_over(bench: Bench) -> None:
    await bench.heartbeat(1, hands_over=True)
    asking = asyncio.create_task(bench.elect(2, designate=True))
    await until(lambda: bool(bench.peers[1].frames), "the master is asked")
    (pushed,) = bench.peers[1].pushed()
    assert (pushed.code, pushed.ext_fields) == (
        wire.HAND_OVER.code,
        {"brokerName": GROUP, "masterEpoch": "1", "brokerId": "2"},
    )
    assert bench.broker_set.master_broker_id == 1 and not asking.done()
    drained = {"master_broker_id": 1, "master_epoch": 1, "sync_state_set_epoch": 2}
    await bench.elect(2, designate=True, equal_replicas="1;2;3", **drained)
    reply = await asking
    assert isinstance(reply.header, wire.MasterInfo)
    assert (reply.code, reply.header.master_broker_id, reply.header.master_epoch) == (0, 2, 2)
    assert bench.broker_set.sync_state_set == {1, 2, 3}


async def test_a_master_that_does_not_come_is_replaced_all_the_same(bench: Bench) -> None:
    await bench.heartbeat(1, hands_over=True)
    asking = asyncio.create_task(bench.elect(2, designate=True))
    await until(lambda: bool(bench.peers[1].frames))
    bench.now_ms += 2_001
    await bench.heartbeat(2)
    await asking
    assert (bench.broker_set.master_broker_id, bench.broker_set.sync_state_set) == (2, {2})


async def test_rocketmq_s_masters_are_not_asked(bench: Bench) -> None:
    await bench.elect(2, designate=True)
    assert bench.broker_set.master_broker_id == 2
    assert all(frame.code == 1008 for frame in bench.peers[1].pushed())


async def test_a_controller_that_does_not_lead_asks_nobody(bench: Bench) -> None:
    """The master hears every controller. It handed over, and the operator, who asked the leader next, got
    2011: the new master was there already. Found by the whole-group simulator."""
    await bench.heartbeat(1, hands_over=True)
    bench.replicator.active = False
    with pytest.raises(CommandError) as refused:
        await bench.elect(2, designate=True)
    assert refused.value.code == ResponseCode.CONTROLLER_NOT_LEADER
    assert not bench.peers[1].frames
