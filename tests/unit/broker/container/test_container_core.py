"""Plans, members and identities of a container: pure."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.container.core.identity import NOT_APPLIED, BrokerIdentity
from broker.container.core.members import BadMembers, Members, parse_members
from broker.container.core.plan import BrokerPlan, problems_of


def plan(name: str, port: int, store: str, *, broker_id: int = 0) -> BrokerPlan:
    ports = {port - 2: "fastListenPort", port: "listenPort", port + 1: "haListenPort"}
    identity = BrokerIdentity("c1", name, broker_id)
    return BrokerPlan(f"/conf/{name}-{broker_id}.conf", identity, ports, {"storePathRootDir": store})


@pytest.mark.parametrize(
    ("new", "problem"),
    [
        (plan("a", 20911, "/s/b"), "c1_a_0 has already been added to current broker container"),
        (plan("a", 20911, "/s/b", broker_id=1), ""),
        (plan("a", 20911, "/s/b", broker_id=NOT_APPLIED), "two replicas in one process are lost together"),
        (plan("b", 10911, "/s/b"), "port 10911 (listenPort) is the listenPort of c1_a_0"),
        (plan("b", 10912, "/s/b"), "port 10912 (listenPort) is the haListenPort of c1_a_0"),
        (plan("b", 10909, "/s/b"), "port 10909 (listenPort) is the fastListenPort of c1_a_0"),
        (plan("b", 10910, "/s/b"), "port 10911 (haListenPort) is the listenPort of c1_a_0"),
        (plan("b", 10914, "/s/b"), "port 10912 (fastListenPort) is the haListenPort of c1_a_0"),
        (plan("b", 10915, "/s/b"), ""),
        (plan("b", 10811, "/s/b"), "port 10811 (listenPort) is the container's own (listenPort)"),
        (plan("b", 20911, "/s/a"), "storePathRootDir /s/a is the same as"),
        (plan("b", 20911, "/s/a/b"), "storePathRootDir /s/a/b is the same as"),
        (plan("b", 20911, "/s"), "storePathRootDir /s is the same as"),
        (plan("b", 20911, "/s/ab"), ""),
    ],
)
def test_what_two_brokers_cannot_share(new: BrokerPlan, problem: str) -> None:
    found = problems_of(new, [plan("a", 10911, "/s/a")], {10811: "listenPort", 10809: "fastListenPort"})
    assert any(problem in each for each in found) if problem else not found, found


@given(st.lists(st.integers(1_024, 1_100), min_size=2, max_size=6, unique=True))
def test_a_plan_without_problems_has_no_port_twice(ports: list[int]) -> None:
    plans = [plan(f"b{port}", port, f"/s/{port}") for port in sorted(ports)]
    problems = [problems_of(each, plans[:number], {}) for number, each in enumerate(plans)]
    accepted = [each for each, found in zip(plans, problems, strict=True) if not found]
    used = [port for each in accepted for port in each.ports]
    if not any(problems):
        assert len(used) == len(set(used))
    for one, other in pairwise(accepted):
        assert not problems_of(other, [one], {})


def test_names_follow_the_id() -> None:
    assert BrokerIdentity("c", "a", 0).canonical_name == "c_a_0"
    assert BrokerIdentity("c", "a", NOT_APPLIED).canonical_name == "c_a", "and not c_a_-1, as RocketMQ says"


def test_members_after_changes() -> None:
    configured = ["/a", "/b"]
    members = Members()
    assert members.to_start(configured) == ["/a", "/b"]
    members = members.with_removed("/a", configured).with_added("/c", 1)
    assert members.to_start(configured) == ["/b", "/c"]
    members = members.with_added("/a", 0).with_removed("/c", configured)
    assert members.to_start(configured) == ["/a", "/b"]
    assert members.removed == frozenset(), "only what is configured must be remembered as removed"
    assert parse_members(members.to_json()) == members


def test_a_configured_broker_that_was_moved_ends_with_its_line_in_the_configuration() -> None:
    members = Members().with_added("/c", 1).with_moved("/a", 1).with_moved("/c", 0)
    members = parse_members(members.to_json())
    assert [members.worker_of(each) for each in ("/a", "/b", "/c")] == [1, None, 0]
    assert members.to_start(["/a", "/b"]) == ["/a", "/b", "/c"]
    assert members.to_start(["/b"]) == ["/b", "/c"], "nobody has added a"
    assert members.with_removed("/a", ["/a"]).with_added("/a", 0).worker_of("/a") == 0


def test_members_of_a_release_that_kept_no_places() -> None:
    members = parse_members('{"version": 1, "added": {"/a": 2}, "removed": []}')
    assert members == Members({"/a": 2})


NAMES = st.sampled_from(["/a", "/b", "/c", "/d"])


@given(st.lists(st.tuples(st.booleans(), NAMES, st.integers(0, 3))), st.lists(NAMES, unique=True))
def test_the_last_request_of_a_file_decides(
    changes: list[tuple[bool, str, int]], configured: list[str]
) -> None:
    members, there = Members(), set(configured)
    for is_added, path, worker in changes:
        if is_added:
            members = members.with_added(path, worker)
            there.add(path)
        else:
            members = members.with_removed(path, configured)
            there.discard(path)
        members = parse_members(members.to_json())
    assert set(members.to_start(configured)) == there
    assert len(members.to_start(configured)) == len(there)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"version": 2}', '{"version": 1, "added": [], "removed": []}',
     '{"version": 1, "added": {"/a": true}, "removed": []}', '{"version": 1, "added": {}, "removed": [1]}',
     '{"version": 1, "added": {}, "removed": [], "placed": ["/a"]}'],
)  # fmt: skip
def test_damaged_members(text: str) -> None:
    with pytest.raises(BadMembers):
        parse_members(text)
