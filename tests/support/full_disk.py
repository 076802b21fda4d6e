"""A disk without room: no file below a folder grows, what is there can be read and written."""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from unittest import mock


@contextlib.contextmanager
def full_disk(folder: Path) -> Iterator[None]:
    """Inside, a file below `folder` that would grow fails with ENOSPC."""
    allocate, truncate = os.posix_fallocate, os.ftruncate

    def refuse_growth(descriptor: int, size: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if path.is_relative_to(folder.resolve()) and size > os.fstat(descriptor).st_size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def full_allocate(descriptor: int, offset: int, count: int) -> None:
        refuse_growth(descriptor, offset + count)
        allocate(descriptor, offset, count)

    def full_truncate(descriptor: int, size: int) -> None:
        refuse_growth(descriptor, size)
        truncate(descriptor, size)

    with (
        mock.patch.object(os, "posix_fallocate", full_allocate),
        mock.patch.object(os, "ftruncate", full_truncate),
    ):
        yield
