"""Asks the rest of a group before keelmq repair gives up bytes of a stopped member: is there another sound
copy, and which replica could have one? Changes nothing. A step that would give up the only copy is refused,
whatever the operator has confirmed.
"""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from broker.admin.repair import StoreReport
from broker.backup.mark_lost import LostRange, confirmed_offset, epochs_of, identity_of
from cli.command_line import Refused
from cli.mqadmin.shell import explain
from keelmq.client.admin import AdminClient, AdminError
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operations.store_copies import ReadLogResponse

BUSY_S, BUSY_TRIES = 0.2, 50
STEPS_MAX = 100_000
"""Requests for one range at one replica."""


@dataclass(frozen=True)
class RepairTarget:
    """Where to ask, and for which broker. controllers, namesrv: "host:port;..."; None: not given.
    broker_name, broker_id: of the stopped broker, for a store that does not contain them."""

    controllers: str | None
    namesrv: str | None
    broker_name: str | None
    broker_id: int | None


@dataclass(frozen=True)
class Member:
    """Another replica of the group."""

    broker_id: int
    address: str


@dataclass(frozen=True)
class Group:
    """The group without the stopped broker. master: None: there is none, or it is the stopped broker.
    is_last_in_sync: no other replica is in the SyncStateSet."""

    broker_name: str
    others: tuple[Member, ...]
    master: Member | None
    is_last_in_sync: bool


async def group_of(admin: AdminClient, store: StoreReport, target: RepairTarget) -> Group:
    """Returns the group of a stopped broker. Raises Refused: it cannot be known; AdminError: no server
    answers."""
    meta = identity_of(store.root)
    name = target.broker_name if meta is None else meta.broker_name
    own_id = target.broker_id if meta is None else meta.broker_id
    if name is None or own_id is None:
        raise Refused(
            f"{store.root} does not say to which broker it belongs: give --broker-name and --broker-id"
        )
    if target.controllers is not None:
        return await _by_controllers(admin, target.controllers, name, own_id)
    if store.epochs.entries:
        raise Refused("this store is of a group with controllers: give them with -a")
    if target.namesrv is None:
        raise Refused("give -a CONTROLLERS, or -n NAMESRV without controllers: the other replicas are asked")
    info = await admin.name_servers.cluster_info(target.namesrv)
    broker = info.broker_addr_table.get(name)
    found = {} if broker is None else broker.broker_addrs
    others = tuple(Member(each, found[each]) for each in sorted(found) if each != own_id)
    master = next((each for each in others if each.broker_id == 0), None)
    return Group(name, others, master, is_last_in_sync=master is None)


async def _by_controllers(admin: AdminClient, controllers: str, name: str, own_id: int) -> Group:
    table = (await admin.controllers.sync_state_sets(controllers, [name])).replicas_info_table
    if name not in table:
        raise Refused(f"the controllers know no group {name}")
    info = table[name]
    replicas = [*info.in_sync_replicas, *info.not_in_sync_replicas]
    others = tuple(
        Member(each.broker_id, each.broker_address) for each in replicas if each.broker_id != own_id
    )
    master = next((each for each in others if each.broker_id == info.master_broker_id), None)
    in_sync = {each.broker_id for each in info.in_sync_replicas}
    return Group(name, others, master, is_last_in_sync=in_sync <= {own_id})


# -- a copy of the whole log -------------------------------------------------------------------------------


async def check_whole_copy(admin: AdminClient, store: StoreReport, group: Group) -> str:
    """Returns which replica has a sound copy of what was confirmed here. Raises Refused: there is none."""
    if group.is_last_in_sync:
        raise Refused(
            f"this store is the only one of {group.broker_name} that is in sync: without it there is no "
            "copy of what it has"
        )
    master = group.master
    if master is None:
        raise Refused(
            f"no other replica of {group.broker_name} is master: a replica copies its master's log, so start "
            "the others, and see mqadmin getSyncStateSet"
        )
    confirmed = confirmed_offset(store.root)
    try:
        digest = await admin.store_copies.replica_digest(master.address)
        name, begin, end = digest.broker_name, digest.min_offset, digest.confirm_offset
        if digest.damaged:
            first = digest.damaged[0]
            raise Refused(
                f"the master {master.address} has a damaged log, at {first.start_offset}.."
                f"{first.end_offset}: it needs this copy. Start this broker"
            )
    except AdminError as error:
        if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise Refused(f"the master cannot be asked: {explain(error)}") from None
        info = await admin.brokers.runtime_info(master.address)  # RocketMQ's
        name = group.broker_name
        begin, end = int(info["commitLogMinOffset"]), int(info["commitLogMaxOffset"])
    if name != group.broker_name:
        raise Refused(f"{master.address} is of group {name}")
    if end < confirmed:
        raise Refused(
            f"the master {master.address} has the log up to {end}, and it was confirmed up to {confirmed} "
            "here"
        )
    return f"master {master.address} (id {master.broker_id}) has the log {begin}..{end}"


# -- sound copies of damaged ranges ------------------------------------------------------------------------


async def check_lost(
    admin: AdminClient, store: StoreReport, group: Group, ranges: Sequence[LostRange], gone: Collection[int]
) -> list[str]:
    """Returns a line for each replica: it has lost the ranges, too, or is gone. gone: ids of replicas that
    the operator says never come back. Raises Refused: a replica has a sound copy, or could have one."""
    told: list[str] = []
    for member in group.others:
        try:
            for lost in ranges:
                await _check_range(admin, store, group, member, lost)
        except AdminError as error:
            if member.broker_id in gone:
                told.append(f"replica {member.broker_id} ({member.address}) is gone, as --gone says")
                continue
            raise Refused(
                f"replica {member.broker_id} ({member.address}) could have a sound copy, and cannot be "
                f"asked: {explain(error)}. If it never comes back: --gone {member.broker_id}"
            ) from None
        told.append(f"replica {member.broker_id} ({member.address}) has no sound copy")
    return told


async def _check_range(
    admin: AdminClient, store: StoreReport, group: Group, member: Member, lost: LostRange
) -> None:
    at, ours = lost.start, epochs_of(store, lost).split(",")
    for _ in range(STEPS_MAX):
        if at >= lost.end:
            return
        answer = await _not_busy(admin, member.address, group.broker_name, at, lost.end)
        theirs = answer.epochs.split(",")
        if answer.start_offset < answer.end_offset and set(theirs) <= set(ours):
            raise Refused(
                f"replica {member.broker_id} ({member.address}) has a sound copy of {answer.start_offset}.."
                f"{answer.end_offset}: start this broker, and it heals itself from there"
            )
        at = max(answer.end_offset, at + 1)


async def _not_busy(
    admin: AdminClient, address: str, broker_name: str, start: int, end: int
) -> ReadLogResponse:
    for _ in range(BUSY_TRIES):
        try:
            return await admin.store_copies.check_log(address, broker_name, start, end)
        except AdminError as error:
            if error.code != ResponseCode.SYSTEM_BUSY:
                raise
        await asyncio.sleep(BUSY_S)
    return await admin.store_copies.check_log(address, broker_name, start, end)
