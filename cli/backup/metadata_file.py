"""The backup file of a broker's metadata: one line with the format, its version and a checksum, then JSON.

keelmq-metadata-backup 1 <SHA-256 of everything behind this line>
{"clusterName":...,"brokerName":...,"takenMs":...,"topics":{...},"groups":{...},"offsets":{...},...}
"""

import json
from typing import Any, Final

from pydantic import Field, ValidationError

from keelmq.remoting.operation import Wire
from keelmq.remoting.operations.auth import AclInfo, UserInfo
from keelmq.remoting.operations.broker_metadata import SubscriptionGroupConfig
from keelmq.remoting.operations.route import TopicConfig
from keelmq.runtime.checked_file import CheckedFileError, decode_checked, encode_checked
from keelmq.security.core.users import InvalidUser, parse_stored_user

FORMAT: Final = "keelmq-metadata-backup"
VERSION: Final = 1
FILE_BYTES_MAX: Final = 256 << 20


class MetadataFileError(Exception):
    """The content cannot be used. The text says why, and never has a secret."""


class MetadataBackup(Wire):
    """Objects that applications and administrators created at one broker, without those that the broker
    created itself.

    taken_ms: ms since 1970. offsets: "topic@group" -> queue -> next offset to consume. users: without a
    password if none was given; brokers do not return it."""

    cluster_name: str
    broker_name: str
    taken_ms: int = 0
    topics: dict[str, TopicConfig] = Field(default_factory=dict)
    groups: dict[str, SubscriptionGroupConfig] = Field(default_factory=dict)
    offsets: dict[str, dict[int, int]] = Field(default_factory=dict)
    users: list[UserInfo] = Field(default_factory=list)
    acls: list[AclInfo] = Field(default_factory=list)


def encode_metadata(backup: MetadataBackup) -> bytes:
    """Returns the content of the file."""
    return encode_checked(FORMAT, VERSION, backup.model_dump_json(by_alias=True).encode() + b"\n")


def decode_metadata(data: bytes) -> MetadataBackup:
    """Parses the content of the file. Raises MetadataFileError."""
    try:
        return MetadataBackup.model_validate_json(
            decode_checked(FORMAT, VERSION, data, "a backup of metadata")
        )
    except CheckedFileError as error:
        raise MetadataFileError(str(error)) from None
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"]))
        raise MetadataFileError(f"it cannot be read: {where}: {problem['msg']}") from None


def passwords_of(data: bytes) -> dict[str, str]:
    """Returns user -> password of a users.json: of a broker, a name server or a controller. Raises
    MetadataFileError."""
    try:
        value: Any = json.loads(data)
        rows = value["users"]
        users = [parse_stored_user(each) for each in (rows.values() if isinstance(rows, dict) else rows)]
    except InvalidUser as error:
        raise MetadataFileError(str(error)) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise MetadataFileError('it has no {"users": ...}: is it the users.json of a broker?') from None
    return {each.username: each.password for each in users}
