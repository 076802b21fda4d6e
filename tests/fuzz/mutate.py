"""From a valid request to what no correct peer sends: bytes, lengths, types, numbers, nesting, text, flags.

Most mutants keep the frame's lengths right, so that the fault is found behind the frame decoder, where there
is more code; some break the lengths. Everything comes from one Random: same seed, same frames.
"""

import json
import re
import struct
import zlib
from collections.abc import Callable
from random import Random

from msgspec.structs import replace

from keelmq.remoting.command import RemotingCommand, SerializeType, encode
from keelmq.remoting.frame import PREFIX_BYTES, unpack_prefix

INTEGERS = (
    -1,
    0,
    1,
    2**15 - 1,
    2**15,
    2**16,
    2**31 - 1,
    2**31,
    -(2**31),
    -(2**31) - 1,
    2**63 - 1,
    2**63,
    10**30,
)
TEXTS = (
    "", " ", "\x00", "\x01\x02", "-", "+7", "7 ", "0x10", "1e3", "1_000", "NaN", "true", "TRUE", "null",
    "[]", "{}", "'", '"', "\\", "\n", ";", "host:1;2", ";;", "é" * 40, "\U0001f600", "٣", "/../..", "%s%n",
    "a" * 200, "b" * 70_000, "9" * 5_000, "-9223372036854775809", "1.0", "1.5", "Infinity", "10.0.0.1:99999",
    "[::1]:1", "x" * 127, "y" * 128, "__proto__",
)  # fmt: skip
DEEP = (
    b'{"a":' * 600 + b"1" + b"}" * 600, b"[" * 3_000 + b"]" * 3_000, b'{"a":' * 3_000, b"[" * 20_000,
    b'"' + b"\\" * 5_000,
)  # fmt: skip
RAW = (
    b"\xff", b"\xc3", b"\xed\xa0\x80", b"\\ud800", b"\\udc00", b"\\u0000", b"\x00", b'"', b"}", b"{", b"[",
    b"]", b":", b",", b"'", b"null", b"true", b"1e400", b"-0", b"1.5", b"99999999999999999999999", b"\\",
    b"Set[", b"TreeSet", b"\x1f",
)  # fmt: skip
_NUMBER = re.compile(rb"-?[0-9]+")


class Mutator:
    def __init__(self, random: Random, codes: list[int]) -> None:
        self.random, self.codes = random, codes
        self._commands: tuple[Callable[[RemotingCommand], RemotingCommand], ...] = (
            self._change_field,
            self._change_field,
            self._drop_field,
            self._add_field,
            self._swap_fields,
            self._change_number,
            self._change_body,
            self._change_body,
        )
        self._headers: tuple[Callable[[bytes], bytes], ...] = (
            self._replace_number,
            self._insert_raw,
            self._noise,
            self._repeat_piece,
            self._cut_piece,
            self._deep,
            self._repeat_members,
        )

    def frame(self, command: RemotingCommand) -> bytes:
        """One mutant; one in twenty stays as it is, so that there is something to damage."""
        random = self.random
        kind = random.random()
        if kind < 0.05:
            return encode(command)
        for _ in range(random.choice((0, 1, 1, 2))):
            command = random.choice(self._commands)(command)
        frame = encode(command)
        if kind < 0.60:
            return frame
        if kind < 0.88:
            return self._change_parts(frame)
        if kind < 0.95:
            return self._break_lengths(frame)
        return self._noise(frame)

    # ---- the command, before it is encoded ----

    def _change_field(self, command: RemotingCommand) -> RemotingCommand:
        if not command.ext_fields:
            return command
        name = self.random.choice(list(command.ext_fields))
        return replace(command, ext_fields={**command.ext_fields, name: self._text()})

    def _drop_field(self, command: RemotingCommand) -> RemotingCommand:
        fields = dict(command.ext_fields)
        if fields:
            del fields[self.random.choice(list(fields))]
        return replace(command, ext_fields=fields)

    def _add_field(self, command: RemotingCommand) -> RemotingCommand:
        name = self.random.choice(
            ("__ZONE_NAME", "__ZONE_MODE", "bname", "ns", "x", "é", "compressed", "body", "k" * 300)
        )
        return replace(command, ext_fields={**command.ext_fields, name: self._text()})

    def _swap_fields(self, command: RemotingCommand) -> RemotingCommand:
        fields = command.ext_fields
        values = list(fields.values())
        self.random.shuffle(values)
        return replace(command, ext_fields=dict(zip(fields, values, strict=True)))

    def _change_number(self, command: RemotingCommand) -> RemotingCommand:
        random = self.random
        binary = command.serialize_type is SerializeType.ROCKETMQ
        match random.randrange(5):
            case 0:
                code = random.choice((*self.codes, 0, -1, 11, 105, 2**15 - 1))
                return replace(command, code=code if not binary else min(code, 2**15 - 1))
            case 1:
                return replace(command, flag=random.choice((0, 1, 2, 3, 4, -1, 2**31 - 1)))
            case 2:
                return replace(command, opaque=random.choice((0, -1, -(2**31), 2**31 - 1)))
            case 3:
                return replace(command, version=random.choice((-1, 0, 36, 37, 412, 413, 2**15 - 1)))
            case _:
                return replace(command, language=random.choice(("", "NOBODY", "HTTP")), remark=self._text())

    def _change_body(self, command: RemotingCommand) -> RemotingCommand:
        random, body = self.random, command.body
        match random.randrange(6):
            case 0:
                body = random.choice(
                    (b"", b"{}", b"[]", b"null", b"1", b'"x"', b"\x78", b"\x78\x9c", *DEEP[:2])
                )
            case 1:
                body = zlib.compress(self._noise(body))
            case 2 if body[:1] == b"\x78":
                body = self._inside(body)
            case 3:
                body = random.choice(self._headers)(body)
            case 4:
                body = random.randbytes(random.choice((1, 7, 5_000)))
            case _:
                body = self._noise(body)
        return replace(command, body=body)

    def _inside(self, body: bytes) -> bytes:
        """A compressed body whose content is damaged."""
        try:
            return zlib.compress(self._noise(zlib.decompress(body)))
        except zlib.error:
            return body

    def _text(self) -> str:
        random = self.random
        if random.random() < 0.4:
            return str(random.choice(INTEGERS))
        if random.random() < 0.2:
            return "".join(chr(random.randrange(1, 0xD7FF)) for _ in range(random.randrange(1, 12)))
        return random.choice(TEXTS)

    # ---- header and body as bytes; the lengths are made right again ----

    def _change_parts(self, frame: bytes) -> bytes:
        _, word = unpack_prefix(frame)
        kind, cut = word >> 24, PREFIX_BYTES + (word & 0xFFFFFF)
        header, body = frame[PREFIX_BYTES:cut], frame[cut:]
        for _ in range(self.random.choice((1, 1, 2, 4))):
            header = self.random.choice(self._headers)(header)
        return struct.pack(">II", 4 + len(header) + len(body), kind << 24 | len(header)) + header + body

    def _replace_number(self, data: bytes) -> bytes:
        found = list(_NUMBER.finditer(data))
        if not found:
            return self._noise(data)
        match = self.random.choice(found)
        number = str(self.random.choice(INTEGERS)).encode()
        number = self.random.choice((number, b'"' + number + b'"', b"null", b"true", b"1.5", b"{}", b"[1]"))
        return data[: match.start()] + number + data[match.end() :]

    def _insert_raw(self, data: bytes) -> bytes:
        at = self.random.randrange(len(data) + 1)
        return data[:at] + self.random.choice(RAW) + data[at:]

    def _deep(self, data: bytes) -> bytes:
        """A member that nobody reads, nested deeper than any parser likes."""
        random = self.random
        if data[:1] != b"{" or random.random() < 0.9:  # seldom: they are large
            return self._insert_raw(data)
        deep = random.choice(DEEP)
        if random.random() < 0.5:
            return b'{"deep":' + deep + b"," + data[1:]
        return data[:-1] + b',"deep":' + deep + b"}"

    def _repeat_members(self, data: bytes) -> bytes:
        """JSON with a member twice: the last one counts."""
        try:
            members = json.loads(data)
        except (ValueError, RecursionError):
            return self._repeat_piece(data)
        if not isinstance(members, dict) or not members:
            return data
        name = self.random.choice(list(members))
        again = json.dumps({name: self.random.choice((members[name], 1, "1", None, {}, [], True))}).encode()
        return data[:-1] + b"," + again[1:]

    def _repeat_piece(self, data: bytes) -> bytes:
        start, end = self._piece(data)
        return data[:end] + data[start:end] * self.random.choice((1, 1, 3)) + data[end:]

    def _cut_piece(self, data: bytes) -> bytes:
        start, end = self._piece(data)
        return data[:start] + data[end:]

    def _piece(self, data: bytes) -> tuple[int, int]:
        start = self.random.randrange(len(data) + 1)
        return start, min(len(data), start + self.random.choice((1, 2, 8, 40)))

    def _noise(self, data: bytes) -> bytes:
        changed = bytearray(data)
        for _ in range(self.random.choice((1, 1, 2, 8))):
            if changed:
                at = self.random.randrange(len(changed))
                changed[at] = self.random.choice(
                    (changed[at] ^ 1 << self.random.randrange(8), self.random.randrange(256))
                )
        return bytes(changed)

    # ---- the frame itself ----

    def _break_lengths(self, frame: bytes) -> bytes:
        random, changed = self.random, bytearray(frame)
        length, word = unpack_prefix(frame)
        match random.randrange(5):
            case 0:
                struct.pack_into(
                    ">i",
                    changed,
                    0,
                    max(-(2**31), min(2**31 - 1, length + random.choice((-4, -1, 1, 4, 100)))),
                )
            case 1:
                struct.pack_into(
                    ">i", changed, 0, random.choice((-1, 0, 3, 4, 2**24, 2**24 - 4, 2**31 - 1, -(2**31)))
                )
            case 2:
                header = (word & 0xFFFFFF) + random.choice((-8, -1, 1, 8, 0xFFFF))
                struct.pack_into(">I", changed, 4, word & 0xFF000000 | header & 0xFFFFFF)
            case 3:
                changed[4] = random.choice((0, 1, 2, 127, 128, 255))
            case _:
                return bytes(changed[: random.randrange(len(changed))])
        return bytes(changed)
