"""The program mqbrokercontainer: flags, configuration, signals. If it cannot run, it prints one line to
stderr and exits with code 1; with code 75 if a thread of it hangs at its end (bounded_exit.py).
"""

import argparse
import asyncio
import logging
import os
from collections.abc import Mapping
from contextlib import AsyncExitStack

from broker.container.app import PROGRAM, ContainerServer
from broker.container.bounded_stop import CLOSE_S_MAX
from broker.container.config import ContainerConfig
from keelmq.remoting.config_store import Given, with_stored
from keelmq.runtime import program
from keelmq.runtime.bounded_exit import bounded_end
from keelmq.runtime.config import (
    ConfigError,
    load_config,
    secret_keys,
    setting_sources,
    to_properties,
    without_effect,
)
from keelmq.runtime.stop_steps import StopError
from keelmq.security.open_network import warn_of_open_ports
from keelmq.security.private_file import exposed_settings, exposed_tls_file

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


def read_config(arguments: argparse.Namespace, environ: Mapping[str, str]) -> tuple[ContainerConfig, Given]:
    """Returns the configuration and where it came from. From weak to strong: NAMESRV_ADDR, the file, changes
    at run time, KEELMQ_*, flags. ConfigError."""
    overrides = program.overrides_of(arguments.overrides)
    program.refuse_visible_secrets(overrides, ContainerConfig)
    if arguments.namesrv_addr is not None:
        overrides["namesrvAddr"] = arguments.namesrv_addr
    if arguments.broker_config_paths is not None:
        overrides["brokerConfigPaths"] = arguments.broker_config_paths
    config = _load(Given(arguments.config, environ, overrides))
    if not config.namesrv_addr and (fallback := environ.get("NAMESRV_ADDR")):
        overrides["namesrvAddr"] = fallback
        config = _load(Given(arguments.config, environ, overrides))
    return config, Given(arguments.config, environ, overrides)


def _load(given: Given) -> ContainerConfig:
    (config,) = load_config(
        ContainerConfig, path=given.path, environ=given.environ, overrides=given.overrides
    )
    assert isinstance(config, ContainerConfig)
    return with_stored(config, given.path, given.environ, given.overrides)


async def serve(server: ContainerServer) -> None:
    """Runs until SIGTERM, SIGINT or SIGHUP, which also ends a start. A second one ends the wait for the
    hand-overs."""
    stop, stop_now = program.stop_events(2)
    async with AsyncExitStack() as life:
        if not await program.started(life.enter_async_context(server), stop, CLOSE_S_MAX):
            return
        bound = f"{server.config.bind_address}:{server.port}"
        warn_of_open_ports(logger, PROGRAM, server.config, [bound])
        program.say_ready(f"{PROGRAM} {await server.describe()}")
        await stop.wait()
        logger.info("stopping")
        leaving, told = asyncio.create_task(server.leave()), asyncio.create_task(stop_now.wait())
        await asyncio.wait([leaving, told], return_when=asyncio.FIRST_COMPLETED)
        for task in (leaving, told):
            task.cancel()
        await asyncio.gather(leaving, told, return_exceptions=True)


def run(argv: list[str]) -> int:
    """Returns the exit code."""
    try:
        arguments = make_parser().parse_args(argv)
        program.log_to_stderr(arguments.log_level, arguments.log_format)
        config, given = read_config(arguments, os.environ)
        if arguments.print_config or arguments.print_important:
            lines = to_properties(config).splitlines(keepends=True)
            wanted = (line for line in lines if arguments.print_config or line.split("=")[0] in IMPORTANT)
            program.write_out(program.as_comments(_ignored(given)) + "".join(wanted))
            return 0
        _tell(config, given)
        program.raise_open_files_limit()
        program.let_the_loop_in()
        with bounded_end(program.runner()) as runner:
            runner.run(serve(ContainerServer(config, given)))
    except (ConfigError, StopError) as error:
        return program.refuse(PROGRAM, error)
    except KeyboardInterrupt:
        return 130
    return 0


def _ignored(given: Given) -> list[str]:
    return without_effect(ContainerConfig, path=given.path, environ=given.environ, overrides=given.overrides)


def _tell(config: ContainerConfig, given: Given) -> None:
    """Logs which keys have no effect, and which files with secrets others can read."""
    for line in _ignored(given):
        logger.info("%s", line)
    sources = setting_sources(
        ContainerConfig, path=given.path, environ=given.environ, overrides=given.overrides
    )
    for problem in (*exposed_settings(secret_keys(ContainerConfig), sources), *exposed_tls_file(config)):
        logger.warning("%s", problem)
