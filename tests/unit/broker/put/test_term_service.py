"""The life of a service that lives as long as a term, and progress that waits for the log to be safe."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from broker.put.term_service import SafeMarks, TermService


class Counting(TermService):
    """Counts its terms and steps; `error` is raised by the next step."""

    def __init__(self) -> None:
        self.gate = SimpleNamespace(writable=True, lease_is_over=False)
        self.metadata: Any = SimpleNamespace(epoch=1, gate=self.gate)
        self.store: Any = SimpleNamespace(is_master=True, commit_log=SimpleNamespace(max_offset=10))
        self.terms: list[int] = []
        self.steps = 0
        self.error: Exception | None = None
        super().__init__(self.store, self.metadata, writer=SimpleNamespace())  # type: ignore[arg-type]

    def _begin(self) -> None:
        self.terms.append(self._log_end)

    def _step(self) -> bool:
        self.steps += 1
        if self.error is not None:
            raise self.error
        return False

    def _has_replayed(self) -> bool:
        return self.steps > 1


def test_a_new_epoch_is_a_new_term() -> None:
    service = Counting()
    service.round()
    service.round()
    service.store.commit_log.max_offset, service.metadata.epoch = 30, 2
    service.round()
    assert service.terms == [10, 30]


def test_a_closed_gate_pauses_the_term_and_the_end_of_mastership_ends_it() -> None:
    service = Counting()
    service.round()
    for field, value in (("writable", False), ("lease_is_over", True)):
        before = getattr(service.gate, field)
        setattr(service.gate, field, value)
        assert not service.round() and service.steps == 1
        setattr(service.gate, field, before)
    service.round()
    assert (service.steps, service.terms) == (2, [10])
    service.store.is_master = False
    service.round()
    service.store.is_master = True
    service.round()
    assert (service.steps, service.terms) == (3, [10, 10])


async def test_it_is_ready_when_the_log_of_its_predecessors_has_been_read() -> None:
    service = Counting()
    assert not await service.ready(0)
    service.round()
    assert not service.is_ready
    service.round()
    assert await service.ready(0)
    service.metadata.epoch = 2
    assert not service.is_ready, "the state is of the last term"
    service.gate.writable = False
    assert not await asyncio.wait_for(service.ready(60_000), 5), "no longer than writes are taken"


async def test_after_an_error_the_service_starts_over() -> None:
    service = Counting()
    service.round()
    service.error = ValueError("a record")
    with pytest.raises(ValueError):
        await service.run()
    service.error = None
    service.round()
    assert service.terms == [10, 10]


def test_marks_count_when_the_log_is_safe() -> None:
    marks: SafeMarks[str] = SafeMarks(2)
    marks.add(10, "a")
    marks.add(20, "b")
    marks.add(30, "c")  # b gives way
    assert len(marks) == 2
    assert list(marks.take(9)) == []
    assert list(marks.take(29)) == ["a"]
    assert list(marks.take(30)) == ["c"] and not marks
    all_count: SafeMarks[int] = SafeMarks(None)
    for end in range(5_000):
        all_count.add(end, end)
    assert list(all_count.take(9_999)) == list(range(5_000))
