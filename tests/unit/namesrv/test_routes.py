"""RouteTable: register, unregister, and the pitfalls of the peer (numbers: namesrv reference §18)."""

from collections.abc import Callable

import pytest

from keelmq.remoting.operations.route import DataVersion, QueueData, TopicConfig
from keelmq.runtime.slices import at_once
from namesrv.core.routes import RouteTable
from namesrv.core.values import (
    MinIdChange,
    RegisterBody,
    Registered,
    Registration,
    RegistrationRefused,
    StaleRegistration,
)

A, B = "10.0.0.1:10911", "10.0.0.2:10911"


def registration(
    addr: str = A,
    broker_id: int = 0,
    *,
    name: str = "b-a",
    cluster: str = "C1",
    epoch: int = 0,
    counter: int = 1,
    topics: tuple[str, ...] = ("T1", "T2"),
    queues: int = 8,
    acting: bool | None = False,
    zone: str | None = None,
    filters: tuple[str, ...] | None = (),
) -> Registration:
    table = {
        topic: TopicConfig(topic_name=topic, read_queue_nums=queues, write_queue_nums=queues)
        for topic in topics
    }
    version = DataVersion(counter=counter, state_version=epoch, timestamp=1)
    return Registration(
        cluster_name=cluster,
        broker_name=name,
        broker_id=broker_id,
        broker_addr=addr,
        ha_server_addr=addr.replace("10911", "10912"),
        enable_acting_master=acting,
        zone_name=zone,
        body=RegisterBody(topics=table, data_version=version, filter_servers=filters),
    )


def addrs(table: RouteTable, topic: str = "T1") -> list[dict[int, str]]:
    table.check_invariants()
    route = table.pick_up_route(topic)
    return [] if route is None else [data.broker_addrs for data in route.broker_datas]


def perm(table: RouteTable, topic: str = "T1") -> int:
    route = table.pick_up_route(topic)
    assert route is not None
    return route.queue_datas[0].perm


def test_master_and_slave() -> None:
    table = RouteTable()
    assert table.register(registration(A, 0)) == Registered()
    assert table.register(registration(B, 2)) == Registered(A, "10.0.0.1:10912")
    assert addrs(table) == [{0: A, 2: B}]
    assert table.pick_up_route("nowhere") is None


def test_a_route_is_sorted_by_broker_name() -> None:
    table = RouteTable()
    table.register(registration(B, name="b-b"))
    table.register(registration(A, name="b-a"))
    route = table.pick_up_route("T1")
    assert route is not None
    assert [data.broker_name for data in route.broker_datas] == ["b-a", "b-b"]
    assert [queue.broker_name for queue in route.queue_datas] == ["b-a", "b-b"]
    assert table.cluster_info().cluster_addr_table == {"C1": ["b-a", "b-b"]}


def test_a_master_switch_as_in_controller_mode() -> None:
    """Namesrv reference §14."""
    table = RouteTable()
    table.register(registration(A, 0, epoch=3))
    table.register(registration(B, 2, epoch=3))
    table.unregister("C1", "b-a", A)
    assert addrs(table) == [{2: B}] and perm(table) == 6
    table.register(registration(B, 0, epoch=4, counter=2, queues=16))
    assert addrs(table) == [{0: B}], "the promoted slave lost its old id"
    route = table.pick_up_route("T1")
    assert route is not None and route.queue_datas[0].read_queue_nums == 16
    assert table.register(registration(A, 1, epoch=4)) == Registered(B, "10.0.0.2:10912")
    assert addrs(table) == [{0: B, 1: A}]


def test_unregister_goes_by_address_not_by_id() -> None:
    """Pitfall 1 (#5374): the old master's unregister comes after the new master has its id."""
    table = RouteTable()
    table.register(registration(A, 0, epoch=1))
    table.register(registration(B, 0, epoch=2))
    assert not table.unregister("C1", "b-a", A).removed
    assert addrs(table) == [{0: B}]


def test_unregistering_twice_is_harmless() -> None:
    """Pitfall 29."""
    table = RouteTable()
    table.register(registration())
    assert table.unregister("C1", "b-a", A).removed
    assert not table.unregister("C1", "b-a", A).removed
    assert not table.unregister_all([("C1", A), ("C1", A)]).removed
    assert addrs(table) == [] and table.counts() == {"topics": 0, "groups": 0, "brokers": 0}


def test_a_replaced_address_leaves_the_live_table() -> None:
    """Pitfall 3: theirs keeps it for ever."""
    table = RouteTable()
    table.register(registration(A, 0, epoch=1))
    assert table.register(registration(B, 0, epoch=2)) == Registered(replaced=(("C1", A),))
    assert table.live("C1", A) is None
    table.check_invariants()


def test_an_old_master_cannot_take_its_id_back() -> None:
    """Pitfall 12 (#6316), and a refusal changes nothing (pitfall 13)."""
    table = RouteTable()
    table.register(registration(B, 0, epoch=4))
    table.register(registration(A, 1, epoch=4))
    assert table.register(registration(A, 0, epoch=3)) == StaleRegistration(B, 4)
    assert addrs(table) == [{0: B, 1: A}]


def test_an_equal_state_version_lets_the_newcomer_win() -> None:
    table = RouteTable()
    table.register(registration(A, 0))
    table.register(registration(B, 0))
    assert addrs(table) == [{0: B}]


def test_an_old_master_may_return_when_the_newer_one_is_gone() -> None:
    table = RouteTable()
    table.register(registration(B, 0, epoch=4))
    table.unregister("C1", "b-a", B)
    assert table.register(registration(A, 0, epoch=3)) == Registered()


def test_a_one_topic_broker_registers_and_its_full_table_follows() -> None:
    """Pitfall 5 (#4522): same DataVersion, yet the topics arrive."""
    table = RouteTable()
    assert table.register(registration(topics=("T1",))) == Registered()
    table.register(registration(topics=("T1", "T2", "T3")))
    assert addrs(table, "T3") == [{0: A}]


def test_an_unchanged_version_leaves_queue_data_alone() -> None:
    table = RouteTable()
    table.register(registration(queues=8))
    table.register(registration(queues=4))
    route = table.pick_up_route("T1")
    assert route is not None and route.queue_datas[0].read_queue_nums == 8
    table.register(registration(queues=4, counter=2))
    route = table.pick_up_route("T1")
    assert route is not None and route.queue_datas[0].read_queue_nums == 4


@pytest.mark.parametrize(("acting", "expected"), [(None, 6), (False, 6), (True, 4)])
def test_a_prime_slave_loses_write_only_with_acting_master(acting: bool | None, expected: int) -> None:
    """Pitfall 9 (#7626)."""
    table = RouteTable()
    table.register(registration(A, 0, acting=acting))
    table.register(registration(B, 2, acting=acting))
    table.unregister("C1", "b-a", A)
    table.register(registration(B, 2, acting=acting, counter=2))
    assert perm(table) == expected


def test_a_broker_older_than_5_is_never_a_prime_slave() -> None:
    """Pitfall 7 (#4682): no enableActingMaster field at all."""
    table = RouteTable()
    table.register(registration(B, 2, acting=None))
    assert table.pick_up_route("T1") is None


def test_acting_master_is_shown_not_stored() -> None:
    table = RouteTable(support_acting_master=True)
    table.register(registration(A, 0, acting=True))
    table.register(registration(B, 2, acting=True))
    table.unregister("C1", "b-a", A)
    assert addrs(table) == [{0: B}]
    assert table.cluster_info().broker_addr_table["b-a"].broker_addrs == {2: B}


def test_a_broker_name_belongs_to_one_cluster() -> None:
    """Pitfall 23."""
    table = RouteTable()
    table.register(registration(A))
    refused = table.register(registration(B, cluster="C2"))
    assert isinstance(refused, RegistrationRefused) and "belongs to cluster C1" in refused.remark
    assert addrs(table) == [{0: A}]


def test_a_broker_that_changes_its_name_leaves_the_old_one() -> None:
    table = RouteTable()
    table.register(registration(A, name="b-a"))
    assert table.register(registration(A, name="b-z")) == Registered(replaced=(("C1", A),))
    route = table.pick_up_route("T1")
    assert route is not None and [data.broker_name for data in route.broker_datas] == ["b-z"]
    table.check_invariants()


def test_filter_servers_stay_when_absent_and_go_when_empty() -> None:
    table = RouteTable()
    table.register(registration(filters=("f:1",)))
    table.register(registration(filters=None))
    route = table.pick_up_route("T1")
    assert route is not None and route.filter_server_table == {A: ["f:1"]}
    table.register(registration(filters=()))
    route = table.pick_up_route("T1")
    assert route is not None and route.filter_server_table == {}


# ---- who is told of a new lowest id ----

C = "10.0.0.3:10911"


def joined(table: RouteTable, addr: str, broker_id: int, *, acting: bool = True) -> tuple[MinIdChange, ...]:
    result = table.register(registration(addr, broker_id, acting=acting))
    assert isinstance(result, Registered)
    return result.min_id_changes


def test_a_new_lowest_id_is_told_to_the_others() -> None:
    table = RouteTable()
    assert joined(table, C, 3) == (), "there was nobody to tell"
    assert joined(table, B, 2) == (MinIdChange("b-a", 2, B, (C,), None, "10.0.0.2:10912"),)
    assert joined(table, A, 5) == ()
    assert joined(table, B, 2) == (), "nothing new"
    assert joined(table, B, 0) == (MinIdChange("b-a", 0, B, (C, A), None, "10.0.0.2:10912"),)


def test_a_broker_that_is_alone_is_told_itself() -> None:
    table = RouteTable()
    joined(table, B, 2)
    assert joined(table, B, 0) == (MinIdChange("b-a", 0, B, (B,), None, "10.0.0.2:10912"),)


def test_the_lowest_that_moves_up_is_told_to_all() -> None:
    table = RouteTable()
    joined(table, A, 1)
    joined(table, B, 2)
    assert joined(table, A, 7) == (MinIdChange("b-a", 2, B, (B, A), None, "10.0.0.1:10912"),)


def test_the_lowest_that_leaves_is_told_to_all_who_stay() -> None:
    table = RouteTable()
    for broker_id, addr in ((0, A), (1, B), (2, C)):
        joined(table, addr, broker_id)
    assert table.unregister("C1", "b-a", C).min_id_changes == ()
    joined(table, C, 2)
    assert table.unregister("C1", "b-a", A).min_id_changes == (MinIdChange("b-a", 1, B, (B, C), A),)
    assert table.unregister("C1", "b-a", B).min_id_changes == (MinIdChange("b-a", 2, C, (C,), B),)
    assert table.unregister("C1", "b-a", C).min_id_changes == (), "nobody is left"


def test_a_batch_tells_its_end_and_only_groups_with_an_acting_master() -> None:
    table = RouteTable()
    for broker_id, addr in ((0, A), (1, B), (2, C)):
        joined(table, addr, broker_id)
    gone = table.unregister_all([("C1", B), ("C1", A), ("C1", A), ("C1", "unknown:1")])
    assert [live.broker_addr for live in gone.removed] == [B, A]
    assert gone.min_id_changes == (MinIdChange("b-a", 2, C, (C,), A),)
    plain = RouteTable()
    joined(plain, A, 0, acting=False)
    joined(plain, B, 1, acting=False)
    assert plain.unregister("C1", "b-a", A).min_id_changes == ()


# ---- whole tables, limits, versions ----


def test_a_whole_registration_may_delete_topics() -> None:
    """Pitfall 16 (#7066): only where every registration is whole, and never by one without topics."""
    table = RouteTable(delete_missing_topics=True)
    table.register(registration(A, 0, topics=("T1", "T2")))
    table.register(registration(B, 0, name="b-b", topics=("T2",)))
    table.register(registration(A, 0, topics=(), counter=2))
    assert sorted(table.topic_names()) == ["T1", "T2"]
    table.register(registration(A, 0, topics=("T2",), counter=3))
    assert sorted(table.topic_names()) == ["T2"]
    table.register(registration(A, 0, topics=("T3",), counter=4))
    assert addrs(table, "T2") == [{0: B}]
    table.delete_missing_topics = False
    table.register(registration(A, 0, topics=("T4",), counter=5))
    assert sorted(table.topic_names()) == ["T2", "T3", "T4"]


def test_a_slave_below_which_others_are_changes_no_topics() -> None:
    table = RouteTable(delete_missing_topics=True)
    table.register(registration(A, 0, topics=("T1",)))
    table.register(registration(B, 2, topics=("T2",)))
    assert sorted(table.topic_names()) == ["T1"]


def test_there_is_a_limit_for_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("namesrv.core.registration_rules.ADDRESSES_MAX", 1)
    table = RouteTable()
    table.register(registration(A))
    assert table.register(registration(A, counter=2)) == Registered(), "who is here stays"
    assert isinstance(table.register(registration(B, 1)), RegistrationRefused)


def refusal(table: RouteTable, request: Registration) -> str:
    result = table.register(request)
    assert isinstance(result, RegistrationRefused)
    table.check_invariants()
    return result.remark


def test_there_are_limits_for_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("namesrv.core.topics.TOPICS_PER_BROKER_MAX", 3)
    monkeypatch.setattr("namesrv.core.topics.PAIRS_MAX", 4)
    table = RouteTable()
    table.register(registration(A, topics=("T1", "T2")))
    assert refusal(table, registration(A, topics=("T3", "T4"), counter=2)) == (
        "b-a would have more than 3 topics: delete some"
    )
    assert table.register(registration(A, topics=("T1", "T3"), counter=2)) == Registered()
    assert refusal(table, registration(B, name="b-b", topics=("T1", "T2"))) == (
        "all brokers together would have more than 4 topics: delete some"
    )
    assert table.register(registration(B, name="b-b", topics=("T1",))) == Registered()
    queue = QueueData(broker_name="b-b", read_queue_nums=1, write_queue_nums=1, perm=6)
    assert (
        table.register_topic("T9", [queue])
        == "all brokers together would have more than 4 topics: delete some"
    )
    assert table.register_topic("T1", [queue]) is None, "it is there already"
    assert "not registered" in (
        table.register_topic("T", [queue.model_copy(update={"broker_name": "x"})]) or ""
    )
    table.unregister("C1", "b-a", A)
    assert table.register_topic("T9", [queue]) is None
    table.check_invariants()


def test_there_are_limits_for_names() -> None:
    table, long = RouteTable(), "x" * 1_025
    for request in (
        registration(topics=(long,)),
        registration(long),
        registration(name=long),
        registration(cluster=long),
        registration(zone=long),
        registration(filters=(long,)),
        registration(filters=("f:1",) * 1_001),
    ):
        assert refusal(table, request)
    assert not any(table.counts().values())
    assert table.register(registration(topics=(long[:-1],), filters=("f:1",) * 1_000)) == Registered()


def test_a_hanging_master_is_replaced_by_a_later_epoch() -> None:
    """Pitfall 21: its connection is open, its timeout 120 s; a greater stateVersion mends the route."""
    table = RouteTable()
    table.register(registration(A, 0, epoch=1))
    table.register(registration(B, 1, epoch=1))
    assert table.register(registration(B, 0, epoch=2, counter=2)) == Registered(replaced=(("C1", A),))
    assert addrs(table) == [{0: B}]


def test_the_version_moves_with_what_is_shown_and_only_then() -> None:
    """Pitfall 14: it guards the answers that are kept."""
    table = RouteTable()

    def moves(act: Callable[[], object]) -> bool:
        before = table.version
        act()
        return table.version != before

    assert moves(lambda: table.register(registration(A, acting=True)))
    assert not moves(lambda: table.register(registration(A, acting=True)))
    assert not moves(lambda: table.register(registration(A, acting=True, counter=2))), "same topics"
    assert moves(lambda: table.register(registration(A, acting=True, counter=3, queues=4)))
    assert moves(lambda: table.register(registration(A, acting=False)))
    assert moves(lambda: table.register(registration(A, zone="east")))
    assert moves(lambda: table.register(registration(A, zone="east", filters=("f:1",))))
    assert moves(lambda: table.register(registration(B, 1)))
    assert not moves(lambda: table.register(registration(C, 0, epoch=-1))), "refused"
    assert moves(lambda: table.wipe_write_perm("b-a"))
    assert not moves(lambda: table.wipe_write_perm("b-a"))
    assert moves(lambda: table.add_write_perm("b-a"))
    assert moves(lambda: table.delete_topic("T1"))
    assert not moves(lambda: table.delete_topic("T1"))
    assert moves(lambda: table.unregister("C1", "b-a", A))
    assert not moves(lambda: table.unregister("C1", "b-a", A))
    table.check_invariants()


def test_a_wipe_is_explained() -> None:
    table = RouteTable()
    table.register(registration("h1:1", name="b-a", topics=("T1", "T2")))
    table.register(registration("h2:1", name="b-b", topics=("T1",)))

    def explained() -> tuple[list[str], list[str]]:
        found = at_once(table.explain_wipe("b-a"))
        return found.topics, found.nowhere_else

    assert explained() == (["T1", "T2"], ["T2"])
    table.wipe_write_perm("b-b")
    assert explained() == (["T1", "T2"], ["T1", "T2"])
    table.wipe_write_perm("b-a")
    assert explained() == ([], []), "nothing is left to wipe"
    assert at_once(table.explain_wipe("b-x")).topics == []
