"""A broker with quick retries for tests of consumers, and listeners that write down what they get."""

import asyncio
from collections.abc import Callable, Iterator

import pytest

from keelmq.client import Message, MessageExt, Producer
from pytest_keelmq.cluster import QUICK_LEVELS, TestBroker

DEADLINE_S = 20.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestBroker]:
    """Shared by the tests of a module: each takes another topic and group."""
    settings = {"messageDelayLevel": QUICK_LEVELS, "enablePropertyFilter": True}
    with TestBroker(tmp_path_factory.mktemp("broker"), settings) as running:
        yield running


async def until(condition: Callable[[], bool], what: str = "the condition") -> None:
    try:
        async with asyncio.timeout(DEADLINE_S):
            while True:
                if condition():
                    return
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"{what} did not come true in {DEADLINE_S:.0f} s") from None


class Seen:
    """A listener. `fail`: messages that it raises for, asked anew each time."""

    def __init__(self, fail: Callable[[MessageExt], BaseException | None] = lambda _: None) -> None:
        self.messages: list[MessageExt] = []
        self.calls: list[int] = []
        self._fail = fail
        self.gate = asyncio.Event()
        self.gate.set()
        self.running = self.running_max = 0

    async def __call__(self, messages: tuple[MessageExt, ...]) -> None:
        self.running += 1
        self.running_max = max(self.running_max, self.running)
        try:
            await self.gate.wait()
            await asyncio.sleep(0)
            self.calls.append(len(messages))
            for message in messages:
                self.messages.append(message)
                error = self._fail(message)
                if error is not None:
                    raise error
        finally:
            self.running -= 1

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]

    async def has(self, count: int) -> list[bytes]:
        await until(lambda: len(self.messages) >= count, f"{count} messages (there are {len(self.messages)})")
        return self.bodies


async def send(broker: TestBroker, topic: str, count: int, *, key: str | None = None, start: int = 0) -> None:
    async with Producer(broker.namesrv_addr) as producer:
        for index in range(start, start + count):
            await producer.send(Message(topic, b"%d" % index), key=key)


def numbers(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % index for index in range(start, start + count)]
