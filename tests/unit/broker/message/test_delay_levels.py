"""Delay levels, and the queues of delayed messages as RocketMQ's own files have them."""

import shutil
from pathlib import Path

import pytest

from broker.message.delay_levels import DEFAULT_LEVELS, SCHEDULE_TOPIC, DelayLevels
from broker.store.message_store import StoreConfig
from broker.store.offline import offline_store

FIXTURE = Path(__file__).parents[3] / "fixtures" / "store"


def test_the_levels() -> None:
    levels = DelayLevels()
    assert levels.count == 18
    assert [levels.delay_ms(level) for level in (1, 4, 5, 17, 18)] == [
        1_000,
        30_000,
        60_000,
        3_600_000,
        7_200_000,
    ]
    assert levels.delay_ms(19) == 1_000
    assert DelayLevels("1s 2d").delay_ms(2) == 172_800_000


@pytest.mark.parametrize("text", ["", "1", "1x", "s", "-1s", "1s,5s", "1.5s", "9" * 20 + "s", "1s " * 65])
def test_what_is_no_table_of_levels(text: str) -> None:
    with pytest.raises(ValueError, match="level"):
        DelayLevels(text)


@pytest.mark.parametrize(
    ("properties", "level"),
    [
        (b"", 0), (b"DELAY\x013\x02", 3), (b"a\x01b\x02DELAY\x0199", 18), (b"DELAY\x010", 0),
        (b"DELAY\x01-1", 0),
        (b"XDELAY\x013", 0),
    ],
)  # fmt: skip
def test_the_level_of_a_message(properties: bytes, level: int) -> None:
    assert DelayLevels().level_of(properties) == level


def test_a_level_that_is_no_number() -> None:
    levels = DelayLevels()
    for text in (b"x", b"1.5", b"9" * 40, b"\xd9\xa0", b"1_0"):
        with pytest.raises(ValueError, match="DELAY"):
            levels.level_of(b"DELAY\x01" + text)
        assert levels.due_at(b"DELAY\x01" + text, 5) == 0


def test_the_peers_queues_come_out_of_its_log(tmp_path: Path) -> None:
    """Units built by parsing equal RocketMQ's byte for byte: the tags code is the delivery time."""
    shutil.copytree(FIXTURE / "commitlog", tmp_path / "commitlog")
    store = offline_store(
        StoreConfig(root=tmp_path, commit_log_file_bytes=65_536, consume_queue_file_bytes=400)
    )
    assert DEFAULT_LEVELS.startswith("1s ")
    store.load()
    store.set_confirm_offset(store.commit_log.max_offset)
    while store.dispatcher.dispatch(1_000):
        pass
    for queue_id, count in ((0, 3), (15, 2)):
        ours = store.find_queue(SCHEDULE_TOPIC, queue_id)
        assert ours is not None and ours.max_offset == count
        path = FIXTURE / "consumequeue" / SCHEDULE_TOPIC / str(queue_id) / ("0" * 20)
        raw = path.read_bytes()
        for index in range(count):
            theirs = raw[index * 20 : index * 20 + 20]
            unit = ours.unit(index)
            assert theirs == unit[0].to_bytes(8, "big") + unit[1].to_bytes(4, "big") + unit[2].to_bytes(
                8, "big"
            )
    store.close()
