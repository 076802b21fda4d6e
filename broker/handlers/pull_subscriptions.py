"""PullSubscriptions: the messages that a pull selects, by its own subscription or its group's heartbeats."""

from typing import Final

from broker.clients.core.registry import BROADCASTING
from broker.filter.core.sql import BadSubscription
from broker.filter.core.subscription import MATCH_ALL, SQL92, MessageFilter, parse, weight_of
from broker.handlers.pull_commands import (
    FLAG_CLASS_FILTER,
    FLAG_SUBSCRIPTION,
    FORBIDDEN_BROADCASTING,
    PullCommand,
    refuse,
)
from broker.message.record import tag_code
from broker.metadata.groups import Group
from broker.put.handler_context import HandlerContext
from keelmq.remoting.codes import ResponseCode

CACHED_MAX: Final = 4_096
CACHED_CHARS_MAX: Final = 4_194_304
"""Of all expressions in the cache, those of SQL92 counted eightfold."""
_NO_SQL: Final = "The broker does not support consumer to filter message by SQL92"


class PullSubscriptions:
    """Caches the subscriptions of pulls, parsed."""

    def __init__(self, context: HandlerContext) -> None:
        self._context, self._consumers = context, context.registry.consumers
        self._cache: dict[tuple[str, str], MessageFilter] = {}  # by expression type and text
        self._chars = 0

    def clear(self) -> None:
        """Forgets the parsed subscriptions, after a setting has changed."""
        self._cache.clear()
        self._chars = 0

    def find(self, command: PullCommand, group: Group) -> MessageFilter | bytes:
        """Returns the subscription of the pull itself or of the group's heartbeats; bytes: the refusal."""
        ext = command.ext
        if ext.sys_flag & FLAG_SUBSCRIPTION:
            message_filter = self._cache.get((ext.expression_type, ext.subscription))
            return message_filter if message_filter is not None else self._parsed(command)
        consumers = self._consumers.get(ext.consumer_group)
        if consumers is None:
            remark = f"the consumer's group info not exist: {ext.consumer_group}"
            return refuse(command, ResponseCode.SUBSCRIPTION_NOT_EXIST, remark)
        if consumers.message_model == BROADCASTING and not group.config.consume_broadcast_enable:
            remark = f"the consumer group[{ext.consumer_group}] can not consume by broadcast way"
            return refuse(command, ResponseCode.NO_PERMISSION, remark, FORBIDDEN_BROADCASTING)
        subscription = consumers.subscriptions.get(ext.topic)
        if subscription is None:
            remark = f"the consumer's subscription not exist: {ext.consumer_group}, {ext.topic}"
            return refuse(command, ResponseCode.SUBSCRIPTION_NOT_EXIST, remark)
        if subscription.version < ext.sub_version:
            remark = f"the consumer's subscription is {subscription.version}, the pull's {ext.sub_version}"
            return refuse(command, ResponseCode.SUBSCRIPTION_NOT_LATEST, remark)
        message_filter = subscription.message_filter
        if message_filter is None:
            remark = (
                f"the subscription is no {subscription.expression_type} expression: {subscription.sub_string}"
            )
            return refuse(command, ResponseCode.FILTER_DATA_NOT_EXIST, remark)
        if message_filter.sql is not None and not self._context.settings.enable_property_filter:
            return refuse(command, ResponseCode.SYSTEM_ERROR, _NO_SQL)
        return message_filter

    def _parsed(self, command: PullCommand) -> MessageFilter | bytes:
        ext = command.ext
        if ext.expression_type == SQL92 and not self._context.settings.enable_property_filter:
            return refuse(command, ResponseCode.SYSTEM_ERROR, _NO_SQL)
        if ext.sys_flag & FLAG_CLASS_FILTER:
            return MATCH_ALL
        try:
            message_filter = parse(ext.subscription, ext.expression_type, tag_code)
        except BadSubscription as error:
            remark = f"parse the consumer's subscription failed: {error}"
            return refuse(command, ResponseCode.SUBSCRIPTION_PARSE_FAILED, remark)
        chars = weight_of(ext.subscription, ext.expression_type)
        if len(self._cache) >= CACHED_MAX or self._chars + chars > CACHED_CHARS_MAX:
            self.clear()
        self._chars += chars
        self._cache[ext.expression_type, ext.subscription] = message_filter
        return message_filter
