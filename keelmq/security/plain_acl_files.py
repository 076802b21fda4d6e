"""Reads plain_acl.yml and conf/acl/**/*.yml (ACL 1.0), and reads them again when their content changes.

A file that cannot be used changes nothing: the last good state stays, and the reason is logged once. YAML is
read behind limits of size, depth and nodes, and without aliases, which make a small file a huge value.
Source: RocketMQ 4.9.8 PlainPermissionManager."""

import hashlib
import logging
import re
from pathlib import Path
from typing import Any, Final

import yaml

from keelmq.security.core.plain_acl import BadPlainAcl, PlainAcl, parse_plain_acl
from keelmq.security.private_file import exposed

FILE_BYTES_MAX: Final = 1_048_576
FILES_MAX: Final = 1_000
DEPTH_MAX: Final = 16
NODES_MAX: Final = 100_000
NUMBER_CHARS_MAX: Final = 256
"""YAML has numbers of any size, some in base 60: reading a long one takes the square of its length."""
_NUMBER: Final = re.compile(r"[-+]?[0-9a-fxo_:]+", re.IGNORECASE)
SUFFIXES: Final = (".yml", ".yaml")

_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""As in safe_load(), with the C parser where there is one."""

log = logging.getLogger(__name__)


def load_yaml(data: bytes, name: str) -> object:
    """Returns the value of a YAML document; None: it is empty. Raises BadPlainAcl, never with content of the
    file, since that has secrets."""
    if len(data) > FILE_BYTES_MAX:
        raise BadPlainAcl(f"{name}: {len(data)} bytes; {FILE_BYTES_MAX} is the limit")
    try:
        _check_shape(data, name)
        return yaml.load(data, _LOADER)
    except BadPlainAcl:
        raise
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f" in line {mark.line + 1}" if mark is not None else ""
        raise BadPlainAcl(f"{name}: not YAML{where}: {error.problem}") from None
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError):
        raise BadPlainAcl(f"{name}: not YAML") from None


def _check_shape(data: bytes, name: str) -> None:
    """Goes through the events of the parser, before anything is built of them."""
    depth = 0
    for nodes, event in enumerate(yaml.parse(data, _LOADER)):
        if isinstance(event, yaml.AliasEvent):
            # Not its name, nor that of a tag: it may be a secret that begins with * or !, without quotes.
            raise BadPlainAcl(f"{name}: aliases (*name) are not allowed: {_line_of(event)}")
        if isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent) and event.tag is not None:
            # The constructors of some tags raise errors other than YAMLError.
            raise BadPlainAcl(f"{name}: not YAML that is accepted: a tag (!name), {_line_of(event)}")
        if isinstance(event, yaml.ScalarEvent) and _is_long_number(event):
            raise BadPlainAcl(f"{name}: a number of {len(event.value)} characters")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > DEPTH_MAX or nodes > NODES_MAX:
            raise BadPlainAcl(f"{name}: nested deeper than {DEPTH_MAX}, or more than {NODES_MAX} nodes")


def _line_of(event: yaml.Event) -> str:
    line = "" if event.start_mark is None else f"line {event.start_mark.line + 1}; "
    return f"{line}quote a text that begins so"


def _is_long_number(event: yaml.ScalarEvent) -> bool:
    is_plain = event.implicit[0]
    return is_plain and len(event.value) > NUMBER_CHARS_MAX and _NUMBER.fullmatch(event.value) is not None


class PlainAclFiles:
    """`default_file`: plain_acl.yml; an absent one is as good as an empty one, and is not created (pitfall
    12). `directory`: conf/acl."""

    def __init__(self, default_file: Path, directory: Path | None = None) -> None:
        self._default_file = default_file
        self._directory = directory
        self._hashes: dict[str, bytes] | None = None
        self.current = PlainAcl()
        """The last good state."""
        self.problem: str | None = None
        """Why the files as they are now do not count; None: they do."""

    def load(self) -> PlainAcl:
        """Reads the files at start. Raises BadPlainAcl and OSError: there is no good state yet."""
        self._hashes, contents = self._read()
        self.current = self._parse(contents)
        for name, _data in contents:
            if problem := exposed(Path(name)):  # no refusal: RocketMQ's distribution is like that
                log.warning("%s", problem)
        return self.current

    def poll(self) -> PlainAcl | None:
        """Reads the files; returns their rules if the content has changed, and is good. For a thread: reading
        a thousand accounts takes some hundred ms, and a disk may be slow. Never raises for a file."""
        try:
            hashes, contents = self._read()
            if hashes == self._hashes:
                return None
            # A bad state is remembered, too: it is logged once.
            self._hashes = hashes
            self.current = self._parse(contents)
        except (BadPlainAcl, OSError) as error:
            self._tell(str(error))
            return None
        self.problem = None
        log.info("access control files read: %d accounts", len(self.current.accounts))
        return self.current

    def _tell(self, problem: str) -> None:
        if problem != self.problem:
            log.error("access control files are not used, the last good ones stay: %s", problem)
        self.problem = problem

    def _read(self) -> tuple[dict[str, bytes], list[tuple[str, bytes]]]:
        """Returns the hash and the content of each file, the default file first."""
        contents = []
        for path in self._paths():
            with path.open("rb") as file:
                contents.append((str(path), file.read(FILE_BYTES_MAX + 1)))
        return {name: hashlib.sha256(data).digest() for name, data in contents}, contents

    def _paths(self) -> list[Path]:
        paths = [self._default_file] if self._default_file.is_file() else []
        if self._directory is not None and self._directory.is_dir():
            found = (path for path in self._directory.rglob("*") if path.suffix in SUFFIXES)
            paths += sorted(path for path in found if path.is_file() and path != self._default_file)
        if len(paths) > FILES_MAX:
            raise BadPlainAcl(f"{len(paths)} access control files; {FILES_MAX} is the limit")
        return paths

    @staticmethod
    def _parse(contents: list[tuple[str, bytes]]) -> PlainAcl:
        plain, warnings = parse_plain_acl([(name, load_yaml(data, name)) for name, data in contents])
        for warning in warnings:
            log.warning("%s", warning)
        return plain
