"""Import of an exported state into new controllers. Pure.

An exported state is the JSON of state_codec.py. It is imported as several events, because a log entry has a
size limit. Groups do not depend on each other, so an interrupted import is completed by repeating it. Only a
cluster without other groups accepts it: state that brokers already use is never overwritten.
"""

from collections.abc import Iterable, Iterator
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from keelmq.remoting.codes import ResponseCode
from namesrv.plugins.controller.core.events import ImportState
from namesrv.plugins.controller.core.history import ELECTIONS_MAX
from namesrv.plugins.controller.core.rules import Refused, full
from namesrv.plugins.controller.core.state import BROKER_ID_MAX, FIRST_BROKER_ID, BrokerSet, State
from namesrv.plugins.controller.core.state_codec import (
    SetRecord,
    broker_set_of,
    cleaned_of,
    cleaned_record,
    set_record,
)

Item = TypeVar("Item")

PART_BYTES_MAX = 64 * 1024
"""Approximate size of one event; the limit of the log is four times as much."""
GROUP_BYTES_MAX = 128 * 1024
PROBLEMS_SHOWN = 5
IMPORTED_EPOCH_MAX = 2**30
"""Half of all epochs: the other half is enough for one election a second during 34 years."""


def problems(incoming: State, group_bytes_max: int = GROUP_BYTES_MAX) -> Iterator[str]:
    """Yields each fault of an imported state as text. group_bytes_max: of one group, as JSON."""
    for name, broker_set in incoming.brokers.items():
        if not name or not broker_set.cluster_name:
            yield f"group {name!r} of cluster {broker_set.cluster_name!r}: both need a name"
        for problem in broker_set.problems():
            yield f"group {name}: {problem}"
        if max(broker_set.master_epoch, broker_set.sync_state_set_epoch) > IMPORTED_EPOCH_MAX:
            yield f"group {name}: an epoch above {IMPORTED_EPOCH_MAX}"
        if len(msgspec.json.encode(set_record(broker_set))) > group_bytes_max:
            yield f"group {name}: more than {group_bytes_max} bytes"
    for name, cleaned in incoming.cleaned.items():
        if name in incoming.brokers:
            yield f"group {name} both exists and is cleaned"
        if (
            cleaned.next_broker_id < FIRST_BROKER_ID
            or min(cleaned.master_epoch, cleaned.sync_state_set_epoch) < 0
        ):
            yield f"cleaned group {name}: a number below its minimum"
        if (
            cleaned.next_broker_id > BROKER_ID_MAX + 1
            or max(cleaned.master_epoch, cleaned.sync_state_set_epoch) > IMPORTED_EPOCH_MAX
        ):
            yield f"cleaned group {name}: a number above its maximum (epochs: {IMPORTED_EPOCH_MAX})"


def check_import(
    state: State, incoming: State, brokers_max: int, *, group_bytes_max: int = GROUP_BYTES_MAX
) -> Refused | None:
    """Refused: the state has faults, there are too many brokers, or this cluster has other groups already.
    group_bytes_max: of one group, as JSON; an event has no room for more."""
    if found := list(problems(incoming, group_bytes_max)):
        more = f" (and {len(found) - PROBLEMS_SHOWN} more)" if len(found) > PROBLEMS_SHOWN else ""
        return _refused("; ".join(found[:PROBLEMS_SHOWN]) + more)
    if incoming.size > brokers_max:
        return _refused(full(incoming, brokers_max))
    names = [each for each in (*state.brokers, *state.cleaned) if each not in incoming.brokers]
    others = sorted(set(names) - {each for each in state.cleaned if _same_floor(state, incoming, each)})
    if others:
        return _refused(f"this cluster has groups that the import does not have: {others[:PROBLEMS_SHOWN]}")
    for name in sorted(incoming.brokers.keys() & state.brokers.keys()):
        if not _is_import_of(state.brokers[name], incoming.brokers[name]):
            return _not_empty(name)
    return None


def import_events(incoming: State, brokers_max: int) -> Iterator[ImportState]:
    """Yields the events of an import. Groups come last, because elections may begin with the first group."""
    if incoming.settings:
        yield ImportState(settings=dict(incoming.settings))
    for elections in _chunks(incoming.elections[-ELECTIONS_MAX:]):
        yield ImportState(elections=elections)
    floors = (cleaned_record(name, incoming.cleaned[name]) for name in sorted(incoming.cleaned))
    for cleaned in _chunks(floors):
        yield ImportState(v=3, cleaned=cleaned, brokers_max=brokers_max)
    groups = (set_record(incoming.brokers[name]) for name in sorted(incoming.brokers))
    for brokers in _chunks(groups):
        yield ImportState(v=3, brokers=brokers, brokers_max=brokers_max)


def import_into(state: State, event: ImportState) -> State | Refused:
    """Returns the state with this part; for apply().

    Cleaned records are not checked: earlier releases logged some with too high epochs, and all members must
    come to the same state. No group can start with such epochs (rules.check_epochs).
    """
    for record in event.brokers:
        outcome = _import_group(state, record)
        if isinstance(outcome, Refused):
            return outcome
        state = outcome
    floors = {each.broker_name: cleaned_of(each) for each in event.cleaned}
    if taken := sorted(floors.keys() & state.brokers.keys()):
        return _not_empty(taken[0])
    settings = {**event.settings, **state.settings}
    known = set(state.elections)
    state = replace(state, cleaned={**floors, **state.cleaned})
    if not isinstance(event.brokers_max, msgspec.UnsetType) and state.size > event.brokers_max:
        return _refused(full(state, event.brokers_max))
    return replace(
        state,
        settings=settings,
        settings_version=state.settings_version + (settings != state.settings),
        elections=(*state.elections, *(each for each in event.elections if each not in known))[
            -ELECTIONS_MAX:
        ],
    )


def _import_group(state: State, record: SetRecord) -> State | Refused:
    group = broker_set_of(record)
    if found := list(group.problems()):
        return _refused(f"group {group.broker_name}: {found[0]}")
    here = state.brokers.get(group.broker_name)
    if here is not None:
        return state if _is_import_of(here, group) else _not_empty(group.broker_name)
    return _not_empty(group.broker_name) if group.broker_name in state.cleaned else state.with_set(group)


def _is_import_of(here: BrokerSet, incoming: BrokerSet) -> bool:
    """Returns whether an earlier attempt has imported the group, which may have changed since."""
    owners = {each: replica.check_code for each, replica in here.replicas.items()}
    return (
        here.cluster_name == incoming.cluster_name
        and all(owners.get(each) == replica.check_code for each, replica in incoming.replicas.items())
        and here.master_epoch >= incoming.master_epoch
        and here.sync_state_set_epoch >= incoming.sync_state_set_epoch
        and here.next_broker_id >= incoming.next_broker_id
    )


def _same_floor(state: State, incoming: State, name: str) -> bool:
    return incoming.cleaned.get(name) == state.cleaned[name]


def _chunks(items: Iterable[Item]) -> Iterator[tuple[Item, ...]]:
    """Yields the items in order, in parts of about PART_BYTES_MAX."""
    part: list[Item] = []
    part_bytes = 0
    for item in items:
        item_bytes = len(msgspec.json.encode(item))
        if part and part_bytes + item_bytes > PART_BYTES_MAX:
            yield tuple(part)
            part, part_bytes = [], 0
        part.append(item)
        part_bytes += item_bytes
    if part:
        yield tuple(part)


def _not_empty(name: str) -> Refused:
    return _refused(f"another group {name} exists already: import into an empty cluster")


def _refused(remark: str) -> Refused:
    return Refused(ResponseCode.CONTROLLER_INVALID_REQUEST, f"nothing is imported: {remark}")
