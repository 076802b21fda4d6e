"""The parts that rules.py makes its table of: which resources a request names, in its fields and in its body.

A field or body is read as the handlers read it, with the same models and the same spellings: a request must
not name one topic to the check and another one to the handler. What cannot be read is refused."""

import base64
import binascii
import re
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from keelmq.remoting.command import BadRequest, decode_body
from keelmq.remoting.operation import Role as Role
from keelmq.remoting.operations.broker_admin import GroupConfigs, GroupNames, TopicConfigs
from keelmq.remoting.operations.broker_metadata import SubscriptionGroupConfig
from keelmq.remoting.operations.clients import CheckClientBody, HeartbeatData, LockBatchBody, TopicNames
from keelmq.remoting.operations.pop import BatchAckBody, QueryAssignmentBody, RequestModeBody
from keelmq.security.core.acls import (
    RETRY_PREFIX,
    Action,
    cluster_resource,
    group_resource,
    topic_resource,
)
from keelmq.security.core.authorize import Context
from keelmq.security.core.signature import ExtFields

TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
WAITING_TOPICS: Final = frozenset(
    {
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "SCHEDULE_TOPIC_XXXX",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "rmq_sys_wheel_timer",
    }
)
"""Topics of the broker, where messages of all topics wait for their own one."""
RECALL_HANDLE: Final = ("recallHandle", "recall_handle")


class Unreadable(ValueError):
    """The request does not name its resources, or not readably: it is refused."""


class LookupKind(Enum):
    """How a handler finds the topic that a request is about, although it does not name it."""

    HALF_MESSAGE = "half message"
    """value: its offset in the CommitLog, decimal. The topic is the real one, not
    RMQ_SYS_TRANS_HALF_TOPIC."""
    LOG_OFFSET = "log offset"
    """value: an offset in the CommitLog, decimal."""
    MESSAGE_ID = "message id"
    """value: an offset message id, hexadecimal."""


class Lookup(NamedTuple):
    """A topic that only the broker can find out; AccessControl.check_topic() must allow it before it
    answers."""

    kind: LookupKind
    value: str
    actions: tuple[Action, ...]


class Required(NamedTuple):
    """All of them must pass."""

    contexts: tuple[Context, ...]
    lookups: tuple[Lookup, ...] = ()


Need = Callable[[ExtFields, str], Iterable[Context]]
"""(ext fields, cluster name) -> what the fields name."""
BodyNeed = Callable[[bytes], Iterable[Context]]


class Rule(msgspec.Struct, frozen=True):
    """What one request code needs. `fields`: the ext fields that decide about its contexts; `lookups` have
    their own."""

    role: Role
    needs: tuple[Need, ...] = ()
    lookups: tuple["LookupNeed", ...] = ()
    body: BodyNeed | None = None
    members_only: bool = False
    fields: tuple[str, ...] = ()


def required_of(rule: Rule, ext_fields: ExtFields, body: bytes, cluster_name: str) -> Required:
    """Raises Unreadable."""
    contexts = dict.fromkeys(each for need in rule.needs for each in need(ext_fields, cluster_name))
    if rule.body is not None:
        try:
            contexts.update(dict.fromkeys(rule.body(body)))
        except BadRequest as error:
            raise Unreadable(error.remark) from None
    return Required(tuple(contexts), lookups_of(rule, ext_fields))


def lookups_of(rule: Rule, ext_fields: ExtFields) -> tuple["Lookup", ...]:
    """Raises Unreadable."""
    return tuple(each for need in rule.lookups for each in need(ext_fields))


# -- fields -------------------------------------------------------------------------------------------------


def value_of(ext_fields: ExtFields, names: tuple[str, ...], *, optional: bool) -> str | None:
    """The first spelling that is there. Empty text counts as absent, as in command.parse_header(). Raises
    Unreadable."""
    for name in names:
        value = ext_fields.get(name)
        if value:
            return value
    if not optional:
        raise Unreadable(f"header field {names[0]} is missing")
    return None


class FieldNeed(msgspec.Struct, frozen=True):
    """names: the spellings that handlers accept, the one that wins first."""

    names: tuple[str, ...]
    make: Callable[[str], Iterable[Context]]
    optional: bool

    def __call__(self, ext_fields: ExtFields, cluster_name: str) -> Iterable[Context]:
        value = value_of(ext_fields, self.names, optional=self.optional)
        return () if value is None else self.make(value)


class LookupNeed(msgspec.Struct, frozen=True):
    kind: LookupKind
    names: tuple[str, ...]
    actions: tuple[Action, ...]
    optional: bool

    def __call__(self, ext_fields: ExtFields) -> Iterable[Lookup]:
        value = value_of(ext_fields, self.names, optional=self.optional)
        return () if value is None else (Lookup(self.kind, value, self.actions),)


def spellings(*names: str) -> tuple[str, ...]:
    """Header models take the wire's names, and ours where those are absent."""
    return names + tuple(
        snake for name in names if (snake := re.sub("(?<=.)([A-Z]+)", r"_\1", name).lower()) not in names
    )


def topic_context(topic: str, *actions: Action) -> Context:
    """A user who may consume in a group may also send to its retry topic: a failed send-back does that."""
    if topic.startswith(RETRY_PREFIX) and Action.PUB in actions:
        rest = tuple(each for each in actions if each not in (Action.PUB, Action.SUB))
        return Context(topic_resource(topic), (Action.SUB, *rest))
    return Context(topic_resource(topic), actions)


def group_context(group: str, *actions: Action) -> Context:
    return Context(group_resource(group), actions)


def topic(
    *names: str, to: tuple[Action, ...], optional: bool = False, trace_is_free: bool = False
) -> FieldNeed:
    """trace_is_free: every known user may send message traces (pitfall 11)."""

    def make(value: str) -> Iterable[Context]:
        return () if trace_is_free and value == TRACE_TOPIC else (topic_context(value, *to),)

    return FieldNeed(spellings(*names), make, optional)


def topics(name: str, *, to: tuple[Action, ...]) -> FieldNeed:
    """A list of topics, separated by semicolons."""

    def make(value: str) -> Iterable[Context]:
        return tuple(topic_context(each, *to) for each in value.split(";") if each)

    return FieldNeed(spellings(name), make, optional=True)


def group(*names: str, to: tuple[Action, ...], optional: bool = False) -> FieldNeed:
    return FieldNeed(spellings(*names), lambda value: (group_context(value, *to),), optional)


def lookup(kind: LookupKind, name: str, to: tuple[Action, ...], *, optional: bool = False) -> LookupNeed:
    return LookupNeed(kind, spellings(name), to, optional)


def cluster(*to: Action) -> Need:
    return lambda ext_fields, cluster_name: (Context(cluster_resource(cluster_name), to),)


def read_waiting(ext_fields: ExtFields, cluster_name: str) -> Iterable[Context]:
    """What is needed besides the right to read the topic: where messages of all topics wait, its name does
    not show whose they are, so only a user who may change the cluster reads there."""
    if value_of(ext_fields, ("topic",), optional=True) in WAITING_TOPICS:
        yield Context(cluster_resource(cluster_name), (Action.UPDATE,))


def recalled(ext_fields: ExtFields, cluster_name: str) -> Iterable[Context]:
    """The topic inside of a recall handle: base64 of `v1 topic brokerName time messageId`. The broker refuses
    handles that cannot be read, with its own code."""
    handle = value_of(ext_fields, RECALL_HANDLE, optional=True) or ""
    try:
        raw = base64.urlsafe_b64decode(handle + "=" * (-len(handle) % 4)).decode()
    except (binascii.Error, ValueError):
        return ()
    parts = raw.split(" ")
    return (topic_context(parts[1], Action.PUB),) if len(parts) > 1 and parts[1] else ()


# -- bodies -------------------------------------------------------------------------------------------------

Body = TypeVar("Body")


def _read(type_: type[Body], body: bytes) -> Body:
    """Raises Unreadable, and BadRequest."""
    value: Any = decode_body(type_, body)
    if value is None:
        raise Unreadable("the body is missing")
    if not isinstance(value, type_):
        raise Unreadable("the body is not readable")
    return value


def heartbeat(body: bytes) -> Iterable[Context]:
    """Producers need nothing; consumers their group and their topics."""
    for consumer in _read(HeartbeatData, body).consumer_data_set:
        yield group_context(consumer.group_name, Action.SUB)
        for subscription in consumer.subscription_data_set:
            yield topic_context(subscription.topic, Action.SUB)


def lock_batch(body: bytes) -> Iterable[Context]:
    locks = _read(LockBatchBody, body)
    yield group_context(locks.consumer_group, Action.SUB)
    for queue in locks.mq_set:
        yield topic_context(queue.topic, Action.SUB)


def check_client(body: bytes) -> Iterable[Context]:
    client = _read(CheckClientBody, body)
    if client.group:
        yield group_context(client.group, Action.SUB)
    if client.subscription_data is not None:
        yield topic_context(client.subscription_data.topic, Action.SUB)


def batch_ack(body: bytes) -> Iterable[Context]:
    for ack in _read(BatchAckBody, body).acks:
        yield topic_context(ack.topic, Action.SUB)
        yield group_context(ack.group, Action.SUB)


def assignment(body: bytes) -> Iterable[Context]:
    query = _read(QueryAssignmentBody, body)
    yield topic_context(query.topic, Action.SUB, Action.GET)
    yield group_context(query.consumer_group, Action.SUB, Action.GET)


def request_mode(body: bytes) -> Iterable[Context]:
    mode = _read(RequestModeBody, body)
    yield topic_context(mode.topic, Action.UPDATE)
    yield group_context(mode.consumer_group, Action.UPDATE)


def group_config(body: bytes) -> Iterable[Context]:
    yield group_context(_read(SubscriptionGroupConfig, body).group_name, Action.CREATE)


def group_configs(body: bytes) -> Iterable[Context]:
    for config in _read(GroupConfigs, body).group_config_list:
        yield group_context(config.group_name, Action.CREATE)


def topic_configs(body: bytes) -> Iterable[Context]:
    for config in _read(TopicConfigs, body).topic_config_list:
        yield topic_context(config.topic_name, Action.CREATE)


def group_names(body: bytes) -> Iterable[Context]:
    for name in _read(GroupNames, body).group_name_list:
        yield group_context(name, Action.DELETE)


def topic_names(body: bytes) -> Iterable[Context]:
    for name in _read(TopicNames, body).topic_list:
        yield topic_context(name, Action.DELETE)
