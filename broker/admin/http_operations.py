"""Which operations of a broker are served over HTTP, as POST /v1/<operation>: those of administrators.

Every operation of the table is in one of the tuples. A test compares them with the table, so a new operation
must be added to one.
"""

from typing import Final

from keelmq.remoting.codes import RequestCode as Code

HTTP_OPERATIONS: Final = (
    # topics
    Code.UPDATE_AND_CREATE_TOPIC,
    Code.UPDATE_AND_CREATE_TOPIC_LIST,
    Code.DELETE_TOPIC_IN_BROKER,
    Code.DELETE_TOPIC_IN_BROKER_LIST,
    Code.KEELMQ_EXPLAIN_DELETE_TOPIC,
    Code.GET_TOPIC_CONFIG,
    Code.GET_ALL_TOPIC_CONFIG,
    Code.GET_TOPIC_STATS_INFO,
    Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
    # subscription groups
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
    Code.DELETE_SUBSCRIPTIONGROUP,
    Code.DELETE_SUBSCRIPTION_GROUP_LIST,
    Code.KEELMQ_EXPLAIN_DELETE_GROUP,
    Code.GET_SUBSCRIPTIONGROUP_CONFIG,
    Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    Code.UPDATE_AND_GET_GROUP_FORBIDDEN,
    Code.SET_MESSAGE_REQUEST_MODE,
    # offsets and consumer progress
    Code.QUERY_CONSUMER_OFFSET,
    Code.SEARCH_OFFSET_BY_TIMESTAMP,
    Code.GET_MAX_OFFSET,
    Code.GET_MIN_OFFSET,
    Code.GET_EARLIEST_MSG_STORETIME,
    Code.GET_CONSUME_STATS,
    Code.GET_BROKER_CONSUME_STATS,
    Code.INVOKE_BROKER_TO_RESET_OFFSET,
    Code.KEELMQ_EXPLAIN_RESET_OFFSET,
    Code.QUERY_TOPIC_CONSUME_BY_WHO,
    Code.QUERY_TOPICS_BY_CONSUMER,
    Code.QUERY_SUBSCRIPTION_BY_CONSUMER,
    Code.QUERY_CONSUME_TIME_SPAN,
    Code.QUERY_CORRECTION_OFFSET,
    Code.CLONE_GROUP_OFFSET,
    Code.QUERY_CONSUME_QUEUE,
    # connected clients; the broker asks them over the connections that they have opened
    Code.GET_CONSUMER_LIST_BY_GROUP,
    Code.GET_CONSUMER_CONNECTION_LIST,
    Code.GET_PRODUCER_CONNECTION_LIST,
    Code.GET_ALL_PRODUCER_INFO,
    Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
    Code.GET_CONSUMER_RUNNING_INFO,
    Code.CONSUME_MESSAGE_DIRECTLY,
    Code.RESUME_CHECK_HALF_MESSAGE,
    # the broker
    Code.GET_BROKER_RUNTIME_INFO,
    Code.VIEW_BROKER_STATS_DATA,
    Code.UPDATE_BROKER_CONFIG,
    Code.GET_BROKER_CONFIG,
    Code.CLEAN_EXPIRED_CONSUMEQUEUE,
    Code.CLEAN_UNUSED_TOPIC,
    Code.DELETE_EXPIRED_COMMITLOG,
    Code.GET_BROKER_HA_STATUS,
    Code.GET_BROKER_EPOCH_CACHE,
    Code.SET_COMMITLOG_READ_MODE,
    # users and ACLs
    Code.AUTH_CREATE_USER,
    Code.AUTH_UPDATE_USER,
    Code.AUTH_DELETE_USER,
    Code.KEELMQ_EXPLAIN_DELETE_USER,
    Code.AUTH_GET_USER,
    Code.AUTH_LIST_USER,
    Code.AUTH_CREATE_ACL,
    Code.AUTH_UPDATE_ACL,
    Code.AUTH_DELETE_ACL,
    Code.KEELMQ_EXPLAIN_DELETE_ACL,
    Code.AUTH_GET_ACL,
    Code.AUTH_LIST_ACL,
    # backups, and the data of this replica
    Code.KEELMQ_START_STORE_BACKUP,
    Code.KEELMQ_GET_STORE_BACKUP,
    Code.KEELMQ_CANCEL_STORE_BACKUP,
    Code.KEELMQ_GET_REPLICA_DIGEST,
)
"""Served, where the broker binds them: 1007 is bound in controller mode only."""

OF_CLIENTS: Final = (
    # Messages are records in the format of the log, or answered by a frame that is written later.
    Code.QUERY_MESSAGE,
    Code.VIEW_MESSAGE_BY_ID,
    Code.CONSUMER_SEND_MSG_BACK,
    Code.END_TRANSACTION,
    Code.RECALL_MESSAGE,
    Code.SEND_REPLY_MESSAGE,
    Code.SEND_REPLY_MESSAGE_V2,
    Code.POP_MESSAGE,
    Code.PEEK_MESSAGE,
    Code.ACK_MESSAGE,
    Code.BATCH_ACK_MESSAGE,
    Code.CHANGE_MESSAGE_INVISIBLETIME,
    Code.KEELMQ_RENEW_POPPED,
    Code.NOTIFICATION,
    Code.POLLING_INFO,
    # They belong to a client that stays connected: its membership, its locks, its progress.
    Code.HEART_BEAT,
    Code.UNREGISTER_CLIENT,
    Code.CHECK_CLIENT_CONFIG,
    Code.LOCK_BATCH_MQ,
    Code.UNLOCK_BATCH_MQ,
    Code.UPDATE_CONSUMER_OFFSET,
    Code.QUERY_ASSIGNMENT,
)
"""Not served: only producers and consumers send them. The fast path (10, 11, 310, 320, 361) never is."""

OF_MEMBERS: Final = (
    Code.GET_ALL_DELAY_OFFSET,
    Code.GET_ALL_MESSAGE_REQUEST_MODE,
    Code.GET_TIMER_CHECK_POINT,
    Code.GET_TIMER_METRICS,
    Code.NOTIFY_MIN_BROKER_ID_CHANGE,
    Code.EXCHANGE_BROKER_HA_INFO,
    Code.NOTIFY_BROKER_ROLE_CHANGED,
    Code.KEELMQ_PULL_METADATA,
    Code.KEELMQ_SERVE_FOR_CLIENT,
)
"""Not served: with users, members of the cluster alone may send them (keelmq/security/core/rules.py), and
they have a connection to the remoting port."""

OF_TOOLS: Final = (
    Code.GET_ALL_CONSUMER_OFFSET,
    Code.KEELMQ_GET_LOG_CHECKSUMS,
    Code.KEELMQ_GET_QUEUE_CHECKSUMS,
    Code.KEELMQ_READ_LOG,
    Code.KEELMQ_CHECK_LOG_RECORDS,
)
"""Not served: tools ask for them over TCP. 43 has the offsets of all groups in one answer (`keelmq backup
metadata`). Checksums reveal the content of messages, and 29047 returns them: users need Update on the cluster
for them, but a token would need the role `read` only."""
