"""RocketMQ's C++ client (PyPI `rocketmq`) as a process of its own: a mistake in the protocol kills it.

What to be comes as one JSON argument, messages to send come as JSON lines, and what happened goes out as
JSON lines. See drivers.py.
"""

import contextlib
import json
import os
import sys
import threading
import time
from typing import Any

from rocketmq.client import Message, Producer, PullConsumer, PushConsumer, RecvMessage
from rocketmq.ffi import MessageModel, _CConsumeStatus

_lock = threading.Lock()


def say(event: dict[str, Any]) -> None:
    with _lock:
        sys.stdout.write(json.dumps(event) + "\n")
        sys.stdout.flush()


def message_of(order: dict[str, Any]) -> Any:
    message = Message(order["topic"])
    message.set_tags(order.get("tag", ""))
    message.set_body(order["body"])
    if "keys" in order:
        message.set_keys(order["keys"])
    if "level" in order:
        message.set_delay_time_level(order["level"])
    return message


def sign(client: Any, options: dict[str, Any]) -> None:
    """Without credentials the library signs as well: as nobody, with an empty key."""
    if "accessKey" in options:
        client.set_session_credentials(options["accessKey"], options["secretKey"], "CLOUD")


def produce(options: dict[str, Any]) -> None:
    producer = Producer(options["group"], timeout=3_000)
    producer.set_namesrv_addr(options["namesrv"])
    sign(producer, options)
    producer.start()
    say({"ready": True})
    for line in sys.stdin:
        order = json.loads(line)
        try:
            if "batch" in order:
                result = producer.send_batch([message_of({**order, "body": body}) for body in order["batch"]])
            elif "shard" in order:
                result = producer.send_orderly(message_of(order), order["shard"])
            else:
                result = producer.send_sync(message_of(order))
            say(
                {
                    "sent": order.get("body", order.get("batch")),
                    "status": result.status.name,
                    "offset": result.offset,
                }
            )
        except Exception as error:  # noqa: BLE001 - told to the test
            say({"failed": order.get("body", order.get("batch")), "why": str(error)})
    producer.shutdown()


def consume(options: dict[str, Any]) -> None:
    model = MessageModel.BROADCASTING if options.get("broadcast") else MessageModel.CLUSTERING
    consumer = PushConsumer(options["group"], orderly=options.get("orderly", False), message_model=model)
    sign(consumer, options)
    consumer.set_namesrv_addr(options["namesrv"])
    consumer.set_instance_name(options["group"])
    consumer.subscribe(options["topic"], lambda message: None, options.get("expression", "*"))

    def handle(_: object, handle: Any) -> int:
        """Status by value: the library's own wrapper turns an exception into a traceback on stderr."""
        message = RecvMessage(handle)
        body = message.body.decode()
        say(
            {
                "got": body,
                "topic": message.topic,
                "tag": (message.tags or b"").decode(),
                "keys": (message.keys or b"").decode(),
                "queueId": message.queue_id,
                "offset": message.queue_offset,
                "times": message.reconsume_times,
                "at": int(time.time() * 1000),
            }
        )
        status = (
            _CConsumeStatus.RECONSUME_LATER if body.startswith("poison") else _CConsumeStatus.CONSUME_SUCCESS
        )
        return int(status.value)

    consumer._register_callback(handle)
    consumer.start()
    say({"ready": True})
    for _ in sys.stdin:
        pass
    consumer.shutdown()


def pull(options: dict[str, Any]) -> None:
    """Everything that there is, once per line of input."""
    consumer = PullConsumer(options["group"])
    sign(consumer, options)
    consumer.set_namesrv_addr(options["namesrv"])
    consumer.start()
    say({"ready": True})
    for _ in sys.stdin:
        bodies = [
            message.body.decode()
            for message in consumer.pull(options["topic"], options.get("expression", "*"))
        ]
        say({"pulled": bodies})
    consumer.shutdown()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        chosen = json.loads(sys.argv[1])
        {"producer": produce, "consumer": consume, "puller": pull}[chosen["kind"]](chosen)
    sys.stdout.flush()
    os._exit(0)  # the library's threads may outlive its shutdown()
