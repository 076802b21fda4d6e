"""truncation_point against histories that really happened to byte lists.

Replicas are lists of byte labels; a random history elects masters, writes, copies prefixes. Whatever the
history, the cut must keep only bytes that both logs share, and must not cut more than the last shared epoch
requires.
"""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.ha.core.epochs import Epochs
from broker.ha.core.truncation import truncation_point
from tests.support.slices import share


class Replica:
    def __init__(self) -> None:
        self.log: list[tuple[int, int]] = []  # (epoch, serial number): equal means the same byte
        self.epochs = Epochs()

    def lead(self, epoch: int) -> None:
        self.epochs = self.epochs.append(epoch, len(self.log))

    def write(self, epoch: int, count: int) -> None:
        start = len(self.log)
        self.log += [(epoch, start + i) for i in range(count)]

    def follow(self, master: "Replica", limit: int) -> None:
        """The link's protocol, whole: cut, then copy at most `limit` bytes with their epochs."""
        if self.log or self.epochs.entries:
            point = truncation_point(
                self.epochs, slave_max=len(self.log), master=master.epochs, master_max=len(master.log)
            )
            assert point is not None, "all logs here begin with the same epoch"
            assert self.log[: point.offset] == master.log[: point.offset], "kept a byte that differs"
            self.log, self.epochs = self.log[: point.offset], point.epochs
        start = len(self.log)
        self.log += master.log[start : start + limit]
        for epoch, offset in master.epochs.pairs:
            if epoch > self.epochs.last_epoch and offset <= len(self.log):
                self.epochs = self.epochs.append(epoch, offset)


@settings(max_examples=share(300), deadline=None)
@given(st.integers(0, 1 << 32), st.integers(2, 4))
def test_random_histories(seed: int, count: int) -> None:
    dice = random.Random(seed)
    replicas = [Replica() for _ in range(count)]
    replicas[0].lead(1)
    for replica in replicas[1:]:
        replica.follow(replicas[0], 0)
    for epoch in range(2, 12):
        master = dice.choice(replicas)
        master.lead(epoch)
        for _ in range(dice.randrange(5)):
            master.write(epoch, dice.randrange(4))
            slave = dice.choice(replicas)
            if slave is not master:
                slave.follow(master, dice.randrange(6))
    master = dice.choice(replicas)
    for slave in replicas:
        if slave is not master:
            slave.follow(master, 1 << 20)
            assert slave.log == master.log
            assert slave.epochs == master.epochs


@pytest.mark.parametrize("seed", range(3))
def test_the_checker_sees_a_wrong_cut(seed: int) -> None:
    """A replica that trusts its length alone keeps bytes that differ."""
    old, new = Replica(), Replica()
    old.lead(1)
    new.follow(old, 0)
    old.write(1, 5 + seed)
    new.lead(2)
    new.write(2, 20)
    assert old.log != new.log[: len(old.log)]
    old.follow(new, 0)
    assert old.log == []
