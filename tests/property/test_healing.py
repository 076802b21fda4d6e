"""Healing against a dumb model: what any replica has of the same epochs comes back, byte by byte, and nothing
else is ever written."""

import random
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.ha.core.epochs import Epochs
from tests.support.healing import DirectClient, Replica, flip, group_of, healer_of
from tests.support.slices import share


def damage(replica: Replica, dice: random.Random) -> set[int]:
    """Damages some records. Returns their numbers; the store knows the ranges, as the checks find them."""
    hit = set[int]()
    for _ in range(dice.choice([0, 1, 2, 5])):
        first = dice.randrange(len(replica.places))
        hit |= set(range(first, min(first + dice.choice([1, 1, 3]), len(replica.places))))
    for number in hit:
        start, end = replica.places[number]
        for _ in range(dice.choice([1, 4])):
            flip(replica.store, dice.randrange(start, end), dice.choice([1, 0x40, 0xFF]))
        replica.store.damage.add(start, end, "test")
    return hit


@given(st.integers(0, 2**32))
@settings(max_examples=share(200), deadline=None)
async def test_a_sound_copy_of_the_same_epochs_comes_back(seed: int) -> None:
    dice = random.Random(seed)
    with tempfile.TemporaryDirectory() as root:
        await one_group(Path(root), dice)


async def one_group(root: Path, dice: random.Random) -> None:
    replicas = group_of(root, dice.choice([2, 3, 4]), seed=dice.randrange(1_000))
    sound = replicas[0].content()
    hit = {each.name: damage(each, dice) for each in replicas}
    divergent = dice.choice([None, *replicas[1:]])
    if divergent is not None:  # its last bytes are of another master's term
        pairs = list(divergent.epochs.pairs)
        divergent.epochs = Epochs.of([*pairs[:-1], (pairs[-1][0] + 1, pairs[-1][1])])
    border = replicas[0].epochs.last_start_offset
    client = DirectClient(replicas)

    def has(peer: Replica, number: int, asking: Replica) -> bool:
        """The dumb model: this record of the peer may be taken."""
        is_late = replicas[0].places[number][0] >= border
        strange = is_late and (divergent is peer) != (divergent is asking)
        return number not in hit[peer.name] and not strange

    for asking in dice.sample(replicas, len(replicas)):
        peers = [each for each in replicas if each is not asking]
        before = asking.content()
        await healer_of(asking, client, [each.name for each in peers]).heal(asking.store.damage.ranges)
        after, left = asking.content(), set[int]()
        assert len(after) == len(before)
        for number, (start, end) in enumerate(asking.places):
            if number not in hit[asking.name]:
                assert after[start:end] == sound[start:end]
            elif any(has(peer, number, asking) for peer in peers):
                assert after[start:end] == sound[start:end], (number, "was not healed")
            else:
                assert after[start:end] == before[start:end], (number, "was written")
                left.add(number)
        hit[asking.name] = left
        named = {
            number
            for number, (start, end) in enumerate(asking.places)
            if asking.store.damage.overlaps(start, end) is not None
        }
        assert named == left, "damaged ranges are those that are left"
    for each in replicas:
        each.store.close()
