"""mqadmin: add brokers to a container, and remove them."""

import sys
import time
from typing import Annotated

import typer

from cli.command_line import checked_addresses, print
from cli.mqadmin.confirmation import asks_first
from cli.mqadmin.layouts import container as layouts
from cli.mqadmin.shell import Action, Output, command, dump
from keelmq.client.admin import AdminClient, AdminError
from keelmq.health.findings import plural
from keelmq.remoting.address_text import parse_addresses
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operations.container import ContainerStatus

PROGRESS_S = 10.0
"""While nothing changes, progress is printed this often."""


def one_address(value: str) -> str:
    """Returns host:port. BadParameter: it is none, or more than one."""
    checked_addresses(value)
    addresses = parse_addresses(value)
    if len(addresses) != 1:
        raise typer.BadParameter(f"give one container, not {len(addresses)}: the change is made at one host")
    return addresses[0]


ContainerAddr = Annotated[
    str,
    typer.Option("-c", "--brokerContainerAddr", callback=one_address, help="The container, host:port"),
]


class ProgressLines:
    """Prints what a container does, on standard error: every change, and the same again each PROGRESS_S."""

    def __init__(self, program: str, address: str) -> None:
        self._program, self._address = program, address
        self._said, self._began_s, self._said_s = "", time.monotonic(), 0.0

    def __call__(self, status: ContainerStatus) -> None:
        text, now_s = layouts.changing(status), time.monotonic()
        if text and (text != self._said or now_s - self._said_s >= PROGRESS_S):
            took = f"{now_s - self._began_s:.0f} s"
            print(f"{self._program}: {self._address}: {text}, {took}", file=sys.stderr, flush=True)
            self._said_s = now_s
        self._said = text


def parse_identity(text: str) -> tuple[str, str, int]:
    """Returns cluster name, broker name and broker id of clusterName:brokerName:brokerId. BadParameter."""
    cluster, _, rest = text.partition(":")
    name, _, number = rest.rpartition(":")
    try:
        broker_id = int(number)
    except ValueError:
        broker_id = None
    if not cluster or not name or broker_id is None:
        raise typer.BadParameter(
            f"{text!r} is not clusterName:brokerName:brokerId (example: DefaultCluster:broker-a:0; "
            "in controller mode -1 is the group's replica in that container)"
        )
    return cluster, name, broker_id


@command("addBroker")
def add_broker(
    container_addr: ContainerAddr,
    config_path: Annotated[
        str,
        typer.Option(
            "-b", "--brokerConfigPath", help="The broker's configuration file, on the container's host"
        ),
    ],
) -> Action:
    """Add a broker to a container. While it starts, its state is shown."""

    async def action(admin: AdminClient) -> Output:
        broker = await admin.containers.add_broker(
            container_addr, config_path, ProgressLines("mqadmin", container_addr)
        )
        value = {
            "brokerContainerAddr": container_addr,
            "brokerConfigPath": config_path,
            "broker": None if broker is None else dump(broker),
        }
        return Output(value, f"add broker to {container_addr} success")

    return action


@command("removeBroker")
@asks_first
def remove_broker(
    container_addr: ContainerAddr,
    identity: Annotated[
        str,
        typer.Option(
            "-b",
            "--brokerIdentity",
            help="clusterName:brokerName:brokerId; -1 in controller mode, or the id that it has there",
        ),
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Change nothing: show the brokers of this name, and their roles")
    ] = False,
) -> Action:
    """Remove a broker from a container. It stops, a master hands over first, and its files stay."""
    cluster, name, broker_id = parse_identity(identity)

    async def action(admin: AdminClient) -> Output:
        if dry_run:
            return await _would_remove(admin, container_addr, cluster, name, broker_id)
        progress = ProgressLines("mqadmin", container_addr)
        try:
            await admin.containers.remove_broker(container_addr, cluster, name, broker_id, progress)
        except AdminError as error:
            raise await with_names(admin, error) from None
        value = {
            "brokerContainerAddr": container_addr,
            "brokerClusterName": cluster,
            "brokerName": name,
            "brokerId": broker_id,
        }
        return Output(value, f"remove broker from {container_addr} success")

    return action


async def _would_remove(admin: AdminClient, address: str, cluster: str, name: str, broker_id: int) -> Output:
    """Shows the broker that would be removed, as the container finds it: in controller mode its id may be
    given as -1."""
    try:
        found = await admin.containers.explain_remove_broker(address, cluster, name, broker_id)
    except AdminError as error:
        raise await with_names(admin, error) from None
    text = (
        f"would remove {found.canonical_name}: {found.role}, {found.state}, "
        f"{plural(found.connections, 'connection')}; its files stay in {found.store_path}"
    )
    return Output(dump(found), text)


async def with_names(admin: AdminClient, error: AdminError) -> AdminError:
    """Returns the error; if the container has no such broker, with the names of those that it has."""
    if error.code != ResponseCode.BROKER_NOT_EXIST:
        return error
    try:
        status = await admin.containers.container_status(error.address)
    except AdminError:
        return error
    names = ", ".join(
        f"{each.broker_cluster_name}:{each.broker_name}:{each.broker_id}" for each in status.brokers
    )
    return AdminError(error.request, error.address, f"{error.remark} (it has: {names or 'none'})", error.code)
