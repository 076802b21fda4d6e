"""Raft members for tests: a list as state machine, members on loopback ports, a member without sockets."""

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from namesrv.plugins.controller.raft.codec import (
    Message,
    PreVoteGrant,
    ResponseVote,
    decode_message,
    encode,
)
from namesrv.plugins.controller.raft.member import Member
from namesrv.plugins.controller.replicator import RaftReplicator, RaftSettings
from tests.support.ports import free_ports

WAIT_S = 30.0
SECRET = bytes(range(32))


class ListMachine:
    """Appends every event; answers how many there are."""

    def __init__(self) -> None:
        self.events: list[bytes] = []

    def apply(self, event: bytes) -> object:
        if event == b"poison":
            raise ValueError("poison")
        self.events.append(event)
        return len(self.events)

    def snapshot(self) -> bytes:
        return msgspec.msgpack.encode(self.events)

    def restore(self, data: bytes) -> None:
        self.events = msgspec.msgpack.decode(data, type=list[bytes])


async def until(condition: Callable[[], bool], text: str = "condition") -> None:
    deadline = asyncio.get_running_loop().time() + WAIT_S
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, f"not within {WAIT_S} s: {text}"
        await asyncio.sleep(0.005)


class Group:
    """Members of one group in this process; use with `async with`."""

    def __init__(self, root: Path, size: int = 3, **settings: Any) -> None:
        self.root, self.settings = root, {"secret": SECRET, "sync": False} | settings
        self.own: dict[str, dict[str, Any]] = {}  # settings of one member
        self.members = {f"n{i}": ("127.0.0.1", port) for i, port in enumerate(free_ports(size))}
        self.machines: dict[str, ListMachine] = {}
        self.running: dict[str, RaftReplicator] = {}
        self.fatal: list[tuple[int, str]] = []

    async def __aenter__(self) -> "Group":
        for name in self.members:
            await self.start(name)
        return self

    async def __aexit__(self, *_: object) -> None:
        for name in list(self.running):
            await self.stop(name)

    def replicator(self, name: str, machine: ListMachine, **changes: Any) -> RaftReplicator:
        settings = self.settings | self.own.get(name, {}) | changes
        return RaftReplicator(
            machine,
            RaftSettings(
                self_id=name,
                members=self.members,
                directory=self.root / name,
                cluster_id="group",
                on_fatal=lambda code, text: self.fatal.append((code, text)),
                **settings,
            ),
        )

    async def start(self, name: str, **changes: Any) -> RaftReplicator:
        machine = ListMachine()
        replicator = self.replicator(name, machine, **changes)
        await replicator.start()
        self.machines[name], self.running[name] = machine, replicator
        return replicator

    async def stop(self, name: str) -> None:
        await self.running.pop(name).stop()

    async def active(self) -> RaftReplicator:
        await until(lambda: any(each.is_active for each in self.running.values()), "an active member")
        return next(each for each in self.running.values() if each.is_active)

    async def converged(self, count: int) -> None:
        machines = [self.machines[name] for name in self.running]
        await until(lambda: all(len(machine.events) == count for machine in machines), f"{count} everywhere")
        assert all(machine.events == machines[0].events for machine in machines)


class RecordedLinks:
    """In the place of Links: remembers what was sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, Message]] = []

    def send(self, member: str, frame: bytes) -> bool:
        self.sent.append((member, decode_message(frame)))
        return True

    def connected(self) -> list[str]:
        return []

    refused: dict[str, int] = {}  # noqa: RUF012
    differing_lists: set[str] = set()  # noqa: RUF012

    def tick(self) -> None: ...
    def close(self) -> None: ...
    def set_members(self, members: object) -> None: ...
    def drop(self, member: str, reason: str) -> None: ...


class QuietMember:
    """The real library, guard and journal of member n0 of three, driven by hand: no thread, no sockets."""

    def __init__(self, root: Path, **settings: Any) -> None:
        self.group = Group(root, **({"bootstrap": True} | settings))
        self.machine = ListMachine()
        self.links = RecordedLinks()
        self.replica = self.group.replicator("n0", self.machine)
        self.core = self.replica._open()
        self.member: Member = self.core.member
        assert self.member.links is not None
        self.member.links.close()
        self.member.links = self.links  # type: ignore[assignment]
        for name in ("n1", "n2"):
            self.member.link_up(name)
        self.core.election_deadline = float("inf")
        self.tick()
        self.links.sent.clear()

    def __enter__(self) -> "QuietMember":
        return self

    def __exit__(self, *_: object) -> None:
        self.core.close()
        self.replica.directory.close()

    def tick(self) -> None:
        self.core.doTick(0.0)

    def receive(self, sender: str, message: object) -> None:
        self.member.link_frame(sender, encode(message))

    def answers(self) -> list[tuple[str, Message]]:
        """What left since the last call, held acknowledgements included."""
        self.tick()
        sent, self.links.sent = self.links.sent, []
        return sent

    def log(self) -> list[tuple[int, int]]:
        return [(index, term) for _, index, term in self.core.log[:]]


def no_ops(first: int, last: int, term: int) -> tuple[tuple[bytes, int, int], ...]:
    return tuple((b"\x01", index, term) for index in range(first, last + 1))


def kinds(answers: Iterable[tuple[str, Message]]) -> list[str]:
    return [type(message).__name__ for _, message in answers]


def elect(member: QuietMember) -> None:
    """n0 asks, n1 grants and votes."""
    member.core.election_deadline = 0.0
    assert kinds(member.answers()) == ["PreVoteRequest", "PreVoteRequest"]
    member.receive("n1", PreVoteGrant(member.core.term))
    assert kinds(member.answers())[:2] == ["RequestVote", "RequestVote"]
    member.receive("n1", ResponseVote(member.core.term))
