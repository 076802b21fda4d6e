"""KnownMasters: after which changes of a route a consumer commits its offsets again."""

from keelmq.client.cluster.known_masters import KnownMasters
from keelmq.client.cluster.routes import TopicRoute
from keelmq.client.consumer.offset_store import BrokerOffsets
from keelmq.client.core.queues import MessageQueue


def route(topic: str = "T", queues: int = 1, **masters: str | None) -> TopicRoute:
    addresses = {name: ({} if at is None else {0: at}) | {2: "slave"} for name, at in masters.items()}
    found = tuple(MessageQueue(topic, name, each) for name in masters for each in range(queues))
    return TopicRoute(topic, read_queues=found, addresses=addresses)


def test_only_another_master_replaces_one() -> None:
    known = KnownMasters()
    assert known.replaced(route(a="1", b="2")) == frozenset(), "the first route"
    assert known.replaced(route(a="1", b="2", queues=8)) == frozenset(), "more queues"
    assert known.replaced(route(a="1", b="3")) == {"b"}
    assert known.replaced(route(a="1", b="3", c="4")) == frozenset(), "a new broker"
    assert known.replaced(route("U", a="9")) == frozenset(), "another topic"


def test_a_master_that_is_back_may_lack_its_last_seconds() -> None:
    known = KnownMasters()
    known.replaced(route(a="1", b="2"))
    assert known.replaced(route(a=None, b="2")) == frozenset(), "nobody to commit to"
    assert known.replaced(route(a="1", b="2")) == {"a"}
    known.replaced(route(b="2"))  # the name server has dropped all of its replicas
    assert known.replaced(route(a="1", b="2")) == {"a"}


class Reader:
    def __init__(self) -> None:
        self.commits: list[MessageQueue] = []

    async def commit(self, queue: MessageQueue, offset: int, *, timeout_ms: int) -> None:
        self.commits.append(queue)


async def test_offsets_are_committed_again_only_where_the_master_was_replaced() -> None:
    reader = Reader()
    offsets = BrokerOffsets(reader)  # type: ignore[arg-type]
    at = {MessageQueue("T", name, queue_id): 5 for name in ("a", "b") for queue_id in range(3)}
    await offsets.save(at)
    reader.commits.clear()
    await offsets.save(at)
    assert reader.commits == []
    offsets.forget({"b"})
    await offsets.save(at)
    assert {each.broker_name for each in reader.commits} == {"b"} and len(reader.commits) == 3
