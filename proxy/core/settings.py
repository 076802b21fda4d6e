"""The settings of a client as the server completes them. Pure: from the client's settings and its group.

Nothing is kept of them: every other call works without them. What the clients need is known from their
behaviour: Node asserts an exponential policy, and takes its seconds for ms; Python reads only a customized
one; without max_body_size Python refuses every message, and without a poll time it polls without a pause."""

import re
from collections.abc import Mapping
from typing import Any, Final

from keelmq.remoting.operations.broker_metadata import SubscriptionGroupConfig
from proxy.core.limits import BATCH_MAX, NODE_POLL_MS, Limits
from proxy.core.names import Client
from proxy.core.statuses import Refused
from proxy.core.times import duration, ms_of
from proxy.wire import messaging_pb2 as pb

PRODUCER_ATTEMPTS: Final = 3
PRODUCER_BACKOFF: Final = (10, 1_000, 2.0)
"""First pause and longest pause (ms), and the factor between two pauses."""
NODE_BACKOFF: Final = (1_000, 7_200_000, 2.0)
GROUP_DELAYS_S: Final = (
    1,
    5,
    10,
    30,
    60,
    120,
    180,
    240,
    300,
    360,
    420,
    480,
    540,
    600,
    1200,
    1800,
    3600,
    7200,
)
"""RocketMQ's default for the pauses between deliveries of a message."""
DELAYS_MAX: Final = 64
LITE_QUOTA, LITE_TOPIC_CHARACTERS_MAX = 0, 64
PROPERTIES_MAX, PROPERTY_VALUE_MAX, PROPERTIES_CHARACTERS_MAX = 32, 256, 4_096
_PROPERTY_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9_.-]{0,63}\Z")
NODE_NACK_MS_MAX: Final = 1_000


def check_settings(settings: pb.Settings) -> None:
    """Raises Refused: no client has such settings."""
    if settings.WhichOneof("pub_sub") is None:
        raise Refused(pb.UNRECOGNIZED_CLIENT_TYPE, "the settings are of neither a producer nor a consumer")
    properties = settings.client_properties
    if len(properties) > PROPERTIES_MAX:
        raise _invalid(f"{len(properties)} of them; {PROPERTIES_MAX} is the limit")
    for name, value in properties.items():
        if not _PROPERTY_NAME.match(name):
            raise _invalid(f"{name[:80]!r} is no name")
        if len(value) > PROPERTY_VALUE_MAX:
            raise _invalid(f"{name} has {len(value)} characters; {PROPERTY_VALUE_MAX} is the limit")
    if sum(len(name) + len(value) for name, value in properties.items()) > PROPERTIES_CHARACTERS_MAX:
        raise _invalid(f"together more than {PROPERTIES_CHARACTERS_MAX} characters")


def _invalid(why: str) -> Refused:
    return Refused(pb.INVALID_CLIENT_PROPERTIES, f"client_properties: {why}")


def completed(
    settings: pb.Settings, client: Client, limits: Limits, group: SubscriptionGroupConfig | None = None
) -> pb.Settings:
    """Returns the settings that a client is told. group: a consumer's; None: a producer's settings, or a
    group that does not exist yet."""
    found = pb.Settings()
    found.CopyFrom(settings)
    found.metric.on = False
    if found.WhichOneof("pub_sub") == "publishing":
        found.publishing.max_body_size = limits.body_bytes_max(is_node=client.is_node)
        found.publishing.validate_message_type = True
        found.backoff_policy.CopyFrom(_exponential(PRODUCER_ATTEMPTS, *PRODUCER_BACKOFF))
        return found
    of_group = group or SubscriptionGroupConfig(group_name="")
    subscription = found.subscription
    subscription.fifo = of_group.consume_message_orderly
    subscription.receive_batch_size = BATCH_MAX
    subscription.long_polling_timeout.CopyFrom(duration(_poll_ms(settings, client, limits)))
    subscription.lite_subscription_quota = LITE_QUOTA
    subscription.max_lite_topic_size = LITE_TOPIC_CHARACTERS_MAX
    found.backoff_policy.CopyFrom(_group_policy(of_group, client))
    return found


def _poll_ms(settings: pb.Settings, client: Client, limits: Limits) -> int:
    """A simple consumer says its own time, and keeps what it is told."""
    asked = settings.subscription
    if settings.client_type == pb.SIMPLE_CONSUMER and asked.HasField("long_polling_timeout"):
        return ms_of(asked.long_polling_timeout)
    return NODE_POLL_MS if client.is_node else limits.poll_ms_max


def max_attempts(group: SubscriptionGroupConfig) -> int:
    """Returns how often a message is delivered to the group before it is a dead letter."""
    return max(group.retry_max_times, 0) + 1


def _group_policy(group: SubscriptionGroupConfig, client: Client) -> pb.RetryPolicy:
    attempts, policy = max_attempts(group), group.group_retry_policy
    if client.is_node:
        return _exponential(attempts, *NODE_BACKOFF)
    if policy.get("type") == "EXPONENTIAL":
        given = _mapping(policy.get("exponentialRetryPolicy"))
        first_ms, max_ms = _ms(given.get("initial"), 5_000), _ms(given.get("max"), 7_200_000)
        return _exponential(attempts, first_ms, max_ms, _number(given.get("multiplier"), 2.0))
    delays = _mapping(policy.get("customizedRetryPolicy")).get("next")
    delays_ms = [_ms(each, 1_000) for each in delays[:DELAYS_MAX]] if isinstance(delays, list) else []
    return pb.RetryPolicy(
        max_attempts=attempts,
        customized_backoff=pb.CustomizedBackoff(
            next=map(duration, delays_ms or [1_000 * seconds for seconds in GROUP_DELAYS_S])
        ),
    )


def _exponential(attempts: int, first_ms: int, max_ms: int, factor: float) -> pb.RetryPolicy:
    backoff = pb.ExponentialBackoff(initial=duration(first_ms), max=duration(max_ms), multiplier=factor)
    return pb.RetryPolicy(max_attempts=attempts, exponential_backoff=backoff)


def _mapping(value: Any) -> Mapping[str, Any]:
    """The policy of a group is JSON that an operator wrote."""
    return value if isinstance(value, Mapping) else {}


def _number(value: object, default: float) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 2**40:
        return float(value)
    return default


def _ms(value: object, default: int) -> int:
    return int(_number(value, default))


def kind_of(settings: pb.Settings) -> tuple[str, str]:
    """Returns the names of the client's type and language; what protobuf does not know is UNSPECIFIED."""
    kind, language = settings.client_type, settings.user_agent.language
    return (
        pb.ClientType.Name(kind if kind in pb.ClientType.values() else pb.CLIENT_TYPE_UNSPECIFIED),
        pb.Language.Name(language if language in pb.Language.values() else pb.LANGUAGE_UNSPECIFIED),
    )


def nack_ms(asked_ms: int, client: Client) -> int:
    """Returns for how long a message stays invisible that a listener has failed to consume. Node divides the
    seconds of its policy by 1,000."""
    return asked_ms * 1_000 if client.is_node and 0 < asked_ms < NODE_NACK_MS_MAX else asked_ms
