"""Elections over HTTP: past elections with their reasons, and an election on demand with its explanation.

Past elections are replicated: every controller has them. Only the leader can elect a master or explain an
election; other controllers refuse and name the leader. Imported only when HTTP is enabled: it needs FastAPI.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Annotated

import msgspec
from fastapi import APIRouter, Body, Query, Request, Response
from pydantic import ConfigDict, Field
from pydantic.alias_generators import to_camel

from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.command import BadRequest
from keelmq.remoting.operation import CommandError, OperationTable, Reply, Role, UnknownOutcome, Wire
from keelmq.remoting.operations import controller as wire
from keelmq.remoting.servers.http import ask
from keelmq.remoting.servers.http_access import Forbidden
from keelmq.remoting.servers.http_answers import (
    BODY_REFUSED,
    NOT_HERE,
    PROBLEM_JSON,
    REFUSED,
    Answers,
    Limit,
    answer_of,
    as_json,
    refused_as_statuses,
)
from keelmq.remoting.servers.http_call import needs
from keelmq.runtime.clock import wall_ms
from namesrv.plugins.controller.core.decide import CONTROLLER_ITSELF
from namesrv.plugins.controller.core.history import numbered_elections, past_elections
from namesrv.plugins.controller.core.state import State
from namesrv.plugins.controller.http.group_view import GroupName, no_such_group
from namesrv.plugins.controller.http.sources import ControllerSources

PAGE = 100
MASTER_STAYS = int(ResponseCode.CONTROLLER_MASTER_STILL_EXIST)


class ElectionRecord(wire.PastElection):
    """An election that changed the master; newMasterBrokerId null: it was cleared."""

    age_ms: int | None = Field(
        default=None, description="since it was proposed, by this clock; null: the time was not recorded"
    )


class ElectionsView(Wire):
    """A page of past elections, newest first: the last 1,000, of one group the last 100."""

    active: bool
    leader: str | None = None
    elections: list[ElectionRecord]
    next_before: int | None = Field(
        default=None, description="the `before` of the next page; null: this is the last"
    )


class ElectRequest(Wire):
    """Unknown fields are refused: a misspelled dryRun must not elect."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True, extra="forbid")

    broker_id: int | None = Field(
        default=None, ge=1, description="the replica to elect; null: the one that the controller prefers"
    )
    designate: bool = Field(default=False, description="even if the current master is alive; needs brokerId")
    dry_run: bool = Field(
        default=False, description="change nothing: which replica would be elected, and why"
    )


class ElectionOutcome(Wire):
    """The master after the election, or after a dry run the one that would be elected.

    `explain`: the verdict, then a line for each replica.
    """

    dry_run: bool
    changed: bool = Field(description="dry run: the master would change")
    code: int = Field(
        description="0; 2011: the current master stays; dry run: the code that 1002 would return"
    )
    remark: str | None = None
    master_broker_id: int | None = None
    master_address: str | None = None
    master_epoch: int | None = None
    sync_state_set_epoch: int | None = None
    sync_state_set: list[int]
    explain: list[str]
    candidates: list[wire.ElectionCandidate]


class NotElected(Wire):
    """409. Of a controller that does not lead (code 2007): where the leader is."""

    code: int
    title: str = "Conflict"
    status: int = 409
    detail: str
    explain: list[str] = Field(default=[], description="why; empty if no election was held")
    leader: str | None = None
    leader_address: str | None = Field(default=None, description="for requests")
    leader_http_address: str | None = Field(default=None, description="as the leader itself reports it")


_RECORD = ElectionRecord(
    event_id=12,
    ts=1767225600000,
    cluster_name="DefaultCluster",
    broker_name="broker-a",
    old_master_broker_id=1,
    new_master_broker_id=2,
    master_epoch=4,
    sync_state_set_epoch=5,
    reason="master 1 is not active",
    last_heartbeat_ts=1767225599200,
    detected_ts=1767225599990,
    age_ms=86_000,
)
_OUTCOME = ElectionOutcome(
    dry_run=True,
    changed=True,
    code=0,
    remark="designated",
    master_broker_id=1,
    master_address="10.0.0.1:10911",
    master_epoch=3,
    sync_state_set_epoch=4,
    sync_state_set=[1, 2],
    explain=["elected: designated", "broker 2 at 10.0.0.2:10911: wins: designated"],
    candidates=[
        wire.ElectionCandidate(
            broker_id=2,
            broker_address="10.0.0.2:10911",
            in_sync=True,
            alive=True,
            wins=True,
            why="wins: designated",
        )
    ],
)
_REQUEST = {"brokerId": 2, "designate": True, "dryRun": True}
_NOT_ELECTED: Answers = {
    409: {"model": NotElected, "description": "Refused; or this controller does not lead"}
}

Group = Annotated[str, Query(description="only of this group; empty: of all", examples=["broker-a"])]
Since = Annotated[int, Query(ge=0, description="wall-clock ms: only elections from then on")]
Before = Annotated[
    int | None, Query(ge=0, description="only those before this one: `nextBefore` of the page before")
]


def elections_router(sources: ControllerSources, table: OperationTable) -> APIRouter:
    """Returns the router of past elections, and of an election on demand, which `table` executes."""
    router = APIRouter(prefix="/v1", tags=["elections"])
    example = answer_of(ElectionsView(active=True, leader="n0", elections=[_RECORD]))

    @router.get(
        "/elections",
        summary="past elections, newest first",
        responses={**example, **REFUSED},
        openapi_extra=needs(Role.READ),
    )
    @refused_as_statuses
    async def elections(
        group: Group = "", since: Since = 0, before: Before = None, limit: Limit = PAGE
    ) -> Response:
        return as_json(_page(sources, group, since, before, limit))

    @router.get(
        "/groups/{brokerName}/elections",
        summary="past elections of one group, newest first",
        responses={**example, **NOT_HERE, **REFUSED},
        openapi_extra=needs(Role.READ),
    )
    @refused_as_statuses
    async def group_elections(
        brokerName: GroupName, since: Since = 0, before: Before = None, limit: Limit = PAGE
    ) -> Response:
        if not _is_known(sources.state, brokerName):
            raise no_such_group(sources, brokerName)
        return as_json(_page(sources, brokerName, since, before, limit))

    @router.post(
        "/groups/{brokerName}/elect",
        summary="elects a master, or explains what it would do (dryRun)",
        responses={**answer_of(_OUTCOME), **BODY_REFUSED, **_NOT_ELECTED},
        openapi_extra=needs(Role.ADMINISTER, code=wire.ELECT_MASTER.code),
    )
    @refused_as_statuses
    async def elect(
        http: Request, brokerName: GroupName, request: Annotated[ElectRequest, Body(examples=[_REQUEST])]
    ) -> Response:
        if request.designate and request.broker_id is None:
            raise BadRequest("designate needs brokerId: the replica that must become master")
        explain: list[str] = []
        try:
            return as_json(await _elected(http, table, brokerName, request, explain))
        except (UnknownOutcome, Forbidden, BadRequest):
            raise
        except CommandError as error:
            return await _not_elected(sources, error, explain)

    return router


def _page(
    sources: ControllerSources, group: str, since: int, before: int | None, limit: int
) -> ElectionsView:
    now = wall_ms()
    found = (
        (number, each)
        for number, each in numbered_elections(sources.state)
        if group in ("", each.broker_name) and each.ts >= since and (before is None or number < before)
    )
    page = list(islice(found, limit + 1))
    records = [
        ElectionRecord(**msgspec.structs.asdict(each), age_ms=now - each.ts if each.ts else None)
        for _, each in page[:limit]
    ]
    return ElectionsView(
        active=sources.replicator.is_active,
        leader=sources.leader,
        elections=records,
        next_before=page[limit - 1][0] if len(page) > limit else None,
    )


def _is_known(state: State, name: str) -> bool:
    """Returns whether the group exists, was cleaned, or has past elections."""
    return name in state.brokers or name in state.cleaned or any(past_elections(state, name))


async def _elected(
    http: Request, table: OperationTable, name: str, request: ElectRequest, explain: list[str]
) -> ElectionOutcome:
    """Elects, or explains. Fills `explain` first, so that a refusal has it as well. Raises CommandError."""
    header = wire.ElectMasterRequest(
        broker_name=name,
        broker_id=CONTROLLER_ITSELF if request.broker_id is None else request.broker_id,
        designate_elect=request.designate,
    )
    reply = await ask(http, table, wire.EXPLAIN_ELECTION, header)
    assert isinstance(reply.body, wire.ElectMasterResponseBody) and reply.body.explanation is not None
    explanation = reply.body.explanation
    explain += lines_of(explanation)
    code, changed, remark = explanation.code, explanation.is_change, explanation.remark or None
    if not request.dry_run:
        reply = await ask(http, table, wire.ELECT_MASTER, header)
        if reply.code not in (ResponseCode.SUCCESS, MASTER_STAYS):
            raise CommandError(reply.code, reply.remark or "")
        code, changed, remark = reply.code, reply.code == ResponseCode.SUCCESS, reply.remark
    return _outcome(reply, request.dry_run, changed, code, remark, explain, explanation.candidates)


def _outcome(
    reply: Reply,
    dry_run: bool,
    changed: bool,
    code: int,
    remark: str | None,
    explain: list[str],
    candidates: Sequence[wire.ElectionCandidate],
) -> ElectionOutcome:
    assert isinstance(reply.header, wire.MasterInfo)
    assert isinstance(reply.body, wire.ElectMasterResponseBody)
    return ElectionOutcome(
        dry_run=dry_run,
        changed=changed,
        code=code,
        remark=remark,
        **reply.header.model_dump(),
        sync_state_set=reply.body.sync_state_set,
        explain=explain,
        candidates=list(candidates),
    )


def lines_of(explanation: wire.ElectionExplanation) -> Iterator[str]:
    """Yields the explanation as text: the verdict, then a line for each replica."""
    yield f"{explanation.verdict}: {explanation.remark}" if explanation.remark else explanation.verdict
    for each in explanation.candidates:
        yield f"broker {each.broker_id} at {each.broker_address}: {each.why}"


async def _not_elected(sources: ControllerSources, error: CommandError, explain: list[str]) -> Response:
    refused = NotElected(code=error.code, detail=error.remark, explain=explain)
    if error.code == ResponseCode.CONTROLLER_NOT_LEADER:
        leader, http_address = sources.leader, await sources.leader_http_address()
        address = sources.request_address(leader)
        where = http_address or address
        help_ = f"ask {leader} at {where}" if where else "no controller is known to lead, repeat later"
        refused = NotElected(
            code=error.code,
            detail=f"controller {sources.replicator.self_id} does not lead: {help_}",
            leader=leader,
            leader_address=address,
            leader_http_address=http_address,
        )
    return Response(refused.model_dump_json(by_alias=True), 409, media_type=PROBLEM_JSON)
