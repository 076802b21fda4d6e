"""What each request code needs: resources and actions, a role, and whether only members of the cluster may
send it.

Every RequestCode has its entry, and a code that has none needs Cluster Update (pitfall 19: codes that were
added later were open to all clients). RocketMQ lets any known user send what has no ext fields or no header
class (25, 26, 21, 43, 45, 200): here that needs the cluster, or the group. Source: reference of ACL 2.0,
RocketMQ 5.3.3 DefaultAuthorizationContextBuilder, and the @RocketMQAction of header classes.

Differences on purpose: 29 to 33 take Sub as well as Get, since a consumer that starts at the last offset
asks 30. Pulling from a retry topic needs its own group, whatever consumerGroup says. Reading where messages
of all topics wait (delayed ones, half messages) needs the cluster as well: such a name does not say whose
they are."""

from collections.abc import Mapping
from typing import Final

from keelmq.remoting.codes import RequestCode as Code
from keelmq.security.core.acls import Action
from keelmq.security.core.contexts import (
    RECALL_HANDLE,
    BodyNeed,
    FieldNeed,
    LookupKind,
    LookupNeed,
    Need,
    Required,
    Role,
    Rule,
    assignment,
    batch_ack,
    check_client,
    cluster,
    group,
    group_config,
    group_configs,
    group_names,
    heartbeat,
    lock_batch,
    lookup,
    read_waiting,
    recalled,
    request_mode,
    required_of,
    topic,
    topic_configs,
    topic_names,
    topics,
)
from keelmq.security.core.signature import ExtFields

PUB: Final = (Action.PUB,)
SUB: Final = (Action.SUB,)
GET: Final = (Action.GET,)
CREATE: Final = (Action.CREATE,)
UPDATE: Final = (Action.UPDATE,)
DELETE: Final = (Action.DELETE,)
SUB_GET: Final = (Action.SUB, Action.GET)
SUB_UPDATE: Final = (Action.SUB, Action.UPDATE)
PUB_SUB_GET: Final = (Action.PUB, Action.SUB, Action.GET)


def _rule(
    role: Role, *needs: Need | LookupNeed, body: BodyNeed | None = None, members_only: bool = False
) -> Rule:
    of_fields = tuple(need for need in needs if not isinstance(need, LookupNeed))
    lookups = tuple(need for need in needs if isinstance(need, LookupNeed))
    names = [name for need in of_fields if isinstance(need, FieldNeed) for name in need.names]
    if recalled in needs:
        names += RECALL_HANDLE
    return Rule(role, of_fields, lookups, body, members_only, tuple(dict.fromkeys(names)))


def _read(*needs: Need | LookupNeed, body: BodyNeed | None = None) -> Rule:
    return _rule(Role.READ, *needs, body=body)


def _operate(*needs: Need | LookupNeed, body: BodyNeed | None = None) -> Rule:
    return _rule(Role.OPERATE, *needs, body=body)


_ADMINISTER: Final = _rule(Role.ADMINISTER, cluster(Action.UPDATE))
_READ_USERS: Final = _rule(Role.ADMINISTER, cluster(Action.GET))
_OPERATE: Final = _operate(cluster(Action.UPDATE))
_READ: Final = _read(cluster(Action.GET))
_READ_EVERYTHING: Final = _read(cluster(Action.UPDATE))
_LIST: Final = _read(cluster(Action.GET, Action.LIST))
_MEMBER: Final = _rule(Role.ADMINISTER, cluster(Action.UPDATE), members_only=True)
_MEMBER_READ: Final = _rule(Role.READ, cluster(Action.GET), members_only=True)

_SEND_V2: Final = _operate(topic("b", "topic", to=PUB, trace_is_free=True))
_PULL: Final = _operate(topic("topic", to=SUB), group("consumerGroup", to=SUB), read_waiting)
_POP: Final = _PULL
_OFFSET: Final = _read(topic("topic", to=SUB_GET))
_TOPIC_AND_GROUP: Final = _read(topic("topic", to=GET), group("group", to=GET))
_CHANGE_TOPIC_AND_GROUP: Final = _operate(topic("topic", to=UPDATE), group("group", to=UPDATE))

UNKNOWN: Final = _ADMINISTER
"""The rule of a code that is in no table."""

_MESSAGES: Final[Mapping[int, Rule]] = {
    Code.SEND_MESSAGE: _operate(topic("topic", to=PUB, trace_is_free=True)),
    Code.SEND_MESSAGE_V2: _SEND_V2,
    Code.SEND_BATCH_MESSAGE: _SEND_V2,
    Code.RECALL_MESSAGE: _operate(topic("topic", to=PUB), recalled),
    # Older clients omit the topic. With or without it, the half message itself says which topic it is for.
    Code.END_TRANSACTION: _operate(
        topic("topic", to=PUB, optional=True),
        lookup(LookupKind.HALF_MESSAGE, "commitLogOffset", to=PUB),
    ),
    Code.CHECK_TRANSACTION_STATE: _ADMINISTER,
    Code.RESUME_CHECK_HALF_MESSAGE: _operate(
        topic("topic", to=UPDATE, optional=True), lookup(LookupKind.MESSAGE_ID, "msgId", to=UPDATE)
    ),
    # `offset` may be of any message: without the look-up, the groups of a user could be sent all of them.
    Code.CONSUMER_SEND_MSG_BACK: _operate(
        group("group", to=SUB), lookup(LookupKind.LOG_OFFSET, "offset", to=SUB)
    ),
    Code.PULL_MESSAGE: _PULL,
    Code.LITE_PULL_MESSAGE: _PULL,
    Code.QUERY_MESSAGE: _read(topic("topic", to=SUB_GET), read_waiting),
    Code.VIEW_MESSAGE_BY_ID: _read(
        topic("topic", to=SUB_GET, optional=True), lookup(LookupKind.LOG_OFFSET, "offset", to=SUB_GET)
    ),
    Code.SEND_REPLY_MESSAGE: _operate(topic("topic", to=PUB)),
    Code.SEND_REPLY_MESSAGE_V2: _operate(topic("b", "topic", to=PUB)),
    Code.PUSH_REPLY_MESSAGE_TO_CLIENT: _ADMINISTER,
    # extraInfo has a broker and a queue in it, but no topic or group: those are in the header.
    Code.POP_MESSAGE: _POP,
    Code.ACK_MESSAGE: _POP,
    Code.BATCH_ACK_MESSAGE: _operate(body=batch_ack),
    Code.CHANGE_MESSAGE_INVISIBLETIME: _POP,
    Code.KEELMQ_RENEW_POPPED: _POP,
    Code.NOTIFICATION: _POP,
    Code.PEEK_MESSAGE: _POP,
    Code.POLLING_INFO: _read(topic("topic", to=SUB_GET), group("consumerGroup", to=SUB_GET)),
    Code.POP_ROLLBACK: _ADMINISTER,
}

_NOT_SERVED: Final[Mapping[int, Rule]] = dict.fromkeys(
    (
        Code.SWITCH_TIMER_ENGINE, Code.POP_LITE_MESSAGE, Code.LITE_SUBSCRIPTION_CTL, Code.ACK_LITE_MESSAGE,
        Code.NOTIFY_UNSUBSCRIBE_LITE, Code.GET_BROKER_LITE_INFO, Code.GET_PARENT_TOPIC_INFO,
        Code.GET_LITE_TOPIC_INFO, Code.GET_LITE_CLIENT_INFO, Code.GET_LITE_GROUP_INFO,
        Code.TRIGGER_LITE_DISPATCH,
    ),
    _ADMINISTER,
)  # fmt: skip
"""Requests of RocketMQ 5.5 that brokers refuse with a reason, which no other user needs to see."""


_CLIENTS: Final[Mapping[int, Rule]] = {
    Code.HEART_BEAT: _operate(body=heartbeat),
    # A producer that leaves names no consumer group (pitfall 6).
    Code.UNREGISTER_CLIENT: _operate(group("consumerGroup", to=SUB, optional=True)),
    Code.CHECK_CLIENT_CONFIG: _read(body=check_client),
    Code.GET_CLIENT_CONFIG: _READ,
    Code.GET_CONSUMER_LIST_BY_GROUP: _read(group("consumerGroup", to=SUB_GET)),
    Code.NOTIFY_CONSUMER_IDS_CHANGED: _ADMINISTER,
    Code.LOCK_BATCH_MQ: _operate(body=lock_batch),
    Code.UNLOCK_BATCH_MQ: _operate(body=lock_batch),
    Code.QUERY_ASSIGNMENT: _read(body=assignment),
    Code.SET_MESSAGE_REQUEST_MODE: _operate(body=request_mode),
    Code.QUERY_CONSUMER_OFFSET: _read(topic("topic", to=SUB_GET), group("consumerGroup", to=SUB_GET)),
    Code.UPDATE_CONSUMER_OFFSET: _operate(
        topic("topic", to=SUB_UPDATE), group("consumerGroup", to=SUB_UPDATE)
    ),
    Code.QUERY_BROKER_OFFSET: _READ,
    Code.SEARCH_OFFSET_BY_TIMESTAMP: _OFFSET,
    Code.GET_MAX_OFFSET: _OFFSET,
    Code.GET_MIN_OFFSET: _OFFSET,
    Code.GET_EARLIEST_MSG_STORETIME: _OFFSET,
    Code.GET_ROUTEINFO_BY_TOPIC: _read(topic("topic", to=PUB_SUB_GET, trace_is_free=True)),
}

_TOPICS_AND_GROUPS: Final[Mapping[int, Rule]] = {
    Code.UPDATE_AND_CREATE_TOPIC: _operate(topic("topic", to=CREATE)),
    Code.UPDATE_AND_CREATE_TOPIC_LIST: _operate(body=topic_configs),
    Code.UPDATE_AND_CREATE_STATIC_TOPIC: _operate(topic("topic", to=CREATE)),
    Code.DELETE_TOPIC_IN_BROKER: _operate(topic("topic", to=DELETE)),
    Code.DELETE_TOPIC_IN_BROKER_LIST: _operate(body=topic_names),
    Code.DELETE_TOPIC_IN_NAMESRV: _operate(topic("topic", to=DELETE)),
    # A user who may do it may know whether it would be done; the same for the other previews.
    Code.KEELMQ_EXPLAIN_DELETE_TOPIC: _operate(topic("topic", to=DELETE)),
    # It writes routes, also false ones.
    Code.REGISTER_TOPIC_IN_NAMESRV: _ADMINISTER,
    Code.GET_TOPIC_CONFIG: _read(topic("topic", to=GET)),
    Code.GET_TOPIC_STATS_INFO: _read(topic("topic", to=GET)),
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _operate(body=group_config),
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: _operate(body=group_configs),
    Code.DELETE_SUBSCRIPTIONGROUP: _operate(group("groupName", to=DELETE)),
    Code.DELETE_SUBSCRIPTION_GROUP_LIST: _operate(body=group_names),
    Code.KEELMQ_EXPLAIN_DELETE_GROUP: _operate(group("groupName", to=DELETE)),
    Code.GET_SUBSCRIPTIONGROUP_CONFIG: _read(group("group", to=GET)),
    Code.UPDATE_AND_GET_GROUP_FORBIDDEN: _CHANGE_TOPIC_AND_GROUP,
    Code.GET_CONSUMER_CONNECTION_LIST: _read(group("consumerGroup", to=GET)),
    Code.GET_PRODUCER_CONNECTION_LIST: _READ,
    Code.GET_ALL_PRODUCER_INFO: _READ,
    Code.GET_CONSUME_STATS: _read(
        group("consumerGroup", to=GET),
        topic("topic", to=GET, optional=True),
        topics("topicList", to=GET),
    ),
    Code.GET_BROKER_CONSUME_STATS: _READ,
    Code.QUERY_TOPIC_CONSUME_BY_WHO: _read(topic("topic", to=GET)),
    Code.QUERY_CONSUME_TIME_SPAN: _TOPIC_AND_GROUP,
    Code.QUERY_TOPICS_BY_CONSUMER: _read(group("group", to=GET)),
    Code.QUERY_SUBSCRIPTION_BY_CONSUMER: _TOPIC_AND_GROUP,
    Code.QUERY_CORRECTION_OFFSET: _read(topic("topic", to=GET), group("compareGroup", to=GET, optional=True)),
    Code.QUERY_CONSUME_QUEUE: _read(topic("topic", to=GET), group("consumerGroup", to=GET, optional=True)),
    Code.CLONE_GROUP_OFFSET: _operate(
        group("srcGroup", to=UPDATE), group("destGroup", to=UPDATE), topic("topic", to=UPDATE, optional=True)
    ),
    Code.INVOKE_BROKER_TO_RESET_OFFSET: _CHANGE_TOPIC_AND_GROUP,
    Code.KEELMQ_EXPLAIN_RESET_OFFSET: _CHANGE_TOPIC_AND_GROUP,
    Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: _TOPIC_AND_GROUP,
    Code.GET_CONSUMER_RUNNING_INFO: _read(group("consumerGroup", to=GET)),
    # A member of the group is given a message, which may be of any topic.
    Code.CONSUME_MESSAGE_DIRECTLY: _operate(
        group("consumerGroup", to=UPDATE), lookup(LookupKind.MESSAGE_ID, "msgId", to=SUB, optional=True)
    ),
    Code.RESET_CONSUMER_CLIENT_OFFSET: _ADMINISTER,
    Code.GET_CONSUMER_STATUS_FROM_CLIENT: _ADMINISTER,
    Code.SUSPEND_CONSUMER: _OPERATE,
    Code.RESUME_CONSUMER: _OPERATE,
    Code.RESET_CONSUMER_OFFSET_IN_CONSUMER: _OPERATE,
    Code.RESET_CONSUMER_OFFSET_IN_BROKER: _OPERATE,
    Code.ADJUST_CONSUMER_THREAD_POOL: _OPERATE,
    Code.WHO_CONSUME_THE_MESSAGE: _READ,
    Code.REGISTER_FILTER_SERVER: _ADMINISTER,
    Code.REGISTER_MESSAGE_FILTER_CLASS: _ADMINISTER,
}

_CLUSTER: Final[Mapping[int, Rule]] = {
    Code.PUT_KV_CONFIG: _ADMINISTER,
    Code.GET_KV_CONFIG: _READ,
    Code.DELETE_KV_CONFIG: _ADMINISTER,
    Code.GET_KVLIST_BY_NAMESPACE: _READ,
    Code.GET_BROKER_CLUSTER_INFO: _READ,
    Code.WIPE_WRITE_PERM_OF_BROKER: _OPERATE,
    Code.KEELMQ_EXPLAIN_WIPE_WRITE_PERM: _OPERATE,
    Code.ADD_WRITE_PERM_OF_BROKER: _OPERATE,
    Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: _LIST,
    Code.GET_TOPICS_BY_CLUSTER: _LIST,
    Code.GET_SYSTEM_TOPIC_LIST_FROM_NS: _LIST,
    Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: _LIST,
    Code.GET_UNIT_TOPIC_LIST: _LIST,
    Code.GET_HAS_UNIT_SUB_TOPIC_LIST: _LIST,
    Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: _LIST,
    Code.GET_TOPIC_CONFIG_LIST: _LIST,
    Code.GET_TOPIC_NAME_LIST: _LIST,
    # mqadmin asks for both of these, and RocketMQ's slaves.
    Code.GET_ALL_TOPIC_CONFIG: _READ,
    Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: _READ,
    Code.UPDATE_NAMESRV_CONFIG: _ADMINISTER,
    Code.GET_NAMESRV_CONFIG: _READ,
    Code.UPDATE_BROKER_CONFIG: _ADMINISTER,
    Code.GET_BROKER_CONFIG: _READ,
    Code.GET_BROKER_RUNTIME_INFO: _READ,
    Code.VIEW_BROKER_STATS_DATA: _READ,
    Code.TRIGGER_DELETE_FILES: _ADMINISTER,
    Code.DELETE_EXPIRED_COMMITLOG: _ADMINISTER,
    Code.CLEAN_EXPIRED_CONSUMEQUEUE: _OPERATE,
    Code.CLEAN_UNUSED_TOPIC: _ADMINISTER,
    Code.CHECK_ROCKSDB_CQ_WRITE_PROGRESS: _READ,
    Code.EXPORT_ROCKSDB_CONFIG_TO_JSON: _ADMINISTER,
    Code.GET_BROKER_MEMBER_GROUP: _READ,
    Code.RESET_MASTER_FLUSH_OFFSET: _ADMINISTER,
    # Slaves of RocketMQ and `keelmq backup metadata`.
    Code.GET_ALL_CONSUMER_OFFSET: _READ,
    Code.ADD_BROKER: _ADMINISTER,
    Code.REMOVE_BROKER: _ADMINISTER,
    Code.GET_BROKER_HA_STATUS: _READ,
    Code.GET_BROKER_EPOCH_CACHE: _READ,
    Code.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: _OPERATE,
    Code.REMOVE_COLD_DATA_FLOW_CTR_CONFIG: _OPERATE,
    Code.GET_COLD_DATA_FLOW_CTR_INFO: _READ,
    Code.SET_COMMITLOG_READ_MODE: _OPERATE,
    Code.AUTH_CREATE_USER: _ADMINISTER,
    Code.AUTH_UPDATE_USER: _ADMINISTER,
    Code.AUTH_DELETE_USER: _ADMINISTER,
    Code.KEELMQ_EXPLAIN_DELETE_USER: _ADMINISTER,
    Code.AUTH_GET_USER: _READ_USERS,
    Code.AUTH_LIST_USER: _READ_USERS,
    Code.AUTH_CREATE_ACL: _ADMINISTER,
    Code.AUTH_UPDATE_ACL: _ADMINISTER,
    Code.AUTH_DELETE_ACL: _ADMINISTER,
    Code.KEELMQ_EXPLAIN_DELETE_ACL: _ADMINISTER,
    Code.AUTH_GET_ACL: _READ_USERS,
    Code.AUTH_LIST_ACL: _READ_USERS,
    # Brokers ask these of controllers, but operators, too.
    Code.CONTROLLER_ELECT_MASTER: _ADMINISTER,
    Code.CONTROLLER_GET_REPLICA_INFO: _READ,
    Code.CONTROLLER_GET_METADATA_INFO: _READ,
    Code.CONTROLLER_GET_SYNC_STATE_DATA: _READ,
    Code.UPDATE_CONTROLLER_CONFIG: _ADMINISTER,
    Code.GET_CONTROLLER_CONFIG: _READ,
    Code.CLEAN_BROKER_DATA: _ADMINISTER,
    Code.KEELMQ_EXPLAIN_ELECTION: _READ,
    Code.KEELMQ_GET_ELECTIONS: _READ,
    Code.KEELMQ_EXPLAIN_CLEAN_BROKER_DATA: _READ,
    Code.KEELMQ_EXPORT_STATE: _ADMINISTER,
    Code.KEELMQ_IMPORT_STATE: _ADMINISTER,
    Code.KEELMQ_ADD_CONTROLLER: _ADMINISTER,
    Code.KEELMQ_REMOVE_CONTROLLER: _ADMINISTER,
    Code.KEELMQ_TRANSFER_LEADER: _ADMINISTER,
    # Meanwhile no member can be added or removed.
    Code.KEELMQ_EXPLAIN_REMOVE_CONTROLLER: _ADMINISTER,
    Code.KEELMQ_CONTAINER_STATUS: _READ,
    Code.KEELMQ_EXPLAIN_REMOVE_BROKER: _READ,
    # It names files of the host, and what is wrong with them.
    Code.KEELMQ_CONTAINER_PLAN: _ADMINISTER,
    Code.KEELMQ_MOVE_BROKER: _ADMINISTER,
    Code.KEELMQ_RESTART_WORKER: _ADMINISTER,
    # It writes all messages to another directory of the host.
    Code.KEELMQ_START_STORE_BACKUP: _ADMINISTER,
    Code.KEELMQ_GET_STORE_BACKUP: _READ,
    Code.KEELMQ_CANCEL_STORE_BACKUP: _ADMINISTER,
    Code.KEELMQ_GET_REPLICA_DIGEST: _READ,
    # Two checksums of ranges that differ by one byte tell what the byte is, so this reads all messages.
    Code.KEELMQ_GET_LOG_CHECKSUMS: _READ_EVERYTHING,
    Code.KEELMQ_GET_QUEUE_CHECKSUMS: _READ_EVERYTHING,
    Code.KEELMQ_READ_LOG: _READ_EVERYTHING,
    Code.KEELMQ_CHECK_LOG_RECORDS: _READ_EVERYTHING,
}

_MEMBERS: Final[Mapping[int, Rule]] = {
    Code.REGISTER_BROKER: _MEMBER,
    Code.UNREGISTER_BROKER: _MEMBER,
    Code.QUERY_DATA_VERSION: _MEMBER,
    Code.BROKER_HEARTBEAT: _MEMBER,
    Code.NOTIFY_MIN_BROKER_ID_CHANGE: _MEMBER,
    Code.EXCHANGE_BROKER_HA_INFO: _MEMBER,
    Code.CONTROLLER_ALTER_SYNC_STATE_SET: _MEMBER,
    Code.CONTROLLER_REGISTER_BROKER: _MEMBER,
    Code.NOTIFY_BROKER_ROLE_CHANGED: _MEMBER,
    Code.CONTROLLER_GET_NEXT_BROKER_ID: _MEMBER,
    Code.CONTROLLER_APPLY_BROKER_ID: _MEMBER,
    Code.BROKER_CLOSE_CHANNEL_REQUEST: _MEMBER,
    Code.CHECK_NOT_ACTIVE_BROKER_REQUEST: _MEMBER,
    Code.GET_BROKER_LIVE_INFO_REQUEST: _MEMBER,
    Code.GET_SYNC_STATE_DATA_REQUEST: _MEMBER,
    Code.RAFT_BROKER_HEART_BEAT_EVENT_REQUEST: _MEMBER,
    Code.KEELMQ_PULL_METADATA: _MEMBER,
    Code.KEELMQ_HAND_OVER: _MEMBER,
    Code.KEELMQ_SYNC_USERS: _MEMBER,
    Code.KEELMQ_SERVE_FOR_CLIENT: _MEMBER,
    # How replicas of RocketMQ follow their master.
    Code.GET_ALL_DELAY_OFFSET: _MEMBER_READ,
    Code.GET_ALL_MESSAGE_REQUEST_MODE: _MEMBER_READ,
    Code.GET_TIMER_CHECK_POINT: _MEMBER_READ,
    Code.GET_TIMER_METRICS: _MEMBER_READ,
}

RULES: Final[Mapping[int, Rule]] = {
    int(code): rule
    for table in (_MESSAGES, _CLIENTS, _TOPICS_AND_GROUPS, _CLUSTER, _MEMBERS, _NOT_SERVED)
    for code, rule in table.items()
}
TABLES: Final = (_MESSAGES, _CLIENTS, _TOPICS_AND_GROUPS, _CLUSTER, _MEMBERS, _NOT_SERVED)


def rule_of(code: int) -> Rule:
    return RULES.get(code, UNKNOWN)


def role_of(code: int) -> Role:
    """Returns what kind of request a code is."""
    return rule_of(code).role


def required_contexts(code: int, ext_fields: ExtFields | None, body: bytes, cluster_name: str) -> Required:
    """Returns what the request needs. No ext fields are as good as empty ones (pitfall 2). Raises
    Unreadable."""
    return required_of(rule_of(code), ext_fields or {}, body, cluster_name)
