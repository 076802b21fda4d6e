"""Examples of the answers, for the documentation of the API."""

from keelmq.console.data.audit import COMMAND, AuditView
from keelmq.console.data.cluster_context import ServerProblem
from keelmq.console.data.consumers import (
    GroupAtBroker,
    GroupRow,
    GroupsView,
    GroupView,
    MemberRow,
    QueueLag,
    RunningInfoView,
    SubscriptionRow,
)
from keelmq.console.data.messages import BodyView, MessageRow, MessageView, SearchView, TrackRow
from keelmq.console.data.producers import ProducerRow, ProducersView
from keelmq.console.data.topics import QueueRow, TopicAtBroker, TopicKind, TopicRow, TopicsView, TopicView
from keelmq.console.data.trace import TraceStep, TraceView
from keelmq.console.data.users import AccessView, AclRow, UserRow
from keelmq.remoting.operations.auth import PolicyEntryInfo, PolicyInfo
from keelmq.remoting.operations.broker_metadata import SubscriptionGroupConfig

NOW_MS = 1_767_225_600_000
BROKER = "10.0.0.1:10911"
SILENT = ServerProblem(server="10.0.0.2:10911", problem="connection refused")

TOPICS = TopicsView(
    taken_ms=NOW_MS,
    total=1,
    found=1,
    counts={"fifo": 1},
    topics=[
        TopicRow(
            name="orders",
            kind=TopicKind.FIFO,
            clusters=["DefaultCluster"],
            brokers=1,
            read_queues=8,
            write_queues=8,
            perm=6,
            order=True,
        )
    ],
    problems=[SILENT],
)
TOPIC = TopicView(
    taken_ms=NOW_MS,
    name="orders",
    kind=TopicKind.FIFO,
    brokers=[
        TopicAtBroker(
            cluster="DefaultCluster",
            broker_name="broker-a",
            address=BROKER,
            is_master=True,
            read_queues=8,
            write_queues=8,
            perm=6,
            order=True,
            attributes={"message.type": "FIFO"},
            put_tps=12.5,
            messages=2048,
        )
    ],
    queues=[
        QueueRow(broker_name="broker-a", queue_id=0, min_offset=0, max_offset=256, last_update_ms=NOW_MS)
    ],
    consumers=["billing"],
    put_tps=12.5,
    messages=2048,
)
GROUPS = GroupsView(
    taken_ms=NOW_MS,
    total=1,
    found=1,
    groups=[
        GroupRow(
            name="billing",
            kind="normal",
            brokers=1,
            members=2,
            consume_type="CONSUME_PASSIVELY",
            message_model="CLUSTERING",
            lag=17,
            tps=12.0,
            topics=1,
        )
    ],
)
GROUP = GroupView(
    taken_ms=NOW_MS,
    name="billing",
    kind="normal",
    lag=17,
    tps=12.0,
    consume_type="CONSUME_PASSIVELY",
    message_model="CLUSTERING",
    consume_from_where="CONSUME_FROM_LAST_OFFSET",
    members=[MemberRow(client_id="10.0.0.7@1", address="10.0.0.7:50312", language="JAVA", version=479)],
    subscriptions=[SubscriptionRow(topic="orders", expression="*", type="TAG")],
    queues=[
        QueueLag(
            topic="orders",
            broker_name="broker-a",
            queue_id=0,
            broker_offset=256,
            consumer_offset=239,
            lag=17,
            in_flight=4,
            last_ms=NOW_MS,
            client_id="10.0.0.7@1",
        )
    ],
    brokers=[
        GroupAtBroker(
            cluster="DefaultCluster",
            broker_name="broker-a",
            address=BROKER,
            is_master=True,
            settings=SubscriptionGroupConfig(group_name="billing"),
        )
    ],
)
RUNNING_INFO = RunningInfoView(client_id="10.0.0.7@1", info={"properties": {}, "mqTable": []})
PRODUCERS = ProducersView(
    taken_ms=NOW_MS,
    total=1,
    found=1,
    producers=[
        ProducerRow(
            group="shop",
            client_id="10.0.0.8@2",
            address="10.0.0.8:50400",
            language="GO",
            version=479,
            brokers=["broker-a"],
        )
    ],
)
ROW = MessageRow(
    topic="orders",
    broker_name="broker-a",
    queue_id=0,
    queue_offset=12,
    msg_id="7F0000010001000000000000000C0000",
    offset_msg_id="0A00000100002A9F0000000000000C00",
    tags="paid",
    keys="order-1",
    store_ms=NOW_MS,
    born_ms=NOW_MS - 2,
    born_host="10.0.0.8:50400",
    body_bytes=11,
    preview='{"order":1}',
    reconsume_times=0,
)
SEARCH = SearchView(taken_ms=NOW_MS, messages=[ROW], next="eyJicm9rZXItYTowIjoxMn0")
MESSAGE = MessageView(
    taken_ms=NOW_MS,
    message=ROW,
    store_host=BROKER,
    commit_log_offset=3_072,
    stored_bytes=182,
    sys_flag=0,
    flag=0,
    properties={"KEYS": "order-1", "TAGS": "paid"},
    body=BodyView(bytes=11, shown_bytes=11, kind="json", text='{"order":1}'),
    tracks=[TrackRow(group="billing", state="consumed", is_online=True)],
)
TRACE = TraceView(
    taken_ms=NOW_MS,
    msg_id=ROW.msg_id,
    topic="RMQ_SYS_TRACE_TOPIC",
    sent_ms=NOW_MS,
    steps=[
        TraceStep(
            kind="sent",
            time_ms=NOW_MS,
            cost_ms=3,
            group="shop",
            client="10.0.0.8",
            status="success",
            topic="orders",
        )
    ],
)
ACCESS = AccessView(
    taken_ms=NOW_MS,
    clusters=["DefaultCluster"],
    users=[UserRow(username="alice", user_type="Normal", user_status="enable", brokers=["broker-a"])],
    acls=[
        AclRow(
            subject="User:alice",
            policies=[
                PolicyInfo(
                    policy_type="Custom",
                    entries=[
                        PolicyEntryInfo(resource="Topic:orders", actions=["Pub", "Sub"], decision="Allow")
                    ],
                )
            ],
            brokers=["broker-a"],
        )
    ],
)
AUDIT = AuditView(
    where="/home/rocketmq/namesrv/audit",
    command=f"{COMMAND} --dir /home/rocketmq/namesrv/audit",
    entries=[
        {
            "ts": "2026-01-01T00:00:00.000Z",
            "program": "mqnamesrv",
            "user": "alice",
            "operation": "PUT_KV_CONFIG",
            "outcome": "ok",
        }
    ],
)
