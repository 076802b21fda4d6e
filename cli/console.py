"""keelmq console: the console of a cluster as a separate program. Exit codes: 0 stopped, 1 it cannot start, 2
usage."""

import webbrowser
from typing import Annotated

import typer

from cli.command_line import ControllersOption, NamesrvAddr, quiet_connection_log, refused
from cli.credentials import CredentialsOption, checked_credentials
from keelmq.console.sources import POLL_MS
from keelmq.console.standalone import PORT, StandaloneConsole, StandaloneOptions
from keelmq.remoting.address_text import join_address, parse_addresses
from keelmq.remoting.addresses import is_loopback
from keelmq.runtime.config import ConfigError
from keelmq.runtime.program import log_to_stderr, runner, say_ready, stop_event


def console(
    namesrv_addr: NamesrvAddr,
    controller_addr: ControllersOption = None,
    port: Annotated[int, typer.Option("--port", min=0, max=65_535, help="HTTP port; 0: any free one")] = PORT,
    bind: Annotated[
        str, typer.Option("--bind", metavar="ADDRESS", help="Address that the port binds; 0.0.0.0: all")
    ] = "127.0.0.1",
    host: Annotated[
        list[str] | None,
        typer.Option(
            "--host", metavar="NAME", help="A host name that browsers use for the console, behind a proxy"
        ),
    ] = None,
    credentials: CredentialsOption = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Refuse all actions: only show")] = False,
    poll_ms: Annotated[
        int,
        typer.Option(
            "--poll", min=250, metavar="MS", help="ms between polls of the cluster while a page is open"
        ),
    ] = POLL_MS,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in the browser")] = False,
    log_level: Annotated[str, typer.Option("--log-level", hidden=True)] = "WARNING",
) -> None:
    """Serve a web page that shows a cluster of KeelMQ or RocketMQ, and operates it.

    With --credentials, these are used for reading only, and everybody who opens the page logs in with a user
    of the cluster. Actions are signed with that user's password.
    """
    signs_with = checked_credentials("keelmq", credentials)
    quiet_connection_log()
    log_to_stderr(log_level)
    options = StandaloneOptions(
        name_servers=parse_addresses(namesrv_addr),
        controllers=parse_addresses(controller_addr) if controller_addr else (),
        bind=bind,
        port=port,
        credentials=signs_with,
        read_only=read_only,
        poll_ms=poll_ms,
        hosts=tuple(host or ()),
    )
    if not is_loopback(bind) and signs_with is None:
        typer.echo(
            "warning: everybody who reaches this port sees the cluster, and may change it as far as it lets "
            "unsigned requests: give --credentials, or --read-only",
            err=True,
        )
    try:
        with runner() as loop:
            loop.run(_serve(options, open_page=open_page))
    except ConfigError as error:
        raise refused(str(error)) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


async def _serve(options: StandaloneOptions, *, open_page: bool) -> None:
    from keelmq.console.pages import is_built  # it imports FastAPI, which is slow

    stop = stop_event()
    console = StandaloneConsole(options)
    try:
        await console.start()
        host, port = console.address
        address = f"http://{join_address('127.0.0.1' if host in ('0.0.0.0', '::') else host, port)}/console/"
        say_ready(f"keelmq console at {address}")
        if not is_built():
            typer.echo("the page is not built (see that address); /v1/console works", err=True)
        if open_page:
            webbrowser.open(address)
        await stop.wait()
    finally:
        await console.stop()
