"""The frame fuzzer: mutants through a real Connection into real handlers, and what must be true of answers.

A round is one target, one seed, ROUND_FRAMES frames; rounds do not depend on each other, so a finding is
repeated with the seed that it names. The model is small: the same bytes through frame.py and command.py tell
which requests arrived whole; each that is not oneway has exactly one answer, or the connection was closed.
"""

import asyncio
import ctypes
import gc
import logging
import re
import tempfile
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, cast

import msgspec

from broker.clients.calls import ANSWER_MS_MAX
from keelmq.remoting.command import FLAG_ONEWAY, FLAG_RESPONSE, decode
from keelmq.remoting.connection import SCRATCH_BYTES, Connection
from keelmq.remoting.dispatch import FAST_PATH_KEY_BYTES
from keelmq.remoting.frame import FrameDecoder
from keelmq.remoting.operation import RemoteProtocolError
from tests.fuzz.corpus import Corpus
from tests.fuzz.mutate import Mutator
from tests.fuzz.targets import TARGETS, Target, open_target

ROUND_FRAMES = 10_000
BATCH_FRAMES = 32
CONNECTION_FRAMES = 300
STALLED_FRAMES_MAX = 3
"""A mutant that announces a large frame swallows what follows; after so many the connection is given up."""
SETTLE_TURNS_MAX = 100
PROGRESS_ROUNDS = 10
WARM_ROUNDS = 9
"""Three of each target: what is only made once was made."""
GROWN_BYTES_MAX = 48 << 20
"""Rounds leave nothing behind; an allocator that splinters does."""


class Finding(AssertionError):
    """Something that must not happen; the text has the seed and the bytes."""


class FakeTransport:
    """Collects what is written. Closing takes effect in the next step, as asyncio's does."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.closing = False

    def get_extra_info(self, name: str) -> Any:
        return ("10.9.9.9", 4660) if name == "peername" else None

    def set_write_buffer_limits(self, **_: int) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.closing

    def write(self, data: bytes) -> None:
        self.written.append(bytes(data))

    def writelines(self, parts: list[bytes | memoryview]) -> None:
        self.written += [bytes(part) for part in parts]

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = True


@dataclass
class Stream:
    """One connection, and the model of it."""

    connection: Connection
    transport: FakeTransport
    fast_path: Mapping[bytes, tuple[Callable[[bytes], Any], Any]]
    model: FrameDecoder = field(default_factory=FrameDecoder)
    answers: FrameDecoder = field(default_factory=FrameDecoder)
    asked: Counter[int] = field(default_factory=Counter)
    oneway: Counter[int] = field(default_factory=Counter)
    answered: Counter[int] = field(default_factory=Counter)
    problem: str | None = None
    frames: int = 0
    stalled: int = 0
    recent: deque[bytes] = field(default_factory=lambda: deque(maxlen=BATCH_FRAMES))

    def arriving(self, data: bytes) -> list[Any]:
        """The whole commands that these bytes complete; `problem` is set if they end the connection."""
        commands: list[Any] = []
        if self.problem is not None:
            return commands
        self.model.receive_data(data)
        try:
            while (payload := self.model.next_frame()) is not None:
                commands.append(self._decode(payload))
        except RemoteProtocolError as error:
            self.problem = str(error)
        return commands

    def arrived(self, commands: list[Any]) -> None:
        for command in commands:
            if not command.flag & FLAG_RESPONSE:
                (self.oneway if command.flag & FLAG_ONEWAY else self.asked)[command.opaque] += 1

    def _decode(self, payload: bytes) -> Any:
        """Raises RemoteProtocolError. Typed decoders do not look into fields that the data path never reads,
        so they may take a header that is wrong in one of those."""
        try:
            return decode(payload)
        except RemoteProtocolError:
            header = payload[4 : 4 + int.from_bytes(payload[1:4])]
            fast_path = self.fast_path.get(header[:FAST_PATH_KEY_BYTES]) if payload[0] == 0 else None
            if fast_path is None:
                raise
            try:
                return fast_path[0](header)
            except (msgspec.MsgspecError, ValueError, RecursionError):
                pass
            raise

    def read_answers(self) -> Iterator[tuple[int, int, str | None]]:
        """(opaque, code, remark) of each answer; pushed requests are no answers."""
        for data in self.transport.written:
            self.answers.receive_data(data)
        self.transport.written.clear()
        while (payload := self.answers.next_frame()) is not None:
            command = decode(payload)
            if command.is_response:
                self.answered[command.opaque] += 1
                yield command.opaque, command.code, command.remark


@dataclass
class Report:
    """What a run came to."""

    frames: int = 0
    rounds: int = 0
    requests: int = 0
    answers: Counter[int] = field(default_factory=Counter)
    closed: int = 0
    findings: list[str] = field(default_factory=list)
    grown_bytes: int = 0

    def with_another(self, other: "Report") -> "Report":
        """Of both; each is of a process with memory of its own."""
        return Report(
            self.frames + other.frames,
            self.rounds + other.rounds,
            self.requests + other.requests,
            self.answers + other.answers,
            self.closed + other.closed,
            self.findings + other.findings,
            max(self.grown_bytes, other.grown_bytes),
        )

    def line(self) -> str:
        codes = " ".join(f"{code}:{count}" for code, count in sorted(self.answers.items()))
        return (
            f"FUZZ frames={self.frames} rounds={self.rounds} requests={self.requests} "
            f"answers={self.answers.total()} closed={self.closed} grown_kib={self.grown_bytes >> 10} "
            f"findings={len(self.findings)} codes={codes}"
        )


class Round:
    """One target from its start to its end."""

    def __init__(self, target: Target, seed: int, report: Report) -> None:
        self.target, self.seed, self.report = target, seed, report
        self.random = Random(seed)
        self.corpus = Corpus(target.table, self.random)
        self.mutator = Mutator(self.random, [*target.table.handlers, *target.table.fast_path])
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        entries = target.dispatcher.fast_path.values()
        self.turns = [each.turn for each in entries if each.turn is not None]
        self.problems: list[str] = []
        asyncio.get_running_loop().set_exception_handler(self._loop_error)

    async def run(self, count: int) -> None:
        """Raises Finding."""
        sent = 0
        while sent < count:
            stream = self._connect()
            while sent < count and stream.frames < CONNECTION_FRAMES and not stream.connection.is_closing():
                sent += await self._batch(stream, min(BATCH_FRAMES, count - sent))
                await self._settle(stream)
                self._compare(stream, at_end=False)
            await self._end(stream)
        self.report.frames += sent
        self.report.rounds += 1
        self.target.emptied()

    def _connect(self) -> Stream:
        transport = FakeTransport()
        connection = Connection(
            self.target.dispatcher, self.scratch, on_made=lambda _: None, on_lost=self._lost
        )
        connection.connection_made(cast(asyncio.BaseTransport, transport))
        return Stream(connection, transport, self.target.dispatcher.fast_path)

    def _lost(self, connection: Connection) -> None:
        self.target.lost(connection.connection_id)

    async def _batch(self, stream: Stream, count: int) -> int:
        """Frames one by one, several at once, or in pieces, until the connection closes. How many."""
        for number in range(1, count + 1):
            frame = self._frame()
            stream.frames += 1
            stream.recent.append(frame)
            commands = stream.arriving(frame)
            if stream.problem is not None:
                await self._all_answered(stream)  # afterwards the connection is closed, and nobody can tell
            stream.arrived(commands)
            stream.stalled = 0 if commands else stream.stalled + 1
            self._deliver(stream, frame)
            if stream.problem is not None and not stream.connection.is_closing():
                self._found(stream, f"not closed, although: {stream.problem}")
            if stream.connection.is_closing():
                return number
            if stream.stalled > STALLED_FRAMES_MAX:
                stream.connection.close()
                return number
        return count

    def _frame(self) -> bytes:
        command = self.corpus.request()
        if command.code in self.target.slow and self.random.random() < 0.97:
            command = self.corpus.request()
        return self.mutator.frame(command)

    def _deliver(self, stream: Stream, frame: bytes) -> None:
        pieces = [frame]
        if self.random.random() < 0.1 and len(frame) > 1:
            cut = self.random.randrange(1, len(frame))
            pieces = [frame[:cut], frame[cut:]]
        for turn in self.turns:  # as if there were many producers
            turn.is_on = turn.is_on or self.random.random() < 0.2
        try:
            for piece in pieces:
                receive(stream.connection, piece)
            if stream.problem is not None and stream.connection.collected is not None:
                stream.connection.collected.flush()
        except Exception:  # noqa: BLE001 - becomes a finding
            self._found(stream, "the connection raised\n" + traceback.format_exc(limit=-6))

    async def _settle(self, stream: Stream) -> None:
        """Until every handler has ended."""
        self.target.tick(self.random.choice((0, 1, 40, 200, 3_000)))
        if stream.connection.collected is not None:
            await asyncio.sleep(0)  # its turn ends
        for _ in range(SETTLE_TURNS_MAX):
            if not stream.connection.in_flight:
                return
            await asyncio.sleep(0)
        async with asyncio.timeout(2 * ANSWER_MS_MAX / 1000):  # it writes to a disk, or asks a consumer
            while stream.connection.in_flight:  # noqa: ASYNC110 - a handler's end has no event
                await asyncio.sleep(0.001)

    async def _all_answered(self, stream: Stream) -> None:
        await self._settle(stream)
        if not stream.connection.is_closing():
            await self.target.flush()
        self._compare(stream, at_end=True)

    async def _end(self, stream: Stream) -> None:
        """What waits is answered, then the connection goes."""
        await self._all_answered(stream)
        self.report.closed += stream.problem is not None
        self.report.requests += stream.asked.total()
        stream.connection.close()
        stream.connection.connection_lost(None)
        self.target.check()

    def _compare(self, stream: Stream, *, at_end: bool) -> None:
        for opaque, code, remark in stream.read_answers():
            self.report.answers[code] += 1
            if code == 1 and remark is not None and remark.startswith("internal error"):
                self._found(stream, f"opaque {opaque}: {remark}")
        many = [each for each, n in stream.answered.items() if n > stream.asked[each]]
        if many:
            only_oneway = stream.oneway[many[0]] and not stream.asked[many[0]]
            what = "a oneway request was answered" if only_oneway else "answered more often than asked"
            self._found(stream, f"opaque {many[0]}: {what}")
        if at_end and not stream.connection.is_closing() and stream.asked != stream.answered:
            missing = stream.asked - stream.answered
            self._found(stream, f"no answer for {dict(missing)}")
        if self.problems:
            self._found(stream, self.problems.pop())

    def _loop_error(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        text = "".join(traceback.format_exception(error, limit=-6)) if error else ""
        self.problems.append(f"{context.get('message')}\n{text}")

    def _found(self, stream: Stream, text: str) -> None:
        shown = "\n".join(f"  {frame[:400]!r}" for frame in stream.recent)
        raise Finding(f"{self.target.name} seed {self.seed}: {text}\nthe last frames:\n{shown}")


def receive(connection: Connection, data: bytes) -> None:
    """As a transport does: into the buffer that the protocol gives."""
    while data and not connection.is_closing():
        buffer = connection.get_buffer(-1)
        size = min(len(buffer), len(data))
        buffer[:size] = data[:size]
        connection.buffer_updated(size)
        data = data[size:]


async def fuzz_round(name: str, seed: int, count: int, report: Report) -> None:
    """Raises Finding."""
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=fast_directory()) as directory:
        async with open_target(name, Path(directory)) as target:
            await Round(target, seed, report).run(count)
    leftover = asyncio.all_tasks() - {asyncio.current_task()}
    if leftover:
        raise Finding(f"{name} seed {seed}: tasks are left: {leftover}")


def fuzz(
    seed: int,
    count: int,
    names: tuple[str, ...] = tuple(TARGETS),
    progress: Callable[[str], None] = lambda line: None,
) -> Report:
    """`count` frames in rounds, the targets in turn; findings are collected, one per round."""
    report, begun_bytes = Report(), 0
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        number = 0
        while report.frames < count and len(report.findings) < 20:
            name = names[number % len(names)]
            before, size = report.frames, min(ROUND_FRAMES, count - report.frames)
            try:
                asyncio.run(fuzz_round(name, seed + number, size, report))
            except (Finding, AssertionError) as finding:
                where = f"{name} seed {seed + number}"
                text = str(finding) if isinstance(finding, Finding) else traceback.format_exc(limit=-4)
                report.findings.append(text if where in text else f"{where}: {text}")
                report.frames = max(report.frames, before + size)
            number += 1
            if number % PROGRESS_ROUNDS == 0:
                progress(report.line())
            if number == WARM_ROUNDS:
                begun_bytes = held_bytes()
        if number > WARM_ROUNDS:
            report.grown_bytes = held_bytes() - begun_bytes
            if report.grown_bytes > GROWN_BYTES_MAX:
                report.findings.append(f"memory grew by {report.grown_bytes >> 10} KiB")
    finally:
        logging.disable(level)
    return report


def held_bytes() -> int:
    """Memory of our own (without mapped files), after everything that can go has gone: also what has been
    freed, and glibc keeps between what is in use. 0: not known here."""
    gc.collect()
    if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return 0
    found = re.search(r"RssAnon:\s*(\d+) kB", status)
    return int(found[1]) << 10 if found else 0


def fast_directory() -> str | None:
    """A disk in memory, where there is one: fsync is not what is tested here."""
    shared = Path("/dev/shm")
    return str(shared) if shared.is_dir() else None
