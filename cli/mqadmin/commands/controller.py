"""mqadmin: requests to controllers. Any controller may be named with -a: the leader is found through it."""

import json
import re
from pathlib import Path
from typing import Annotated

import typer

from cli.command_line import OptionalNamesrvAddr, Refused, names_file, print_error, write_new_private
from cli.mqadmin.confirmation import asks_first
from cli.mqadmin.layouts import cluster as layouts
from cli.mqadmin.layouts import election as layouts_election
from cli.mqadmin.shell import (
    IN_PART,
    PROGRAM,
    REFUSED,
    Action,
    BrokerName,
    ClusterName,
    ControllerAddress,
    Output,
    command,
    dump,
    per_server,
)
from cli.mqadmin.targets import names_of_cluster
from keelmq.client.admin import AdminClient, AdminError
from keelmq.remoting.codes import ResponseCode


@command("getControllerMetaData")
def get_controller_metadata(controller_addr: ControllerAddress) -> Action:
    """The controllers, and which of them leads."""

    async def action(admin: AdminClient) -> Output:
        metadata = await admin.controllers.controller_metadata(controller_addr)
        return Output(dump(metadata), layouts.controller_metadata(metadata))

    return action


@command("getSyncStateSet", repeats=True)
def get_sync_state_set(
    controller_addr: ControllerAddress,
    cluster_name: ClusterName = None,
    broker_name: BrokerName = None,
    namesrv_addr: OptionalNamesrvAddr = None,
) -> Action:
    """Master, epochs and SyncStateSet of a broker name (-b), or of a whole cluster (-c, needs -n)."""
    if broker_name is None and (cluster_name is None or namesrv_addr is None):
        raise typer.BadParameter("give -b BROKERNAME, or -c CLUSTERNAME with -n NAMESRVADDR")

    async def action(admin: AdminClient) -> Output:
        if broker_name is not None:
            names = [broker_name]
        else:
            info = await admin.name_servers.cluster_info(str(namesrv_addr))
            names = names_of_cluster(info, str(cluster_name), str(namesrv_addr))
        sets = await admin.controllers.sync_state_sets(controller_addr, names)
        unknown = [name for name in names if name not in sets.replicas_info_table]
        if unknown and not sets.replicas_info_table:
            remark = f"the controller knows no broker named {', '.join(unknown)}"
            code = ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST
            raise AdminError("getSyncStateSet", controller_addr, remark, code)
        problems = tuple(f"the controller knows no broker named {name}" for name in unknown)
        return Output(dump(sets)["replicasInfoTable"], layouts.sync_state_sets(sets), problems)

    return action


@command("electMaster")
@asks_first
def elect_master(
    controller_addr: ControllerAddress,
    broker_name: Annotated[str, typer.Option("-bn", "--brokerName", help="Its broker name")],
    cluster_name: Annotated[str, typer.Option("-c", "--clusterName", help="Its cluster")],
    broker_id: Annotated[
        int | None,
        typer.Option("-b", "--brokerId", min=1, help="Id of the replica to make master"),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            "--explain",
            help="Change nothing: show which replica would be elected, and why; without -b, in an "
            "automatic election",
        ),
    ] = False,
) -> Action:
    """Elect a replica as master. It must be alive and in the SyncStateSet."""
    if broker_id is None and not dry_run:
        raise typer.BadParameter("give -b BROKERID, or --dry-run to see who would win")

    async def explain_it(admin: AdminClient) -> Output:
        explanation = await admin.controllers.explain_election(
            controller_addr, cluster_name=cluster_name, broker_name=broker_name, broker_id=broker_id
        )
        text = layouts_election.explanation(cluster_name, broker_name, explanation)
        return Output(dump(explanation), text, exit_code=REFUSED if explanation.code else None)

    async def elect(admin: AdminClient) -> Output:
        master, body = await admin.controllers.elect_master(
            controller_addr, cluster_name=cluster_name, broker_name=broker_name, broker_id=broker_id or 0
        )
        value = {**dump(master), **dump(body)}
        return Output(value, layouts.elected(cluster_name, broker_name, master, body))

    return explain_it if dry_run else elect


@command("cleanBrokerMetadata")
@asks_first
def clean_broker_metadata(
    controller_addr: ControllerAddress,
    broker_name: Annotated[str, typer.Option("-bn", "--brokerName", help="Broker name")],
    broker_ids: Annotated[
        str, typer.Option("-b", "--brokerControllerIdsToClean", help="Ids, 1;2;3 (default: all of the group)")
    ] = "",
    cluster_name: Annotated[
        str, typer.Option("-c", "--clusterName", help="Its cluster; needed without -l")
    ] = "",
    clean_living: Annotated[
        bool, typer.Option("-l", "--cleanLivingBroker", help="Also replicas that are alive")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Change nothing: show which replicas would be removed")
    ] = False,
) -> Action:
    """Remove replicas that will not return from the controllers. Their ids are not assigned again."""
    ids = [part.strip() for part in re.split("[;,]", broker_ids) if part.strip()]
    if not all(each.isdecimal() for each in ids):
        raise typer.BadParameter(f"-b {broker_ids!r} is not a list of ids (example: 1;2;3)")
    if not clean_living and not cluster_name:
        raise typer.BadParameter("give -c CLUSTERNAME, or -l to clean live brokers as well")

    async def show(admin: AdminClient) -> Output:
        found, remark = await admin.controllers.explain_clean_broker_data(
            controller_addr,
            cluster_name=cluster_name,
            broker_name=broker_name,
            broker_ids=";".join(ids),
            clean_living=clean_living,
        )
        if not found.replicas:
            return Output({"wouldForget": []}, "", notes=(remark,) if remark else ())
        value = {
            "wouldForget": [dump(each) for each in found.replicas],
            "masterBrokerId": found.master_broker_id,
            "isWholeGroup": found.is_whole,
        }
        return Output(value, layouts_election.would_forget(broker_name, found))

    async def clean(admin: AdminClient) -> Output:
        remark = await admin.controllers.clean_broker_data(
            controller_addr,
            cluster_name=cluster_name,
            broker_name=broker_name,
            broker_ids=";".join(ids),
            clean_living=clean_living,
        )
        value = {"brokerName": broker_name, "brokerControllerIdsToClean": [int(each) for each in ids]}
        text = f"clear broker {broker_name} metadata from controller success! "
        return Output(value, text, notes=(remark,) if remark else ())

    return show if dry_run else clean


@command("getControllerConfig")
def get_controller_config(controller_addr: ControllerAddress) -> Action:
    """The effective settings of every controller of -a."""

    async def action(admin: AdminClient) -> Output:
        results = await admin.each(controller_addr, admin.controllers.controller_config)
        return per_server(results, layouts.configs(results), lambda each: {"config": each.answer})

    return action


@command("updateControllerConfig")
def update_controller_config(
    controller_addr: ControllerAddress,
    key: Annotated[str, typer.Option("-k", "--key", help="Key")],
    value: Annotated[
        str, typer.Option("-v", "--value", help="Value; empty: return to the configuration file's value")
    ],
) -> Action:
    """Change a setting of running controllers. They replicate it, and keep it across restarts."""

    async def action(admin: AdminClient) -> Output:
        results = await admin.each(
            controller_addr, lambda each: admin.controllers.update_controller_config(each, key, value)
        )
        output = per_server(results, layouts.updated("controller", results, key, value))
        if output.exit_code != IN_PART:
            return output
        rest = "the others get it from the leader (RocketMQ's controllers do not: repeat it for those)"
        return Output(output.value, output.text, (*output.problems, rest), output.notes, IN_PART)

    return action


# -- what only KeelMQ's controllers store: past elections, and their whole state as a file ------------------


@command("getElections", repeats=True)
def get_elections(
    controller_addr: ControllerAddress,
    broker_name: Annotated[str, typer.Option("-bn", "--brokerName", help="Only this broker name")] = "",
    count: Annotated[int, typer.Option("--count", min=1, help="At most this many, newest first")] = 100,
) -> Action:
    """Past elections: when, old and new master, reason."""

    async def action(admin: AdminClient) -> Output:
        past = await admin.controllers.elections(controller_addr, broker_name, count)
        return Output([dump(each) for each in past], layouts_election.elections(past))

    return action


@command("exportControllerState")
def export_controller_state(
    controller_addr: ControllerAddress,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", callback=names_file, help="New file, mode 600 (default: print it)"),
    ] = None,
) -> Action:
    """The whole state of the controllers, as JSON, for a backup or for other controllers."""

    async def action(admin: AdminClient) -> Output:
        state = await admin.controllers.export_state(controller_addr)
        if output is None:
            return Output(state, json.dumps(state, ensure_ascii=False))
        try:
            write_new_private(output, json.dumps(state, ensure_ascii=False).encode() + b"\n")
        except Refused as error:
            print_error(PROGRAM, str(error))
            raise typer.Exit(REFUSED) from None
        return Output({"file": str(output)}, f"the state of the controllers is in {output}")

    return action


@command("importControllerState")
def import_controller_state(
    controller_addr: ControllerAddress,
    file: Annotated[Path, typer.Option("-f", "--file", help="File that exportControllerState wrote")],
) -> Action:
    """Import the state of other controllers into new ones that have no broker group yet. May be repeated."""
    try:
        state = file.read_bytes()
    except OSError as error:
        raise typer.BadParameter(f"cannot read {file}: {error.strerror}") from error

    async def action(admin: AdminClient) -> Output:
        groups = await admin.controllers.import_state(controller_addr, state)
        return Output({"groups": groups}, f"imported {groups} groups")

    return action
