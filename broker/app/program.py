"""The program mqbroker: flags, configuration, signals. If it cannot run, it prints one line to stderr and
exits with code 1.
"""

import argparse
import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractContextManager, AsyncExitStack, nullcontext
from typing import Any, TypeVar

from broker.app.broker import Broker
from broker.config.broker_config import BrokerConfig
from broker.controller_mode.broker_meta_file import BrokerMetaError
from broker.store.log.mapped_file import StoreError
from keelmq.remoting.address_text import join_address
from keelmq.remoting.config_store import ConfigSources, StoredConfig, with_stored
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
from keelmq.runtime.stop_steps import AsyncLife, StopError
from keelmq.security.open_network import OpenNetworkConfig, warn_of_open_ports
from keelmq.security.private_file import exposed_settings, exposed_tls_file

logger = logging.getLogger(__name__)

C = TypeVar("C", bound=StoredConfig)
PROGRAM = "mqbroker"
START_GIVEN_UP_S_MAX = 40.0
"""From the signal to the end of a start."""


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line of mqbroker."""
    parser = program.Parser(prog=PROGRAM, description="RocketMQ broker, one replica of a group.")
    program.add_common_arguments(parser)
    parser.add_argument("-n", dest="namesrv_addr", metavar="ADDRESSES", help="name servers, host:port;...")
    parser.add_argument(
        "--enable-proxy",
        action="store_true",
        help="serve RocketMQ 5's own clients (gRPC), as the key enableProxy",
    )
    return parser


def read_config(
    arguments: argparse.Namespace, environ: Mapping[str, str]
) -> tuple[BrokerConfig, ConfigSources]:
    """Returns the configuration and where it came from. ConfigError."""
    flags = {"enableProxy": "true" if arguments.enable_proxy else None}
    return read_config_of(BrokerConfig, arguments, environ, flags)


def read_config_of(
    model: type[C], arguments: argparse.Namespace, environ: Mapping[str, str], flags: Mapping[str, str | None]
) -> tuple[C, ConfigSources]:
    """Returns the configuration and where it came from. From weak to strong: NAMESRV_ADDR, the file, changes
    at run time, KEELMQ_*, flags. model: has namesrvAddr. flags: {key: value} of a program's own flags; None:
    not given. ConfigError."""
    overrides = program.overrides_of(arguments.overrides)
    program.refuse_visible_secrets(overrides, model)
    flags = {"namesrvAddr": arguments.namesrv_addr, **flags}
    overrides |= {key: value for key, value in flags.items() if value is not None}
    sources = ConfigSources(arguments.config, environ, overrides)
    config = _load(model, sources)
    if not dict(config)["namesrv_addr"] and (fallback := environ.get("NAMESRV_ADDR")):
        overrides["namesrvAddr"] = fallback
        config = _load(model, sources)
    return config, sources


def _load(model: type[C], sources: ConfigSources) -> C:
    (config,) = load_config(model, path=sources.path, environ=sources.environ, overrides=sources.overrides)
    assert isinstance(config, model)
    return with_stored(config, sources.path, sources.environ, sources.overrides)


def ignored(config: OpenNetworkConfig, sources: ConfigSources) -> list[str]:
    """Returns a line for each reason why keys have no effect."""
    return without_effect(
        type(config), path=sources.path, environ=sources.environ, overrides=sources.overrides
    )


def log_settings(logger: logging.Logger, config: OpenNetworkConfig, sources: ConfigSources) -> None:
    """Logs which keys have no effect, and which files with secrets others can read."""
    model, path, environ, overrides = type(config), sources.path, sources.environ, sources.overrides
    for line in ignored(config, sources):
        logger.info("%s", line)
    by_key = setting_sources(model, path=path, environ=environ, overrides=overrides)
    for problem in (*exposed_settings(secret_keys(model), by_key), *exposed_tls_file(config)):
        logger.warning("%s", problem)


async def serve(
    life: AsyncLife,
    logger: logging.Logger,
    *,
    give_up_s: float,
    say_ready: Callable[[], Awaitable[None]],
    leave: Callable[[], Coroutine[Any, Any, None]],
) -> None:
    """Runs until SIGTERM, SIGINT or SIGHUP, which also ends a start, within give_up_s: after a crash it can
    take long. leave(): hands over before the stop; a second signal ends the wait for it."""
    stop, stop_now = program.stop_events(2)
    async with AsyncExitStack() as stack:
        if not await program.started(stack.enter_async_context(life), stop, give_up_s):
            return
        await say_ready()
        await stop.wait()
        logger.info("stopping")
        leaving, told = asyncio.create_task(leave()), asyncio.create_task(stop_now.wait())
        await asyncio.wait([leaving, told], return_when=asyncio.FIRST_COMPLETED)
        for task in (leaving, told):
            task.cancel()
        await asyncio.gather(leaving, told, return_exceptions=True)


async def _serve(broker: Broker) -> None:
    async def say_ready() -> None:
        bound = f"{broker.config.bind_address}:{broker.address.rpartition(':')[2]}"
        further = [join_address(*at) for at in broker.config.further_listeners.values()]
        warn_of_open_ports(logger, PROGRAM, broker.config, [bound, *further])
        program.say_ready(f"{PROGRAM} {broker.status.describe()}")

    await serve(broker, logger, give_up_s=START_GIVEN_UP_S_MAX, say_ready=say_ready, leave=broker.leave)


def own_log(config: BrokerConfig) -> AbstractContextManager[object]:
    """With isolateLogEnable, the log lines of the block also go to the files of this broker, in the directory
    that RocketMQ uses."""
    if not config.isolate_log_enable:
        return nullcontext()
    name = f"{config.broker_name}_{config.broker_id}"
    return isolated_log(name, config.log_path / name, wait_s=CLOSE_S)


def run(argv: list[str]) -> int:
    """Returns the exit code."""
    try:
        arguments = make_parser().parse_args(argv)
        program.log_to_stderr(arguments.log_level, arguments.log_format)
        config, sources = read_config(arguments, os.environ)
        if arguments.print_config:
            program.write_out(program.as_comments(ignored(config, sources)) + to_properties(config))
            return 0
        log_settings(logger, config, sources)
        program.raise_open_files_limit()
        with own_log(config), bounded_end(program.runner()) as runner:
            runner.run(_serve(Broker(config, sources)))
    except (ConfigError, BrokerMetaError, StoreError, StopError) as error:
        return program.refuse(PROGRAM, error)
    except KeyboardInterrupt:
        return 130
    return 0
