"""What a master measures of its timers: when they are due, what is late, which delays producers ask for."""

from pathlib import Path

import pytest

from broker.admin import metrics, timer_metrics
from broker.admin.timer_metrics import BOUNDS_S, TimerTimes, add_timers
from broker.message.delay_levels import TIMER_TOPIC
from keelmq.remoting.servers.metrics import Scrape
from keelmq.runtime.clock import wall_ms
from keelmq.runtime.slices import at_once
from tests.unit.broker.timers.test_timers import PRECISION_MS, Scene

SNAPSHOT, DELAYS = "rocketmq_timer_message_snapshot", "rocketmq_delay_message_latency_seconds"
ENQUEUE, DEQUEUE = "rocketmq_timer_enqueue_", "rocketmq_timer_dequeue_"
STORAGE = ("local", "disk")


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    made = Scene(tmp_path)
    made.metadata.topics = made.broker.topics
    return made


async def scrape(scene: Scene) -> dict[str, dict[tuple[str, ...], float]]:
    """{name of a sample: {the values of its own labels: value}}."""
    times = TimerTimes(scene.timers)
    await times.measure()
    made = Scrape(metrics.TABLE, ["c", "broker", "b", "b", "0"])
    at_once(add_timers(made, scene.timers, times, scene.metadata))
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in made:
        for sample in family.samples:
            own = tuple(sample.labels.values())[len(metrics.TABLE.labels) :]
            found.setdefault(sample.name, {})[own] = sample.value
    return found


async def test_when_timers_are_due(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timer_metrics, "STEP", 2)
    for delay_s in (2, 3, 200, 200, 30_000, 200_000):
        scene.send(TIMER_DELAY_SEC=delay_s)
    scene.run()
    found = await scrape(scene)
    assert found[SNAPSHOT] == {(str(bound),): {5: 2, 300: 2, 86_400: 1}.get(bound, 0) for bound in BOUNDS_S}
    assert found["rocketmq_timing_messages"] == {(): 6}
    assert found[DEQUEUE + "lag"] == {STORAGE: 0} and DEQUEUE + "total" not in found
    scene.now += 300_000
    found = await scrape(scene)
    assert found[DEQUEUE + "lag"] == {STORAGE: 4}
    assert found[SNAPSHOT][("5",)] == 0
    (late,) = found[DEQUEUE + "latency_milliseconds"].values()
    assert 295_000 < late <= 300_000
    scene.run()
    found = await scrape(scene)
    assert found[DEQUEUE + "lag"] == {STORAGE: 0} and found[DEQUEUE + "total"] == {("TopicA",): 4}
    assert sum(found[SNAPSHOT].values()) == 1 and found["rocketmq_timing_messages"] == {(): 2}


async def test_the_bounds_are_exact(scene: Scene) -> None:
    """A timer goes out one step of the wheel behind its slot."""
    scene.send(TIMER_DELAY_SEC=100)
    scene.run()
    goes_out_ms = scene.timers.wheel.times()[0] + PRECISION_MS
    for left_ms, bound in ((5_000, "5"), (5_001, "60"), (1, "5"), (60_000, "60"), (60_001, "300")):
        scene.now = goes_out_ms - left_ms
        found = await scrape(scene)
        assert {key for key, count in found[SNAPSHOT].items() if count} == {(bound,)}, left_ms
    scene.now = goes_out_ms
    assert (await scrape(scene))[DEQUEUE + "lag"] == {STORAGE: 1}
    scene.run()
    assert scene.bodies() == [b"timer"]


async def test_the_delays_that_producers_ask_for(scene: Scene) -> None:
    assert DELAYS + "_count" not in await scrape(scene)
    born = wall_ms() // PRECISION_MS * PRECISION_MS
    for delay_s in (30, 60, 61, 100_000):  # the slot is one step of the wheel in front of the time
        text = f"UNIQ_KEY\x01K\x02TIMER_DELIVER_MS\x01{born + (delay_s + 1) * 1_000}\x02"
        reply = scene.broker.send(b"timer", g=str(born), i=text)
        assert reply is not None and reply.code == 0, reply
    await scene.recall(reply.ext_fields["recallHandle"])
    found = await scrape(scene)
    assert found[DELAYS + "_count"] == {("TopicA",): 4}  # a recall asks for none
    assert found[DELAYS + "_sum"] == {("TopicA",): 30 + 60 + 61 + 100_000}
    assert found[DELAYS + "_bucket"] == {
        ("TopicA", bound): count
        for bound, count in (
            ("60.0", 2), ("600.0", 3), ("3600.0", 3), ("43200.0", 3), ("86400.0", 3), ("259200.0", 4),
            ("+Inf", 4),
        )
    }  # fmt: skip


async def test_messages_that_are_not_read_yet(scene: Scene) -> None:
    found = await scrape(scene)
    assert found[ENQUEUE + "lag"] == found[ENQUEUE + "latency_milliseconds"] == {STORAGE: 0}
    scene.send(TIMER_DELAY_SEC=100)
    stored_ms = scene.records(TIMER_TOPIC)[0].store_timestamp
    scene.now = stored_ms + 4_321
    found = await scrape(scene)
    assert found[ENQUEUE + "lag"] == {STORAGE: 1}
    assert found[ENQUEUE + "latency_milliseconds"] == {STORAGE: 4_321}
    assert found[ENQUEUE + "total"] == {(): 0}
    scene.run()
    found = await scrape(scene)
    assert found[ENQUEUE + "latency_milliseconds"] == {STORAGE: 0} and found[ENQUEUE + "total"] == {(): 1}


async def test_a_slave_has_none_of_the_gauges(scene: Scene) -> None:
    scene.send(TIMER_DELAY_SEC=100)
    scene.run()
    scene.broker.store.become_slave()
    assert (await scrape(scene)).keys() <= {
        ENQUEUE + "total", DELAYS + "_bucket", DELAYS + "_count", DELAYS + "_sum",
    }  # fmt: skip
