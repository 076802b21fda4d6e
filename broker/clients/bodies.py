"""Converts bodies of clients' requests into entries of the registry and the locks, and these into answers."""

import logging
from collections.abc import Iterable
from typing import Final

from broker.clients.core.locks import Queue
from broker.clients.core.registry import Client, Consumer, Subscription
from broker.filter.core.sql import BadSubscription
from broker.filter.core.subscription import MATCH_ALL, MessageFilter, parse, tags_of, weight_of
from broker.message.record import tag_code
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Call, CommandError
from keelmq.remoting.operations.clients import (
    ConnectionBody,
    ConsumerData,
    HeartbeatData,
    LockBatchBody,
    SubscriptionData,
)
from keelmq.runtime.clock import now_ms
from keelmq.runtime.rate_limited_log import RateLimitedLogger

_illegal = RateLimitedLogger(logging.getLogger(__name__))

NAME_CHARS_MAX: Final = 512
"""Length of a producer group's name; RocketMQ's clients allow 255. Producer groups are not created, so no
other code checks it."""
CLIENT_ID_CHARS_MAX: Final = 1_024
"""RocketMQ's clients compose it from an address, a process id, a time, and names of the application."""
LANGUAGE_CHARS_MAX: Final = 16
EXPRESSION_CHARS_MAX: Final = 524_288
"""Of all subscriptions in a heartbeat, those of SQL92 counted eightfold. They are parsed in the event loop;
at the limit, this takes 0.1 s."""


def client_of(data: HeartbeatData, call: Call) -> Client:
    """Returns who sends this heartbeat. Raises CommandError: it is too large to be kept."""
    _check_client_id(data.client_id)
    for producer in data.producer_data_set:
        if len(producer.group_name) > NAME_CHARS_MAX:
            count = len(producer.group_name)
            remark = f"the name of a producer group has {count} characters; {NAME_CHARS_MAX} is the limit"
            raise CommandError(ResponseCode.INVALID_PARAMETER, remark)
    each = (one for consumer in data.consumer_data_set for one in consumer.subscription_data_set)
    chars = sum(weight_of(one.sub_string, one.expression_type) for one in each)
    if chars > EXPRESSION_CHARS_MAX:
        remark = f"subscriptions of {chars} characters (SQL92 eightfold); {EXPRESSION_CHARS_MAX} is the limit"
        raise CommandError(ResponseCode.INVALID_PARAMETER, remark)
    peer, language = call.peer, call.language[:LANGUAGE_CHARS_MAX]
    return Client(peer.connection_id, data.client_id, peer.address, language, call.version, call.caller)


def queues_of(body: LockBatchBody) -> list[Queue]:
    """Returns the queues that a client names. Raises CommandError: its id is too long to be kept."""
    _check_client_id(body.client_id)
    return [Queue(queue.topic, queue.queue_id) for queue in body.mq_set]


def _check_client_id(client_id: str) -> None:
    if len(client_id) > CLIENT_ID_CHARS_MAX:
        remark = f"the client id has {len(client_id)} characters; {CLIENT_ID_CHARS_MAX} is the limit"
        raise CommandError(ResponseCode.INVALID_PARAMETER, remark)


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
            _illegal.tell(now_ms(), "subscription of %.255s: %.255s", data.topic, error)
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
