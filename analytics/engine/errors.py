"""Errors of an engine, in one line.

Spark names the file when a Parquet part is damaged; Sail does not, and neither do some of Spark's readers.
So the parts are then read once more, and the first one that cannot be read is named."""

import importlib.util
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import PySparkException

from analytics.compaction.storage import file_system
from analytics.errors import AnalyticsError

ERROR_CHARS_MAX = 2_000
_TRACEBACK = "Traceback (most recent call last):"
_DETAILS = re.compile(r'details = "(.*)"$', re.MULTILINE)
_GONE = re.compile(
    r"failed to connect|Connection refused|Connection reset|Socket closed|UNAVAILABLE", re.IGNORECASE
)
_PARQUET = re.compile(r"parquet|FAILED_READ_FILE|footer", re.IGNORECASE)


def _errors_of_java() -> tuple[type[Exception], ...]:
    if importlib.util.find_spec("py4j") is None:
        return ()
    from py4j.protocol import Py4JError

    return (Py4JError,)


SPARK_ERRORS: tuple[type[Exception], ...] = (PySparkException, *_errors_of_java(), ConnectionError)
"""ConnectionError: its Java process is gone, killed or out of memory."""


@contextmanager
def spark_in_one_line(parts: Callable[[], list[str]] = list) -> Iterator[None]:
    """Raises AnalyticsError, one line, for each of SPARK_ERRORS.

    `parts`: returns the Parquet files that were read, paths or URLs. Called after an error of Parquet only.
    """
    try:
        yield
    except SPARK_ERRORS as error:
        if is_of_lost_java(error):
            raise AnalyticsError("Spark's Java process is gone: killed, or out of memory") from error
        text = engine_error(error)
        if _PARQUET.search(str(error)) and (damaged := damaged_part(parts())) is not None:
            raise AnalyticsError(damaged) from error
        raise AnalyticsError(f"Spark failed: {text}") from error


def engine_error(error: Exception) -> str:
    """Returns one line of an error's text: the error and its innermost cause. For a Python function that the
    engine called, it is the first line below a "Traceback" that is not indented."""
    text = str(error).strip()
    if details := _DETAILS.search(text):  # of gRPC: the server was not reached, or ended
        text = details[1]
        return f"the server is not reached, or has ended: {text}" if _GONE.search(text) else _short(text)
    return _short(_one_line(text.splitlines() or [type(error).__name__]))


def _one_line(lines: list[str]) -> str:
    at = next((number for number, line in enumerate(lines[:4]) if line.endswith(_TRACEBACK)), None)
    if at is not None:
        below = [line for line in lines[at + 1 :] if line and not line[0].isspace()]
        cause = _cause(below)
        head = lines[0].removesuffix(_TRACEBACK).rstrip(" :")
        return f"{head}: {cause}" if head and at == 0 else cause
    if len(lines) > 1 and lines[0].startswith("An error occurred while calling"):
        del lines[0]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    return " <- ".join(dict.fromkeys([lines[0].lstrip(": "), *causes[-1:]]))


def _cause(below: list[str]) -> str:
    """Returns the error in the lines below the first traceback; of a chain of errors, the first one."""
    return next((line for line in below if not line.endswith(_TRACEBACK)), "a Python function failed")


def _short(text: str) -> str:
    return text if len(text) <= ERROR_CHARS_MAX else f"{text[:ERROR_CHARS_MAX]} ..."


def is_of_lost_java(error: Exception) -> bool:
    """py4j raises its base class, with no stack trace of Java in the text, for an answer that never came."""
    if isinstance(error, ConnectionError):
        return True
    name = type(error).__name__
    return name == "Py4JNetworkError" or (name == "Py4JError" and len(str(error).splitlines()) == 1)


def damaged_part(parts: list[str]) -> str | None:
    """Returns a line about the first of these Parquet files that is missing or cannot be read to its end;
    None: all can."""
    for part in parts:
        try:
            _read_through(part)
        except FileNotFoundError:
            return f"{part} is missing"
        except (OSError, pa.ArrowException) as error:
            return f"{part} is damaged: {_short(str(error).strip().splitlines()[0])}"
    return None


def _read_through(part: str) -> None:
    if "://" in part and not part.startswith("file://"):
        system, path = file_system(part)
        opened = system.open_input_file(path)
    else:
        opened = pa.OSFile(part.removeprefix("file://"))
    with opened, pq.ParquetFile(opened) as file:
        for _ in file.iter_batches():
            pass
