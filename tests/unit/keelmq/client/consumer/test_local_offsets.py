"""The offsets file of a broadcasting member."""

import asyncio
from pathlib import Path

import pytest

from keelmq.client.consumer.offset_store import LocalOffsets
from keelmq.client.core.queues import MessageQueue

QUEUES = [MessageQueue("T", "b", index) for index in range(8)]


async def test_queues_that_are_given_back_all_at_once_are_all_saved(tmp_path: Path) -> None:
    """Each is saved by a task of its own; writers that met would replace newer files by older ones."""
    for round_ in range(20):
        store = LocalOffsets(tmp_path / "g" / "DEFAULT.json")
        await asyncio.gather(*(store.save({queue: round_}) for queue in QUEUES))
        again = LocalOffsets(tmp_path / "g" / "DEFAULT.json")
        assert [await again.load(queue) for queue in QUEUES] == [round_] * 8
    assert [path.name for path in (tmp_path / "g").iterdir()] == ["DEFAULT.json"]


async def test_what_could_not_be_written_is_written_later(tmp_path: Path) -> None:
    store = LocalOffsets(tmp_path / "g" / "DEFAULT.json")
    assert await store.load(QUEUES[0]) is None
    (tmp_path / "g").write_text("in the way")
    await store.save({QUEUES[0]: 7})
    (tmp_path / "g").unlink()
    await store.save({QUEUES[0]: 7})
    assert await LocalOffsets(tmp_path / "g" / "DEFAULT.json").load(QUEUES[0]) == 7


@pytest.mark.parametrize("text", ["", "{", "[]", '{"offsetTable": [{"topic": "T"}]}', '{"offsetTable": 3}'])
async def test_a_file_that_is_none_is_kept_aside(tmp_path: Path, text: str) -> None:
    path = tmp_path / "DEFAULT.json"
    path.write_text(text)
    store = LocalOffsets(path)
    assert await store.load(QUEUES[0]) is None
    assert path.with_suffix(".damaged").read_text() == text
