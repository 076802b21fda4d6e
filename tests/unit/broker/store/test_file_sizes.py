"""Which sizes of files fit a configured size, and what is said of those that do not."""

import random
from collections.abc import Mapping
from pathlib import Path

import pytest

from broker.store.log.commit_log import log_file_kind
from broker.store.log.file_sizes import FileKind, sized_files
from broker.store.log.mapped_file import StoreError, file_name
from broker.store.queue.batch_queue import BatchQueue
from broker.store.queue.consume_queue import ConsumeQueue

SIZE, OTHER = 2_000, 1_000
Sizes = Mapping[int, int]
"""Sizes of the files of a directory, by start offset."""
FULL, HALF, ODD = {0: SIZE}, {0: OTHER}, {0: 1_001}


def refusal(
    root: Path, kind: FileKind, directories: list[Sizes], *, is_full: bool, sure: bool = False
) -> str:
    """What check() says; empty: nothing. is_full: the files have content up to their ends."""
    for number, sizes in enumerate(directories):
        (root / str(number)).mkdir(parents=True)
        for start, size in sizes.items():
            content = b"x" * size if is_full else b"x" * min(size, 100) + bytes(max(size - 100, 0))
            (root / str(number) / file_name(start)).write_bytes(content)
    found = [sized_files(root / str(number)) for number in range(len(directories))]
    try:
        kind.check(found, "MEND", is_size_sure=sure)
    except StoreError as error:
        return str(error)
    return ""


FITS: dict[str, list[Sizes]] = {
    "a short file beside one that is whole": [FULL, HALF],
    "two of them that differ": [FULL, HALF, {0: 400}],
    "the first of a queue": [{0: OTHER, SIZE: SIZE}],
    "one in the middle": [{0: SIZE, SIZE: OTHER, 2 * SIZE: SIZE}],
    "all but one of a queue": [{0: 20, SIZE: OTHER, 2 * SIZE: SIZE}],
    "the last one": [{0: SIZE, SIZE: OTHER}],
    "alone, and ends within an entry": [ODD],
    "all of them end within an entry": [{0: 1_001, SIZE: 7}, {0: 1_999}],
    "no file is left but an empty one": [{0: 0}],
}


@pytest.mark.parametrize("is_full", [True, False])
@pytest.mark.parametrize("case", FITS)
def test_a_file_of_a_queue_that_has_lost_its_end_is_accepted(
    tmp_path: Path, case: str, is_full: bool
) -> None:
    assert refusal(tmp_path, ConsumeQueue.file_kind(SIZE), FITS[case], is_full=is_full) == ""


WRONG: dict[str, tuple[list[Sizes], str]] = {
    "another size was set": ([HALF, HALF], "set mappedFileSizeConsumeQueue=1000"),
    "and a file has lost its end": ([HALF, {0: 400}, HALF], "set mappedFileSizeConsumeQueue=1000"),
    "within an entry": ([HALF, {0: 401}], "set mappedFileSizeConsumeQueue=1000"),
    "in the middle": ([{0: OTHER, OTHER: 400, 2 * OTHER: OTHER}], "set mappedFileSizeConsumeQueue=1000"),
    "one file, with unused bytes at its end": ([HALF], "set mappedFileSizeConsumeQueue=1000"),
    "a smaller size is more common": ([FULL, HALF, HALF], "no size fits all files (2 of 1000 bytes, 1 of"),
    "a file is larger": ([FULL, FULL, {0: 2_020}], "no size fits all files"),
    "a larger one that ends within an entry": ([FULL, {0: 2_019}], "no size fits all files"),
    "the names are those of another size": ([FULL, {0: 600, 1_500: 600}], "MEND"),
    "one whole file, and a name of another size": ([{0: SIZE, 1_020: 980}], "MEND"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_size_of_queues_is_refused(tmp_path: Path, case: str) -> None:
    directories, says = WRONG[case]
    assert says in refusal(tmp_path, ConsumeQueue.file_kind(SIZE), directories, is_full=False)


def test_the_size_of_batch_queues_has_other_units(tmp_path: Path) -> None:
    kind = BatchQueue.file_kind(100 * 46)
    assert refusal(tmp_path / "a", kind, [{0: 46 * 50 + 1}], is_full=False) == ""
    assert refusal(tmp_path / "b", kind, [{0: 4_600}, {0: 46 * 50}], is_full=False) == ""
    assert "=2300" in refusal(tmp_path / "c", kind, [{0: 46 * 50}], is_full=False)


@pytest.mark.parametrize("seed", range(100))
def test_no_damage_hides_a_wrong_size(tmp_path: Path, seed: int) -> None:
    """Several queues of several files, of which one or two have lost their ends, and another size is set."""
    dice = random.Random(seed)
    queues: list[dict[int, int]] = [
        {number * OTHER: OTHER for number in range(dice.randrange(1, 4))} for _ in range(4)
    ]
    for queue in dice.sample(queues, dice.randrange(3)):
        queue[dice.choice(sorted(queue))] = dice.randrange(1, OTHER)
    for size in (20, 500, 980, 1_020, SIZE, 6_000_000):
        says = refusal(
            tmp_path / str(size), ConsumeQueue.file_kind(size), queues, is_full=dice.random() < 0.5
        )
        assert "set mappedFileSizeConsumeQueue=1000" in says, (size, queues)
    assert refusal(tmp_path / "right", ConsumeQueue.file_kind(OTHER), queues, is_full=True) == ""


def test_when_the_store_has_passed_one_queue_passes(tmp_path: Path) -> None:
    kind = ConsumeQueue.file_kind(SIZE)
    assert "=1000" in refusal(tmp_path / "a", kind, [HALF], is_full=False)
    assert refusal(tmp_path / "b", kind, [HALF], is_full=False, sure=True) == ""
    assert "has 2020 bytes" in refusal(tmp_path / "c", kind, [{0: 2_020}], is_full=False, sure=True)
    assert "MEND" in refusal(tmp_path / "d", kind, [{0: SIZE, 1_020: OTHER}], is_full=False, sure=True)


@pytest.mark.parametrize("sure", [True, False])
def test_the_log_has_no_short_file_in_front_of_another(tmp_path: Path, sure: bool) -> None:
    """Its bytes are nowhere else in this store; and no setting is wrong, if another file tells the size."""
    kind = log_file_kind(4_096)
    short: Sizes = {0: 4_096, 4_096: 4_095, 8_192: 4_096}
    assert "has 4095 of 4096 bytes" in refusal(tmp_path / "a", kind, [short], is_full=True, sure=sure)
    assert refusal(tmp_path / "b", kind, [{0: 4_096, 4_096: 4_095}], is_full=True, sure=sure) == ""
    other: Sizes = {0: 2_048, 2_048: 2_048, 4_096: 4_096}
    assert "no size fits" in refusal(tmp_path / "c", kind, [other], is_full=True)
    large: Sizes = {0: 2_048, 4_096: 4_096, 8_192: 4_097}
    assert "no size fits" in refusal(tmp_path / "d", kind, [large], is_full=True, sure=sure)


def test_a_size_that_ran_last_needs_no_other_proof(tmp_path: Path) -> None:
    kind = log_file_kind(4_096)
    assert "=1024" in refusal(tmp_path / "a", kind, [{0: 1_024}], is_full=False)
    assert refusal(tmp_path / "b", kind, [{0: 1_024}], is_full=False, sure=True) == ""
    assert refusal(tmp_path / "c", kind, [{0: 1_024}, {0: 4_097}], is_full=False, sure=True)
