"""keelmq container: the brokers and processes of broker containers. `mqadmin` adds and removes brokers.

Exit codes: 0 done; 1 refused, not found, or a plan with problems; 2 usage; 3 no answer; 4 some of several
containers did not answer.
"""

import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from broker.container.core.identity import BrokerIdentity
from broker.container.core.placement import Placed, moves_to_even_out
from cli.command_line import checked_addresses, print_error, quiet_connection_log
from cli.credentials import CredentialsOption, checked_credentials
from cli.mqadmin.commands.container import ProgressLines, one_address
from cli.mqadmin.layouts import container as layouts
from cli.mqadmin.shell import (
    DONE,
    REFUSED,
    Output,
    check_texts,
    dump,
    exit_code_of,
    explain,
    per_server,
    print_output,
)
from cli.watch import INTERRUPTED, WatchOption, fresh_screen, repeated, run_repeated
from keelmq.client.admin import AdminClient, AdminError, ServerResult
from keelmq.client.admin.containers import brokers_named
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operations.container import BrokerState, ContainerStatus, InnerBroker

PROGRAM = "keelmq container"
NO_STATUS = "; RocketMQ's containers have no status: clusterList shows the brokers that are registered"

app = typer.Typer(
    no_args_is_help=True, help="Show the brokers of containers, check files for them, move brokers."
)

Containers = Annotated[
    str,
    typer.Option(
        "-c", "--container", callback=checked_addresses, help="Containers, host:port;host:port (port 10811)"
    ),
]
Container = Annotated[
    str, typer.Option("-c", "--container", callback=one_address, help="The container, host:port (port 10811)")
]
IdentityArgument = Annotated[
    str,
    typer.Argument(metavar="BROKER", help="clusterName:brokerName:brokerId, or the name that list shows"),
]
TimeoutOption = Annotated[
    int | None,
    typer.Option("--timeout", min=1, help="ms to wait for the response (default 3000; for a change 600000)"),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON value instead of lines")]


@app.command("list")
def list_brokers(
    container: Containers,
    timeout_ms: TimeoutOption = None,
    credentials: CredentialsOption = None,
    as_json: JsonOption = False,
    watch_s: WatchOption = None,
) -> None:
    """One line for each broker: role, state, ports, process, disk use, and why it does not serve."""

    async def action(admin: AdminClient) -> Output:
        results = await admin.each(container, admin.containers.container_status)
        brokers = [broker for each in results if each.answer is not None for broker in each.answer.brokers]
        return _per_container(results, layouts.listing(brokers))

    _run(action, credentials, timeout_ms, as_json=as_json, watch_s=watch_s)


@app.command("status")
def show_status(
    container: Containers,
    broker: Annotated[
        str | None, typer.Argument(metavar="[BROKER]", help="Only this broker, named as for move")
    ] = None,
    timeout_ms: TimeoutOption = None,
    credentials: CredentialsOption = None,
    as_json: JsonOption = False,
    watch_s: WatchOption = None,
) -> None:
    """Everything about the brokers and processes of containers, or about one broker."""

    async def action(admin: AdminClient) -> Output:
        results = await admin.each(container, admin.containers.container_status)
        if broker is not None:
            return _one_broker(results, container, broker)
        texts = [
            layouts.status(each.answer, each.answer.brokers) for each in results if each.answer is not None
        ]
        return _per_container(results, "\n\n".join(texts))

    _run(action, credentials, timeout_ms, as_json=as_json, watch_s=watch_s)


@app.command()
def plan(
    container: Container,
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FILE...]", help="Configuration files, on the container's host"),
    ] = None,
    even: Annotated[
        bool,
        typer.Option("--even", help="Instead: show moves that spread brokers over processes"),
    ] = False,
    is_moved: Annotated[
        bool, typer.Option("--move", help="With --even: make these moves, one after the other")
    ] = False,
    timeout_ms: TimeoutOption = None,
    credentials: CredentialsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check files as if they were added together, and add nothing: ports, stores, names, keys.

    With --even: which brokers should be in another process. Masters are spread first, then brokers; replicas
    of one group are kept apart as far as possible.
    """
    if even == bool(files) or (is_moved and not even):
        raise typer.BadParameter("say what to plan: FILE..., or --even (with --move to make its moves)")
    if even:
        _run(_even_out(container, is_moved=is_moved), credentials, timeout_ms, as_json=as_json)

    async def action(admin: AdminClient) -> Output:
        found = await admin.containers.container_plan(container, files or [])
        is_bad = any(each.problems for each in found.brokers)
        return Output(dump(found), layouts.plan(found), exit_code=REFUSED if is_bad else DONE)

    _run(action, credentials, timeout_ms, as_json=as_json)


@app.command()
def move(
    container: Container,
    broker: IdentityArgument,
    worker: Annotated[int, typer.Option("--worker", min=0, help="Number of the process to move it to")],
    timeout_ms: TimeoutOption = None,
    credentials: CredentialsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Move a broker to another process of its container. It stops and starts; a master hands over first."""

    async def action(admin: AdminClient) -> Output:
        found = find_broker(await admin.containers.container_status(container), broker)
        progress = ProgressLines(PROGRAM, container)
        after = await admin.containers.move_broker(container, found, worker, progress)
        value = {"container": container, "worker": worker, "broker": None if after is None else dump(after)}
        return Output(value, f"{found.canonical_name} is in worker {worker} of {container}")

    _run(action, credentials, timeout_ms, as_json=as_json)


@app.command()
def restart(
    container: Container,
    worker: Annotated[int, typer.Argument(metavar="WORKER", min=0, help="Number of the process, from 0 on")],
    timeout_ms: TimeoutOption = None,
    credentials: CredentialsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Restart one process of a container, with its brokers."""

    async def action(admin: AdminClient) -> Output:
        await admin.containers.restart_worker(container, worker, ProgressLines(PROGRAM, container))
        return Output({"container": container, "worker": worker}, f"worker {worker} of {container} restarted")

    _run(action, credentials, timeout_ms, as_json=as_json)


def _even_out(container: str, *, is_moved: bool) -> Callable[[AdminClient], Awaitable[Output]]:
    async def action(admin: AdminClient) -> Output:
        moves = even_moves(await admin.containers.container_status(container))
        lines, made = [], 0
        progress = ProgressLines(PROGRAM, container)
        for broker, target in moves:
            if is_moved:
                await admin.containers.move_broker(container, broker, target, progress)
                made += 1
                lines.append(f"{broker.canonical_name}: moved from worker {broker.worker} to worker {target}")
            else:
                name = f"{broker.broker_cluster_name}:{broker.broker_name}:{broker.broker_id}"
                lines.append(f"keelmq container move -c {container} {name} --worker {target}")
        value = {
            "container": container,
            "moved": made,
            "moves": [
                {"broker": broker.canonical_name, "from": broker.worker, "to": target}
                for broker, target in moves
            ],
        }
        return Output(value, "\n".join(lines) or "its brokers are spread evenly: nothing is to be moved")

    return action


def even_moves(status: ContainerStatus) -> list[tuple[InnerBroker, int]]:
    """Returns the brokers that should be in another process, with its number. Only brokers that serve are
    moved, and only to processes that run."""
    brokers = {
        BrokerIdentity(each.broker_cluster_name, each.broker_name, each.broker_id): each
        for each in status.brokers
        if each.state is BrokerState.SERVING
    }
    placed = [Placed(name, each.worker, is_master=each.role == "master") for name, each in brokers.items()]
    workers = [each.number for each in status.workers if each.is_running]
    moves = moves_to_even_out(placed, workers) if workers else []
    return [(brokers[each.identity], each.target) for each in moves]


def find_broker(status: ContainerStatus, text: str) -> InnerBroker:
    """Returns the broker of clusterName:brokerName:brokerId or of a canonical name. AdminError 211."""
    found = [each for each in status.brokers if each.canonical_name == text]
    cluster, _, rest = text.partition(":")
    name, _, number = rest.rpartition(":")
    if not found and number.removeprefix("-").isdecimal():
        found = brokers_named(status, cluster, name, int(number))
    if found:
        return found[0]
    names = ", ".join(each.canonical_name for each in status.brokers) or "none"
    remark = f"no broker {text} in this container (it has: {names})"
    raise AdminError("containerStatus", status.address, remark, ResponseCode.BROKER_NOT_EXIST)


def _one_broker(results: list[ServerResult[ContainerStatus]], containers: str, text: str) -> Output:
    """Returns the output about one broker. AdminError: it is in none of the containers."""
    errors = [each.error for each in results if each.error is not None]
    statuses = [each.answer for each in results if each.answer is not None]
    if not statuses:
        raise errors[0]
    names = []
    for status in statuses:
        try:
            broker = find_broker(status, text)
        except AdminError:
            names += [each.canonical_name for each in status.brokers]
        else:
            return Output(dump(broker), "\n".join(layouts.details(broker)))
    remark = f"no broker {text} there (they have: {', '.join(names) or 'none'})"
    if errors:
        remark += f", and {', '.join(error.address for error in errors)} did not answer"
    raise AdminError("containerStatus", containers, remark, ResponseCode.BROKER_NOT_EXIST)


def _per_container(results: list[ServerResult[ContainerStatus]], text: str) -> Output:
    output = per_server(results, text, lambda each: dump(each.answer) if each.answer is not None else {})
    is_found = any(each.answer is not None for each in results)
    problems = tuple(_explain(each.error) for each in results if each.error is not None)
    return replace(output, text=text if is_found else "", problems=problems)


def _run(
    action: Callable[[AdminClient], Awaitable[Output]],
    credentials: Path | None,
    timeout_ms: int | None,
    *,
    as_json: bool,
    watch_s: int | None = None,
) -> None:
    """Runs the action, with watch_s again and again, and ends the program."""
    check_texts(sys.argv[1:])
    given = checked_credentials("keelmq", credentials)
    quiet_connection_log()

    async def once(admin: AdminClient) -> int:
        try:
            output = await action(admin)
        except AdminError as error:
            fresh_screen(None if as_json else watch_s)
            print_error(PROGRAM, _explain(error))
            return exit_code_of(error)
        print_output(output, PROGRAM, as_json=as_json, watch_s=watch_s)
        return output.exit_code if output.exit_code is not None else DONE

    async def main() -> int:
        async with AdminClient(timeout_ms=timeout_ms, credentials=given) as admin:
            return await repeated(watch_s, lambda: once(admin))

    end = run_repeated(main)
    if end.exit_code == INTERRUPTED and watch_s is None:
        print_error(PROGRAM, "stopped waiting; a change goes on: `keelmq container list` shows it")
    raise end


def _explain(error: AdminError) -> str:
    is_foreign = error.request == "containerStatus" and (
        error.unknown or error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    )
    return explain(error) + (NO_STATUS if is_foreign else "")
