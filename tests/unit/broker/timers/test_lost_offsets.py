"""delayOffset.json is lost: the copies of delivered messages in the log say where delivery goes on."""

from pathlib import Path

import pytest

from broker.metadata.ports import StoreQueues
from broker.metadata.service import Metadata
from broker.timers import delivered_copies, schedule_message_service
from tests.support.handler_parts import Broker
from tests.unit.broker.handlers.test_slow_path_sends import Later, ok, stored

COUNT = 40


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    return Broker(tmp_path)


@pytest.fixture
def later(broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Later:
    """A broker whose records have the time that its deliveries go by."""
    found = Later(broker, tmp_path)
    monkeypatch.setattr("broker.put.message_writer.wall_ms", lambda: found.now)
    return found


def send(later: Later, *bodies: bytes, step_ms: int = 0) -> None:
    """Messages of level 2 (5 s), in turns to two queues."""
    for number, body in enumerate(bodies):
        ok(later.broker.send(body, e=str(number % 2), i=f"DELAY\x012\x02UNIQ_KEY\x01{body.decode()}"))
        later.broker.tick()
        later.now += step_ms


def delivered(later: Later) -> list[bytes]:
    records = [*stored(later.broker, queue_id=0), *stored(later.broker, queue_id=1)]
    return [each.body for each in sorted(records, key=lambda each: each.offset)]


def lose_offsets(later: Later, path: Path) -> None:
    """A next master, whose table is empty."""
    later.metadata = Metadata(path, later.broker.topics, later.broker.gate, StoreQueues(later.broker.store))
    later.delivery = later.another()


@pytest.mark.parametrize("due", [0, 1, 17, COUNT - 1, COUNT])
def test_delivery_goes_on_behind_the_last_copy(
    later: Later, tmp_path: Path, due: int, caplog: pytest.LogCaptureFixture
) -> None:
    bodies = [b"%d" % number for number in range(COUNT)]
    send(later, *bodies[:due])
    later.run(3_000)
    send(later, *bodies[due:])
    later.run(2_000)
    assert delivered(later) == bodies[:due]
    lose_offsets(later, tmp_path / "lost")
    assert later.metadata.delays.get(2) == 0
    later.run()
    assert delivered(later) == bodies[:due]
    assert (f"is lost; messages up to {due - 1} were delivered" in caplog.text) is (due > 0)
    assert "may be delivered again" not in caplog.text
    later.run(60_000)
    assert delivered(later) == bodies and later.metadata.delays.get(2) == COUNT


def test_a_message_that_was_sent_twice_hides_none_in_between(
    later: Later, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy of the first one could be that of the second: it was stored after both were due."""
    monkeypatch.setattr(schedule_message_service, "BATCH_MAX", 1)
    send(later, b"A", b"B", b"A", b"C", b"D")
    later.now += 10_000
    later.delivery.round()
    assert delivered(later) == [b"A"]
    lose_offsets(later, tmp_path / "lost")
    later.run()
    assert delivered(later)[1:] in ([b"B", b"A", b"C", b"D"], [b"A", b"B", b"A", b"C", b"D"])


def test_without_a_copy_in_reach_messages_are_delivered_again_and_the_log_says_so(
    later: Later, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(delivered_copies, "SCAN_MAX", 0)
    later.run()
    send(later, b"A", b"B")
    later.run(10_000)
    assert "has no offset" not in caplog.text, "the first delivery of a level"
    lose_offsets(later, tmp_path / "lost")
    later.run()
    assert delivered(later) == [b"A", b"B", b"A", b"B"]
    assert "if the file is lost, the 2 messages that are due may be delivered again" in caplog.text


def test_a_round_compares_a_bounded_number_of_messages(
    later: Later, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(later, *(b"%d" % number for number in range(COUNT)))
    later.run(10_000)
    for module in (delivered_copies, schedule_message_service):
        monkeypatch.setattr(module, "SCAN_MAX", 2 * delivered_copies.BY_TIME)
    lose_offsets(later, tmp_path / "lost")
    rounds = 1
    while later.delivery.round():
        rounds += 1
    assert rounds > 5
    later.run()
    assert len(delivered(later)) == COUNT
