"""The topic table: file, templates, the master's table, and what a replica has to guess."""

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from broker.metadata.topics import TopicTable, illegal_name
from broker.store.log.mapped_file import StoreError
from keelmq.remoting.operations.route import DataVersion, TopicConfig, TopicConfigSerializeWrapper

FIXTURE = Path(__file__).parents[3] / "fixtures" / "store" / "config" / "topics.json"


def open_table(path: Path, *, auto_create: bool = True) -> TopicTable:
    table = TopicTable(
        path / "config" / "topics.json", broker_name="broker-a", cluster_name="c", auto_create=auto_create
    )
    table.load()
    return table


def config(name: str, queues: int = 4, perm: int = 6) -> TopicConfig:
    return TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm)


def test_the_peers_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    shutil.copy(FIXTURE, tmp_path / "config" / "topics.json")
    table = open_table(tmp_path)
    assert table.data_version == DataVersion(counter=8, state_version=2, timestamp=1795247812972)
    topic = table.get("FxNormal")
    assert topic is not None
    assert (topic.queue_count, topic.perm, topic.topic_raw) == (4, 6, b"\x08FxNormal")


def test_a_change_is_on_disk_before_the_call_returns(tmp_path: Path) -> None:
    table = open_table(tmp_path)
    changes: list[int] = []
    table.on_change = lambda: changes.append(table.data_version.counter)
    table.update(config("TopicA"))
    table.update(config("TopicA"))  # unchanged: no new version
    assert changes == [1]
    stored = json.loads(table.path.read_text())
    assert stored["topicConfigTable"]["TopicA"]["readQueueNums"] == 4
    assert stored["dataVersion"]["counter"] == 1
    again = open_table(tmp_path)
    assert (again.table.rows, again.data_version) == (table.table.rows, table.data_version)


def test_a_damaged_file_falls_back_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    table = open_table(tmp_path)
    table.update(config("TopicA"))
    table.update(config("TopicB"))
    table.path.write_text('{"dataVersion"')
    again = open_table(tmp_path)
    assert again.get("TopicA") is not None
    assert "using" in caplog.text
    table.path.with_name("topics.json.bak").write_text("")
    with pytest.raises(StoreError, match="topic table is damaged"):
        open_table(tmp_path)


@pytest.mark.parametrize(
    ("default_topic", "asked", "queues"),
    [("TBW102", 4, 4), ("TBW102", 100, 8), ("TBW102", 0, 8), ("c", 100, 16)],
)
def test_auto_creation_follows_the_template(
    tmp_path: Path, default_topic: str, asked: int, queues: int
) -> None:
    topic = open_table(tmp_path).create_on_send("New", default_topic, asked)
    assert topic is not None
    assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm) == (queues, queues, 6)


def test_the_topic_of_traces(tmp_path: Path) -> None:
    """traceTopicEnable: there at the next start, with one queue; nobody deletes it by accident."""
    assert open_table(tmp_path).get("Traces") is None
    table = TopicTable(tmp_path / "t.json", broker_name="b", cluster_name="c", trace_topic="Traces")
    table.load()
    topic = table.get("Traces")
    assert topic is not None and (topic.queue_count, topic.open_queue_count, topic.perm) == (1, 1, 6)
    assert table.is_system("Traces") and not table.is_system("Others")


def test_no_template_no_topic(tmp_path: Path) -> None:
    table = open_table(tmp_path)
    table.update(config("Plain"))
    assert table.create_on_send("New", "Plain", 4) is None  # does not inherit
    assert table.create_on_send("New", "Absent", 4) is None
    retry = table.create_on_send("%RETRY%group", "", 0)
    assert retry is not None and retry.queue_count == 1
    closed = open_table(tmp_path / "closed", auto_create=False)
    assert closed.create_on_send("New", "TBW102", 4) is None


def test_a_replica_grows_what_it_meets_and_the_masters_table_wins(tmp_path: Path) -> None:
    table = open_table(tmp_path)
    assert table.ensure_replicated("TopicA", 2).queue_count == 8
    assert table.ensure_replicated("TopicA", 11).queue_count == 12
    assert table.data_version.counter == 0
    remote = TopicConfigSerializeWrapper(
        topic_config_table={"TopicA": config("TopicA", 12), "TopicB": config("TopicB")},
        data_version=DataVersion(counter=3, state_version=1, timestamp=7),
    )
    assert table.apply_remote(remote)
    assert not table.apply_remote(remote)
    assert table.data_version == remote.data_version
    assert table.get("TopicB") is not None
    assert table.get("TBW102") is not None  # system topics stay


def test_topics_of_an_older_epoch_delete_nothing(tmp_path: Path) -> None:
    table = open_table(tmp_path)
    table.begin_term(5)
    table.update(config("TopicA"))
    stale = TopicConfigSerializeWrapper(data_version=DataVersion(counter=99, state_version=4, timestamp=9))
    assert not table.apply_remote(stale)
    assert table.get("TopicA") is not None
    newer = TopicConfigSerializeWrapper(data_version=DataVersion(counter=1, state_version=6, timestamp=1))
    assert table.apply_remote(newer)
    assert table.get("TopicA") is None


def test_a_new_master_publishes_the_topics_that_it_knows_by_their_records(tmp_path: Path) -> None:
    table = open_table(tmp_path)
    before = table.data_version
    table.ensure_replicated("A", 9)
    assert table.data_version == before
    table.begin_term(3)
    update = table.updates_since(before)
    assert update is not None and set(update.rows) == {"A"} and update.rows["A"]["readQueueNums"] == 10


def numbers(table: TopicTable, name: str) -> tuple[int, int]:
    topic = table.get(name)
    assert topic is not None and topic.config == table.table.rows[name]
    return topic.read_queue_nums, topic.write_queue_nums


@pytest.mark.parametrize("restart", [False, True])
def test_a_topic_that_was_cut_stays_so_on_a_replica_that_meets_old_records(
    tmp_path: Path, restart: bool
) -> None:
    """Its master's table is no newer: the record is of before the cut, and no next master undoes that."""
    table = open_table(tmp_path)
    table.update(config("T", 8))
    table.update(config("T", 4))
    before, asked_before = table.data_version, table.guesses()
    for queue_id in (5, 7):
        assert table.ensure_replicated("T", queue_id) is not None
    assert numbers(table, "T") == (8, 4) and table.data_version == before
    if restart:
        table = open_table(tmp_path)
        assert numbers(table, "T") == (8, 4)
    table.settle(asked_before)
    assert numbers(table, "T") == (8, 4)  # that answer may be older than the record
    table.settle(table.guesses())
    assert numbers(table, "T") == (4, 4) and table.data_version == before
    again = open_table(tmp_path)
    assert numbers(again, "T") == (4, 4) and again.guesses() == {}
    table.begin_term(3)
    update = table.updates_since(before)
    assert update is not None and update.rows == {}


def test_a_guess_that_grew_since_the_question_is_not_settled_by_its_answer(tmp_path: Path) -> None:
    table = open_table(tmp_path)
    table.update(config("T", 4))
    table.ensure_replicated("T", 5)
    asked = table.guesses()
    table.ensure_replicated("T", 7)
    table.settle(asked)
    assert numbers(table, "T") == (8, 4)
    table.update(config("Other"))  # says nothing about T, in memory and in the file
    assert numbers(open_table(tmp_path), "T") == (8, 4) and set(open_table(tmp_path).guesses()) == {"T"}
    table.update(config("T", 6))
    assert numbers(table, "T") == (6, 6) and open_table(tmp_path).guesses() == table.guesses() == {}


def test_a_new_master_that_asked_nobody_since_makes_old_queues_readable_and_not_more(tmp_path: Path) -> None:
    """Who knows whether the topic was cut before the record, or grown by a version that died with its master:
    acknowledged messages can be read, and sends go where they went."""
    table = open_table(tmp_path)
    table.update(config("T", 4))
    before = table.data_version
    table.ensure_replicated("T", 7)
    table.begin_term(3)
    update = table.updates_since(before)
    assert update is not None and set(update.rows) == {"T"}
    assert (update.rows["T"]["readQueueNums"], update.rows["T"]["writeQueueNums"]) == (8, 4)
    assert table.guesses() == {}


def test_a_topic_that_no_version_has_is_kept_by_an_answer_without_it(tmp_path: Path) -> None:
    table = open_table(tmp_path)
    table.ensure_replicated("A", 9)
    table.settle(table.guesses())
    assert numbers(table, "A") == (10, 10) and set(open_table(tmp_path).guesses()) == {"A"}


def test_a_rocketmq_master_settles_guesses_too(tmp_path: Path) -> None:
    table = open_table(tmp_path)
    remote = TopicConfigSerializeWrapper(
        topic_config_table={"T": config("T", 4)},
        data_version=DataVersion(counter=3, state_version=1, timestamp=7),
    )
    assert table.apply_remote(remote)
    table.ensure_replicated("T", 7)
    assert not table.apply_remote(remote) and numbers(table, "T") == (8, 4)
    assert not table.apply_remote(remote, guesses=table.guesses()) and numbers(table, "T") == (4, 4)


def test_a_record_from_before_a_deletion_brings_no_topic_back(tmp_path: Path) -> None:
    """broker-ops pitfall 20, design S3: an old record arrives after the deletion did."""
    table = open_table(tmp_path)
    table.update(config("TopicA"))
    table.delete(["TopicA"], 500)
    again = open_table(tmp_path)
    assert again.get("TopicA") is None
    assert again.ensure_replicated("TopicA", 0, 499) is None and again.get("TopicA") is None
    assert again.ensure_replicated("TopicA", 0, 500) is not None
    assert again.create_on_send("TopicA", "TBW102", 4) is not None
    assert again.table.gone == {}  # created again, for good


@pytest.mark.parametrize("name", ["", "a b", "a/b", "..", "ü", "x" * 128])
def test_illegal_names(name: str) -> None:
    assert illegal_name(name) is not None


@pytest.mark.parametrize("name", ["a", "%RETRY%g-1_2|x", "x" * 127])
def test_legal_names(name: str) -> None:
    assert illegal_name(name) is None


async def test_a_whole_table_that_a_thread_has_made(tmp_path: Path) -> None:
    master, replica = open_table(tmp_path / "m"), open_table(tmp_path / "r")
    master.begin_term(2)
    master.change({name: config(name) for name in ("TopicA", "TopicB", "%RETRY%g")})
    replica.update(config("TopicA", 2))
    replica.update(config("Gone"))
    same, known = replica.topics, replica.get("TopicA")
    replica.write_in_background()
    update = master.updates_since(None)
    assert update is not None
    accepting = asyncio.create_task(replica.accept_large(update))
    await asyncio.sleep(0)
    guessed = replica.ensure_replicated("TopicB", 9)  # a record arrives while the thread reads
    assert guessed is not None and guessed.queue_count == 10
    assert await accepting is None and replica.topics is same and known is not None
    assert {name: topic.config for name, topic in same.items()} == master.table.rows
    assert all(topic.config is replica.table.rows[name] for name, topic in same.items())
    assert (same["TopicA"].open_queue_count, same["TopicB"].open_queue_count) == (4, 4), "known before"
    new = "%RETRY%g"
    assert replica.unwritten == {new} and same[new].open_queue_count == 0
    await replica.saved()
    assert not replica.unwritten


async def test_topics_of_a_whole_table_open_when_they_are_on_disk(tmp_path: Path) -> None:
    master, replica = open_table(tmp_path / "m"), open_table(tmp_path / "r")
    master.begin_term(2)
    master.change({name: config(name) for name in ("TopicA", "TopicB")})
    replica.write_in_background()
    update = master.updates_since(None)
    assert update is not None and await replica.accept_large(update) is None
    assert {"TopicA", "TopicB"} <= replica.unwritten
    assert [replica.topics[name].open_queue_count for name in ("TopicA", "TopicB")] == [0, 0]
    await replica.saved()
    assert [replica.topics[name].open_queue_count for name in ("TopicA", "TopicB")] == [4, 4]
