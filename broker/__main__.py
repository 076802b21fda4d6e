"""mqbroker: flags, configuration, signals. Cannot run: one line on stderr, exit code 1."""

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Mapping

from broker.app import Broker
from broker.config import BrokerConfig
from broker.store.mapped_file import StoreError
from broker.store.meta_file import BrokerMetaError
from remoting import program
from remoting.config import ConfigError, load_config, to_properties

PROGRAM = "mqbroker"


def _parser() -> argparse.ArgumentParser:
    parser = program.Parser(prog=PROGRAM, description="RocketMQ broker, one replica of a group.")
    program.add_common_arguments(parser)
    parser.add_argument("-n", dest="namesrv_addr", metavar="ADDRESSES", help="name servers, host:port;...")
    return parser


def read_config(arguments: argparse.Namespace, environ: Mapping[str, str]) -> BrokerConfig:
    """NAMESRV_ADDR below the file, KEELMQ_* above it, flags above all. Raises ConfigError."""
    overrides = program.overrides_of(arguments.overrides)
    if arguments.namesrv_addr is not None:
        overrides["namesrvAddr"] = arguments.namesrv_addr
    (config,) = load_config(BrokerConfig, path=arguments.config, environ=environ, overrides=overrides)
    assert isinstance(config, BrokerConfig)
    if not config.namesrv_addr and (fallback := environ.get("NAMESRV_ADDR")):
        overrides["namesrvAddr"] = fallback
        (config,) = load_config(BrokerConfig, path=arguments.config, environ=environ, overrides=overrides)
        assert isinstance(config, BrokerConfig)
    return config


async def serve(broker: Broker) -> None:
    """Run until SIGTERM or SIGINT; a second one does not wait for the hand-over."""
    stop, stop_now = program.stop_events(2)
    async with broker:
        program.say_ready(f"{PROGRAM} {broker.describe()}")
        await stop.wait()
        logging.getLogger(__name__).info("stopping")
        leaving, told = asyncio.create_task(broker.leave()), asyncio.create_task(stop_now.wait())
        await asyncio.wait([leaving, told], return_when=asyncio.FIRST_COMPLETED)
        for task in (leaving, told):
            task.cancel()
        await asyncio.gather(leaving, told, return_exceptions=True)


def run(argv: list[str]) -> int:
    """Exit code."""
    try:
        arguments = _parser().parse_args(argv)
        logging.basicConfig(
            level=arguments.log_level,
            format=program.LOG_FORMAT,
            datefmt=program.LOG_TIME_FORMAT,
            stream=sys.stderr,
        )
        config = read_config(arguments, os.environ)
        if arguments.print_config:
            sys.stdout.write(to_properties(config))
            return 0
        program.raise_open_files_limit()
        with program.runner() as runner:
            runner.run(serve(Broker(config)))
    except (ConfigError, BrokerMetaError, StoreError) as error:
        return program.refuse(PROGRAM, error)
    except KeyboardInterrupt:
        return 130
    return 0


def main() -> None:
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
