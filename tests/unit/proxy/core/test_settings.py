"""Settings, names, routes and statuses, as each of RocketMQ's clients needs them."""

import pytest

from keelmq.client.core.queues import MessageQueue
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Failed, Unknown
from keelmq.remoting.operations.broker_metadata import SubscriptionGroupConfig
from proxy.core.limits import Limits
from proxy.core.names import Client, client_of, group_name, topic_name
from proxy.core.routes import assignments_of, check_type, endpoints_for, queues_of, types_of
from proxy.core.settings import check_settings, completed, nack_ms
from proxy.core.statuses import Refused, status_of, status_of_handle, total_of
from proxy.core.times import duration, ms_of
from proxy.wire import messaging_pb2 as pb

PYTHON, NODE = Client("p", language="PYTHON"), Client("n", language="HTTP")
PRODUCER = pb.Settings(client_type=pb.PRODUCER, publishing=pb.Publishing(topics=[pb.Resource(name="T")]))
PUSH = pb.Settings(client_type=pb.PUSH_CONSUMER, subscription=pb.Subscription(group=pb.Resource(name="g")))
LIMITS = Limits()
HERE = pb.Endpoints(scheme=pb.IPv4, addresses=[pb.Address(host="10.0.0.1", port=8081)])


def refusal(function: object, *arguments: object, **more: object) -> pb.Code:
    with pytest.raises(Refused) as refused:
        function(*arguments, **more)  # type: ignore[operator]
    return refused.value.status.code


def test_a_producer_gets_a_size_and_a_policy() -> None:
    """Python refuses every message with max_body_size 0; Node asserts that there is an exponential policy."""
    found = completed(PRODUCER, PYTHON, LIMITS)
    assert found.publishing.topics == PRODUCER.publishing.topics
    assert (found.publishing.max_body_size, found.publishing.validate_message_type) == (4 << 20, True)
    assert found.backoff_policy.max_attempts == 3
    backoff = found.backoff_policy.exponential_backoff
    assert (ms_of(backoff.initial), ms_of(backoff.max), backoff.multiplier) == (10, 1_000, 2.0)
    assert found.HasField("metric") and not found.metric.on


def test_node_must_not_send_what_it_cannot_receive() -> None:
    """Its limit for a whole frame is 4 MiB."""
    assert completed(PRODUCER, NODE, LIMITS).publishing.max_body_size == (4 << 20) - (64 << 10)


@pytest.mark.parametrize("client", [PYTHON, NODE])
def test_a_consumer_gets_its_group(client: Client) -> None:
    group = SubscriptionGroupConfig(group_name="g", consume_message_orderly=True, retry_max_times=2)
    found = completed(PUSH, client, LIMITS, group)
    subscription = found.subscription
    assert (subscription.fifo, subscription.receive_batch_size) == (True, 32)
    assert found.backoff_policy.max_attempts == 3
    assert ms_of(subscription.long_polling_timeout) == (5_000 if client is NODE else 20_000)
    assert subscription.HasField("lite_subscription_quota") and subscription.max_lite_topic_size == 64
    kind = found.backoff_policy.WhichOneof("strategy")
    assert kind == ("exponential_backoff" if client is NODE else "customized_backoff")


def test_the_groups_own_policy() -> None:
    policy = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [2_000, 3_000]}}
    group = SubscriptionGroupConfig(group_name="g", group_retry_policy=policy)
    found = completed(PUSH, PYTHON, LIMITS, group).backoff_policy
    assert [ms_of(each) for each in found.customized_backoff.next] == [2_000, 3_000]
    policy = {
        "type": "EXPONENTIAL",
        "exponentialRetryPolicy": {"initial": 7_000, "max": "x", "multiplier": 3},
    }
    group = SubscriptionGroupConfig(group_name="g", group_retry_policy=policy)
    backoff = completed(PUSH, PYTHON, LIMITS, group).backoff_policy.exponential_backoff
    assert (ms_of(backoff.initial), ms_of(backoff.max), backoff.multiplier) == (7_000, 7_200_000, 3.0)


@pytest.mark.parametrize("policy", [{}, {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": ["x"]}}])
def test_a_policy_that_says_nothing(policy: dict[str, object]) -> None:
    group = SubscriptionGroupConfig(group_name="g", group_retry_policy=policy)
    delays = completed(PUSH, PYTHON, LIMITS, group).backoff_policy.customized_backoff.next
    assert len(delays) > 0 and all(ms_of(each) >= 1_000 for each in delays)


def test_a_simple_consumer_keeps_its_time() -> None:
    asked = pb.Settings(
        client_type=pb.SIMPLE_CONSUMER, subscription=pb.Subscription(long_polling_timeout=duration(33_000))
    )
    assert ms_of(completed(asked, NODE, LIMITS).subscription.long_polling_timeout) == 33_000


def test_settings_that_no_client_has() -> None:
    assert refusal(check_settings, pb.Settings()) == pb.UNRECOGNIZED_CLIENT_TYPE
    for properties in (
        {str(at): "x" for at in range(3)},
        {"a": "x" * 257},
        {f"a{at}": "x" for at in range(33)},
        {f"a{at}": "x" * 200 for at in range(30)},
    ):
        settings = pb.Settings(publishing=pb.Publishing(), client_properties=properties)
        assert refusal(check_settings, settings) == pb.INVALID_CLIENT_PROPERTIES
    check_settings(pb.Settings(publishing=pb.Publishing(), client_properties={"a.b-c_1": "x"}))


def test_nodes_seconds_are_ms() -> None:
    assert [nack_ms(ms, NODE) for ms in (0, 1, 2, 15_000)] == [0, 1_000, 2_000, 15_000]
    assert nack_ms(1, PYTHON) == 1


def test_the_namespace_is_in_the_name_or_in_the_metadata() -> None:
    client = client_of({"x-mq-client-id": "c", "x-mq-namespace": "n", "x-mq-language": "http"})
    assert client.is_node
    assert topic_name(pb.Resource(name="T"), client) == "n%T"
    assert topic_name(pb.Resource(name="T", resource_namespace="m"), client) == "m%T"
    assert topic_name(pb.Resource(name="T"), PYTHON) == "T"


@pytest.mark.parametrize("name", ["", " ", "a b", "a\x01", "a" * 256, "ä", "a/b", "a\n"])
def test_illegal_names(name: str) -> None:
    assert refusal(topic_name, pb.Resource(name=name), PYTHON) == pb.ILLEGAL_TOPIC
    assert refusal(group_name, pb.Resource(name=name), PYTHON) == pb.ILLEGAL_CONSUMER_GROUP


def test_a_call_says_who_sends_it() -> None:
    assert refusal(client_of, {}) == pb.CLIENT_ID_REQUIRED
    assert refusal(client_of, {"x-mq-client-id": "c" * 256}) == pb.BAD_REQUEST


def test_a_route_names_the_endpoints_that_were_asked() -> None:
    several = pb.Endpoints(scheme=pb.IPv4, addresses=[*HERE.addresses, pb.Address(host="10.0.0.2", port=1)])
    assert endpoints_for(several, PYTHON, "h:1") == several
    assert endpoints_for(several, NODE, "h:1") == HERE
    assert endpoints_for(pb.Endpoints(), PYTHON, "h:1").scheme == pb.DOMAIN_NAME
    own = endpoints_for(pb.Endpoints(), PYTHON, "[::1]:9")
    assert (own.scheme, own.addresses[0].host, own.addresses[0].port) == (pb.IPv6, "::1", 9)
    for port in (0, -1, 65_536):
        bad = pb.Endpoints(addresses=[pb.Address(host="h", port=port)])
        assert refusal(endpoints_for, bad, PYTHON, "h:1") == pb.ILLEGAL_ACCESS_POINT


def test_queues_and_their_permissions() -> None:
    a0, a1, b0 = MessageQueue("T", "a", 0), MessageQueue("T", "a", 1), MessageQueue("T", "b", 0)
    topic = pb.Resource(name="T")
    found = list(queues_of([a0, b0], [a1, b0], topic, HERE, [pb.NORMAL]))
    assert [(each.broker.name, each.id, each.permission) for each in found] == [
        ("a", 0, pb.WRITE),
        ("a", 1, pb.READ),
        ("b", 0, pb.READ_WRITE),
    ]
    assert all(each.broker.id == 0 and each.broker.endpoints == HERE for each in found)
    shared = assignments_of([a0, a1, b0], topic, HERE, is_fifo=False)
    assert [(each.message_queue.broker.name, each.message_queue.id) for each in shared] == [
        ("a", -1),
        ("b", -1),
    ]
    assert len(assignments_of([a0, a1, b0], topic, HERE, is_fifo=True)) == 3


def test_types_of_topics() -> None:
    assert types_of({"message.type": "FIFO"}) == (pb.FIFO,)
    assert set(types_of({"message.type": "MIXED"})) == {pb.NORMAL, pb.FIFO, pb.DELAY, pb.TRANSACTION}
    assert types_of({}) == types_of({"message.type": "MIXED"})
    assert refusal(check_type, pb.FIFO, [pb.NORMAL], "T") == pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    check_type(pb.FIFO, [pb.FIFO], "T")


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (ResponseCode.SYSTEM_BUSY, pb.TOO_MANY_REQUESTS),
        (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, pb.NOT_IMPLEMENTED),
        (ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, pb.CONSUMER_GROUP_NOT_FOUND),
        (ResponseCode.FLUSH_DISK_TIMEOUT, pb.MASTER_PERSISTENCE_TIMEOUT),
        (ResponseCode.FLUSH_SLAVE_TIMEOUT, pb.SLAVE_PERSISTENCE_TIMEOUT),
        (ResponseCode.SLAVE_NOT_AVAILABLE, pb.HA_NOT_AVAILABLE),
        (ResponseCode.SYSTEM_ERROR, pb.INTERNAL_SERVER_ERROR),
    ],
)
def test_codes_of_brokers(code: int, status: pb.Code) -> None:
    assert status_of(Failed(code, "why")).code == status
    assert status_of(Failed(code, "why")).message == "why"
    assert status_of(Unknown("late")).code == pb.PROXY_TIMEOUT


def test_a_handle_whose_message_is_gone_is_invalid() -> None:
    for code in (ResponseCode.MESSAGE_ILLEGAL, ResponseCode.NO_MESSAGE, ResponseCode.TOPIC_NOT_EXIST):
        assert status_of_handle(Failed(code, "")).code == pb.INVALID_RECEIPT_HANDLE
    assert status_of_handle(Failed(ResponseCode.SYSTEM_BUSY, "")).code == pb.TOO_MANY_REQUESTS


def test_the_total_of_several_results() -> None:
    ok, bad = pb.Status(code=pb.OK), pb.Status(code=pb.BAD_REQUEST, message="why")
    assert total_of([ok, ok]).code == pb.OK
    assert total_of([bad, bad]) == bad
    assert total_of([ok, bad]).code == pb.MULTIPLE_RESULTS
