"""mqadmin: RocketMQ's subcommands, flags and layouts, with --json and exit codes that a script can use.

The commands are in cli/mqadmin/commands, what they share in cli/mqadmin/shell.py; docs/cli.md shows
each of them.
"""

from typing import Annotated

import typer

from cli.answer import run_answering
from cli.command_line import print
from cli.mqadmin import coverage
from cli.mqadmin.commands import (
    auth,
    broker,
    cluster,
    consumer,
    container,
    controller,
    export,
    group,
    ha,
    members,
    message,
    monitor,
    namesrv,
    offset,
    printing,
    query,
    speed,
    topic,
    topic_admin,
    trace,
)
from cli.mqadmin.shell import app
from cli.tls_options import CaOption, CertificateOption, KeyOption, TlsOption, use_tls
from keelmq.runtime.program import version_line

MODULES = (
    controller,
    members,
    namesrv,
    cluster,
    broker,
    ha,
    container,
    topic,
    topic_admin,
    group,
    consumer,
    offset,
    message,
    query,
    trace,
    printing,
    speed,
    monitor,
    export,
    auth,
    coverage,
)
"""Imported for their commands, in the order of --help."""


def show_version(wanted: bool) -> None:
    """Prints the version and ends the program if --version is given."""
    if wanted:
        print(version_line("mqadmin"))
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=show_version, is_eager=True, help="Print the version and exit"),
    ] = False,
    tls: TlsOption = False,
    tls_ca: CaOption = None,
    tls_cert: CertificateOption = None,
    tls_key: KeyOption = None,
) -> None:
    """RocketMQ's admin commands against KeelMQ."""
    use_tls("mqadmin", tls, tls_ca, tls_cert, tls_key)


def main() -> None:
    """Runs the mqadmin command; the process ends with its exit code."""
    run_answering("mqadmin", lambda: app(prog_name="mqadmin"))


if __name__ == "__main__":
    main()
