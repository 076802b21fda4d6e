"""Reads the file of an inner broker, which a request may have named. Reading blocks the loop, so a path that
is no regular file, or is too long, is refused first. A refusal goes over the network, so it quotes nothing
from a file that is not a broker's."""

import os
import stat
from pathlib import Path
from typing import Final

from broker.config.broker_config import BrokerConfig
from keelmq.runtime.config import ConfigError, parse_settings

FILE_BYTES_MAX: Final = 1_048_576
REFUSED: Final = "addBroker properties empty"
"""RocketMQ's words for a file that cannot be read."""
KEYS: Final = frozenset(field.alias or name for name, field in BrokerConfig.model_fields.items())


def read_settings(path: Path) -> dict[str, str]:
    """Returns the key=value lines of a broker's file. Raises ConfigError, whose text is for the operator who
    named it."""
    try:
        text = _read(path).decode()
    except OSError as error:
        raise ConfigError(f"{REFUSED}: cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{REFUSED}: {path} is not UTF-8 text") from error
    written = parse_settings(text, str(path), shows_lines=False)
    if not written:
        raise ConfigError(f"{REFUSED}: {path} has no key=value line")
    if not KEYS & written.keys():
        raise ConfigError(f"{path} is not the configuration of a broker: no line has a broker's key")
    return written


def _read(path: Path) -> bytes:
    """O_NONBLOCK: opening a named pipe would wait for its writer."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise ConfigError(f"{REFUSED}: {path} is not a regular file")
        data = file.read(FILE_BYTES_MAX + 1) if found.st_size <= FILE_BYTES_MAX else b""
        if found.st_size > FILE_BYTES_MAX or len(data) > FILE_BYTES_MAX:
            raise ConfigError(f"{REFUSED}: {path} has more than {FILE_BYTES_MAX} bytes")
        return data
