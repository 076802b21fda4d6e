"""Pages of an output that is a URL (s3a://, hdfs://, gs://), and the way from there to a name server's disk.

    URL/pages/<generation>/...     as on a disk; see keelmq/web/page_files.py
    URL/current.json               written last

An object store renames no folder and has no links, so pages are written on the local disk, from a copy of the
roll-ups, and then copied. A name server reads files: `keelmq analytics fetch` keeps a local copy current.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pyarrow.fs as pa_fs

from analytics.compaction.storage import Storage, file_system, open_storage
from analytics.errors import AnalyticsError
from analytics.pages.writer import write_pages
from analytics.rollup.store import ROLLUP, folders, run_folder
from analytics.upload import Uploaded
from keelmq.runtime.clock import wall_ms
from keelmq.runtime.durable_file import replace_file
from keelmq.web.page_files import CURRENT, GENERATIONS_KEPT, INDEX, PAGES, Current, Index, unpacked
from keelmq.web.page_reader import generations

COPIES_AT_ONCE = 8


def is_url(output: str) -> bool:
    """Returns whether an output is not a directory of this machine."""
    return "://" in output and not output.startswith("file://")


def publish_pages(
    url: str,
    run_ts: int,
    *,
    hours: Iterable[int] | None = None,
    inputs: Sequence[str] = (),
    interval_ms: int | None = None,
    progress: Callable[[str], None] = lambda _: None,
    wall_clock: Callable[[], int] = wall_ms,
) -> str:
    """Writes a generation of page files to `url`; returns the URL of current.json. `run_ts`: of the tables of
    the newest run, `hours`: those that they are of; None: all. Raises AnalyticsError."""
    system, root = file_system(url)
    try:
        with open_storage(url) as storage, tempfile.TemporaryDirectory(prefix="keelmq-pages-") as name:
            work = Path(name)
            for folder in (ROLLUP, run_folder(run_ts)):
                copy_tree(system, f"{root}/{folder}", pa_fs.LocalFileSystem(), str(work / folder))
            newest = max([wall_clock(), _generation(_current(storage)) + 1])
            write_pages(
                work, hours=hours, inputs=inputs, interval_ms=interval_ms, progress=progress,
                wall_clock=lambda: newest,
            )  # fmt: skip
            folder = f"{PAGES}/{newest}"
            copy_tree(pa_fs.LocalFileSystem(), str(work / folder), system, f"{root}/{folder}")
            storage.replace(CURRENT, (work / CURRENT).read_bytes())
            for old in sorted(folders(system, f"{root}/{PAGES}"), key=_number)[:-GENERATIONS_KEPT]:
                system.delete_dir(f"{root}/{PAGES}/{old}")
    except OSError as error:
        raise AnalyticsError(f"cannot write pages to {url}: {error.strerror or error}") from error
    return f"{url.rstrip('/')}/{CURRENT}"


def read_index(url: str) -> Index:
    """Returns the index that current.json names. Raises AnalyticsError."""
    try:
        with open_storage(url) as storage:
            packed = storage.read(f"{PAGES}/{_generation(_current(storage))}/{INDEX}")
        return msgspec.json.decode(unpacked(packed), type=Index)
    except (OSError, ValueError) as error:  # msgspec's and a damaged gzip's are ValueErrors
        raise AnalyticsError(f"cannot read the pages of {url}: {error}") from error


class Fetch:
    """Keeps a directory a copy of the newest pages of `url`."""

    def __init__(self, url: str, target: Path) -> None:
        self._url, self._target = url, target

    def once(self) -> Uploaded:
        """Copies the newest generation if it is not there. Raises OSError or AnalyticsError; readers of the
        directory then have the generation before."""
        done = Uploaded()
        system, root = file_system(self._url)
        with open_storage(self._url) as storage:
            content = _current(storage)
        newest = _generation(content)
        if newest < 0:
            raise AnalyticsError(f"{self._url} has no {CURRENT} yet; keelmq analytics run writes it")
        to = self._target / PAGES / str(newest)
        if (self._target / CURRENT).exists() and (self._target / CURRENT).read_bytes() == content:
            done.files_there = 1
            return done
        copy_tree(system, f"{root}/{PAGES}/{newest}", pa_fs.LocalFileSystem(), str(to))
        copied = [path for path in to.rglob("*") if path.is_file()]
        done.files, done.size_bytes = len(copied), sum(path.stat().st_size for path in copied)
        replace_file(self._target / CURRENT, content, keep_backup=False)
        for old in generations(self._target)[:-GENERATIONS_KEPT]:
            if old == newest:  # lower than those of an earlier URL, or of a clock that was ahead
                continue
            pa_fs.LocalFileSystem().delete_dir(str(self._target / PAGES / str(old)))
        return done


def _number(name: str) -> int:
    return int(name) if name.isdigit() else -1


def _current(storage: Storage) -> bytes:
    """Returns current.json; empty: there is none."""
    try:
        return storage.read(CURRENT)
    except FileNotFoundError:
        return b""


def _generation(current: bytes) -> int:
    """Returns the generation that current.json names; -1: there is none, or it is damaged."""
    try:
        return msgspec.json.decode(current, type=Current).generation
    except msgspec.MsgspecError:
        return -1


def copy_tree(source: pa_fs.FileSystem, path: str, target: pa_fs.FileSystem, to: str) -> None:
    """Copies all files of a folder, several at a time. Raises OSError."""
    infos = source.get_file_info(pa_fs.FileSelector(path, recursive=True))
    names = [info.path for info in infos if info.type == pa_fs.FileType.File]
    if not isinstance(target, pa_fs.S3FileSystem | pa_fs.GcsFileSystem):
        for folder in sorted({name.removeprefix(path).rpartition("/")[0] for name in names}):
            target.create_dir(f"{to}{folder}", recursive=True)

    def copy(name: str) -> None:
        with (
            source.open_input_stream(name, compression=None) as file,
            target.open_output_stream(f"{to}{name.removeprefix(path)}", compression=None) as copied,
        ):
            shutil.copyfileobj(file, copied, 8 << 20)

    with ThreadPoolExecutor(COPIES_AT_ONCE) as pool:
        list(pool.map(copy, names))
