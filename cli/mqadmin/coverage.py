"""RocketMQ's subcommands, and those that KeelMQ will not have: they say why, and end with 1.

Source: RocketMQ 5.3.3 MQAdminStartup. `make docs` writes the table into docs/reference/cli.md.
"""

from typing import Annotated, Final

import typer

from cli.mqadmin.shell import REFUSED, app, complain

UPSTREAM: Final = (
    "addBroker", "addWritePerm", "allocateMQ", "brokerConsumeStats", "brokerStatus", "checkMsgSendRT",
    "checkRocksdbCqWriteProgress", "cleanBrokerMetadata", "cleanExpiredCQ", "cleanUnusedTopic",
    "cloneGroupOffset", "clusterList", "clusterRT", "consumeMessage", "consumerConnection",
    "consumerProgress", "consumerStatus", "copyAcl", "copyUser", "createAcl", "createUser", "deleteAcl",
    "deleteExpiredCommitLog", "deleteKvConfig", "deleteSubGroup", "deleteTopic", "deleteUser",
    "dumpCompactionLog", "electMaster", "exportConfigs", "exportMetadata", "exportMetadataInRocksDB",
    "exportMetrics", "exportPopRecord", "getAcl", "getBrokerConfig", "getBrokerEpoch",
    "getColdDataFlowCtrInfo", "getConsumerConfig", "getControllerConfig", "getControllerMetaData",
    "getNamesrvConfig", "getSyncStateSet", "getUser", "haStatus", "listAcl", "listUser", "printMsg",
    "printMsgByQueue", "producer", "producerConnection", "queryCq", "queryMsgById", "queryMsgByKey",
    "queryMsgByOffset", "queryMsgByUniqueKey", "queryMsgTraceById", "remappingStaticTopic",
    "removeBroker", "removeColdDataFlowCtrGroupConfig", "resetMasterFlushOffset", "resetOffsetByTime",
    "rocksDBConfigToJson", "sendMessage", "sendMsgStatus", "setCommitLogReadAheadMode",
    "setConsumeMode", "skipAccumulatedMessage", "startMonitoring", "statsAll", "topicClusterList",
    "topicList", "topicRoute", "topicStatus", "updateAcl", "updateBrokerConfig",
    "updateColdDataFlowCtrGroupConfig", "updateControllerConfig", "updateKvConfig",
    "updateNamesrvConfig", "updateOrderConf", "updateStaticTopic", "updateSubGroup",
    "updateSubGroupList", "updateTopic", "updateTopicList", "updateTopicPerm", "updateUser",
    "wipeWritePerm",
)  # fmt: skip
"""All 89, sorted."""

_COLD: Final = "reads of old messages are not limited; setCommitLogReadAheadMode says how the log is read"
_STATIC: Final = "there are no static topics; updateTopic changes the queues of a topic at each master"
_ROCKSDB: Final = "there is no RocksDB"
NEVER: Final[dict[str, str]] = {
    "getColdDataFlowCtrInfo": _COLD,
    "updateColdDataFlowCtrGroupConfig": _COLD,
    "removeColdDataFlowCtrGroupConfig": _COLD,
    "updateStaticTopic": _STATIC,
    "remappingStaticTopic": _STATIC,
    "dumpCompactionLog": "topics are not compacted, so there is no compaction log",
    "exportMetadataInRocksDB": f"{_ROCKSDB}: topics and groups are JSON below config/ of the store; "
    "exportMetadata asks a running broker",
    "rocksDBConfigToJson": f"{_ROCKSDB}: topics and groups are JSON already, below config/ of the store",
    "checkRocksdbCqWriteProgress": f"{_ROCKSDB}: consume queues are files below consumequeue/ of the store",
    "exportPopRecord": f"{_ROCKSDB}: what consumers have popped is in the revive topic, on every replica",
}
"""Why there is no such command."""


def never_text(name: str) -> str:
    """Returns the line that the command prints."""
    return f"{name}: not in KeelMQ: {NEVER[name]}"


def _register(name: str) -> None:
    def refuse(
        context: typer.Context,
        namesrv_addr: Annotated[str | None, typer.Option("-n", "--namesrvAddr", help="Ignored")] = None,
    ) -> None:
        complain(never_text(name))
        raise typer.Exit(REFUSED)

    app.command(
        name,
        hidden=True,
        help=f"Not in KeelMQ: {NEVER[name]}.",
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )(refuse)


for _name in NEVER:
    _register(_name)
