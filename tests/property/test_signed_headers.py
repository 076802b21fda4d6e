"""The compiled check of signed headers against the ordinary one: it admits nothing that the other refuses."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from keelmq.remoting.command import RemotingCommand, decode_parts
from keelmq.remoting.frame import Frame
from keelmq.security import server_access
from keelmq.security.core.access import AccessControl, Granted
from keelmq.security.core.access_settings import AccessSettings
from keelmq.security.core.known_requests import TEXT_BYTES_MAX, KnownKind, KnownRequests
from keelmq.security.core.plain_acl import PlainAcl, parse_plain_acl
from keelmq.security.core.signature import SecretKey, signed
from keelmq.security.core.users import User, UserStatus
from keelmq.security.server_access import ServerAccess
from tests.property.test_compiled_leaves import ways
from tests.unit.keelmq.security.parts import NOW_MS, PEER, SECRETS, Tables, acl_of, tables

SEND = 310
FIELDS = {"a": "p", "b": "t", "e": "0", "i": "KEYS\x01k\x02WAIT\x01true\x02"}
KEY = SecretKey(SECRETS["alice"].encode())
INTERPRETED, *COUNTS = ways("keelmq.security.signed_headers", "count_signed")
"""The twin's way, interpreted and, where it is built, compiled."""
both_ways = pytest.mark.parametrize("count", COUNTS, ids=["interpreted", "compiled"][: len(COUNTS)])
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

texts = st.text(
    st.sampled_from('az0"\\/\b\f\n\r\t\0\x01\x02\x1f\x7f\x80\u00e9\ud7ff\U00010000 {}:,'), max_size=12
)
others = texts | st.sampled_from(["t", "other", "alice", "root", "", "x" * 66_000])
bodies = st.sampled_from([b"", b"body", b"\x00\xff", b"x" * 3_000])


class Peer:
    """A connection."""

    address, connection_id, is_tls, certificate_names, is_admitted = f"{PEER}:1", 7, False, (), True

    def __init__(self) -> None:
        self.known_requests: Any = None

    def is_closing(self) -> bool:
        return False

    def send(self, frame: bytes) -> bool:
        return True


def header_of(ext: Any, **more: Any) -> bytes:
    """As a Java client writes it; `more`: options of json.dumps(), and other members."""
    options = {name: more.pop(name) for name in ("ensure_ascii", "separators") if name in more}
    members = {"code": SEND, "extFields": ext, "flag": 0, "language": "JAVA", "opaque": 12, **more}
    text = json.dumps(members, **{"separators": (",", ":"), **options})
    return text.encode("utf-8", "surrogatepass")


def frame_of(ext: Any, body: bytes = b"body", **more: Any) -> Frame:
    return 0, header_of(ext, **more), body, 0


def good(body: bytes = b"body", *, user: str = "alice", **fields: str) -> Frame:
    return frame_of(signed(user, SECRETS[user], FIELDS | fields, body), body)


@st.composite
def sent(draw: Callable[[Any], Any]) -> Frame:
    """A request, most often a right one; others are wrong or unusual in one way."""
    user = draw(st.sampled_from(["alice"] * 6 + ["root", "gone"]))
    fields = FIELDS | draw(st.dictionaries(st.sampled_from("ei"), texts, max_size=2))
    if draw(st.integers(0, 9)) == 0:
        fields |= draw(st.dictionaries(st.sampled_from(["a", "b", "i", "z", "\u00e9"]), others, max_size=2))
    body = draw(bodies)
    secret = SECRETS[user] if draw(st.integers(0, 9)) else "wrong"
    ext: dict[str, Any] = signed(user, secret, fields, body)
    kind = draw(st.sampled_from(["right"] * 8 + list(UNUSUAL)))
    return UNUSUAL[kind](draw, ext, body) if kind != "right" else frame_of(ext, body)


def _damaged(draw: Any, ext: Any, body: bytes) -> Frame:
    header = header_of(ext)
    at, count = draw(st.integers(0, len(header))), draw(st.integers(0, 2))
    return 0, header[:at] + draw(st.binary(max_size=2)) + header[at + count :], body, 0


def _renamed(draw: Any, ext: Any, body: bytes) -> Frame:
    name, other = draw(st.sampled_from(list(ext))), draw(st.sampled_from([*ext, "zz"]))
    text = header_of(ext).replace(b'"%b":' % name.encode(), b'"%b":' % other.encode(), 1)
    return 0, text, body, 0


def _twice(draw: Any, ext: Any, body: bytes) -> Frame:
    name, value = draw(st.sampled_from(list(ext))), draw(others)
    more = b'"%b":%b,' % (name.encode(), json.dumps(value).encode())
    text = header_of(ext)
    if draw(st.booleans()):
        at = text.index(b'"extFields":{') + len(b'"extFields":{')
        return 0, text[:at] + more + text[at:], body, 0
    second = b'"ext%bields":{%b},' % (draw(st.sampled_from([b"F", b"\\u0046"])), more[:-1])
    at = draw(st.sampled_from([1, text.rindex(b'"flag"')]))
    return 0, text[:at] + second + text[at:], body, 0


def _other_value(draw: Any, ext: Any, body: bytes) -> Frame:
    name = draw(st.sampled_from(list(ext)))
    return frame_of(ext | {name: draw(others | st.sampled_from([0, None, True, 1.5, [], {}]))}, body)


def _other_order(draw: Any, ext: Any, body: bytes) -> Frame:
    return frame_of({name: ext[name] for name in draw(st.permutations(list(ext)))}, body)


def _other_members(draw: Any, ext: Any, body: bytes) -> Frame:
    value = draw(st.sampled_from([-1, 10**17, 10**18, 0, True, None, 1.5, "x", "\n", "\u00e9", [], {}]))
    return frame_of(ext, body, remark=value, ensure_ascii=draw(st.booleans()))


UNUSUAL: dict[str, Callable[[Any, Any, bytes], Frame]] = {
    "damaged": _damaged,
    "renamed": _renamed,
    "twice": _twice,
    "a value": _other_value,
    "order": _other_order,
    "members": _other_members,
    "body": lambda draw, ext, body: frame_of(ext, body + b"x"),
    "unsigned": lambda draw, ext, body: frame_of({**ext, "Signature": ""}, body),
    "spaces": lambda draw, ext, body: frame_of(ext, body, separators=(", ", ": ")),
    "not ASCII": lambda draw, ext, body: frame_of(ext | {"i": "\u00e9"}, body, ensure_ascii=False),
    "slashes": lambda draw, ext, body: (0, header_of(ext).replace(b"/", b"\\/"), body, 0),
    "capitals": lambda draw, ext, body: (0, header_of(ext).replace(b"\\u001f", b"\\u001F"), body, 0),
    "cut": lambda draw, ext, body: (0, header_of(ext)[: draw(st.integers(0, 300))], body, 0),
    "long": lambda draw, ext, body: frame_of(ext, body, remark="x" * 66_000),
}  # fmt: skip


def known_kind(*frames: Frame) -> KnownKind:
    known = KnownRequests(object())
    for frame in frames or (good(),):
        ext = json.loads(frame[1])["extFields"]
        known.add(SEND, ext, ("AccessKey", "b"), SecretKey(SECRETS[ext["AccessKey"]].encode()))
    return known.kinds[SEND]


# -- the leaf -----------------------------------------------------------------------------------------------


@pytest.mark.slow
@both_ways
@unhurried
@given(frame=sent())
@example(frame=good())
@example(frame=(0, b"", b"", 0))
@example(frame=(0, b"{", b"", 0))
@example(frame=(0, b"{}", b"", 0))
@example(frame=(0, b'{"extFields":{', b"", 0))
@example(frame=(0, b'{"extFields":{"a":"\\', b"", 0))
@example(frame=(0, b'{"extFields":{"a":"\\u00', b"", 0))
def test_what_is_counted_has_a_right_signature(count: Any, frame: Frame) -> None:
    kind = known_kind()
    assert kind.form is not None
    if count([frame], 0, kind.form, kind.keys, None):
        assert kind.has(frame[1], frame[2])
    if count([frame], 0, kind.form, kind.keys, KEY):
        assert kind.key_of(frame[1]) is KEY
    assert INTERPRETED([frame], 0, kind.form, kind.keys, None) == 0


@both_ways
@unhurried
@given(
    st.lists(st.tuples(st.text(st.characters(max_codepoint=127), max_size=20), bodies), max_size=4),
    st.permutations([*FIELDS, "AccessKey", "Signature"]),
)
def test_what_clients_write_is_counted(count: Any, values: list[tuple[str, bytes]], order: list[str]) -> None:
    """Any ASCII text, and any order that the client keeps to."""
    frames = []
    for text, body in values or [("", b"")]:
        ext = signed("alice", SECRETS["alice"], FIELDS | {"i": text}, body)
        frames.append(frame_of({name: ext[name] for name in order}, body))
    kind = known_kind(frames[0])
    assert count(frames, 0, kind.form, kind.keys, None) == len(frames)
    wrong = (0, frames[-1][1], frames[-1][2] + b"x", 0)
    assert count([*frames, wrong, *frames], 0, kind.form, kind.keys, None) == len(frames)


@both_ways
def test_each_of_a_read_has_its_own_user_and_resources(count: Any) -> None:
    kind = known_kind(good(), good(user="root"), good(b="u"))
    frames = [good(), good(), good(user="root"), good(b="u"), good()]
    assert count(frames, 0, kind.form, kind.keys, None) == 5
    assert count(frames, 2, kind.form, kind.keys, None) == 3
    assert count([*frames, good(user="root", b="u"), good()], 0, kind.form, kind.keys, None) == 5
    ext = signed("root", SECRETS["alice"], FIELDS, b"body")
    assert count([good(), good(user="root"), frame_of(ext)], 0, kind.form, kind.keys, None) == 2
    alice = kind.key_of(good()[1])
    assert count(frames, 0, kind.form, kind.keys, alice) == 2, "root's signatures are not trusted"


@both_ways
@pytest.mark.parametrize("at", range(28))
def test_each_character_of_a_signature_counts(count: Any, at: int) -> None:
    kind, frame = known_kind(), good()
    place = frame[1].index(b'"Signature":"') + len('"Signature":"') + at
    other = b"B" if frame[1][place : place + 1] == b"A" else b"A"
    wrong = (0, frame[1][:place] + other + frame[1][place + 1 :], b"body", 0)
    assert count([frame], 0, kind.form, kind.keys, None) == 1
    assert count([wrong], 0, kind.form, kind.keys, None) == 0


@both_ways
def test_a_signature_has_its_28_characters_and_no_more(count: Any) -> None:
    fields = {**FIELDS, "i": "=", "AccessKey": "alice"}
    right = signed("alice", SECRETS["alice"], fields, b"body")["Signature"]
    frames = {}
    for sent_one in (right, right + "=", right + "A", right[:-1], right[:-1] + "A", ""):
        # The value behind the signature begins with what a shorter one lacks.
        frames[sent_one] = frame_of({"Signature": sent_one, "i": "=", **fields})
    kind = known_kind(frames[right])
    admitted = [each for each, frame in frames.items() if count([frame], 0, kind.form, kind.keys, None)]
    assert admitted == [right]


@both_ways
@pytest.mark.parametrize("wrong", [0, 1, 19, 63])
def test_requests_before_a_wrong_signature_are_admitted(count: Any, wrong: int) -> None:
    kind, frames = known_kind(), [good(b"%d" % number) for number in range(64)]
    assert count(frames, 0, kind.form, kind.keys, None) == 64
    frames[wrong] = (*frames[wrong][:2], b"another body", 0)
    assert count(frames, 0, kind.form, kind.keys, None) == wrong
    assert count(frames, 1, kind.form, kind.keys, None) == (wrong - 1 if wrong else 63)


EXT = b'"extFields":{'


def _signed_bytes(raw: bytes) -> bytes:
    """The header with these bytes as the value of i; the signature is over them."""
    fields = {**FIELDS, "i": "", "AccessKey": "alice"}
    parts = {name: value.encode() for name, value in fields.items()} | {"i": raw}
    signature = KEY.signature_of(b"".join(parts[name] for name in sorted(parts)) + b"body")
    return header_of({**fields, "Signature": signature.decode()}).replace(b'"i":""', b'"i":"%b"' % raw)


RIGHT = good()[1]
UNEXPECTED: dict[str, bytes] = {
    "empty": b"",
    "two extFields": RIGHT[:-1] + b"," + EXT + RIGHT.partition(EXT)[2].partition(b"}")[0] + b"}}",
    "no extFields": b'{"code":310}',
    "other brackets": RIGHT.replace(b"},", b"],"),
    "more fields": RIGHT.replace(b"},", b',"z":"x"},'),
    "behind the end": RIGHT + b" ",
    "twice": RIGHT + RIGHT,
    "not closed": RIGHT[:-1],
    "a comma too many": RIGHT[:-1] + b",}",
    "a leading zero": RIGHT.replace(b'"flag":0', b'"flag":00'),
    "no digits": RIGHT.replace(b'"flag":0', b'"flag":-'),
    "no value": RIGHT.replace(b'"flag":0', b'"flag":'),
    "many digits": RIGHT.replace(b'"flag":0', b'"flag":%d' % 10**18),
    "a fraction": RIGHT.replace(b'"flag":0', b'"flag":0.5'),
    "an escape": RIGHT.replace(b"JAVA", b"J\\AVA"),
    "an escape in a name": RIGHT.replace(b'"flag"', b'"fl\\u0061g"'),
    "a control character": RIGHT.replace(b"JAVA", b"J\x01AVA"),
    "no UTF-8": RIGHT.replace(b"JAVA", b"J\xffAVA"),
    "a raw control character": _signed_bytes(b"a\x01b"),
    "raw bytes": _signed_bytes(b"a\xffb"),
    "a raw letter": _signed_bytes("\u00e9".encode()),
    "a letter": good(i="\u00e9")[1],
    "another user": good(user="root")[1].replace(b"root", b"r\\u00e9t"),
    "a long value": good(i="x" * 66_000)[1],
}
"""Signed by alice, if a decoder reads them at all."""


@both_ways
@pytest.mark.parametrize("name", UNEXPECTED)
def test_of_other_headers_nothing_is_said(count: Any, name: str) -> None:
    kind = known_kind()
    assert count([(0, UNEXPECTED[name], b"body", 0)], 0, kind.form, kind.keys, None) == 0


@both_ways
def test_a_longer_and_a_shorter_name_is_another_one(count: Any) -> None:
    for known, other in (("t", "tx"), ("tx", "t"), ("tx", "")):
        kind = known_kind(good(b=known))
        assert count([good(b=known), good(b=other)], 0, kind.form, kind.keys, None) == 1


@both_ways
def test_forms_of_escapes(count: Any) -> None:
    kind, text = known_kind(), good(i="/\n\x7f")[1]
    for form in (b"\\u000a", b"\\u000A", b"\\n"):
        frame = 0, text.replace(b"\\n", form).replace(b"/", b"\\/"), b"body", 0
        assert kind.has(*frame[1:3])
        assert count([frame], 0, kind.form, kind.keys, None) == 1


@both_ways
@pytest.mark.parametrize("length", [1_000, 60_000])
def test_long_values_and_long_bodies(count: Any, length: int) -> None:
    kind, frames = known_kind(), [good(), good(b"x" * length), good(i="x" * length), good(b"")]
    assert count(frames, 0, kind.form, kind.keys, None) == 4


@pytest.mark.parametrize("name", ["\u00e9", "\U00010000", "x" * 250])
def test_names_that_are_not_ascii_or_too_long_have_no_form(name: str) -> None:
    assert known_kind(good(**{name: "x"})).form is None


@both_ways
def test_the_longest_name_that_has_a_form(count: Any) -> None:
    name = "x" * (TEXT_BYTES_MAX - len('","":"'))
    kind = known_kind(good(**{name: "x"}))
    assert count([good(**{name: "y"}), good()], 0, kind.form, kind.keys, None) == 1


# -- the whole check ----------------------------------------------------------------------------------------

_ACCOUNT = {"accessKey": "alice12", "secretKey": SECRETS["alice"], "topicPerms": ["t=PUB"]}
_PARSED, _ = parse_plain_acl([("f", {"accounts": [_ACCOUNT]})])
PLAIN = PlainAcl(accounts={"alice": replace(_PARSED.accounts["alice12"], access_key="alice")})
CHANGES: dict[str, Callable[[Tables], None]] = {
    "nothing": lambda users: None,
    "no right": lambda users: users.put(acl_of("alice", "Topic:t Sub Allow")),
    "more rights": lambda users: users.put(acl_of("alice", "Topic:* Pub Allow")),
    "disabled": lambda users: users.put(User("alice", SECRETS["alice"], status=UserStatus.DISABLE)),
    "another secret": lambda users: users.put(User("alice", "wrong")),
}


@contextmanager
def counting(way: Any) -> Iterator[None]:
    with mock.patch.object(server_access, "count_signed", way):
        yield


class World:
    """The same users for admit_first(), for admit_again() one by one, and for whole checks."""

    def __init__(self, *, is_plain: bool = False, **more: Any) -> None:
        self.users, self.plain = tables("Topic:t Pub Allow"), PLAIN if is_plain else None
        switches = dict.fromkeys(("authentication_enabled", "authorization_enabled"), not is_plain)
        self.settings = AccessSettings(**switches, **more)
        self.accesses = [ServerAccess(self._control(), clock=lambda: NOW_MS) for _ in range(2)]
        self.peers: list[Any] = [Peer(), Peer()]

    def _control(self) -> AccessControl:
        return AccessControl(self.users, self.settings, plain=self.plain)

    def is_granted(self, frame: Frame) -> bool:
        """Asks a server that remembers nothing."""
        request = decode_parts(*frame[:3])
        asked = server_access.AccessRequest(SEND, request.version, request.ext_fields, request.body, PEER)
        return isinstance(self._control().check(asked, NOW_MS), Granted)

    def learn(self, frame: Frame) -> None:
        """A request that was not known is checked as a whole, by both."""
        if not self.is_granted(frame):
            return
        for access, peer in zip(self.accesses, self.peers, strict=True):
            request: RemotingCommand = decode_parts(*frame[:3])
            access.remember(request, peer, access.admit(request, peer))

    def both(self, frames: list[Frame]) -> tuple[int, int]:
        """How many of them are admitted together, and how many one by one."""
        together = self.accesses[0].admit_first(SEND, frames, self.peers[0])
        for alone, (_, header, body, _) in enumerate(frames):
            if not self.accesses[1].admit_again(SEND, header, body, self.peers[1]):
                return together, alone
        return together, len(frames)


@pytest.mark.slow
@both_ways
@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(sent(), min_size=1, max_size=4),
    st.sampled_from(list(CHANGES)),
    st.booleans(),
    st.booleans(),
)
@example([good(), good(user="root"), good(user="root")], "nothing", False, True)
@example([good()], "another secret", False, False)
@example([good()], "disabled", False, True)
def test_together_and_one_by_one(
    count: Any, frames: list[Frame], change: str, is_plain: bool, is_stateful: bool
) -> None:
    world = World(is_plain=is_plain, stateful_authentication=is_stateful)
    with counting(count):
        for step in ("nothing", change):
            CHANGES[step](world.users)
            for batch in ([good(), good(user="root")], frames, [good(), *frames], [*frames, good()]):
                together, alone = world.both(batch)
                assert together == alone
                if not is_stateful or is_plain:
                    assert all(map(world.is_granted, batch[:together]))
            world.learn(good())


@both_ways
def test_with_the_stateful_strategy_one_signature_of_a_read_is_checked(count: Any) -> None:
    world = World(stateful_authentication=True)
    world.learn(good())
    access, (peer, _) = world.accesses[0], world.peers
    frames = [good(), *(frame_of(signed("alice", "wrong", FIELDS)) for _ in range(20))]
    with counting(count), mock.patch.object(access, "admit_again", wraps=access.admit_again) as again:
        assert access.admit_first(SEND, frames, peer) == 21
        assert again.call_count == 1
        assert access.admit_first(SEND, [*frames, good(user="root"), good()], peer) == 21


@both_ways
def test_a_read_of_right_requests_is_admitted_without_the_other_decoder(count: Any) -> None:
    world, frames = World(), [good(b"%d" % number, i=f"KEYS\x01{number}") for number in range(20)]
    world.learn(good())
    with counting(count), mock.patch.object(KnownKind, "has", side_effect=AssertionError):
        assert world.accesses[0].admit_first(SEND, frames, world.peers[0]) == 20
        world.users.put(User("somebody", "else"))
        assert world.accesses[0].admit_first(SEND, frames, world.peers[0]) == 0
