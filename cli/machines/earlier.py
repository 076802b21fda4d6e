"""What `keelmq init --secure` reuses to add machines: the CAs, secrets and passwords of the first files."""

from pathlib import Path

from cli.certificates import DAYS, CertificatesError, read_authority
from cli.credentials import BadCredentials, read_credentials
from cli.machines.layout import SECURITY, SETTINGS
from cli.security_files import (
    ADMIN,
    CREDENTIALS,
    OFFLINE,
    RAFT_OFFLINE,
    TOKEN_ROLES,
    Security,
    new_secret,
    token_file,
)
from keelmq.runtime.config import ConfigError, in_words, parse_settings
from keelmq.security.config import credentials_of


class EarlierFilesError(Exception):
    """The files cannot be used; the text is one line that says why."""


def read_security(directory: Path, cluster: str) -> Security:
    """Returns the secrets of the cluster whose files `keelmq init --secure` wrote to the directory. Raises
    EarlierFilesError."""
    if not (directory / OFFLINE).is_dir():
        raise EarlierFilesError(
            f"{directory / OFFLINE} is not there: put the keys of the CAs back, and take them away afterwards"
        )
    try:
        return _read(directory, cluster)
    except (OSError, ValueError, CertificatesError, ConfigError, BadCredentials) as error:
        raise EarlierFilesError(
            f"{directory} has not the files of keelmq init --secure: {in_words(error)}"
        ) from None


def _read(directory: Path, cluster: str) -> Security:
    of_machine = next(iter(sorted(directory.glob(f"*/{SETTINGS[1:]}/{SECURITY}"))), None)
    if of_machine is None:
        raise ValueError(f"no machine has {SETTINGS}/{SECURITY}")
    text = (of_machine / "namesrv.conf").read_text(encoding="utf-8")
    if (name := parse_settings(text, "namesrv.conf")["authorizationCluster"]) != cluster:
        raise ValueError(f"its cluster is {name!r}: give --cluster {name}")
    return Security(
        cluster=cluster,
        days=DAYS,
        authority=read_authority(directory / OFFLINE),
        raft_authority=read_authority(directory / RAFT_OFFLINE),
        password=read_credentials(directory / ADMIN / CREDENTIALS).credentials.secret_key,
        member_secret=credentials_of((of_machine / "member.json").read_text(encoding="utf-8")).secret_key,
        raft_key=new_secret(),  # not in these files: the controllers have certificates
        tokens={role: read_secret(directory / ADMIN / token_file(role)) for role in TOKEN_ROLES},
    )


def read_secret(path: Path) -> str:
    """Returns the one line of the file. Raises OSError, ValueError."""
    found = path.read_text(encoding="ascii").strip()
    if not found:
        raise ValueError(f"{path} is empty")
    return found
