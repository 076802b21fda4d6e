"""GET /v1/controller: leader, members, raft log, and detected problems.

Imported only when HTTP is enabled: it needs FastAPI.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from fastapi import APIRouter, Response
from pydantic import Field

from keelmq.remoting.operation import Role, Wire
from keelmq.remoting.servers.http_answers import REFUSED, answer_of, as_json, refused_as_statuses
from keelmq.remoting.servers.http_call import needs
from namesrv.plugins.controller.http.sources import ControllerSources


class MemberView(Wire):
    """One controller of the group."""

    id: str
    raft_address: str
    request_address: str | None = Field(
        default=None, description="null: it is neither in this controller's file nor from an addController"
    )
    is_self: bool
    is_leader: bool
    connected: bool = Field(description="there is a link between it and this one")


class ControllerView(Wire):
    """One controller and its group, from its own point of view."""

    group: str
    self_id: str
    active: bool = Field(description="it leads, and decides requests")
    leader: str | None = Field(default=None, description="as far as this one knows; null: no leader is known")
    leader_address: str | None = Field(default=None, description="for requests")
    leader_http_address: str | None = Field(default=None, description="as the leader itself reports it")
    role: str | None = Field(
        default=None, description="leader, follower, learner (gets the log, has no vote) or removed"
    )
    standing: str | None = Field(
        default=None,
        description="member; new, promised or rejoining: its directory was empty, it may not vote",
    )
    waits_for: list[str] = Field(default=[], description="members that must connect before it may vote")
    term: int | None = None
    commit_index: int | None = Field(default=None, description="entries that a majority has")
    last_applied: int | None = Field(default=None, description="entries applied here")
    log_entries: int | None = Field(default=None, description="entries since the last snapshot")
    log_bytes: int | None = None
    snapshot_bytes: int | None = None
    waiting: int | None = Field(default=None, description="proposals whose outcome is awaited")
    members: list[MemberView]
    members_since_index: int | None = Field(
        default=None, description="index of the log entry since which these are the members"
    )
    groups: int = Field(description="broker groups in the replicated state")
    events: int = Field(description="number of applied events")
    groups_without_live_master: int = Field(description="only the leader counts them")
    problems: list[str] = Field(description="detected problems; empty: none")


_EXAMPLE = ControllerView(
    group="keelmq",
    self_id="n1",
    active=False,
    leader="n0",
    leader_address="10.0.0.1:9878",
    leader_http_address="10.0.0.1:19876",
    role="follower",
    standing="member",
    term=4,
    commit_index=128,
    last_applied=128,
    log_entries=128,
    log_bytes=20480,
    snapshot_bytes=0,
    waiting=0,
    members=[
        MemberView(
            id="n0",
            raft_address="10.0.0.1:10878",
            request_address="10.0.0.1:9878",
            is_self=False,
            is_leader=True,
            connected=True,
        ),
        MemberView(
            id="n1",
            raft_address="10.0.0.2:10878",
            request_address="10.0.0.2:9878",
            is_self=True,
            is_leader=False,
            connected=True,
        ),
    ],
    members_since_index=0,
    groups=3,
    events=96,
    groups_without_live_master=0,
    problems=[],
)


def controller_router(sources: ControllerSources) -> APIRouter:
    """Returns the router of GET /v1/controller."""
    router = APIRouter(prefix="/v1", tags=["controller"])

    @router.get(
        "/controller",
        summary="this controller, its group and its log",
        responses={**answer_of(_EXAMPLE), **REFUSED},
        openapi_extra=needs(Role.READ),
    )
    @refused_as_statuses
    async def controller() -> Response:
        return as_json(view_of(sources, await sources.leader_http_address()))

    return router


def view_of(sources: ControllerSources, leader_http_address: str | None) -> ControllerView:
    """Returns the view of this controller. `leader_http_address` None: unknown."""
    status, leader = sources.replicator.status(), sources.leader
    members = list(_members(sources, status, leader))
    return ControllerView(
        group=sources.config.controller_d_leger_group,
        self_id=sources.replicator.self_id,
        active=sources.replicator.is_active,
        leader=leader,
        leader_address=sources.request_address(leader),
        leader_http_address=leader_http_address,
        role=status.get("role"),
        standing=status.get("standing"),
        waits_for=status.get("waitsFor", []),
        term=status.get("term"),
        commit_index=status.get("commitIndex"),
        last_applied=status.get("lastApplied"),
        log_entries=status.get("logEntries"),
        log_bytes=status.get("journalBytes"),
        snapshot_bytes=status.get("snapshotBytes"),
        waiting=status.get("waiting"),
        members=members,
        members_since_index=status.get("membersSinceIndex"),
        groups=len(sources.state.brokers),
        events=sources.state.event_count,
        groups_without_live_master=len(sources.elections.retries),
        problems=list(_problems(sources, status, leader, members)),
    )


def _members(
    sources: ControllerSources, status: Mapping[str, Any], leader: str | None
) -> Iterator[MemberView]:
    self_id, connected = sources.replicator.self_id, status.get("connected", [])
    for member, raft_address in sorted(status.get("members", {}).items()):
        yield MemberView(
            id=member,
            raft_address=raft_address,
            request_address=sources.request_address(member),
            is_self=member == self_id,
            is_leader=member == leader,
            connected=member == self_id or member in connected,
        )


def _problems(
    sources: ControllerSources, status: Mapping[str, Any], leader: str | None, members: list[MemberView]
) -> Iterator[str]:
    if leader is None:
        yield "no controller leads: is a majority of them up and connected?"
    for member in members:
        if not member.connected:
            yield f"member {member.id} at {member.raft_address} is not connected to this one"
    yield from _old_file(sources, {member.id for member in members})
    if status.get("standing") not in (None, "member"):
        yield f"this controller has no vote yet ({status['standing']})"
    if status.get("role") == "removed":
        yield "this controller is no longer a member of the group: stop it, or add it again"
    if status.get("otherMemberLists"):
        yield f"members with another list of members: {', '.join(status['otherMemberLists'])}"
    if "certificateFault" in status:
        yield f"the raft port's newer certificate is not in use: {status['certificateFault']}"
    if sources.settings.fault is not None:
        yield f"settings not in force here: {sources.settings.fault}"
    for name, retry in sorted(sources.elections.retries.items())[:PROBLEM_GROUPS]:
        yield f"{name} has no live master: {retry.reason}"


def _old_file(sources: ControllerSources, members: set[str]) -> Iterator[str]:
    """Yields differences between this controller's file and the members: a new member's file may be a
    copy."""
    key, listed = "controllerDLegerPeers of this controller", sources.config.request_addresses.keys()
    if members and (lacking := sorted(members - listed)):
        yield f"{key} does not name member {', '.join(lacking)}: add it before the next restart"
    if members and (gone := sorted(listed - members - {sources.replicator.self_id})):
        yield f"{key} names {', '.join(gone)}, which is not a member: remove it before the next restart"


PROBLEM_GROUPS = 10
"""Maximum number of groups that are named; groupsWithoutLiveMaster counts all of them."""
