"""mqadmin: which controllers there are, changed while they run (not in RocketMQ). Any of -a may be named: the
one that leads is found from it, and answers with the group as it is afterwards."""

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
    str, typer.Option("-id", "--controllerId", help="Its id, as in controllerDLegerSelfId (n3)")
]


@command("addController")
def add_controller(
    controller_addr: ControllerAddress,
    controller_id: ControllerId,
    peer: Annotated[
        str,
        typer.Option("-p", "--peer", callback=checked_addresses, help="Where it serves requests, host:port"),
    ],
) -> Action:
    """One more controller. It must be running, with an empty directory and all members in its peers."""
    return _change(
        ADD_CONTROLLER,
        controller_addr,
        AddControllerRequest(controller_id=controller_id, controller_address=peer),
    )


@command("removeController")
def remove_controller(controller_addr: ControllerAddress, controller_id: ControllerId) -> Action:
    """One controller less, also a dead one; not the one that leads. Stop it afterwards."""
    return _change(REMOVE_CONTROLLER, controller_addr, ControllerIdRequest(controller_id=controller_id))


@command("transferLeader")
def transfer_leader(controller_addr: ControllerAddress, controller_id: ControllerId) -> Action:
    """Another controller leads; no master changes."""
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
            # they refuse with other codes: this one is of a change whose fate nobody knows
            raise AdminError(error.request, error.address, error.remark, unknown=True) from error
        return Output(dump(group), layouts.controller_metadata(group), notes=(remark,) if remark else ())

    return action
