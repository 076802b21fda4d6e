"""The signature of a call, as each client writes it."""

import base64
import hashlib
import hmac

import pytest

from proxy.core.authorization import AUTHORIZATION, CHARACTERS_MAX, DATE_TIME, credential_of
from proxy.core.statuses import Refused
from proxy.wire import messaging_pb2 as pb

TIME = "20261129T221500Z"
DIGEST = hmac.digest(b"secret", TIME.encode(), hashlib.sha1)
HEX = DIGEST.hex()


def metadata(text: str, date_time: str = TIME) -> dict[str, str]:
    return {AUTHORIZATION: text, DATE_TIME: date_time}


@pytest.mark.parametrize("access_key", ["alice", "alice//Rocketmq", "alice/cn-hangzhou/RocketMQ"])
@pytest.mark.parametrize("digest", [HEX, HEX.upper()])
@pytest.mark.parametrize("comma", [", ", ","])
def test_every_spelling_is_read(access_key: str, digest: str, comma: str) -> None:
    fields = (f"Credential={access_key}", f"SignedHeaders={DATE_TIME}", f"Signature={digest}")
    found = credential_of(metadata("MQv2-HMAC-SHA1 " + comma.join(fields)))
    assert found == ("alice", base64.b64encode(DIGEST).decode(), TIME.encode())


def test_the_time_is_signed_as_sent_and_never_read() -> None:
    found = credential_of(
        metadata(f"MQv2-HMAC-SHA1 Credential=alice, Signature={HEX}", "2026-11-29T22:15:00+08:00")
    )
    assert found is not None and found.signed == b"2026-11-29T22:15:00+08:00"


@pytest.mark.parametrize("text", ["", " ", f"MQv2-HMAC-SHA1 Credential=, Signature={HEX}"])
def test_a_client_without_a_key_is_anonymous(text: str) -> None:
    """Python sends the header with empty keys, too."""
    assert credential_of(metadata(text)) is None
    assert credential_of({}) is None


@pytest.mark.parametrize(
    ("text", "date_time"),
    [
        (f"Bearer Credential=alice, Signature={HEX}", TIME),
        ("MQv2-HMAC-SHA1 Credential=alice", TIME),
        ("MQv2-HMAC-SHA1 Credential=alice, Signature=zz", TIME),
        (f"MQv2-HMAC-SHA1 Credential=alice, Signature={HEX[2:]}", TIME),
        (f"MQv2-HMAC-SHA1 Credential=alice, SignedHeaders=host, Signature={HEX}", TIME),
        (f"MQv2-HMAC-SHA1 Credential=alice, Signature={HEX}", ""),
        ("MQv2-HMAC-SHA1 Credential=" + "a" * CHARACTERS_MAX, TIME),
    ],
)
def test_what_cannot_be_read_is_refused(text: str, date_time: str) -> None:
    with pytest.raises(Refused) as refused:
        credential_of(metadata(text, date_time))
    assert refused.value.status.code == pb.UNAUTHORIZED
