"""The operator's command that restarts a server with another version: "ssh {host} sudo systemctl restart
{unit}".

It is split into words before the placeholders get their values, and runs without a shell. Most values come
from the cluster, and a command such as ssh gives its words to a shell on another machine: so a value with a
character that could mean something there is refused.
"""

import asyncio
import os
import re
import shlex
import shutil
import signal
import string
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cli.upgrade.core.view import Kind, Server

UNITS: Mapping[Kind, str] = {
    Kind.NAME_SERVER: "keelmq-namesrv",
    Kind.CONTROLLER: "keelmq-controller",
    Kind.BROKER: "keelmq-broker",
    Kind.CONTAINER: "keelmq-container",
}
PLACEHOLDERS = ("host", "unit", "kind", "address", "name", "version")
POLL_S = 0.05
TAIL_LINES = 8
TAIL_BYTES = 65_536
_VALUE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:+-]*|\[[0-9A-Fa-f:.]+\]:[0-9]+")
_HINT = "placeholders are " + ", ".join(f"{{{each}}}" for each in PLACEHOLDERS)


class RestartFailed(Exception):
    """The text says how."""


@dataclass(frozen=True, slots=True)
class RestartCommand:
    """The words of the command, with placeholders."""

    words: tuple[str, ...]

    def for_server(self, server: Server, version: str) -> list[str]:
        """Returns the words for this server. ValueError: a value has a character that a shell could read."""
        values = {
            "host": server.host,
            "unit": UNITS[server.kind],
            "kind": server.kind.value,
            "address": server.address,
            "name": server.name,
            "version": version,
        }
        for key in sorted(self.placeholders):
            if not _VALUE.fullmatch(values[key]):
                raise ValueError(
                    f"{{{key}}} of {server.label} is {values[key]!r}: it is not put into a command"
                )
        return [word.format_map(values) for word in self.words]

    @property
    def placeholders(self) -> set[str]:
        """The names of the placeholders that the command has."""
        parts = (part for word in self.words for part in string.Formatter().parse(word))
        return {name for _, name, _, _ in parts if name is not None}


def parse_command(text: str) -> RestartCommand:
    """Returns the command of --restart. ValueError: it cannot be split or run, or has another placeholder."""
    words = shlex.split(text)
    if not words:
        raise ValueError("the command is empty")
    try:
        parts = [part for word in words for part in string.Formatter().parse(word)]
    except ValueError as error:
        raise ValueError(f"{error}; {_HINT}; a brace is written twice") from None
    for _, name, form, conversion in parts:
        if name is not None and (name not in PLACEHOLDERS or form or conversion):
            raise ValueError(f"{{{name}}} is no placeholder; {_HINT}; a brace is written twice")
    command = RestartCommand(tuple(words))
    if "{" not in words[0] and shutil.which(words[0]) is None:
        raise ValueError(f"there is no program {words[0]!r} here")
    return command


async def run_restart(words: list[str], log: Path, *, timeout_s: float) -> None:
    """Runs the command to its end; its output goes to the file. If this is cancelled, the command goes on: a
    package that is half installed would be worse. Raises RestartFailed."""
    deadline_s = time.monotonic() + timeout_s
    process = _started(words, log)
    while (code := process.poll()) is None:
        if time.monotonic() > deadline_s:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise RestartFailed(
                f"{shlex.join(words)}: not done within {timeout_s:g} s, and killed here; what it began "
                f"on another machine may go on{_tail(log)}"
            )
        await asyncio.sleep(POLL_S)
    if code:
        how = f"exit code {code}" if code > 0 else f"ended by signal {-code}"
        raise RestartFailed(f"{shlex.join(words)}: {how}{_tail(log)}")


def _started(words: list[str], log: Path) -> subprocess.Popen[bytes]:
    try:
        with log.open("wb") as output:
            return subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C ends this program only
            )
    except OSError as error:
        raise RestartFailed(f"{shlex.join(words)}: {error.strerror}") from None


def _tail(log: Path) -> str:
    """Returns the end of the output, and where all of it is."""
    with log.open("rb") as file:
        file.seek(max(log.stat().st_size - TAIL_BYTES, 0))
        lines = file.read().decode(errors="replace").splitlines()
    said = " / ".join(each.strip() for each in lines[-TAIL_LINES:] if each.strip())
    return f"; its output is in {log}" + (f", and ends: {said}" if said else ", and empty")
