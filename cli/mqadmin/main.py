"""mqadmin: RocketMQ's subcommands, flags and layouts, with --json and exit codes that a script can use.

The commands are in cli/commands, what they share in cli/admin_shell.py; docs/cli.md shows each of them.
"""

from cli.admin_shell import app
from cli.commands import (
    broker,
    cluster,
    consumer,
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
    state,
    topic,
    topic_admin,
    trace,
)

MODULES = (
    controller,
    members,
    state,
    namesrv,
    cluster,
    broker,
    ha,
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
)
"""Imported for their commands, in the order of --help."""


def main() -> None:
    app(prog_name="mqadmin")


if __name__ == "__main__":
    main()
