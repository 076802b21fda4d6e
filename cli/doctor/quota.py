"""Data that a disk quota would delete at once, by the files of a broker that may not run yet."""

from collections.abc import Iterator
from pathlib import Path

from broker.config.broker_config import BrokerConfig
from cli.doctor.files import ConfigFile
from keelmq.health.findings import Finding, ok, warning
from keelmq.runtime.disk_room import disk_room

CHECK = "machine.quota"
PARTS = ("commitlog", "consumequeue", "batchconsumequeue", "index")
GIB = 1 << 30


def check_quota(file: ConfigFile) -> list[Finding]:
    """Returns a finding per partition of a broker with a quota: a warning if its store has more than it may
    keep."""
    if file.broker is None or not file.broker.retention.has_quota:
        return []
    return list(_findings(file.name, file.broker))


def _findings(name: str, broker: BrokerConfig) -> Iterator[Finding]:
    rules = broker.retention
    used: dict[int, int] = {}
    paths: dict[int, Path] = {}
    for path in (broker.store_path_root_dir / part for part in PARTS):
        if path.is_dir():
            device = path.stat().st_dev
            paths.setdefault(device, path)
            used[device] = used.get(device, 0) + _bytes_below(path)
    for device, path in paths.items():
        quota = rules.quota_bytes(disk_room(path).total)
        excess = used[device] - rules.forced_bytes(quota)
        text = f"the quota on the disk of {path} is {_gib(quota)}, the store uses {_gib(used[device])}"
        if excess > 0 and rules.force:
            yield warning(
                CHECK,
                name,
                f"{text}: this broker deletes its oldest messages, about {_gib(excess)}, whatever their age",
                "set cleanFileForciblyEnable=false or another quota if they are needed",
            )
        else:
            yield ok(CHECK, name, text)


def _bytes_below(directory: Path) -> int:
    """Returns the total size, as the broker counts it: sparse files with their full length."""
    total = 0
    for path in directory.rglob("*"):
        try:
            if path.name.isdecimal() and path.is_file():
                total += path.stat().st_size
        except FileNotFoundError:  # a running broker has deleted it
            continue
    return total


def _gib(count: int) -> str:
    return f"{count / GIB:.2f} GiB"
