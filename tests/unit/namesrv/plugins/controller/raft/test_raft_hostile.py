"""Anonymous clients at the raft port: floods, silence, slow bytes, no descriptors. The group goes on.

With a key as with certificates. What they say, and who they pretend to be: test_raft_attacks.py.
"""

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from namesrv.plugins.controller.raft.storage import files
from namesrv.plugins.controller.raft.storage.journal import Journal
from namesrv.plugins.controller.raft.transport import links
from namesrv.plugins.controller.replicator import Committed, RaftReplicator
from tests.support.raft_attackers import Outfit, TlsOutfit, talk_to, tls_client
from tests.support.raft_certificates import Authority
from tests.support.raft_group import until

MEBIBYTE = bytes(1024 * 1024)


@contextlib.asynccontextmanager
async def unverified_peer(
    address: tuple[str, int],
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(*address)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def flood(address: tuple[str, int], stop: asyncio.Event) -> int:
    """Connects and sends until the other side closes, again and again. How many bytes left."""
    sent = 0
    while not stop.is_set():
        with contextlib.suppress(OSError):
            async with unverified_peer(address) as (_, writer):
                for _ in range(30):
                    writer.write(MEBIBYTE)
                    await asyncio.wait_for(writer.drain(), 1.0)
                    sent += len(MEBIBYTE)
        await asyncio.sleep(0)
    return sent


async def test_a_flood_at_the_leader_costs_neither_leader_nor_memory(outfit: Outfit) -> None:
    async with outfit.group() as group:
        leader = await group.active()
        epoch, stop, loop = leader.epoch, asyncio.Event(), asyncio.get_running_loop()
        floods = [asyncio.create_task(flood(group.members[leader.self_id], stop)) for _ in range(3)]
        slowest = 0.0
        for count in range(100):
            started = loop.time()
            assert await leader.append(b"x") == Committed(count + 1)
            slowest = max(slowest, loop.time() - started)
        stop.set()
        await asyncio.gather(*floods)
        assert leader.epoch == epoch
        assert slowest < 2.0
        refused = leader.status()["refusedConnections"]
        assert len(refused) < 8, "one entry for each reason, not for each connection"


@pytest.mark.slow
async def test_many_handshakes_of_unverified_peers_cost_no_leader(tmp_path: Path) -> None:
    """Each costs the raft thread a signature; never more than PENDING_MAX of them between two heartbeats."""
    outfit = TlsOutfit(tmp_path)
    async with outfit.group() as group:
        leader = await group.active()
        epoch, stop = leader.epoch, asyncio.Event()
        evil = Authority(tmp_path / "evil").issue("n1")

        async def knock() -> int:
            count = 0
            while not stop.is_set():
                with contextlib.suppress(OSError):
                    async with talk_to(group.members[leader.self_id]) as talk:
                        channel = tls_client(evil, outfit.ca.path)
                        await talk.open(channel)
                        await talk.until_closed(channel)
                        count += 1
            return count

        knocks = [asyncio.create_task(knock()) for _ in range(8)]
        for count in range(100):
            assert await leader.append(b"x") == Committed(count + 1)
        stop.set()
        assert sum(await asyncio.gather(*knocks)) > 8
        assert leader.epoch == epoch
        refused = leader.status()["refusedConnections"]
        assert refused["certificate of another CA"] > 8 and len(refused) < 8


async def test_idle_and_slow_unverified_peers_are_closed(
    outfit: Outfit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "HANDSHAKE_S", 0.3)
    async with outfit.group() as group:
        leader = await group.active()
        address = group.members[leader.self_id]
        async with unverified_peer(address) as (idle, _), unverified_peer(address) as (slow, slow_writer):
            drops = [] if outfit.kind == "key" else [b"\x16", b"\x03", b"\x01", b"\x3f"]  # a long TLS record

            async def drip() -> None:
                while not slow_writer.is_closing():
                    slow_writer.write(drops.pop(0) if drops else b"\0")
                    await asyncio.sleep(0.02)

            dripping = asyncio.create_task(drip())
            for reader in (idle, slow):
                with contextlib.suppress(ConnectionResetError):
                    assert len(await asyncio.wait_for(reader.read(), 5)) <= 32  # our nonce, then the end
            dripping.cancel()
        # both were closed; on a busy machine one of them may have been another refusal
        assert leader.status()["refusedConnections"]["handshake took too long"] >= 1


@pytest.mark.slow
async def test_many_unverified_peers_leave_room_for_members(outfit: Outfit) -> None:
    async with outfit.group() as group:
        leader = await group.active()
        crowd = [
            socket.create_connection(group.members[leader.self_id]) for _ in range(links.PENDING_MAX * 2)
        ]
        try:
            await until(lambda: leader.status()["refusedConnections"].get("too many without HELLO", 0) > 20)
            other = next(name for name in group.running if name != leader.self_id)
            await group.stop(other)
            await group.start(other)
            assert await leader.append(b"x") == Committed(1)
            await group.converged(1)
        finally:
            for sock in crowd:
                sock.close()


class NoDescriptors:
    """accept() and socket() fail as they do when the limit is reached."""

    def __init__(self, real: Any) -> None:
        self.real, self.on, self.accepts = real, False, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def socket(self, *arguments: Any) -> Any:
        if self.on:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return Listening(self.real.socket(*arguments), self)


class Listening:
    def __init__(self, real: socket.socket, owner: NoDescriptors) -> None:
        self.real, self.owner = real, owner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def accept(self) -> Any:
        if self.owner.on:
            self.owner.accepts += 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return self.real.accept()


async def test_without_descriptors_the_member_waits_and_listens_again(
    outfit: Outfit, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = outfit.group()
    shortage = NoDescriptors(socket)
    monkeypatch.setattr(links, "socket", shortage)
    async with group:
        leader = await group.active()
        shortage.on = True
        async with unverified_peer(group.members["n0"]):
            await until(lambda: shortage.accepts >= 3, "it looks again")
            assert await leader.append(b"x") == Committed(1)
            assert shortage.accepts < 200, "not in a busy loop"
        shortage.on = False
        other: RaftReplicator = next(each for each in group.running.values() if each is not leader)
        await group.stop(other.self_id)
        await group.start(other.self_id)
        await group.converged(1)
        await until(lambda: len(group.running["n0"].status()["connected"]) == 2, "all linked again")


def test_a_vote_is_stored_with_the_last_descriptors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anonymous clients took all descriptors: a member that could not store its vote would have to end."""
    journal = Journal(tmp_path / "raft.journal", fatal=lambda code, text: pytest.fail(text))
    taken, real_open = [True], os.open

    def open_(*arguments: Any) -> int:
        if taken[0]:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return real_open(*arguments)

    real_release = files.spare_files.release

    def release() -> bool:
        taken[0] = False
        return real_release()

    with monkeypatch.context() as patched:
        patched.setattr(files.os, "open", open_)
        patched.setattr(files.spare_files, "release", release)
        journal.setCurrentTerm(3, "n1")
    assert not taken[0]
    journal.close()
    again = Journal(tmp_path / "raft.journal", fatal=lambda code, text: pytest.fail(text))
    assert (again.getCurrentTerm(), again.getVotedForNodeId()) == (3, "n1")
    again.close()
