"""apply, elect, events, state and config of the controller, one rule at a time."""

from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from pydantic import ValidationError

from keelmq.remoting.codes import ResponseCode
from keelmq.runtime.config import ConfigError, load_config
from namesrv.plugins.controller.config import ControllerConfig, parse_peers
from namesrv.plugins.controller.core.apply import apply
from namesrv.plugins.controller.core.elect import LiveInfo, LiveView, Verdict, elect, elect_successor
from namesrv.plugins.controller.core.events import (
    EVENT_VERSION,
    AlterSyncStateSet,
    AnyEvent,
    ApplyBrokerId,
    ElectMaster,
    EventVersionError,
    UpdateBrokerAddress,
    decode_event,
    encode_event,
)
from namesrv.plugins.controller.core.reconcile import RETRY_MIN_MS, Retry, next_retry
from namesrv.plugins.controller.core.rules import Refused
from namesrv.plugins.controller.core.state import BrokerSet, Replica, State
from namesrv.plugins.controller.core.state_codec import StateVersionError, state_from_json, state_to_json
from namesrv.plugins.controller.machine import ControllerMachine

GROUP = "broker-a"

EVENTS: list[tuple[AnyEvent, bytes]] = [
    (
        ApplyBrokerId(
            broker_name=GROUP,
            cluster_name="C",
            broker_id=1,
            broker_address="a:1",
            register_check_code="a:1;9",
        ),
        b'{"type":"applyBrokerId","v":1,"ts":0,"brokerName":"broker-a","clusterName":"C","brokerId":1,'
        b'"brokerAddress":"a:1","registerCheckCode":"a:1;9"}',
    ),
    (
        UpdateBrokerAddress(broker_name=GROUP, broker_id=1, broker_address="b:1", expected_address="a:1"),
        b'{"type":"updateBrokerAddress","v":1,"ts":0,"brokerName":"broker-a","brokerId":1,'
        b'"brokerAddress":"b:1","expectedAddress":"a:1"}',
    ),
    (
        AlterSyncStateSet(
            broker_name=GROUP,
            master_broker_id=1,
            new_sync_state_set=(1, 2),
            expected_master_epoch=3,
            expected_sync_state_set_epoch=5,
            reason="lag",
            ts=1_700_000_000_000,
        ),
        b'{"type":"alterSyncStateSet","v":1,"ts":1700000000000,"brokerName":"broker-a","masterBrokerId":1,'
        b'"newSyncStateSet":[1,2],"expectedMasterEpoch":3,"expectedSyncStateSetEpoch":5,"reason":"lag"}',
    ),
    (
        ElectMaster(
            broker_name=GROUP,
            new_master_broker_id=None,
            expected_master_epoch=3,
            expected_sync_state_set_epoch=5,
            reason="why",
            detected_ts=1_700_000_000_000,
        ),
        b'{"type":"electMaster","v":1,"ts":0,"brokerName":"broker-a","newMasterBrokerId":null,'
        b'"expectedMasterEpoch":3,"expectedSyncStateSetEpoch":5,"unclean":false,"reason":"why",'
        b'"lastHeartbeatTs":null,"detectedTs":1700000000000}',
    ),
]

OLDER_EVENTS: list[tuple[bytes, AnyEvent]] = [
    (
        b'{"type":"updateBrokerAddress","v":1,"brokerName":"broker-a","brokerId":1,"brokerAddress":"b:1",'
        b'"expectedAddress":"a:1"}',
        UpdateBrokerAddress(broker_name=GROUP, broker_id=1, broker_address="b:1", expected_address="a:1"),
    ),
    (
        b'{"type":"alterSyncStateSet","v":1,"brokerName":"broker-a","masterBrokerId":1,'
        b'"newSyncStateSet":[1,2],"expectedMasterEpoch":3,"expectedSyncStateSetEpoch":5}',
        AlterSyncStateSet(
            broker_name=GROUP,
            master_broker_id=1,
            new_sync_state_set=(1, 2),
            expected_master_epoch=3,
            expected_sync_state_set_epoch=5,
        ),
    ),
    (
        b'{"type":"electMaster","v":1,"brokerName":"broker-a","newMasterBrokerId":null,'
        b'"expectedMasterEpoch":3,"expectedSyncStateSetEpoch":5,"unclean":false,"reason":"why"}',
        ElectMaster(
            broker_name=GROUP,
            new_master_broker_id=None,
            expected_master_epoch=3,
            expected_sync_state_set_epoch=5,
            reason="why",
        ),
    ),
]
"""As journals hold them from before events had a time; also what an older member still proposes."""


def group(master: int | None = 1, members: frozenset[int] = frozenset({1, 2})) -> BrokerSet:
    replicas = {each: Replica(f"h{each}:1", f"h{each}:1;0") for each in (1, 2, 300)}
    return BrokerSet("C", GROUP, 301, replicas, master, 3, members, 5)


def state(broker_set: BrokerSet | None = None) -> State:
    return State().with_set(broker_set or group())


@pytest.mark.parametrize(("event", "data"), EVENTS, ids=lambda each: type(each).__name__)
def test_events_on_the_log(event: AnyEvent, data: bytes) -> None:
    """The bytes are a format: a log written by one release is read by the next (pitfall 13)."""
    assert encode_event(event) == data
    assert decode_event(data) == event


@pytest.mark.parametrize(("data", "event"), OLDER_EVENTS, ids=lambda each: type(each).__name__)
def test_events_of_an_older_log(data: bytes, event: AnyEvent) -> None:
    assert decode_event(data) == event


def test_what_a_newer_program_adds_is_skipped() -> None:
    """A member that is upgraded first may lead the others: a field of the same version changes no meaning."""
    event, data = EVENTS[1]
    assert decode_event(data.replace(b'"v":1', b'"v":1,"mood":"fine"')) == event


def test_every_dated_event_has_its_place_in_the_log() -> None:
    """Refused ones too. Those of an older program have none: a member may know them from a snapshot only, and
    must number the next event as the others do."""
    dated = msgspec.structs.replace(elect_event(2), ts=1)
    elected = apply(state(), dated)
    assert elected.state.event_count == 1
    fenced = apply(elected.state, dated)
    assert fenced.refused is not None
    assert fenced.state.event_count == 2
    assert fenced.state.brokers == elected.state.brokers
    assert apply(fenced.state, elect_event(1)).state is fenced.state


def test_the_log_has_the_name_that_its_events_have() -> None:
    """In snapshots, too. An older release's snapshot has none: then the next event tells it."""
    event = msgspec.structs.replace(elect_event(2), ts=1, log_id="n0-17")
    assert decode_event(encode_event(event)) == event
    named = apply(state(), event).state
    assert named.log_id == "n0-17"
    unnamed = msgspec.structs.replace(elect_event(2), ts=1)
    assert apply(named, unnamed).state.log_id == "n0-17", "an older release leads for a while"
    data = state_to_json(named)
    assert state_from_json(data) == named
    older = data.replace(b',"log_id":"n0-17"', b"")
    assert older != data and state_from_json(older).log_id == ""
    assert apply(state_from_json(older), event).state.log_id == "n0-17"


def test_a_newer_event_stops_the_process_and_garbage_is_refused() -> None:
    machine = ControllerMachine()
    known = encode_event(elect_event(1))
    newer = b'"v":%d' % (EVENT_VERSION + 1)
    for event in (b'{"type":"dance",%b}' % newer, known.replace(b'"v":1', newer)):
        with pytest.raises(EventVersionError):
            machine.apply(event)
    for garbage in (b"", b"{}", b'{"v":1,"type":"dance"}', b"\xff", b'{"v":1,"type":"electMaster"}'):
        applied = machine.apply(garbage)
        assert applied.refused is not None
        assert applied.state is machine.state


def test_state_round_trip_and_version() -> None:
    data = state_to_json(replace(state(), event_count=7))
    assert state_from_json(data) == replace(state(), event_count=7)
    assert state_to_json(state_from_json(data)) == data
    with pytest.raises(StateVersionError):
        state_from_json(data.replace(b'"v":2', b'"v":3'))
    with pytest.raises(msgspec.DecodeError):
        state_from_json(b"{")


def test_a_state_of_a_program_that_did_not_count_events() -> None:
    data = (
        b'{"v":1,"brokers":[{"cluster_name":"C","broker_name":"g","next_broker_id":2,"replicas":'
        b'[{"id":1,"address":"a:1","check_code":"a:1;9"}],"master_broker_id":1,"master_epoch":1,'
        b'"sync_state_set":[1],"sync_state_set_epoch":1}]}'
    )
    restored = state_from_json(data)
    assert restored.event_count == 0
    assert restored.brokers["g"].master_broker_id == 1


def elect_event(
    winner: int | None, *, epoch: int = 3, set_epoch: int = 5, unclean: bool = False
) -> ElectMaster:
    return ElectMaster(
        broker_name=GROUP,
        new_master_broker_id=winner,
        expected_master_epoch=epoch,
        expected_sync_state_set_epoch=set_epoch,
        unclean=unclean,
    )


@pytest.mark.parametrize(
    ("event", "code"),
    [
        (elect_event(2, epoch=2), ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH),
        (elect_event(2, set_epoch=4), ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH),
        (elect_event(1), ResponseCode.CONTROLLER_MASTER_STILL_EXIST),
        (elect_event(300), ResponseCode.CONTROLLER_ELECT_MASTER_FAILED),
        (elect_event(7, unclean=True), ResponseCode.CONTROLLER_ELECT_MASTER_FAILED),
    ],
)
def test_a_fenced_election_changes_nothing(event: ElectMaster, code: int) -> None:
    applied = apply(state(), event)
    assert isinstance(applied.refused, Refused)
    assert applied.refused.code == code
    assert (applied.state, applied.is_changed) == (state(), False)


@pytest.mark.parametrize(
    ("members", "code"),
    [
        ((2,), ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED),  # without the master
        ((1, 7), ResponseCode.CONTROLLER_INVALID_REPLICAS),
    ],
)
def test_a_log_entry_with_a_wrong_sync_state_set_changes_nothing(members: tuple[int, ...], code: int) -> None:
    """decide() refuses such a set, too; a leader of another release may propose it."""
    event = AlterSyncStateSet(
        broker_name=GROUP,
        master_broker_id=1,
        new_sync_state_set=members,
        expected_master_epoch=3,
        expected_sync_state_set_epoch=5,
    )
    applied = apply(state(), event)
    assert isinstance(applied.refused, Refused) and applied.refused.code == code
    assert (applied.state, applied.is_changed) == (state(), False)


def test_an_election_keeps_only_the_winner_in_sync() -> None:
    after = apply(state(), elect_event(2)).after
    assert after is not None
    assert (after.master_broker_id, after.master_epoch) == (2, 4)
    assert (after.sync_state_set, after.sync_state_set_epoch) == ({2}, 6)
    unclean = apply(state(), elect_event(300, unclean=True)).after
    assert unclean is not None and unclean.master_broker_id == 300


def test_clearing_keeps_the_set_and_is_done_once() -> None:
    once = apply(state(), elect_event(None))
    assert once.after is not None
    assert (once.after.master_broker_id, once.after.master_epoch) == (None, 4)
    assert (once.after.sync_state_set, once.after.sync_state_set_epoch) == ({1, 2}, 5)
    again = apply(once.state, elect_event(None, epoch=4))
    assert (again.refused, again.after) == (None, once.after)


def test_an_older_address_does_not_come_back() -> None:
    move = UpdateBrokerAddress(
        broker_name=GROUP, broker_id=1, broker_address="new:1", expected_address="h1:1"
    )
    moved = apply(state(), move).state
    again = UpdateBrokerAddress(
        broker_name=GROUP, broker_id=1, broker_address="new:2", expected_address="new:1"
    )
    moved_again = apply(moved, again).state
    late = apply(moved_again, move)
    assert late.refused is not None
    assert late.state.brokers[GROUP].master_address == "new:2"


def live(**ranks: tuple[int, int, int]) -> LiveView:
    """live(b1=(epoch, max_offset, priority), ...)"""
    return LiveView(
        {
            int(name[1:]): LiveInfo("a:1", epoch, max_offset, 0, priority)
            for name, (epoch, max_offset, priority) in ranks.items()
        }
    )


@pytest.mark.parametrize(
    ("view", "winner"),
    [
        (live(b1=(3, 9, 0), b2=(2, 99, 0)), 1),  # epoch before offset
        (live(b1=(3, 0, 0), b2=(3, 3 * 2**30, 0)), 2),  # 25: farther apart than 2 GiB
        (live(b1=(3, 2**40, 0), b2=(3, 5, 0)), 1),
        (live(b1=(3, 9, 2), b2=(3, 9, 1)), 2),  # 19: the smaller priority
        (live(b1=(3, 9, 2**31 - 1), b2=(3, 9, -(2**31))), 2),
        (live(b1=(3, 9, 1), b2=(3, 9, 1)), 1),  # a tie: the smaller id
        (live(b2=(0, 0, 9), b300=(9, 9, 0)), 2),  # only members of the SyncStateSet
        (live(b300=(9, 9, 0)), None),
    ],
)
def test_election_order(view: LiveView, winner: int | None) -> None:
    election = elect(group(master=None), view)
    assert election.winner == winner
    assert election.verdict is (Verdict.NONE if winner is None else Verdict.ELECTED)


def test_a_master_that_may_live_stays() -> None:
    unheard_master = LiveView({2: LiveInfo("a:1", 9, 9)}, presumed=frozenset({1}))
    assert elect(group(), unheard_master).verdict is Verdict.KEEP
    assert elect(group(), unheard_master, preferred=2).winner == 2
    assert elect(group(), LiveView({2: LiveInfo("a:1")})).winner == 2


def test_an_unheard_member_is_waited_for_but_never_elected() -> None:
    view = LiveView({300: LiveInfo("a:1")}, presumed=frozenset({2}))
    assert elect(group(), view).verdict is Verdict.WAIT
    assert elect(group(), view, unclean=True).verdict is Verdict.WAIT
    election = elect(group(), LiveView({300: LiveInfo("a:1")}), unclean=True)
    assert (election.winner, election.unclean) == (300, True)


def test_who_has_begun_anew_does_not_win_before_the_others_are_heard() -> None:
    """A host with a controller and the master loses its power, and with it what the master had not written to
    its disk: it is back before the other members have redialled."""
    of, returned = group(members=frozenset({1, 2, 300})), live(b1=(3, 9, 0), b300=(3, 8, 0))
    unheard = LiveView(returned.live, presumed=frozenset({2}))
    assert elect_successor(of, unheard).verdict is Verdict.NONE, "2 may have more than 300"
    masterless = group(master=None, members=frozenset({1, 2, 300}))
    assert elect(masterless, unheard).verdict is Verdict.WAIT
    assert elect(masterless, unheard, unclean=True).verdict is Verdict.WAIT
    assert elect(masterless, unheard, preferred=1).winner == 1, "an operator has named it"
    assert elect(masterless, live(b1=(3, 9, 0), b2=(3, 11, 0))).winner == 2
    assert elect(masterless, returned).winner == 1, "the grace window is over"
    beginner = LiveView(returned.live, presumed=frozenset({1}))
    assert elect_successor(of, beginner).winner == 300, "the restarted one is not waited for"
    outsider = group(master=None, members=frozenset({1, 300}))
    assert elect(outsider, unheard).winner == 1, "2 is no member"


def test_a_member_that_may_have_died_with_the_master_is_waited_for() -> None:
    """Elected, it would be the whole SyncStateSet, and keep the living out until it is back."""
    everybody = frozenset({1, 2, 300})

    def doubting(view: LiveView, *doubtful: int) -> LiveView:
        return LiveView(view.live, doubtful=frozenset(doubtful))

    ahead = live(b2=(3, 10, 0), b300=(3, 9, 0))
    equal = live(b2=(3, 9, 0), b300=(3, 9, 5))
    of = group(members=everybody)
    assert elect(of, doubting(ahead, 2, 300)).verdict is Verdict.WAIT
    assert elect(of, doubting(ahead, 2)).verdict is Verdict.WAIT, "it may have what the other one lacks"
    assert elect(of, doubting(ahead, 300)).winner == 2
    assert elect(of, doubting(equal, 2)).winner == 300, "as good, and surely alive"
    assert elect(of, doubting(equal, 1, 2), preferred=2).winner == 2, "an operator has named it"
    assert elect(of, doubting(live(b1=(3, 9, 0)), 1)).verdict is Verdict.KEEP
    alone = group(members=frozenset({1}))
    assert elect(alone, doubting(equal, 2, 300), unclean=True).verdict is Verdict.WAIT
    assert elect(alone, doubting(equal, 2), unclean=True).winner == 300
    assert elect_successor(of, doubting(ahead, 2, 300)).winner == 2, "the master itself has lost something"


def test_back_off_is_bounded() -> None:
    retry: Retry | None = None
    delays = []
    for _ in range(60):
        retry = next_retry(retry, now_ms=1_000, reason="", retry_max_ms=5_000)
        delays.append(retry.due_ms - 1_000)
    assert delays[:4] == [RETRY_MIN_MS, 200, 400, 800]
    assert delays[-1] == 5_000
    assert retry is not None and (retry.attempts, retry.since_ms) == (60, 1_000)


def load(tmp_path: Path, **values: str) -> ControllerConfig:
    settings = {
        "controllerDLegerGroup": "g",
        "controllerDLegerPeers": "n0-127.0.0.1:9878",
        "controllerDLegerSelfId": "n0",
        **values,
    }
    (config,) = load_config(ControllerConfig, path=None, environ={}, overrides=settings)
    assert isinstance(config, ControllerConfig)
    return config


def test_peers() -> None:
    assert parse_peers("k", "n0-my-pod-0.svc:9878; n1-[::1]:9868;") == {
        "n0": ("my-pod-0.svc", 9878),
        "n1": ("::1", 9868),
    }
    for wrong in ("", "n0", "n0-h", "n0-h:0", "n0-h:99999", "n0-h:1;n0-i:1", "n0-h:1;n1-h:1"):
        with pytest.raises(ValueError, match="k: "):
            parse_peers("k", wrong)


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"controllerDLegerSelfId": "n7"}, "not one of the ids"),
        ({"controllerDLegerPeers": "n0-10.0.0.1:9878"}, "shared key"),
        ({"controllerDLegerPeers": "n0-10.0.0.1:9878", "controllerRaftInsecure": "true"}, "shared key"),
        ({"controllerDLegerPeers": "n0-127.0.0.1:1;n1-127.0.0.1:2"}, "controllerRaftInsecure=true"),
        ({"controllerRaftPeers": "n1-127.0.0.1:1"}, "same ids"),
        ({"controllerDLegerPeers": "n0"}, "id-host:port"),
        ({"controllerRaftSecret": "x" * 32, "controllerRaftSecretFile": "f"}, "not both"),
        (
            {"controllerRaftTlsCertPath": "c", "controllerRaftTlsKeyPath": "k"},
            "TrustCertPath must be set as well",
        ),
        (
            {
                "controllerRaftTlsCertPath": "c",
                "controllerRaftTlsKeyPath": "k",
                "controllerRaftTlsTrustCertPath": "t",
                "controllerRaftSecretFile": "f",
            },
            "not both",
        ),
    ],
)
def test_config_errors_are_one_clear_line(tmp_path: Path, values: dict[str, str], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, **values)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_config_raft_addresses_and_secret(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"0123456789abcdef0123456789abcdef\n")
    config = load(
        tmp_path,
        controllerDLegerPeers="n0-10.0.0.1:9878;n1-10.0.0.2:9878",
        controllerRaftSecretFile=str(secret),
    )
    assert config.raft_addresses == {"n0": ("10.0.0.1", 10878), "n1": ("10.0.0.2", 10878)}
    assert config.read_secret() == b"0123456789abcdef0123456789abcdef"
    secret.write_bytes(b"short")
    with pytest.raises(ConfigError, match="32 are needed"):
        config.read_secret()
    secret.unlink()
    with pytest.raises(ConfigError, match="No such file"):
        config.read_secret()
    assert config.read_certificates() is None
    with pytest.raises(ValidationError):
        ControllerConfig.model_validate({})
