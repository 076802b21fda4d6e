"""A name server and a broker inside the test process: nothing to install, no port to choose, no clean-up.

    with TestBroker() as broker, BlockingProducer(broker.namesrv_addr) as producer:
        producer.send(Message("orders", b"1"))

They are the real servers, in a separate thread with its own event loop, so tests may block, and may use any
asyncio plugin or none. The pytest fixtures are in pytest_keelmq/plugin.py.
"""

import asyncio
import contextlib
import tempfile
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from broker.app.broker import Broker
from broker.config.broker_config import BrokerConfig
from keelmq.client import PullError, PullStatus
from keelmq.client.admin import AdminClient, AdminError
from keelmq.client.consumer.pull_consumer import PullConsumer
from keelmq.client.message import MessageExt
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Ok
from keelmq.remoting.operations.broker_metadata import UPDATE_AND_CREATE_TOPIC, CreateTopicRequest
from namesrv.app import Namesrv
from namesrv.config import NamesrvConfig

HOST = "127.0.0.1"
START_TIMEOUT_S = 30.0
MESSAGES_TIMEOUT_S = 10.0
STEP_S = 0.005
COMMIT_LOG_FILE_BYTES = 16 * 1024 * 1024
CONSUME_QUEUE_FILE_BYTES = 200_000
QUICK_LEVELS = " ".join(["1s"] * 18)
"""A value for `messageDelayLevel`: retries and delays short enough for a test."""

T = TypeVar("T")


class TestBroker:
    """`settings`: RocketMQ's keys of a broker, for example {"enablePropertyFilter": "true"}. `directory`: of
    the store; None: a temporary one, which is removed at the end. A topic is created by its first message, or
    by create_topic()."""

    __test__ = False  # otherwise pytest would collect it as a test class

    def __init__(self, directory: Path | None = None, settings: Mapping[str, object] | None = None) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="keelmq-") if directory is None else None
        self._directory = Path(self._temporary.name) if self._temporary is not None else directory
        self._settings = dict(settings or {})
        self._thread = threading.Thread(target=self._main, name="keelmq test broker", daemon=True)
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._serving: asyncio.Task[None] | None = None
        self._problem: BaseException | None = None
        self.namesrv_addr = self.broker_addr = ""
        """host:port of the name server, which clients need, and of the broker."""

    def __enter__(self) -> Self:
        """Returns when clients can find the broker.

        Raises the error that prevents the start, for example for an invalid setting, or TimeoutError.
        """
        self._thread.start()
        if not self._ready.wait(START_TIMEOUT_S):
            self._give_up()
            raise TimeoutError(f"the test broker did not start within {START_TIMEOUT_S:.0f} s")
        if self._problem is not None:
            self._join()
            raise self._problem
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._loop is not None and self._stop is not None:
            with contextlib.suppress(RuntimeError):  # it ended by itself: its loop is closed
                self._loop.call_soon_threadsafe(self._stop.set)
        self._join()
        if self._problem is not None:
            raise self._problem

    def create_topic(self, name: str, *, queues: int = 4) -> None:
        """Creates a topic. When it returns, the broker and the name server's routes have it.

        Blocks: in a coroutine use `await asyncio.to_thread(broker.create_topic, name)`. Raises ValueError:
        the broker refuses the topic.
        """
        __tracebackhide__ = True
        self._run(self._create_topic(name, queues))

    def messages(
        self, topic: str, count: int | None = None, *, timeout_s: float = MESSAGES_TIMEOUT_S
    ) -> list[MessageExt]:
        """Returns all messages that are stored in the topic, oldest first, consumed or not.

        Dead letters are in "%DLQ%<group>". `count`: waits until the topic has that many. Raises
        AssertionError: it has fewer after `timeout_s`. Blocks, like create_topic().
        """
        __tracebackhide__ = True
        found = self._run(self._messages(topic, count, timeout_s), timeout_s + START_TIMEOUT_S)
        if count is not None and len(found) < count:
            bodies = ", ".join(repr(message.body[:40]) for message in found[:10])
            raise AssertionError(
                f"{len(found)} messages in {topic} after {timeout_s:g} s, not {count}: [{bodies}]"
            )
        return found

    def __repr__(self) -> str:
        return f"<TestBroker {self.broker_addr or 'not started'}, name server {self.namesrv_addr}>"

    # -- in the servers' thread ---------------------------------------------------------------------------

    def _main(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that owns this object
            self._problem = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._serving = asyncio.current_task()
        assert self._directory is not None
        name_server = Namesrv(
            NamesrvConfig.model_validate(
                {
                    "listenPort": 0,
                    "httpPort": -1,
                    "bindAddress": HOST,
                    "kvConfigPath": self._directory / "kvConfig.json",
                }
            )
        )
        async with name_server:
            self.namesrv_addr = "{}:{}".format(*name_server.address)
            async with Broker(self._broker_config(self._directory / "store")) as broker:
                self.broker_addr = broker.address
                name = broker.config.broker_name
                await _until(lambda: _is_registered(self.namesrv_addr, name))
                self._ready.set()
                await self._stop.wait()

    def _broker_config(self, store: Path) -> BrokerConfig:
        return BrokerConfig.model_validate(
            {
                "brokerName": "test-broker",
                "namesrvAddr": self.namesrv_addr,
                "bindAddress": HOST,
                "brokerIP1": HOST,
                "listenPort": 0,
                "httpPort": -1,
                "storePathRootDir": store,
                "mappedFileSizeCommitLog": COMMIT_LOG_FILE_BYTES,
                "mappedFileSizeConsumeQueue": CONSUME_QUEUE_FILE_BYTES,
                "telemetryEnable": False,
                **self._settings,
            }
        )

    async def _create_topic(self, name: str, queues: int) -> None:
        client = RemotingClient()
        try:
            header = CreateTopicRequest(
                topic=name, default_topic="TBW102", read_queue_nums=queues, write_queue_nums=queues, perm=6
            )
            outcome = await client.call(self.broker_addr, UPDATE_AND_CREATE_TOPIC, header)
            if not isinstance(outcome, Ok):
                raise ValueError(f"topic {name}: {outcome.remark}")
            await _until(lambda: _has_route(self.namesrv_addr, name))
        finally:
            await client.close()

    async def _messages(self, topic: str, count: int | None, timeout_s: float) -> list[MessageExt]:
        """Returns the messages as soon as there are `count`, or after `timeout_s`."""
        found: list[MessageExt] = []

        async def enough() -> bool:
            found[:] = await _stored(reader, topic)
            return count is None or len(found) >= count

        async with PullConsumer(self.namesrv_addr, "CID_KEELMQ_TESTING") as reader:
            with contextlib.suppress(TimeoutError):
                await _until(enough, timeout_s)
        return found

    # -- in the test's thread ----------------------------------------------------------------------------

    def _run(self, coroutine: Coroutine[Any, Any, T], timeout_s: float = START_TIMEOUT_S) -> T:
        __tracebackhide__ = True
        if self._loop is None or self._loop.is_closed():
            coroutine.close()
            raise RuntimeError("the TestBroker is not running: use it inside its `with` block")
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(timeout_s)

    def _give_up(self) -> None:
        """Cancels a start that takes too long."""
        if self._loop is not None and self._serving is not None:
            with contextlib.suppress(RuntimeError):  # it ended by itself: its loop is closed
                self._loop.call_soon_threadsafe(self._serving.cancel)
        self._join()

    def _join(self) -> None:
        self._thread.join(START_TIMEOUT_S)
        if self._thread.is_alive():
            raise TimeoutError(f"the test broker did not stop within {START_TIMEOUT_S:.0f} s")
        if self._temporary is not None:
            self._temporary.cleanup()


async def _until(condition: Callable[[], Awaitable[bool]], timeout_s: float = START_TIMEOUT_S) -> None:
    async with asyncio.timeout(timeout_s):
        while True:
            if await condition():
                return
            await asyncio.sleep(STEP_S)


async def _stored(reader: PullConsumer, topic: str) -> list[MessageExt]:
    """Returns all messages of a topic; none if it does not exist yet."""
    found: list[MessageExt] = []
    try:
        for queue in await reader.fetch_queues(topic):
            offset = await reader.min_offset(queue)
            while True:
                result = await reader.pull(queue, offset)
                found += result.messages
                if result.status is PullStatus.NO_NEW_MSG or result.next_begin_offset <= offset:
                    break
                offset = result.next_begin_offset
    except PullError as error:
        if error.code != ResponseCode.TOPIC_NOT_EXIST:
            raise
    return sorted(found, key=lambda message: message.physical_offset)


async def _is_registered(namesrv_addr: str, broker_name: str) -> bool:
    async with AdminClient() as admin:
        return broker_name in (await admin.name_servers.cluster_info(namesrv_addr)).broker_addr_table


async def _has_route(namesrv_addr: str, topic: str) -> bool:
    try:
        async with AdminClient() as admin:
            return bool((await admin.name_servers.topic_route(namesrv_addr, topic)).queue_datas)
    except AdminError:
        return False
