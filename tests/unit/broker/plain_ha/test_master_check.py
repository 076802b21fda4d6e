"""What a slave makes of its master's answers about the log."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from broker.ha.ports import MasterHaAddress
from broker.plain_ha.master_check import MasterCheck
from broker.store.message_store import MessageStore
from broker.store.querying import last_record
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Empty, Failed, Ok, Operation, Outcome, Unknown, Wire
from keelmq.remoting.operations.broker import GET_BROKER_RUNTIME_INFO, VIEW_MESSAGE_BY_ID, CommitLogOffsets
from tests.support.store_parts import open_store, put_many

MASTER = "127.0.0.1:1"


class Master:
    """Answers 28 and 33 as told. `asked`: the codes of the requests."""

    def __init__(self, store: MessageStore) -> None:
        self.file_bytes: int | None = store.commit_log.file_bytes
        self.low, self.high = 0, store.commit_log.max_offset
        self.info: Outcome[Any] | None = None
        last = last_record(store)
        self.record: Outcome[Any] = Ok(Empty(), b"" if last is None else last[1])
        self.confirmed: int | None = None
        self.unverified: str | None = None
        self.asked: list[int] = []

    async def call(
        self, address: str, operation: Operation[Any, Any], header: Wire, **_: object
    ) -> Outcome[Any]:
        assert address == MASTER
        self.asked.append(operation.code)
        if operation is VIEW_MESSAGE_BY_ID:
            return self.record
        assert operation is GET_BROKER_RUNTIME_INFO
        if self.info is not None:
            return self.info
        table = {"commitLogMinOffset": str(self.low), "commitLogMaxOffset": str(self.high)}
        if self.confirmed is not None:
            table["confirmOffset"] = str(self.confirmed)
        return Ok(Empty(), CommitLogOffsets(table=table))

    async def find(self, address: str) -> MasterHaAddress | None:
        return None if self.unverified is not None else MasterHaAddress("127.0.0.1:2", self.file_bytes)

    async def unverified_peer(self) -> str | None:
        return self.unverified

    def check_of(self, store: MessageStore, address: str | None = MASTER) -> MasterCheck:
        return MasterCheck(
            cast(RemotingClient, self),
            store,
            master=lambda: address,
            find_master=self.find,
            unverified_peer=self.unverified_peer,
        )


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[MessageStore]:
    made = open_store(tmp_path)
    put_many(made, 5)
    made.set_confirm_offset(made.commit_log.max_offset)
    yield made
    made.close()


async def test_the_same_log(store: MessageStore) -> None:
    master = Master(store)
    assert await master.check_of(store).check() is None
    master.high += 1_000
    assert await master.check_of(store).check() is None
    assert master.asked == [28, 33] * 2


def lowest(master: Master) -> None:
    master.low = master.high - 1


CASES: dict[str, tuple[Any, str, bool]] = {
    "shorter": (lambda m: setattr(m, "high", m.high - 1), "does not have", True),
    "another record": (lambda m: setattr(m, "record", Ok(Empty(), b"other")), "differs", True),
    "no record there": (
        lambda m: setattr(m, "record", Failed(ResponseCode.SYSTEM_ERROR, "can not find")), "differs", True
    ),
    "deleted": (lowest, "has deleted", True),
    "files": (lambda m: setattr(m, "file_bytes", 1), "mappedFileSizeCommitLog", True),
    "an unverified peer": (lambda m: setattr(m, "unverified", "of another group"), "of another group", True),
    "no right": (
        lambda m: setattr(m, "record", Failed(ResponseCode.NO_PERMISSION, "no")), "does not show", False
    ),
    "silent": (lambda m: setattr(m, "info", Unknown("timeout")), "does not tell", False),
    "odd": (lambda m: setattr(m, "info", Ok(Empty(), CommitLogOffsets(table={}))), "does not tell", False),
    "not on its disk": (lambda m: setattr(m, "confirmed", m.high - 1), "has confirmed", False),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
async def test_answers(case: str, store: MessageStore) -> None:
    """A fault is an operator's work. Anything else may pass by itself."""
    change, says, is_fault = CASES[case]
    master = Master(store)
    change(master)
    refusal = await master.check_of(store).check()
    assert refusal is not None and says in refusal.reason and refusal.is_fault is is_fault


async def test_a_fault_is_not_looked_for_with_every_attempt(store: MessageStore) -> None:
    master = Master(store)
    master.high -= 1
    check = master.check_of(store)
    assert await check.check() == await check.check() is not None
    assert master.asked == [28]


async def test_an_unknown_master(tmp_path: Path, store: MessageStore) -> None:
    """Only an empty log follows whoever listens at haMasterAddress."""
    refusal = await Master(store).check_of(store, None).check()
    assert refusal is not None and not refusal.is_fault
    empty = open_store(tmp_path / "empty")
    assert await Master(empty).check_of(empty, None).check() is None
    empty.close()
