"""Files with secrets in them: read only if nobody else can."""

import os
import stat
from pathlib import Path

OTHERS = 0o007
GROUP = 0o070


def read_private(path: Path, limit: int) -> bytes:
    """Returns the content. Raises OSError; ValueError, without the path: others may open it, or it has more
    than `limit` bytes.

    A file of our own must be ours alone. One of root's, as orchestrators mount secrets, may be readable by
    its group."""
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        mode = stat.S_IMODE(status.st_mode)
        is_mounted = status.st_uid == 0 and os.geteuid() != 0
        if mode & (OTHERS if is_mounted else OTHERS | GROUP):
            raise ValueError(f"has secrets in it and mode {mode:o}: others may open it; chmod 600 {path}")
        data = file.read(limit + 1)
    if len(data) > limit:
        raise ValueError(f"has more than {limit} bytes")
    return data
