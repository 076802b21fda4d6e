"""Files with secrets in them: read only if no other user can, or with a warning where RocketMQ's files must
work as they are."""

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from keelmq.runtime.tls.settings import DEFAULT_FILE, TlsConfig, with_file

OTHERS = 0o007
GROUP = 0o070


def read_private(path: Path, limit: int) -> bytes:
    """Returns the content. Raises OSError; ValueError, without the path: others may open it, or it has more
    than `limit` bytes.

    A file of our own must be ours alone. One of root's, as orchestrators mount secrets and `keelmq init`
    installs them, may be readable by its group."""
    with path.open("rb") as file:
        if problem := _problem(os.fstat(file.fileno()), path):
            raise ValueError(problem)
        data = file.read(limit + 1)
    if len(data) > limit:
        raise ValueError(f"has more than {limit} bytes")
    return data


def exposed(path: Path) -> str | None:
    """Returns what is wrong with the mode of a file with secrets; None: nothing, or there is no such file."""
    try:
        problem = _problem(path.stat(), path)
    except OSError:
        return None
    return None if problem is None else f"{path} {problem}"


def exposed_settings(secret_keys: Iterable[str], sources: Mapping[str, str]) -> Iterator[str]:
    """Yields a warning for each configuration file that has a secret in it and that others may open. sources:
    of setting_sources()."""
    files = dict.fromkeys(
        file
        for key in sorted(secret_keys)
        for file, is_file, _line in [sources.get(key, "").rpartition(" line ")]
        if is_file
    )
    for file in files:
        if problem := exposed(Path(file)):
            yield problem


def exposed_tls_file(config: TlsConfig) -> Iterator[str]:
    """Yields a warning if tls.config.file has the password of a key and others may open it. Raises
    ConfigError: it cannot be read."""
    keys = with_file(config)
    passwords = (keys.tls_server_key_password, keys.tls_client_key_password)
    in_file = passwords != (config.tls_server_key_password, config.tls_client_key_password)
    if in_file and (problem := exposed(config.tls_config_file or DEFAULT_FILE)):
        yield problem


def _problem(status: os.stat_result, path: Path) -> str | None:
    mode = stat.S_IMODE(status.st_mode)
    # As root, keelmq doctor looks at what a program of that group reads.
    is_granted = status.st_uid == 0 and (os.geteuid() != 0 or status.st_gid != 0)
    if mode & (OTHERS if is_granted else OTHERS | GROUP):
        return f"has secrets in it and mode {mode:o}: others may open it; chmod 600 {path}"
    return None
