"""Damaged files of config/: a table is what was written, or an older version that the log names, or the start
is refused with file and reason. No flipped bit becomes the truth, and no lost table is an empty one."""

import logging
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker.metadata.file_sums import sum_of
from broker.metadata.service import Metadata
from broker.metadata.store import JournaledStore
from broker.store.log.mapped_file import StoreError
from keelmq.remoting.operations.broker_metadata import SubscriptionGroupConfig
from keelmq.remoting.operations.pop import RequestModeBody
from keelmq.remoting.operations.route import TopicConfig
from keelmq.security.core.users import User
from tests.support.file_damage import DAMAGE, changed, content_of, put_back, times_of, tries
from tests.support.metadata_parts import open_metadata
from tests.unit.keelmq.security.parts import acl_of

ROWS: dict[str, Callable[[int], dict[str, Any]]] = {
    "topics": lambda number: {f"T{number}": TopicConfig(topic_name=f"T{number}", read_queue_nums=4)},
    "groups": lambda number: {},
    "consumerOffsets": lambda number: {f"T{number}@g": {0: 1_000 + number, 1: 7}},
    "delayOffsets": lambda number: {str(number + 1): 1_000},
    "timerProgress": lambda number: {f"name{number}": 1_000},
    "messageRequestModes": lambda number: {},
    "queueEnds": lambda number: {f"T{number}": {0: 1_000 + number}},
    "users": lambda number: {f"u{number}": User(f"u{number}", "a-secret")},
    "acls": lambda number: {f"User:u{number}": acl_of(f"u{number}", "Topic:orders Pub Allow")},
}
PRIVATE = ("users", "acls")
FLIPS = 60


def add(metadata: Metadata, name: str, number: int) -> None:
    """One more version of the table, in its file, and not in a journal."""
    store = metadata.stores[name]
    if name == "groups":
        metadata.groups.update(SubscriptionGroupConfig(group_name=f"g{number}"))
    elif name == "messageRequestModes":
        metadata.request_modes.change(
            {f"T@g{number}": RequestModeBody(topic="T", consumer_group=f"g{number}")}
        )
    else:
        store.change(ROWS[name](number))
    store.flush()


def close(metadata: Metadata) -> None:
    for store in metadata.journaled:
        store.journal.close()


def rows_of(root: Path, name: str) -> dict[str, Any]:
    metadata = open_metadata(root)
    close(metadata)
    return dict(metadata.stores[name].table.rows)


def path_of(root: Path, name: str) -> Path:
    return open_metadata(root).stores[name].path


def filled(root: Path, name: str) -> list[dict[str, Any]]:
    """The rows after two versions, the newest first."""
    metadata, found = open_metadata(root), list[dict[str, Any]]()
    for number in range(2):
        add(metadata, name, number)
        found.insert(0, dict(metadata.stores[name].table.rows))
    close(metadata)
    return found


@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("name", ROWS)
def test_a_damaged_table_is_never_taken_for_the_truth(
    tmp_path: Path, name: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    newest, older = filled(tmp_path, name)
    path, files, times = path_of(tmp_path, name), content_of(tmp_path), times_of(tmp_path)
    assert rows_of(tmp_path, name) == newest and not caplog.text
    for dice in tries(kind, FLIPS):
        caplog.clear()
        DAMAGE[kind](path, dice)
        damaged = content_of(tmp_path)
        if name in PRIVATE:
            with pytest.raises(StoreError, match=rf"is damaged: {path}: .*; restore it from a backup"):
                open_metadata(tmp_path)
        else:
            with caplog.at_level(logging.WARNING):
                assert rows_of(tmp_path, name) == older
            assert f"{path}: " in caplog.text and f"using {path}.bak" in caplog.text
        assert content_of(tmp_path) == damaged
        put_back(tmp_path, files, times)


@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("name", [name for name in ROWS if name not in PRIVATE])
def test_without_a_good_version_the_start_is_refused(tmp_path: Path, name: str, kind: str) -> None:
    """A master with an empty table would make its replicas' tables empty as well."""
    filled(tmp_path, name)
    path = path_of(tmp_path, name)
    for number, each in enumerate((path, path.with_name(path.name + ".bak"))):
        DAMAGE[kind](each, random.Random(number))
    damaged = content_of(tmp_path)
    with pytest.raises(StoreError, match=rf"is damaged: {path}: .*; restore it from a backup .* or remove"):
        open_metadata(tmp_path)
    assert content_of(tmp_path) == damaged
    for each in path.parent.glob(f"{path.name}*"):  # what the text says: an empty slave
        each.unlink()
    open_metadata(tmp_path)


@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("name", [name for name in ROWS if name not in PRIVATE])
def test_a_damaged_file_does_not_become_the_backup(tmp_path: Path, name: str, kind: str) -> None:
    """Damage of the next version finds the one that is sound."""
    _, older = filled(tmp_path, name)
    path = path_of(tmp_path, name)
    DAMAGE[kind](path, random.Random(3))
    metadata = open_metadata(tmp_path)
    add(metadata, name, 2)
    newest = dict(metadata.stores[name].table.rows)
    add(metadata, name, 3)
    close(metadata)
    DAMAGE[kind](path, random.Random(4))
    assert rows_of(tmp_path, name) == newest, "an undamaged file does become the backup"
    metadata = open_metadata(tmp_path)
    add(metadata, name, 4)
    close(metadata)
    DAMAGE[kind](path, random.Random(5))
    assert older.keys() <= rows_of(tmp_path, name).keys() and rows_of(tmp_path, name) == newest


@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("name", ROWS)
def test_damage_while_the_broker_runs_is_overwritten(tmp_path: Path, name: str, kind: str) -> None:
    """Tables are read at the start only. The next change writes the whole file."""
    metadata = open_metadata(tmp_path)
    add(metadata, name, 0)
    add(metadata, name, 1)
    DAMAGE[kind](metadata.stores[name].path, random.Random(3))
    add(metadata, name, 2)
    rows = dict(metadata.stores[name].table.rows)
    close(metadata)
    assert rows_of(tmp_path, name) == rows


@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("name", ROWS)
def test_damaged_checksums_refuse_no_table(tmp_path: Path, name: str, kind: str) -> None:
    newest, _ = filled(tmp_path, name)
    path, files, times = path_of(tmp_path, name), content_of(tmp_path), times_of(tmp_path)
    for dice in tries(kind, FLIPS):
        DAMAGE[kind](sum_of(path), dice)
        assert rows_of(tmp_path, name) == newest
        put_back(tmp_path, files, times)


@pytest.mark.parametrize("name", ROWS)
def test_a_file_that_another_program_wrote_is_taken_as_it_is(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    newest, _ = filled(tmp_path, name)
    path = path_of(tmp_path, name)
    path.write_bytes(path.read_bytes() + b"\n")
    with caplog.at_level(logging.WARNING):
        assert rows_of(tmp_path, name) == newest
    assert f"{path} was changed by another program" in caplog.text
    sum_of(path).unlink()
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        assert rows_of(tmp_path, name) == newest
    assert not caplog.text


@pytest.mark.parametrize("name", ROWS)
def test_a_restored_file_with_its_old_content_is_whole(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    newest, _ = filled(tmp_path, name)
    path = path_of(tmp_path, name)
    path.write_bytes(path.read_bytes())
    with caplog.at_level(logging.WARNING):
        assert rows_of(tmp_path, name) == newest
    assert not caplog.text


# -- journals ------------------------------------------------------------------------------------------------

JOURNALED = ("consumerOffsets", "delayOffsets", "timerProgress")


def journaled(root: Path, name: str) -> tuple[Path, list[dict[str, Any]]]:
    """A file and a journal of four lines; the path of the journal, and the rows after each line."""
    metadata = open_metadata(root)
    store = metadata.stores[name]
    assert isinstance(store, JournaledStore)
    add(metadata, name, 0)
    versions = [dict(store.table.rows)]
    for number in range(1, 5):
        store.change(ROWS[name](number))
        versions.append(dict(store.table.rows))
    close(metadata)
    return store.journal.path, versions


@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("name", JOURNALED)
def test_a_damaged_journal_ends_in_front_of_the_damage(
    tmp_path: Path, name: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Never a wrong number: a consumer would pass messages."""
    path, versions = journaled(tmp_path, name)
    files, times = content_of(tmp_path), times_of(tmp_path)
    assert rows_of(tmp_path, name) == versions[-1]
    for dice in tries(kind, 4 * FLIPS):
        caplog.clear()
        DAMAGE[kind](path, dice)
        with caplog.at_level(logging.WARNING):
            rows = rows_of(tmp_path, name)
        assert rows in versions
        size = path.stat().st_size if path.exists() else 0
        if (
            size
            and rows != versions[-1]
            and path.read_bytes() != files[str(path.relative_to(tmp_path))][:size]
        ):
            assert f"{path} is damaged at byte" in caplog.text or "of a partial line" in caplog.text
        put_back(tmp_path, files, times)


@pytest.mark.parametrize("name", JOURNALED)
def test_a_lost_journal_is_named_until_a_master_has_sent_the_table(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    path, versions = journaled(tmp_path, name)
    master = open_metadata(tmp_path / "master")
    for number in range(1, 6):
        store = master.stores[name]
        store.change(ROWS[name](number))
    DAMAGE["lose"](path, random.Random(1))
    metadata = open_metadata(tmp_path)
    assert f"{path} is lost: offsets go back" in caplog.text and "electMaster" in caplog.text
    assert path.name in metadata.lost and "electMaster" in metadata.lost
    assert dict(metadata.stores[name].table.rows) == versions[0]
    update = master.stores[name].updates_since(None)
    assert update is not None
    assert metadata.stores[name].accept(update) is None
    assert not metadata.lost
    close(metadata)
    close(master)


@pytest.mark.parametrize("name", JOURNALED)
def test_a_journal_that_nobody_lost_is_not_missed(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """After a clean stop, a kill with an empty journal, one without any change, and in an empty directory."""
    path, versions = journaled(tmp_path, name)
    for end in ("kill", "written, kill", "stop", "kill"):
        metadata = open_metadata(tmp_path)
        assert not metadata.lost and dict(metadata.stores[name].table.rows) == versions[-1]
        store = metadata.stores[name]
        if end == "written, kill":
            store.flush()
            assert not path.stat().st_size
        if end == "stop":
            metadata.close()
            assert not list(path.parent.glob("*.journal*")), "as earlier releases leave it"
        else:
            close(metadata)
    assert "is lost" not in caplog.text


def test_a_journal_of_an_earlier_release_is_read(tmp_path: Path) -> None:
    path, versions = journaled(tmp_path, "consumerOffsets")
    lines = path.read_bytes().splitlines()
    changed(path, b"".join(line.rpartition(b" #")[0] + b"\n" for line in lines))
    assert rows_of(tmp_path, "consumerOffsets") == versions[-1]
