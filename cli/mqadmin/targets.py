"""The brokers that a command addresses: those given (-b), or a cluster's, from the name servers (-c)."""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Annotated, Any, TypeVar

import typer

from cli.command_line import OptionalNamesrvAddr, checked_addresses
from cli.mqadmin.shell import IN_PART, Action, DoesNotExist, Output, exit_code_of, explain, per_server
from keelmq.client import PullError, PullErrorKind, SendError, SendErrorKind
from keelmq.client.admin import AdminClient, AdminError, ServerResult
from keelmq.remoting.address_text import parse_addresses
from keelmq.remoting.codes import MASTER_ID, PERM_WRITE, ResponseCode
from keelmq.remoting.operation import Wire
from keelmq.remoting.operations.route import BrokerData, ClusterInfo

T = TypeVar("T")

BrokerAddr = Annotated[
    str | None,
    typer.Option("-b", "--brokerAddr", callback=checked_addresses, help="These brokers, host:port;host:port"),
]
Cluster = Annotated[str | None, typer.Option("-c", "--clusterName", help="The brokers of this cluster")]


@dataclass(frozen=True)
class Target:
    """Addresses of brokers: those given, or the masters of a cluster (with slaves: every replica). `missing`:
    a line for each broker name that has no master."""

    addresses: tuple[str, ...]
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class Where:
    """The flags -b, -c and -n of a command: which brokers it addresses."""

    broker_addr: str | None = None
    cluster_name: str | None = None
    namesrv_addr: str | None = None

    def check(self) -> None:
        """Raises BadParameter unless one of -b and -c is given, and -c with name servers."""
        if (self.broker_addr is None) == (self.cluster_name is None):
            raise typer.BadParameter("give -b BROKERADDR or -c CLUSTERNAME")
        if self.cluster_name is not None and self.namesrv_addr is None:
            raise typer.BadParameter("-c CLUSTERNAME needs -n NAMESRVADDR (or NAMESRV_ADDR)")

    async def find(self, admin: AdminClient, *, slaves: bool = False) -> Target:
        """Returns the brokers of -b or -c. AdminError: no such cluster, or no broker in it."""
        if self.broker_addr is not None:
            return Target(tuple(parse_addresses(self.broker_addr)))
        brokers = await brokers_of_cluster(admin, str(self.cluster_name), str(self.namesrv_addr))
        if slaves:
            addresses = [
                each.broker_addrs[number] for each in brokers for number in sorted(each.broker_addrs)
            ]
            return Target(tuple(addresses))
        masters = [each.broker_addrs[MASTER_ID] for each in brokers if MASTER_ID in each.broker_addrs]
        missing = [
            f"the name servers list no master of {each.broker_name}: nothing was done there"
            for each in brokers
            if MASTER_ID not in each.broker_addrs
        ]
        if not masters:
            remark = f"no broker of cluster {self.cluster_name} has a master"
            address = str(self.namesrv_addr)
            raise AdminError("getBrokerClusterInfo", address, remark, ResponseCode.BROKER_NOT_EXIST)
        return Target(tuple(masters), tuple(missing))


@dataclass(frozen=True)
class UserServers(Where):
    """The servers that keep users: -n alone means its only cluster."""

    def check(self) -> None:
        """Raises BadParameter if neither -b, nor -c with -n, nor -n is given."""
        if self.broker_addr is not None or self.cluster_name is not None or self.namesrv_addr is None:
            super().check()

    async def named(self, admin: AdminClient) -> "UserServers":
        """Returns them with the name of the cluster. AdminError: the name servers list none, or several."""
        if self.broker_addr is not None or self.cluster_name is not None:
            return self
        address = str(self.namesrv_addr)
        info = await admin.name_servers.cluster_info(address)
        if len(info.cluster_addr_table) != 1:
            known = ", ".join(sorted(info.cluster_addr_table)) or "none"
            listed = f"the name servers list not one cluster but: {known}"
            remark = f"{listed}; give -c CLUSTERNAME or -b BROKERADDR"
            raise AdminError("getBrokerClusterInfo", address, remark, ResponseCode.INVALID_PARAMETER)
        return replace(self, cluster_name=next(iter(info.cluster_addr_table)))


def at_brokers(function: Callable[..., Action]) -> Callable[..., Action]:
    """Decorates a command with a parameter `where`: replaces it by -b and -c, adds -n as the last flag, and
    checks them."""
    signature = inspect.signature(function)
    kind = signature.parameters["where"].annotation

    def with_flags(
        *,
        broker_addr: str | None = None,
        cluster_name: str | None = None,
        namesrv_addr: str | None = None,
        **flags: Any,
    ) -> Action:
        where = kind(broker_addr, cluster_name, namesrv_addr)
        where.check()
        return function(where=where, **flags)

    def flag(name: str, annotation: Any) -> inspect.Parameter:
        return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)

    flags: list[inspect.Parameter] = []
    for each in signature.parameters.values():
        of_where = [flag("broker_addr", BrokerAddr), flag("cluster_name", Cluster)]
        flags += of_where if each.name == "where" else [each]
    flags.append(flag("namesrv_addr", OptionalNamesrvAddr))
    with_flags.__signature__ = signature.replace(parameters=flags)  # type: ignore[attr-defined]
    with_flags.__name__, with_flags.__doc__ = function.__name__, function.__doc__
    return with_flags


async def brokers_of_cluster(admin: AdminClient, cluster_name: str, namesrv_addr: str) -> list[BrokerData]:
    """Returns the brokers of a cluster. Raises AdminError: no answer, no such cluster, or no broker in it."""
    info = await admin.name_servers.cluster_info(namesrv_addr)
    return brokers_of(info, names_of_cluster(info, cluster_name, namesrv_addr), namesrv_addr)


def names_of_cluster(info: ClusterInfo, cluster_name: str, namesrv_addr: str) -> list[str]:
    """Returns the broker names of a cluster. Raises AdminError: no such cluster."""
    if cluster_name not in info.cluster_addr_table:
        known = ", ".join(sorted(info.cluster_addr_table)) or "none"
        remark = f"no cluster named {cluster_name} (known: {known})"
        raise AdminError("getBrokerClusterInfo", namesrv_addr, remark, ResponseCode.INVALID_PARAMETER)
    return sorted(info.cluster_addr_table[cluster_name])


def brokers_of(info: ClusterInfo, names: list[str], namesrv_addr: str) -> list[BrokerData]:
    """Returns the brokers of those names that are known. Raises AdminError: none is known."""
    brokers = [info.broker_addr_table[name] for name in names if name in info.broker_addr_table]
    if not brokers and names:
        known = ", ".join(sorted(info.broker_addr_table)) or "none"
        remark = f"no broker named {', '.join(names)} (known: {known})"
        raise AdminError("getBrokerClusterInfo", namesrv_addr, remark, ResponseCode.BROKER_NOT_EXIST)
    return brokers


async def on_each(
    admin: AdminClient, target: Target, ask: Callable[[str], Awaitable[T]]
) -> list[ServerResult[T]]:
    """Asks every address of the target at once; the answers are in its order."""
    return await admin.each(";".join(target.addresses), ask)


def changed(
    results: Sequence[ServerResult[Any]], target: Target, text: Callable[[str], str], *, footer: str = ""
) -> Output:
    """Returns the output of a change: a line for each broker that made it, a problem for each other one."""
    good = [each.address for each in results if each.error is None]
    lines = [text(address) for address in good]
    output = per_server(results, "\n".join([*lines, *([footer] if footer and good else [])]), done="changed")
    return with_missing(output, target)


def with_missing(output: Output, target: Target) -> Output:
    """Returns the output with a problem for each broker name without a master."""
    code = output.exit_code if output.exit_code is not None else (IN_PART if target.missing else None)
    return replace(output, problems=(*output.problems, *target.missing), exit_code=code)


def change_at(
    where: Where,
    ask: Callable[[AdminClient, str], Awaitable[Any]],
    text: Callable[[str], str],
    *,
    slaves: bool = False,
    footer: str = "",
) -> Action:
    """Returns the action of a change at each broker, with a line for each that made it."""

    async def action(admin: AdminClient) -> Output:
        target = await where.find(admin, slaves=slaves)
        results = await on_each(admin, target, lambda each: ask(admin, each))
        return changed(results, target, text, footer=footer)

    return action


def changing(where: UserServers, ask: Callable[[AdminClient, str], Awaitable[Any]], done: str) -> Action:
    """Returns the action of a change at a broker (-b), or at every master of a cluster and every name server
    that keeps users (-c; -n alone: of its only cluster): clients also sign their requests to name servers."""

    async def action(admin: AdminClient) -> Output:
        target, results = await _of_users(admin, where, ask)
        return changed(results, target, lambda each: f"{done} at {each} success.")

    return action


def previewing(
    where: UserServers,
    ask: Callable[[AdminClient, str], Awaitable[Wire]],
    layout: Callable[[Sequence[Any]], str],
) -> Action:
    """Returns the action of the preview of a deletion, at the servers that changing() asks. ask: returns the
    objects that would be deleted."""

    async def action(admin: AdminClient) -> Output:
        target, results = await _of_users(admin, where, ask)
        text = "\n".join(
            f"{each.address}\n{layout([each.answer])}" for each in results if each.answer is not None
        )
        output = per_server(
            results, text, lambda each: {"found": [shown_value(each.answer)] if each.answer else []}
        )
        return with_missing(output, target)

    return action


async def _of_users(
    admin: AdminClient,
    where: UserServers,
    ask: Callable[[AdminClient, str], Awaitable[T]],
) -> tuple[Target, list[ServerResult[T]]]:
    where = await where.named(admin)
    target = await where.find(admin)
    results = await on_each(admin, target, lambda each: ask(admin, each))
    if where.cluster_name is not None:
        name_servers = Target(tuple(parse_addresses(str(where.namesrv_addr))))
        also = await on_each(admin, name_servers, lambda each: ask(admin, each))
        results += [each for each in also if each.error is None or not _keeps_none(each.error)]
    return target, results


def _keeps_none(error: Exception) -> bool:
    """Returns whether a server keeps no users, or not this one."""
    return isinstance(error, DoesNotExist) or (
        isinstance(error, AdminError) and error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    )


def showing(
    where: UserServers,
    ask: Callable[[AdminClient, str], Awaitable[Sequence[Any]]],
    layout: Callable[[Sequence[Any]], str],
) -> Action:
    """Returns the action of a query; one table for each broker. The target is that of changing(), without
    name servers."""

    async def action(admin: AdminClient) -> Output:
        target = await (await where.named(admin)).find(admin)
        results = await on_each(admin, target, lambda each: ask(admin, each))
        good = [each for each in results if each.error is None]
        titled = len(target.addresses) > 1
        tables = [(f"{each.address}\n" if titled else "") + layout(each.answer or []) for each in good]

        def found(each: ServerResult[Any]) -> dict[str, Any]:
            return {"found": [shown_value(one) for one in each.answer or []]}

        return per_server(results, "\n".join(tables), found)

    return action


def shown_value(value: Wire) -> Any:
    """Returns the JSON form without absent members and without the password, which brokers of RocketMQ
    return."""
    made = value.model_dump(mode="json", by_alias=True, exclude_none=True)
    made.pop("password", None)
    return made


@asynccontextmanager
async def route_explained(admin: AdminClient, namesrv_addr: str, topic: str) -> AsyncIterator[None]:
    """Raises AdminError in place of a SendError or PullError that says "no route" if the name servers do not
    answer or do not know the topic, or if it is read-only: the client's error does not tell these apart."""
    try:
        yield
    except (SendError, PullError) as error:
        if error.kind not in (SendErrorKind.NO_ROUTE, PullErrorKind.NO_ROUTE):
            raise
        if isinstance(error, PullError) and error.code is not None:
            raise AdminError("pullMessage", namesrv_addr, error.remark, error.code) from None
        try:
            route = await admin.name_servers.topic_route(namesrv_addr, topic)
        except AdminError as cause:
            if cause.code != ResponseCode.TOPIC_NOT_EXIST:
                raise cause from None
            remark = (
                f"topic {topic} has no route, and no broker that is registered creates topics "
                "(autoCreateTopicEnable)"
            )
            raise AdminError("sendMessage", namesrv_addr, remark, cause.code) from None
        if isinstance(error, SendError) and not any(each.perm & PERM_WRITE for each in route.queue_datas):
            remark = f"{error.remark}; nothing was sent: topicRoute shows the topic's brokers and permissions"
            raise AdminError("sendMessage", namesrv_addr, remark, ResponseCode.NO_PERMISSION) from None
        raise


def shown(value: object, text: str, errors: Sequence[AdminError], *, found: bool) -> Output:
    """Returns the output of a query. If nothing was found, the errors decide the exit code."""
    code = exit_code_of(*errors) if errors and not found else None
    return Output(value, text if found else "", tuple(explain(error) for error in errors), exit_code=code)
