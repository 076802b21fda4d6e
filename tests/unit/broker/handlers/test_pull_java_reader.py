"""What a Java client gets of a broker with a damaged record: it gives up a body at the first record that it
cannot decode, goes on at nextBeginOffset, and does not check BODYCRC. So no reply may have a damaged
record."""

import shutil
from pathlib import Path

import pytest

from broker.admin.repair import inspect_store
from broker.app.broker import Broker
from broker.backup.mark_lost import LostRange, find_damage, mark_lost
from broker.message.record import decode
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Failed, Ok
from keelmq.remoting.operations.broker import PULL_MESSAGE, PullMessageRequest
from tests.support.java_reader import java_decodes
from tests.unit.broker.app.test_broker_app import config, send

COUNT, DAMAGED, PULLS_MAX = 60, 35, 50

pytest.importorskip("broker.store.damage", reason="the broker does not check what it sends")


class JavaConsumer:
    """Pulls as DefaultMQPushConsumer does. found: queue offsets and bodies that its listener got."""

    def __init__(self, client: RemotingClient, broker: Broker) -> None:
        self._client, self._broker = client, broker
        self.offset = 0
        self.found: list[tuple[int, bytes]] = []

    async def read(self) -> str:
        """Pulls until there is nothing new, or until the broker refuses; returns the refusal, or ""."""
        for _ in range(PULLS_MAX):
            header = PullMessageRequest(
                consumer_group="g", topic="T", queue_id=0, queue_offset=self.offset, max_msg_nums=32
            )
            good = {ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY}
            outcome = await self._client.call(self._broker.address, PULL_MESSAGE, header, good=good)
            if isinstance(outcome, Failed):
                return outcome.remark
            assert isinstance(outcome, Ok)
            messages = java_decodes(bytes(outcome.body or b""))
            self.found += [(each.queue_offset, each.body) for each in messages]
            assert outcome.header.next_begin_offset >= self.offset
            self.offset = outcome.header.next_begin_offset
            if outcome.code == ResponseCode.PULL_NOT_FOUND:
                return ""
        raise AssertionError(f"{PULLS_MAX} pulls, and no end: at {self.offset}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "count", "content"),
    [(0, 0, b""), (0, 1_000, b"\0"), (88, 1, b"\xff"), (0, 4, b"\xff"), (84, 4, b"\x7f")],
    ids=["whole", "zeros", "flipped body", "size", "body length"],
)
async def test_a_java_client_gets_every_good_message_and_no_other(
    tmp_path: Path, first: int, count: int, content: bytes
) -> None:
    client = RemotingClient()
    async with Broker(config(tmp_path)) as broker:
        for number in range(COUNT):
            assert isinstance(await send(client, broker, b"%d" % number * 20), Ok)
        views = broker.store.get("T", 0, DAMAGED, 1, 1 << 20, None).views
        record = decode(b"".join(views))
    path = tmp_path / "store" / "commitlog" / f"{0:020}"
    at = record.offset + first
    with path.open("r+b") as file:
        file.seek(at)
        file.write(content * min(count, record.size - first))
    bodies = {number: b"%d" % number * 20 for number in range(COUNT)}
    async with Broker(config(tmp_path)) as broker:
        java = JavaConsumer(client, broker)
        refusal = await java.read()
        if count:
            assert java.found == [(each, bodies[each]) for each in range(DAMAGED)], "those in front of it"
            assert java.offset == DAMAGED and f"message {DAMAGED} of topic T" in refusal
        else:
            assert refusal == "" and java.found == list(bodies.items())
    if count:
        report, lost = inspect_store(tmp_path / "store"), list[LostRange]()
        for _ in find_damage(report, lost):
            pass
        mark_lost(report, lost)
        async with Broker(config(tmp_path)) as broker:
            java = JavaConsumer(client, broker)
            assert await java.read() == ""
            del bodies[DAMAGED]
            assert java.found == list(bodies.items()), "all others"
    await client.close()
    shutil.rmtree(tmp_path / "store")
