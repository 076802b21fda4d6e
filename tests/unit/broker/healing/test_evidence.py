"""What is taken for evidence, and what is refused: one case for each rule."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from broker.ha.core.epochs import Epochs
from broker.healing.evidence import (
    Here,
    Piece,
    Refusal,
    by_epoch,
    covering,
    decode_epochs,
    encode_epochs,
    refusal_of,
    sound_end,
)
from broker.message.record import decode, encode
from tests.support.healing import Replica, group_of, log_of
from tests.support.store_parts import FILE_BYTES, crash


@pytest.fixture(name="replica")
def one_replica(tmp_path: Path) -> Any:
    (replica,) = group_of(tmp_path, 1)
    yield replica
    crash(replica.store)


def piece_of(replica: Replica, first: int, last: int) -> Piece:
    start, end = replica.places[first][0], replica.places[last][1]
    data = bytes(replica.store.commit_log.view(start, end - start))
    return Piece(start, data, covering(replica.epochs, start, end))


def here(replica: Replica, piece: Piece, **more: Any) -> Here:
    values: dict[str, Any] = {
        "epochs": replica.epochs,
        "needs_epochs": True,
        "file_bytes": FILE_BYTES,
        "local": bytes(len(piece.data)),
        "unit_of": lambda topic, queue_id, number: None,
    }
    return Here(**values | more)


def test_the_same_bytes_are_taken(replica: Replica) -> None:
    piece = piece_of(replica, 2, 5)
    assert refusal_of(piece, here(replica, piece)) is None
    assert refusal_of(piece, here(replica, piece, local=piece.data)) is None


@pytest.mark.parametrize("at", [0, 3, 5, 30, 90])
def test_a_wrong_byte_is_refused(replica: Replica, at: int) -> None:
    """Also one that was sound when it was sent."""
    piece = piece_of(replica, 2, 5)
    data = bytearray(piece.data)
    data[at] ^= 0x80
    assert refusal_of(replace(piece, data=bytes(data)), here(replica, piece)) is Refusal.CHECKSUM


def test_the_checksum_of_a_whole_record_is_checked(tmp_path: Path) -> None:
    """enabledAppendPropCRC: BODYCRC covers neither topic nor properties."""
    (replica,) = group_of(tmp_path, 1, append_prop_crc=True)
    piece = piece_of(replica, 2, 5)
    assert refusal_of(piece, here(replica, piece)) is None
    record = decode(piece.data)
    data = bytearray(piece.data)
    data[record.size - len(record.properties) - 3] ^= 1  # the topic's last letter
    assert refusal_of(replace(piece, data=bytes(data)), here(replica, piece)) is Refusal.CHECKSUM
    crash(replica.store)


def test_half_a_record_is_refused(replica: Replica) -> None:
    piece = piece_of(replica, 2, 5)
    cut = replace(piece, data=piece.data[:-5])
    assert refusal_of(cut, here(replica, cut)) is Refusal.CHECKSUM


def test_records_of_another_place_are_refused(replica: Replica) -> None:
    piece = piece_of(replica, 2, 5)
    moved = replace(piece, start=piece.start + 8)
    assert refusal_of(moved, here(replica, moved)) is Refusal.CHECKSUM


@pytest.mark.parametrize("change", [lambda epoch, at: (epoch + 1, at), lambda epoch, at: (epoch, at + 1)])
def test_other_epochs_are_refused(replica: Replica, change: Any) -> None:
    piece = piece_of(replica, 15, 16)
    (pair,) = piece.epochs
    assert pair[0] == 2
    assert refusal_of(replace(piece, epochs=(change(*pair),)), here(replica, piece)) is Refusal.EPOCHS


def test_bytes_of_no_epoch_are_refused(replica: Replica) -> None:
    """With controllers every byte has one; without, none has."""
    piece = replace(piece_of(replica, 2, 5), epochs=())
    assert refusal_of(piece, here(replica, piece, epochs=Epochs())) is Refusal.EPOCHS
    assert refusal_of(piece, here(replica, piece, epochs=Epochs(), needs_epochs=False)) is None


def test_a_sound_record_here_with_another_body_contradicts(replica: Replica) -> None:
    """Two masters wrote at this place: the epochs are wrong, and nothing is written."""
    piece = piece_of(replica, 2, 3)
    record = decode(piece.data)
    other = encode(replace(record, body=bytes(byte ^ 1 for byte in record.body)))
    local = other + bytes(len(piece.data) - len(other))
    assert refusal_of(piece, here(replica, piece, local=local)) is Refusal.CONTRADICTED


def test_a_damaged_header_does_not_contradict(replica: Replica) -> None:
    """BODYCRC does not cover the queue offset."""
    piece = piece_of(replica, 2, 3)
    other = encode(replace(decode(piece.data), queue_offset=10**6))
    local = other + piece.data[len(other) :]
    assert sound_end(local, piece.start, file_bytes=FILE_BYTES) == piece.end
    assert refusal_of(piece, here(replica, piece, local=local)) is None


def test_an_entry_of_another_record_contradicts(replica: Replica) -> None:
    piece = piece_of(replica, 2, 3)

    def unit_of(topic: bytes, queue_id: int, number: int) -> tuple[int, int]:
        return piece.start + 1, 100

    assert refusal_of(piece, here(replica, piece, unit_of=unit_of)) is Refusal.CONTRADICTED
    elsewhere = here(replica, piece, unit_of=lambda *_: (0, 100))
    assert refusal_of(piece, elsewhere) is None, "the topic was deleted and made again"


def test_a_blank_record_must_end_its_file(replica: Replica) -> None:
    """Its size is checked by nothing else."""
    log = log_of(replica.store)
    last = max(end for start, end in replica.places if end <= FILE_BYTES)
    blank = bytearray(log[last:FILE_BYTES])
    assert sound_end(bytes(blank), last, file_bytes=FILE_BYTES) == FILE_BYTES
    blank[3] -= 1
    assert sound_end(bytes(blank), last, file_bytes=FILE_BYTES) == last


def test_a_piece_is_judged_epoch_by_epoch(replica: Replica) -> None:
    piece = piece_of(replica, 10, 25)
    parts = by_epoch(piece)
    assert [part.epochs for part in parts] == [(pair,) for pair in replica.epochs.pairs]
    assert b"".join(part.data for part in parts) == piece.data
    wrong = replace(piece, epochs=((1, 0), (2, piece.end + 9)))
    assert by_epoch(wrong) == [wrong]


def test_a_piece_without_epochs_is_judged_as_a_whole(replica: Replica) -> None:
    """A replica whose epoch file is damaged names none, and without controllers nobody does."""
    piece = replace(piece_of(replica, 2, 5), epochs=())
    assert by_epoch(piece) == [piece]
    assert refusal_of(piece, here(replica, piece)) == Refusal.EPOCHS


def test_epochs_on_the_wire() -> None:
    pairs = ((1, 0), (7, 4_096))
    assert decode_epochs(encode_epochs(pairs)) == pairs
    assert decode_epochs("") == ()
    with pytest.raises(ValueError):
        decode_epochs("1@x")
