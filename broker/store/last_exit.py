"""How the previous process ended, by the file `abort`, which exists while a broker runs, and after a crash.

The file also names the boot of the system. In the same boot the system still has all bytes that the process
wrote, synced or not: then a log that ends in front of its queue entries is no power failure, but damage. The
boot is the host's, also in a container; a store that has moved to another host was written in another boot.
"""

import os
from pathlib import Path
from typing import Final, NamedTuple

from broker.store.log.mapped_file import write_mark

FILE_NAME: Final = "abort"
_PREFIX: Final = "keelmq "
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class LastExit(NamedTuple):
    """abnormal: a crash. is_own: of a KeelMQ process, so everything that its checkpoint counts is durable.
    same_boot: and the system has not been restarted since that process began."""

    abnormal: bool
    is_own: bool
    same_boot: bool

    @property
    def is_checkpoint_durable(self) -> bool:
        """Whether the log was in its files up to the confirmOffset of the checkpoint."""
        return self.is_own or not self.abnormal


def boot_id() -> str:
    """Returns the system's boot id; empty: it has none."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def read_last_exit(root: Path) -> LastExit:
    """root: storePathRootDir."""
    path = root / FILE_NAME
    if not path.exists():
        return LastExit(abnormal=False, is_own=False, same_boot=False)
    text, boot = path.read_text(errors="replace"), boot_id()
    is_own = text.startswith(_PREFIX)
    return LastExit(
        abnormal=True, is_own=is_own, same_boot=is_own and boot != "" and text.endswith(f" {boot}")
    )


def mark_running(root: Path, *, with_boot: bool = True) -> None:
    """Writes the file durably. with_boot False: queue entries may soon exist without their records."""
    boot = f" {boot_id()}" if with_boot else ""
    write_mark(root / FILE_NAME, f"{_PREFIX}{os.getpid()}{boot}")
