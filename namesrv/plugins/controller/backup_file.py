"""The backup file of the controllers' state: one line with the format, its version and a checksum, then JSON.

    keelmq-controllers-backup 1 <SHA-256 of everything behind this line>
    {"group":...,"leader":...,"takenMs":...,"state":{...}}

A file that is cut short, altered, or of a newer version is refused as a whole.
"""

from typing import Any, Final

import msgspec

from keelmq.runtime.checked_file import CheckedFileError, decode_checked, encode_checked
from namesrv.plugins.controller.core.state import State
from namesrv.plugins.controller.core.state_codec import StateVersionError, state_from_json

FORMAT: Final = "keelmq-controllers-backup"
VERSION: Final = 1
FILE_BYTES_MAX: Final = 1 << 30


class BackupFileError(Exception):
    """The file is not a complete backup of controllers that this release can read. The text says why."""


class ControllersBackup(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The content. group: controllerDLegerGroup. leader: the id of the controller that led, None if the state
    is of a controller that did not lead. taken_ms: ms since 1970. state: the JSON of core/state_codec.py."""

    group: str
    leader: str | None
    taken_ms: int
    state: msgspec.Raw

    def decoded(self) -> State:
        """Returns the state. Raises BackupFileError."""
        try:
            return state_from_json(bytes(self.state))
        except (StateVersionError, msgspec.DecodeError) as error:
            raise BackupFileError(f"the state in it cannot be read: {error}") from None


def encode_backup(*, group: str, leader: str | None, taken_ms: int, state: Any) -> bytes:
    """Returns the content of the file. state: the JSON value of the state."""
    backup = ControllersBackup(
        group=group, leader=leader, taken_ms=taken_ms, state=msgspec.Raw(msgspec.json.encode(state))
    )
    body = msgspec.json.encode(backup) + b"\n"
    return encode_checked(FORMAT, VERSION, body)


def decode_backup(data: bytes) -> ControllersBackup:
    """Parses the content of the file. Raises BackupFileError."""
    try:
        body = decode_checked(FORMAT, VERSION, data, "a backup of controllers")
    except CheckedFileError as error:
        raise BackupFileError(str(error)) from None
    try:
        return msgspec.json.decode(body, type=ControllersBackup)
    except msgspec.MsgspecError as error:
        raise BackupFileError(f"it cannot be read: {error}") from None
