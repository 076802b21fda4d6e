"""mqadmin: add and remove controllers while they run (not in RocketMQ). Any controller may be named with -a:
the leader is found through it, and answers with the changed group."""

from typing import Annotated, Any

import typer

from cli.command_line import checked_addresses, not_empty
from cli.mqadmin.confirmation import asks_first
from cli.mqadmin.layouts import cluster as layouts
from cli.mqadmin.shell import Action, ControllerAddress, Output, command, dump
from keelmq.client.admin import AdminClient, AdminError
from keelmq.health.findings import plural
from keelmq.health.snapshot import peers_of
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Operation
from keelmq.remoting.operations.controller import (
    ADD_CONTROLLER,
    REMOVE_CONTROLLER,
    TRANSFER_LEADER,
    AddControllerRequest,
    ControllerIdRequest,
    ControllerMetadata,
)

ControllerId = Annotated[
    str,
    typer.Option(
        "-id",
        "--controllerId",
        callback=not_empty,
        help="Id of the controller, its controllerDLegerSelfId (n3)",
    ),
]


@command("addController")
def add_controller(
    controller_addr: ControllerAddress,
    controller_id: ControllerId,
    peer: Annotated[
        str,
        typer.Option(
            "-p", "--peer", callback=checked_addresses, help="Address where it serves requests, host:port"
        ),
    ],
) -> Action:
    """Add a controller. It must be running, with an empty directory and all members in its peers."""
    return _change(
        ADD_CONTROLLER,
        controller_addr,
        AddControllerRequest(controller_id=controller_id, controller_address=peer),
    )


@command("removeController")
@asks_first
def remove_controller(
    controller_addr: ControllerAddress,
    controller_id: ControllerId,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Change nothing: show which controllers would remain")
    ] = False,
) -> Action:
    """Remove a controller, dead or alive, but not the leader. Stop it afterwards."""
    if dry_run:
        return lambda admin: _would_remove(admin, controller_addr, controller_id)
    return _change(REMOVE_CONTROLLER, controller_addr, ControllerIdRequest(controller_id=controller_id))


async def _would_remove(admin: AdminClient, controller_addr: str, controller_id: str) -> Output:
    """Returns the members that would be left, if the leader would remove the controller. Raises AdminError as
    the removal would: the leader makes the same checks."""
    group, remark = await admin.controllers.explain_remove_controller(controller_addr, controller_id)
    members = peers_of(group)
    left = sorted(members.keys() - {controller_id})
    value = {"controllerId": controller_id, "isMember": controller_id in members, "left": left}
    if controller_id not in members:
        return Output(value, "", notes=(remark,) if remark else ())
    text = (
        f"would remove {controller_id} at {members[controller_id]}: {plural(len(left), 'controller')} left "
    )
    return Output(value, f"{text}({', '.join(left)}), {len(left) // 2 + 1} must run")


@command("transferLeader")
def transfer_leader(controller_addr: ControllerAddress, controller_id: ControllerId) -> Action:
    """Make another controller the leader; no master changes."""
    return _change(TRANSFER_LEADER, controller_addr, ControllerIdRequest(controller_id=controller_id))


def _change(
    operation: Operation[Any, ControllerMetadata],
    controller_addr: str,
    request: ControllerIdRequest,
) -> Action:
    async def action(admin: AdminClient) -> Output:
        try:
            group, remark = await admin.controllers.change_controllers(controller_addr, operation, request)
        except AdminError as error:
            if error.code != ResponseCode.SYSTEM_ERROR:
                raise
            # refusals have other codes: after this one the change may or may not happen
            raise AdminError(error.request, error.address, error.remark, unknown=True) from error
        return Output(dump(group), layouts.controller_metadata(group), notes=(remark,) if remark else ())

    return action
