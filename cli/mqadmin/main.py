"""mqadmin: RocketMQ's subcommands, flags and layouts, with --json and exit codes that a script can use.

The commands are in cli/mqadmin/commands, shared code in cli/mqadmin/shell.py; docs/cli.md shows each of them.
"""

from cli.answer import run_answering
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
from cli.mqadmin.shell import PROGRAM, app
from cli.tls_options import add_program_options

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


add_program_options(app, PROGRAM)


def main() -> None:
    """Runs the mqadmin command; the process ends with its exit code."""
    run_answering(PROGRAM, lambda: app(prog_name=PROGRAM))


if __name__ == "__main__":
    main()
