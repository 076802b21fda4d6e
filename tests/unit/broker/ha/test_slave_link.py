"""SlaveLink: streams of masters of RocketMQ 5.1.4 (captured), 5.3.3 (stated) and ours, cut anywhere, into a
byte-list log.
"""

from pathlib import Path

import pytest
from msgspec.structs import replace

from broker.core.report_lease import HEARD_MS
from broker.ha.core import slave_link as sl
from broker.ha.core.epochs import Epochs
from broker.ha.core.frames import ACK, Ack, MasterHandshake, SlaveHandshake, TransferHeader
from broker.ha.core.slave_link import SlaveLink
from tests.support.ha_parts import slave_settings
from tests.unit.broker.ha.test_ha_frames import STATED_5_3_3

FIXTURES = Path(__file__).parents[3] / "fixtures" / "ha"


class Replica:
    """The shell: performs effects on a bytearray, and notes their order."""

    def __init__(
        self, log: bytes = b"", *pairs: tuple[int, int], base: int = 0, file_bytes: int = 1 << 16
    ) -> None:
        self.log = bytearray(log)
        self.base = base
        self.saved = Epochs.of(pairs)
        self.confirm = 0
        self.sent: list[bytes] = []
        self.order: list[str] = []
        self.close: sl.Close | None = None
        self.now = 0
        self.link = self.new_link(file_bytes)

    def new_link(self, file_bytes: int = 1 << 16) -> SlaveLink:
        return SlaveLink(
            2,
            slave_settings(file_bytes),
            epochs=self.saved,
            min_offset=self.base,
            max_offset=self.base + len(self.log),
            now_ms=self.now,
        )

    def receive(self, data: bytes, step: int = 1 << 20) -> None:
        self.perform()
        at = 0
        while at < len(data) and self.close is None:
            link = self.link
            count = min(step, link.body_wanted or link.control_wanted, len(data) - at)
            if link.body_wanted:
                assert link.max_offset == self.base + len(self.log)
                self.log += data[at : at + count]
                link.body_received(count, self.now)
            else:
                link.receive_control(data[at : at + count], self.now)
            at += count
            self.perform()

    def perform(self) -> None:
        while (effect := self.link.next_effect(self.now)) is not None:
            self.order.append(type(effect).__name__)
            match effect:
                case sl.SendBytes(data):
                    self.sent.append(data)
                case sl.Truncate(offset):
                    del self.log[offset - self.base :]
                    self.link.truncated(offset)
                case sl.SaveEpochs(epochs):
                    self.saved = epochs
                case sl.ResetTo(offset):
                    self.log.clear()
                    self.base = offset
                case sl.Confirm(offset):
                    self.confirm = offset
                case sl.Close():
                    self.close = effect

    @property
    def acks(self) -> list[int]:
        return [ACK.unpack(data)[1] for data in self.sent if len(data) == ACK.size]


def greeting(max_offset: int, *pairs: tuple[int, int]) -> bytes:
    return MasterHandshake(max_offset, pairs).encode()


def transfer(offset: int, body: bytes, epoch: int, start: int, confirm: int = 0) -> bytes:
    return TransferHeader(len(body), offset, epoch, start, confirm).encode() + body


def bodies(stream: bytes) -> bytes:
    """The log bytes of a captured stream, parsed naively."""
    at, found = 20 + int.from_bytes(stream[4:8], "big"), b""
    while at < len(stream):
        size = int.from_bytes(stream[at + 4 : at + 8], "big")
        found += stream[at + 36 : at + 36 + size]
        at += 36 + size
    return found


@pytest.mark.parametrize("step", [1, 13, 1 << 20])
def test_the_stream_of_a_master_of_5_1_4_into_an_empty_log(step: int) -> None:
    stream = (FIXTURES / "link-1.master-to-slave.bin").read_bytes()
    replica = Replica()
    replica.receive(stream, step)
    assert replica.close is None
    assert bytes(replica.log) == bodies(stream)
    assert replica.saved.pairs == ((1, 0),)
    assert replica.sent[0] == SlaveHandshake(2).encode()
    assert replica.acks[0] == 0, "reported at once, not after 5 s"
    assert replica.acks[-1] == len(replica.log)
    assert replica.acks == sorted(set(replica.acks))


@pytest.mark.parametrize("step", [1, 1 << 20])
def test_the_stream_of_a_master_of_5_1_4_after_an_election(step: int) -> None:
    stream = (FIXTURES / "link-2.master-to-slave.bin").read_bytes()
    start = int.from_bytes(stream[8:16], "big")
    replica = Replica(bytes(start), (1, 0), file_bytes=1 << 16)
    replica.receive(stream, step)
    assert replica.close is None
    assert bytes(replica.log[start:]) == bodies(stream)
    assert replica.saved.pairs == ((1, 0), (2, start))


@pytest.mark.parametrize("step", [1, 1 << 20])
def test_the_packets_of_a_master_of_5_3_3(step: int) -> None:
    """Handshake, 100 bytes, heartbeat; and what it gets from us, byte for byte."""
    stated = STATED_5_3_3
    replica = Replica(bytes(5_000), (1, 0), (3, 4_096))
    replica.receive(
        stated["master's handshake"] + stated["transfer"] + b"x" * 100 + stated["heartbeat"], step
    )
    assert replica.close is None
    assert replica.sent[:2] == [stated["slave's handshake"], stated["ack"]]
    assert (len(replica.log), replica.acks[-1], replica.confirm) == (5_100, 5_100, 5_000)
    assert replica.saved.pairs == ((1, 0), (3, 4_096))


def test_cut_then_epochs_then_ack() -> None:
    """A crash between any two of them must leave a log that is cut to the right place by the next try."""
    replica = Replica(b"a" * 300, (1, 0), (2, 100))
    replica.receive(greeting(400, (1, 0), (3, 150)))
    assert replica.order == ["SendBytes", "Truncate", "SaveEpochs", "SendBytes"]
    assert replica.acks == [100]
    assert replica.saved.pairs == ((1, 0),)


def test_a_tick_acknowledges_nothing_before_the_cut() -> None:
    """The master would count bytes of another history."""
    replica = Replica(b"x" * 150, (1, 0), (2, 100))
    replica.perform()
    replica.link.tick(1_000)
    replica.receive(greeting(300, (1, 0), (3, 100)))
    assert replica.acks == [100]


def test_a_cut_inside_a_message_reports_where_the_log_really_ends() -> None:
    replica = Replica(b"a" * 300, (1, 0))
    replica.perform()
    replica.link.receive_control(greeting(250, (1, 0))[:20], 0)
    replica.link.receive_control(greeting(250, (1, 0))[20:], 0)
    assert replica.link.next_effect(0) == sl.Truncate(250)
    replica.link.truncated(240)
    assert replica.link.next_effect(0) == sl.SendBytes(Ack(240).encode())


@pytest.mark.parametrize("pairs", [[(2, 100)], []])
def test_no_common_epoch_is_fatal_and_changes_nothing(pairs: list[tuple[int, int]]) -> None:
    replica = Replica(b"a" * 300, *pairs)
    replica.receive(greeting(600, (3, 250), (4, 500)))
    assert replica.close is not None
    assert replica.close.fatal
    assert "no common epoch" in replica.close.reason
    assert len(replica.log) == 300
    assert replica.sent == [SlaveHandshake(2).encode()], "no ack"


def test_an_empty_log_forgets_epochs_that_lead_nowhere() -> None:
    replica = Replica(b"", (2, 100), base=100)
    replica.receive(greeting(600, (3, 250), (4, 500)) + transfer(256, b"x" * 10, 3, 250))
    assert replica.close is None
    assert replica.acks == [0, 266]
    assert replica.saved.pairs == ((3, 250),)


@pytest.mark.parametrize("first", [b"", b"x" * 10], ids=["a heartbeat", "bytes"])
def test_an_empty_log_in_mid_offset_begins_anew_where_the_masters_does(first: bytes) -> None:
    """It was reset to 300 and lost that master before a byte came; this one has the log from 0 on."""
    replica = Replica(b"", (2, 300), base=300)
    replica.receive(greeting(600, (1, 0), (2, 300)) + transfer(0, first, 1, 0))
    assert replica.base == 0, "an election compares where logs end: this one has nothing"
    replica.receive(transfer(len(first), b"y" * 20, 1, 0, confirm=25))
    assert replica.close is None
    assert bytes(replica.log) == first + b"y" * 20
    assert replica.order.count("ResetTo") == 1
    assert replica.acks[-1] == len(first) + 20
    assert replica.saved.pairs == ((1, 0),)


def test_an_empty_log_stays_where_it_is_as_long_as_the_masters_is_empty_too() -> None:
    """A log that begins anew forgets where its queues ended."""
    replica = Replica(b"", (2, 300), base=300)
    replica.receive(greeting(300, (2, 300)) + transfer(300, b"", 2, 300))
    assert replica.close is None
    assert "ResetTo" not in replica.order
    assert replica.base == 300


def test_a_flush_of_bytes_that_went_says_nothing_about_those_that_come() -> None:
    """Pitfall 56: acks are of what is on disk. The flush began before the cut, or the new beginning."""
    for log, base, offset in ((b"a" * 300, 0, 100), (b"", 300, 0)):
        replica = Replica(log, (1, 0), base=base)
        link = replica.link = SlaveLink(
            2,
            slave_settings(1 << 16, sync_flush=True),
            epochs=replica.saved,
            min_offset=base,
            max_offset=300,
            now_ms=0,
        )
        link.flushed(300)
        replica.receive(greeting(600, (1, 0), (2, 100)) + transfer(offset, b"b" * 20, 1 + bool(log), offset))
        assert replica.close is None
        assert link.wants_flush
        assert replica.acks == [offset], "20 bytes came, none is known to be on disk"
        link.flushed(offset + 20)
        replica.perform()
        assert replica.acks == [offset, offset + 20]


def test_an_empty_log_in_mid_offset_with_the_epochs_of_another_history() -> None:
    """As after a power cut behind a ResetTo: there is nothing to truncate."""
    replica = Replica(b"", (1, 0), (2, 4_000), base=80_000)
    replica.receive(greeting(90_020, (1, 0), (3, 4_000)))
    assert replica.close is None and replica.acks == [0]
    replica.receive(transfer(90_000, b"b" * 20, 3, 4_000))
    assert replica.close is None and "Truncate" not in replica.order
    assert (replica.base, len(replica.log), replica.acks) == (90_000, 20, [0, 90_020])


def test_with_sync_flush_the_first_ack_is_the_end_of_the_log_on_disk() -> None:
    """The master sends from there on, so an earlier offset would name bytes that are here."""
    replica = Replica(b"a" * 300, (1, 0))
    link = replica.link = SlaveLink(
        2,
        slave_settings(1 << 16, sync_flush=True),
        epochs=replica.saved,
        min_offset=0,
        max_offset=300,
        now_ms=0,
    )
    assert not link.wants_flush, "there is no master yet"
    replica.receive(greeting(300, (1, 0)))
    assert link.wants_flush
    link.flushed(200)
    replica.perform()
    assert replica.acks == [] and link.wants_flush
    link.flushed(300)
    link.flushed(250)
    replica.perform()
    assert replica.acks == [300] and not link.wants_flush


def test_without_sync_flush_nothing_waits_for_the_disk() -> None:
    replica = Replica(b"a" * 300, (1, 0))
    replica.receive(greeting(320, (1, 0)) + transfer(300, b"b" * 20, 1, 0))
    assert replica.acks == [300, 320] and not replica.link.wants_flush


def test_an_epoch_that_begins_before_our_last_one_closes() -> None:
    replica = Replica(b"a" * 150, (1, 0), (2, 100))
    replica.receive(greeting(150, (1, 0), (2, 100)) + transfer(150, b"b" * 20, 3, 50))
    assert replica.close is not None and "epoch 3@50 of the master contradicts" in replica.close.reason
    assert len(replica.log) == 150 and replica.saved.pairs == ((1, 0), (2, 100))


def test_epochs_are_saved_before_their_bytes() -> None:
    replica = Replica(b"a" * 100, (1, 0))
    replica.receive(greeting(100, (1, 0), (2, 100)))
    del replica.order[:]
    replica.receive(transfer(100, b"b" * 20, 2, 100, confirm=110))
    assert replica.order == ["SaveEpochs", "SendBytes", "Confirm"]
    assert replica.saved.pairs == ((1, 0), (2, 100))
    assert (replica.acks[-1], replica.confirm) == (120, 110)


def test_confirm_is_never_above_our_own_end() -> None:
    replica = Replica()
    replica.receive(greeting(500, (1, 0)) + transfer(0, b"b" * 20, 1, 0, confirm=500))
    assert replica.confirm == 20


def test_the_last_piece_of_an_epoch_labelled_with_the_next_one() -> None:
    """What a Java master sends (pitfall 29): the truth stands in the handshake's list."""
    replica = Replica()
    replica.receive(greeting(60, (1, 0), (2, 20), (3, 40)))
    replica.receive(transfer(0, b"a" * 20, 2, 20))
    assert replica.saved.pairs == ((1, 0),)
    replica.receive(transfer(20, b"b" * 20, 3, 40))
    assert replica.saved.pairs == ((1, 0), (2, 20))
    replica.receive(transfer(40, b"", 3, 40))
    assert replica.saved.pairs == ((1, 0), (2, 20), (3, 40))


def test_epochs_that_passed_while_we_were_away() -> None:
    """Pitfall 31: nothing is remembered from an older link."""
    replica = Replica(b"a" * 20, (1, 0))
    replica.receive(greeting(60, (1, 0), (2, 20), (3, 40)) + transfer(20, b"b" * 40, 2, 20))
    assert replica.saved.pairs == ((1, 0), (2, 20), (3, 40)), "one packet over an epoch's end"
    replica.link = replica.new_link()
    replica.receive(greeting(60, (1, 0), (2, 20), (3, 40)) + transfer(60, b"", 3, 40))
    assert replica.close is None
    assert replica.acks[-1] == 60


@pytest.mark.parametrize("body", [b"", b"x"])
def test_an_empty_log_learns_the_first_epoch_even_without_data(body: bytes) -> None:
    """It may be all that this log and another one will have in common."""
    replica = Replica()
    replica.receive(greeting(len(body), (1, 0), (3, 0)) + transfer(0, body, 3, 0))
    assert replica.saved.pairs == ((1, 0), (3, 0))


def test_a_stale_label_of_a_java_master_is_ignored() -> None:
    replica = Replica(b"a" * 20, (1, 0), (2, 20))
    replica.receive(greeting(20, (1, 0), (2, 20)) + transfer(20, b"b", 1, 0))
    assert replica.close is None
    assert replica.saved.pairs == ((1, 0), (2, 20))


def test_heartbeats_of_a_master_without_data() -> None:
    replica = Replica()
    replica.receive(greeting(0) + transfer(-1, b"", -1, -1) + transfer(-1, b"", -1, -1))
    assert replica.close is None
    assert replica.saved == Epochs()


def test_a_gap_closes() -> None:
    replica = Replica(b"a" * 20, (1, 0))
    replica.receive(greeting(100, (1, 0)) + transfer(30, b"b", 1, 0))
    assert replica.close == sl.Close("packet at offset 30, but this log ends at 20")


def test_a_log_that_ends_before_the_masters_begins_starts_over() -> None:
    """Its bytes are older than everything that the master has."""
    replica = Replica(b"a" * 30, (1, 0))
    replica.receive(greeting(600, (1, 0), (2, 300)) + transfer(500, b"", 2, 300))
    assert replica.close is None
    assert replica.order[-4:] == ["ResetTo", "SaveEpochs", "Confirm", "SendBytes"]
    assert replica.acks == [30, 500]
    assert replica.saved == Epochs.of([(2, 300)])
    replica.receive(transfer(500, b"b" * 10, 2, 300, confirm=505))
    assert (replica.acks[-1], replica.confirm) == (510, 505)


@pytest.mark.parametrize(
    "packets",
    [
        transfer(10, b"", 1, 0),
        transfer(700, b"", 1, 0),
        transfer(40, b"b", 1, 0),
        transfer(20, b"", 1, 0) + transfer(500, b"", 1, 0),
        transfer(20, b"b", 1, 0) + transfer(500, b"", 1, 0),
    ],
    ids=["behind", "beyond the master's end", "with bytes", "second", "after bytes"],
)
def test_only_the_first_packet_without_bytes_makes_a_log_start_over(packets: bytes) -> None:
    replica = Replica(b"a" * 20, (1, 0))
    replica.receive(greeting(600, (1, 0)) + packets)
    assert replica.close is not None
    assert "but this log ends at" in replica.close.reason
    assert "ResetTo" not in replica.order


def test_a_cut_through_a_record_stops_and_changes_nothing() -> None:
    """Pitfall 44: the epochs agree and the bytes do not."""
    replica = Replica(b"a" * 300, (1, 0))
    replica.perform()
    packet = greeting(250, (1, 0), (2, 250))
    replica.link.receive_control(packet[:20], 0)
    replica.link.receive_control(packet[20:], 0)
    assert replica.link.next_effect(0) == sl.Truncate(250)
    replica.link.not_a_record_start(250)
    replica.perform()
    assert replica.close is not None
    assert replica.close.fatal
    assert "the logs differ although their epochs agree" in replica.close.reason
    assert replica.order == ["SendBytes", "Close"]


def test_a_packet_over_the_end_of_a_file_is_fatal() -> None:
    """Pitfall 58."""
    replica = Replica(b"a" * 60, (1, 0), file_bytes=64)
    replica.receive(greeting(100, (1, 0)) + transfer(60, b"b" * 5, 1, 0))
    assert replica.close is not None
    assert replica.close.fatal
    assert "mappedFileSizeCommitLog" in replica.close.reason


@pytest.mark.parametrize(
    "data",
    [
        b"\0\0\0\x02" + bytes(16),
        greeting(5, (1, 0))[:19] + b"\x09" + greeting(5, (1, 0))[20:],
        greeting(5, (1, 0)) + b"\0\0\0\x01" + bytes(32),
    ],
)
def test_garbage_is_one_close(data: bytes) -> None:
    replica = Replica()
    replica.receive(data + bytes(100))
    assert replica.order.count("Close") == 1


def test_reports_by_time() -> None:
    replica = Replica()
    replica.receive(greeting(100, (1, 0)) + transfer(0, b"a" * 100, 1, 0)[:86])
    assert replica.acks == [0], "half a packet"
    replica.link.tick(sl.ACK_DELAY_MS)
    replica.now = sl.ACK_DELAY_MS
    replica.perform()
    assert replica.acks == [0, 50]
    replica.link.tick(5_000 + replica.now)
    replica.perform()
    assert replica.acks == [0, 50, 50]
    replica.link.tick(20_001)
    replica.perform()
    assert replica.close is not None
    assert "silent" in replica.close.reason


def test_a_packet_that_runs_into_an_epoch_of_the_handshake() -> None:
    """Labelled with an epoch that is known already: the newer one is learned before its bytes."""
    replica = Replica(b"a" * 50, (1, 0))
    replica.receive(greeting(300, (1, 0), (2, 100)))
    replica.receive(transfer(50, b"b" * 100, 1, 0))
    assert replica.saved.pairs == ((1, 0), (2, 100))


def test_a_slave_of_a_silent_master_stops_its_reports() -> None:
    """They may still arrive, and would count for its isolation lease."""
    replica = Replica()
    settings = replace(slave_settings(1 << 16), send_heartbeat_interval_ms=150, silent_interval_ms=10_000)
    replica.link.configure(settings)
    replica.receive(greeting(64, (1, 0)) + transfer(0, b"x" * 64, 1, 0))

    def reports(now_ms: int) -> int:
        replica.now, before = now_ms, len(replica.acks)
        replica.link.tick(now_ms)
        replica.perform()
        return len(replica.acks) - before

    assert [reports(at) for at in (100, 150, 200, 300, HEARD_MS)] == [0, 1, 0, 1, 0]
    assert [reports(at) for at in (HEARD_MS + 100, 3_000, 10_200)] == [0, 0, 0]
    assert reports(10_300) == 1, "the master must not close the link"
    replica.receive(transfer(64, b"", 1, 0))
    assert [reports(at) for at in (10_400, 10_450)] == [0, 1]
