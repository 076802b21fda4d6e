"""mqnamesrv and mqcontroller: reads flags and configuration, and runs the server until SIGTERM."""

import argparse
import logging
import os
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path

from keelmq.remoting.address_text import join_address
from keelmq.remoting.booleans import is_true
from keelmq.remoting.config_store import with_stored
from keelmq.runtime.bounded_exit import bounded_end
from keelmq.runtime.config import (
    ConfigError,
    load_config,
    secret_keys,
    setting_sources,
    to_properties,
    value_of,
    without_effect,
)
from keelmq.runtime.program import (
    Parser,
    add_common_arguments,
    as_comments,
    log_to_stderr,
    overrides_of,
    raise_open_files_limit,
    refuse,
    refuse_visible_secrets,
    runner,
    say_ready,
    started,
    stop_event,
    write_out,
)
from keelmq.runtime.stop_steps import StopError
from keelmq.security.open_network import warn_of_open_ports
from keelmq.security.private_file import exposed_settings, exposed_tls_file
from namesrv.app import Namesrv, PluginChoice
from namesrv.config import NamesrvConfig
from namesrv.plugins import load_plugin

START_GIVEN_UP_S_MAX = 10.0
"""Maximum time from the signal to the end of a start."""
CONTROLLER_PLUGIN = "controller"
CONTROLLER_KEY = "enableControllerInNamesrv"


def make_parser(program: str) -> Parser:
    """Returns the parser of the command line of mqnamesrv or mqcontroller."""
    parser = Parser(prog=program, description="RocketMQ name server, with or without the controller.")
    add_common_arguments(parser)
    parser.add_argument("--controller-only", action="store_true", help="run only the controller")
    return parser


def _wants_controller(path: Path | None, environ: Mapping[str, str], overrides: Mapping[str, str]) -> bool:
    """Returns whether the controller plugin is enabled. Its keys must be known before the file is checked.
    Raises ConfigError."""
    return is_true(value_of(CONTROLLER_KEY, path=path, environ=environ, overrides=overrides))


def build(
    arguments: argparse.Namespace, environ: Mapping[str, str], *, controller_only: bool
) -> Namesrv | str:
    """Returns the server, or with -p the text to print. Raises ConfigError."""
    overrides = overrides_of(arguments.overrides)
    path: Path | None = arguments.config
    names = [CONTROLLER_PLUGIN] if controller_only or _wants_controller(path, environ, overrides) else []
    plugins = [load_plugin(name) for name in names]
    models = [model for plugin in plugins for model in plugin.config_models()]
    refuse_visible_secrets(overrides, NamesrvConfig, *models)
    config, *rest = load_config(NamesrvConfig, *models, path=path, environ=environ, overrides=overrides)
    assert isinstance(config, NamesrvConfig)
    config = with_stored(config, path, environ, overrides)
    ignored = without_effect(NamesrvConfig, *models, path=path, environ=environ, overrides=overrides)
    if controller_only and config.listeners:
        raise ConfigError("listeners: a controller without a name server has none; remove the key")
    if arguments.print_config:
        return as_comments(ignored) + "".join(to_properties(each) for each in (config, *rest))
    for line in ignored:
        logging.getLogger(__name__).info("%s", line)
    sources = setting_sources(NamesrvConfig, *models, path=path, environ=environ, overrides=overrides)
    exposed = exposed_settings(secret_keys(NamesrvConfig, *models), sources)
    for problem in (*exposed, *exposed_tls_file(config)):
        logging.getLogger(__name__).warning("%s", problem)
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
    """Runs until SIGTERM, SIGINT or SIGHUP, which also ends a start: a disk may be slow, or hang."""
    stop = stop_event()
    async with AsyncExitStack() as life:
        if not await started(life.enter_async_context(server), stop, START_GIVEN_UP_S_MAX):
            return
        warn_of_open_ports(logging.getLogger("namesrv"), program, server.config, _addresses(server))
        say_ready(_ready_line(server, program))
        await stop.wait()
        logging.getLogger("namesrv").info("stopping")


def _addresses(server: Namesrv) -> list[str]:
    """Returns host:port of every bound port that answers requests."""
    bound = [server.address] if server.has_route_service else []
    bound += server.listener_addresses
    bound += [server.http_address] if server.http_address is not None else []
    of_plugins = [plugin.health().get("address") for plugin in server.plugins]
    return [f"{host}:{port}" for host, port in bound] + [str(each) for each in of_plugins if each]


def _ready_line(server: Namesrv, program: str) -> str:
    parts = []
    if server.has_route_service:
        host, port = server.address
        parts.append(f"listening on {host}:{port}")
        for name, at in server.config.further_listeners.items():
            parts.append(f"listener {name} on {join_address(*at)}")
    if server.http_address is not None:
        parts.append(f"http on {server.http_address[0]}:{server.http_address[1]}")
    for plugin in server.plugins:
        address = plugin.health().get("address")
        parts.append(f"{plugin.name} on {address}" if address else f"with {plugin.name}")
    return f"{program} {', '.join(parts)}"


def run(program: str, argv: list[str], *, controller_only: bool = False) -> int:
    """Runs the program and returns its exit code."""
    try:
        arguments = make_parser(program).parse_args(argv)
        log_to_stderr(arguments.log_level, arguments.log_format)
        server = build(arguments, os.environ, controller_only=controller_only or arguments.controller_only)
        if isinstance(server, str):
            write_out(server)
            return 0
        raise_open_files_limit()
        with bounded_end(runner()) as loop:
            loop.run(serve(server, program))
    except (ConfigError, StopError) as error:
        return refuse(program, error)
    except KeyboardInterrupt:
        return 130
    return 0
