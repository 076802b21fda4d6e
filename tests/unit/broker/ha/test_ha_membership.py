"""Who gets a log: real masters and slaves over loopback, among anonymous clients with sockets."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvloop
from msgspec.structs import replace

from broker.ha.core import hello
from broker.ha.core.frames import Ack, SlaveHandshake
from broker.ha.core.hello import HEAD, Group, SlaveHello, packet
from broker.ha.ports import HaSettings
from broker.ha.security import HaSecurity
from broker.ha.service import HaService
from keelmq.security.core.address_patterns import parse_pattern
from keelmq.security.signer import Credentials
from tests.unit.broker.ha.test_ha_service import FAST, Broker, Controller, dialling, same, until

FIXTURES = Path(__file__).parents[3] / "fixtures" / "ha"
NAMES = {"cluster": "c", "broker_name": "b"}
MEMBER = HaSecurity(**NAMES, credentials=Credentials("member", "the secret"), required=True)
WRONG = replace(MEMBER, credentials=Credentials("member", "a guess"))
PLAIN = HaSecurity()
FIRST = SlaveHandshake(2).encode() + Ack(0).encode()
"""With these 28 bytes anybody read the whole log."""


class Member(Broker):
    """A Broker whose HA links are secured."""

    def __init__(
        self,
        root: Path,
        controller: Controller,
        broker_id: int,
        security: HaSecurity,
        settings: HaSettings = FAST,
    ) -> None:
        self.security = security
        super().__init__(root, controller, broker_id, settings)

    def new_service(self, **options: Any) -> HaService:
        return super().new_service(security=self.security, **options)

    @property
    def last_reason(self) -> str:
        return "" if self.service.client is None else self.service.client.last_reason


@asynccontextmanager
async def members(
    tmp_path: Path, *securities: HaSecurity, settings: HaSettings = FAST
) -> AsyncIterator[list[Member]]:
    """Brokers 1, 2, ... that are secured in these ways. The first one leads."""
    controller = Controller({1})
    brokers = [
        Member(tmp_path / str(broker_id), controller, broker_id, security, settings)
        for broker_id, security in enumerate(securities, 1)
    ]
    for broker in brokers:
        await broker.service.start()
    try:
        await brokers[0].lead(1)
        yield brokers
    finally:
        for broker in brokers:
            await broker.service.stop()
            broker.store.close()


class AnonymousPeer:
    """A socket at a master's HA port."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def at(cls, master: Member, data: bytes = b"") -> "AnonymousPeer":
        anonymous = cls(*await asyncio.open_connection(*master.service.address))
        anonymous.writer.write(data)
        return anonymous

    async def told(self) -> bytes:
        """All that it gets until the master closes."""
        async with asyncio.timeout(5):
            try:
                return await self.reader.read()
            except ConnectionError:
                return b""
            finally:
                self.writer.close()


def start_of(security: HaSecurity, broker_id: int = 2) -> tuple[SlaveHello, bytes]:
    group = security.group
    assert group is not None
    side = SlaveHello(group, broker_id, nonce=b"s" * 32, binding=b"", now_ms=0)
    return side, side.start()


async def replicate(tmp_path: Path) -> None:
    async with members(tmp_path, MEMBER, MEMBER) as (master, slave):
        master.put(count=700)  # more than one file
        await slave.follow(master, 1)
        await until(lambda: master.in_sync() == [1, 2], "joins")
        master.put()
        await until(lambda: same(master, slave), "same logs")
        (link,) = master.service.links.values()
        assert link.proven_id == link.slave_id == 2
        assert not master.service.server.refused
        await slave.lead(2)
        await master.follow(slave, 2)
        await until(lambda: slave.in_sync() == [1, 2], "and the other way round")


async def test_members_replicate(tmp_path: Path) -> None:
    await replicate(tmp_path)


def test_members_replicate_on_the_loop_of_production(tmp_path: Path) -> None:
    uvloop.run(replicate(tmp_path))


# -- anonymous clients -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (FIRST, hello.NO_CREDENTIALS),
        (FIRST[:3], hello.NO_CREDENTIALS),
        (start_of(WRONG)[1], hello.WRONG_CREDENTIALS),
        (start_of(replace(MEMBER, broker_name="other"))[1], hello.OTHER_GROUP),
        (HEAD.pack(hello.MAGIC, hello.VERSION, hello.HELLO, 0xFFFF) + bytes(9_000), hello.MALFORMED),
        (b"KMQH" * 20_000, hello.MALFORMED),
        (b"\x16\x03\x01" + bytes(200), hello.NOT_CONFIGURED),
    ],
)
async def test_an_anonymous_client_gets_nothing(
    tmp_path: Path, data: bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[tuple[str, bool, str]] = []

    def tell(what: str, *, address: str, is_tls: bool, remark: str) -> None:
        assert what == "HA_LINK"
        told.append((address.rpartition(":")[0], is_tls, remark))

    async with members(tmp_path, replace(MEMBER, audit=SimpleNamespace(refused=tell))) as (master,):
        master.put(b"private", 10)
        caplog.set_level(logging.WARNING)
        anonymous_clients = [await AnonymousPeer.at(master, data) for _ in range(5)]
        for anonymous in anonymous_clients:
            assert await anonymous.told() == b""
        assert master.service.server.refused == {reason: 5}
        assert (master.service.server.connection_count, dict(master.service.links), master.in_sync()) == (
            0,
            {},
            [1],
        )
        lines = [line for line in caplog.messages if "refused" in line]
        assert len(lines) == 1 and "127.0.0.1:" in lines[0], "not one for each"
        assert [each[:2] for each in told] == [("127.0.0.1", False)] * 5 and all(each[2] for each in told)


async def test_an_anonymous_client_that_is_slow_or_silent_is_closed_at_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hello, "DEADLINE_MS", 300)
    start = start_of(MEMBER)[1]
    async with members(tmp_path, MEMBER) as (master,):
        silent, partial = await AnonymousPeer.at(master), await AnonymousPeer.at(master, start[:-1])
        challenged, slow = await AnonymousPeer.at(master, start), await AnonymousPeer.at(master)

        async def drip() -> None:
            for byte in start[:-1] * 100:
                if slow.writer.is_closing():
                    return
                slow.writer.write(bytes([byte]))
                await asyncio.sleep(0.01)

        dripping = asyncio.create_task(drip())
        for anonymous in (silent, partial, slow):
            assert await anonymous.told() == b""
        await dripping
        assert len(await challenged.told()) == HEAD.size + 64, "it has replayed a hello, and gets no more"
        assert master.service.server.refused == {hello.TIMED_OUT: 4}


class Relay:
    """Passes on what a slave and a master say to each other, and writes it down."""

    def __init__(self) -> None:
        self.up, self.down = bytearray(), bytearray()

    @asynccontextmanager
    async def to(self, master: Member) -> AsyncIterator[tuple[str, int]]:
        async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kept: bytearray) -> None:
            try:
                while data := await reader.read(65_536):
                    kept += data
                    writer.write(data)
            finally:
                writer.close()

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            its_reader, its_writer = await asyncio.open_connection(*master.service.address)
            await asyncio.gather(
                pump(reader, its_writer, self.up), pump(its_reader, writer, self.down), return_exceptions=True
            )

        async with listening(connected) as address:
            yield address


@asynccontextmanager
async def listening(
    connected: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]], **options: Any
) -> AsyncIterator[tuple[str, int]]:
    server = await asyncio.start_server(connected, "127.0.0.1", 0, **options)
    try:
        yield server.sockets[0].getsockname()
    finally:
        server.close()


async def follow_at(slave: Member, address: tuple[str, int], epoch: int = 1) -> None:
    await slave.service.become_slave(
        broker_id=slave.broker_id, epoch=epoch, master_ha_address=f"{address[0]}:{address[1]}"
    )


async def test_what_a_slave_has_said_is_of_no_use_to_anybody_else(tmp_path: Path) -> None:
    relay = Relay()
    async with members(tmp_path, MEMBER, MEMBER) as (master, slave), relay.to(master) as address:
        master.put(b"private", 10)
        await follow_at(slave, address)
        await until(lambda: same(master, slave), "copied")
        recorded = bytes(relay.up)
        assert recorded.startswith(hello.MAGIC) and b"the secret" not in recorded + bytes(relay.down)
        (link,) = master.service.links.values()
        anonymous = await AnonymousPeer.at(master, recorded)
        told = await anonymous.told()
        assert len(told) <= HEAD.size + 64 and b"private" not in told
        assert master.service.server.refused == {hello.WRONG_CREDENTIALS: 1}
        assert list(master.service.links.values()) == [link]


async def test_nobody_takes_the_place_of_a_replica(tmp_path: Path) -> None:
    async with members(tmp_path, MEMBER, MEMBER) as (master, slave):
        await slave.follow(master, 1)
        await until(lambda: master.in_sync() == [1, 2], "joins")
        (link,) = master.service.links.values()
        history = len(master.controller.history)
        for data in (FIRST, start_of(WRONG)[1], start_of(MEMBER)[1] + bytes(40)):
            await (await AnonymousPeer.at(master, data)).told()
        end = master.put()
        await until(lambda: master.replicated[-1] == end, "its acks count")
        assert list(master.service.links.values()) == [link]
        assert len(master.controller.history) == history


async def test_a_member_is_the_broker_that_it_has_proved_to_be(tmp_path: Path) -> None:
    async with members(tmp_path, MEMBER, MEMBER) as (master, slave):
        await slave.follow(master, 1)
        await until(lambda: master.in_sync() == [1, 2], "joins")
        (link,) = master.service.links.values()
        side, start = start_of(MEMBER, broker_id=3)
        third = await AnonymousPeer.at(master, start)
        proof = side.receive_data(await third.reader.readexactly(HEAD.size + 64))
        assert proof is not None
        third.writer.write(proof + FIRST)
        assert await third.told() == b""
        assert list(master.service.links.values()) == [link]


async def test_a_slave_with_another_secret_never_joins(tmp_path: Path) -> None:
    async with members(tmp_path, MEMBER, WRONG) as (master, slave):
        master.put()
        await slave.follow(master, 1)
        await until(lambda: master.service.server.refused[hello.WRONG_CREDENTIALS] > 1, "it tries again")
        assert "member credentials the same" in slave.last_reason
        assert slave.log_bytes() == b"" and master.in_sync() == [1]
        slave.security = MEMBER
        await slave.restart()
        await slave.follow(master, 1)
        await until(lambda: same(master, slave), "with the right one it does")


# -- false masters -----------------------------------------------------------------------------------------


JAVA_MASTER = (FIXTURES / "link-1.master-to-slave.bin").read_bytes()
FALSE_CHALLENGE = packet(hello.CHALLENGE, bytes(64))


@pytest.mark.parametrize("answer", [JAVA_MASTER, FALSE_CHALLENGE, FALSE_CHALLENGE[:10], b""])
async def test_a_false_master_is_not_followed(
    tmp_path: Path, answer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hello, "DEADLINE_MS", 300)
    heard: list[bytes] = []

    async def false_master(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        start = await reader.readexactly(len(start_of(MEMBER)[1]))
        writer.write(answer)
        try:
            heard.append(start + await reader.read())
        except ConnectionError:
            heard.append(start)
        finally:
            writer.close()

    async with members(tmp_path, PLAIN, MEMBER) as (_, slave), listening(false_master) as address:
        await follow_at(slave, address)
        await until(lambda: len(heard) > 1, "it hangs up, and tries again")
        assert all(len(each) == len(start_of(MEMBER)[1]) for each in heard), "no proof, no handshake"
        assert slave.log_bytes() == b"" and not slave.service.epochs
        assert slave.service.client is not None and not slave.service.client.connected
        assert "its membership" in slave.last_reason


async def test_a_role_change_does_not_wait_for_a_master_that_is_silent(tmp_path: Path) -> None:
    connected = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        connected.set()
        await reader.read()
        writer.close()

    async with members(tmp_path, MEMBER, MEMBER) as (master, slave), listening(silent) as address:
        await follow_at(slave, address)
        await asyncio.wait_for(connected.wait(), 5)
        async with asyncio.timeout(2):
            await slave.follow(master, 1)
        await until(lambda: same(master, slave), "the next master is followed")


# -- brokers of RocketMQ, and the introduction of credentials ----------------------------------------------


def java_like(broker_id: int) -> bytes:
    """The bytes that a slave of RocketMQ 5.1.4 has sent, up to its first ack, with another id."""
    first = (FIXTURES / "link-1.handshake-1.slave-to-master.bin").read_bytes()
    return first[:8] + broker_id.to_bytes(8, "big") + Ack(0).encode()


@pytest.mark.parametrize("pattern", ["127.0.0.1", "127.0.*", "10.0.0.9,127.0.0.1"])
async def test_a_slave_of_rocketmq_is_admitted_by_its_address(tmp_path: Path, pattern: str) -> None:
    security = replace(MEMBER, plain_slaves=(parse_pattern(pattern),))
    async with members(tmp_path, security, MEMBER) as (master, slave):
        master.put(b"for all", 3)
        await slave.follow(master, 1)
        java = await AnonymousPeer.at(master, java_like(3))
        await until(lambda: sorted(master.service.links) == [2, 3], "both replicate")
        assert master.service.links[3].proven_id is None
        async with asyncio.timeout(5):
            assert b"for all" in await java.reader.readuntil(b"for all")
        again = await AnonymousPeer.at(master, java_like(2))
        assert await again.told() == b"", "it cannot take the place of one that has proved itself"
        assert master.service.links[2].proven_id == 2
        java.writer.close()


async def test_no_other_address_is_admitted(tmp_path: Path) -> None:
    security = replace(MEMBER, plain_slaves=(parse_pattern("10.0.0.*"), parse_pattern("")))
    async with members(tmp_path, security) as (master,):
        assert await (await AnonymousPeer.at(master, java_like(3))).told() == b""
        assert master.service.server.refused == {hello.NO_CREDENTIALS: 1}


async def test_a_master_of_rocketmq_is_followed_if_that_is_wanted(tmp_path: Path) -> None:
    lenient = replace(MEMBER, plain_master=True)
    async with members(tmp_path, PLAIN, lenient, MEMBER) as (master, slave, strict):
        master.put(count=3)
        await strict.follow(master, 1)
        await slave.follow(master, 1)
        await until(lambda: same(master, slave), "without a hello, at its second attempt")
        assert dialling(strict) and strict.log_bytes() == b""
        assert master.service.server.refused[hello.NOT_CONFIGURED] >= 1


async def test_a_master_that_understands_neither_is_in_the_log_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with members(tmp_path, WRONG, replace(MEMBER, plain_master=True)) as (master, slave):
        await slave.follow(master, 1)
        ways = (hello.WRONG_CREDENTIALS, hello.NO_CREDENTIALS)
        await until(lambda: all(master.service.server.refused[way] > 1 for way in ways), "it tries both")
        lines = [line for line in caplog.messages if line.startswith("HA link to")]
        assert len(lines) == len(set(lines)) == 2


async def test_credentials_are_introduced_one_broker_at_a_time(tmp_path: Path) -> None:
    """In two rounds: with credentials, but lenient; then as they are by default. Replicas never stand still,
    whoever leads."""
    lenient = replace(MEMBER, required=False, plain_master=True)
    for number, (of_master, of_slave) in enumerate(
        [(PLAIN, lenient), (lenient, PLAIN), (lenient, lenient), (lenient, MEMBER), (MEMBER, lenient)]
    ):
        async with members(tmp_path / str(number), of_master, of_slave) as (master, slave):
            master.put(count=3)
            await slave.follow(master, 1)
            await until(lambda: same(master, slave), f"step {number}")
            (link,) = master.service.links.values()
            assert (link.proven_id is None) is (PLAIN in (of_master, of_slave))


def test_secrets_are_in_no_text() -> None:
    assert "the secret" not in f"{MEMBER} {MEMBER.group}"
    assert isinstance(MEMBER.group, Group) and PLAIN.group is None
