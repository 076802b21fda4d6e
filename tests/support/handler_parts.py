"""A broker's handlers without a broker: real store and topics, a loop made of a list, requests as bytes."""

import json
from collections.abc import Callable
from pathlib import Path

from broker.admission.pending_replies import PendingReplies
from broker.app.handlers import BrokerHandlers, bind_broker_operations
from broker.config.client_settings import ClientSettings
from broker.message.record import Record
from broker.message.record import decode as decode_record
from broker.metadata.service import Metadata
from broker.metadata.topics import TopicTable
from broker.put.message_writer import MessageWriter
from broker.store.message_store import MessageStore
from keelmq.remoting.command import RemotingCommand, decode
from keelmq.remoting.dispatch import Dispatcher, fast_path_key
from keelmq.remoting.operation import OperationTable
from keelmq.remoting.operations.route import TopicConfig
from tests.support.handler_context import handler_context, send_gate
from tests.support.store_parts import FakePeer, open_store


class Broker:
    """request() goes the way a connection takes: typed decoder first, the lenient way if that refuses."""

    def __init__(self, path: Path, *, auto_create: bool = True, pending_max: int = 100, **store: int) -> None:
        self.topics = TopicTable(
            path / "config" / "topics.json", broker_name="b", cluster_name="c", auto_create=auto_create
        )
        self.store: MessageStore = open_store(path, self.topics, commit_log_file_bytes=1 << 20, **store)
        self.topics.load()
        self.topics.update(TopicConfig(topic_name="TopicA", read_queue_nums=4, write_queue_nums=4))
        self.gate = send_gate(is_open=True)
        self.pending = PendingReplies(self.gate, pending_max)
        self.soon: list[Callable[[], None]] = []
        self.ticks = 0
        self.commits: list[tuple[str, str, int, int]] = []
        self.context = context = handler_context(
            self.store,
            self.topics,
            self.gate,
            self.pending,
            call_soon=self.soon.append,
            cluster_name="c",
            message_bytes_max=100_000,
            runtime_info=lambda: {"masterEpoch": "7"},
            commit_offset=lambda *commit: self.commits.append(commit),
        )
        self.writer = MessageWriter(
            self.store,
            self.gate,
            self.pending,
            call_soon=self.soon.append,
            end_of_tick=self._end_of_tick,
        )
        self.table = OperationTable()
        self.handlers: BrokerHandlers = bind_broker_operations(self.table, context, self.writer)
        self.dispatcher = Dispatcher(self.table, name="test")
        self.peer = FakePeer()

    # Handlers keep the settings, the pending replies and the resets that they began with. A program makes a
    # handler once; a test gives it others.

    def use_settings(self, settings: ClientSettings) -> None:
        self.context.settings = self.handlers.pull._settings = settings

    def use_pending(self, pending: PendingReplies) -> None:
        self.pending = self.handlers.send._pending = pending

    def use_metadata(self, metadata: Metadata) -> None:
        """For the offsets that operators reset, and for the commits of pulls."""
        self.handlers.pull._resets = metadata.resets.offsets
        self.context.resets, self.context.commit_offset = metadata.resets, metadata.commit_by_pull

    def _end_of_tick(self) -> None:
        self.ticks += 1
        if not self.gate.wait:
            self.store.set_confirm_offset(self.store.commit_log.max_offset)

    def tick(self) -> None:
        due, self.soon[:] = list(self.soon), []
        for callback in due:
            callback()

    def replicated(self) -> None:
        """All replicas have everything."""
        self.store.set_confirm_offset(self.store.commit_log.max_offset)
        self.pending.release(self.store.commit_log.max_offset)

    def request(
        self, code: int, ext: dict[str, object], body: bytes = b"", *, flag: int = 0, lenient: bool = False
    ) -> RemotingCommand | None:
        """The answer given at once, if any."""
        fields = {key: value for key, value in ext.items() if value is not None}
        if lenient:
            text = {key: str(value) for key, value in fields.items()}
            reply = self.dispatcher.request(RemotingCommand(code, 9, flag, None, text, body), self.peer)  # type: ignore[arg-type]
        else:
            header = json.dumps({"code": code, "extFields": fields, "flag": flag, "opaque": 9}).encode()
            decoder, handler, *_ = self.dispatcher.fast_path[fast_path_key(code)]
            try:
                reply = handler(decoder(header), body, self.peer)
            except Exception as error:  # noqa: BLE001 - as Connection does
                reply = self.dispatcher.fast_path_failed(error, header, body)
        return None if reply is None else decode(reply[4:])

    def answers(self) -> list[RemotingCommand]:
        """What was sent to the peer later; forgets it."""
        raw, found = b"".join(self.peer.sent), []
        self.peer.sent.clear()
        while raw:
            size = 4 + int.from_bytes(raw[:4], "big")
            found.append(decode(raw[4:size]))
            raw = raw[size:]
        return found

    def send(
        self, body: bytes = b"body", *, lenient: bool = False, flag: int = 0, **changed: object
    ) -> RemotingCommand | None:
        fields: dict[str, object] = {
            "a": "group", "b": "TopicA", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0",
            "i": "TAGS\x01TagA\x02UNIQ_KEY\x01AC11", "j": "0", "k": "false", "m": "false",
        }  # fmt: skip
        return self.request(310, fields | changed, body, lenient=lenient, flag=flag)

    def pull(
        self, offset: int, *, suspend_ms: int = 0, lenient: bool = False, **changed: object
    ) -> RemotingCommand | None:
        fields: dict[str, object] = {
            "consumerGroup": "g", "topic": "TopicA", "queueId": "0", "queueOffset": str(offset),
            "maxMsgNums": "32", "commitOffset": "0", "subVersion": "0",
            "sysFlag": "6" if suspend_ms else "4", "suspendTimeoutMillis": str(suspend_ms),
        }  # fmt: skip
        return self.request(11, fields | changed, lenient=lenient)


def last_record(broker: Broker) -> Record:
    at, view = 0, broker.store.commit_log.view(0, 1 << 20)
    while True:
        record = decode_record(view, at)
        at += record.size
        if at == len(view):
            return record
