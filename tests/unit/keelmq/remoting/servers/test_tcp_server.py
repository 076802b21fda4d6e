"""The TCP door: batches, both header types, errors, limits, back-pressure, idle and close."""

import asyncio
import logging
from typing import Any

import pytest

from keelmq.remoting import dispatch, write_buffers
from keelmq.remoting.command import RemotingCommand, SerializeType, encode
from keelmq.remoting.connection import Connection
from keelmq.remoting.operation import FastPath, LocalProtocolError, OperationTable
from keelmq.remoting.servers.tcp import TcpServer
from keelmq.runtime.config import ConfigError
from tests.support.server_parts import (
    FAST_PATH_CODE,
    address_of,
    fast_path_handler,
    lenient_fast_path,
    raw_peer,
    server,
    table,
    until,
)

NEXT_ID = 1012


def next_id(broker_name: str, opaque: int = 5, **more: Any) -> RemotingCommand:
    return RemotingCommand(
        NEXT_ID, opaque, ext_fields={"clusterName": "c", "brokerName": broker_name}, **more
    )


def fast_path(opaque: int, body: bytes = b"", e: str = "0", **more: Any) -> RemotingCommand:
    return RemotingCommand(FAST_PATH_CODE, opaque, ext_fields={"e": e, "b": "x"}, body=body, **more)


@pytest.mark.parametrize("serialize_type", SerializeType)
async def test_one_request_one_answer(serialize_type: SerializeType) -> None:
    async with server() as open_server, raw_peer(open_server) as peer:
        answer = await peer.ask(next_id("b", 77, serialize_type=serialize_type))
        assert (answer.code, answer.opaque, answer.flag) == (0, 77, 1)
        assert answer.ext_fields == {"clusterName": "c", "brokerName": "b", "nextBrokerId": "3"}
        answer = await peer.ask(fast_path(78, b"body", serialize_type=serialize_type))
        assert (answer.code, answer.opaque, answer.remark, answer.body) == (0, 78, "x", b"body")


@pytest.mark.parametrize("pieces", [1, 7, 100_000, 300_000])
async def test_frames_cut_and_joined_by_the_network(pieces: int) -> None:
    bodies = [b"a", b"", bytes(70_000), bytes(300_000), b"z" * 65_000, b"b"]
    stream = b"".join(encode(fast_path(n, body)) for n, body in enumerate(bodies))
    if pieces == 1:
        bodies, stream = bodies[:2], b"".join(encode(fast_path(n, body)) for n, body in enumerate(bodies[:2]))
    async with server() as open_server, raw_peer(open_server) as peer:
        for at in range(0, len(stream), pieces if pieces > 7 or len(stream) < 1000 else 9_973):
            peer.writer.write(stream[at : at + (pieces if pieces > 7 or len(stream) < 1000 else 9_973)])
            await peer.writer.drain()
            await asyncio.sleep(0)
        for n, body in enumerate(bodies):
            answer = await peer.read()
            assert (answer.opaque, answer.body) == (n, body)


async def test_one_write_per_read_batch() -> None:
    async with server() as open_server, raw_peer(open_server) as peer:
        peer.write(*(fast_path(n, e="3" if n % 2 else "0") for n in range(50)))
        assert [(await peer.read()).opaque for _ in range(50)] == list(range(50))
        (connection,) = open_server.connections
        assert connection.activity == 2, "one read, one write"


@pytest.mark.parametrize(
    ("command", "code", "remark"),
    [
        (RemotingCommand(9999, 5), 3, " request type 9999 not supported"),
        (RemotingCommand(NEXT_ID, 5), 2005, "header field clusterName is missing"),
        (next_id("break"), 1, "internal error: ZeroDivisionError: bug"),
        (next_id("refuse"), 2010, "register first"),
        (fast_path(5, e="1"), 13, "illegal"),
        (fast_path(5, e="2"), 1, "internal error: ZeroDivisionError: bug"),
        (fast_path(5, e="x"), 2005, "invalid literal"),
        (RemotingCommand(FAST_PATH_CODE, 5), 2005, "header field e is missing"),
        (fast_path(5, e="2", serialize_type=SerializeType.ROCKETMQ), 1, "internal error"),
    ],
)
async def test_refusals_keep_the_connection(command: RemotingCommand, code: int, remark: str) -> None:
    async with server(bad_request_code=2005) as open_server, raw_peer(open_server) as peer:
        for flag in (2, 0):  # oneway first: it must not be answered
            command.flag = flag
            peer.write(command)
        answer = await peer.read()
        assert (answer.code, answer.opaque) == (code, 5)
        assert answer.remark is not None and remark in answer.remark
        assert (await peer.ask(next_id("b", 6))).opaque == 6


async def test_a_bug_is_logged_with_the_number_of_its_request(caplog: pytest.LogCaptureFixture) -> None:
    """A client's log has the same number, and a JSON log has it as a field."""
    async with server() as open_server, raw_peer(open_server) as peer:
        await peer.ask(next_id("break", 77))
    (line,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert (vars(line)["opaque"], vars(line)["requestCode"]) == (77, NEXT_ID)


@pytest.mark.parametrize(
    "garbage", [b"GET / HTTP/1.0\r\n\r\n", bytes(8), b"\xff" * 40, b"\x00\x00\x00\x0a\x00\x00\x00\x02{}body"]
)
async def test_garbage_closes_with_one_line(garbage: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async with server() as open_server, raw_peer(open_server) as peer:
        peer.writer.write(encode(fast_path(1)) + garbage)
        assert (await peer.read()).opaque == 1  # what came before is answered
        assert await peer.at_end()
        await until(lambda: open_server.connection_count == 0)
    lines = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(lines) == 1
    assert "closed 127.0.0.1:" in lines[0].getMessage()


async def test_a_response_is_never_taken_for_a_request() -> None:
    async with server() as open_server, raw_peer(open_server) as peer:
        peer.write(fast_path(1, flag=1), next_id("b", 2, flag=1), fast_path(3))
        assert (await peer.read()).opaque == 3


async def test_too_many_running_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "IN_FLIGHT_MAX", 3)
    async with server() as open_server, raw_peer(open_server) as peer:
        peer.write(*(next_id("wait", n) for n in range(4)))
        answer = await peer.read()
        assert (answer.code, answer.opaque) == (2, 3)
    await until(lambda: len(asyncio.all_tasks()) == 1, "close() ends waiting handlers")


async def test_running_requests_have_a_limit_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler that waits keeps its request: a thousand of 16 MiB on each connection."""
    monkeypatch.setattr(dispatch, "RUNNING_BYTES_OF_CONNECTION_MAX", 250_000)
    monkeypatch.setattr(dispatch, "RUNNING_BYTES_MAX", 350_000)
    async with server() as open_server, raw_peer(open_server) as one, raw_peer(open_server) as other:
        one.write(*(next_id("wait", n, body=bytes(100_000)) for n in range(3)))
        refused = await one.read()
        assert (refused.code, refused.opaque) == (2, 2) and "of this connection have 20" in (
            refused.remark or ""
        )
        fields = {"clusterName": "c", "brokerName": "wait", "x": "y" * 60_000}
        one.write(RemotingCommand(NEXT_ID, 3, ext_fields=fields))
        assert (await one.read()).opaque == 3, "header fields count as well"
        other.write(*(next_id("wait", n, body=bytes(100_000)) for n in range(2)))
        refused = await other.read()
        assert (refused.code, refused.opaque) == (2, 1) and "of all connections" in (refused.remark or "")
        small = await other.ask(next_id("b", 4, body=bytes(60_000)))
        assert (small.code, small.opaque) == (0, 4), "small ones pass"
        connections = sorted(open_server.connections, key=lambda each: each.in_flight_bytes)
        assert connections[0].in_flight == 1 and connections[1].in_flight == 2


async def test_what_running_requests_take_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "RUNNING_BYTES_OF_CONNECTION_MAX", 250_000)
    monkeypatch.setattr(dispatch, "RUNNING_BYTES_MAX", 250_000)
    async with server() as open_server, raw_peer(open_server) as peer:
        for opaque in range(5):
            assert (await peer.ask(next_id("b", opaque, body=bytes(200_000)))).code == 0
        (connection,) = open_server.connections
        assert connection.in_flight == connection.in_flight_bytes == 0


async def test_a_request_is_carried_out_though_its_connection_closes() -> None:
    seen: list[str] = []

    async def remember(request: Any, _: Any) -> None:
        seen.append(request.broker_name)

    served = table()
    served.handlers[NEXT_ID] = (served.handlers[NEXT_ID][0], remember)
    async with server(served) as open_server:
        async with raw_peer(open_server) as peer:
            peer.write(next_id("last words", flag=2))
        await until(lambda: seen == ["last words"])


async def test_a_peer_that_does_not_read_is_not_read_from() -> None:
    body = bytes(1_000_000)
    async with server() as open_server, raw_peer(open_server) as peer:
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        for n in range(40):
            peer.writer.write(encode(fast_path(n, body)))
        (served,) = await connections(open_server)
        await until(served.is_paused)
        activity = served.activity
        peer.writer.transport.resume_reading()  # type: ignore[attr-defined]
        for n in range(40):
            assert (await peer.read()).opaque == n
        assert served.activity > activity
        assert not served.is_paused()


async def test_pipelined_requests_wait_while_paused() -> None:
    """Small requests with large answers: a paused batch is finished after the peer has read."""
    async with server(large_table()) as open_server, raw_peer(open_server) as peer:
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        peer.write(*(fast_path(n) for n in range(60)))
        (served,) = await connections(open_server)
        await until(served.is_paused)
        peer.writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert [(await peer.read()).opaque for _ in range(60)] == list(range(60))


async def test_pushed_frames_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_buffers, "WRITE_BYTES_MAX", 3_000_000)
    async with server() as open_server, raw_peer(open_server) as peer:
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        (served,) = await connections(open_server)
        frame = encode(fast_path(1, bytes(1_000_000)))
        for _ in range(100):
            if not served.send(frame):
                break
        assert served.is_closing()
        assert not served.send(frame)


async def test_write_parts_keeps_the_order() -> None:
    async with server() as open_server, raw_peer(open_server) as peer:
        (served,) = await connections(open_server)
        frame = encode(fast_path(9, b"abc"))
        assert served.write_parts([frame[:10], memoryview(frame)[10:]])
        assert (await peer.read()).opaque == 9
        assert served.address_bytes[:4] == bytes([127, 0, 0, 1])
        assert int.from_bytes(served.address_bytes[4:], "big") == peer.writer.get_extra_info("sockname")[1]


async def test_idle_connections_are_closed() -> None:
    closed: list[int] = []
    async with server(idle_ms=40, on_closed=closed.append) as open_server, raw_peer(open_server) as peer:
        (served,) = await connections(open_server)
        assert await peer.at_end()
        await until(lambda: closed == [served.connection_id])


async def test_too_many_connections(caplog: pytest.LogCaptureFixture) -> None:
    closed: list[int] = []
    async with (
        server(connections_max=1, on_closed=closed.append) as open_server,
        raw_peer(open_server) as first,
    ):
        await first.ask(fast_path(1))
        for _ in range(2):
            async with raw_peer(open_server) as second:
                assert await second.at_end()
        assert (await first.ask(fast_path(2))).opaque == 2
        assert open_server.connection_count == 1
        assert closed == []
    assert len(caplog.records) == 1


async def test_close_is_prompt_and_leaves_no_task() -> None:
    async with server() as open_server, raw_peer(open_server) as peer:
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        peer.write(next_id("wait"), fast_path(1, bytes(8_000_000)))
        (served,) = await connections(open_server)
        await until(served.is_paused)
        async with asyncio.timeout(1):
            await open_server.close()
            await open_server.close()
        assert served.is_closing()
        assert open_server.connection_count == 0
    assert len(asyncio.all_tasks()) == 1


async def test_taken_port_is_one_clear_error() -> None:
    async with server() as first:
        host, port = first.address
        second = TcpServer(table(), host=host, port=port, name="second")
        with pytest.raises(
            ConfigError, match=f"^second: cannot listen on {host}:{port}: Address already in use$"
        ):
            await second.start()
        await second.close()
        assert address_of(first) == f"{host}:{port}"


def test_only_short_codes_have_a_fast_path() -> None:
    """The first bytes of a header select the handler: 29007 would get the requests of 29001 as well."""
    table = OperationTable()
    with pytest.raises(LocalProtocolError, match="code 29007 is above 999: no fast path"):
        table.bind_fast_path(29_007, FastPath(dict, lenient_fast_path, fast_path_handler))
    table.bind_fast_path(999, FastPath(dict, lenient_fast_path, fast_path_handler))


def test_hot_commands_must_show_their_flag() -> None:
    bad = OperationTable()
    bad.bind_fast_path(1, FastPath(dict, lenient_fast_path, fast_path_handler))
    with pytest.raises(LocalProtocolError, match="fast-path code 1 has no flag"):
        TcpServer(bad, host="127.0.0.1", port=0, name="test")


def large_table() -> OperationTable:
    """Every request is answered with a megabyte."""
    made = OperationTable()
    made.bind_fast_path(
        FAST_PATH_CODE,
        FastPath(
            table().fast_path[FAST_PATH_CODE].command_type,
            lenient_fast_path,
            lambda command, _, peer: fast_path_handler(command, bytes(1_000_000), peer),
        ),
    )
    return made


async def connections(of: TcpServer) -> list[Connection]:
    await until(lambda: of.connection_count > 0)
    return list(of.connections)
