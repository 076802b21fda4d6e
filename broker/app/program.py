"""The program mqbroker: flags, configuration, signals. If it cannot run, it prints one line to stderr and
exits with code 1.
"""

import argparse
import asyncio
import logging
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager, AsyncExitStack, nullcontext

from broker.app.broker import Broker
from broker.config.broker_config import BrokerConfig
from broker.controller_mode.broker_meta_file import BrokerMetaError
from broker.store.log.mapped_file import StoreError
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
from keelmq.runtime.isolated_log import CLOSE_S, isolated_log
from keelmq.runtime.stop_steps import StopError
from keelmq.security.open_network import warn_of_open_ports
from keelmq.security.private_file import exposed_settings, exposed_tls_file

PROGRAM = "mqbroker"
START_GIVEN_UP_S_MAX = 40.0
"""From the signal to the end of a start."""


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line of mqbroker."""
    parser = program.Parser(prog=PROGRAM, description="RocketMQ broker, one replica of a group.")
    program.add_common_arguments(parser)
    parser.add_argument("-n", dest="namesrv_addr", metavar="ADDRESSES", help="name servers, host:port;...")
    return parser


def read_config(arguments: argparse.Namespace, environ: Mapping[str, str]) -> tuple[BrokerConfig, Given]:
    """Returns the configuration and where it came from. From weak to strong: NAMESRV_ADDR, the file, changes
    at run time, KEELMQ_*, flags. ConfigError."""
    overrides = program.overrides_of(arguments.overrides)
    program.refuse_visible_secrets(overrides, BrokerConfig)
    if arguments.namesrv_addr is not None:
        overrides["namesrvAddr"] = arguments.namesrv_addr
    config = _load(Given(arguments.config, environ, overrides))
    if not config.namesrv_addr and (fallback := environ.get("NAMESRV_ADDR")):
        overrides["namesrvAddr"] = fallback
        config = _load(Given(arguments.config, environ, overrides))
    return config, Given(arguments.config, environ, overrides)


def _load(given: Given) -> BrokerConfig:
    (config,) = load_config(BrokerConfig, path=given.path, environ=given.environ, overrides=given.overrides)
    assert isinstance(config, BrokerConfig)
    return with_stored(config, given.path, given.environ, given.overrides)


async def serve(broker: Broker) -> None:
    """Runs until SIGTERM, SIGINT or SIGHUP, which also ends a start: after a crash it can be long. A second
    one ends the wait for the hand-over."""
    stop, stop_now = program.stop_events(2)
    async with AsyncExitStack() as life:
        if not await program.started(life.enter_async_context(broker), stop, START_GIVEN_UP_S_MAX):
            return
        bound = f"{broker.config.bind_address}:{broker.address.rpartition(':')[2]}"
        warn_of_open_ports(logging.getLogger(__name__), PROGRAM, broker.config, [bound])
        program.say_ready(f"{PROGRAM} {broker.status.describe()}")
        await stop.wait()
        logging.getLogger(__name__).info("stopping")
        leaving, told = asyncio.create_task(broker.leave()), asyncio.create_task(stop_now.wait())
        await asyncio.wait([leaving, told], return_when=asyncio.FIRST_COMPLETED)
        for task in (leaving, told):
            task.cancel()
        await asyncio.gather(leaving, told, return_exceptions=True)


def own_log(config: BrokerConfig) -> AbstractContextManager[object]:
    """With isolateLogEnable, the lines of the block are also in the files of this broker, as RocketMQ names
    their directory."""
    if not config.isolate_log_enable:
        return nullcontext()
    name = f"{config.broker_name}_{config.broker_id}"
    return isolated_log(name, config.log_path / name, wait_s=CLOSE_S)


def run(argv: list[str]) -> int:
    """Returns the exit code."""
    try:
        arguments = make_parser().parse_args(argv)
        program.log_to_stderr(arguments.log_level, arguments.log_format)
        config, given = read_config(arguments, os.environ)
        ignored = without_effect(
            BrokerConfig, path=given.path, environ=given.environ, overrides=given.overrides
        )
        if arguments.print_config:
            program.write_out(program.as_comments(ignored) + to_properties(config))
            return 0
        for line in ignored:
            logging.getLogger(__name__).info("%s", line)
        sources = setting_sources(
            BrokerConfig, path=given.path, environ=given.environ, overrides=given.overrides
        )
        for problem in (*exposed_settings(secret_keys(BrokerConfig), sources), *exposed_tls_file(config)):
            logging.getLogger(__name__).warning("%s", problem)
        program.raise_open_files_limit()
        with own_log(config), bounded_end(program.runner()) as runner:
            runner.run(serve(Broker(config, given)))
    except (ConfigError, BrokerMetaError, StoreError, StopError) as error:
        return program.refuse(PROGRAM, error)
    except KeyboardInterrupt:
        return 130
    return 0
