"""Options of mqadmin and keelmq before the name of a command: --version, and TLS for all connections."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from cli.command_line import print
from keelmq.remoting.client import connect_with
from keelmq.runtime.config import ConfigError
from keelmq.runtime.program import version_line
from keelmq.runtime.tls.contexts import ClientTls, TlsSettings
from keelmq.runtime.tls.files import Names

TlsOption = Annotated[
    bool,
    typer.Option("--tls", envvar="MQADMIN_TLS", help="Connect with TLS; --tls-ca and --tls-cert do, too"),
]
CaOption = Annotated[
    Path | None,
    typer.Option(
        "--tls-ca", envvar="MQADMIN_TLS_CA", metavar="FILE", help="CA that the servers are verified with"
    ),
]
CertificateOption = Annotated[
    Path | None,
    typer.Option("--tls-cert", envvar="MQADMIN_TLS_CERT", metavar="FILE", help="Certificate to show, PEM"),
]
KeyOption = Annotated[
    Path | None, typer.Option("--tls-key", envvar="MQADMIN_TLS_KEY", metavar="FILE", help="Its key, PEM")
]
PASSWORD_VARIABLE = "MQADMIN_TLS_KEY_PASSWORD"
"""It has no option, because arguments are in the list of processes."""
IN_SHELL = Names("--tls-cert", "--tls-key", PASSWORD_VARIABLE, "--tls-ca")


def add_program_options(app: typer.Typer, program: str) -> None:
    """Adds --version and the TLS options."""

    def show_version(wanted: bool) -> None:
        if wanted:
            print(version_line(program))
            raise typer.Exit

    version = typer.Option(
        "--version", callback=show_version, is_eager=True, help="Print the version and exit"
    )

    @app.callback(help=app.info.help)
    def options(
        version: Annotated[bool, version] = False,
        tls: TlsOption = False,
        tls_ca: CaOption = None,
        tls_cert: CertificateOption = None,
        tls_key: KeyOption = None,
    ) -> None:
        use_tls(program, tls, tls_ca, tls_cert, tls_key)


def use_tls(program: str, tls: bool, ca: Path | None, certificate: Path | None, key: Path | None) -> None:
    """Exits with 1 and one line if a file cannot be used."""
    global _is_given, _is_plain
    _is_plain = True
    _is_given = tls or ca is not None or certificate is not None or key is not None
    if not _is_given:
        connect_with(None)
        return
    password = os.environ.get(PASSWORD_VARIABLE)
    _connect_with(program, TlsSettings(ca, certificate, key, password, names=IN_SHELL))


def use_tls_of_file(program: str, settings: TlsSettings) -> None:
    """The TLS of a credentials file, after use_tls(): its options win over the file. Exits as use_tls()."""
    if not _is_given:
        _connect_with(program, settings)


def is_plain() -> bool:
    """Returns whether the command connects without TLS."""
    return _is_plain


_is_given, _is_plain = False, True


def _connect_with(program: str, settings: TlsSettings) -> None:
    global _is_plain
    _is_plain = False
    try:
        connect_with(ClientTls.of(settings))
    except ConfigError as error:
        print(f"{program}: {error}", file=sys.stderr)
        raise typer.Exit(1) from error
