"""Who is in which group: members are connections, subscriptions have versions, locks have an end."""

import random

import pytest

from broker.clients.core.locks import LOCK_MS, Queue, QueueLocks
from broker.clients.core.registry import Client, ClientRegistry, Consumer, Subscription
from broker.filter.core.subscription import MATCH_ALL
from keelmq.remoting.operation import Caller


def client(connection_id: int, client_id: str = "c1") -> Client:
    return Client(connection_id, client_id, f"10.0.0.1:{connection_id}", "JAVA", 479)


def subscribed(version: int, *topics: str) -> tuple[Subscription, ...]:
    return tuple(Subscription(topic, "*", "TAG", version, MATCH_ALL) for topic in topics)


def consumer(
    group: str = "g", subscriptions: tuple[Subscription, ...] | None = (), model: str = "CLUSTERING"
) -> Consumer:
    return Consumer(group, "CONSUME_PASSIVELY", model, "CONSUME_FROM_LAST_OFFSET", subscriptions)


def heartbeat(registry: ClientRegistry, who: Client, *what: Consumer, now_ms: int = 0) -> list[str]:
    changed = registry.heartbeat(who, what, [], now_ms=now_ms)
    registry.check_invariants()
    return changed


def test_members_and_what_changes_them() -> None:
    registry = ClientRegistry()
    wants = consumer(subscriptions=subscribed(1, "T"))
    assert heartbeat(registry, client(1), wants) == ["g"]
    assert heartbeat(registry, client(1), wants) == []  # nothing new
    assert heartbeat(registry, client(2, "c2"), wants) == ["g"]
    assert registry.consumers["g"].client_ids == ["c1", "c2"]
    assert registry.closed(2) == ["g"]  # who is left hears of it
    assert registry.closed(1) == []  # nobody is left
    assert registry.closed(1) == []
    assert not registry.consumers
    registry.check_invariants()


def test_a_change_of_topics_alone_is_news() -> None:
    """clients pitfall 22: members share out the queues again when only the group's topics change."""
    registry = ClientRegistry()
    heartbeat(registry, client(1), consumer(subscriptions=subscribed(1, "T")))
    assert heartbeat(registry, client(1), consumer(subscriptions=subscribed(2, "T", "U"))) == ["g"]
    assert heartbeat(registry, client(1), consumer(subscriptions=subscribed(3, "U"))) == ["g"]
    assert heartbeat(registry, client(1), consumer(subscriptions=subscribed(4, "U"))) == []
    assert set(registry.consumers["g"].subscriptions) == {"U"}
    assert registry.consumers["g"].subscriptions["U"].version == 4


def sub(topic: str, expression: str = "*", kind: str = "TAG") -> Subscription:
    return Subscription(topic, expression, kind, 1, MATCH_ALL)


def test_members_that_subscribe_differently() -> None:
    """Queues of T are shared out to the member without it as well: nobody consumes those."""
    registry = ClientRegistry()
    agreement = registry.agreement
    heartbeat(registry, client(1), consumer(subscriptions=(sub("T", "a || b"), sub("%RETRY%g"))))
    heartbeat(registry, client(2, "c2"), consumer(subscriptions=(sub("T", "b||a"),)))
    assert not agreement.differing, "the order of tags, and the retry topic, do not count"
    heartbeat(registry, client(3, "c3"), consumer(subscriptions=None))
    assert not agreement.differing, "a heartbeat without subscriptions tells nothing"
    for other in (
        (sub("T", "a"),), (sub("T", "a || b"), sub("U")), (sub("U", "a || b"),), (),
        (sub("T", "a || b", "SQL92"),),
    ):  # fmt: skip
        heartbeat(registry, client(2, "c2"), consumer(subscriptions=other))
        assert agreement.differing == {"g"} and agreement.dropped("g") == []
    heartbeat(registry, client(2, "c2"), consumer(subscriptions=(sub("T", "a || b"),)))
    assert not agreement.differing, "it has been mended"
    heartbeat(registry, client(2, "c2"), consumer(subscriptions=(sub("T"),)))
    registry.closed(1)
    assert not agreement.differing, "the one that differed has left"
    registry.closed(2)
    registry.closed(3)
    assert not agreement.groups, "a group that is offline takes no memory"


def test_a_topic_that_every_member_has_unsubscribed_from() -> None:
    registry = ClientRegistry()
    agreement = registry.agreement
    for number in (1, 2):
        heartbeat(registry, client(number, f"c{number}"), consumer(subscriptions=(sub("T"), sub("U"))))
    heartbeat(registry, client(1), consumer(subscriptions=(sub("U"),)))
    assert agreement.dropped("g") == [] and agreement.differing == {"g"}
    heartbeat(registry, client(2, "c2"), consumer(subscriptions=(sub("U"),)))
    assert agreement.dropped("g") == ["T"] and agreement.dropping == {"g"} and not agreement.differing
    heartbeat(registry, client(1), consumer(subscriptions=(sub("T"), sub("U"))))
    heartbeat(registry, client(2, "c2"), consumer(subscriptions=(sub("T"), sub("U"))))
    assert not agreement.dropping
    many = tuple(sub(f"t{number}") for number in range(200))
    heartbeat(registry, client(1), consumer(subscriptions=many))
    registry.closed(2)
    heartbeat(registry, client(1), consumer(subscriptions=()))
    assert len(agreement.dropped("g")) == 64
    registry.closed(1)
    assert not agreement.dropping and not agreement.groups


def test_an_older_subscription_replaces_none() -> None:
    registry = ClientRegistry()
    heartbeat(registry, client(1), consumer(subscriptions=subscribed(5, "T")))
    heartbeat(registry, client(2), consumer(subscriptions=subscribed(4, "T")))
    assert registry.consumers["g"].subscriptions["T"].version == 5


def test_many_silent_connections_are_removed_in_several_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.clients.core.registry.EXPIRED_AT_ONCE", 2)
    registry = ClientRegistry()
    for number in range(5):
        heartbeat(registry, client(number, f"c{number}"), consumer(), now_ms=0)
    heartbeat(registry, client(9, "c9"), consumer(), now_ms=100_000)
    for left in (4, 2):
        assert registry.expire(now_ms=120_000, timeout_ms=120_000) == (["g"], True)
        assert len(registry.consumers["g"].members) == left
    assert registry.expire(now_ms=120_000, timeout_ms=120_000) == (["g"], False)
    assert list(registry.consumers["g"].members) == [9]
    registry.check_invariants()


def test_a_short_heartbeat_drops_no_subscription() -> None:
    """clients pitfall 17: a heartbeat without subscriptions says nothing about them."""
    registry = ClientRegistry()
    heartbeat(registry, client(1), consumer(subscriptions=subscribed(1, "T")))
    assert heartbeat(registry, client(1), consumer(subscriptions=None)) == []
    assert set(registry.consumers["g"].subscriptions) == {"T"}


def test_the_end_of_an_old_connection_leaves_the_new_one() -> None:
    """broker-ops pitfall 7: the same client on a new connection is another member."""
    registry = ClientRegistry()
    heartbeat(registry, client(1), consumer(), now_ms=0)
    heartbeat(registry, client(2), consumer(), now_ms=100_000)
    assert registry.consumers["g"].client_ids == ["c1"]  # named once
    assert registry.expire(now_ms=120_000, timeout_ms=120_000) == (["g"], False)
    assert list(registry.consumers["g"].members) == [2]
    registry.check_invariants()


def test_a_farewell_is_of_one_group_and_one_client() -> None:
    registry = ClientRegistry()
    registry.heartbeat(client(1), [consumer("g"), consumer("h")], ["p"], now_ms=0)
    assert registry.unregister(1, "somebody else", consumer_group="g", producer_group="p") == []
    assert registry.unregister(2, "c1", consumer_group="g") == []
    assert set(registry.consumers) == {"g", "h"}
    registry.unregister(1, "c1", producer_group="p", consumer_group="g")
    assert set(registry.consumers) == {"h"} and not registry.producers
    registry.unregister(1, "c1")  # clients write empty groups for none
    registry.check_invariants()


def test_broadcasting_consumers_share_nothing_out() -> None:
    registry = ClientRegistry()
    assert heartbeat(registry, client(1), consumer(model="BROADCASTING")) == []
    heartbeat(registry, client(2), consumer(model="BROADCASTING"))
    assert registry.closed(1) == []


def test_groups_of_a_topic_are_groups() -> None:
    """broker-ops pitfall 24: not the topic's own name."""
    registry = ClientRegistry()
    heartbeat(registry, client(1), consumer("g", subscribed(1, "T")), consumer("h", subscribed(1, "T", "U")))
    assert registry.groups_of("T") == ["g", "h"]
    assert registry.groups_of("U") == ["h"]


def test_it_is_bounded() -> None:
    registry = ClientRegistry(registrations_max=3)
    for index in range(10):
        registry.heartbeat(client(index, f"c{index}"), [consumer(f"g{index}")], ["p"], now_ms=0)
        registry.check_invariants()
    assert len(registry.consumers) + len(registry.producers["p"]) == 3


def test_above_the_limit_the_longest_subscriptions_are_forgotten() -> None:
    """A group of one heartbeat could take hundreds of megabytes, and there are thousands of groups."""
    registry = ClientRegistry(subscription_chars_max=40)
    heartbeat(registry, client(1), consumer("small", subscribed(1, "T")))
    for group in ("g", "h", "i"):
        heartbeat(registry, client(1), consumer(group, subscribed(1, "T" * 10)))  # with "*" and "TAG"
    assert registry.forgotten == 2
    assert len(registry.consumers["small"].subscriptions) == 1
    assert sum(len(each.subscriptions) for each in registry.consumers.values()) == 2
    heartbeat(registry, client(1), consumer("huge", subscribed(1, "T" * 100)))
    assert not registry.consumers["huge"].subscriptions and registry.groups_of("T") == ["small"]
    assert registry.forgotten == 3
    registry.closed(1)
    registry.check_invariants()


class Named(Caller):
    def __init__(self, user: str) -> None:
        self.user = user


def of_user(user: str, connection_id: int) -> Client:
    return Client(connection_id, user, "10.0.0.1:1", "JAVA", 479, Named(user))


def test_a_user_with_less_than_the_average_gets_room_from_the_one_with_most() -> None:
    registry = ClientRegistry(registrations_max=6)
    registry.heartbeat(of_user("bob", 1), [consumer("g")], [], now_ms=0)
    registry.heartbeat(of_user("mallory", 2), [consumer("g")], ["p"], now_ms=0)
    registry.heartbeat(of_user("mallory", 3), [consumer("g")], ["p", "q"], now_ms=0)
    assert (
        heartbeat(registry, of_user("mallory", 4), consumer("h")) == []
    )  # it has most, so it takes from nobody
    assert registry.refused == 1
    assert heartbeat(registry, of_user("alice", 5), consumer("h")) == ["h", "g"]  # g has lost a member
    assert set(registry.consumers["g"].members) == {1, 2} and set(registry.producers) == {"p"}
    assert registry.refused == 4
    assert heartbeat(registry, of_user("mallory", 3), consumer("g")) == ["g"]  # there is room again


def test_without_users_room_is_shared_between_addresses() -> None:
    registry = ClientRegistry(registrations_max=4)
    for each in range(9):
        registry.heartbeat(client(each), [], [f"p{each}"], now_ms=0)
    other = Client(10, "c10", "10.0.0.2:1", "JAVA", 479)
    assert heartbeat(registry, other, consumer()) == ["g"]
    assert len(registry.producers) == 3
    assert registry.closed(10) == [] and registry.closed(1) == [] and registry.closed(10) == []
    registry.check_invariants()


def test_random_histories() -> None:
    """Against a plain set of (group, connection)."""
    dice = random.Random(7)
    registry, model = ClientRegistry(), set[tuple[str, int]]()
    for _ in range(3_000):
        connection_id, group = dice.randrange(8), f"g{dice.randrange(4)}"
        who = client(connection_id, f"c{connection_id // 2}")
        match dice.randrange(4):
            case 0 | 1:
                heartbeat(registry, who, consumer(group, subscribed(dice.randrange(3), "T")))
                model.add((group, connection_id))
            case 2:
                registry.unregister(connection_id, who.client_id, consumer_group=group)
                model.discard((group, connection_id))
            case 3:
                registry.closed(connection_id)
                model = {each for each in model if each[1] != connection_id}
        registry.check_invariants()
        found = {(name, each) for name, group in registry.consumers.items() for each in group.members}
        assert found == model


Q0, Q1 = Queue("T", 0), Queue("T", 1)


def test_locks() -> None:
    locks = QueueLocks()
    assert locks.lock("g", "a", [Q0, Q1], now_ms=0) == [Q0, Q1]
    assert locks.lock("g", "b", [Q0], now_ms=1) == []
    assert locks.lock("h", "b", [Q0], now_ms=1) == [Q0]  # another group has its own
    assert locks.lock("g", "a", [Q0], now_ms=30_000) == [Q0]  # asked for again: it is kept
    assert locks.lock("g", "b", [Q0, Q1], now_ms=LOCK_MS) == [Q1]
    locks.unlock("g", "a", [Q0, Q1])  # Q1 is not a's any more
    assert locks.lock("g", "c", [Q0, Q1], now_ms=LOCK_MS) == [Q0]


def test_a_lost_unlock_ends_by_itself() -> None:
    """clients pitfall 6: a client with a wrong flag never unlocks; the lock's time ends it."""
    locks = QueueLocks()
    locks.lock("g", "a", [Q0], now_ms=0)
    assert locks.is_ordered("g", now_ms=LOCK_MS - 1) and not locks.is_ordered("g", now_ms=LOCK_MS)
    locks.expire(now_ms=LOCK_MS)
    assert len(locks) == 0
    assert locks.lock("g", "b", [Q0], now_ms=LOCK_MS) == [Q0]


def test_locks_are_bounded() -> None:
    locks = QueueLocks(locks_max=2)
    queues = [Queue("T", index) for index in range(5)]
    assert locks.lock("g", "a", queues, now_ms=0) == queues[:2]
    assert locks.lock("g", "a", queues, now_ms=1) == queues[:2]
    assert len(locks) == 2
