"""The topic table as JSON: made of kept texts, in slices, always of one moment."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.metadata import encoded_rows
from broker.metadata.encoded_rows import EncodedRows, RowEncoder
from broker.metadata.topics import TopicTable
from keelmq.remoting.body import body_bytes
from keelmq.remoting.operations.route import DataVersion, TopicConfig


class Rows(dict[str, TopicConfig]):
    """A table that counts its changes."""

    revision = 0

    def put(self, name: str, perm: int = 6) -> None:
        self[name] = TopicConfig(topic_name=name, perm=perm)
        self.revision += 1

    def drop(self, name: str) -> None:
        del self[name]
        self.revision += 1

    def encoder(self, text: Callable[[TopicConfig], bytes] = body_bytes) -> RowEncoder[TopicConfig]:
        return RowEncoder(
            self,
            lambda: DataVersion(counter=self.revision),
            lambda: self.revision,
            lambda row, permission: text(row.model_copy(update={"perm": row.perm & permission})),
        )


def table(count: int) -> Rows:
    rows = Rows()
    for number in range(count):
        rows.put(f"T{number}")
    return rows


def check(found: EncodedRows, rows: Rows, permission: int = 6) -> None:
    """The texts are those of the present rows, as body_bytes() makes them."""
    limited = {name: row.model_copy(update={"perm": row.perm & permission}) for name, row in rows.items()}
    joined = b"{%b}" % b",".join(found.texts)
    assert joined == body_bytes(limited)
    assert list(found.names) == sorted(rows)
    assert found.text_bytes == len(joined) - 1 if rows else found.text_bytes == 0
    assert found.version == DataVersion(counter=rows.revision)


async def test_changed_new_and_deleted_topics() -> None:
    rows = table(30)
    encoder = rows.encoder()
    check(await encoder.encoded(), rows)
    for change in (
        lambda: rows.put("T7", perm=4),
        lambda: rows.put("A new one"),
        lambda: rows.drop("T3"),
        lambda: (rows.drop("T4"), rows.put("T4", perm=2)),
        lambda: (rows.put("X"), rows.drop("X")),
        lambda: [rows.drop(name) for name in list(rows)],
        lambda: rows.put("last"),
    ):
        change()
        check(await encoder.encoded(), rows)


async def test_only_a_changed_topic_is_converted() -> None:
    """With each registration all topics were: 320 ms at 50,000."""
    converted = []

    def count(body: TopicConfig) -> bytes:
        converted.append(body)
        return body_bytes(body)

    rows = table(30)
    encoder = rows.encoder(count)
    first = await encoder.encoded()
    assert await encoder.encoded() is first and len(converted) == 30
    rows.put("T7", perm=4)
    assert await encoder.encoded() is not first and len(converted) == 31


async def test_a_permission_limits_every_topic() -> None:
    rows = table(5)
    encoder = rows.encoder()
    check(await encoder.encoded(4), rows, 4)
    check(await encoder.encoded(), rows)
    check(await encoder.encoded(2), rows, 2)
    rows.put("T1", perm=2)
    check(await encoder.encoded(4), rows, 4)


async def test_a_large_table_lets_other_work_pass_and_is_of_one_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A topic that changes between two slices is not in the texts with its old row and the new version."""
    monkeypatch.setattr(encoded_rows, "SLICE_ROWS", 10)
    rows, turns = table(100), 0
    encoder = rows.encoder()

    async def changes() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1
            rows.put("T0", perm=turns % 8)
            if turns == 5:
                rows.drop("T1")

    changing = asyncio.create_task(changes())
    found = await encoder.encoded()
    check(found, rows)
    changing.cancel()
    assert turns >= 8 * encoded_rows.TRIES
    check(await encoder.encoded(), rows)


async def test_a_small_table_never_waits() -> None:
    """A new master is registered in the step in which it begins to serve."""
    rows = table(100)
    coroutine = rows.encoder().encoded()
    with pytest.raises(StopIteration):
        coroutine.send(None)


async def test_every_change_of_a_topic_table_is_encoded(tmp_path: Path) -> None:
    """Also a guess of a replica, which has no version."""
    topics = TopicTable(tmp_path / "topics.json", broker_name="b", cluster_name="c")
    topics.load()

    async def text(name: str) -> str:
        found = await topics.encoder.encoded()
        assert list(found.names) == sorted(topics.topics) and found.version == topics.data_version
        known = dict(zip(found.names, found.texts, strict=True))
        return known[name].decode() if name in known else ""

    assert "TBW102" in await text("TBW102")
    topics.update(TopicConfig(topic_name="T", write_queue_nums=3))
    assert json.loads("{" + await text("T") + "}")["T"]["writeQueueNums"] == 3
    topics.ensure_replicated("T", 20)
    assert '"readQueueNums":21' in await text("T")
    topics.settle(topics.guesses())
    assert '"readQueueNums":16' in await text("T")
    topics.delete(["T"], 1)
    assert await text("T") == ""
