"""The hello of HA links against garbage: no anonymous client is admitted, and nothing piles up."""

from hypothesis import given
from hypothesis import strategies as st

from broker.ha.core.hello import (
    CHALLENGE,
    HEAD,
    HELLO,
    MAGIC,
    PACKET_BYTES_MAX,
    PROOF,
    VERSION,
    Group,
    Hello,
    HelloRefused,
    MasterHello,
    SlaveHello,
    packet,
    parse_hello,
)

GROUP = Group("c", "b", "member", b"secret")
START = SlaveHello(GROUP, 2, nonce=b"s" * 32, binding=b"", now_ms=0).start()
NAMES = st.text(max_size=40)
PACKETS = st.one_of(
    st.binary(max_size=300),
    st.binary(max_size=300).map(lambda body: packet(HELLO, body)),
    st.binary(max_size=80).map(lambda body: packet(PROOF, body)),
    st.binary(min_size=32, max_size=32).map(lambda body: packet(PROOF, body)),
    st.integers(0, 0xFFFF).map(lambda size: HEAD.pack(MAGIC, VERSION, HELLO, size)),
    st.just(START),
)


def pieces(data: bytes, sizes: list[int]) -> list[bytes]:
    found = []
    for size in sizes:
        found.append(data[:size])
        data = data[size:]
    return [each for each in [*found, data] if each]


@given(st.lists(PACKETS, max_size=4), st.lists(st.integers(1, 90), max_size=8))
def test_an_anonymous_client_is_never_admitted(packets: list[bytes], sizes: list[int]) -> None:
    """It may replay a whole hello; the answer to the challenge is not in anybody's recording."""
    master = MasterHello(GROUP, plain_allowed=False, nonce=b"m" * 32, binding=b"", now_ms=0)
    challenges, waiting = 0, 0
    try:
        for piece in pieces(b"".join(packets), sizes):
            answer = master.receive_data(piece)
            assert answer is None or isinstance(answer, bytes), "admitted"
            challenges += answer is not None
            waiting = 0 if answer is not None else waiting + len(piece)
            assert waiting <= PACKET_BYTES_MAX
    except HelloRefused as refused:
        assert refused.kind in (
            "no_credentials",
            "malformed",
            "other_group",
            "wrong_credentials",
            "not_configured",
        )
    assert challenges <= 1


@given(st.integers(0, len(START) - 1), st.integers(1, 255))
def test_a_hello_with_one_wrong_byte_gets_no_answer(at: int, flip: int) -> None:
    data = bytearray(START)
    data[at] ^= flip
    master = MasterHello(GROUP, plain_allowed=False, nonce=b"m" * 32, binding=b"", now_ms=0)
    try:
        assert master.receive_data(bytes(data)) is None, "at most it is longer than what has come"
    except HelloRefused:
        return


@given(st.one_of(st.binary(max_size=200), st.binary(max_size=200).map(lambda body: packet(CHALLENGE, body))))
def test_no_garbage_is_a_master(data: bytes) -> None:
    slave = SlaveHello(GROUP, 2, nonce=b"s" * 32, binding=b"", now_ms=0)
    slave.start()
    try:
        assert slave.receive_data(data) is None
    except HelloRefused:
        return


@given(st.binary(min_size=32, max_size=32), st.integers(1, 2**63 - 1), NAMES, NAMES, NAMES)
def test_every_hello_is_parsed_as_it_was_written(
    nonce: bytes, broker_id: int, cluster: str, broker_name: str, access_key: str
) -> None:
    hello = Hello(nonce, nonce[::-1], broker_id, cluster, broker_name, access_key)
    assert parse_hello(hello.encode()[HEAD.size :]) == hello
