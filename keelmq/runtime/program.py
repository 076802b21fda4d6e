"""The common part of every server program around its event loop: arguments, the open-files limit, signals,
error lines."""

import argparse
import asyncio
import contextlib
import importlib.metadata
import logging
import os
import re
import resource
import signal
import socket
import sys
import threading
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NoReturn

from keelmq.runtime import loop_watch
from keelmq.runtime.config import ENVIRON_PREFIX, Config, ConfigError, secret_keys
from keelmq.runtime.log_context import ContextFormatter, JsonFormatter, is_log_json
from keelmq.runtime.quick_start import settle_collector
from keelmq.runtime.stop_steps import StopError

DISTRIBUTION = "keelmq"
TEXT, JSON = "text", "json"
"""Values of --log-format."""
OPEN_FILES_WANTED = 65_536
OPEN_FILES_MIN = 32
"""Below it an event loop or a store cannot be opened."""
SWITCH_S = 0.0005
NOTIFY_S_MAX = 1.0
STDERR = 2


class Parser(argparse.ArgumentParser):
    """An argument parser that reports bad arguments like a bad configuration: one line, exit code 1."""

    def error(self, message: str) -> NoReturn:
        """Raises ConfigError."""
        if re.search(r"unrecognized arguments:.* [A-Za-z0-9.]+=", message):
            message += "; write a setting as --set key=value: RocketMQ's programs ignore one without it"
        raise ConfigError(f"{message} (see {self.prog} --help)")


@cache
def installed_version() -> str:
    """Returns the version of the installed package; "": this checkout is not installed. Cached at the start
    of a server: its files may be replaced by another version while it runs."""
    try:
        return importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return ""


def version_line(program: str) -> str:
    """Returns `program` and its version; "unknown" in a checkout that is not installed."""
    version = installed_version()
    return f"{program} {version or f'unknown: the package {DISTRIBUTION} is not installed'}"


def as_comments(lines: Iterable[str]) -> str:
    """Returns the lines as comments of a configuration file."""
    return "".join(f"# {line}\n" for line in lines)


def write_out(text: str) -> None:
    """Writes to standard output. Raises ConfigError: it is closed, or it cannot be written."""
    why = "it is closed"
    if sys.stdout is not None:
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except OSError as error:
            why = str(error.strerror)
            _give_up_stdout()
        else:
            return
    raise ConfigError(f"standard output cannot be written: {why}")


def _give_up_stdout() -> None:
    """Python writes at its end what is left in the stream, and would report the error again."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


class _Version(argparse.Action):
    """Reads the metadata only for --version."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        write_out(version_line(parser.prog) + "\n")
        parser.exit()


def add_common_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --version, -c, --set and -p."""
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    parser.add_argument("-c", dest="config", type=Path, metavar="FILE", help="key=value configuration file")
    parser.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE", help="override one key"
    )
    parser.add_argument(
        "-p", dest="print_config", action="store_true", help="print the configuration and exit"
    )
    parser.add_argument("--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING", "ERROR"])
    add_log_format(parser)


def add_log_format(parser: argparse.ArgumentParser) -> None:
    """Adds --log-format."""
    parser.add_argument(
        "--log-format", default=TEXT, choices=[TEXT, JSON], help="json: one JSON object for each line"
    )


def overrides_of(pairs: Iterable[str]) -> dict[str, str]:
    """Returns the settings of --set, ["key=value", ...]. Raises ConfigError."""
    overrides = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise ConfigError(f"--set {pair!r} is not KEY=VALUE")
        overrides[key.strip()] = value.strip()
    return overrides


def refuse_visible_secrets(overrides: Mapping[str, str], *models: type[Config]) -> None:
    """Raises ConfigError if --set has a secret: every user of a machine can read the command lines of its
    processes."""
    for key in sorted(secret_keys(*models) & overrides.keys()):
        raise ConfigError(
            f"--set {key} shows a secret to every user of this machine, in the list of processes: write the "
            f"key into the file of -c (chmod 600), or set {ENVIRON_PREFIX}{key}, and choose a new secret"
        )


def runner() -> asyncio.Runner:
    """Returns a runner on uvloop where it is installed."""
    hold_standard_descriptors()
    try:
        import uvloop
    except ImportError:
        return asyncio.Runner()
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


def hold_standard_descriptors() -> None:
    """Opens /dev/null in place of closed standard input, output or error. A socket or a file would get
    the number instead, and code that writes to standard error would write into it; libuv aborts the process
    when it closes one."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= STDERR:
        os.set_inheritable(descriptor, True)  # as the real ones
    os.close(descriptor)


def log_to_stderr(level: str, log_format: str = TEXT) -> None:
    """Makes stderr the log of this process: lines of this level and above, with their context if they have
    one. As logging.basicConfig(), it changes nothing if there is a log already."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == JSON else ContextFormatter())
    logging.basicConfig(level=level, handlers=[handler])


def let_the_loop_in() -> None:
    """For a process in which one broker's thread may work for seconds while the loop serves others: the loop
    gets Python's lock within SWITCH_S, and not within 5 ms, after each of its waits."""
    sys.setswitchinterval(SWITCH_S)


def raise_open_files_limit() -> None:
    """Raises the soft limit to OPEN_FILES_WANTED, or to the hard limit if that is lower: each connection is a
    file. ConfigError: the hard limit is below OPEN_FILES_MIN."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES_WANTED if hard == resource.RLIM_INFINITY else min(OPEN_FILES_WANTED, hard)
    if wanted < OPEN_FILES_MIN:
        raise ConfigError(
            f"the limit of open files is {hard}; at least {OPEN_FILES_MIN} are needed: "
            f"raise it (ulimit -Hn), {OPEN_FILES_WANTED} are enough"
        )
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def stop_event() -> asyncio.Event:
    """Returns an event that SIGTERM, SIGINT and SIGHUP set."""
    return stop_events(1)[0]


def stop_events(count: int) -> list[asyncio.Event]:
    """Returns events: the first SIGTERM or SIGINT sets the first one, the second the second, and so on. A
    SIGHUP sets only the first one, because a terminal that is closed sends several, and none where it is
    ignored (nohup); as in Java."""
    events = [asyncio.Event() for _ in range(count)]

    def stop() -> None:
        next((event for event in events if not event.is_set()), events[-1]).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        loop.add_signal_handler(signal.SIGHUP, events[0].set)
    return events


async def started(start: Coroutine[object, object, object], stop: asyncio.Event, seconds: float) -> bool:
    """Waits for a start, or for `stop`. Returns False: `stop` was set, and what had started is stopped.
    Raises what the start raises, and StopError if it does not end within `seconds` of `stop`."""
    starting, told = asyncio.create_task(start), asyncio.create_task(stop.wait())
    await asyncio.wait([starting, told], return_when=asyncio.FIRST_COMPLETED)
    told.cancel()
    if not starting.done():
        logging.getLogger(__name__).info("stopping before the start is complete")
        starting.cancel()
        await asyncio.wait([starting], timeout=seconds)
        if not starting.done():
            raise StopError("the start hangs; it is left as it is")
    if starting.cancelled():
        return False
    starting.result()
    return True


@contextlib.contextmanager
def stopped_by_signal(stopped: threading.Event) -> Iterator[None]:
    """Sets `stopped` at SIGTERM or SIGINT, without an event loop; puts back the handlers that were there. For
    the main thread."""
    signals = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, lambda *_: stopped.set()) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def say_ready(line: str) -> None:
    """Prints the ready line, for which scripts and tests wait, and notifies systemd. If that fails, the
    server serves all the same. From now on the event loop is watched."""
    installed_version()
    settle_collector()
    loop_watch.start()
    _notify_systemd()
    if sys.stdout is None:  # closed: no reader waits
        return
    try:
        sys.stdout.write(f"ready: {line}\n")
        sys.stdout.flush()
    except OSError as error:
        logging.getLogger(__name__).warning("the ready line cannot be written: %s", error.strerror)
        _give_up_stdout()


def _notify_systemd() -> None:
    """Sends READY=1, for which systemd waits if the unit has Type=notify: sd_notify(3)."""
    address = os.environ.pop("NOTIFY_SOCKET", "")  # no child of this process speaks for it
    if not address:
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.settimeout(NOTIFY_S_MAX)
            manager.connect("\0" + address[1:] if address.startswith("@") else address)
            manager.send(b"READY=1")
    except OSError as error:
        logging.getLogger(__name__).warning("systemd cannot be notified at %s: %s", address, error)


def refuse(program: str, error: Exception) -> int:
    """Prints the error as one line to stderr, in a JSON log as an event of it; returns the exit code."""
    text = "; ".join(str(error).splitlines())
    if is_log_json():
        logging.getLogger(program).critical(text)
    else:
        sys.stderr.write(f"{program}: {text}\n")
    return 1
