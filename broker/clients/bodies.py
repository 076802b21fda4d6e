"""Bodies of clients' requests as what the registry and the locks keep, and that as bodies of answers."""

import logging
from collections.abc import Iterable

from broker.clients.core.locks import Queue
from broker.clients.core.registry import Client, Consumer, Subscription
from broker.filter.core.sql import BadSubscription
from broker.filter.core.subscription import MATCH_ALL, MessageFilter, parse, tags_of
from broker.message.record import tag_code
from keelmq.remoting.operations.clients import (
    ConnectionBody,
    ConsumerData,
    MessageQueueBody,
    SubscriptionData,
)

logger = logging.getLogger(__name__)


def consumer_of(data: ConsumerData, *, without_sub: bool) -> Consumer:
    """Returns a group of a heartbeat. without_sub: the heartbeat has no subscriptions."""
    subscriptions = tuple(subscription_of(each) for each in data.subscription_data_set)
    return Consumer(
        data.group_name,
        data.consume_type,
        data.message_model,
        data.consume_from_where,
        None if without_sub else subscriptions,
    )


def subscription_of(data: SubscriptionData) -> Subscription:
    """Returns the subscription. An illegal expression is kept as text; pulls that use it get code 27."""
    message_filter: MessageFilter | None = MATCH_ALL
    if not data.class_filter_mode:
        try:
            message_filter = parse(data.sub_string, data.expression_type, tag_code)
        except BadSubscription as error:
            logger.warning("subscription of %s: %s", data.topic, error)
            message_filter = None
    return Subscription(data.topic, data.sub_string, data.expression_type, data.sub_version, message_filter)


def subscription_body(subscription: Subscription) -> SubscriptionData:
    """Returns the subscription as it is on the wire, with the tags and their codes."""
    tags = tags_of(subscription.sub_string) if subscription.expression_type in ("TAG", "") else []
    return SubscriptionData(
        topic=subscription.topic,
        sub_string=subscription.sub_string,
        sub_version=subscription.version,
        expression_type=subscription.expression_type or "TAG",
        code_set=sorted({tag_code(tag) for tag in tags}),
        tags_set=sorted(set(tags)),
    )


def connection_bodies(clients: Iterable[Client]) -> list[ConnectionBody]:
    """Returns the clients as they are on the wire."""
    return [
        ConnectionBody(
            client_addr=each.address, client_id=each.client_id, language=each.language, version=each.version
        )
        for each in clients
    ]


def queue_of(body: MessageQueueBody) -> Queue:
    """Returns the queue that a client locks."""
    return Queue(body.topic, body.broker_name, body.queue_id)


def queue_body(queue: Queue) -> MessageQueueBody:
    """Returns the queue as it is on the wire."""
    return MessageQueueBody(topic=queue.topic, broker_name=queue.broker_name, queue_id=queue.queue_id)
