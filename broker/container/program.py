"""The program mqbrokercontainer: flags, configuration, signals. If it cannot run, it prints one line to
stderr and exits with code 1; with code 75 if one of its threads hangs at the end (bounded_exit.py).
"""

import argparse
import logging
import os
from collections.abc import Mapping

from broker.app.program import ignored, log_settings, read_config_of, serve
from broker.container.app import PROGRAM, ContainerServer
from broker.container.bounded_stop import CLOSE_S_MAX
from broker.container.config import ContainerConfig
from keelmq.remoting.config_store import ConfigSources
from keelmq.runtime import program
from keelmq.runtime.bounded_exit import bounded_end
from keelmq.runtime.config import (
    ConfigError,
    to_properties,
)
from keelmq.runtime.stop_steps import StopError
from keelmq.security.open_network import warn_of_open_ports

IMPORTANT = frozenset(
    {
        "bindAddress",
        "brokerConfigPaths",
        "brokerContainerIP",
        "containerProcesses",
        "httpPort",
        "listenPort",
        "namesrvAddr",
    }
)
"""Keys that -m prints."""

logger = logging.getLogger(__name__)


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line of mqbrokercontainer."""
    parser = program.Parser(prog=PROGRAM, description="RocketMQ broker container: several brokers.")
    program.add_common_arguments(parser)
    parser.add_argument("-n", dest="namesrv_addr", metavar="ADDRESSES", help="name servers, host:port;...")
    parser.add_argument(
        "-b", dest="broker_config_paths", metavar="FILES", help="files of the brokers, FILE:FILE:..."
    )
    parser.add_argument(
        "-m", dest="print_important", action="store_true", help="print the important settings and exit"
    )
    return parser


def read_config(
    arguments: argparse.Namespace, environ: Mapping[str, str]
) -> tuple[ContainerConfig, ConfigSources]:
    """Returns the configuration and where it came from. ConfigError."""
    flags = {"brokerConfigPaths": arguments.broker_config_paths}
    return read_config_of(ContainerConfig, arguments, environ, flags)


async def _serve(server: ContainerServer) -> None:
    async def say_ready() -> None:
        bound = f"{server.config.bind_address}:{server.port}"
        warn_of_open_ports(logger, PROGRAM, server.config, [bound])
        program.say_ready(f"{PROGRAM} {await server.describe()}")

    await serve(server, logger, give_up_s=CLOSE_S_MAX, say_ready=say_ready, leave=server.leave)


def run(argv: list[str]) -> int:
    """Returns the exit code."""
    try:
        arguments = make_parser().parse_args(argv)
        program.log_to_stderr(arguments.log_level, arguments.log_format)
        config, sources = read_config(arguments, os.environ)
        if arguments.print_config or arguments.print_important:
            lines = to_properties(config).splitlines(keepends=True)
            wanted = (line for line in lines if arguments.print_config or line.split("=")[0] in IMPORTANT)
            program.write_out(program.as_comments(ignored(config, sources)) + "".join(wanted))
            return 0
        log_settings(logger, config, sources)
        program.raise_open_files_limit()
        program.let_the_loop_in()
        with bounded_end(program.runner()) as runner:
            runner.run(_serve(ContainerServer(config, sources)))
    except (ConfigError, StopError) as error:
        return program.refuse(PROGRAM, error)
    except KeyboardInterrupt:
        return 130
    return 0
