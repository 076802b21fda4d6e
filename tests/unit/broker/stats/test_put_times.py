"""How long puts take, as brokerStatus has it (28): measured, and not invented."""

from pathlib import Path

import pytest

from broker.admin.runtime_info import RuntimeInfo
from broker.metadata.offsets import DelayOffsetTable
from broker.put import message_writer as writer
from broker.stats.core.put_times import BANDS, PutTimes
from broker.stats.service import BrokerStats
from tests.support.handler_parts import Broker


@pytest.mark.parametrize(
    ("elapsed_ms", "band"),
    [(-1, 0), (0, 0), (1, 1), (9, 1), (10, 2), (199, 4), (200, 5), (999, 6), (9_999, 11), (10_000, 12)],
)
def test_each_time_has_its_band(elapsed_ms: int, band: int) -> None:
    times = PutTimes()
    times.add(elapsed_ms, 3)
    assert times.bands.index(3) == band and sum(times.bands) == 3
    assert f"{BANDS[band]}:3" in times.text().split()
    assert times.max_ms == max(elapsed_ms, 0)


def test_percentiles_are_of_the_last_minute_that_had_messages() -> None:
    times = PutTimes()
    times.rotate(0)
    assert times.percentile(0.99) == 0
    times.add(0, 989)
    times.add(7, 10)
    times.add(1_234, 1)
    assert (times.percentile(0.98), times.percentile(0.99), times.percentile(0.9999)) == (0, 7, 1_200)
    times.rotate(59_999)
    times.add(7, 1)
    times.rotate(60_000)
    times.add(30, 1)
    assert times.percentile(0.99) == 7, "this minute is not over"
    times.rotate(120_000)
    assert times.percentile(0.99) == 30
    times.rotate(180_000)
    assert times.percentile(0.99) == 30, "no message came since"
    assert times.max_ms == 1_234


def information(broker: Broker, tmp_path: Path) -> dict[str, str]:
    stats = BrokerStats(
        broker.store, broker.context.reads, "c", broker.pending.times, timer_counts=lambda: (0, 0)
    )
    return RuntimeInfo(broker.context, stats, DelayOffsetTable(tmp_path / "delayOffset.json")).table()


def test_a_slow_tick_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for replicas: three messages came together, and were stored 30 ms later."""
    broker, now = Broker(tmp_path), [1_000]
    monkeypatch.setattr(writer, "now_ms", lambda: now[0])
    monkeypatch.setattr(writer, "now_us", lambda: now[0] * 1_000)
    for _ in range(3):
        assert broker.send() is not None
    now[0] += 30
    broker.tick()
    broker.send()
    broker.tick()
    table = information(broker, tmp_path)
    assert (table["putMessageEntireTimeMax"], table["putLatency99"]) == ("30", "30.0")
    bands = table["putMessageDistributeTime"].split()
    assert bands[0] == "[<=0ms]:1" and "[10~50ms]:3" in bands
    broker.store.close()


def test_what_replicas_take_is_part_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broker, now = Broker(tmp_path), [1_000]
    monkeypatch.setattr("broker.admission.pending_replies.now_ms", lambda: now[0])
    monkeypatch.setattr(writer, "now_ms", lambda: now[0])
    monkeypatch.setattr(writer, "now_us", lambda: now[0] * 1_000)
    broker.gate.wait = True
    assert broker.send() is None
    broker.tick()
    now[0] += 250
    broker.replicated()
    assert broker.send() is None
    broker.tick()
    broker.pending.expire(now[0] + 3_000, 3_000)
    table = information(broker, tmp_path)
    bands = [band for band in table["putMessageDistributeTime"].split() if not band.endswith(":0")]
    assert bands == ["[200~500ms]:1", "[3~4s]:1"]
    assert (table["putMessageEntireTimeMax"], table["putLatency999"]) == ("3000", "3000.0")
    broker.store.close()


def test_failures_and_reads_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker(tmp_path)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(broker.store.commit_log, "append", full)
        broker.send()
    broker.context.reads.record_lookup_time(0.0125)
    broker.context.reads.record_lookup_time(0.002)
    broker.context.settings = broker.context.settings.model_copy(
        update={"start_accept_send_request_time_stamp": 7}
    )
    table = information(broker, tmp_path)
    assert table["putMessageFailedTimes"] == "1"
    assert table["getMessageEntireTimeMax"] == "12"
    assert table["startAcceptSendRequestTimeStamp"] == "7"
    broker.store.close()
