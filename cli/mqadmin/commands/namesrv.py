"""mqadmin: the state of name servers. They do not replicate: every one of -n is asked, and the output says
which of them did not make a change.
"""

from dataclasses import replace
from typing import Annotated

import typer

from cli.command_line import NamesrvAddr
from cli.mqadmin.confirmation import asks_first
from cli.mqadmin.layouts import cluster as layouts
from cli.mqadmin.shell import REFUSED, Action, DoesNotExist, Output, command, per_server
from keelmq.client.admin import AdminClient, AdminError
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operations.namesrv_admin import GET_KV_CONFIG, KVConfigKey

Namespace = Annotated[str, typer.Option("-s", "--namespace", help="Namespace, e.g. ORDER_TOPIC_CONFIG")]
Key = Annotated[str, typer.Option("-k", "--key", help="Key")]
Value = Annotated[str, typer.Option("-v", "--value", help="Value")]
Broker = Annotated[str, typer.Option("-b", "--brokerName", help="Broker name")]


@command("updateKvConfig")
def update_kv_config(namesrv_addr: NamesrvAddr, namespace: Namespace, key: Key, value: Value) -> Action:
    """Create or change an entry of the KV configuration, at every name server."""

    async def action(admin: AdminClient) -> Output:
        results = await admin.each(
            namesrv_addr, lambda each: admin.name_servers.put_kv_config(each, namespace, key, value)
        )
        text = layouts.if_any(results, "create or update kv config to namespace success.")
        return per_server(results, text, done="changed")

    return action


@command("deleteKvConfig")
@asks_first
def delete_kv_config(
    namesrv_addr: NamesrvAddr,
    namespace: Namespace,
    key: Key,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing: show the entry")] = False,
) -> Action:
    """Delete an entry of the KV configuration, at every name server."""

    async def action(admin: AdminClient) -> Output:
        if dry_run:
            found = await admin.each(namesrv_addr, lambda each: existing(admin, each, namespace, key))
            lines = [
                f"would delete {key} of {namespace} at {each.address}: {each.answer}"
                for each in found
                if each.answer is not None
            ]
            return per_server(found, "\n".join(lines), lambda each: {"value": each.answer})
        results = await admin.each(namesrv_addr, lambda each: delete_existing(admin, each, namespace, key))
        text = layouts.if_any(results, "delete kv config from namespace success.")
        return per_server(results, text, done="deleted")

    return action


async def delete_existing(admin: AdminClient, address: str, namespace: str, key: str) -> None:
    """Deletes an entry of the KV configuration at one name server. Raises DoesNotExist if it has no such
    entry, because it would answer the deletion with success."""
    await existing(admin, address, namespace, key)
    await admin.name_servers.delete_kv_config(address, namespace, key)


async def existing(admin: AdminClient, address: str, namespace: str, key: str) -> str:
    """Returns the value of an entry of the KV configuration. Raises DoesNotExist."""
    try:
        answer = await admin.ask(address, GET_KV_CONFIG, KVConfigKey(namespace=namespace, key=key))
    except AdminError as error:
        if error.code != ResponseCode.QUERY_NOT_FOUND:
            raise
        remark = f"namespace {namespace} has no key {key}: nothing was deleted"
        raise DoesNotExist("deleteKVConfig", address, remark, error.code) from None
    return answer.header.value or ""


@command("wipeWritePerm")
@asks_first
def wipe_write_perm(
    namesrv_addr: NamesrvAddr,
    broker_name: Broker,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Change nothing: show which topics would have no writable broker"),
    ] = False,
) -> Action:
    """Remove write permission from all topics of a broker, until it registers changed topics."""

    async def action(admin: AdminClient) -> Output:
        if dry_run:
            return await _would_wipe(admin, namesrv_addr, broker_name)
        results = await admin.each(
            namesrv_addr, lambda each: admin.name_servers.wipe_write_perm(each, broker_name)
        )
        text = layouts.write_perm("wipe", broker_name, results)
        output = per_server(results, text, lambda each: {"wipeTopicCount": each.answer}, done="wiped")
        return _unless_nothing(output, broker_name, [each.answer for each in results])

    return action


async def _would_wipe(admin: AdminClient, namesrv_addr: str, broker_name: str) -> Output:
    """Shows which topics would lose their write permission at any name server, and which of them would then
    have no writable broker at one of them."""
    results = await admin.each(namesrv_addr, lambda each: admin.name_servers.explain_wipe(each, broker_name))
    told = [each.answer for each in results if each.answer is not None]
    wiped = sorted({topic for _, found in told for topic in found.topics})
    alone = sorted({topic for _, found in told for topic in found.nowhere_else})
    text = "\n".join(
        f"would wipe {topic}" + (": no other broker accepts its messages" if topic in alone else "")
        for topic in wiped
    )
    if not wiped and any(count for count, _ in told):
        text = f"no topic of {broker_name} has write permission now"
    output = per_server(results, text)
    output = replace(output, value={"wouldWipe": wiped, "nowhereElse": alone})
    return _unless_nothing(output, broker_name, [None if x.answer is None else x.answer[0] for x in results])


@command("addWritePerm")
def add_write_perm(namesrv_addr: NamesrvAddr, broker_name: Broker) -> Action:
    """Give all topics of a broker read and write permission."""

    async def action(admin: AdminClient) -> Output:
        results = await admin.each(
            namesrv_addr, lambda each: admin.name_servers.add_write_perm(each, broker_name)
        )
        text = layouts.write_perm("add", broker_name, results)
        output = per_server(results, text, lambda each: {"addTopicCount": each.answer}, done="added")
        return _unless_nothing(output, broker_name, [each.answer for each in results])

    return action


def _unless_nothing(output: Output, broker_name: str, counts: list[int | None]) -> Output:
    """Adds a problem if every name server answered 0, as they do for an unknown broker."""
    if any(counts) or None in counts:
        return output
    problem = f"no broker named {broker_name} has a topic: check the name with clusterList"
    return Output(output.value, output.text, (*output.problems, problem), output.notes, REFUSED)


@command("getNamesrvConfig")
def get_namesrv_config(namesrv_addr: NamesrvAddr) -> Action:
    """The settings of every name server."""

    async def action(admin: AdminClient) -> Output:
        results = await admin.each(namesrv_addr, admin.name_servers.namesrv_config)
        return per_server(results, layouts.configs(results), lambda each: {"config": each.answer})

    return action


@command("updateNamesrvConfig")
def update_namesrv_config(namesrv_addr: NamesrvAddr, key: Key, value: Value) -> Action:
    """Change a setting of every name server while it runs."""

    async def action(admin: AdminClient) -> Output:
        results = await admin.each(
            namesrv_addr, lambda each: admin.name_servers.update_namesrv_config(each, key, value)
        )
        return per_server(results, layouts.updated("name server", results, key, value), done="changed")

    return action
