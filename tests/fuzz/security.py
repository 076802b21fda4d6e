"""The fuzzer of the security code: hostile input for everything that reads what anonymous clients or files
say.

    keelmq fuzz security [--count N] [--seed S] [--target NAME]

A round is one target, one seed, ROUND_INPUTS inputs. Of every input must be true: the code returns or raises
what it documents; it takes CPU time in proportion to the input's size; what it remembers stays bounded; no
secret is in a text that people see. The CPU time is of this process, so another one cannot spoil it, and an
input that was slow is tried again before it counts. A watchdog ends an input that never ends."""

import gc
import logging
import resource
import signal
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Protocol

from tests.fuzz.frames import Finding, fast_directory, held_bytes

ROUND_INPUTS = 2_000
SECONDS_MAX, SECONDS_PER_BYTE = 0.05, 5e-6
AGAIN = 3
WATCHDOG_S = 30.0
WARM_ROUNDS = 24
GROWN_BYTES_MAX = 32 << 20
SHOWN_CHARS = 600


class Target(Protocol):
    """`allowed`: the errors that run() may raise."""

    name: str
    allowed: tuple[type[Exception], ...]

    def make(self) -> Any:
        """Returns an input."""

    def size(self, value: Any) -> int:
        """Returns its bytes, about."""

    def run(self, value: Any) -> str:
        """Gives it to the code. Returns what came of it, for the counts. Raises Finding."""

    def check(self) -> None:
        """Raises AssertionError or Finding if too much is remembered."""

    def close(self) -> None: ...


TargetMaker = Callable[[Random, Path], Target]


@dataclass
class Report:
    """What a run came to. outcomes: (target, outcome) -> inputs."""

    inputs: int = 0
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    slowest: tuple[float, str] = (0.0, "")
    findings: list[str] = field(default_factory=list)
    grown_bytes: int = 0

    def line(self) -> str:
        outcomes = " ".join(f"{name}:{what}:{count}" for (name, what), count in sorted(self.outcomes.items()))
        seconds, slowest = self.slowest
        return (
            f"FUZZ inputs={self.inputs} findings={len(self.findings)} grown_kib={self.grown_bytes >> 10} "
            f"slowest_ms={seconds * 1e3:.0f}({slowest}) {outcomes}"
        )


@contextmanager
def watchdog(seconds: float) -> Iterator[None]:
    """Raises Finding in the main thread after so much CPU time of this process."""

    def ended(_signal: int, _frame: object) -> None:
        raise Finding(f"no end after {seconds:g} s of CPU time")

    before = signal.signal(signal.SIGVTALRM, ended)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def tried(target: Target, value: Any) -> tuple[str, float]:
    """Returns what came of one input, and the seconds of CPU time. Raises Finding."""
    begun = time.process_time()
    try:
        with watchdog(WATCHDOG_S):
            outcome = target.run(value)
    except target.allowed as error:
        outcome = type(error).__name__
    except (Finding, AssertionError) as error:
        raise Finding(f"{error}\n{shown(value)}") from None
    except Exception:  # noqa: BLE001 - becomes a finding
        raise Finding(f"{traceback.format_exc(limit=-6)}\n{shown(value)}") from None
    return outcome, time.process_time() - begun


def run_round(target: Target, count: int, report: Report) -> None:
    """Raises Finding."""
    for _ in range(count):
        value = target.make()
        outcome, seconds = tried(target, value)
        limit = SECONDS_MAX + target.size(value) * SECONDS_PER_BYTE
        if seconds > limit:
            seconds = min(seconds, *(tried(target, value)[1] for _ in range(AGAIN)))
            if seconds > limit:
                size = target.size(value)
                raise Finding(f"{seconds:.2f} s of CPU time for {size} bytes\n{shown(value)}")
        report.inputs += 1
        report.outcomes[target.name, outcome] += 1
        report.slowest = max(report.slowest, (seconds, target.name))
    target.check()


def fuzz(
    seed: int,
    count: int,
    makers: Sequence[tuple[str, TargetMaker]],
    progress: Callable[[str], None] = lambda line: None,
) -> Report:
    """`count` inputs in rounds, the targets in turn; findings are collected, one per round."""
    report, begun_bytes = Report(), 0
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        number, left = 0, count
        while left > 0 and len(report.findings) < 20:
            name, make = makers[number % len(makers)]
            size = min(ROUND_INPUTS, left)
            with tempfile.TemporaryDirectory(prefix="fuzz-", dir=fast_directory()) as directory:
                target = make(Random(f"{name} {seed + number}"), Path(directory))
                try:
                    run_round(target, size, report)
                except (Finding, AssertionError) as finding:
                    report.findings.append(f"{name} seed {seed + number}: {finding}")
                finally:
                    target.close()
            left -= size
            number += 1
            if number % len(makers) == 0:
                progress(report.line())
            if number == WARM_ROUNDS:
                begun_bytes = held_bytes()
        if number > 2 * WARM_ROUNDS:
            report.grown_bytes = held_bytes() - begun_bytes
            if report.grown_bytes > GROWN_BYTES_MAX:
                report.findings.append(f"memory grew by {report.grown_bytes >> 10} KiB")
    finally:
        logging.disable(level)
    return report


def peak_kib() -> int:
    """Returns the largest memory that this process has had."""
    gc.collect()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}... ({len(text)} characters)"


# ---- damage ----

CHUNKS = (
    b"", b"\x00", b"\xff", b"\xed\xa0\x80", b"\\ud800", b"\\u0000", b"{", b"}", b"[", b"]", b":", b",", b'"',
    b"'", b"*", b"-", b"/", b"|", b"&a ", b"*a", b"<<: ", b"!!int ", b"!!python/name:os.system ", b"? ",
    b"%YAML 1.1\n", b"---\n", b"null", b"true", b"~", b"1e400", b"-0", b"0x" + b"f" * 5_000, b"9" * 5_000,
    b"1" + b":59" * 900, b"{1,2,", b"1-", b"%RETRY%", b"User:", b"Topic:*", b"Any", b"ALL", b"::", b"\n",
    b"\r", b"\t", b" ", b"=", b";", b"a" * 300, "٣é".encode(),
)  # fmt: skip
BIG = 200_000


def damage(random: Random, data: bytes, *, big: float = 0.002) -> bytes:
    """Returns a mutant; one in ten stays as it is. big: how often a piece is repeated up to BIG bytes."""
    if random.random() < 0.1:
        return data
    for _ in range(random.choice((1, 1, 2, 4))):
        start = random.randrange(len(data) + 1)
        end = min(len(data), start + random.choice((0, 1, 2, 8, 40)))
        match random.randrange(6):
            case 0 if start < len(data):
                data = data[:start] + bytes([data[start] ^ 1 << random.randrange(8)]) + data[start + 1 :]
            case 1:
                data = data[:start] + data[end:]
            case 2:
                data = data[:end] + data[start:end] * random.choice((1, 3, 30)) + data[end:]
            case 3:
                data = data[:start]
            case _:
                data = data[:start] + random.choice(CHUNKS) + data[end:]
    if random.random() < big:
        piece = data[:40] if random.random() < 0.5 else random.choice(CHUNKS[1:])
        data += piece * (random.randrange(BIG) // max(len(piece), 1))
    return data


def damage_text(random: Random, text: str) -> str:
    """The same for text, which may get half of a surrogate pair."""
    made = damage(random, text.encode("utf-8", "surrogatepass"), big=0.0005)
    return made.decode("utf-8", random.choice(("replace", "ignore", "surrogateescape")))
