"""What mqadmin and the keelmq commands share: the check of an address option, a quiet log, a refusal."""

import logging
import sys
from typing import Annotated, Any

import typer

from keelmq.client.cluster.routes import parse_addresses


def checked_addresses(value: str | None) -> str | None:
    """Returns an address list (host:port;host:port) as it is. typer.BadParameter names the part that is no
    address."""
    if value is not None:
        try:
            parse_addresses(value)
        except ValueError as error:
            raise typer.BadParameter(f"{error} (example: 127.0.0.1:9876;127.0.0.1:9877)") from None
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


def quiet_connection_log() -> None:
    """Keeps the warnings of keelmq.remoting off standard error: a command reports its outcome in one line."""
    for name in ("keelmq.remoting", "keelmq.runtime.tls"):
        logging.getLogger(name).addHandler(logging.NullHandler())


def refused(text: str) -> typer.Exit:
    """Prints one line on standard error and returns the exit with code 1, for the caller to raise."""
    print(f"keelmq: {text}", file=sys.stderr)
    return typer.Exit(1)
