"""Random histories against both tables of the name server: the invariants hold after every step."""

from hypothesis import given, settings
from hypothesis import strategies as st

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


KEYS = st.sampled_from([BrokerKey("C1", "b-a", each) for each in (1, 2, 3)])
BEAT = st.tuples(st.just("beat"), KEYS, st.integers(0, 6), st.sampled_from(["r1", "r2"]))
CLOSE = st.tuples(st.just("close"), st.integers(0, 6))
WAIT = st.tuples(st.just("wait"), st.integers(0, 700))
FORGET = st.tuples(st.just("forget"), KEYS)
ASK = st.tuples(st.just("ask"), KEYS)
PROVE = st.tuples(st.just("prove"), st.integers(0, 3))


@settings(max_examples=share(300), deadline=None)
@given(st.lists(BEAT | CLOSE | WAIT | FORGET | ASK | PROVE, max_size=40))
def test_heartbeat_table(steps: list[tuple[object, ...]]) -> None:
    """ask, prove: a proof is begun for the present suspicion of a key, and arrives any time later. A key that
    has sent a heartbeat since is not affected."""
    table, now = HeartbeatTable(), 0
    asked: list[tuple[BrokerKey, int]] = []
    heard: set[tuple[BrokerKey, int]] = set()
    for step in steps:
        match step:
            case ("beat", BrokerKey() as key, int(connection), str(run)):
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


@settings(max_examples=share(200), deadline=None)
@given(st.binary(max_size=200), st.integers(0, 500))
def test_garbage_in_a_register_body_is_one_error(raw: bytes, version: int) -> None:
    import zlib

    for body in (raw, zlib.compress(raw)):
        try:
            inflate_body(body, version)
        except BadBody:
            pass
