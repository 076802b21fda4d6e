"""mqadmin: what only KeelMQ's controllers store: past elections, and their whole state as a file."""

import json
from pathlib import Path
from typing import Annotated

import typer

from cli.mqadmin.layouts import election as layouts_election
from cli.mqadmin.shell import Action, ControllerAddress, Output, command, dump
from keelmq.client.admin import AdminClient


@command("getElections", repeats=True)
def get_elections(
    controller_addr: ControllerAddress,
    broker_name: Annotated[str, typer.Option("-bn", "--brokerName", help="Only this broker name")] = "",
    count: Annotated[int, typer.Option("--count", min=1, help="At most this many, newest first")] = 100,
) -> Action:
    """Past elections: when, old and new master, reason."""

    async def action(admin: AdminClient) -> Output:
        past = await admin.elections(controller_addr, broker_name, count)
        return Output([dump(each) for each in past], layouts_election.elections(past))

    return action


@command("exportControllerState")
def export_controller_state(
    controller_addr: ControllerAddress,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="File (default: print it)")] = None,
) -> Action:
    """The whole state of the controllers, as JSON, for a backup or for other controllers."""

    async def action(admin: AdminClient) -> Output:
        state = await admin.export_state(controller_addr)
        if output is None:
            return Output(state, json.dumps(state, ensure_ascii=False))
        try:
            output.write_text(json.dumps(state, ensure_ascii=False) + "\n", encoding="utf-8")
        except OSError as error:
            raise typer.BadParameter(f"cannot write {output}: {error.strerror}") from error
        return Output({"file": str(output)}, f"the state of the controllers is in {output}")

    return action


@command("importControllerState")
def import_controller_state(
    controller_addr: ControllerAddress,
    file: Annotated[Path, typer.Option("-f", "--file", help="File that exportControllerState wrote")],
) -> Action:
    """Import the state of other controllers into new ones that know no group yet. May be repeated."""
    try:
        state = file.read_bytes()
    except OSError as error:
        raise typer.BadParameter(f"cannot read {file}: {error.strerror}") from error

    async def action(admin: AdminClient) -> Output:
        groups = await admin.import_state(controller_addr, state)
        return Output({"groups": groups}, f"imported {groups} groups")

    return action
