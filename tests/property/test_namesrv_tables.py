"""Random histories against both tables of the name server: the invariants hold after every step."""

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from keelmq.remoting.codes import MASTER_ID, PERM_WRITE
from keelmq.remoting.operations.route import TopicRouteData
from namesrv.core.aliases import AliasLimits
from namesrv.core.liveness import BrokerKey, HeartbeatTable
from namesrv.core.register_body import BadBody, inflate_body
from namesrv.core.routes import RouteTable
from namesrv.core.values import Registered, StaleRegistration
from tests.support.slices import share
from tests.unit.namesrv.test_routes import registration

ADDRS = st.sampled_from(["h1:1", "h2:1", "h3:1"])
IDS = st.integers(0, 2)
NAMES = st.sampled_from(["b-a", "b-b"])
TOPICS = st.sampled_from([("T1",), ("T1", "T2"), ("T2", "T3")])
REGISTER = st.tuples(st.just("register"), ADDRS, IDS, NAMES, st.integers(0, 3), TOPICS, st.booleans())
UNREGISTER = st.tuples(st.just("unregister"), ADDRS, NAMES)
ELECT = st.tuples(st.just("elect"), ADDRS, NAMES, st.integers(1, 4))
FORGET_MASTER = st.tuples(st.just("forget"), NAMES)
WIPE = st.tuples(st.just("wipe"), NAMES)
LIMITS = st.builds(AliasLimits, st.integers(0, 3), st.integers(1, 50))


@settings(max_examples=share(200), deadline=None)
@given(st.lists(REGISTER | UNREGISTER, max_size=30))
def test_route_table(steps: list[tuple[object, ...]]) -> None:
    table = RouteTable(support_acting_master=True)
    for step in steps:
        match step:
            case ("register", str(addr), int(broker_id), str(name), int(epoch), tuple(topics), bool(acting)):
                before = table.cluster_info()
                result = table.register(
                    registration(addr, broker_id, name=name, epoch=epoch, topics=topics, acting=acting)
                )
                if isinstance(result, StaleRegistration):
                    assert table.cluster_info() == before, "refused, and yet something changed"
                else:
                    assert isinstance(result, Registered)
                    assert table.cluster_info().broker_addr_table[name].broker_addrs[broker_id] == addr
            case ("unregister", str(addr), str(name)):
                table.unregister("C1", name, addr)
        table.check_invariants()
        for topic in ("T1", "T2", "T3"):
            table.pick_up_route(topic)


@settings(max_examples=share(300), deadline=None)
@given(st.lists(REGISTER | UNREGISTER | ELECT | FORGET_MASTER | WIPE, max_size=30), LIMITS)
def test_alias_entries(steps: list[tuple[object, ...]], limits: AliasLimits) -> None:
    """Whatever happened: aliases add to the route and change nothing of it, lead to brokers that forward, are
    few, and cannot be read. The master is the one of the newest epoch that was told and is registered."""
    table = RouteTable(aliases=limits)
    for step in steps:
        match step:
            case (
                "register",
                str(addr),
                int(broker_id),
                str(name),
                int(epoch),
                tuple(topics),
                bool(forwards),
            ):
                request = registration(addr, broker_id, name=name, epoch=epoch, topics=topics)
                table.register(replace(request, forwards_sends=forwards))
            case ("unregister", str(addr), str(name)):
                table.unregister("C1", name, addr)
            case ("elect", str(addr), str(name), int(epoch)):
                table.elected.elect("C1", name, addr, epoch)
            case ("forget", str(name)):
                table.elected.forget("C1", name)
            case ("wipe", str(name)):
                table.wipe_write_perm(name)
        table.check_invariants()
        for topic in ("T1", "T2", "T3"):
            plain, route = table.pick_up_route(topic), table.pick_up_route(topic, aliases=True)
            if plain is None or route is None:
                assert plain is route
                continue
            count = len(plain.queue_datas)
            assert route.queue_datas[:count] == plain.queue_datas
            assert route.broker_datas[:count] == plain.broker_datas
            check_aliases(table, plain, route, limits)


def check_aliases(
    table: RouteTable, plain: TopicRouteData, route: TopicRouteData, limits: AliasLimits
) -> None:
    queues, brokers = (each[len(plain.queue_datas) :] for each in (route.queue_datas, route.broker_datas))
    assert [each.broker_name for each in queues] == [each.broker_name for each in brokers]
    for each in plain.broker_datas:
        assert len(set(each.broker_addrs.values())) == len(each.broker_addrs), "one address under two ids"
        master = table.elected.unregistered_master("C1", each.broker_name)
        if master in each.broker_addrs.values():
            assert each.broker_addrs[MASTER_ID] == master
    if not queues:
        return
    (target,) = [each for each in plain.queue_datas if each.perm & PERM_WRITE]
    group = next(each for each in plain.broker_datas if each.broker_name == target.broker_name)
    total = target.write_queue_nums + len(queues)
    assert len(queues) <= limits.per_group
    assert len(queues) * 100 <= limits.percent_max * total
    for queue, broker in zip(queues, brokers, strict=True):
        assert (queue.perm, queue.write_queue_nums) == (PERM_WRITE, 1)
        ((broker_id, addr),) = broker.broker_addrs.items()
        live = table.live("C1", addr)
        assert broker_id == MASTER_ID
        assert live is not None and live.broker_name == group.broker_name
        assert live.forwards_sends or addr == group.broker_addrs.get(MASTER_ID)


KEYS = st.sampled_from([BrokerKey("C1", "b-a", each) for each in (1, 2, 3)])
HEARTBEAT = st.tuples(st.just("heartbeat"), KEYS, st.integers(0, 6), st.sampled_from(["r1", "r2"]))
CLOSE = st.tuples(st.just("close"), st.integers(0, 6))
WAIT = st.tuples(st.just("wait"), st.integers(0, 700))
FORGET = st.tuples(st.just("forget"), KEYS)
ASK = st.tuples(st.just("ask"), KEYS)
PROVE = st.tuples(st.just("prove"), st.integers(0, 3))


@settings(max_examples=share(300), deadline=None)
@given(st.lists(HEARTBEAT | CLOSE | WAIT | FORGET | ASK | PROVE, max_size=40))
def test_heartbeat_table(steps: list[tuple[object, ...]]) -> None:
    """ask, prove: a proof is begun for the present suspicion of a key, and arrives any time later. A key that
    has sent a heartbeat since is not affected."""
    table, now = HeartbeatTable(), 0
    asked: list[tuple[BrokerKey, int]] = []
    heard: set[tuple[BrokerKey, int]] = set()
    for step in steps:
        match step:
            case ("heartbeat", BrokerKey() as key, int(connection), str(run)):
                table.record_heartbeat(
                    key, connection_id=connection, incarnation=run, timeout_ms=1_000, now_ms=now, info=None
                )
                if table.suspicion(key) is None:  # a heartbeat of an outdated incarnation is ignored
                    heard |= {each for each in asked if each[0] == key}
            case ("close", int(connection)):
                table.connection_closed(connection, now)
            case ("wait", int(delay)):
                now += delay
            case ("forget", BrokerKey() as key):
                table.forget(key)
            case ("ask", BrokerKey() as key):
                if (suspicion := table.suspicion(key)) is not None:
                    asked.append((key, suspicion))
            case ("prove", int(number)) if number < len(asked):
                key, suspicion = asked[number]
                active = table.is_active(key, now)
                proved = table.proved_dead(key, suspicion, now)
                assert table.is_active(key, now) == (active and not proved)
                assert not (proved and (key, suspicion) in heard), "a heartbeat has arrived since the close"
        table.check_invariants()
        was_active = {key for key in list(table.keys()) if table.is_active(key, now)}
        table.scan_not_active(now)
        assert was_active == {key for key in list(table.keys()) if table.is_active(key, now)}
        deadline = table.next_deadline_ms()
        assert deadline is None or deadline > now
        table.check_invariants()


TIMED_HEARTBEAT = st.tuples(st.just("heartbeat"), KEYS, st.sampled_from([300, 500, 800]))
PAUSE = st.tuples(st.just("wait"), st.sampled_from([0, 1, 99, 100, 200, 300]))


@settings(max_examples=share(300), deadline=None)
@given(st.lists(TIMED_HEARTBEAT | PAUSE, max_size=30))
def test_timeouts_of_a_heartbeat_table(steps: list[tuple[object, ...]]) -> None:
    """Against a dict of the times at which the keys end: each key is told once, in the first scan after its
    end, and the table names the earliest end."""
    table, now = HeartbeatTable(), 0
    ends: dict[BrokerKey, int] = {}
    for step in steps:
        match step:
            case ("heartbeat", BrokerKey() as key, int(timeout)):
                is_new = table.record_heartbeat(
                    key, connection_id=0, incarnation="", timeout_ms=timeout, now_ms=now, info=None
                )
                assert is_new == (key not in ends)
                ends[key] = now + timeout
            case ("wait", int(delay)):
                now += delay
        keys, told = list(table.keys()), [key for key, end in ends.items() if end < now]
        assert [key for key in keys if table.is_active(key, now)] == [
            key for key in keys if key in ends and key not in told
        ]
        assert sorted(map(str, table.scan_not_active(now))) == sorted(map(str, told))
        ends = {key: end for key, end in ends.items() if key not in told}
        table.check_invariants()
        due = table.next_timeout_ms()
        assert (due is None) == (not ends)
        assert due is None or due <= min(ends.values()) + 1


@settings(max_examples=share(200), deadline=None)
@given(st.binary(max_size=200), st.integers(0, 500))
def test_garbage_in_a_register_body_is_one_error(raw: bytes, version: int) -> None:
    import zlib

    for body in (raw, zlib.compress(raw)):
        try:
            inflate_body(body, version)
        except BadBody:
            pass


OUTER = st.sampled_from(["", "external://o1:1", "external://o2:1;vpn://v2:1", "vpn://v3:1"])
ANNOUNCE = st.tuples(ADDRS, IDS, NAMES, st.integers(0, 3), OUTER)


@settings(max_examples=share(200), deadline=None)
@given(st.lists(ANNOUNCE | UNREGISTER | ELECT, max_size=30))
def test_no_answer_has_the_address_of_another_listener(steps: list[tuple[object, ...]]) -> None:
    """Except that of a broker without listeners: it has one."""
    table, announced = RouteTable(aliases=AliasLimits(2, 50)), dict[str, str]()
    for step in steps:
        match step:
            case ("unregister", str(addr), str(name)):
                table.unregister("C1", name, addr)
            case ("elect", str(addr), str(name), int(epoch)):
                table.elected.elect("C1", name, addr, epoch)
            case (str(addr), int(broker_id), str(name), int(epoch), str(outer)):
                request = registration(addr, broker_id, name=name, epoch=epoch, topics=("T1",))
                request = replace(request, advertised_listeners=outer, forwards_sends=True)
                if isinstance(table.register(request), Registered):
                    announced[addr] = outer
    for listener, first in (("internal", "h"), ("external", "o"), ("vpn", "v")):
        found = addresses_in(table, listener)
        for addr in found:
            assert addr.startswith(first) or announced[addr] == "", (listener, addr)
        inside = addresses_in(table, "internal")
        assert len(inside) >= len(found)
        shown = {addr for addr in inside if not announced[addr] or f"{listener}://" in announced[addr]}
        assert bool(found) == bool(inside if listener == "internal" else shown)


def addresses_in(table: RouteTable, listener: str) -> set[str]:
    """Returns those in every answer."""
    route = table.pick_up_route("T1", listener=listener, aliases=True)
    groups = [
        *(route.broker_datas if route else ()),
        *table.cluster_info(listener).broker_addr_table.values(),
    ]
    found = {addr for group in groups for addr in group.broker_addrs.values()}
    for name in ("b-a", "b-b"):
        found.update(table.member_group("C1", name, listener).broker_addrs.values())
    first = table.system_topics(listener).broker_addr
    return found if first is None else found | {first}
