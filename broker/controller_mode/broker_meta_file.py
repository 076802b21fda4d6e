"""The broker's identity on disk: `.broker.meta.temp` while it applies for an id, then `.broker.meta`.

One line of JSON with a checksum: {"brokerId":1,"brokerName":"b","clusterName":"C","crc32":N,
"registerCheckCode":"host:port;millis"}. A crash leaves the old file or the new one, never a part of one. So
an unreadable file is damaged, or belongs to another disk, and the broker does not start with it: a new id
would leave the old one in the SyncStateSet permanently (broker-ha pitfall 27).
"""

import json
import os
import zlib
from contextlib import suppress
from pathlib import Path

import msgspec

from keelmq.runtime.durable_file import replace_file, sync_directory

META_NAME = ".broker.meta"
TEMP_NAME = ".broker.meta.temp"
META_BYTES_MAX = 65_536


class BrokerMetaError(Exception):
    """The identity cannot be trusted, and an operator must decide. The text is one line with the remedy."""


class BrokerMeta(msgspec.Struct, frozen=True):
    """The broker to which this disk belongs. register_check_code: "<brokerAddr>;<millis>". It is the same at
    every try, so that 1013 can be repeated."""

    cluster_name: str
    broker_name: str
    broker_id: int
    register_check_code: str = ""


class MetaFiles:
    """The two files in `directory` (storePathRootDir)."""

    def __init__(self, directory: Path, *, cluster_name: str, broker_name: str) -> None:
        self.meta_path = directory / META_NAME
        self.temp_path = directory / TEMP_NAME
        self._cluster_name, self._broker_name = cluster_name, broker_name

    def load(self) -> tuple[BrokerMeta | None, BrokerMeta | None]:
        """Returns (temp, meta); None: no such file. Raises BrokerMetaError for a damaged or foreign file."""
        return self._read(self.temp_path), self._read(self.meta_path)

    def write_temp(self, broker_id: int, register_check_code: str) -> BrokerMeta:
        """Writes .broker.meta.temp durably, before the broker applies for the id. Raises OSError."""
        meta = BrokerMeta(self._cluster_name, self._broker_name, broker_id, register_check_code)
        replace_file(self.temp_path, encode_meta(meta), keep_backup=False)
        return meta

    def delete_temp(self) -> None:
        """Deletes .broker.meta.temp durably, if it exists. Raises OSError."""
        with suppress(FileNotFoundError):
            self.temp_path.unlink()
        sync_directory(self.temp_path.parent)

    def replace_temp_by_meta(self) -> None:
        """Renames .broker.meta.temp to .broker.meta, durably. Raises OSError."""
        os.replace(self.temp_path, self.meta_path)
        sync_directory(self.meta_path.parent)

    def _read(self, path: Path) -> BrokerMeta | None:
        try:
            with path.open("rb") as file:
                raw = file.read(META_BYTES_MAX + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise BrokerMetaError(f"cannot read broker identity {path}: {error.strerror}") from error
        try:
            meta = decode_meta(raw)
        except ValueError as error:
            raise BrokerMetaError(
                f"broker identity {path} is damaged ({error}); restore it from a backup, or, to give this "
                f"broker a new id on purpose, remove it and clean the old id with cleanBrokerMetadata"
            ) from error
        here, there = (self._cluster_name, self._broker_name), (meta.cluster_name, meta.broker_name)
        if here != there:
            raise BrokerMetaError(
                f"broker identity {path} belongs to {'/'.join(there)}, but the configuration says "
                f"{'/'.join(here)}; wrong storePathRootDir, brokerClusterName or brokerName?"
            )
        return meta


def encode_meta(meta: BrokerMeta) -> bytes:
    """Returns one line of JSON with sorted members. crc32 covers the JSON without that member."""
    members: dict[str, object] = {
        "brokerId": meta.broker_id,
        "brokerName": meta.broker_name,
        "clusterName": meta.cluster_name,
        "registerCheckCode": meta.register_check_code,
    }
    return _dump({**members, "crc32": zlib.crc32(_dump(members))}) + b"\n"


def decode_meta(raw: bytes) -> BrokerMeta:
    """Parses an identity. Raises ValueError with the fault: too long, not JSON, a missing member, a wrong
    checksum."""
    if len(raw) > META_BYTES_MAX:
        raise ValueError(f"more than {META_BYTES_MAX} bytes")
    if not raw.strip(b"\0\n \t"):
        raise ValueError("empty")
    try:
        members = json.loads(raw)
    except ValueError as error:
        raise ValueError("not JSON") from error
    if not isinstance(members, dict):
        raise ValueError("not a JSON object")
    crc32 = members.pop("crc32", None)
    if crc32 != zlib.crc32(_dump(members)):
        raise ValueError("checksum does not match")
    broker_id = members.get("brokerId")
    if type(broker_id) is not int or broker_id < 1:
        raise ValueError(f"brokerId {broker_id!r}")
    names = [members.get(key) for key in ("clusterName", "brokerName", "registerCheckCode")]
    if not all(isinstance(name, str) for name in names):
        raise ValueError("clusterName, brokerName or registerCheckCode is missing")
    cluster_name, broker_name, check_code = (str(name) for name in names)
    return BrokerMeta(cluster_name, broker_name, broker_id, check_code)


def _dump(members: dict[str, object]) -> bytes:
    return json.dumps(members, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
