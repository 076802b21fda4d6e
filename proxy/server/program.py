"""The program mqproxy: flags, configuration, signals. If it cannot run, it prints one line to stderr and
exits with code 1."""

import argparse
import logging
import os

from broker.app.program import ignored, log_settings, read_config_of, serve
from keelmq.remoting.address_text import join_address
from keelmq.runtime import program
from keelmq.runtime.bounded_exit import bounded_end
from keelmq.runtime.config import ConfigError, to_properties
from keelmq.runtime.stop_steps import StopError
from keelmq.security.open_network import warn_of_open_ports
from proxy.server.config import ProxyConfig

PROGRAM = "mqproxy"
START_GIVEN_UP_S = 10.0

logger = logging.getLogger(__name__)


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line of mqproxy."""
    parser = program.Parser(prog=PROGRAM, description="gRPC server for RocketMQ 5's own clients.")
    program.add_common_arguments(parser)
    parser.add_argument("-n", dest="namesrv_addr", metavar="ADDRESSES", help="name servers, host:port;...")
    return parser


async def _serve(config: ProxyConfig) -> None:
    try:
        from proxy.server.app import ProxyProgram
    except ImportError as error:
        raise ConfigError(f"mqproxy needs the package {error.name}: install keelmq[grpc]") from error
    running = ProxyProgram(config)

    async def say_ready() -> None:
        address = join_address(config.bind_address, running.server.port)
        http = [] if running.http_address is None else [join_address(*running.http_address)]
        warn_of_open_ports(logger, PROGRAM, config, [address, *http])
        program.say_ready(f"{PROGRAM} {address} namesrvAddr={config.namesrv_addr}")

    await serve(running, logger, give_up_s=START_GIVEN_UP_S, say_ready=say_ready, leave=_leave)


async def _leave() -> None:
    """Nothing has to be handed over: another proxy serves the next call."""


def run(argv: list[str]) -> int:
    """Returns the exit code."""
    try:
        arguments = make_parser().parse_args(argv)
        program.log_to_stderr(arguments.log_level, arguments.log_format)
        config, given = read_config_of(ProxyConfig, arguments, os.environ, {})
        if arguments.print_config:
            program.write_out(program.as_comments(ignored(config, given)) + to_properties(config))
            return 0
        log_settings(logger, config, given)
        program.raise_open_files_limit()
        with bounded_end(program.runner()) as runner:
            runner.run(_serve(config))
    except (ConfigError, StopError) as error:
        return program.refuse(PROGRAM, error)
    except KeyboardInterrupt:
        return 130
    return 0
