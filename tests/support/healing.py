"""A group of stores that heal each other: 29047 goes from one to the other without a network."""

import random
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from broker.ha.core.epochs import Epochs
from broker.healing.log_reads import LogReads
from broker.healing.service import Healer
from broker.store.message_store import MessageStore
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import CommandError, Failed, Ok, Operation, Outcome, Reply
from keelmq.remoting.operations.store_copies import ReadLogRequest
from tests.support.store_parts import open_store, put


@dataclass
class Replica:
    """One store, with the epochs that it takes its log to have. places: (offset, end) of its records."""

    name: str
    store: MessageStore
    epochs: Epochs
    places: list[tuple[int, int]]

    def content(self) -> bytes:
        return log_of(self.store)

    def reads(self) -> LogReads:
        return LogReads(self.store, epochs=lambda: self.epochs, broker_name="b")


class DirectClient:
    """The `call` of a RemotingClient, to the replicas by their names. silent: of them, those that are down.
    foreign: those that do not know the request. forged: changes an answer on its way."""

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self._replicas = {each.name: each for each in replicas}
        self.silent: set[str] = set()
        self.foreign: set[str] = set()
        self.asked: list[tuple[str, int, int]] = []
        self.forged: Any = lambda reply: reply

    async def call(
        self,
        address: str,
        operation: Operation[Any, Any],
        header: ReadLogRequest,
        body: object = None,
        *,
        timeout_ms: int,
    ) -> Outcome[Any]:
        self.asked.append((address, header.start_offset, header.end_offset))
        if address in self.silent:
            return Failed(ResponseCode.RPC_SEND_TO_CHANNEL_FAILED, "cannot connect")
        if address in self.foreign:
            return Failed(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "no")
        try:
            reply: Reply = self.forged(await self._replicas[address].reads().read_log(header, None))  # type: ignore[arg-type]
        except CommandError as error:
            return Failed(error.code, error.remark)
        return Ok(reply.header, reply.body)


def healer_of(replica: Replica, client: DirectClient, peers: Sequence[str], **more: Any) -> Healer:
    async def others() -> Sequence[str]:
        return peers

    arguments: dict[str, Any] = {
        "broker_name": "b",
        "epochs": lambda: replica.epochs,
        "needs_epochs": True,
        "peers": others,
        "pause_s": 0,
    }
    return Healer(replica.store, client, **arguments | more)  # type: ignore[arg-type]


def log_of(store: MessageStore) -> bytes:
    """The log, as its readers see it."""
    log, at, parts = store.commit_log, store.commit_log.min_offset, list[bytes]()
    while view := log.view(at, log.file_bytes):
        parts.append(bytes(view))
        at += len(view)
    return b"".join(parts)


def flip(store: MessageStore, offset: int, mask: int = 0x40) -> None:
    """Flips bits of one byte of the log."""
    store.commit_log.view(offset, 1)[0] ^= mask


def group_of(root: Path, count: int, *, messages: int = 40, seed: int = 1, **settings: int) -> list[Replica]:
    """Equal replicas with three epochs. Their files have several records of different sizes, and two
    queues."""
    dice, places, starts = random.Random(seed), list[tuple[int, int]](), [(1, 0)]
    store = open_store(root / "0", **settings)
    for number in range(messages):
        if number in (messages // 3, messages // 2):
            starts.append((len(starts) + 1, store.commit_log.max_offset))
        body = b"%d:" % number + dice.randbytes(dice.choice([5, 60, 300]))
        offset, end, _ = put(store, body, queue_id=number % 2, tags=dice.choice(["", "red"]))
        places.append((offset, end))
    store.set_confirm_offset(store.commit_log.max_offset)
    store.close()
    for number in range(1, count):
        shutil.copytree(root / "0", root / str(number))
    return [
        Replica(
            str(each), open_store(root / str(each), master=False, **settings), Epochs.of(starts), list(places)
        )
        for each in range(count)
    ]
