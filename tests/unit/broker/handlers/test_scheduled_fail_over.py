"""A master is lost in the middle of what it has laid by: the next one goes on."""

from pathlib import Path

import pytest

from keelmq.remoting.operation import Ok
from keelmq.remoting.operations.timers import RECALL_MESSAGE, RecallMessageRequest
from keelmq.remoting.operations.transactions import (
    CHECK_TRANSACTION_STATE,
    END_TRANSACTION,
    EndTransactionRequest,
)
from tests.support.laid_by_parts import log_offset, trio, until

pytestmark = pytest.mark.timeout(90)

HALF = {"TRAN_MSG": "true", "PGROUP": "P"}


@pytest.mark.slow
async def test_a_fail_over_in_the_middle_of_transactions(tmp_path: Path) -> None:
    """One committed, one rolled back, one decided by its producer only after the fail-over, and one of which
    the new master asks. Each message comes once."""
    async with trio(tmp_path, transactionTimeOut=1_500, transactionCheckInterval=500) as group:
        questions = group.answer(CHECK_TRANSACTION_STATE)

        async def end(body: bytes, half_offset: int, at: int, decision: int) -> None:
            header = EndTransactionRequest(
                producer_group="P", tran_state_table_offset=half_offset, commit_log_offset=at,
                commit_or_rollback=decision, msg_id=body.decode(),
            )  # fmt: skip
            outcome = await group.client.call(group.master.address, END_TRANSACTION, header)
            assert isinstance(outcome, Ok), outcome

        bodies = [b"committed", b"rolled back", b"decided late", b"asked"]
        halves = [await group.send("Tx", body, **HALF, UNIQ_KEY=body.decode()) for body in bodies]
        await end(bodies[0], halves[0].queue_offset, log_offset(halves[0]), 8)
        await end(bodies[1], halves[1].queue_offset, log_offset(halves[1]), 12)
        assert group.bodies("Tx") == [b"committed"]

        await group.lose_master()
        await end(bodies[2], halves[2].queue_offset, log_offset(halves[2]), 8)
        await group.heartbeat("P")
        await until(lambda: questions, "the question")
        header, _ = questions[0]
        assert header.msg_id == "asked"
        await end(b"asked", header.tran_state_table_offset, header.commit_log_offset, 8)
        await until(lambda: group.bodies("Tx") == [b"committed", b"decided late", b"asked"], "all of them")

        await group.lose_master()
        await group.heartbeat("P")
        await until(lambda: group.deliveries.transactions.is_ready, "the queues are read")
        assert len(group.deliveries.transactions.state) == 0
        assert {header.msg_id for header, _ in questions} == {"asked"}
        assert group.bodies("Tx") == [b"committed", b"decided late", b"asked"]


@pytest.mark.slow
async def test_a_fail_over_in_the_middle_of_timers(tmp_path: Path) -> None:
    """Some went out before it, some are due while nobody is master, some later; one was taken back. Each
    comes once, in the order of their times."""
    async with trio(tmp_path, timerPrecisionMs=100, recallMessageEnable=True) as group:

        async def send(*delays: int) -> None:
            for delay_ms in delays:
                name = f"{delay_ms:05d}"
                await group.send("Timed", name.encode(), TIMER_DELAY_MS=delay_ms, UNIQ_KEY=name)

        await send(200, 400, 3_000, 1_500, 4_500, 2_500)
        handle = await group.send("Timed", b"taken back", TIMER_DELAY_MS=4_000, UNIQ_KEY="back")
        assert handle.recall_handle is not None
        header = RecallMessageRequest(topic="Timed", recall_handle=handle.recall_handle)
        outcome = await group.client.call(group.master.address, RECALL_MESSAGE, header)
        assert isinstance(outcome, Ok) and outcome.header.msg_id == "back"
        await until(lambda: len(group.bodies("Timed")) == 2, "the first ones")
        await until(lambda: group.settled, "their progress is everywhere")
        await group.lose_master()
        await send(300)
        await until(lambda: len(group.bodies("Timed")) >= 7, "all of them")
        bodies = group.bodies("Timed")
        assert sorted(bodies) == [b"00200", b"00300", b"00400", b"01500", b"02500", b"03000", b"04500"]
        due = [body for body in bodies if body != b"00300"]
        assert due == sorted(due)
