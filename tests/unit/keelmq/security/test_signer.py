"""What a client with credentials sends: signatures as RocketMQ's, proofs, and no secret in a text."""

import os
import traceback

import pytest

from keelmq import Credentials, Producer, PullConsumer
from keelmq.client.admin import AdminClient
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.command import RemotingCommand
from keelmq.security.core.member_proof import OTHER_RECIPIENT, PROOF, MemberProofs
from keelmq.security.core.signature import SIGNATURE, SecretKey, verify
from keelmq.security.signer import TRANSLATED_MAX, RequestSigner, optional_signer, signer_of

MINE = Credentials("rocketmq2", "12345678")
ADDRESS = "127.0.0.1:9876"


def command(**fields: str) -> RemotingCommand:
    return RemotingCommand(310, ext_fields=fields, body=b"hello")


def test_the_vector_of_the_reference() -> None:
    sent = command(topic="T")
    signer_of(MINE)(sent, ADDRESS)
    assert sent.ext_fields == {
        "AccessKey": "rocketmq2",
        "Signature": "kPUKNh0ggWAX+mpM4EHuxapYvSo=",
        "topic": "T",
    }


def test_signing_twice_is_signing_once() -> None:
    sent = command(topic="T")
    sign = signer_of(MINE)
    sign(sent, ADDRESS)
    once = dict(sent.ext_fields)
    sign(sent, ADDRESS)
    assert sent.ext_fields == once


def test_a_security_token_is_signed() -> None:
    sent = command(topic="T")
    signer_of(Credentials("a", "s", "token"))(sent, ADDRESS)
    assert sent.ext_fields["SecurityToken"] == "token"
    assert verify(SecretKey(b"s"), sent.ext_fields, sent.body, sent.version)
    altered = {**sent.ext_fields, "SecurityToken": "other"}
    assert not verify(SecretKey(b"s"), altered, sent.body, sent.version)


def test_a_proof_holds_once() -> None:
    sign, proofs = signer_of(MINE, proof=True), MemberProofs()
    for _ in range(2):
        sent = command(topic="T")
        sign(sent, ADDRESS)
        sent_ms = int(sent.ext_fields[PROOF].split(":")[1])
        assert verify(SecretKey(b"12345678"), sent.ext_fields, sent.body, sent.version)
        assert proofs.check(310, sent.ext_fields, sent.body, sent_ms, ADDRESS) is None
        assert (
            proofs.check(310, sent.ext_fields, sent.body, sent_ms, ADDRESS) == "the request was sent before"
        )


def test_a_proof_is_for_the_address_that_is_called() -> None:
    sign = RequestSigner(MINE, proof=True)

    def accepted_by(own_address: str) -> bool:
        sent = command(topic="T")
        sign(sent, ADDRESS)
        sent_ms = int(sent.ext_fields[PROOF].split(":")[1])
        return MemberProofs().check(310, sent.ext_fields, sent.body, sent_ms, own_address) is None

    assert accepted_by(ADDRESS)
    assert not accepted_by("127.0.0.1:9877")
    assert not sign.signs_anew(ADDRESS, "check signature failed.")
    assert not accepted_by("127.0.0.1:9877")
    assert sign.signs_anew(ADDRESS, f"MEMBER (1) is refused: {OTHER_RECIPIENT}")
    assert accepted_by("127.0.0.1:9877")
    assert not sign.signs_anew(ADDRESS, OTHER_RECIPIENT)  # it does not help: not again and again
    assert optional_signer(None) is None


def test_translated_addresses_are_bounded() -> None:
    sign = RequestSigner(MINE, proof=True)
    for number in range(TRANSLATED_MAX + 1):
        assert sign.signs_anew(f"10.0.0.7:{number}", OTHER_RECIPIENT)
    assert sign.signs_anew("10.0.0.7:1", OTHER_RECIPIENT)  # forgotten


def test_a_forked_child_is_another_sender() -> None:
    sign, names = signer_of(MINE, proof=True), []

    def name() -> str:
        sent = command(topic="T")
        sign(sent, ADDRESS)
        return sent.ext_fields[PROOF].split(":")[3][:16]

    read, write = os.pipe()
    names.append(name())
    child = os.fork()
    if child == 0:
        os.write(write, name().encode())
        os._exit(0)
    os.waitpid(child, 0)
    names.append(os.read(read, 16).decode())
    os.close(read)
    os.close(write)
    assert name() == names[0] != names[1]


def test_secrets_are_in_no_text() -> None:
    made = Credentials("user", "top-secret", "top-token")
    assert "user" in repr(made)
    assert "top-" not in repr(made) + str(made) + f"{made}"
    with pytest.raises(ValueError, match="secret_key is not valid Unicode") as caught:
        Credentials("user", "top-\ud800")
    assert "top-" not in "".join(traceback.format_exception(caught.value, chain=True)).replace(
        'Credentials("user", "top-', ""
    )
    sent = command(topic="T")
    signer_of(made)(sent, ADDRESS)
    assert "top-secret" not in str(sent.ext_fields.values())
    assert sent.ext_fields[SIGNATURE]


@pytest.mark.parametrize(("access_key", "secret"), [("", "s"), ("a", "")])
def test_half_of_the_credentials(access_key: str, secret: str) -> None:
    with pytest.raises(ValueError, match="need an access key and a secret key"):
        Credentials(access_key, secret)


async def test_a_shared_client_signs_by_itself() -> None:
    shared = RemotingClient(signer=signer_of(MINE))
    for make in (Producer, PullConsumer):
        with pytest.raises(ValueError, match="give the credentials to the shared client"):
            make(ADDRESS, client=shared, credentials=MINE)
    with pytest.raises(ValueError, match="give the credentials to the shared client"):
        AdminClient(shared, credentials=MINE)
    await shared.close()
