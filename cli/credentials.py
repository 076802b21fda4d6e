"""The credentials of a command: from a file, the environment, or RocketMQ's tools.yml. No option takes a
secret, because every user of a machine can read the command lines of its processes.

    accessKey: admin
    secretKey: "..."
    securityToken: "..."                                       # optional
    tls: {ca: ca.crt, certificate: admin.crt, key: admin.key}  # optional, relative to the file; ours

A file with `tls` makes the command connect with TLS, unless the command line has TLS options."""

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.tls_options import use_tls_of_file
from keelmq.runtime.tls.contexts import TlsSettings
from keelmq.runtime.tls.files import Names
from keelmq.security.core.plain_acl import BadPlainAcl
from keelmq.security.plain_acl_files import load_yaml
from keelmq.security.private_file import exposed
from keelmq.security.signer import Credentials

ACCESS_KEY_VARIABLE, SECRET_KEY_VARIABLE = "KEELMQ_ACCESS_KEY", "KEELMQ_SECRET_KEY"
FILE_VARIABLE = "KEELMQ_CREDENTIALS"
HOME_VARIABLE = "ROCKETMQ_HOME"
TOOLS_FILE = Path("conf") / "tools.yml"
FILE_BYTES_MAX = 65_536


CredentialsOption = Annotated[
    Path | None,
    typer.Option(
        "--credentials",
        metavar="FILE",
        help="YAML file with accessKey and secretKey, and optionally tls (default: the file that "
        "KEELMQ_CREDENTIALS names, else KEELMQ_ACCESS_KEY and KEELMQ_SECRET_KEY, else conf/tools.yml in "
        "ROCKETMQ_HOME)",
    ),
]
_TLS_KEYS = ("ca", "certificate", "key")
_IN_FILE = Names("tls.certificate", "tls.key", "MQADMIN_TLS_KEY_PASSWORD", "tls.ca")


class BadCredentials(ValueError):
    """The text says which file or variable is wrong. It never has a secret in it."""


@dataclass(frozen=True, slots=True)
class Found:
    """`tls`: the TLS settings of the file; None: it has none."""

    credentials: Credentials
    tls: TlsSettings | None = None


def checked_credentials(program: str, file: Path | None) -> Credentials | None:
    """Returns the credentials that sign a command's requests, and applies the TLS settings of the file.
    BadParameter: the file or the variables are wrong."""
    try:
        found = find_credentials(file, os.environ)
    except BadCredentials as error:
        raise typer.BadParameter(str(error)) from None
    if found is None:
        return None
    if found.tls is not None:
        use_tls_of_file(program, found.tls)
    return found.credentials


def find_credentials(file: Path | None, environ: Mapping[str, str]) -> Found | None:
    """Returns the credentials of `file`, or of the environment, or of $ROCKETMQ_HOME/conf/tools.yml; None:
    there are none. Raises BadCredentials."""
    if file is None and (named := environ.get(FILE_VARIABLE, "")):
        file = Path(named).expanduser()
    if file is not None:
        return read_credentials(file)
    access_key, secret_key = environ.get(ACCESS_KEY_VARIABLE, ""), environ.get(SECRET_KEY_VARIABLE, "")
    if access_key or secret_key:
        if not (access_key and secret_key):
            raise BadCredentials(f"{ACCESS_KEY_VARIABLE} and {SECRET_KEY_VARIABLE} are needed together")
        return Found(_made(access_key, secret_key, None, "the environment"))
    home = environ.get(HOME_VARIABLE, "")
    tools = Path(home) / TOOLS_FILE
    return read_credentials(tools) if home and tools.is_file() else None


def read_credentials(path: Path) -> Found:
    """Returns the content of a YAML file like RocketMQ's tools.yml. Raises BadCredentials: it cannot be read,
    has no keys, or any user may change it. Warns on stderr if others may read it: RocketMQ ships its
    tools.yml so, and it must work here as it is."""
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise BadCredentials(f"cannot read {path}: {error.strerror}") from None
    if mode & 0o002:
        raise BadCredentials(
            f"{path} has a secret in it and mode {mode:o}: anybody may change it; chmod 600 {path}"
        )
    if exposed(path) is not None:
        typer.echo(
            f"warning: {path} has a secret in it and mode {mode:o}: others may read it; chmod 600 {path}",
            err=True,
        )
    if len(data) > FILE_BYTES_MAX:
        raise BadCredentials(f"{path} is larger than {FILE_BYTES_MAX} bytes")
    try:
        value: Any = load_yaml(data, str(path))
    except BadPlainAcl as error:
        raise BadCredentials(str(error)) from None
    if not isinstance(value, Mapping) or not value.get("accessKey") or not value.get("secretKey"):
        raise BadCredentials(f"{path} needs accessKey and secretKey")
    token = value.get("securityToken")
    credentials = _made(
        str(value["accessKey"]), str(value["secretKey"]), None if token is None else str(token), str(path)
    )
    return Found(credentials, _tls_of(value["tls"], path) if value.get("tls") is not None else None)


def _tls_of(value: object, path: Path) -> TlsSettings:
    """Relative paths start at the file, so that its directory can be copied."""
    if not isinstance(value, Mapping) or not value.get("ca") or not value.keys() <= set(_TLS_KEYS):
        raise BadCredentials(f"{path}: tls needs ca, and may have certificate and key; all are file names")
    files = {key: path.parent / Path(str(each)).expanduser() for key, each in value.items()}
    return TlsSettings(files["ca"], files.get("certificate"), files.get("key"), names=_IN_FILE)


def _made(access_key: str, secret_key: str, token: str | None, where: str) -> Credentials:
    try:
        return Credentials(access_key, secret_key, token)
    except ValueError as error:
        raise BadCredentials(f"{where}: {error}") from None
