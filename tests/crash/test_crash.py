"""A few rounds of the crash loop; `make crash` runs fifty."""

import random
from pathlib import Path

import pytest

from tests.crash.loop import check, crash, recover, run

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(120)]


def test_killed_again_and_again(tmp_path: Path) -> None:
    assert run(3, 7, tmp_path) == 0


def test_the_checker_sees_what_is_lost(tmp_path: Path) -> None:
    """Of a store that lost its tail every claim must fail that is wrong now."""
    done = crash(tmp_path, 1, random.Random(3))
    assert done.problems == []
    store, _ = recover(tmp_path / "store")
    key, (topic, queue_id, queue_offset) = max(done.acked.items(), key=lambda item: item[1][2])
    queue = store.find_queue(topic, queue_id)
    assert queue is not None
    store.cutter.truncate(queue.unit(queue_offset)[0])
    problems = check(store, done.acked, random.Random(1))
    assert any(key in problem and "lost" in problem for problem in problems)
    store.close()
