"""Records of a revive queue, byte for byte as RocketMQ writes and reads them."""

import json

import pytest

from broker.pop.core.state import Checkpoint, Key
from broker.pop.records import checkpoint_body, checkpoint_of

KEY = Key("g", "TopicA", 3, 7, 1_700_000_000_000)
OF_ROCKETMQ = (
    b'{"bm":0,"bn":"broker-a","c":"g","d":[0],"it":60000,"n":1,"pt":1700000000000,"q":3,"ro":0,'
    b'"rt":1700000060000,"so":7%b,"t":"TopicA"}'
)


@pytest.mark.parametrize(
    ("more", "is_suspended"), [(b"", False), (b',"sp":false', False), (b',"rp":"1","sp":true', True)]
)
def test_a_checkpoint_of_rocketmq_says_whether_it_is_suspended(more: bytes, is_suspended: bool) -> None:
    """PopCheckPoint has `sp` since 5.5."""
    found = checkpoint_of(OF_ROCKETMQ % more, 2)
    assert (found.key, found.offsets, found.is_suspended) == (KEY, (7,), is_suspended)


def test_only_a_suspended_checkpoint_has_the_new_field() -> None:
    """So every other record is read by brokers of earlier releases as before."""
    checkpoint = Checkpoint(KEY, 60_000, (7,), 8, 2)
    plain = json.loads(checkpoint_body(checkpoint, "broker-a"))
    assert plain.keys() == {"bm", "bn", "c", "d", "it", "n", "no", "pt", "q", "so", "t"}
    checkpoint.is_suspended = True
    raw = checkpoint_body(checkpoint, "broker-a")
    assert json.loads(raw) == plain | {"sp": True}
    assert checkpoint_of(raw, 2).is_suspended
