"""A topic table that is registered in parts: of a broker's several requests, or of one large request."""

import asyncio
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from keelmq.remoting.command import RemotingCommand, encode
from keelmq.remoting.operations.route import DataVersion
from namesrv.core import register_body
from namesrv.core.register_body import BadBody, read_body, read_slices
from namesrv.core.routes import RouteTable
from namesrv.core.topics import TopicTable
from namesrv.core.values import Part, RegisterBody, Registered, Registration
from tests.unit.namesrv.test_namesrv_app import connect, until
from tests.unit.namesrv.test_namesrv_requests import A as A_BROKER
from tests.unit.namesrv.test_namesrv_requests import announce, body_of, serving, topics
from tests.unit.namesrv.test_routes import A, B, perm, registration


def part(
    number: int, count: int, *names: str, counter: int = 1, epoch: int = 0, queues: int = 8, addr: str = A
) -> Registration:
    request = registration(addr, counter=counter, epoch=epoch, topics=names, queues=queues)
    return replace(request, part=Part(number, number == count))


def register(table: RouteTable, *parts: Registration) -> list[str]:
    for each in parts:
        assert isinstance(table.register(each), Registered)
        table.check_invariants()
    return sorted(table.topic_names())


def queues_of(table: RouteTable, topic: str) -> int:
    route = table.pick_up_route(topic)
    assert route is not None
    return route.queue_datas[0].write_queue_nums


# -- the table -------------------------------------------------------------------------------------------


def test_no_part_removes_the_topics_of_another() -> None:
    table = RouteTable(delete_missing_topics=True)
    assert register(table, part(1, 2, "T1", "T2"), part(2, 2, "T3")) == ["T1", "T2", "T3"]
    assert register(table, part(1, 2, "T1", "T2"), part(2, 2, "T3")) == ["T1", "T2", "T3"]


def test_the_last_part_removes_what_no_part_has_named() -> None:
    table = RouteTable(delete_missing_topics=True)
    register(table, part(1, 2, "T1", "T2"), part(2, 2, "T3"))
    assert register(table, part(1, 2, "T1", counter=2)) == ["T1", "T2", "T3"]
    assert register(table, part(2, 2, "T3", counter=2)) == ["T1", "T3"]
    assert register(RouteTable(), part(1, 2, "T1", "T2"), part(2, 2, "T3"), part(1, 1, "T1")) == [
        "T1",
        "T2",
        "T3",
    ], "without delete_missing_topics nothing is removed"


def test_a_lost_part_removes_nothing() -> None:
    """Else the topics of that part would go."""
    table = RouteTable(delete_missing_topics=True)
    names = register(table, part(1, 3, "T1"), part(2, 3, "T2"), part(3, 3, "T3"))
    assert register(table, part(1, 3, "T1"), part(3, 3, "T3")) == names
    assert register(table, part(2, 3, "T2"), part(3, 3, "T3")) == names


def test_a_change_in_any_part_arrives() -> None:
    table = RouteTable()
    register(table, part(1, 2, "T1"), part(2, 2, "T2"))
    register(table, part(1, 2, "T1", counter=2, queues=4), part(2, 2, "T2", counter=2, queues=4))
    assert (queues_of(table, "T1"), queues_of(table, "T2")) == (4, 4)


def test_an_interrupted_round_is_repeated_as_a_change() -> None:
    """Part 1 alone must not leave the version behind with which the whole table would count as known."""
    table = RouteTable()
    register(table, part(1, 2, "T1"), part(2, 2, "T2"))
    register(table, part(1, 2, "T1", counter=2, queues=4))
    live = table.live("C1", A)
    assert live is not None and live.data_version != DataVersion(counter=2, timestamp=1)
    register(table, part(1, 2, "T1", counter=2, queues=4), part(2, 2, "T2", counter=2, queues=4))
    assert queues_of(table, "T2") == 4
    live = table.live("C1", A)
    assert live is not None and live.data_version == DataVersion(counter=2, timestamp=1)


def test_an_unchanged_table_leaves_what_an_operator_has_set() -> None:
    table = RouteTable()
    register(table, part(1, 2, "T1"), part(2, 2, "T2"))
    table.wipe_write_perm("b-a")
    register(table, part(1, 2, "T1"), part(2, 2, "T2"))
    assert {perm(table, topic) for topic in table.topics_of_broker("b-a")} == {4}


def test_the_epoch_of_a_part_counts_at_once() -> None:
    """An old master that registers between two parts must not take id 0 back."""
    table = RouteTable()
    register(table, part(1, 2, "T1", epoch=2))
    assert not isinstance(table.register(part(1, 2, "T1", epoch=1, addr=B)), Registered)


def test_a_removed_topic_is_taken_out_of_the_ordered_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """It made two sets of all ordered topics with each: to remove 3,000 took 1.4 s of the event loop."""
    table = RouteTable()
    request = registration(topics=("T1", "T2", "T3"))
    register(table, replace(request, body=replace(request.body, ordered=frozenset({"T1", "T2"}))))
    monkeypatch.delattr(TopicTable, "update_ordered")
    table.delete_topic("T1")
    table.check_invariants()
    table.unregister("C1", "b-a", A)
    table.check_invariants()


# -- the slices of one body ------------------------------------------------------------------------------


def slices(raw: bytes) -> tuple[int, Sequence[RegisterBody]]:
    """Returns the number of steps, and the bodies."""
    steps, count = read_slices(raw, compressed=False, version=479), 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return count, end.value
        count += 1


AWKWARD = {
    'a"},"b': {"perm": 4},
    "with attributes": {"attributes": {"message.type": "FIFO", "x": '},{"'}, "topicName": "}},"},
    "é},": {"order": True},
}


def table_json(count: int, **wrapper: object) -> bytes:
    names = {f"T{number}": {"perm": 2 + number % 5, "readQueueNums": number} for number in range(count)}
    return json.dumps(
        {
            "filterServerList": ["f:1"],
            "topicConfigSerializeWrapper": {
                "topicConfigTable": {**names, **AWKWARD},
                "dataVersion": {"counter": 5},
                **wrapper,
            },
        },
        separators=(",", ":"),
        ensure_ascii=False,
    ).encode()


@pytest.mark.parametrize("slice_bytes", [1, 7, 40, 200, 100_000])
def test_slices_hold_what_the_whole_body_holds(monkeypatch: pytest.MonkeyPatch, slice_bytes: int) -> None:
    monkeypatch.setattr(register_body, "SLICE_BYTES", slice_bytes)
    raw = table_json(50, topicQueueMappingInfoMap={"T1": {"bname": "b"}})
    whole = read_body(raw, compressed=False, version=479)
    _, bodies = slices(raw)
    assert (len(bodies) > 1) == (slice_bytes < len(raw))
    assert {name: topic for body in bodies for name, topic in body.topics.items()} == whole.topics
    assert frozenset().union(*(body.ordered for body in bodies)) == whole.ordered
    for body in bodies:
        assert (body.data_version, body.mappings, body.filter_servers) == (
            whole.data_version,
            whole.mappings,
            whole.filter_servers,
        )


def test_a_body_that_cannot_be_sliced_is_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(register_body, "SLICE_BYTES", 10)
    endless = {"T": {"attributes": {"x": "},{" * 1_000}}, "U": {}}
    for raw in (
        json.dumps({"topicConfigSerializeWrapper": {"topicConfigTable": endless}}).encode(),
        b'{"topicConfigSerializeWrapper":{"topicConfigTable":{T1:{"perm":6},T2:{"perm":6}}}}',
        b'{"topicConfigSerializeWrapper":{"topicConfigTable":{}}}',
        b'{"topicConfigSerializeWrapper":{}}',
    ):
        _, bodies = slices(raw)
        assert bodies == (read_body(raw, compressed=False, version=479),)


def test_a_wrong_topic_in_any_slice_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(register_body, "SLICE_BYTES", 200)
    raw = table_json(50).replace(b'"readQueueNums":49', b'"readQueueNums":"x"')
    with pytest.raises(BadBody, match="readQueueNums"):
        slices(raw)
    monkeypatch.setattr(register_body, "TOPICS_PER_BROKER_MAX", 30)
    with pytest.raises(BadBody, match="30 topics"):
        slices(table_json(50))


# -- requests --------------------------------------------------------------------------------------------


async def test_the_parts_of_a_broker_arrive_together(tmp_path: Path) -> None:
    async with serving(tmp_path, delete_topic_with_broker_registration=True) as (_, wire):
        for names in (("T1", "T2"), ("T3",)), (("T1",), ("T3",)):
            for number, part_names in enumerate(names, 1):
                body = body_of({name: {} for name in part_names}, counter=number)
                answer = await announce(wire, body=body, partNumber=number, partCount=len(names))
                assert answer.code == 0
            assert await topics(wire, 206) == sorted(name for each in names for name in each)


async def test_a_large_registration_lets_other_requests_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """50,000 topics held the loop for 130 ms, with each registration of each broker."""
    monkeypatch.setattr(register_body, "SLICE_BYTES", 2_000)
    async with serving(tmp_path, delete_topic_with_broker_registration=True) as (_, wire):
        turns = 0

        async def count_turns() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        counting = asyncio.create_task(count_turns())
        names = [f"T{number:04}" for number in range(1_000)]
        body = body_of({name: {} for name in names})
        answer = await announce(wire, body=body)
        counting.cancel()
        assert answer.code == 0 and await topics(wire, 206) == names
        assert turns > 3 * len(body) // 2_500
        assert (await announce(wire, body=body_of({name: {} for name in names[:900]}, counter=2))).code == 0
        assert await topics(wire, 206) == names[:900]


async def test_a_bad_topic_anywhere_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(register_body, "SLICE_BYTES", 2_000)
    async with serving(tmp_path) as (_, wire):
        names = {f"T{number}": {} for number in range(100)} | {"T" * 1_025: {}}
        answer = await announce(wire, body=body_of(names))
        assert answer.code == 1 and "1024 characters" in str(answer.remark)
        assert await topics(wire, 206) == []


async def test_a_closed_connection_ends_a_large_registration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing would ever remove a part that is applied after the close (#11043)."""
    monkeypatch.setattr(register_body, "SLICE_BYTES", 500)
    async with serving(tmp_path) as (server, wire):
        other = await connect(server)
        body = body_of({f"T{number}": {} for number in range(2_000)})
        asking = asyncio.create_task(announce(other, body=body))
        live = partial(server.routes.live, "FxCluster", A_BROKER)
        async with asyncio.timeout(5):
            while live() is None:  # noqa: ASYNC110 - until() would let the whole registration pass
                await asyncio.sleep(0)
            await other.close()
        asking.cancel()
        await until(lambda: live() is None)
        for _ in range(1_000):
            await asyncio.sleep(0)
        assert await topics(wire, 206) == []


async def test_a_broker_that_leaves_waits_for_its_registration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unregisterBroker between two parts was followed by the rest of the parts."""
    monkeypatch.setattr(register_body, "SLICE_BYTES", 500)
    async with serving(tmp_path) as (_, wire):
        fields = {
            "clusterName": "FxCluster",
            "brokerName": "broker-a",
            "brokerId": "0",
            "brokerAddr": A_BROKER,
        }
        body = body_of({f"T{number}": {} for number in range(2_000)})
        wire.writer.write(encode(RemotingCommand(103, opaque=1, ext_fields=fields, body=body)))
        answers = [await wire.ask(104, fields), await wire.frame(b"")]
        assert [answer.code for answer in answers] == [0, 0]
        assert await topics(wire, 206) == []
