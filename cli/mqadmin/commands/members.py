"""mqadmin: add and remove controllers while they run (not in RocketMQ). Any controller may be named with -a:
it leads to the leader, which answers with the changed group."""

from typing import Annotated, Any

import typer

from cli.command_line import checked_addresses
from cli.mqadmin.layouts import cluster as layouts
from cli.mqadmin.shell import Action, ControllerAddress, Output, command, dump
from keelmq.client.admin import AdminClient, AdminError
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
    str, typer.Option("-id", "--controllerId", help="Id of the controller, its controllerDLegerSelfId (n3)")
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
def remove_controller(controller_addr: ControllerAddress, controller_id: ControllerId) -> Action:
    """Remove a controller, dead or alive, but not the leader. Stop it afterwards."""
    return _change(REMOVE_CONTROLLER, controller_addr, ControllerIdRequest(controller_id=controller_id))


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
            group, remark = await admin.change_controllers(controller_addr, operation, request)
        except AdminError as error:
            if error.code != ResponseCode.SYSTEM_ERROR:
                raise
            # refusals have other codes: after this one the change may or may not happen
            raise AdminError(error.request, error.address, error.remark, unknown=True) from error
        return Output(dump(group), layouts.controller_metadata(group), notes=(remark,) if remark else ())

    return action
