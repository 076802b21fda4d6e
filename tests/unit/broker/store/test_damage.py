"""DamagedRanges: which parts of the log are damaged, over restarts."""

import random
import zlib
from pathlib import Path

import pytest

from broker.store.damage import RANGES_MAX, DamagedRange, DamagedRanges, decode_ranges, encode_ranges


def pairs(damage: DamagedRanges) -> list[tuple[int, int]]:
    return [(item.start, item.end) for item in damage.ranges]


@pytest.fixture
def damage(tmp_path: Path) -> DamagedRanges:
    return DamagedRanges(tmp_path, clock=lambda: 7)


def test_ranges_are_kept_sorted_and_adjacent_ones_are_merged(damage: DamagedRanges) -> None:
    assert damage.add(300, 400, "checksum")
    assert damage.add(100, 200, "checksum")
    assert not damage.add(120, 130, "again")
    assert damage.add(200, 250, "checksum")
    assert pairs(damage) == [(100, 250), (300, 400)]
    assert damage.add(50, 350, "checksum")
    assert pairs(damage) == [(50, 400)]
    assert damage.unhealed_bytes == 350


def test_overlaps_finds_the_first_damaged_range(damage: DamagedRanges) -> None:
    damage.add(100, 200, "a")
    damage.add(300, 400, "b")
    assert damage.overlaps(0, 100) is None
    assert damage.overlaps(200, 300) is None
    assert damage.overlaps(400, 500) is None
    for start, end in ((0, 101), (199, 200), (100, 101), (150, 350)):
        found = damage.overlaps(start, end)
        assert found is not None and found.start == 100
    found = damage.overlaps(200, 301)
    assert found is not None and found.reason == "b"


def test_what_is_healed_cut_or_deleted_is_removed(damage: DamagedRanges) -> None:
    damage.add(100, 200, "a")
    damage.add(300, 400, "b")
    damage.healed(120, 150)
    assert pairs(damage) == [(100, 120), (150, 200), (300, 400)]
    damage.remove_below(160)
    assert pairs(damage) == [(160, 200), (300, 400)]
    damage.remove_above(350)
    assert pairs(damage) == [(160, 200), (300, 350)]
    damage.healed(0, 1000)
    assert not damage


def test_what_begins_in_front_of_an_offset(damage: DamagedRanges) -> None:
    assert damage.first_unhealed(1000) is None and damage.unhealed_below(1000) == 0
    damage.add(100, 200, "a")
    damage.add(300, 400, "b")
    assert damage.first_unhealed(100) is None and damage.unhealed_below(100) == 0
    first = damage.first_unhealed(101)
    assert first is not None and first.start == 100
    assert (damage.unhealed_below(150), damage.unhealed_below(350)) == (50, 150)


def test_fields_of_other_versions_are_passed_over() -> None:
    """A version of one day wrote is_skipped, and nothing ever set it."""
    body = b'{"ranges":[{"start":1,"end":2,"reason":"x","found_ms":7,"is_skipped":false}]}'
    assert decode_ranges(b"%08x " % zlib.crc32(body) + body + b"\n") == (DamagedRange(1, 2, "x", 7),)


def test_listeners_hear_of_each_change_only(damage: DamagedRanges) -> None:
    heard: list[int] = []
    damage.on_change.append(lambda: heard.append(len(damage.ranges)))
    damage.add(1, 2, "a")
    damage.add(1, 2, "a")
    damage.healed(5, 6)
    damage.healed(1, 2)
    assert heard == [1, 0]


def test_a_restart_does_not_forget(damage: DamagedRanges, tmp_path: Path) -> None:
    damage.add(1, 2, "BODYCRC of the record at 1")
    damage.save()
    again = DamagedRanges(tmp_path)
    again.load()
    assert again.ranges == (DamagedRange(1, 2, "BODYCRC of the record at 1", 7),)
    damage.healed(1, 2)
    damage.save()
    again = DamagedRanges(tmp_path)
    again.load()
    assert not again and not again.is_file_lost and not list(tmp_path.iterdir())


def test_a_damaged_file_is_not_believed(damage: DamagedRanges, tmp_path: Path) -> None:
    damage.add(1000, 2000, "a")
    damage.save()
    path = tmp_path / "damagedRanges"
    good = path.read_bytes()
    for at in range(len(good) - 1):
        path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        again = DamagedRanges(tmp_path)
        again.load()
        assert again.is_file_lost and not again, at
    for content in (b"", good[: len(good) // 2], b"\0" * len(good)):
        path.write_bytes(content)
        again = DamagedRanges(tmp_path)
        again.load()
        assert again.is_file_lost
    again.save()
    assert not path.exists()


def test_the_number_of_ranges_is_bounded(damage: DamagedRanges) -> None:
    for number in range(RANGES_MAX + 10):
        damage.add(number * 1000 - number, number * 1000 + 1, "a") if number else damage.add(0, 1, "a")
    assert len(damage.ranges) == RANGES_MAX
    assert all(damage.overlaps(number * 1000, number * 1000 + 1) for number in range(RANGES_MAX + 10))


def test_against_a_set_of_bytes(tmp_path: Path) -> None:
    for seed in range(200):
        rng = random.Random(seed)
        damage, model = DamagedRanges(tmp_path), set[int]()
        for _ in range(30):
            start = rng.randrange(200)
            end = start + rng.randrange(1, 40)
            change = rng.choice(("add", "healed"))
            if change == "add":
                assert damage.add(start, end, "x") == (not set(range(start, end)) <= model)
                model |= set(range(start, end))
            else:
                damage.healed(start, end)
                model -= set(range(start, end))
            assert {at for low, high in pairs(damage) for at in range(low, high)} == model, seed
            assert pairs(damage) == sorted(pairs(damage))
            assert decode_ranges(encode_ranges(damage.ranges)) == damage.ranges
