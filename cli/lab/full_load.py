"""Full load: senders that each keep one batch in flight, as fast as the master acknowledges them.

`python -m cli.lab.full_load NAMESRV_ADDR TOPIC MESSAGES` runs them in a separate process, which does not
slow down the process that measures: it sends until MESSAGES are acknowledged, and prints
"acked=N seconds=S failed=N" as its last line.
"""

import asyncio
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cli.lab.numbered_batches import BatchTemplate
from keelmq.client import MessageQueue, Producer, SendError, SendResult
from keelmq.client.message import Message, encode_properties
from keelmq.client.producer.send_attempt import PendingSend
from keelmq.runtime.clock import now_ms

SENDERS: Final = 4
BATCH_MESSAGES: Final = 2_000
TIMEOUT_MS: Final = 30_000
AFTER_ERROR_S: Final = 0.05


class BatchProducer(Producer):
    """A producer that sends batches which are encoded already."""

    async def send_encoded(
        self, topic: str, body: bytes, key: str, *, queue: MessageQueue | None, timeout_ms: int
    ) -> SendResult:
        """Sends one batch; key: UNIQ_KEY of its first message. The result has the queue offset of the first
        message. SendError."""
        properties = encode_properties(Message(topic, b""), key)
        pending = PendingSend(topic, body, 0, 0, properties, key, now_ms() + timeout_ms, batch=True)
        return await self._deliver(pending, queue, (), ())


@dataclass(slots=True)
class Sent:
    """Counts of a run of full load. seconds: from the first send to the last acknowledgement."""

    acked: int = 0
    seconds: float = 0.0
    failed: int = 0
    """Batches that ended in an error."""

    @property
    def rate(self) -> float:
        """Acknowledged messages per second."""
        return self.acked / self.seconds if self.seconds else 0.0

    def line(self) -> str:
        """Returns the last line that the process prints."""
        return f"acked={self.acked} seconds={self.seconds:.3f} failed={self.failed}"


def parse_line(line: str) -> Sent:
    """Returns the counts of a line that Sent.line() made. ValueError: it is another line."""
    try:
        fields = dict(part.split("=", 1) for part in line.split())
        return Sent(int(fields["acked"]), float(fields["seconds"]), int(fields["failed"]))
    except (KeyError, ValueError):
        raise ValueError(f"not a result of full load: {line!r}") from None


class FullLoad:
    """`messages`: to be acknowledged by all senders together, rounded up to whole batches."""

    def __init__(self, namesrv_addr: str, topic: str, *, messages: int) -> None:
        self._producer = BatchProducer(namesrv_addr, "keelmq-full-load")
        self._topic, self._left = topic, messages
        self.sent = Sent()

    async def run(self) -> Sent:
        """Sends until all messages are acknowledged; then closes the producer. A batch that ends in an error
        is counted, and another one is sent in its place."""
        begun = time.monotonic()
        try:
            await asyncio.gather(*(self._send_all(number, begun) for number in range(SENDERS)))
        finally:
            await self._producer.close()
        return self.sent

    async def _send_all(self, sender: int, begun: float) -> None:
        template, sent, batch = BatchTemplate(sender, BATCH_MESSAGES), self.sent, 0
        while self._left > 0:
            self._left -= BATCH_MESSAGES
            batch += 1
            try:
                await self._producer.send_encoded(
                    self._topic,
                    template.encode(batch),
                    template.key(batch),
                    queue=None,
                    timeout_ms=TIMEOUT_MS,
                )
            except SendError:
                sent.failed += 1
                self._left += BATCH_MESSAGES
                await asyncio.sleep(AFTER_ERROR_S)
                continue
            sent.acked += BATCH_MESSAGES
            sent.seconds = time.monotonic() - begun


def main(arguments: Sequence[str]) -> None:
    """Runs full load in this process and prints its counts."""
    import uvloop

    namesrv_addr, topic, messages = arguments
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        sent = runner.run(FullLoad(namesrv_addr, topic, messages=int(messages)).run())
    print(sent.line(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
