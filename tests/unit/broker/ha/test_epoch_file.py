"""epochFileCheckpoint: the peer's format, durable writes, and loud failures."""

from pathlib import Path

import pytest

from broker.ha.core.epochs import Epochs
from broker.ha.epoch_file import EpochFile, EpochFileError, decode_epochs, encode_epochs

KNOWN = [
    ([(7, 7000), (8, 8000)], b"2\n773307083\n7-7000\n8-8000\n"),
    ([(1, 0), (3, 4096)], b"2\n1131518206\n1-0\n3-4096\n"),
    ([(1, 0)], b"1\n1725254278\n1-0\n"),
]


@pytest.mark.parametrize(("pairs", "content"), KNOWN)
def test_content_of_the_peer(pairs: list[tuple[int, int]], content: bytes) -> None:
    assert encode_epochs(Epochs.of(pairs)) == content
    assert decode_epochs(content) == Epochs.of(pairs)


def test_checksum_zero_is_not_checked() -> None:
    assert decode_epochs(b"1\n0\n4-9\n").pairs == ((4, 9),)


@pytest.mark.parametrize(
    "content",
    [b"", b"x", b"1\n", b"1\nx\n1-0\n", b"2\n0\n1-0\n", b"1\n5\n1-0\n", b"2\n0\n2-0\n1-5\n", b"1\n0\n1+0\n"],
)
def test_damage_is_an_error(content: bytes) -> None:
    with pytest.raises(ValueError):
        decode_epochs(content)


def test_every_cut_of_a_file_is_an_error_or_the_whole(tmp_path: Path) -> None:
    content = KNOWN[0][1]
    for end in range(len(content) - 1):
        with pytest.raises(ValueError):
            decode_epochs(content[:end])


def test_save_and_load(tmp_path: Path) -> None:
    file = EpochFile(tmp_path / "sub" / "epochFileCheckpoint")
    assert file.load() == Epochs()
    one, two = Epochs.of([(1, 0)]), Epochs.of([(1, 0), (2, 10)])
    file.save(one)
    file.save(two)
    assert EpochFile(file.path).load() == two
    assert decode_epochs(file.path.with_name("epochFileCheckpoint.bak").read_bytes()) == one
    file.save(Epochs())
    assert EpochFile(file.path).load() == Epochs(), "an empty list is written too (pitfall 48)"
    assert sorted(path.name for path in file.path.parent.iterdir()) == [
        "epochFileCheckpoint",
        "epochFileCheckpoint.bak",
    ]


@pytest.mark.parametrize("damage", [b"", b"2\n773307083\n7-7000\n", None])
def test_an_older_list_is_never_taken_silently(tmp_path: Path, damage: bytes | None) -> None:
    file = EpochFile(tmp_path / "epochFileCheckpoint")
    file.save(Epochs.of([(7, 7000)]))
    file.save(Epochs.of([(7, 7000), (8, 8000)]))
    if damage is None:
        file.path.unlink()
    else:
        file.path.write_bytes(damage)
    with pytest.raises(EpochFileError, match=r"epochFileCheckpoint.*Restore it"):
        EpochFile(file.path).load()


def test_a_damaged_file_never_replaces_the_backup(tmp_path: Path) -> None:
    file = EpochFile(tmp_path / "epochFileCheckpoint")
    file.save(Epochs.of([(7, 7000)]))
    file.save(Epochs.of([(8, 8000)]))
    file.path.write_bytes(b"torn")
    file.save(Epochs.of([(9, 9000)]))
    assert file.load().pairs == ((9, 9000),)
    assert b"7-7000" in file.path.with_name("epochFileCheckpoint.bak").read_bytes()
