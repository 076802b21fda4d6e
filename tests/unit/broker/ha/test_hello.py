"""The hello of HA links: both sides without a socket, and every way in which it is refused."""

import hashlib
import hmac
import struct
from dataclasses import replace

import pytest

from broker.ha.core import hello
from broker.ha.core.frames import SlaveHandshake
from broker.ha.core.hello import Admitted, Group, HelloRefused, MasterHello, SlaveHello, packet, parse_hello

GROUP = Group("DefaultCluster", "broker-a", "member", b"secret of all members")
BINDING = b"finished"
HANDSHAKE = SlaveHandshake(2, pulls_metadata=True).encode()


def master(
    group: Group | None = GROUP,
    *,
    plain_allowed: bool = False,
    nonce: bytes = b"m" * 32,
    binding: bytes = b"",
) -> MasterHello:
    return MasterHello(group, plain_allowed=plain_allowed, nonce=nonce, binding=binding, now_ms=1_000)


def slave(
    group: Group = GROUP, broker_id: int = 2, *, nonce: bytes = b"s" * 32, binding: bytes = b""
) -> SlaveHello:
    return SlaveHello(group, broker_id, nonce=nonce, binding=binding, now_ms=1_000)


def refused_by(side: MasterHello | SlaveHello, data: bytes, kind: str) -> str:
    with pytest.raises(HelloRefused) as refused:
        side.receive_data(data)
    assert refused.value.kind == kind
    return str(refused.value)


def in_bytes(side: MasterHello | SlaveHello, data: bytes, step: int) -> bytes | Admitted:
    """The one answer to `data`, which comes in pieces."""
    answers = [side.receive_data(data[at : at + step]) for at in range(0, len(data), step)]
    assert all(each is None for each in answers[:-1]), "an answer before the last byte"
    assert answers[-1] is not None
    return answers[-1]


@pytest.mark.parametrize("binding", [b"", BINDING])
@pytest.mark.parametrize("step", [1, 7, 4_096])
def test_members_admit_each_other_however_the_bytes_are_cut(step: int, binding: bytes) -> None:
    ours, theirs = slave(binding=binding), master(binding=binding)
    challenge = in_bytes(theirs, ours.start(), step)
    assert isinstance(challenge, bytes)
    proof = in_bytes(ours, challenge, step)
    assert isinstance(proof, bytes)
    assert in_bytes(theirs, proof, step) == Admitted(2, b"")
    assert ours.start()[0] not in (0x00, 0x16), "neither a handshake of RocketMQ nor of TLS begins so"


def test_bytes_behind_the_proof_are_for_the_link() -> None:
    ours, theirs = slave(), master()
    challenge = theirs.receive_data(ours.start())
    assert isinstance(challenge, bytes)
    proof = ours.receive_data(challenge)
    assert proof is not None
    assert theirs.receive_data(proof + HANDSHAKE) == Admitted(2, HANDSHAKE)


def test_the_packets_are_the_documented_bytes() -> None:
    """So that a change of the layout is seen, as members of two releases must understand each other."""
    start = slave().start()
    assert start[:8].hex() == "4b4d51480101006a"
    assert start[8:40] == b"s" * 32
    assert start[72:] == b"\0\0\0\0\0\0\0\2\0\x0eDefaultCluster\0\x08broker-a\0\x06member"
    fields = [b"hello", b"s" * 32, b"", b"\0\0\0\0\0\0\0\2", b"DefaultCluster", b"broker-a", b"member", b""]
    message = b"KeelMQ HA 1" + b"".join(struct.pack(">i", len(field)) + field for field in fields)
    assert start[40:72] == hmac.new(b"secret of all members", message, hashlib.sha256).digest()


# -- refused by the master ---------------------------------------------------------------------------------


def test_an_anonymous_client_with_the_handshake_of_rocketmq_gets_nothing() -> None:
    assert "haPlainSlaves" in refused_by(master(), HANDSHAKE, hello.NO_CREDENTIALS)


@pytest.mark.parametrize("group", [GROUP, None])
def test_a_plain_slave_is_admitted_where_it_is_allowed(group: Group | None) -> None:
    assert master(group, plain_allowed=True).receive_data(HANDSHAKE[:1]) == Admitted(None, HANDSHAKE[:1])


@pytest.mark.parametrize(
    ("group", "kind", "text"),
    [
        (replace(GROUP, secret=b"guess"), hello.WRONG_CREDENTIALS, "accessKey 'member'"),
        (replace(GROUP, access_key="other"), hello.WRONG_CREDENTIALS, "accessKey 'other'"),
        (replace(GROUP, broker_name="broker-b"), hello.OTHER_GROUP, "'broker-b'"),
        (replace(GROUP, cluster="Other"), hello.OTHER_GROUP, "'Other'"),
    ],
)
def test_a_hello_without_our_secret_or_of_another_group_gets_no_answer(
    group: Group, kind: str, text: str
) -> None:
    assert text in refused_by(master(), slave(group).start(), kind)


def test_a_hello_for_another_tls_connection_gets_no_answer() -> None:
    """Somebody between slave and master ends TLS on both sides, or leaves it out on one."""
    for ours, theirs in ((BINDING, b"other"), (BINDING, b""), (b"", BINDING)):
        refused_by(master(binding=theirs), slave(binding=ours).start(), hello.WRONG_CREDENTIALS)


def test_a_recorded_hello_and_its_proof_are_of_no_use_again() -> None:
    ours, theirs = slave(), master()
    start = ours.start()
    challenge = theirs.receive_data(start)
    assert isinstance(challenge, bytes)
    proof = ours.receive_data(challenge)
    assert proof is not None and isinstance(theirs.receive_data(proof), Admitted)

    again = master(nonce=b"n" * 32)
    assert isinstance(again.receive_data(start), bytes)
    assert "another connection" in refused_by(again, proof, hello.WRONG_CREDENTIALS)


def test_a_recording_that_comes_at_once_gets_no_answer() -> None:
    ours, theirs = slave(), master()
    challenge = theirs.receive_data(ours.start())
    assert isinstance(challenge, bytes)
    proof = ours.receive_data(challenge)
    assert proof is not None
    refused_by(master(), START + proof, hello.WRONG_CREDENTIALS)


def test_the_proof_of_the_master_is_none_of_a_slave() -> None:
    theirs, ours = master(), slave()
    challenge = theirs.receive_data(ours.start())
    assert isinstance(challenge, bytes)
    refused_by(theirs, packet(hello.PROOF, challenge[-32:]), hello.WRONG_CREDENTIALS)


def test_a_proof_is_for_one_broker_id() -> None:
    start = bytearray(slave(broker_id=2).start())
    start[79] = 3
    refused_by(master(), bytes(start), hello.WRONG_CREDENTIALS)


def test_a_hello_to_a_broker_without_credentials() -> None:
    for plain_allowed in (False, True):
        text = refused_by(master(None, plain_allowed=plain_allowed), slave().start(), hello.NOT_CONFIGURED)
        assert "no member credentials" in text


START = slave().start()


@pytest.mark.parametrize(
    "data",
    [
        b"KMQX" + START[4:],
        b"K\r\n",
        START[:4] + b"\2" + START[5:],  # a later version
        START[:5] + b"\3" + START[6:],  # the proof comes first
        START[:6] + b"\xff\xff",  # more than a hello can have
        START[:6] + b"\x00\x10",  # less than a hello has
        packet(hello.HELLO, START[8:] + b"x"),
        packet(hello.HELLO, START[8:-1]),
        packet(hello.HELLO, START[8:72] + b"\0" * 8 + START[80:]),  # broker 0
        packet(hello.HELLO, START[8:72] + b"\xff" * 8 + START[80:]),  # broker -1
        packet(hello.HELLO, START[8:80] + b"\xff\xff" + START[82:]),  # a name beyond the end
        packet(hello.HELLO, START[8:80] + b"\0\1\xff" + START[96:]),  # not UTF-8
    ],
)
def test_a_malformed_hello_is_refused_as_soon_as_it_can_be_seen(data: bytes) -> None:
    refused_by(master(), data, hello.MALFORMED)


def test_a_hello_that_ends_early_waits_for_the_rest_until_the_deadline() -> None:
    for end in range(1, len(START)):
        theirs = master()
        assert theirs.receive_data(START[:end]) is None
        theirs.check(1_000 + hello.DEADLINE_MS)
        with pytest.raises(HelloRefused) as refused:
            theirs.check(1_001 + hello.DEADLINE_MS)
        assert refused.value.kind == hello.TIMED_OUT


def test_the_deadline_is_one_for_the_whole_hello() -> None:
    theirs = master()
    theirs.receive_data(START)
    with pytest.raises(HelloRefused):
        theirs.check(1_001 + hello.DEADLINE_MS)


def test_names_that_fit_into_no_hello() -> None:
    with pytest.raises(HelloRefused, match="70100 bytes"):
        slave(replace(GROUP, access_key="x" * 70_000)).start()


def test_a_line_of_the_log_has_no_text_that_an_anonymous_client_chose_freely() -> None:
    text = refused_by(master(), slave(replace(GROUP, broker_name="x\ny" * 200)).start(), hello.OTHER_GROUP)
    assert "\n" not in text and len(text) < 400
    assert "secret" not in repr(GROUP)


# -- refused by the slave ----------------------------------------------------------------------------------


def test_a_false_master_gets_no_proof() -> None:
    for false in (
        packet(hello.CHALLENGE, b"m" * 32 + bytes(32)),
        packet(hello.CHALLENGE, b"m" * 32 + START[40:72]),  # the slave's own words
    ):
        ours = slave()
        ours.start()
        assert "proof is wrong" in refused_by(ours, false, hello.WRONG_CREDENTIALS)


def test_a_master_of_rocketmq_is_no_answer() -> None:
    ours = slave()
    ours.start()
    refused_by(ours, HANDSHAKE, hello.MALFORMED)


def test_a_master_that_sends_before_it_has_the_proof() -> None:
    ours, theirs = slave(), master()
    challenge = theirs.receive_data(ours.start())
    assert isinstance(challenge, bytes)
    refused_by(ours, challenge + b"x", hello.MALFORMED)


def test_a_master_that_does_not_answer() -> None:
    ours = slave()
    ours.check(1_000 + hello.DEADLINE_MS)
    with pytest.raises(HelloRefused, match="5000 ms"):
        ours.check(1_001 + hello.DEADLINE_MS)


def test_a_hello_is_parsed_as_it_was_written() -> None:
    found = parse_hello(START[8:])
    assert (found.broker_id, found.cluster, found.broker_name, found.access_key) == (
        2,
        "DefaultCluster",
        "broker-a",
        "member",
    )
    assert found.encode() == START
