"""The bytes of RocketMQ's DefaultHAService on both ends: what its slaves and masters send and expect."""

import pytest

from broker.ha.core import slave_link as sl
from broker.ha.core.master_link import Close as MasterClose
from broker.ha.core.master_link import MasterLog, Send
from broker.plain_ha.core.frames import BODY_BYTES_MAX, HEADER, REPORT, parse_header
from broker.plain_ha.core.log_check import LastRecord, LogBounds, ends_refusal, record_refusal
from broker.plain_ha.core.master_link import WHOLE_LOG, PlainMasterLink
from broker.plain_ha.core.slave_link import PlainSlaveLink
from keelmq.remoting.operation import RemoteProtocolError
from tests.support.ha_parts import link_settings, slave_settings

FILE_BYTES = 4_096
HEARTBEAT_MS = 5_000
HOUSEKEEPING_MS = 20_000


def master_link(
    *, first: int = 0, end: int = 10_000, batch: int = 131_072, number: int = -1
) -> PlainMasterLink:
    log = MasterLog(FILE_BYTES, WHOLE_LOG, first, end, end)
    return PlainMasterLink(log, link_settings(batch_bytes=batch), number=number, now_ms=0)


def slave_link(*, first: int = 0, end: int = 0) -> PlainSlaveLink:
    return PlainSlaveLink(slave_settings(FILE_BYTES), min_offset=first, max_offset=end, now_ms=0)


def effects(link: PlainSlaveLink, now_ms: int = 0) -> list[sl.Effect]:
    found = []
    while (effect := link.next_effect(now_ms)) is not None:
        found.append(effect)
    return found


def test_the_bytes() -> None:
    assert REPORT.pack(5_000).hex() == "0000000000001388"
    assert HEADER.pack(5_000, 100).hex() == "0000000000001388" + "00000064"
    assert parse_header(bytes.fromhex("000000000000138800000064")) == (5_000, 100)


@pytest.mark.parametrize("head", [(-1, 0), (0, -1), (0, BODY_BYTES_MAX + 1)])
def test_what_no_master_sends(head: tuple[int, int]) -> None:
    with pytest.raises(RemoteProtocolError):
        parse_header(HEADER.pack(*head))


# -- the master ----------------------------------------------------------------------------------------------


def test_a_master_waits_for_the_first_report() -> None:
    """A Java slave sends it up to 5 s after it has connected."""
    link = master_link()
    assert link.next_effect(0) is None and link.next_effect(HEARTBEAT_MS) is None
    link.receive_data(REPORT.pack(5_000)[:7], HEARTBEAT_MS)
    assert link.next_effect(HEARTBEAT_MS) is None and link.slave_id is None
    link.receive_data(REPORT.pack(5_000)[7:], HEARTBEAT_MS)
    assert link.next_effect(HEARTBEAT_MS) == Send(
        HEADER.pack(5_000, 3_192), 5_000, 3_192
    )  # a file ends there
    assert link.next_effect(HEARTBEAT_MS) == Send(HEADER.pack(8_192, 1_808), 8_192, 1_808)
    assert link.slave_id == -1 and link.ack_offset == 5_000
    assert link.next_effect(HEARTBEAT_MS) is None
    assert link.next_effect(2 * HEARTBEAT_MS) == Send(HEADER.pack(10_000, 0), 10_000, 0)


@pytest.mark.parametrize(
    ("first", "end", "starts_at"), [(0, 10_000, 8_192), (0, 100, 0), (0, 0, 0), (8_192, 8_192, 8_192)]
)
def test_a_slave_with_nothing_gets_the_last_file(first: int, end: int, starts_at: int) -> None:
    link = master_link(first=first, end=end)
    link.receive_data(REPORT.pack(0), 0)
    assert (link.position, link.close_reason) == (starts_at, None)
    link.receive_data(REPORT.pack(0), 1)  # its heartbeat while nothing has arrived
    assert link.close_reason is None


@pytest.mark.parametrize(
    ("offset", "says"),
    [
        (10_001, "their histories differ"),
        (4_000, "must be emptied"),
        (-1, "must be emptied"),
        (1 << 32, "controller mode"),
    ],
)
def test_a_slave_that_cannot_go_on_is_refused(offset: int, says: str) -> None:
    """RocketMQ's master sends it heartbeats until its own log is longer, and then another history."""
    link = master_link(first=4_096)
    link.receive_data(REPORT.pack(offset), 0)
    effect = link.next_effect(0)
    assert isinstance(effect, MasterClose) and says in effect.reason


def test_a_proved_id_is_the_slaves() -> None:
    link = master_link()
    link.proven_id = 3
    link.receive_data(REPORT.pack(0), 0)
    assert link.slave_id == 3


def test_a_silent_slave_is_closed() -> None:
    link = master_link()
    link.receive_data(REPORT.pack(10_000), 0)
    link.receive_data(REPORT.pack(10_000), HOUSEKEEPING_MS)
    assert not isinstance(link.next_effect(2 * HOUSEKEEPING_MS), MasterClose)
    assert isinstance(link.next_effect(2 * HOUSEKEEPING_MS + 1), MasterClose)


@pytest.mark.parametrize("reports", [[10_000, 9_000], [5_000, 10_001]])
def test_reports_never_go_back_and_never_beyond_what_was_sent(reports: list[int]) -> None:
    link = master_link()
    link.receive_data(REPORT.pack(reports[0]), 0)
    while isinstance(link.next_effect(0), Send):
        pass
    link.receive_data(REPORT.pack(reports[1]), 0)
    assert link.close_reason is not None


# -- the slave -----------------------------------------------------------------------------------------------


def test_a_slave_reports_at_once_after_a_packet_and_when_idle() -> None:
    link = slave_link(end=100)
    assert effects(link) == [sl.SendBytes(REPORT.pack(100))]
    link.receive_control(HEADER.pack(100, 20), 10)
    assert link.body_wanted == 20
    link.body_received(20, 10)
    assert effects(link, 10) == [sl.SendBytes(REPORT.pack(120)), sl.Confirm(120)]
    link.receive_control(HEADER.pack(120, 0), 20)  # a heartbeat
    link.tick(HEARTBEAT_MS + 10)
    assert effects(link) == [sl.SendBytes(REPORT.pack(120))]


def test_an_empty_log_begins_where_the_masters_bytes_do() -> None:
    link = slave_link()
    assert effects(link) == [sl.SendBytes(REPORT.pack(0))]
    link.receive_control(HEADER.pack(8_192, 0), 0)  # of a master whose file is empty
    assert effects(link) == [] and link.max_offset == 0
    link.receive_control(HEADER.pack(8_192, 5), 0)
    assert effects(link) == [sl.ResetTo(8_192)]
    link.body_received(5, 0)
    assert effects(link) == [sl.SendBytes(REPORT.pack(8_197)), sl.Confirm(8_197)]


@pytest.mark.parametrize("head", [(99, 5), (101, 5), (0, 5), (101, 0)])
def test_a_packet_elsewhere_closes_the_link(head: tuple[int, int]) -> None:
    link = slave_link(end=100)
    effects(link)
    link.receive_control(HEADER.pack(*head), 0)
    (close,) = effects(link)
    assert isinstance(close, sl.Close) and not close.fatal and "this log ends at 100" in close.reason


@pytest.mark.parametrize(("end", "head"), [(100, (100, FILE_BYTES)), (0, (1_000, 5))])
def test_files_of_another_size(end: int, head: tuple[int, int]) -> None:
    link = slave_link(end=end)
    effects(link)
    link.receive_control(HEADER.pack(*head), 0)
    (close,) = effects(link)
    assert isinstance(close, sl.Close) and close.fatal and "mappedFileSizeCommitLog" in close.reason


def test_a_silent_master_is_left() -> None:
    link = slave_link(end=100)
    effects(link)
    link.tick(HOUSEKEEPING_MS + 1)
    assert any(isinstance(effect, sl.Close) for effect in effects(link))


# -- the logs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mine", "master", "says"),
    [
        (LogBounds(0, 100), LogBounds(0, 100), None),
        (LogBounds(50, 100), LogBounds(0, 200), None),
        (LogBounds(0, 100), LogBounds(0, 99), "does not have"),
        (LogBounds(0, 100), LogBounds(101, 200), "is deleted"),
    ],
)
def test_ends_of_logs(mine: LogBounds, master: LogBounds, says: str | None) -> None:
    refusal = ends_refusal(mine, master)
    assert refusal is None if says is None else says in (refusal or "")


def test_the_last_record_decides() -> None:
    last = LastRecord(10, b"record")
    assert record_refusal(last, b"record") is None
    for other in (b"", b"recorD", b"record "):
        assert "the record at 10" in (record_refusal(last, other) or "")
