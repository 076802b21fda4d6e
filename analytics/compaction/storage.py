"""Where compacted files are: a local directory, or an object store by its URL, with the same few operations.

On a local disk a file is complete and durable before its name appears: temporary name, fsync, rename, fsync
of the folder. On an object store one PUT does the same.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.fs as pa_fs

from analytics.errors import AnalyticsError

TEMPORARY = ".tmp-"


@dataclass(frozen=True, slots=True)
class Stored:
    """`name`: in its folder. `modified_ns` 0: the store does not know."""

    name: str
    size_bytes: int
    modified_ns: int


class Storage(Protocol):
    """Names are relative, with "/". Every method raises OSError."""

    url: str

    def files(self, folder: str) -> list[Stored]:
        """Returns the files directly in a folder, by name; none if there is no such folder."""

    def read(self, name: str) -> bytes:
        """Returns the content. FileNotFoundError: no such file."""

    def replace(self, name: str, content: bytes) -> None:
        """Writes the file as a whole; readers see the old content or the new, also after a power failure."""

    def move_in(self, path: Path, name: str) -> None:
        """Makes the local, closed file `path` the file `name`, and deletes `path`."""

    def delete(self, name: str) -> None:
        """Deletes the file, if it is there."""

    def open_input(self, name: str) -> Any:
        """Returns a file for pyarrow to read from."""

    def work_folder(self) -> Path | None:
        """Returns a local folder from where move_in() is a rename; None: there is none."""


class LocalStorage:
    """A directory."""

    def __init__(self, root: Path) -> None:
        self.root, self.url = root, str(root)

    def files(self, folder: str) -> list[Stored]:
        try:
            found = list(os.scandir(self.root / folder))
        except (FileNotFoundError, NotADirectoryError):
            return []
        stored = []
        for entry in found:
            with contextlib.suppress(FileNotFoundError):
                if entry.is_file():
                    status = entry.stat()
                    stored.append(Stored(entry.name, status.st_size, status.st_mtime_ns))
        return sorted(stored, key=lambda each: each.name)

    def read(self, name: str) -> bytes:
        return (self.root / name).read_bytes()

    def replace(self, name: str, content: bytes) -> None:
        path = self.root / name
        self._make_folder(path.parent)
        temporary = path.with_name(f"{TEMPORARY}{os.getpid()}-{path.name}")
        try:
            temporary.write_bytes(content)
            self.move_in(temporary, name)
        finally:
            temporary.unlink(missing_ok=True)

    def move_in(self, path: Path, name: str) -> None:
        target = self.root / name
        _fsync(path)
        self._make_folder(target.parent)
        os.replace(path, target)
        _fsync(target.parent)

    def _make_folder(self, folder: Path) -> None:
        """Creates the folder and those above it; their names are durable, too."""
        if folder.is_dir():
            return
        if folder != self.root:
            self._make_folder(folder.parent)
        folder.mkdir(parents=True, exist_ok=True)
        _fsync(folder.parent)

    def delete(self, name: str) -> None:
        (self.root / name).unlink(missing_ok=True)

    def open_input(self, name: str) -> Any:
        return pa.OSFile(str(self.root / name))

    def work_folder(self) -> Path | None:
        return self.root


class RemoteStorage:
    """A folder of a pyarrow file system."""

    def __init__(self, system: pa_fs.FileSystem, root: str, url: str) -> None:
        self._system, self._root, self.url = system, root.rstrip("/"), url

    def files(self, folder: str) -> list[Stored]:
        selector = pa_fs.FileSelector(f"{self._root}/{folder}", allow_not_found=True)
        return sorted(
            (
                Stored(info.base_name, info.size, info.mtime_ns or 0)
                for info in self._system.get_file_info(selector)
                if info.type == pa_fs.FileType.File
            ),
            key=lambda each: each.name,
        )

    def read(self, name: str) -> bytes:
        with self._system.open_input_stream(f"{self._root}/{name}", compression=None) as file:
            return bytes(file.read())

    def replace(self, name: str, content: bytes) -> None:
        self._make_folder(name)
        with self._system.open_output_stream(f"{self._root}/{name}", compression=None) as file:
            file.write(content)

    def move_in(self, path: Path, name: str) -> None:
        self._make_folder(name)
        with (
            path.open("rb") as source,
            self._system.open_output_stream(f"{self._root}/{name}", compression=None) as target,
        ):
            shutil.copyfileobj(source, target, 8 << 20)
        path.unlink()

    def delete(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._system.delete_file(f"{self._root}/{name}")

    def open_input(self, name: str) -> Any:
        return self._system.open_input_file(f"{self._root}/{name}")

    def work_folder(self) -> Path | None:
        return None

    def _make_folder(self, name: str) -> None:
        if not is_object_store(self._system):
            self._system.create_dir(f"{self._root}/{name}".rpartition("/")[0], recursive=True)


@contextlib.contextmanager
def open_storage(out: str) -> Iterator[Storage]:
    """Yields the storage of a directory or URL. Raises AnalyticsError if it cannot be reached."""
    if "://" not in out or out.startswith("file://"):
        yield LocalStorage(Path(out.removeprefix("file://")).absolute())
        return
    system, root = file_system(out)
    yield RemoteStorage(system, root, out.rstrip("/"))


def file_system(url: str) -> tuple[pa_fs.FileSystem, str]:
    """Returns pyarrow's file system of a URL, and the path in it. Raises AnalyticsError."""
    if url.startswith("s3a://"):
        url = "s3://" + url.removeprefix("s3a://")
    try:
        system, path = pa_fs.FileSystem.from_uri(url)
    except (OSError, ValueError, ImportError) as error:  # ArrowInvalid is a ValueError
        raise AnalyticsError(f"cannot open {url}: {error}") from None
    return system, path.rstrip("/")


def is_object_store(system: pa_fs.FileSystem) -> bool:
    """Returns whether a file is there as soon as it is complete, without folders and without renaming."""
    return isinstance(system, pa_fs.S3FileSystem | pa_fs.GcsFileSystem)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
