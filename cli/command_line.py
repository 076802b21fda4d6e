"""Shared by mqadmin and the keelmq commands: checks of options, a quiet log, a refusal, a new file that
others may not read."""

import builtins
import logging
import os
import sys
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from keelmq.remoting.address_text import parse_addresses
from keelmq.runtime.durable_file import sync_directory
from keelmq.runtime.printable import printable


class Refused(Exception):
    """The command cannot be carried out. The text says why, and what to do."""


def checked_addresses(value: str | None) -> str | None:
    """Returns an address list (host:port;host:port) as it is. typer.BadParameter names the part that is no
    address."""
    if value is not None:
        try:
            parse_addresses(value)
        except ValueError as error:
            raise typer.BadParameter(f"{error} (example: 127.0.0.1:9876;127.0.0.1:9877)") from None
    return value


def not_empty(value: str) -> str:
    """Returns a name as it is. Raises typer.BadParameter: it is empty."""
    if not value:
        raise typer.BadParameter("it is empty")
    return value


def names_file(value: Path | None) -> Path | None:
    """Returns a path as it is. Raises typer.BadParameter: it has no name, as '', '.' and '/'."""
    if value is not None and not value.name:
        raise typer.BadParameter(f"'{value}' is not a file name")
    return value


_NAMESRV: Any = typer.Option(
    "-n",
    "--namesrvAddr",
    envvar="NAMESRV_ADDR",
    callback=checked_addresses,
    help="Name servers, host:port;host:port",
)
NamesrvAddr = Annotated[str, _NAMESRV]
OptionalNamesrvAddr = Annotated[str | None, _NAMESRV]


def controllers_option(help: str) -> Any:
    """Returns the flag -a."""
    return typer.Option("-a", "--controllerAddress", callback=checked_addresses, help=help)


ControllersOption = Annotated[
    str | None, controllers_option("Controllers (default: controllerAddr of the brokers)")
]

EpochFileOption = Annotated[
    Path | None,
    typer.Option(
        "--epoch-file", metavar="FILE", callback=names_file, help="storePathEpochFile, if it is set"
    ),
]


def print(*values: object, end: str = "\n", file: TextIO | None = None, flush: bool = False) -> None:
    """Prints as Python's print; on a terminal without the control characters of others' messages and names,
    which could change what the reader sees. All commands print with this."""
    stream = sys.stdout if file is None else file
    text = " ".join(map(str, values))
    text = printable(text) if stream is not None and stream.isatty() else text
    builtins.print(text, end=end, file=file, flush=flush)


class _LogLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def quiet_connection_log() -> None:
    """Keeps the warnings of keelmq.remoting off standard error: a command reports its outcome in one line."""
    for name in ("keelmq.remoting", "keelmq.runtime.tls"):
        logging.getLogger(name).addHandler(logging.NullHandler())
    if logging.lastResort is not None:  # prints the warnings of the other loggers
        logging.lastResort.setFormatter(_LogLine())


def print_error(program: str, text: str) -> None:
    """Prints one line on standard error; a server's remark may have several."""
    print(f"{program}: {' '.join(text.split())}", file=sys.stderr, flush=True)


def refused(text: str) -> typer.Exit:
    """Prints one line on standard error and returns the exit with code 1, for the caller to raise."""
    print(f"keelmq: {text}", file=sys.stderr)
    return typer.Exit(1)


def write_new_private(path: Path, data: bytes) -> None:
    """Writes a new file that only its owner may read, durably; it gets its name when it is whole. Raises
    Refused: it exists, or cannot be written."""
    partial = path.with_name(path.name + ".partial")
    try:
        if path.exists():
            raise Refused(f"{path} exists: choose another name; a backup never replaces another one")
        partial.unlink(missing_ok=True)
        file = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(file, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.link(partial, path)  # fails if another process has made it meanwhile
        partial.unlink()
        sync_directory(path.absolute().parent)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise Refused(f"cannot write {path}: {error.strerror}") from None
