"""What a master of popping groups measures: records of the revive topic, retries, how late revival is."""

from pathlib import Path

import pytest

from broker.admin import metrics
from broker.admin.pop_metrics import add_pops
from broker.pop import revive_counts
from broker.pop.core.state import Checkpoint, Key, PopState
from broker.pop.revive_counts import OF_ACK, ReviveCounts
from broker.put.message_to_store import PutMessageResult
from keelmq.remoting.operations.broker_metadata import SubscriptionGroupConfig
from keelmq.remoting.servers.metrics import Scrape
from keelmq.runtime.slices import at_once
from tests.support.pop_parts import INVISIBLE_MS, Scene

REVIVE = "rocketmq_pop_revive_"
IN, OUT = REVIVE + "in_message_total", REVIVE + "out_message_total"
RETRY, LAG, LATENCY = REVIVE + "retry_messages_total", REVIVE + "lag", REVIVE + "latency_milliseconds"


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    made = Scene(tmp_path, monkeypatch)
    made.metadata.groups.update(SubscriptionGroupConfig(group_name="g"))
    return made


def found(scene: Scene, name: str) -> dict[tuple[str, ...], float]:
    """The values of a metric by its own labels, in their order."""
    made = Scrape(metrics.TABLE, ["c", "broker", "b", "b", "0"])
    at_once(add_pops(made, scene.part, scene.metadata))
    (own,) = [metric.labels for metric in metrics.TABLE.metrics if metric.name == name]
    return {
        tuple(sample.labels[label] for label in own): sample.value
        for family in made
        for sample in family.samples
        if sample.name == name
    }


def without_queue(values: dict[tuple[str, ...], float]) -> dict[tuple[str, ...], float]:
    """OUT without the number of the revive queue, which depends on chance."""
    return {(group, topic, kind): value for (group, topic, _, kind), value in values.items()}


async def test_records_of_the_revive_topic_are_counted(scene: Scene) -> None:
    assert found(scene, IN) == {} == found(scene, OUT)  # no zeros of what never happened
    scene.send(b"1", b"2")
    first, _ = await scene.pop()
    await scene.ack(first)
    await scene.ack(first)  # a repeat writes nothing
    assert found(scene, IN) == {("g", "TopicA", "CK", "PUT_OK"): 1, ("g", "TopicA", "ACK", "PUT_OK"): 1}
    (ck,) = [queue for _, _, queue, kind in found(scene, OUT) if kind == "CK"]
    assert found(scene, OUT) == {("g", "TopicA", ck, "CK"): 1, ("g", "TopicA", ck, "ACK"): 1}
    lags = found(scene, LAG)
    assert lags.pop((ck,)) == 2  # the checkpoint is open: a new master reads it and what is behind it
    assert len(lags) == 7 and set(lags.values()) == {0}
    assert found(scene, "rocketmq_pop_checkpoint_buffer_size") == {(): 1}


def test_the_number_of_labels_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups that are deleted stay in the counters."""
    monkeypatch.setattr(revive_counts, "PAIRS_MAX", 2)
    counts, stored = ReviveCounts(), PutMessageResult(0, 0, 0)
    for group in ("a", "b", "c", "a"):
        key = Key(group, "T", 0, 0, 0)
        counts.put(key, OF_ACK, stored, 1)
        counts.retry(key, stored)
    for counter in (counts.written, counts.applied, counts.retried):
        assert {labels[0]: count for labels, count in counter.items()} == {"a": 2, "b": 1}


async def test_a_new_master_counts_what_it_reads_and_writes(scene: Scene) -> None:
    scene.send(b"1", b"2")
    first, _ = await scene.pop()
    await scene.ack(first)
    scene.run()
    scene.restart()
    assert found(scene, IN) == {}
    assert without_queue(found(scene, OUT)) == {("g", "TopicA", "CK"): 1, ("g", "TopicA", "ACK"): 1}


async def test_messages_that_are_revived(scene: Scene) -> None:
    scene.send(b"1", b"2", b"3")
    messages = await scene.pop()
    await scene.ack(messages[0])
    scene.run(INVISIBLE_MS)
    assert found(scene, RETRY) == {("g", "TopicA", "PUT_OK"): 2}
    assert set(found(scene, LAG).values()) == {0}
    again = await scene.pop()
    assert len(again) == 2
    scene.run(INVISIBLE_MS)
    assert found(scene, RETRY) == {("g", "TopicA", "PUT_OK"): 2, ("g", "%RETRY%g_TopicA", "PUT_OK"): 2}


async def test_how_late_revival_is(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.send(b"1")
    await scene.pop()
    scene.now += INVISIBLE_MS - 1
    assert set(found(scene, LATENCY).values()) == {0}
    scene.now += 5_001
    late = found(scene, LATENCY)
    assert len(late) == 8 and sorted(late.values())[-2:] == [0, 5_000]
    scene.run()
    assert set(found(scene, LATENCY).values()) == {0}


async def test_what_the_log_refuses(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.send(b"1")
    await scene.pop()

    def full(*arguments: object, **more: object) -> object:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(scene.broker.store, "put", full)
    scene.run(INVISIBLE_MS)
    refused = found(scene, RETRY)
    assert refused.keys() == {("g", "TopicA", "UNKNOWN_ERROR")} and min(refused.values()) >= 1
    assert max(found(scene, LATENCY).values()) == 0  # it is due now
    scene.now += 7
    assert max(found(scene, LATENCY).values()) == 7


async def test_a_slave_and_a_deleted_group_have_no_series(scene: Scene) -> None:
    scene.send(b"1")
    await scene.pop()
    scene.metadata.groups.delete("g")
    assert found(scene, IN) == {}
    assert len(found(scene, LAG)) == 8
    scene.broker.store.become_slave()
    assert found(scene, LAG) == found(scene, LATENCY) == {}
    assert found(scene, "rocketmq_pop_checkpoint_buffer_size") == {}


def test_the_most_overdue_of_each_queue() -> None:
    state = PopState([0] * 8)
    for number in range(64):
        key = Key("g", "T", 0, number, 1_000 - number)
        state.stored(Checkpoint(key, 100, (number,), 0, number % 4), number // 4)
    assert state.overdue_since(1_036) == {}
    assert state.overdue_since(1_038) == {2: 1_038, 3: 1_037}
    assert state.overdue_since(5_000) == {0: 1_040, 1: 1_039, 2: 1_038, 3: 1_037}
    state.end(Key("g", "T", 0, 63, 937), 3, 63)
    assert state.overdue_since(5_000)[3] == 1_041  # the heap still has the ended one
