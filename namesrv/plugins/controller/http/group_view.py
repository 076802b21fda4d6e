"""GET /v1/groups: each broker group from the replicated state, the heartbeats and the routes of this process.

A reply is a snapshot of this process, and lists where the three sources disagree. On a controller that does
not lead (`active` false) the replicated state may be old; heartbeats and routes are always its own. Imported
only when HTTP is enabled: it needs FastAPI.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated

from fastapi import APIRouter, Path, Response
from pydantic import Field

from keelmq.remoting.codes import MASTER_ID
from keelmq.remoting.operation import Role, Wire
from keelmq.remoting.operations.route import BrokerData
from keelmq.remoting.servers.http_answers import (
    NOT_HERE,
    PAGE_MAX,
    REFUSED,
    After,
    Limit,
    NotFound,
    answer_of,
    as_json,
    page_of,
    refused_as_statuses,
    some_of,
)
from keelmq.remoting.servers.http_call import needs
from namesrv.plugins.controller.core.elect import LiveInfo
from namesrv.plugins.controller.core.state import BrokerSet
from namesrv.plugins.controller.election.liveness_view import Heartbeat
from namesrv.plugins.controller.http.sources import ControllerSources, GroupSources

GROUPS_AT_ONCE = 50


class ReplicaView(Wire):
    """A replica as the controllers registered it, and its last heartbeat to this controller."""

    broker_id: int
    address: str
    is_master: bool
    in_sync: bool
    alive: bool = Field(description="its heartbeats come, and its connection is open")
    heartbeat_age_ms: int | None = Field(
        default=None, description="null: none has arrived since this program started"
    )
    epoch: int | None = None
    max_offset: int | None = None
    confirm_offset: int | None = None
    lag_bytes: int | None = Field(
        default=None, description="maxOffset behind the master's, by the last heartbeats: up to a second old"
    )


class ElectionView(Wire):
    """The last election of a group."""

    ts: int | None = Field(default=None, description="wall-clock ms; null: not recorded")
    master_broker_id: int | None = Field(default=None, description="null: the master was cleared")
    master_epoch: int
    reason: str
    unclean: bool


class GroupView(Wire):
    """One broker group."""

    active: bool = Field(description="does this controller lead?")
    leader: str | None = Field(
        default=None, description="id of the leading controller, as far as this one knows"
    )
    cluster: str
    broker_name: str
    master_broker_id: int | None = None
    master_address: str | None = None
    master_epoch: int
    sync_state_set: list[int]
    sync_state_set_epoch: int
    min_in_sync_replicas: int | None = Field(
        default=None, description="of the master, by its heartbeats: with fewer in sync it refuses messages"
    )
    replicas: list[ReplicaView]
    routes: dict[int, str] | None = Field(
        default=None, description="id -> address here, 0 is the master; null: this program serves no routes"
    )
    disagreements: list[str] = Field(description="contradictions between the sources; empty: none")
    too_few_in_sync: bool = Field(
        default=False, description="the SyncStateSet is below minInSyncReplicas: messages are refused"
    )
    without_live_master: str | None = Field(
        default=None, description="why there is no live master; null: there is one"
    )
    last_election: ElectionView | None = None


class GroupsView(Wire):
    """A page of groups, by name."""

    active: bool
    leader: str | None = None
    groups: list[GroupView]
    next_after: str | None = Field(
        default=None, description="the `after` of the next page; null: this is the last"
    )


_REPLICA = ReplicaView(
    broker_id=1,
    address="10.0.0.1:10911",
    is_master=True,
    in_sync=True,
    alive=True,
    heartbeat_age_ms=420,
    epoch=3,
    max_offset=4096,
    confirm_offset=4096,
    lag_bytes=0,
)
_GROUP = GroupView(
    active=True,
    leader="n0",
    cluster="DefaultCluster",
    broker_name="broker-a",
    master_broker_id=1,
    master_address="10.0.0.1:10911",
    master_epoch=3,
    sync_state_set=[1, 2],
    sync_state_set_epoch=4,
    min_in_sync_replicas=2,
    replicas=[
        _REPLICA,
        _REPLICA.model_copy(update={"broker_id": 2, "address": "10.0.0.2:10911", "is_master": False}),
    ],
    routes={0: "10.0.0.1:10911", 2: "10.0.0.2:10911"},
    disagreements=[],
    last_election=ElectionView(
        ts=1767225600000, master_broker_id=1, master_epoch=3, reason="master 2 is not active", unclean=False
    ),
)

GroupName = Annotated[str, Path(description="a broker group", examples=["broker-a"])]


def groups_router(sources: GroupSources) -> APIRouter:
    """Returns the router of /v1/groups."""
    router = APIRouter(prefix="/v1", tags=["groups"])

    @router.get(
        "/groups",
        summary="every group, merged from all sources",
        responses={**answer_of(GroupsView(active=True, leader="n0", groups=[_GROUP])), **REFUSED},
        openapi_extra=needs(Role.READ),
    )
    @refused_as_statuses
    async def groups(after: After = "", limit: Limit = PAGE_MAX) -> Response:
        brokers = sources.controller.state.brokers
        names, next_after = page_of(brokers, after, limit)
        page = []
        for number, name in enumerate(names, start=1):
            page.append(view_of(sources, brokers[name]))
            if number % GROUPS_AT_ONCE == 0:
                await asyncio.sleep(0)  # heartbeats are handled in between; the state is a frozen value
        return as_json(
            GroupsView(
                active=sources.controller.replicator.is_active,
                leader=sources.controller.leader,
                groups=page,
                next_after=next_after,
            )
        )

    @router.get(
        "/groups/{brokerName}",
        summary="one group",
        responses={**answer_of(_GROUP), **NOT_HERE, **REFUSED},
        openapi_extra=needs(Role.READ),
    )
    @refused_as_statuses
    async def group(brokerName: GroupName) -> Response:
        brokers = sources.controller.state.brokers
        if brokerName not in brokers:
            raise no_such_group(sources.controller, brokerName)
        return as_json(view_of(sources, brokers[brokerName]))

    return router


def no_such_group(sources: ControllerSources, name: str) -> NotFound:
    """Returns the 404 error, with some of the known names."""
    known = some_of(sources.state.brokers)
    return NotFound(f"no group {name!r} is registered with the controllers {known}")


def view_of(sources: GroupSources, broker_set: BrokerSet) -> GroupView:
    """Returns the view of one group: the replicated state, its heartbeats and its routes."""
    routes, broker_name = sources.routes, broker_set.broker_name
    known = None if routes is None else routes.broker_data(broker_name)
    replicas, minimum = _replicas(sources, broker_set), _minimum(sources, broker_set)
    last = sources.controller.elections.tally.last(broker_set)
    return GroupView(
        active=sources.controller.replicator.is_active,
        leader=sources.controller.leader,
        cluster=broker_set.cluster_name,
        broker_name=broker_name,
        master_broker_id=broker_set.master_broker_id,
        master_address=broker_set.master_address,
        master_epoch=broker_set.master_epoch,
        sync_state_set=sorted(broker_set.sync_state_set),
        sync_state_set_epoch=broker_set.sync_state_set_epoch,
        min_in_sync_replicas=minimum,
        too_few_in_sync=minimum is not None and len(broker_set.sync_state_set) < minimum,
        replicas=replicas,
        routes=None if routes is None else dict(known.broker_addrs) if known is not None else {},
        disagreements=[
            *heartbeat_disagreements(broker_set, sources.liveness_view.view(broker_set).live),
            *([] if routes is None else route_disagreements(broker_set, replicas, known)),
        ],
        without_live_master=_without_live_master(sources, broker_set, replicas),
        last_election=None
        if last is None
        else ElectionView(
            ts=last.ts or None,
            master_broker_id=last.master_broker_id,
            master_epoch=last.master_epoch,
            reason=last.reason,
            unclean=last.unclean,
        ),
    )


def route_disagreements(
    broker_set: BrokerSet, replicas: Sequence[ReplicaView], routes: BrokerData | None
) -> Iterator[str]:
    """Yields differences between the replicated state and the routes of this process (None: it has none)."""
    alive = {replica.address: replica for replica in replicas if replica.alive}
    if routes is None:
        if alive:
            yield "the routes have no replica of this group, though some are alive"
        return
    if routes.cluster != broker_set.cluster_name:
        yield f"the routes say cluster {routes.cluster}, the controllers {broker_set.cluster_name}"
    yield from _master_disagreement(broker_set, alive, routes.broker_addrs.get(MASTER_ID))
    listed = set(routes.broker_addrs.values())
    for replica in replicas:
        if replica.alive and replica.address not in listed:
            yield f"broker {replica.broker_id} at {replica.address} is alive but not in the routes"
        elif not replica.alive and replica.address in listed - alive.keys():  # else it is another's now
            yield f"broker {replica.broker_id} at {replica.address} is in the routes but not alive"
    for broker_id, address in sorted(routes.broker_addrs.items()):
        known = broker_set.replicas.get(broker_id)
        if broker_id == MASTER_ID:
            continue
        if known is None:
            yield f"the routes have broker {broker_id} at {address}, an id that no replica has"
        elif known.address != address:
            yield f"the routes have broker {broker_id} at {address}, the controllers at {known.address}"


def _master_disagreement(
    broker_set: BrokerSet, alive: Mapping[str, ReplicaView], in_routes: str | None
) -> Iterator[str]:
    recorded = broker_set.master_address
    if in_routes == recorded:
        return
    ours = f"broker {broker_set.master_broker_id} at {recorded}"
    if recorded is None:
        yield f"the routes say that {in_routes} is master, the controllers have none"
    elif in_routes is None:
        if recorded in alive:
            yield f"the routes have no master, the controllers say {ours}"
    elif in_routes in alive and recorded in alive:
        yield f"two masters: the routes say {in_routes}, the controllers {ours}, and both are alive"
    else:
        yield f"the routes say that {in_routes} is master, the controllers {ours}"


def heartbeat_disagreements(broker_set: BrokerSet, heard: Mapping[int, LiveInfo]) -> Iterator[str]:
    """Yields differences between the replicated state and the heartbeats of live brokers."""
    for broker_id, live in sorted(heard.items()):
        address = broker_set.replicas[broker_id].address
        if live.broker_address != address:
            yield f"broker {broker_id} sends heartbeats as {live.broker_address}, registered as {address}"
        if live.epoch > broker_set.master_epoch:
            yield (
                f"broker {broker_id} has epoch {live.epoch}, above masterEpoch {broker_set.master_epoch}: "
                "was the controllers' store replaced?"
            )


def _replicas(sources: GroupSources, broker_set: BrokerSet) -> list[ReplicaView]:
    heard = {
        broker_id: _last_heard(sources, broker_set, broker_id) for broker_id in sorted(broker_set.replicas)
    }
    last = {broker_id: None if each is None else each.live for broker_id, each in heard.items()}
    master = broker_set.master_broker_id
    master_live = None if master is None else last[master]
    liveness, now = sources.liveness, sources.clock()
    views = []
    for broker_id, live in last.items():
        key = broker_set.key(broker_id)
        seen = liveness.last_seen(key)
        views.append(
            ReplicaView(
                broker_id=broker_id,
                address=broker_set.replicas[broker_id].address,
                is_master=broker_id == master,
                in_sync=broker_id in broker_set.sync_state_set,
                alive=liveness.is_active(key, now),
                heartbeat_age_ms=None if seen is None else now - seen.last_heartbeat_ms,
                epoch=None if live is None else live.epoch,
                max_offset=None if live is None else live.max_offset,
                confirm_offset=None if live is None else live.confirm_offset,
                lag_bytes=None
                if live is None or master_live is None
                else max(master_live.max_offset - live.max_offset, 0),
            )
        )
    return views


def _last_heard(sources: GroupSources, broker_set: BrokerSet, broker_id: int) -> Heartbeat | None:
    """Returns the last heartbeat, even of an inactive broker; None: there never was one."""
    info = sources.liveness.info(broker_set.key(broker_id))
    return info if isinstance(info, Heartbeat) else None


def _minimum(sources: GroupSources, broker_set: BrokerSet) -> int | None:
    master = broker_set.master_broker_id
    heard = None if master is None else _last_heard(sources, broker_set, master)
    return None if heard is None else heard.min_in_sync_replicas


def _without_live_master(
    sources: GroupSources, broker_set: BrokerSet, replicas: Sequence[ReplicaView]
) -> str | None:
    retry = sources.controller.elections.retries.get(broker_set.broker_name)
    if retry is not None:
        return retry.reason
    if any(replica.is_master and replica.alive for replica in replicas):
        return None
    master = broker_set.master_broker_id
    return "no master is recorded" if master is None else f"master {master} is not alive here"
