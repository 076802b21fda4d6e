"""Events: the entries of the log, decided by the active controller, each with the epochs that it expects.

Frozen, versioned JSON: {"type": "electMaster", "v": 1, ...}; sets are sorted lists. Events are the audit
trail as well: the proposer adds time and reason, so every controller reports the same. A new type, or a new
meaning of a field, gets a new EVENT_VERSION, which is the `v` of such events: a release that does not know
it stops at the first one. A field that apply() does not read has a default, so that older journals can be
read and older releases ignore it.
"""

import msgspec

from namesrv.plugins.controller.core.state import PastElection
from namesrv.plugins.controller.core.state_codec import CleanedRecord, SetRecord

EVENT_VERSION = 4


class Event(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag_field="type", rename="camel"):
    """Base of all events. ts: ms since 1970 when it was proposed; 0: the release did not record it. log_id:
    the log that it was proposed for (State.log_id); nothing is decided by it, so older releases ignore it."""

    v: int = 1
    ts: int = 0
    log_id: str | msgspec.UnsetType = msgspec.UNSET


class GroupEvent(Event, frozen=True, kw_only=True):
    """Changes one group, broker_name."""

    broker_name: str


class ApplyBrokerId(GroupEvent, tag="applyBrokerId", frozen=True, kw_only=True):
    """brokers_max (v 3): with this many brokers a new one is refused. It is the proposer's setting, because
    the configuration files may differ and all controllers must come to the same result."""

    cluster_name: str
    broker_id: int
    broker_address: str
    register_check_code: str
    brokers_max: int | msgspec.UnsetType = msgspec.UNSET


class UpdateBrokerAddress(GroupEvent, tag="updateBrokerAddress", frozen=True, kw_only=True):
    """expected_address: the address to replace, so that a delayed repeat does not restore an older one."""

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
    """new_master_broker_id None: no replica could be elected, the master is cleared.

    Fenced by both epochs: the SyncStateSet may have shrunk since the decision and exclude the winner.
    unclean: the winner may be outside the SyncStateSet, and acknowledged messages may be lost.
    kept (v 2): members that stay in the SyncStateSet, because a drained master has confirmed that they have
    all of its data. Without a new master (v 4): the members from before the last election, because that
    master has refused its term, and nothing was acknowledged in it. last_heartbeat_ts, detected_ts: when the
    lost master sent its last heartbeat and when it was found inactive, ms since 1970 by the clock of the
    proposer.
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
    """Raises the SyncStateSet epoch, so that requests of the master that are still on their way are refused.

    master_address: the new address of the master; None: it has not changed.
    """

    v: int = 2
    master_broker_id: int
    expected_master_epoch: int
    expected_sync_state_set_epoch: int
    master_address: str | None = None


class CleanBrokerData(GroupEvent, tag="cleanBrokerData", frozen=True, kw_only=True):
    """Removes these replicas; their ids are never used again. All replicas: removes the group.

    Fenced by both epochs: the decision depends on the master and the SyncStateSet.
    """

    v: int = 2
    broker_ids: tuple[int, ...]
    expected_master_epoch: int
    expected_sync_state_set_epoch: int
    reason: str = ""


class UpdateConfig(Event, tag="updateConfig", frozen=True, kw_only=True):
    """Sets settings of all controllers, overriding their files. Value None: reset to the file's value."""

    v: int = 2
    changes: dict[str, str | None]
    expected_settings_version: int


class ImportState(Event, tag="importState", frozen=True, kw_only=True):
    """A part of an exported state, small enough for one entry; its groups are new, or were imported before.
    brokers_max (v 3): the event is refused if there would be more brokers afterwards."""

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
    """The event is from a newer release: skipping it would make this member differ from the others."""


class _Version(msgspec.Struct, frozen=True):
    v: int


_decoder = msgspec.json.Decoder(AnyEvent)


def encode_event(event: AnyEvent) -> bytes:
    """Returns the event as JSON."""
    return msgspec.json.encode(event)


def decode_event(data: bytes) -> AnyEvent:
    """Parses an event. Raises EventVersionError, or msgspec.DecodeError: the bytes are not an event."""
    try:
        event: AnyEvent = _decoder.decode(data)
    except msgspec.ValidationError:  # perhaps an event of a newer version, with other fields
        _check_version(msgspec.json.decode(data, type=_Version).v)
        raise
    _check_version(event.v)
    return event


def _check_version(version: int) -> None:
    if version > EVENT_VERSION:
        raise EventVersionError(f"controller event version {version}; this program knows {EVENT_VERSION}")
