"""AdminClient: what operators and tools ask of name servers, controllers and brokers.

One method per question; an answer is the operation's own model. Everything else is an AdminError that says
what was asked, of whom, what came back, and whether a change may have happened nevertheless (`unknown`).
Controller questions go to any controller: it is asked who leads (1005) and the leader gets the question.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from client.route import parse_addresses
from remoting.client import RemotingClient
from remoting.codes import ResponseCode
from remoting.operation import Empty, Failed, Ok, Operation, Unknown, Wire
from remoting.operations.broker import (
    DELETE_TOPIC_IN_BROKER,
    GET_BROKER_CONFIG,
    GET_BROKER_EPOCH_CACHE,
    GET_BROKER_HA_STATUS,
    GET_BROKER_RUNTIME_INFO,
    QUERY_TOPIC_CONSUME_BY_WHO,
    BrokerNameOptionalRequest,
    CommitLogOffsets,
    EpochEntryCache,
    GroupList,
    HaRuntimeInfo,
    TopicRequest,
)
from remoting.operations.controller import (
    CLEAN_BROKER_DATA,
    ELECT_MASTER,
    EXPLAIN_ELECTION,
    EXPORT_STATE,
    GET_CONTROLLER_CONFIG,
    GET_ELECTIONS,
    GET_METADATA_INFO,
    GET_SYNC_STATE_DATA,
    IMPORT_STATE,
    UPDATE_CONTROLLER_CONFIG,
    BrokerReplicasInfo,
    CleanBrokerDataRequest,
    ControllerMetadata,
    ElectionExplanation,
    ElectionsRequest,
    ElectMasterRequest,
    ElectMasterResponseBody,
    MasterInfo,
    PastElection,
    UpdateConfigRequest,
)
from remoting.operations.controller import Elections as PastElections
from remoting.operations.namesrv_admin import (
    DELETE_KV_CONFIG,
    GET_NAMESRV_CONFIG,
    PUT_KV_CONFIG,
    UPDATE_NAMESRV_CONFIG,
    KVConfigKey,
    PutKVConfigRequest,
)
from remoting.operations.route import (
    ADD_WRITE_PERM_OF_BROKER,
    DELETE_TOPIC_IN_NAMESRV,
    GET_ALL_TOPIC_LIST,
    GET_BROKER_CLUSTER_INFO,
    GET_ROUTEINFO_BY_TOPIC,
    WIPE_WRITE_PERM_OF_BROKER,
    ClusterInfo,
    DeleteTopicRequest,
    RouteBrokerNameRequest,
    RouteRequest,
    TopicList,
    TopicRouteData,
)

ADMIN_TIMEOUT_MS = 5_000
CONTROLLER_TIMEOUT_MS = 3_000
MEMBERS_TIMEOUT_MS = 20_000
"""A controller that is added gets the whole log first."""

CONNECT_TIMEOUT_MS = 3_000
AT_ONCE_MAX = 128
"""Servers that are asked at a time: one connection each."""
STAGGER_MS = 300
"""After so much silence of one server the next of a list is asked as well."""

Resp = TypeVar("Resp", bound=Wire)
T = TypeVar("T")


class AdminError(Exception):
    """`code`: the answer's code, None when nobody answered. `unknown`: a change may have happened."""

    def __init__(
        self, question: str, address: str, remark: str, code: int | None = None, *, unknown: bool = False
    ) -> None:
        super().__init__(f"{question} at {address}: {remark}")
        self.question, self.address, self.remark, self.code, self.unknown = (
            question,
            address,
            remark,
            code,
            unknown,
        )

    @property
    def code_name(self) -> str:
        """RocketMQ's name of the code, "" if nobody answered."""
        if self.code is None:
            return ""
        return ResponseCode(self.code).name if self.code in set(ResponseCode) else str(self.code)


@dataclass(frozen=True)
class Said(Generic[T]):
    """One of several servers: what it answered, or why it did not. `remark`: what it added to a success."""

    address: str
    answer: T | None = None
    error: AdminError | None = None
    remark: str = ""


class AdminClient:
    """`client`: a RemotingClient to share; without it this object owns one and closes it. `timeout_ms`: for
    each question, instead of the defaults."""

    def __init__(self, client: RemotingClient | None = None, *, timeout_ms: int | None = None) -> None:
        self._own_client = client is None
        connect_timeout_ms = min(timeout_ms or CONNECT_TIMEOUT_MS, CONNECT_TIMEOUT_MS)
        self._client = client or RemotingClient(connect_timeout_ms=connect_timeout_ms)
        self.timeout_ms = timeout_ms

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._own_client:
            await self._client.close()

    async def each(self, addresses: str, ask: Callable[[str], Awaitable[T]]) -> list[Said[T]]:
        """Ask every server of the list, all at once; the answers in the list's order."""

        async def one(address: str) -> Said[T]:
            try:
                answer = await ask(address)
            except AdminError as error:
                return Said(address, error=error)
            return Said(address, answer, remark=answer if isinstance(answer, str) else "")

        return await gather_some(one(address) for address in parse_addresses(addresses))

    # name servers: the first that answers

    async def cluster_info(self, namesrv_addr: str) -> ClusterInfo:
        answer = await self._ask_any(namesrv_addr, GET_BROKER_CLUSTER_INFO, Empty())
        return _body(answer, ClusterInfo, GET_BROKER_CLUSTER_INFO, namesrv_addr)

    async def topic_route(self, namesrv_addr: str, topic: str) -> TopicRouteData:
        header = RouteRequest(topic=topic, accept_standard_json_only=True)
        answer = await self._ask_any(namesrv_addr, GET_ROUTEINFO_BY_TOPIC, header)
        return _body(answer, TopicRouteData, GET_ROUTEINFO_BY_TOPIC, namesrv_addr)

    async def topic_list(self, namesrv_addr: str) -> list[str]:
        answer = await self._ask_any(namesrv_addr, GET_ALL_TOPIC_LIST, Empty())
        return list(_body(answer, TopicList, GET_ALL_TOPIC_LIST, namesrv_addr).topic_list)

    # one name server, see each(): they do not tell each other

    async def put_kv_config(self, address: str, namespace: str, key: str, value: str) -> None:
        await self._ask(address, PUT_KV_CONFIG, PutKVConfigRequest(namespace=namespace, key=key, value=value))

    async def delete_kv_config(self, address: str, namespace: str, key: str) -> None:
        await self._ask(address, DELETE_KV_CONFIG, KVConfigKey(namespace=namespace, key=key))

    async def wipe_write_perm(self, address: str, broker_name: str) -> int:
        """How many of its topics cannot be written now; 0 for an unknown broker, too."""
        header = RouteBrokerNameRequest(broker_name=broker_name)
        return (await self._ask(address, WIPE_WRITE_PERM_OF_BROKER, header)).header.wipe_topic_count

    async def add_write_perm(self, address: str, broker_name: str) -> int:
        header = RouteBrokerNameRequest(broker_name=broker_name)
        return (await self._ask(address, ADD_WRITE_PERM_OF_BROKER, header)).header.add_topic_count

    async def delete_topic_in_namesrv(self, address: str, topic: str, cluster_name: str | None) -> None:
        header = DeleteTopicRequest(topic=topic, cluster_name=cluster_name)
        await self._ask(address, DELETE_TOPIC_IN_NAMESRV, header)

    async def namesrv_config(self, address: str) -> dict[str, str]:
        return _properties(await self._ask(address, GET_NAMESRV_CONFIG, Empty()))

    async def update_namesrv_config(self, address: str, key: str, value: str) -> str:
        """The server's remark: something that the operator should know, mostly nothing."""
        body = f"{key}={value}\n".encode()
        return (await self._ask(address, UPDATE_NAMESRV_CONFIG, Empty(), body)).remark

    # controllers

    async def controller_metadata(self, controller_addr: str) -> ControllerMetadata:
        """The view of the first controller of the list that answers; a view with a leader is preferred."""

        async def ask(address: str) -> ControllerMetadata:
            answer = await self._ask(address, GET_METADATA_INFO, Empty(), timeout_ms=CONTROLLER_TIMEOUT_MS)
            return answer.header

        addresses = parse_addresses(controller_addr)
        return await _first(addresses, ask, is_enough=lambda view: bool(view.controller_leader_address))

    async def controller_leader(self, controller_addr: str) -> str:
        metadata = await self.controller_metadata(controller_addr)
        if not metadata.controller_leader_address:
            remark = "no controller leads now (an election runs, or a majority of the peers is down)"
            raise AdminError(
                GET_METADATA_INFO.name, controller_addr, remark, ResponseCode.CONTROLLER_NOT_LEADER
            )
        return metadata.controller_leader_address

    async def sync_state_sets(self, controller_addr: str, broker_names: Sequence[str]) -> BrokerReplicasInfo:
        leader = await self.controller_leader(controller_addr)
        return await self.sync_state_sets_at(leader, broker_names)

    async def sync_state_sets_at(self, leader: str, broker_names: Sequence[str]) -> BrokerReplicasInfo:
        """Of a controller that is known to lead. Names that it does not know are left out of the answer."""
        if not broker_names:  # refused otherwise
            return BrokerReplicasInfo()
        answer = await self._ask(
            leader, GET_SYNC_STATE_DATA, Empty(), list(broker_names), timeout_ms=CONTROLLER_TIMEOUT_MS
        )
        return _body(answer, BrokerReplicasInfo, GET_SYNC_STATE_DATA, leader)

    async def elect_master(
        self, controller_addr: str, *, cluster_name: str, broker_name: str, broker_id: int
    ) -> tuple[MasterInfo, ElectMasterResponseBody]:
        """Make broker_id the master. AdminError: 2011 it is already, 2012 it cannot be (and others)."""
        leader = await self.controller_leader(controller_addr)
        header = ElectMasterRequest(
            cluster_name=cluster_name, broker_name=broker_name, broker_id=broker_id, designate_elect=True
        )
        answer = await self._ask(leader, ELECT_MASTER, header, timeout_ms=CONTROLLER_TIMEOUT_MS)
        body = answer.body if isinstance(answer.body, ElectMasterResponseBody) else ElectMasterResponseBody()
        return answer.header, body

    async def explain_election(
        self, controller_addr: str, *, cluster_name: str, broker_name: str, broker_id: int | None
    ) -> ElectionExplanation:
        """What elect_master would come to; nothing is changed. broker_id None: nobody is named, the election
        that the controller itself would hold. AdminError 3: a RocketMQ controller, which cannot tell."""
        leader = await self.controller_leader(controller_addr)
        header = ElectMasterRequest(
            cluster_name=cluster_name,
            broker_name=broker_name,
            broker_id=-1 if broker_id is None else broker_id,
            designate_elect=broker_id is not None,
            dry_run=True,
        )
        answer = await self._ask(leader, EXPLAIN_ELECTION, header, timeout_ms=CONTROLLER_TIMEOUT_MS)
        body = _body(answer, ElectMasterResponseBody, EXPLAIN_ELECTION, leader)
        if body.explanation is None:
            raise AdminError(EXPLAIN_ELECTION.name, leader, "the answer explains nothing", answer.code)
        return body.explanation

    async def clean_broker_data(
        self,
        controller_addr: str,
        *,
        cluster_name: str,
        broker_name: str,
        broker_ids: str = "",
        clean_living: bool = False,
    ) -> str:
        """Forget replicas, all of the group if broker_ids ("1;2") is blank. The controller's remark."""
        leader = await self.controller_leader(controller_addr)
        header = CleanBrokerDataRequest(
            cluster_name=cluster_name,
            broker_name=broker_name,
            broker_controller_ids_to_clean=broker_ids,
            is_clean_living_broker=clean_living,
        )
        return (await self._ask(leader, CLEAN_BROKER_DATA, header, timeout_ms=CONTROLLER_TIMEOUT_MS)).remark

    async def elections(self, controller_addr: str, broker_name: str, count: int) -> list[PastElection]:
        """Newest first, of one group, or of all ("")."""
        header = ElectionsRequest(broker_name=broker_name, count=count)
        answer = await self._ask_any(controller_addr, GET_ELECTIONS, header)
        return list(_body(answer, PastElections, GET_ELECTIONS, controller_addr).elections)

    async def import_state(self, controller_addr: str, state: bytes) -> int:
        """How many groups came with what export_state gave."""
        leader = await self.controller_leader(controller_addr)
        return (await self._ask(leader, IMPORT_STATE, Empty(), state)).header.groups

    async def change_controllers(
        self, controller_addr: str, operation: Operation[Any, ControllerMetadata], header: Wire
    ) -> tuple[ControllerMetadata, str]:
        """addController, removeController or transferLeader: the group afterwards, and a remark."""
        leader = await self.controller_leader(controller_addr)
        answer = await self._ask(leader, operation, header, timeout_ms=MEMBERS_TIMEOUT_MS)
        return answer.header, answer.remark

    # one controller, see each()

    async def controller_config(self, address: str) -> dict[str, str]:
        return _properties(
            await self._ask(address, GET_CONTROLLER_CONFIG, Empty(), timeout_ms=CONTROLLER_TIMEOUT_MS)
        )

    async def update_controller_config(self, address: str, key: str, value: str) -> str:
        body = f"{key}={value}\n".encode()
        return (await self._ask(address, UPDATE_CONTROLLER_CONFIG, UpdateConfigRequest(), body)).remark

    async def export_state(self, controller_addr: str) -> dict[str, Any]:
        """All that the controllers know, by the first that answers: also one that does not lead."""
        return dict((await self._ask_any(controller_addr, EXPORT_STATE, Empty())).body)

    # brokers

    async def broker_epochs(self, broker_addr: str, broker_name: str) -> EpochEntryCache:
        header = BrokerNameOptionalRequest(broker_name=broker_name)
        answer = await self._ask(broker_addr, GET_BROKER_EPOCH_CACHE, header)
        return _body(answer, EpochEntryCache, GET_BROKER_EPOCH_CACHE, broker_addr)

    async def ha_status(self, broker_addr: str) -> HaRuntimeInfo:
        """What a master tells of its slaves, or a slave of its link."""
        answer = await self._ask(broker_addr, GET_BROKER_HA_STATUS, Empty())
        return _body(answer, HaRuntimeInfo, GET_BROKER_HA_STATUS, broker_addr)

    async def runtime_info(self, broker_addr: str, *, timeout_ms: int = ADMIN_TIMEOUT_MS) -> dict[str, str]:
        answer = await self._ask(broker_addr, GET_BROKER_RUNTIME_INFO, Empty(), timeout_ms=timeout_ms)
        return dict(_body(answer, CommitLogOffsets, GET_BROKER_RUNTIME_INFO, broker_addr).table)

    async def broker_config(self, broker_addr: str, *, timeout_ms: int = ADMIN_TIMEOUT_MS) -> dict[str, str]:
        return _properties(await self._ask(broker_addr, GET_BROKER_CONFIG, Empty(), timeout_ms=timeout_ms))

    async def delete_topic_in_broker(self, broker_addr: str, topic: str) -> None:
        await self._ask(broker_addr, DELETE_TOPIC_IN_BROKER, TopicRequest(topic=topic))

    async def topic_consumers(self, broker_addr: str, topic: str) -> list[str]:
        """The consumer groups of the topic."""
        answer = await self._ask(broker_addr, QUERY_TOPIC_CONSUME_BY_WHO, TopicRequest(topic=topic))
        return list(_body(answer, GroupList, QUERY_TOPIC_CONSUME_BY_WHO, broker_addr).group_list)

    # helpers

    async def ask(self, address: str, operation: Operation[Any, Resp], header: Wire) -> Ok[Resp]:
        """Any other question."""
        return await self._ask(address, operation, header)

    async def _ask(
        self,
        address: str,
        operation: Operation[Any, Resp],
        header: Wire,
        body: object = None,
        *,
        timeout_ms: int = ADMIN_TIMEOUT_MS,
    ) -> Ok[Resp]:
        timeout_ms = self.timeout_ms or timeout_ms
        outcome = await self._client.call(address, operation, header, body, timeout_ms=timeout_ms)
        match outcome:
            case Ok():
                return outcome
            case Failed(code=ResponseCode.RPC_SEND_TO_CHANNEL_FAILED, remark=remark):
                raise AdminError(operation.name, address, remark or "cannot connect")
            case Failed(code=code, remark=remark):
                raise AdminError(operation.name, address, remark or "no remark", code)
            case Unknown(remark=remark):
                raise AdminError(operation.name, address, remark, unknown=True)
        raise AssertionError(outcome)  # Outcome has no other member

    async def _ask_any(self, addresses: str, operation: Operation[Any, Resp], header: Wire) -> Ok[Resp]:
        """The next address is asked when one does not answer soon, or does not know the topic (it may have
        just started); any other refusal is the answer."""

        def is_final(error: AdminError) -> bool:
            return error.code is not None and error.code != ResponseCode.TOPIC_NOT_EXIST

        return await _first(
            parse_addresses(addresses),
            lambda address: self._ask(address, operation, header),
            is_final=is_final,
        )


async def gather_some(questions: Iterable[Coroutine[Any, Any, T]], limit: int = AT_ONCE_MAX) -> list[T]:
    """asyncio.gather for a cluster of any size: at most `limit` run at a time."""
    gate = asyncio.Semaphore(limit)

    async def one(question: Coroutine[Any, Any, T]) -> T:
        async with gate:
            return await question

    return await asyncio.gather(*(one(question) for question in questions))


async def _first(
    addresses: Sequence[str],
    ask: Callable[[str], Awaitable[T]],
    *,
    is_enough: Callable[[T], bool] = lambda _: True,
    is_final: Callable[[AdminError], bool] = lambda _: False,
) -> T:
    """Ask one after the other until an answer is enough. One that says nothing for STAGGER_MS is not waited
    for alone: the next is asked, too. Else the first answer; else the first refusal; else the last error."""
    answers: list[T] = []
    errors: list[AdminError] = []
    waiting: set[asyncio.Future[T]] = set()
    left = list(addresses)
    try:
        while left or waiting:
            if left:
                waiting.add(asyncio.ensure_future(ask(left.pop(0))))
            done, waiting = await asyncio.wait(
                waiting,
                timeout=STAGGER_MS / 1000 if left else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
            for task, error in [(task, task.exception()) for task in done]:
                if error is None and is_enough(task.result()):
                    return task.result()
                if error is None:
                    answers.append(task.result())
                elif not isinstance(error, AdminError) or is_final(error):
                    raise error
                else:
                    errors.append(error)
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    if answers:
        return answers[0]
    raise next((error for error in errors if error.code is not None), errors[-1])


def _body(answer: Ok[Any], kind: type[Resp], operation: Operation[Any, Any], address: str) -> Resp:
    if not isinstance(answer.body, kind):
        raise AdminError(operation.name, address, "the answer has no body", answer.code)
    return answer.body


def _properties(answer: Ok[Any]) -> dict[str, str]:
    """key=value lines."""
    text = bytes(answer.body or b"").decode(errors="replace")
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line and not line.startswith("#"))
    return {key.strip(): value.strip() for key, _, value in pairs}
