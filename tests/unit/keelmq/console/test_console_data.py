"""The console's data over HTTP, with a real name server and a real broker in this process."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import httpx
import pytest

from keelmq.blocking import BlockingProducer
from keelmq.client import Message, Producer, PushConsumer
from keelmq.client.admin import AdminClient
from keelmq.client.consumer.consume_message_service import ReconsumeLater
from keelmq.client.consumer.settings import ConsumeFromWhere, ConsumerSettings
from keelmq.console.service import ConsoleService, standalone_app
from keelmq.console.sources import ConsoleSources
from pytest_keelmq.cluster import QUICK_LEVELS, TestBroker
from tests.support.http_parts import app_client

GROUP, TOPIC = "billing", "orders"
XSS = "<img src=x onerror=alert(1)>"
BASE = "/v1/console"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestBroker]:
    settings = {"messageDelayLevel": QUICK_LEVELS, "traceTopicEnable": "true"}
    with TestBroker(tmp_path_factory.mktemp("console"), settings) as broker:
        broker.create_topic(TOPIC, queues=2)
        with BlockingProducer(broker.namesrv_addr) as producer:
            for number in range(60):
                producer.send(Message(TOPIC, b'{"n":%d}' % number, tags="a", keys=f"k{number}"))
            producer.send(Message(TOPIC, XSS.encode(), keys="html"))
            producer.send(Message(TOPIC, bytes(range(256)), keys="binary"))
        yield broker


@pytest.fixture
async def http(broker: TestBroker) -> AsyncIterator[httpx.AsyncClient]:
    service = ConsoleService(ConsoleSources(name_servers=lambda: (broker.namesrv_addr,)))
    try:
        async with app_client(standalone_app(service)) as client:
            yield client
    finally:
        await service.stop()


async def get(http: httpx.AsyncClient, path: str, **query: Any) -> Any:
    answer = await http.get(f"{BASE}/{path}", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def act(http: httpx.AsyncClient, name: str, *, confirm: bool = True, **parameters: Any) -> Any:
    body = {"parameters": parameters, "confirm": confirm}
    answer = await http.post(f"{BASE}/actions/{name}", json=body)
    assert answer.status_code in (200, 207, 409), answer.text
    return answer.json()


async def preview(http: httpx.AsyncClient, name: str, **parameters: Any) -> Any:
    return (await act(http, name, confirm=False, **parameters))["preview"]


async def until(what: str, look: Callable[[], Awaitable[Any]], timeout_s: float = 15) -> Any:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        found = await look()
        if found:
            return found
        await asyncio.sleep(0.02)
    raise AssertionError(what)


async def test_topics_are_filtered_and_paged(http: httpx.AsyncClient) -> None:
    view = await get(http, "topics", q="ord", kind="normal")
    assert [(each["name"], each["readQueues"]) for each in view["topics"]] == [(TOPIC, 2)]
    assert view["problems"] == [] and view["counts"]["system"] > 3
    page = await get(http, "topics", offset=1, limit=2)
    assert len(page["topics"]) == 2 and page["found"] == page["total"] > 3


async def test_a_topic_with_its_queues(http: httpx.AsyncClient) -> None:
    view = await get(http, f"topics/{TOPIC}")
    assert view["messages"] == 62 and len(view["queues"]) == 2
    assert view["brokers"][0]["brokerName"] == "test-broker"
    answer = await http.get(f"{BASE}/topics/nowhere")
    assert answer.status_code == 404 and "nowhere" in answer.json()["detail"]


async def test_a_topic_is_made_changed_and_deleted(http: httpx.AsyncClient, broker: TestBroker) -> None:
    wanted: dict[str, Any] = {"cluster": "DefaultCluster", "topic": "made", "readQueues": 4, "writeQueues": 4}
    plan = await preview(http, "updateTopic", **wanted)
    assert plan["servers"] == [broker.broker_addr] and "is created" in plan["what"]
    assert plan["command"].startswith(
        f"mqadmin updateTopic -n {broker.namesrv_addr} -c DefaultCluster -t made"
    )
    assert (await get(http, "topics", q="made"))["found"] == 0
    assert (await act(http, "updateTopic", **wanted))["done"]
    assert (await get(http, "topics", q="made"))["found"] == 1  # not the list of before
    await until("the route", lambda: found(http, "topics/made"))
    fewer = await preview(http, "updateTopic", **{**wanted, "readQueues": 2, "perm": 4})
    assert any("stay unread" in each for each in fewer["warnings"])
    plan = await preview(http, "deleteTopic", cluster="DefaultCluster", topic="made")
    assert plan["isPossible"] and plan["typeToConfirm"] == "made"
    assert (await act(http, "deleteTopic", cluster="DefaultCluster", topic="made"))["done"]
    assert (await http.get(f"{BASE}/topics/made")).status_code == 404
    plan = await preview(http, "deleteTopic", cluster="DefaultCluster", topic="made")
    assert not plan["isPossible"]
    bad = await http.post(f"{BASE}/actions/deleteTopic", json={"parameters": {"cluster": "x", "topic": "y"}})
    assert bad.status_code == 404 and "DefaultCluster" in bad.json()["detail"]


async def found(http: httpx.AsyncClient, path: str) -> bool:
    return (await http.get(f"{BASE}/{path}")).status_code == 200


async def test_messages_by_time_come_in_pages_without_gap_or_repetition(http: httpx.AsyncClient) -> None:
    seen, cursor, pages = [], None, 0
    while cursor is not None or not pages:
        view = await get(http, "messages", topic=TOPIC, limit=25, **({"cursor": cursor} if cursor else {}))
        assert view["problems"] == [] and view["cut"] == ""
        seen += [(each["storeMs"], each["queueId"], each["queueOffset"]) for each in view["messages"]]
        cursor, pages = view["next"], pages + 1
        assert pages < 10
    assert len(seen) == len(set(seen)) == 62
    assert [each[0] for each in seen] == sorted((each[0] for each in seen), reverse=True)
    empty = await get(http, "messages", topic=TOPIC, begin=1, end=2)
    assert empty["messages"] == [] and empty["next"] is None


async def test_bad_cursors_and_ranges_are_refused(http: httpx.AsyncClient) -> None:
    for cursor in ("x", "bm9wZQ", "WzFd", "eyJhIjotMX0", "eyJhIjoiMSJ9"):
        answer = await http.get(f"{BASE}/messages", params={"topic": TOPIC, "cursor": cursor})
        assert answer.status_code == 422, cursor
    answer = await http.get(f"{BASE}/messages", params={"topic": TOPIC, "begin": 3, "end": 2})
    assert answer.status_code == 422


async def test_messages_by_key_and_by_both_ids(http: httpx.AsyncClient) -> None:
    (row,) = (await get(http, "messages", topic=TOPIC, key="k7"))["messages"]
    assert row["preview"] == '{"n":7}' and row["tags"] == "a"
    for name in ("msgId", "offsetMsgId"):
        (same,) = (await get(http, "messages", topic=TOPIC, id=row[name]))["messages"]
        assert same == row
    assert (await get(http, "messages", topic=TOPIC, key="no such"))["messages"] == []


async def test_an_id_never_makes_the_console_connect_elsewhere(http: httpx.AsyncClient) -> None:
    """An offset message id names any address; only those of the cluster's brokers are asked."""
    touched = asyncio.Event()

    async def accept(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        touched.set()
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    view = await get(http, "messages", topic=TOPIC, id=f"7F000001{port:08X}{0:016X}")
    assert view["messages"] == [] and not touched.is_set()
    server.close()


async def one(http: httpx.AsyncClient, key: str) -> Any:
    (row,) = (await get(http, "messages", topic=TOPIC, key=key))["messages"]
    place = {"broker": row["brokerName"], "queue": row["queueId"], "offset": row["queueOffset"]}
    return await get(http, "message", topic=TOPIC, **place)


async def test_a_body_is_text_json_or_a_dump(http: httpx.AsyncClient) -> None:
    view = await one(http, "k3")
    assert view["body"]["kind"] == "json" and view["properties"]["KEYS"] == "k3"
    html = await one(http, "html")
    assert html["body"] == {"bytes": len(XSS), "shownBytes": len(XSS), "kind": "text", "text": XSS}
    dump = (await one(http, "binary"))["body"]
    assert dump["kind"] == "hex" and dump["text"].startswith("00000000  00 01 02 03")
    row = html["message"]
    place = {"broker": row["brokerName"], "queue": row["queueId"], "offset": row["queueOffset"]}
    cut = await get(http, "message", topic=TOPIC, body=5, **place)
    assert cut["body"]["text"] == XSS[:5] and cut["body"]["bytes"] == len(XSS)
    gone = await http.get(f"{BASE}/message", params={"topic": TOPIC, **place, "offset": 10_000})
    assert gone.status_code == 404


async def test_a_group_is_created_and_changed(http: httpx.AsyncClient, broker: TestBroker) -> None:
    """A change keeps what the form does not have."""
    name, cluster = "shipping", (await get(http, f"topics/{TOPIC}"))["brokers"][0]["cluster"]
    wanted: dict[str, Any] = {"cluster": cluster, "group": name}
    plan = await preview(http, "updateSubGroup", **wanted)
    assert "is created" in plan["what"] and plan["details"]["newAt"] == [broker.broker_addr]
    assert (await act(http, "updateSubGroup", **wanted, retryMaxTimes=3))["done"]
    async with AdminClient() as admin:
        policy = {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 1_000}}
        made = (await admin.groups.list_groups(broker.broker_addr))[name]
        await admin.groups.update_group(
            broker.broker_addr, made.model_copy(update={"group_retry_policy": policy})
        )
        changed = {**wanted, "retryMaxTimes": 5, "consumeEnable": False}
        plan = await preview(http, "updateSubGroup", **changed)
        assert "gets no messages" in plan["warnings"][0]
        assert f"{broker.broker_addr}: retryMaxTimes 3 becomes 5" in plan["warnings"]
        assert (
            "-s false" in plan["command"] and "-r 5" in plan["command"] and "EXPONENTIAL" in plan["command"]
        )
        assert (await act(http, "updateSubGroup", **changed))["done"]
        after = (await admin.groups.list_groups(broker.broker_addr))[name]
    assert (after.retry_max_times, after.consume_enable, after.group_retry_policy) == (5, False, policy)


async def test_consumers_their_lag_and_a_reset(http: httpx.AsyncClient, broker: TestBroker) -> None:
    got = asyncio.Event()
    count = 0

    async def consume(_: object) -> None:
        nonlocal count
        count += 1
        if count >= 62:
            got.set()

    settings = ConsumerSettings(from_where=ConsumeFromWhere.FIRST_OFFSET)
    async with PushConsumer(broker.namesrv_addr, GROUP, consume, settings=settings).subscribe(TOPIC):
        await asyncio.wait_for(got.wait(), 20)
        view = await until("a member", lambda: with_members(http))
        assert view["members"][0]["clientId"] and view["messageModel"] == "CLUSTERING"
        assert {each["topic"] for each in view["subscriptions"]} >= {TOPIC}
        assert {each["clientId"] for each in view["queues"] if each["topic"] == TOPIC} != {""}
        member = view["members"][0]["clientId"]
        info = await get(http, f"consumers/{GROUP}/client", id=member)
        assert info["clientId"] == member and info["info"]["mqTable"]
    await until("no lag", lambda: no_lag(http))
    plan = await preview(http, "resetOffset", group=GROUP, topic=TOPIC, atMs=0)
    moves = [(each["from"], each["to"]) for each in plan["details"]["queues"]]
    assert sorted(to for _, to in moves) == [0, 0] and sum(start for start, _ in moves) == 62
    assert any("62 messages are consumed once more" in each for each in plan["warnings"])
    assert plan["command"].startswith("mqadmin resetOffsetByTime ")
    assert (await act(http, "resetOffset", group=GROUP, topic=TOPIC, atMs=0))["done"]
    assert (await get(http, f"consumers/{GROUP}"))["lag"] == 62
    page = await get(http, "consumers", q=GROUP)
    assert [(each["name"], each["members"]) for each in page["groups"]] == [(GROUP, 0)]
    skip = await preview(http, "resetOffset", group=GROUP, topic=TOPIC, atMs=-1)
    assert "skipAccumulatedMessage" in skip["command"]
    assert (await act(http, "resetOffset", group=GROUP, topic=TOPIC, atMs=-1))["done"]
    assert (await get(http, f"consumers/{GROUP}"))["lag"] == 0


async def with_members(http: httpx.AsyncClient) -> Any:
    answer = await http.get(f"{BASE}/consumers/{GROUP}")
    view = answer.json()
    return view if answer.status_code == 200 and view["members"] and view["queues"] else None


async def no_lag(http: httpx.AsyncClient) -> bool:
    return bool((await get(http, f"consumers/{GROUP}"))["lag"] == 0)


async def test_dead_letters_are_listed_and_sent_again(http: httpx.AsyncClient, broker: TestBroker) -> None:
    topic, group = "fragile", "fragile-group"
    await asyncio.to_thread(broker.create_topic, topic, queues=1)
    fails, received = True, asyncio.Event()

    async def consume(messages: object) -> None:
        if fails:
            raise ReconsumeLater(delay_level=-1)
        received.set()

    settings = ConsumerSettings(from_where=ConsumeFromWhere.FIRST_OFFSET, max_reconsume_times=0)
    consumer = PushConsumer(broker.namesrv_addr, group, consume, settings=settings).subscribe(topic)
    async with Producer(broker.namesrv_addr) as producer, consumer:
        await producer.send(Message(topic, b"one", keys="dead"))
        found = await until("a dead letter", lambda: dead_letters(http, group), 30)
        (dead,) = found
        assert dead["preview"] == "one" and dead["originalTopic"] == topic
        fails = False
        place = {name: dead[name] for name in ("brokerName", "queueId", "queueOffset")}
        plan = await preview(http, "resendDeadLetters", group=group, messages=[place])
        assert "1 of 1 dead letters" in plan["what"] and topic in plan["what"]
        assert f"mqadmin resendDeadLetter -n {broker.namesrv_addr} -g {group}" in plan["command"]
        wrong = await preview(http, "resendDeadLetters", group=group, messages=[{**place, "queueOffset": 99}])
        assert not wrong["isPossible"]
        assert not received.is_set()
        assert (await act(http, "resendDeadLetters", group=group, messages=[place]))["done"]
        await asyncio.wait_for(received.wait(), 20)
    assert (await http.get(f"{BASE}/dead-letters/nobody")).status_code == 404


async def dead_letters(http: httpx.AsyncClient, group: str) -> Any:
    answer = await http.get(f"{BASE}/dead-letters/{group}")
    return answer.json()["messages"] if answer.status_code == 200 else None


async def test_a_test_message_is_sent(http: httpx.AsyncClient, broker: TestBroker) -> None:
    plan = await preview(http, "sendMessage", topic="fresh", body=" hello ", keys="t1")
    assert "is sent" in plan["what"] and plan["command"].endswith("-p ' hello ' -k t1")
    result = await act(http, "sendMessage", topic="fresh", body=" hello ", keys="t1")
    assert result["done"] and "SEND_OK" in result["results"][0]["remark"]
    stored = await asyncio.to_thread(broker.messages, "fresh", 1)
    assert stored[0].body == b" hello "


async def test_a_test_message_is_sent_with_a_priority(http: httpx.AsyncClient, broker: TestBroker) -> None:
    plan = await preview(http, "sendMessage", topic="urgent", body="now", priority=3)
    assert "3 bytes and priority 3 is sent" in plan["what"]
    assert plan["command"] == "", "mqadmin has no option for it"
    result = await act(http, "sendMessage", topic="urgent", body="now", priority=3)
    assert "queue 3 offset 0" in result["results"][0]["remark"]
    stored = await asyncio.to_thread(broker.messages, "urgent", 1)
    assert (stored[0].queue_id, stored[0].priority) == (3, 3)
    view = await get(http, "message", topic="urgent", broker="test-broker", queue=3, offset=0)
    assert view["message"]["priority"] == 3


async def test_producers(http: httpx.AsyncClient, broker: TestBroker) -> None:
    async with Producer(broker.namesrv_addr, "shop") as producer:
        await producer.send(Message(TOPIC + "-2", b"x"))

        async def listed() -> Any:
            view = await get(http, "producers", q="shop")
            return view["producers"]

        (row,) = await until("the producer", listed)
        assert row["brokers"] == ["test-broker"] and row["clientId"]
        assert row["address"].startswith("127.0.0.1:")  # the broker says /127.0.0.1:port, as Java


async def test_what_is_not_there(http: httpx.AsyncClient) -> None:
    assert (await http.get(f"{BASE}/consumers/nobody")).status_code == 404
    trace = await http.get(f"{BASE}/trace", params={"id": "00"})
    assert trace.status_code in (200, 404)
    audit = await get(http, "audit")
    assert audit["where"] is None and "keelmq audit" in audit["note"]
