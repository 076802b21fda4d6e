"""PlainMasterLink against PlainSlaveLink over byte-list logs: writes, any cut of the bytes, lines that break.

Whatever happens, the slave's log is a part of its master's, from the file on that was the last one when the
slave was empty, and a slave that is connected long enough has all of it.
"""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.ha.core import slave_link as sl
from broker.ha.core.master_link import MasterLog, Send
from broker.plain_ha.core.copies import CopyRules
from broker.plain_ha.core.master_link import WHOLE_LOG, PlainMasterLink
from broker.plain_ha.core.slave_link import PlainSlaveLink
from tests.support.ha_parts import link_settings, slave_settings
from tests.support.slices import share

FILE_BYTES = 64
NOW = 0


class Slave:
    """A log from `base` on, and what is on its disk."""

    def __init__(self, *, sync_flush: bool) -> None:
        self.base, self.log, self.durable, self.sync_flush = 0, bytearray(), 0, sync_flush

    @property
    def end(self) -> int:
        return self.base + len(self.log)

    def is_part_of(self, master: bytearray) -> bool:
        return self.log == master[self.base : self.end]


class Line:
    """One connection: the interpreter of both links' effects, with bytes in flight both ways."""

    def __init__(self, master: bytearray, slave: Slave, dice: random.Random) -> None:
        self.master, self.slave, self.dice = master, slave, dice
        self.state = MasterLog(FILE_BYTES, WHOLE_LOG, 0, len(master), len(master))
        self.up, self.down = bytearray(), bytearray()
        batch = link_settings(batch_bytes=dice.choice([1, 7, 40]))
        self.one = PlainMasterLink(self.state, batch, number=-1, now_ms=NOW)
        self.two = PlainSlaveLink(
            slave_settings(FILE_BYTES, sync_flush=slave.sync_flush),
            min_offset=slave.base,
            max_offset=slave.end,
            now_ms=NOW,
        )
        self.perform()

    def step(self) -> bool:
        """Some bytes move. False: nothing was left to move."""
        self.state.max_offset = self.state.confirm_offset = len(self.master)
        moved = bool(self.up or self.down)
        count = self.dice.randrange(0, 20)
        self.one.receive_data(bytes(self.up[:count]), NOW)
        del self.up[:count]
        effect = self.one.next_effect(NOW)
        if effect is not None:
            assert isinstance(effect, Send), effect
            self.down += effect.header + self.master[effect.offset : effect.offset + effect.body_bytes]
        link, slave = self.two, self.slave
        count = min(self.dice.randrange(1, 50), link.body_wanted or link.control_wanted, len(self.down))
        data = bytes(self.down[:count])
        del self.down[:count]
        if count and link.body_wanted:
            assert link.max_offset == slave.end
            slave.log += data
            link.body_received(count, NOW)
        elif count:
            link.receive_control(data, NOW)
        self.perform()
        assert slave.is_part_of(self.master), "a byte that differs was stored"
        if slave.sync_flush and slave.durable < slave.end:
            moved = True
            if self.dice.random() < 0.5:
                slave.durable = slave.end
                link.flushed(slave.durable)
                self.perform()
        assert self.one.ack_offset <= (slave.durable if slave.sync_flush else slave.end)
        return moved or effect is not None

    def perform(self) -> None:
        if self.slave.sync_flush:
            self.two.flushed(self.slave.durable)
        while (effect := self.two.next_effect(NOW)) is not None:
            match effect:
                case sl.SendBytes(data):
                    self.up += data
                case sl.Confirm(offset):
                    assert offset <= self.slave.end
                case sl.ResetTo(offset):
                    assert not self.slave.log and offset % FILE_BYTES == 0, "bytes were deleted"
                    self.slave.base = self.slave.durable = offset
                case _:
                    raise AssertionError(effect)


@settings(max_examples=share(200), deadline=None)
@given(st.integers(0, 1 << 32), st.booleans(), st.integers(0, 200))
def test_random_lines(seed: int, sync_flush: bool, before: int) -> None:
    dice = random.Random(seed)
    master, slave = bytearray(dice.randbytes(before)), Slave(sync_flush=sync_flush)
    line = Line(master, slave, dice)
    for _ in range(dice.randrange(300)):
        if dice.random() < 0.2:
            master += dice.randbytes(dice.randrange(1, 30))
        line.step()
        if dice.random() < 0.05:
            line = Line(master, slave, dice)  # what was in flight is lost
    for _ in range(20_000):
        if not line.step():
            break
    else:
        raise AssertionError("the line never came to rest")
    assert slave.end == len(master) or not (slave.log or len(master) % FILE_BYTES)
    assert line.one.ack_offset == slave.end if slave.log else line.one.ack_offset == 0


@settings(max_examples=share(200), deadline=None)
@given(st.integers(1, 500), st.integers(0, 500), st.binary(min_size=0, max_size=64))
def test_a_master_refuses_a_slave_that_has_more(has: int, end: int, garbage: bytes) -> None:
    state = MasterLog(FILE_BYTES, WHOLE_LOG, 0, end, end)
    link = PlainMasterLink(state, link_settings(), number=-1, now_ms=NOW)
    link.receive_data(has.to_bytes(8, "big") + garbage, NOW)
    assert (link.close_reason is not None) >= (has > end)
    assert link.position <= end


@settings(max_examples=share(300), deadline=None)
@given(st.binary(max_size=200), st.integers(0, 200), st.integers(1, 16))
def test_garbage_changes_no_byte_that_is_there(data: bytes, has: int, piece: int) -> None:
    link = PlainSlaveLink(slave_settings(FILE_BYTES), min_offset=0, max_offset=has, now_ms=NOW)
    end = has
    at = 0
    while at < len(data) and not link.closed:
        count = min(piece, link.body_wanted or link.control_wanted, len(data) - at)
        if link.body_wanted:
            assert end >= has and link.max_offset == end
            end += count
            link.body_received(count, NOW)
        else:
            link.receive_control(data[at : at + count], NOW)
        at += count
        while (effect := link.next_effect(NOW)) is not None:
            assert not isinstance(effect, sl.Truncate)
            if isinstance(effect, sl.ResetTo):
                assert has == 0
                end = effect.offset


@given(
    st.booleans(), st.integers(1, 5), st.integers(1, 5), st.booleans(), st.lists(st.integers(-1, 100)),
    st.integers(0, 100),
)  # fmt: skip
def test_needed_copies(
    waits: bool, in_sync_replicas: int, low: int, auto: bool, acks: list[int], end: int
) -> None:
    minimum = min(low, in_sync_replicas)
    rules = CopyRules(
        waits=waits, in_sync_replicas=in_sync_replicas, min_in_sync_replicas=minimum, auto=auto,
        max_gap_bytes=10,
    )  # fmt: skip
    in_sync = rules.in_sync_count(acks, end)
    assert in_sync == 1 + len([ack for ack in acks if ack >= 0 and end - ack < 10])
    needed = rules.needed(in_sync)
    if not waits:
        assert needed == 1
    elif auto:
        assert minimum <= needed <= in_sync_replicas and (needed <= in_sync or needed == minimum)
    else:
        assert needed == in_sync_replicas
