"""RocketMQ's Python client (gRPC) as a process: what to be comes as one JSON argument, messages to send come
as JSON lines, and what happened goes out as JSON lines. See drivers.py.

It runs in an environment of its own, .venv-client, with that client and nothing of this project.
"""

import json
import sys
import threading
import time
from typing import Any

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)
from rocketmq.grpc_protocol import FilterType

options = json.loads(sys.argv[1])
configuration = ClientConfiguration(
    options["endpoints"],
    Credentials(options.get("accessKey", ""), options.get("secretKey", "")),
    request_timeout=options.get("timeoutS", 3),
)
INVISIBLE_S = 10
_writing = threading.Lock()


def say(**event: Any) -> None:
    with _writing:
        sys.stdout.write(json.dumps(event) + "\n")
        sys.stdout.flush()


def got(message: Any) -> dict[str, Any]:
    return {
        "got": message.body.decode(),
        "topic": message.topic,
        "tag": message.tag or "",
        "keys": " ".join(message.keys or ()),
        "messageGroup": message.message_group or "",
        "priority": message.priority,
        "id": message.message_id,
        "properties": dict(message.properties or {}),
        "times": message.delivery_attempt - 1,
        "corrupted": message.corrupted,
        "at": int(time.time() * 1_000),
    }


def message_of(order: dict[str, Any]) -> Any:
    message = Message()
    message.topic, message.body = order["topic"], order["body"].encode()
    if order.get("tag"):
        message.tag = order["tag"]
    if order.get("keys"):
        message.keys = order["keys"]
    if order.get("messageGroup"):
        message.message_group = order["messageGroup"]
    if order.get("delayMs"):
        message.delivery_timestamp = int(time.time() + order["delayMs"] / 1_000)
    if "priority" in order:
        message.priority = order["priority"]
    for name, value in order.get("properties", {}).items():
        message.add_property(name, value)
    return message


class Checker(TransactionChecker):  # type: ignore[misc]
    def check(self, message: Any) -> Any:
        say(checked=message.body.decode())
        return TransactionResolution.COMMIT


def produce() -> None:
    producer = Producer(configuration, options.get("topics", ()), checker=Checker())
    producer.startup()
    say(ready=True)
    for line in sys.stdin:
        order = json.loads(line)
        try:
            if handle := order.get("recall"):
                say(recalled=producer.recall_message(order["topic"], handle))
                continue
            if how := order.get("transaction"):
                transaction = producer.begin_transaction()
                receipt = producer.send(message_of(order), transaction)
                if how == "commit":
                    transaction.commit()
                elif how == "rollback":
                    transaction.rollback()
            else:
                receipt = producer.send(message_of(order))
            say(
                sent=order["body"],
                id=receipt.message_id,
                offset=receipt.offset,
                recallHandle=receipt.recall_handle,
            )
        except Exception as error:  # noqa: BLE001 - told to the test
            say(failed=order.get("body"), why=f"{type(error).__name__}: {error}")
    producer.shutdown()


class Listener(MessageListener):  # type: ignore[misc]
    def consume(self, message: Any) -> Any:
        say(**got(message))
        if message.body.startswith(b"poison"):
            return ConsumeResult.FAILURE
        if message.body.startswith(b"slow"):
            time.sleep(options["slowS"])
            say(consumed=message.body.decode())
        return ConsumeResult.SUCCESS


def subscription() -> dict[str, Any]:
    kind = FilterType.SQL if options.get("isSql") else FilterType.TAG
    return {options["topic"]: FilterExpression(options.get("expression", "*"), kind)}


def push() -> None:
    consumer = PushConsumer(configuration, options["group"], Listener(), subscription())
    consumer.startup()
    say(ready=True)
    for line in sys.stdin:
        say(unknown=line)
    consumer.shutdown()


def simple() -> None:
    consumer = SimpleConsumer(configuration, options["group"], subscription(), options.get("awaitS", 5))
    consumer.startup()
    say(ready=True)
    ended = threading.Event()
    receiving = threading.Thread(target=receive, args=(consumer, ended))
    receiving.start()
    for line in sys.stdin:
        say(unknown=line)
    ended.set()
    receiving.join()
    consumer.shutdown()


def receive(consumer: Any, ended: threading.Event) -> None:
    while not ended.is_set():
        try:
            for message in consumer.receive(options.get("batch", 16), options.get("invisibleS", INVISIBLE_S)):
                say(**got(message))
                for _ in range(options.get("renewals", 0)):
                    consumer.change_invisible_duration(message, INVISIBLE_S)
                if not message.body.startswith(b"poison"):
                    consumer.ack(message)
                    say(acked=message.message_id)
        except Exception as error:  # noqa: BLE001 - told to the test
            say(error=f"{type(error).__name__}: {error}")
            ended.wait(0.5)


if __name__ == "__main__":
    {"producer": produce, "consumer": push, "simple": simple}[options["kind"]]()
