"""What tests of sends that are stored together need beside a broker and its connections."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.message.record import Record, decode
from broker.message.record_bytes import EncodedRecords
from broker.store.batched_put import BatchedPut
from keelmq.remoting.command import RemotingCommand
from keelmq.remoting.operations.route import TopicConfig
from tests.support.handler_parts import Broker
from tests.support.read_parts import SEND_FIELDS, request_frame, send_frame


class Counted:
    """How many messages each BatchedPut.put() has stored; 0: it wanted them one by one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[int] = []
        real = BatchedPut.put

        def put(self_: BatchedPut, *arguments: Any) -> EncodedRecords | None:
            written = real(self_, *arguments)
            self.calls.append(0 if written is None else len(written.offsets))
            return written

        monkeypatch.setattr(BatchedPut, "put", put)


def begun(path: Path, **settings: int) -> Broker:
    """Its log has a file: the very first messages come one by one."""
    broker = Broker(path, **settings)
    broker.topics.update(TopicConfig(topic_name="First", read_queue_nums=1, write_queue_nums=1))
    broker.send(b="First")
    broker.tick()
    return broker


def records(broker: Broker) -> Iterator[Record]:
    """In log order, without the first one."""
    view = broker.store.commit_log.view(0, 1 << 20)
    at = decode(view).size
    while at < len(view):
        record = decode(view, at)
        yield record
        at += record.size


def by_opaque(answers: list[RemotingCommand]) -> dict[int, RemotingCommand]:
    found = {answer.opaque: answer for answer in answers}
    assert len(found) == len(answers), "answered twice"
    return found


SLOW_PATH_FRAMES = [
    send_frame(50, i="DELAY\x013\x02UNIQ_KEY\x01D"),
    send_frame(50, b="NoSuchTopic", c=""),
    send_frame(50, e="9"),
    send_frame(50, m="true"),
    send_frame(50, f="4"),
    send_frame(50, e="01"),  # the lenient way
    send_frame(50, bytes(100_001)),
    request_frame(310, 50, {"b": "TopicA"}),
    request_frame(34, 50, {}, b"{}"),
    request_frame(999, 50, {}),
    request_frame(311, 50, SEND_FIELDS),
    send_frame(50, i="UNIQ_KEY\x01W\x02WAIT\x01false"),
]
"""Sends that are not plain, and other requests, with the opaque 50."""
