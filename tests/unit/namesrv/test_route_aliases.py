"""Alias entries of routes (namesrv/core/aliases.py), and the elected master before it registers."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from keelmq.remoting.codes import PERM_WRITE
from keelmq.remoting.operations.route import TopicRouteData
from namesrv.core.aliases import AliasLimits, may_have_aliases
from namesrv.core.register_body import read_body
from namesrv.core.routes import RouteTable
from namesrv.core.values import Registration, StaleRegistration
from tests.unit.namesrv.test_namesrv_requests import announce, body_of, serving
from tests.unit.namesrv.test_routes import registration

A, B, C = "10.0.0.1:10911", "10.0.0.2:10911", "10.0.0.3:10911"
ONE = AliasLimits(per_group=1, percent_max=34)


def ours(addr: str, broker_id: int, *, name: str = "b-a", epoch: int = 1, **more: object) -> Registration:
    """A broker that forwards."""
    made = registration(addr, broker_id, name=name, epoch=epoch, topics=("T1", "T2"), queues=4)
    return replace(made, forwards_sends=True, **more)  # type: ignore[arg-type]


def group(limits: AliasLimits = ONE) -> RouteTable:
    table = RouteTable(aliases=limits)
    for addr, broker_id in ((A, 0), (B, 2), (C, 3)):
        table.register(ours(addr, broker_id))
    return table


def route_of(table: RouteTable, topic: str = "T1") -> TopicRouteData:
    table.check_invariants()
    route = table.pick_up_route(topic, aliases=True)
    assert route is not None
    return route


def aliases(table: RouteTable, topic: str = "T1") -> dict[str, dict[int, str]]:
    return {
        each.broker_name: each.broker_addrs
        for each in route_of(table, topic).broker_datas
        if "%" in each.broker_name
    }


# ---- alias entries ----


def test_an_alias_is_a_slave_with_one_queue_to_write() -> None:
    table = group()
    assert aliases(table) == {"b-a%alias1": {0: B}}
    queue = next(each for each in route_of(table).queue_datas if each.broker_name == "b-a%alias1")
    assert (queue.perm, queue.write_queue_nums, queue.read_queue_nums) == (PERM_WRITE, 1, 1)
    plain = table.pick_up_route("T1")
    assert plain is not None
    assert [each.broker_name for each in plain.broker_datas] == ["b-a"]
    assert [each.broker_name for each in plain.queue_datas] == ["b-a"]


def test_the_real_entry_stays_first_and_as_it_was() -> None:
    table = group()
    route = route_of(table)
    assert route.broker_datas[0].broker_addrs == {0: A, 2: B, 3: C}
    assert (route.queue_datas[0].broker_name, route.queue_datas[0].perm) == ("b-a", 6)


@pytest.mark.parametrize(
    ("per_group", "percent", "queues", "count"),
    [
        (1, 34, 1, 0),
        (1, 50, 1, 1),
        (1, 34, 2, 1),
        (3, 34, 4, 2),
        (3, 34, 16, 3),
        (1, 1, 98, 0),
        (1, 1, 99, 1),
        (0, 50, 9, 0),
    ],
)
def test_the_share_of_alias_queues_is_limited(per_group: int, percent: int, queues: int, count: int) -> None:
    assert AliasLimits(per_group, percent).count(queues) == count
    assert count * 100 <= percent * (queues + count)


def test_the_list_of_queues_does_not_depend_on_who_is_alive() -> None:
    """A producer that chooses by key keeps its queues through a fail-over and the old master's return."""
    table = group(AliasLimits(2, 40))
    lists = [[(each.broker_name, each.write_queue_nums) for each in route_of(table).queue_datas]]
    steps = (
        lambda: table.unregister("C1", "b-a", A),  # the master dies
        lambda: table.register(ours(B, 0, epoch=2)),  # and B is the new one
        lambda: table.register(ours(A, 1, epoch=2)),
        lambda: table.unregister("C1", "b-a", A),
        lambda: table.unregister("C1", "b-a", C),  # no slave is left: the aliases lead to the master
    )
    for step in steps:
        step()
        lists.append([(each.broker_name, each.write_queue_nums) for each in route_of(table).queue_datas])
    assert all(each == lists[0] for each in lists)
    assert set(map(str, aliases(table).values())) == {str({0: B})}


def test_only_brokers_that_say_so_are_aliases() -> None:
    """A Java slave answers sends with an error."""
    table = RouteTable(aliases=ONE)
    table.register(ours(A, 0))
    table.register(registration(B, 2, epoch=1, queues=4))
    assert aliases(table) == {}
    table.register(ours(C, 3))
    assert aliases(table) == {"b-a%alias1": {0: C}}
    table.register(replace(ours(C, 3), forwards_sends=False))  # it stops soon
    assert aliases(table) == {"b-a%alias1": {0: A}}


def test_a_master_alone_has_no_alias() -> None:
    table = RouteTable(aliases=ONE)
    table.register(ours(A, 0))
    assert aliases(table) == {}


def test_a_topic_at_two_groups_needs_none() -> None:
    table = group()
    table.register(ours("10.0.1.1:10911", 0, name="b-b"))
    assert aliases(table) == {}
    table.wipe_write_perm("b-b")
    assert aliases(table) == {"b-a%alias1": {0: B}}


def test_no_alias_takes_the_name_of_a_group() -> None:
    table = group(AliasLimits(2, 40))
    real = ours("10.0.1.1:10911", 0, name="b-a%alias1")
    table.register(replace(real, body=registration(topics=("other",)).body))
    assert aliases(table) == {"b-a%alias2": {0: C}}


@pytest.mark.parametrize("name", ["%RETRY%g", "%DLQ%g", "rmq_sys_wheel_timer", "C1", "b-a", "C1_REPLY_TOPIC"])
def test_topics_of_brokers_and_consumers_have_none(name: str) -> None:
    assert not may_have_aliases(name, {"C1", "b-a"})


@pytest.mark.parametrize("name", ["T1", "TBW102", "RMQ_SYS_TRACE_TOPIC", "My_REPLY_TOPIC", "Ordered%RETRY%"])
def test_other_topics_have(name: str) -> None:
    assert may_have_aliases(name, {"C1", "b-a"})


ORDER = {"topicName": "T1", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}


@pytest.mark.parametrize("more", [{"order": True}, {"attributes": {"message.type": "FIFO"}}])
def test_ordered_topics_have_none(more: dict[str, object]) -> None:
    body = {"topicConfigSerializeWrapper": {"topicConfigTable": {"T1": {**ORDER, **more}, "T2": ORDER}}}
    read = read_body(json.dumps(body).encode(), compressed=False, version=479)
    assert read.ordered == {"T1"}
    table = RouteTable(aliases=ONE)
    table.register(replace(ours(A, 0), body=read))
    table.register(ours(B, 2))
    assert aliases(table, "T1") == {}
    assert aliases(table, "T2") == {"b-a%alias1": {0: B}}
    changed = read_body(body_of({"T1": {}, "T2": {}}, counter=2), compressed=False, version=479)
    table.register(replace(ours(A, 0), body=changed))
    assert aliases(table, "T1") == {"b-a%alias1": {0: B}}
    table.delete_topic("T1")
    table.check_invariants()


async def test_who_gets_them(tmp_path: Path) -> None:
    """KeelMQ's own programs do not: they list brokers, and read the route at once when a master is gone."""
    async with serving(tmp_path, route_aliases_enable=True, order_message_enable=True) as (server, wire):
        await announce(wire, A, 0, body=body_of({"T1": {}, "O1": {}}), forwardsSends="true")
        await announce(wire, B, 2, body=body_of({"T1": {}, "O1": {}}), forwardsSends="true")
        await server.kv.change("ORDER_TOPIC_CONFIG", "O1", "broker-a:4")

        async def names(topic: str, language: str) -> list[str]:
            answer = await wire.ask(105, {"topic": topic}, language=language)
            return [each["brokerName"] for each in json.loads(answer.body)["brokerDatas"]]

        for language in ("JAVA", "CPP", "GO"):
            assert await names("T1", language) == ["broker-a", "broker-a%alias1"], language
            assert await names("O1", language) == ["broker-a"], language
        assert await names("T1", "PYTHON") == ["broker-a"]
        listed = await wire.ask(106, {}, language="JAVA")
        assert b"alias" not in listed.body


async def test_the_setting_changes_at_run_time(tmp_path: Path) -> None:
    async with serving(tmp_path, route_aliases_enable=False) as (_, wire):
        for addr, broker_id in ((A, 0), (B, 2)):
            await announce(wire, addr, broker_id, body=body_of({"T1": {}}), forwardsSends="true")
        for enabled in ("true", "false"):
            assert (await wire.ask(318, {}, f"routeAliasesEnable={enabled}".encode())).code == 0
            answer = await wire.ask(105, {"topic": "T1"}, language="JAVA")
            assert (b"alias1" in answer.body) == (enabled == "true")


# ---- the elected master ----


def masters(table: RouteTable) -> dict[int, str]:
    route = table.pick_up_route("T1")
    assert route is not None
    return route.broker_datas[0].broker_addrs


def test_the_elected_master_is_shown_before_it_registers() -> None:
    table = group()
    version = table.version
    assert table.elected.elect("C1", "b-a", C, 2)
    assert masters(table) == {0: C, 2: B}
    assert table.version > version, "cached answers are old"
    assert aliases(table) == {"b-a%alias1": {0: B}}
    table.unregister("C1", "b-a", A)
    assert masters(table) == {0: C, 2: B}
    table.register(ours(C, 0, epoch=2))
    assert masters(table) == {0: C, 2: B}
    table.unregister("C1", "b-a", C)
    assert masters(table) == {2: B}, "its registration counts now, and it is gone"


def test_an_older_master_never_overrides_an_election() -> None:
    table = group()
    table.elected.elect("C1", "b-a", B, 3)
    assert table.register(ours(A, 0, epoch=2)) == StaleRegistration(B, 3)
    assert masters(table) == {0: B, 3: C}
    table.register(ours(B, 0, epoch=3))
    table.unregister("C1", "b-a", B)
    assert table.register(ours(A, 0, epoch=2)) == StaleRegistration(B, 3), "nor when the new one has died"
    table.register(ours(A, 0, epoch=4))
    assert masters(table)[0] == A, "but a newer one does, wherever it was elected"


def test_elections_are_fenced_by_epoch() -> None:
    table = group()
    assert table.elected.elect("C1", "b-a", B, 3)
    assert not table.elected.elect("C1", "b-a", C, 2)
    assert not table.elected.elect("C1", "b-a", B, 3)
    assert masters(table)[0] == B


def test_a_master_that_this_name_server_does_not_know_is_not_shown() -> None:
    table = group()
    table.elected.elect("C1", "b-a", "10.0.0.9:10911", 2)
    assert masters(table) == {0: A, 2: B, 3: C}
    table.elected.elect("other", "b-a", B, 5)
    assert masters(table) == {0: A, 2: B, 3: C}, "another cluster"


def test_a_group_without_a_master_is_as_registered() -> None:
    table = group()
    table.elected.elect("C1", "b-a", B, 2)
    table.elected.forget("C1", "b-a")
    assert masters(table) == {0: A, 2: B, 3: C}


def test_a_group_that_left_controller_mode_may_register() -> None:
    table = group()
    table.elected.elect("C1", "b-a", B, 2)
    table.register(registration(A, 0, epoch=0, counter=9, queues=4))
    assert masters(table) == {0: A, 2: B, 3: C}
