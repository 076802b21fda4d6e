"""The lock of an object store: of two that begin together, never do both run."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import msgspec
import pytest

from analytics.compaction import lock
from analytics.compaction.lock import CLAIM, DEAD_MS, STALE_MS, locked
from analytics.compaction.manifest import COMPACTED
from analytics.compaction.storage import RemoteStorage, Stored
from analytics.errors import AnalyticsError
from keelmq.runtime.clock import wall_ms


class Bucket(RemoteStorage):
    """An object store in memory, which calls `between` before each request number."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        self.url, self.objects = "s3://bucket/out", objects
        self.requests = 0
        self.between: Callable[[int], None] = lambda _: None

    def _request(self) -> None:
        self.requests += 1
        self.between(self.requests)

    def files(self, folder: str) -> list[Stored]:
        self._request()
        found = [name.removeprefix(f"{folder}/") for name in self.objects if name.startswith(f"{folder}/")]
        return [Stored(each, len(self.objects[f"{folder}/{each}"]), 0) for each in sorted(found)]

    def read(self, name: str) -> bytes:
        self._request()
        if name not in self.objects:
            raise FileNotFoundError(name)
        return self.objects[name]

    def replace(self, name: str, content: bytes) -> None:
        self._request()
        self.objects[name] = content

    def delete(self, name: str) -> None:
        self._request()
        self.objects.pop(name, None)


@contextlib.contextmanager
def attempt(bucket: Bucket, running: list[str], name: str) -> Iterator[None]:
    """Holds the lock if it can; `running` says who does."""
    with ExitStack() as stack:
        with contextlib.suppress(AnalyticsError):
            stack.enter_context(locked(bucket))
            running.append(name)
        yield


@pytest.mark.parametrize("at", [1, 2, 3, 4, 5, 6])
def test_two_that_begin_together(at: int) -> None:
    """The second one tries, and holds on, before each request of the first one."""
    objects: dict[str, bytes] = {}
    first, second, running = Bucket(objects), Bucket(objects), list[str]()
    with ExitStack() as stack:

        def between(number: int) -> None:
            if number == at:
                stack.enter_context(attempt(second, running, "second"))

        first.between = between
        with attempt(first, running, "first"):
            assert len(running) <= 1
    if at > 3:  # the first one was through
        assert running[0] == "first"
    assert objects == {}, "nothing is left"


def test_the_owner_is_named_and_a_dead_one_does_not_count() -> None:
    objects: dict[str, bytes] = {}
    with (
        locked(Bucket(objects)),
        pytest.raises(AnalyticsError, match=rf"{CLAIM}-\w+: another compaction \(process \d+ on"),
        locked(Bucket(objects)),
    ):
        pass
    owner = {"host": "h", "pid": 1, "since_ms": wall_ms() - STALE_MS}
    objects[f"{COMPACTED}/{CLAIM}"] = msgspec.json.encode(owner)
    with locked(Bucket(objects)):
        assert len(objects) == 1
    assert objects == {}


def test_a_killed_owner_counts_as_dead_when_it_has_not_renewed_its_claim() -> None:
    now = wall_ms()
    owner = {"host": "h", "pid": 1, "since_ms": now - 3_600_000, "renewed_ms": now - DEAD_MS + 60_000}
    objects = {f"{COMPACTED}/{CLAIM}-1": msgspec.json.encode(owner)}
    with pytest.raises(AnalyticsError, match=r"process 1 on h, for 36\d\d s"), locked(Bucket(objects)):
        pass
    objects = {f"{COMPACTED}/{CLAIM}-1": msgspec.json.encode({**owner, "renewed_ms": now - DEAD_MS})}
    with locked(Bucket(objects)):
        assert len(objects) == 1
    assert objects == {}


def test_a_claim_is_renewed_until_its_owner_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether or not the store takes it each time."""
    monkeypatch.setattr(lock, "RENEW_MS", 1)
    bucket, renewed, writes = Bucket({}), threading.Event(), 0

    def replace(name: str, content: bytes) -> None:
        nonlocal writes
        writes += 1
        if writes == 2:
            raise OSError("not now")
        Bucket.replace(bucket, name, content)
        if writes > 3:
            renewed.set()

    monkeypatch.setattr(bucket, "replace", replace)
    with locked(bucket):
        assert renewed.wait(20)
        (content,) = bucket.objects.values()
        owner = msgspec.json.decode(content)
        assert owner["since_ms"] <= owner["renewed_ms"] <= wall_ms()
    assert bucket.objects == {}


def test_two_folders_are_two_locks() -> None:
    objects: dict[str, bytes] = {}
    with locked(Bucket(objects)), locked(Bucket(objects), "rollup", "run"):
        assert sorted(name.partition("/")[0] for name in objects) == [COMPACTED, "rollup"]
        with pytest.raises(AnalyticsError, match="another run"), locked(Bucket(objects), "rollup", "run"):
            pass
    assert objects == {}


def test_a_lock_of_a_release_before() -> None:
    owner = {"host": "h", "pid": 1, "since_ms": wall_ms()}
    objects = {f"{COMPACTED}/{CLAIM}": msgspec.json.encode(owner)}
    with pytest.raises(AnalyticsError, match="process 1 on h"), locked(Bucket(objects)):
        pass
