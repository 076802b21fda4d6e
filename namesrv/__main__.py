"""mqnamesrv and mqcontroller: flags, configuration, signals. Cannot run: one line on stderr, exit code 1."""

import argparse
import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from namesrv.app import Namesrv, PluginChoice
from namesrv.config import NamesrvConfig
from namesrv.plugins import load_plugin
from remoting.config import ConfigError, load_config, to_properties

CONTROLLER_PLUGIN = "controller"
OPEN_FILES_WANTED = 65_536
LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"


class _Parser(argparse.ArgumentParser):
    """Bad arguments are reported like a bad configuration: one line, exit code 1."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message} (see {self.prog} --help)")


def _parser(program: str) -> _Parser:
    parser = _Parser(prog=program, description="RocketMQ name server, with or without the controller.")
    parser.add_argument("-c", dest="config", type=Path, metavar="FILE", help="key=value configuration file")
    parser.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE", help="override one key"
    )
    parser.add_argument("--controller-only", action="store_true", help="run only the controller")
    parser.add_argument(
        "-p", dest="print_config", action="store_true", help="print the configuration and exit"
    )
    parser.add_argument("--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING", "ERROR"])
    return parser


def _overrides(pairs: list[str]) -> dict[str, str]:
    overrides = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise ConfigError(f"--set {pair!r} is not KEY=VALUE")
        overrides[key.strip()] = value.strip()
    return overrides


def _wants_controller(path: Path | None, environ: Mapping[str, str], overrides: Mapping[str, str]) -> bool:
    """Is the plugin switched on? Asked before its keys are known, so every other key is let through."""
    merged = {"enableControllerInNamesrv": "false"}
    key = "enableControllerInNamesrv"
    if path is not None and path.is_file():
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            name, equals, value = line.partition("=")
            if equals and name.strip() == key:
                merged[key] = value.strip()
    merged[key] = overrides.get(key, environ.get(f"KEELMQ_{key}", merged[key]))
    return merged[key].lower() in {"true", "1", "yes", "on"}


def build(
    arguments: argparse.Namespace, environ: Mapping[str, str], *, controller_only: bool
) -> Namesrv | str:
    """The server, or with -p the text to print. Raises ConfigError."""
    overrides = _overrides(arguments.overrides)
    path: Path | None = arguments.config
    names = [CONTROLLER_PLUGIN] if controller_only or _wants_controller(path, environ, overrides) else []
    plugins = [load_plugin(name) for name in names]
    models = [model for plugin in plugins for model in plugin.config_models()]
    config, *rest = load_config(NamesrvConfig, *models, path=path, environ=environ, overrides=overrides)
    assert isinstance(config, NamesrvConfig)
    if arguments.print_config:
        return "".join(to_properties(each) for each in (config, *rest))
    choices = []
    for plugin in plugins:
        count = len(plugin.config_models())
        choices.append(PluginChoice(plugin, tuple(rest[:count])))
        del rest[:count]
    return Namesrv(
        config,
        choices,
        route_service=not controller_only,
        config_path=path,
        environ=environ,
        overrides=overrides,
    )


async def serve(server: Namesrv, program: str) -> None:
    """Run until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with server:
        gc.collect()
        gc.freeze()  # what start-up made lives for ever: later collections need not look at it
        print(f"ready: {_ready_line(server, program)}", flush=True)
        await stop.wait()
        logging.getLogger("namesrv").info("stopping")


def _ready_line(server: Namesrv, program: str) -> str:
    parts = [program]
    if server.has_route_service:
        host, port = server.address
        parts.append(f"listening on {host}:{port}")
    if server.http_address is not None:
        parts.append(f"http on {server.http_address[0]}:{server.http_address[1]}")
    for plugin in server.plugins:
        address = plugin.health().get("address")
        parts.append(f"{plugin.name} on {address}" if address else f"with {plugin.name}")
    return ", ".join([" ".join(parts[:2]), *parts[2:]])


def run(program: str, argv: list[str], *, controller_only: bool = False) -> int:
    """Exit code."""
    try:
        arguments = _parser(program).parse_args(argv)
        logging.basicConfig(level=arguments.log_level, format=LOG_FORMAT, stream=sys.stderr)
        server = build(arguments, os.environ, controller_only=controller_only or arguments.controller_only)
        if isinstance(server, str):
            sys.stdout.write(server)
            return 0
        _raise_open_files_limit()
        with _runner() as runner:
            runner.run(serve(server, program))
    except ConfigError as error:
        print(f"{program}: {'; '.join(str(error).splitlines())}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _runner() -> "asyncio.Runner":
    try:
        import uvloop
    except ImportError:
        return asyncio.Runner()
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


def _raise_open_files_limit() -> None:
    """One connection is one file. Not raised: fewer connections, still a working server."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES_WANTED if hard == resource.RLIM_INFINITY else min(OPEN_FILES_WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def main() -> None:
    sys.exit(run("mqnamesrv", sys.argv[1:]))


def controller_main() -> None:
    sys.exit(run("mqcontroller", sys.argv[1:], controller_only=True))


if __name__ == "__main__":
    main()
