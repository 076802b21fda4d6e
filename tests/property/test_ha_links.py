"""MasterLink against SlaveLink over byte-list logs: random masters, writes and pieces, lines that break.

Whatever happens, a slave that is connected long enough ends with its master's bytes and its epochs, and no
link ever complains: every packet that one side sends is one that the other side expects.
"""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.ha.core import slave_link as sl
from broker.ha.core.epochs import Epochs
from broker.ha.core.master_link import MasterLink, MasterLog, Send
from broker.ha.core.slave_link import SlaveLink
from tests.support.ha_parts import link_settings, slave_settings
from tests.support.slices import share

FILE_BYTES = 64
NOW = 0


class Node:
    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id
        self.log = bytearray()
        self.epochs = Epochs()

    def lead(self, epoch: int) -> None:
        self.epochs = self.epochs.drop_above(len(self.log)).append(epoch, len(self.log))

    def write(self, dice: random.Random) -> None:
        self.log += dice.randbytes(dice.randrange(1, 30))

    def view(self) -> MasterLog:
        return MasterLog(FILE_BYTES, self.epochs, 0, len(self.log), dice_confirm(len(self.log)))


def dice_confirm(end: int) -> int:
    return end // 2


class Line:
    """One connection: the interpreter of both links' effects, with bytes in flight both ways."""

    def __init__(self, master: Node, slave: Node, dice: random.Random) -> None:
        self.master, self.slave, self.dice = master, slave, dice
        self.state = master.view()
        settings_ = link_settings(batch_bytes=dice.choice([1, 7, 40]))
        self.up, self.down = bytearray(), bytearray()
        self.one = MasterLink(self.state, settings_, now_ms=NOW)
        slave.epochs = slave.epochs.drop_above(len(slave.log))
        self.two = SlaveLink(
            slave.broker_id,
            slave_settings(FILE_BYTES),
            epochs=slave.epochs,
            min_offset=0,
            max_offset=len(slave.log),
            now_ms=NOW,
        )
        self.perform()

    def step(self) -> bool:
        """Some bytes move. False: nothing was left to move."""
        self.state.max_offset = len(self.master.log)
        moved = bool(self.up or self.down)
        self.one.receive_data(self.take(self.up), NOW)
        effect = self.one.next_effect(NOW)
        if effect is not None:
            assert isinstance(effect, Send), effect
            self.down += effect.header + self.master.log[effect.offset : effect.offset + effect.body_bytes]
        link = self.two
        count = min(self.dice.randrange(1, 50), link.body_wanted or link.control_wanted, len(self.down))
        data = bytes(self.down[:count])
        del self.down[:count]
        if count and link.body_wanted:
            assert link.max_offset == len(self.slave.log)
            self.slave.log += data
            link.body_received(count, NOW)
        elif count:
            link.receive_control(data, NOW)
        self.perform()
        return moved or effect is not None

    def take(self, stream: bytearray) -> bytes:
        count = self.dice.randrange(0, 20)
        data = bytes(stream[:count])
        del stream[:count]
        return data

    def perform(self) -> None:
        while (effect := self.two.next_effect(NOW)) is not None:
            match effect:
                case sl.SendBytes(data):
                    self.up += data
                case sl.Truncate(offset):
                    del self.slave.log[offset:]
                    self.two.truncated(offset)
                    assert self.master.log.startswith(self.slave.log), "a byte that differs was kept"
                case sl.SaveEpochs(epochs):
                    self.slave.epochs = epochs
                case sl.Confirm(offset):
                    assert offset <= len(self.slave.log)
                case sl.ResetTo() | sl.Close():
                    raise AssertionError(effect)


@settings(max_examples=share(150), deadline=None)
@given(st.integers(0, 1 << 32), st.integers(2, 3))
def test_random_histories(seed: int, count: int) -> None:
    dice = random.Random(seed)
    nodes = [Node(i) for i in range(1, count + 1)]
    nodes[0].lead(1)
    for node in nodes[1:]:  # as the controller has it: a member has followed the first master
        run(Line(nodes[0], node, dice))
    for epoch in range(2, 7):
        master = dice.choice(nodes)
        master.lead(epoch)
        lines = [Line(master, node, dice) for node in nodes if node is not master]
        for _ in range(dice.randrange(60)):
            if dice.random() < 0.2:
                master.write(dice)
            line = dice.choice(lines)
            line.step()
            if dice.random() < 0.03:
                lines[lines.index(line)] = Line(master, line.slave, dice)
    master = dice.choice(nodes)
    master.lead(99)
    for node in nodes:
        if node is not master:
            run(Line(master, node, dice))
            assert node.log == master.log
            assert node.epochs == master.epochs


def run(line: Line) -> None:
    for _ in range(20_000):
        if not line.step():
            return
    raise AssertionError("the line never came to rest")
