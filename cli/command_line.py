"""What mqadmin and the keelmq commands share: the check of an address option, and a quiet log."""

import logging

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


def quiet_connection_log() -> None:
    """Keeps the warnings of keelmq.remoting off standard error: a command reports its outcome in one line."""
    for name in ("keelmq.remoting", "keelmq.runtime.tls"):
        logging.getLogger(name).addHandler(logging.NullHandler())
