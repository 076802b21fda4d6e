"""Requests that RocketMQ's brokers serve and KeelMQ's do not. The answer has the reason and the alternative.

Its code is 3, as for an unknown request. docs/requests.md has the same table, and a test compares them.
"""

from typing import Final

from keelmq.remoting.codes import RequestCode as Code

_FOR_CLIENTS: Final = "is a request to consumers: send a broker 222 (reset offsets) or 223 (consumer status)"
_NO_ROCKSDB: Final = "KeelMQ has no RocksDB store"
_NO_LITE: Final = "there are no lite topics here: use topics"
_NO_COLD_DATA: Final = "reads of old messages are not limited here; how the log is read is set by 2004"
UNSUPPORTED_REQUESTS: Final[dict[int, str]] = {
    Code.RESET_CONSUMER_CLIENT_OFFSET: _FOR_CLIENTS,
    Code.GET_CONSUMER_STATUS_FROM_CLIENT: _FOR_CLIENTS,
    Code.CHECK_ROCKSDB_CQ_WRITE_PROGRESS: f"{_NO_ROCKSDB}: queues are files below consumequeue/",
    Code.EXPORT_ROCKSDB_CONFIG_TO_JSON: f"{_NO_ROCKSDB}: topics and groups are JSON already, below config/",
    Code.UPDATE_AND_CREATE_STATIC_TOPIC: "there are no static topics here: use updateTopic (17)",
    Code.RESET_MASTER_FLUSH_OFFSET: (
        "replicas compare epochs and offsets with their master at every connection: there is none to set"
    ),
    Code.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: _NO_COLD_DATA,
    Code.REMOVE_COLD_DATA_FLOW_CTR_CONFIG: _NO_COLD_DATA,
    Code.GET_COLD_DATA_FLOW_CTR_INFO: _NO_COLD_DATA,
    Code.POP_ROLLBACK: f"{_NO_ROCKSDB}: checkpoints of pops are in the revive topic",
    Code.SWITCH_TIMER_ENGINE: f"{_NO_ROCKSDB}: timers are read from the log",
    Code.POP_LITE_MESSAGE: _NO_LITE,
    Code.LITE_SUBSCRIPTION_CTL: _NO_LITE,
    Code.ACK_LITE_MESSAGE: _NO_LITE,
    Code.NOTIFY_UNSUBSCRIBE_LITE: _NO_LITE,
    Code.GET_BROKER_LITE_INFO: _NO_LITE,
    Code.GET_PARENT_TOPIC_INFO: _NO_LITE,
    Code.GET_LITE_TOPIC_INFO: _NO_LITE,
    Code.GET_LITE_CLIENT_INFO: _NO_LITE,
    Code.GET_LITE_GROUP_INFO: _NO_LITE,
    Code.TRIGGER_LITE_DISPATCH: _NO_LITE,
}
