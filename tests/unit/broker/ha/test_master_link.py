"""MasterLink: what it sends, how it labels it, and whom it refuses."""

from itertools import pairwise
from pathlib import Path

import pytest
from msgspec.structs import replace

from broker.core.report_lease import REPORT_MS
from broker.ha.core.epochs import Epochs
from broker.ha.core.frames import (
    MASTER_HANDSHAKE_BYTES,
    STATE_TRANSFER,
    TRANSFER_BODY_BYTES_MAX,
    TRANSFER_BYTES,
    Ack,
    SlaveHandshake,
    TransferHeader,
    parse_master_handshake,
    parse_transfer_header,
)
from broker.ha.core.master_link import CONFIRM_DELAY_MS, WATCHED_MS, Close, MasterLink, MasterLog, Send
from broker.ha.ports import BATCH_BYTES_MAX
from tests.support.ha_parts import link_settings
from tests.unit.broker.ha.test_ha_frames import STATED_5_3_3

FIXTURES = Path(__file__).parents[3] / "fixtures" / "ha"

SETTINGS = link_settings(batch_bytes=100, send_heartbeat_interval_ms=5_000, housekeeping_interval_ms=20_000)


def log_of(max_offset: int = 1_000, *pairs: tuple[int, int], min_offset: int = 0) -> MasterLog:
    return MasterLog(4_096, Epochs.of(pairs or [(1, 0)]), min_offset, max_offset, confirm_offset=max_offset)


def link_at(log: MasterLog, offset: int, *, last_file: bool = False, now: int = 0) -> MasterLink:
    """After its handshake and its first ack."""
    link = MasterLink(log, SETTINGS, now_ms=now)
    link.receive_data(SlaveHandshake(2, sync_from_last_file=last_file).encode(), now)
    effect = link.next_effect(now)
    assert isinstance(effect, Send)
    assert effect.body_bytes == 0
    assert parse_master_handshake(effect.header).epochs == log.epochs.pairs
    link.receive_data(Ack(offset).encode(), now)
    return link


def packets(link: MasterLink, now: int = 0) -> list[TransferHeader]:
    """Everything that is due now."""
    found = []
    while isinstance(effect := link.next_effect(now), Send):
        header = parse_transfer_header(effect.header)
        assert (header.offset, header.body_bytes) == (effect.offset, effect.body_bytes)
        found.append(header)
    return found


def reason(link: MasterLink, now: int = 0) -> str:
    effect = link.next_effect(now)
    assert isinstance(effect, Close)
    return effect.reason


def test_nothing_goes_out_before_the_handshake_and_the_first_ack() -> None:
    link = MasterLink(log_of(), SETTINGS, now_ms=0)
    assert link.next_effect(0) is None
    for byte in SlaveHandshake(2).encode():
        assert link.next_effect(0) is None
        link.receive_data(bytes([byte]), 0)
    effect = link.next_effect(0)
    assert isinstance(effect, Send)
    assert len(effect.header) == MASTER_HANDSHAKE_BYTES + 12
    assert link.next_effect(4_999) is None, "a Java slave reports after 5 s"
    link.receive_data(Ack(950).encode(), 5_000)
    assert [header.body_bytes for header in packets(link, 5_000)] == [50]


def answers(link: MasterLink, now: int = 0) -> list[bytes]:
    """What is due now, without the log's bytes."""
    found = []
    while isinstance(effect := link.next_effect(now), Send):
        found.append(effect.header)
    return found


def captured(name: str) -> bytes:
    return (FIXTURES / f"{name}.bin").read_bytes()


def test_an_empty_slave_of_5_1_4() -> None:
    """Its bytes, as captured, are answered with those that its Java master sent."""
    log = MasterLog(65_536, Epochs.of([(1, 0)]), 0, 43_222, confirm_offset=43_222)
    link = MasterLink(log, link_settings(batch_bytes=32_768), now_ms=0)
    link.receive_data(captured("link-1.handshake-1.slave-to-master"), 0)
    assert answers(link) == [captured("link-1.handshake-1.master-to-slave")]
    link.receive_data(captured("link-1.ack-1.slave-to-master"), 0)
    headers = [captured(f"link-1.transfer-{n}.master-to-slave")[:TRANSFER_BYTES] for n in (1, 2)]
    assert answers(link) == headers
    link.receive_data(captured("link-1.ack-2.slave-to-master"), 10)
    assert (link.slave_id, link.ack_offset) == (2, 32_768)
    link.receive_data(captured("link-1.slave-to-master")[40:52], 20)
    assert (link.ack_offset, answers(link, 5_020)) == (
        43_222,
        [captured("link-1.heartbeat-2.master-to-slave")],
    )


def test_a_slave_of_5_1_4_after_an_election() -> None:
    log = MasterLog(65_536, Epochs.of([(1, 0), (2, 87_716)]), 0, 87_716, confirm_offset=87_716)
    link = MasterLink(log, link_settings(batch_bytes=32_768), now_ms=0)
    link.receive_data(captured("link-2.handshake-1.slave-to-master"), 0)
    assert answers(link) == [captured("link-2.handshake-1.master-to-slave")]
    link.receive_data(captured("link-2.ack-1.slave-to-master"), 0)
    assert answers(link) == [captured("link-2.heartbeat-1.master-to-slave")]
    log.max_offset += 286
    assert answers(link, 10) == [captured("link-2.transfer-1.master-to-slave")[:TRANSFER_BYTES]]


def test_a_slave_of_5_3_3() -> None:
    """It sends its handshake at each pass until it is answered (pitfall 40); all bytes as they are stated."""
    stated = STATED_5_3_3
    log = MasterLog(1 << 30, Epochs.of([(1, 0), (3, 4_096)]), 0, 5_000, confirm_offset=4_900)
    link = MasterLink(log, link_settings(batch_bytes=32_768), now_ms=0)
    link.receive_data(stated["slave's handshake"] * 2, 0)
    assert answers(link) == [stated["master's handshake"]]
    link.receive_data(stated["ack"], 0)
    answers(link)
    log.max_offset = 5_100
    assert answers(link, 10) == [stated["transfer"]]
    link.receive_data(Ack(5_100).encode(), 20)
    log.confirm_offset = 5_000
    assert answers(link, 5_020) == [stated["heartbeat"]]
    assert (link.slave_id, link.ack_offset, link.close_reason) == (2, 5_100, None)


def test_packets_are_contiguous_and_end_with_batch_epoch_and_file() -> None:
    log = log_of(4_200, (1, 0), (2, 130), (5, 4_000))
    sent = packets(link_at(log, 0))
    position = 0
    for header in sent:
        entry = log.epochs.find(header.offset)
        assert entry is not None
        assert header.offset == position
        assert (header.epoch, header.epoch_start_offset) == (entry.epoch, entry.start_offset), "pitfall 29"
        assert position + header.body_bytes <= entry.end_offset
        assert 0 < header.body_bytes <= 100
        position += header.body_bytes
    assert position == 4_200
    assert {130, 4_000, 4_096} <= {header.offset for header in sent}


def test_an_epoch_without_data_is_announced_at_once() -> None:
    sent = packets(link_at(log_of(100, (1, 0), (2, 100)), 100))
    assert sent == [TransferHeader(0, 100, 2, 100, 100)]


def test_an_epoch_without_data_is_announced_after_the_data_before_it() -> None:
    sent = packets(link_at(log_of(100, (1, 0), (2, 100)), 50))
    assert sent == [TransferHeader(50, 50, 1, 0, 100), TransferHeader(0, 100, 2, 100, 100)]


def test_a_new_epoch_of_the_same_master_labels_open_links() -> None:
    """Pitfall 33."""
    log = log_of(100)
    link = link_at(log, 100)
    packets(link)
    log.epochs = log.epochs.append(7, 100)
    assert [header.epoch for header in packets(link)] == [7]
    log.max_offset = 150
    assert packets(link) == [TransferHeader(50, 100, 7, 100, 100)]


@pytest.mark.parametrize(("last_file", "start"), [(False, 300), (True, 8_192)])
def test_where_an_empty_slave_begins(last_file: bool, start: int) -> None:
    link = link_at(log_of(8_200, (1, 0), min_offset=300), 0, last_file=last_file)
    assert packets(link)[0].offset == start


@pytest.mark.parametrize("offset", [1_001, -5])
def test_a_request_outside_the_log_is_refused(offset: int) -> None:
    """Pitfall 43: the peer sends heartbeats for ever."""
    assert f"asks for offset {offset}" in reason(link_at(log_of(1_000, (1, 0), min_offset=300), offset))


@pytest.mark.parametrize(("last_file", "start"), [(False, 5_000), (True, 8_192)])
def test_a_slave_below_the_minimum_is_told_where_the_log_begins(last_file: bool, start: int) -> None:
    """Pitfall 43: it asks for bytes that were deleted here."""
    log = log_of(8_200, (1, 0), (2, 4_900), min_offset=5_000)
    link = link_at(log, 400, last_file=last_file)
    sent = packets(link)
    assert sent[0] == TransferHeader(0, start, 2, 4_900, 8_200), "a mark without bytes: a Java slave closes"
    assert (sent[1].offset, link.restarted_from, link.ack_offset) == (start, 400, 400)
    assert link.progress.bytes_behind == 0, "no pace yet"
    link.receive_data(Ack(start).encode(), 10)
    assert link.close_reason is None


def test_more_epochs_than_a_java_slave_can_read() -> None:
    """Pitfall 45: the newest thousand; a slave that knows only older ones has no common epoch."""
    log = log_of(5_000, *((epoch, epoch) for epoch in range(1, 1_501)))
    link = MasterLink(log, SETTINGS, now_ms=0)
    link.receive_data(SlaveHandshake(2).encode(), 0)
    effect = link.next_effect(0)
    assert isinstance(effect, Send)
    told = parse_master_handshake(effect.header)
    assert told.epochs == tuple((epoch, epoch) for epoch in range(501, 1_501))
    assert told.last_epoch == 1_500


def test_a_packet_fits_a_java_slave_whatever_the_batch_size_is() -> None:
    """Pitfall 46: 4 MiB with its header is all that it can read."""
    assert TRANSFER_BODY_BYTES_MAX + TRANSFER_BYTES == 4 << 20
    assert BATCH_BYTES_MAX <= TRANSFER_BODY_BYTES_MAX


def test_no_faster_than_the_limit() -> None:
    """One packet may overdraw; over a second the limit holds, and nothing goes while it is overdrawn."""
    log = log_of(1 << 20)
    log.file_bytes = 1 << 20
    settings = link_settings(batch_bytes=10_000, bytes_per_second=100_000)
    link = MasterLink(log, settings, now_ms=0)
    link.receive_data(SlaveHandshake(2).encode() + Ack(0).encode(), 0)
    link.next_effect(0)
    at = {now: sum(header.body_bytes for header in packets(link, now)) for now in range(0, 3_000, 100)}
    assert at[0] == 20_000, "the burst"
    assert all(count <= 20_000 for count in at.values())
    assert sum(at.values()) == pytest.approx(300_000, rel=0.1)


def test_a_slave_with_a_small_limit_hears_something_in_time() -> None:
    """Packets become small enough that the housekeeping of the slave does not close the link."""
    log = log_of(1 << 20)
    log.file_bytes = 1 << 20
    link = MasterLink(log, link_settings(batch_bytes=1 << 20, bytes_per_second=4_096), now_ms=0)
    link.receive_data(SlaveHandshake(2).encode() + Ack(0).encode(), 0)
    link.next_effect(0)
    heard = [now for now in range(0, 20_000, 100) if packets(link, now)]
    assert max(later - earlier for earlier, later in pairwise(heard)) <= 1_000


def test_a_slave_whose_bytes_were_deleted_is_closed() -> None:
    log = log_of(1_000)
    link = link_at(log, 0)
    link.next_effect(0)
    log.min_offset = 500
    assert "no longer in the log" in reason(link)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (Ack(0).encode(), "before the handshake"),
        (b"\0\0\0\x09", "state 9"),
        (SlaveHandshake(-1).encode(), "broker id -1"),
        (SlaveHandshake(2).encode() + SlaveHandshake(3).encode(), "calls itself 3"),
        (SlaveHandshake(2).encode() + Ack(500).encode() + Ack(499).encode(), "after ack 500"),
        (SlaveHandshake(2).encode() + Ack(500).encode() + Ack(501).encode(), "only 500 was sent"),
    ],
)
def test_what_no_slave_sends(data: bytes, text: str) -> None:
    link = MasterLink(log_of(), SETTINGS, now_ms=0)
    link.receive_data(data, 0)
    assert text in reason(link)
    assert text in reason(link), "and it stays closed"


def test_a_repeated_handshake_is_answered_once() -> None:
    """Pitfall 40."""
    link = MasterLink(log_of(), SETTINGS, now_ms=0)
    link.receive_data(SlaveHandshake(2).encode() * 3, 0)
    assert isinstance(link.next_effect(0), Send)
    assert link.next_effect(0) is None
    link.receive_data(Ack(1_000).encode() + SlaveHandshake(2).encode(), 0)
    assert [len(header.encode()) for header in packets(link)] == [TRANSFER_BYTES]


def test_heartbeats() -> None:
    log = log_of()
    link = link_at(log, 1_000)
    assert len(packets(link)) == 1
    assert packets(link, 4_999) == []
    assert packets(link, 5_000) == [TransferHeader(0, 1_000, 1, 0, 1_000)]
    assert packets(link, 5_001) == []


@pytest.mark.parametrize(("pulls_metadata", "next_ms"), [(True, WATCHED_MS), (False, 5_000)])
def test_a_slave_that_watches_its_master_hears_it_with_every_tick(pulls_metadata: bool, next_ms: int) -> None:
    """One of RocketMQ does not watch it, and gets its heartbeats as before."""
    link = MasterLink(log_of(), replace(SETTINGS, is_watched=True), now_ms=0)
    link.receive_data(SlaveHandshake(2, pulls_metadata=pulls_metadata).encode(), 0)
    link.next_effect(0)
    link.receive_data(Ack(1_000).encode(), 0)
    assert len(packets(link)) == 1
    assert packets(link, next_ms - 1) == []
    assert packets(link, next_ms) == [TransferHeader(0, 1_000, 1, 0, 1_000)]
    link.configure(SETTINGS, next_ms)
    idle_ms = REPORT_MS if pulls_metadata else 5_000
    assert packets(link, next_ms + idle_ms - 1) == []
    assert len(packets(link, next_ms + idle_ms)) == 1


def test_an_idle_slave_hears_of_confirm_soon() -> None:
    log = log_of()
    log.confirm_offset = 900
    link = link_at(log, 1_000)
    packets(link)
    log.confirm_offset = 1_000
    assert packets(link, CONFIRM_DELAY_MS - 1) == []
    assert [header.confirm_offset for header in packets(link, CONFIRM_DELAY_MS)] == [1_000]


def test_a_silent_slave_is_closed() -> None:
    link = link_at(log_of(), 1_000)
    packets(link)
    assert isinstance(link.next_effect(20_000), Send)
    assert "silent" in reason(link, 20_001)


def test_caught_up_follows_what_was_there_at_a_mark() -> None:
    log = log_of(1_000)
    link = link_at(log, 900)
    assert packets(link)
    link.receive_data(Ack(1_000).encode(), 10)
    assert link.caught_up_ms(5_000) == 5_000, "nothing is missing"
    log.max_offset = 1_050
    assert link.caught_up_ms(5_000) == 10
    packets(link, 6_000)
    assert link.caught_up_ms(9_000) == 6_000, "until these bytes came it had everything"
    log.max_offset = 1_100
    packets(link, 7_000)
    link.receive_data(Ack(1_050).encode(), 7_500)
    assert link.caught_up_ms(9_000) == 6_000
    link.receive_data(Ack(1_100).encode(), 8_000)
    assert link.caught_up_ms(9_000) == 9_000


def test_a_slave_that_is_always_a_packet_behind_is_not_lagging() -> None:
    log = log_of(1_000)
    link = link_at(log, 1_000)
    packets(link)
    for now in range(10, 50_000, 10):
        log.max_offset += 100
        packets(link, now)
        if now > 10:
            link.receive_data(Ack(log.max_offset - 100).encode(), now + 5)
        assert now - link.caught_up_ms(now + 5) <= 30


def test_a_link_is_settled_when_an_ack_gives_nothing_to_do() -> None:
    log = log_of(50)
    link = link_at(log, 50)
    assert not link.is_settled, "the mark of the epoch is due at once"
    assert packets(link)
    assert link.is_settled
    log.max_offset = 60
    assert not link.is_settled
    assert packets(link)
    link.receive_data(Ack(60).encode(), 0)
    assert link.is_settled
    link.receive_data(Ack(70).encode(), 0)
    assert not link.is_settled, "it has to be closed"


def test_a_read_as_long_as_an_ack_may_be_parts_of_two() -> None:
    """Behind 8 GiB the middle of an ack looks like the beginning of one."""
    base = STATE_TRANSFER << 32
    link = link_at(log_of(base + 300), base + 100)
    packets(link)
    stream = Ack(base + 150).encode() + Ack(base + 200).encode()
    for begin, end, acked in [(0, 4, 100), (4, 16, 150), (16, 24, 200)]:
        link.receive_data(stream[begin:end], 1)
        assert (link.ack_offset, link.close_reason) == (base + acked, None)
