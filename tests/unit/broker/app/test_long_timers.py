"""A whole broker: a timer that is due after its file of the log is old is still there when it is due."""

import os
from pathlib import Path

from broker.app.broker import Broker
from broker.message.delay_levels import TIMER_TOPIC
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.operation import Ok
from keelmq.remoting.operations.broker import SEND_MESSAGE_V2, SendMessageRequestV2
from tests.support.server_parts import until
from tests.unit.broker.app.test_broker_app import config, send


async def test_retention_rolls_a_timer(client: RemotingClient, tmp_path: Path) -> None:
    settings = {
        "delete_when": ";".join(map(str, range(24))), "clean_resource_interval": 100,
        "flush_interval_commit_log": 10, "timer_max_delay_sec": 20 * 86_400,
    }  # fmt: skip
    async with Broker(config(tmp_path, **settings)) as broker:
        properties = f"UNIQ_KEY\x01K\x02TIMER_DELAY_SEC\x01{10 * 86_400}"
        timer = SendMessageRequestV2(a="g", b="T", e=0, g=1, i=properties)
        assert isinstance(await client.call(broker.address, SEND_MESSAGE_V2, timer, b"later"), Ok)
        log = broker.store.commit_log
        while log.file_count < 3:
            assert isinstance(await send(client, broker, bytes(8_000)), Ok)
        first = sorted(log.directory.glob("0*"))[0]
        os.utime(first, (1, 1))
        await until(lambda: not first.exists(), "the file is deleted")
        queue = broker.store.find_queue(TIMER_TOPIC, 0)
        assert queue is not None and queue.unit(queue.max_offset - 1)[0] >= log.min_offset > 0
        assert broker.services.timers.rolled == 1 and broker.services.timers.waiting == 1
