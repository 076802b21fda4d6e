"""What every server program does around its event loop: arguments, the open-files limit, signals, error
lines.
"""

import argparse
import asyncio
import gc
import importlib.metadata
import resource
import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

from keelmq.runtime.config import ConfigError

DISTRIBUTION = "keelmq"
OPEN_FILES_WANTED = 65_536
YOUNG_OBJECTS_MAX = 20_000
"""New objects, dropped ones not counted, at which the collector looks for cycles among them (Python: 700)."""
LOG_FORMAT = "%(asctime)s.%(msecs)03d %(levelname)s %(name)s %(message)s"
LOG_TIME_FORMAT = "%Y-%m-%d %H:%M:%S"


class Parser(argparse.ArgumentParser):
    """Reports bad arguments like a bad configuration: one line, exit code 1."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message} (see {self.prog} --help)")


def version_line(program: str) -> str:
    """`program` and the version of the installed package; of a checkout that is not installed, "unknown"."""
    try:
        return f"{program} {importlib.metadata.version(DISTRIBUTION)}"
    except importlib.metadata.PackageNotFoundError:
        return f"{program} unknown: the package {DISTRIBUTION} is not installed"


class _Version(argparse.Action):
    """Reads the metadata only when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        sys.stdout.write(version_line(parser.prog) + "\n")
        parser.exit()


def add_common_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    parser.add_argument("-c", dest="config", type=Path, metavar="FILE", help="key=value configuration file")
    parser.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE", help="override one key"
    )
    parser.add_argument(
        "-p", dest="print_config", action="store_true", help="print the configuration and exit"
    )
    parser.add_argument("--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING", "ERROR"])


def overrides_of(pairs: Iterable[str]) -> dict[str, str]:
    """["key=value", ...] of --set. Raises ConfigError."""
    overrides = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise ConfigError(f"--set {pair!r} is not KEY=VALUE")
        overrides[key.strip()] = value.strip()
    return overrides


def runner() -> asyncio.Runner:
    """Returns a runner on uvloop where it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.Runner()
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


def raise_open_files_limit() -> None:
    """One connection is one file. Not raised: fewer connections, still a working server."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES_WANTED if hard == resource.RLIM_INFINITY else min(OPEN_FILES_WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def stop_event() -> asyncio.Event:
    """Set by SIGTERM and SIGINT."""
    return stop_events(1)[0]


def stop_events(count: int) -> list[asyncio.Event]:
    """The first SIGTERM or SIGINT sets the first one, the second the second, and so on."""
    events = [asyncio.Event() for _ in range(count)]

    def stop() -> None:
        next((event for event in events if not event.is_set()), events[-1]).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    return events


def say_ready(line: str) -> None:
    """Prints the line that scripts and tests wait for."""
    settle_collector()
    sys.stdout.write(f"ready: {line}\n")
    sys.stdout.flush()


def settle_collector() -> None:
    """Freezes the objects of the start, which live for ever, so the collector skips them. Also makes
    collections rarer: a server drops per request what it makes per request, and with thousands of open
    requests each collection visits all of them and frees nothing."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS_MAX, *gc.get_threshold()[1:])


def refuse(program: str, error: Exception) -> int:
    """Prints one line to stderr; returns the exit code."""
    sys.stderr.write(f"{program}: {'; '.join(str(error).splitlines())}\n")
    return 1
