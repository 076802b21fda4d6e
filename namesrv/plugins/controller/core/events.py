"""What the log holds: facts decided by the active controller, each with the epochs that it expects to find.

Frozen, versioned JSON: {"type": "electMaster", "v": 1, ...}; sets are sorted lists. Events are also the audit
trail, so they say when and why: the proposer writes that into them, so that every controller tells the same.
A new type or a new meaning of a field raises EVENT_VERSION and is that event's `v`: a program that does not
know it stops, while it goes on with the events that it knows. A field that apply() does not read comes with a
default, so that older journals stay readable and older programs skip it.
"""

import msgspec

from namesrv.plugins.controller.core.state import PastElection
from namesrv.plugins.controller.core.state_codec import CleanedRecord, SetRecord

EVENT_VERSION = 3


class Event(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag_field="type", rename="camel"):
    """Base of all events. ts: wall-clock ms at which it was proposed; 0: by a program that did not write it
    down."""

    v: int = 1
    ts: int = 0


class GroupEvent(Event, frozen=True, kw_only=True):
    """broker_name is the group that it changes; it changes no other."""

    broker_name: str


class ApplyBrokerId(GroupEvent, tag="applyBrokerId", frozen=True, kw_only=True):
    """brokers_max (v 3): a new broker is refused if there are so many already. It is the proposer's setting:
    files differ, and all controllers must come to the same end."""

    cluster_name: str
    broker_id: int
    broker_address: str
    register_check_code: str
    brokers_max: int | msgspec.UnsetType = msgspec.UNSET


class UpdateBrokerAddress(GroupEvent, tag="updateBrokerAddress", frozen=True, kw_only=True):
    """expected_address: the address that is replaced, so that a late repeat brings no older one back."""

    broker_id: int
    broker_address: str
    expected_address: str


class AlterSyncStateSet(GroupEvent, tag="alterSyncStateSet", frozen=True, kw_only=True):
    """reason: "caught_up", "gone" or "lag"."""

    master_broker_id: int
    new_sync_state_set: tuple[int, ...]
    expected_master_epoch: int
    expected_sync_state_set_epoch: int
    reason: str = ""


class ElectMaster(GroupEvent, tag="electMaster", frozen=True, kw_only=True):
    """new_master_broker_id None: nobody could be elected, the master is cleared.

    Fenced by both epochs: a SyncStateSet that shrank since the decision may exclude the chosen one.
    unclean: the chosen one may be outside the SyncStateSet, and acknowledged messages may be lost.
    kept (v 2): members that stay in the set, because a master that drained says that they have everything.
    With a lost master, wall-clock ms of the proposer: when it was last heard, when it was found inactive.
    """

    new_master_broker_id: int | None
    expected_master_epoch: int
    expected_sync_state_set_epoch: int
    unclean: bool = False
    kept: tuple[int, ...] | msgspec.UnsetType = msgspec.UNSET
    reason: str = ""
    last_heartbeat_ts: int | None = None
    detected_ts: int | None = None


class FenceSyncStateSet(GroupEvent, tag="fenceSyncStateSet", frozen=True, kw_only=True):
    """The set stays and its epoch grows: what the master asked for before, and may still arrive, is void.

    master_address: not None, if the master that asks has moved there.
    """

    v: int = 2
    master_broker_id: int
    expected_master_epoch: int
    expected_sync_state_set_epoch: int
    master_address: str | None = None


class CleanBrokerData(GroupEvent, tag="cleanBrokerData", frozen=True, kw_only=True):
    """These replicas are forgotten, and their ids never used again; all of them: the group is.

    Fenced by both epochs: who is master, or in the set, was looked at when this was decided.
    """

    v: int = 2
    broker_ids: tuple[int, ...]
    expected_master_epoch: int
    expected_sync_state_set_epoch: int
    reason: str = ""


class UpdateConfig(Event, tag="updateConfig", frozen=True, kw_only=True):
    """Settings of all controllers, over their files; None: as the file says, again."""

    v: int = 2
    changes: dict[str, str | None]
    expected_settings_version: int


class ImportState(Event, tag="importState", frozen=True, kw_only=True):
    """A part of an exported state, small enough for the log; the groups in it are new, or the same.
    brokers_max (v 3): refused if there were more brokers afterwards."""

    v: int = 2
    brokers: tuple[SetRecord, ...] = ()
    cleaned: tuple[CleanedRecord, ...] = ()
    settings: dict[str, str] = {}
    elections: tuple[PastElection, ...] = ()
    brokers_max: int | msgspec.UnsetType = msgspec.UNSET


AnyGroupEvent = (
    ApplyBrokerId
    | UpdateBrokerAddress
    | AlterSyncStateSet
    | ElectMaster
    | FenceSyncStateSet
    | CleanBrokerData
)
AnyEvent = AnyGroupEvent | UpdateConfig | ImportState


class EventVersionError(Exception):
    """Written by a newer program: skipping it would make this member differ from the others."""


class _Version(msgspec.Struct, frozen=True):
    v: int


_decoder = msgspec.json.Decoder(AnyEvent)


def encode_event(event: AnyEvent) -> bytes:
    return msgspec.json.encode(event)


def decode_event(data: bytes) -> AnyEvent:
    """Raises EventVersionError, or msgspec.DecodeError for bytes that are no event of ours."""
    try:
        event: AnyEvent = _decoder.decode(data)
    except msgspec.ValidationError:  # of a newer version, perhaps: then its shape is not ours to judge
        _check_version(msgspec.json.decode(data, type=_Version).v)
        raise
    _check_version(event.v)
    return event


def _check_version(version: int) -> None:
    if version > EVENT_VERSION:
        raise EventVersionError(f"controller event version {version}; this program knows {EVENT_VERSION}")
