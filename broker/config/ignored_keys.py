"""Keys of RocketMQ that many a broker.conf has, and that this broker does not use.

A key that would change nothing is ignored, and logged with the reason. A key that asks for a missing feature
stops the start: the broker would not do what the file says. Source: RocketMQ 5.3.3
BrokerConfig, MessageStoreConfig, NettyServerConfig.
"""

import re
from typing import Final

from keelmq.runtime.config import Foreign

_THREADS: Final = "one event loop does all the work"
_NETWORK: Final = "the system's sizes are used"
_FLUSH: Final = "each flushIntervalCommitLog everything goes to the disk"
_MAPPED: Final = "there is one way in which files are written"
_PATHS: Final = "RocketMQ does not read it either: everything is below storePathRootDir"
_REGISTER: Final = "a registration is always whole, and made when something has changed"
_PULL: Final = "a pull gets as much as it asks for, at most 1 MiB"
_HA: Final = "replicas are in sync by the SyncStateSet, or without controllers by haMaxGapNotInSync"
_METRICS: Final = "metrics are read by Prometheus: see metricsExporterType"
_RECOVERY: Final = "recovery begins at the checkpoint"
_DLEDGER: Final = "there is no DLedger log; enableControllerMode is the way to a fail-over"

IGNORED: Final[tuple[tuple[str, str], ...]] = (
    (r"\w+ThreadPoolNums|\w+ThreadPoolQueueCapacity|\w+ThreadQueueCapacity", _THREADS),
    (r"server(Worker|Selector|CallbackExecutor)Threads|server(Oneway|Async)SemaphoreValue", _THREADS),
    (r"brokerFastFailureEnable|waitTimeMillsIn\w+Queue|asyncSendEnable|putMessageTimeout", _THREADS),
    (r"serverSocket(SndBufSize|RcvBufSize|Backlog)|writeBuffer(High|Low)WaterMark", _NETWORK),
    (r"serverPooledByteBufAllocatorEnable|serverNettyWorkerGroupEnable|useEpollNativeSelector", _NETWORK),
    (r"serverChannelMaxIdleTimeSeconds", "silent connections are closed after 120 s"),
    (r"flush(CommitLog|ConsumeQueue)(LeastPages|ThoroughInterval)|flushCommitLogTimed", _FLUSH),
    (r"flushIntervalConsumeQueue|flushDelayOffsetInterval|flushLeastPagesWhenWarmMapedFile", _FLUSH),
    (r"commit(IntervalCommitLog|CommitLogLeastPages|CommitLogThoroughInterval)", _FLUSH),
    (r"transientStorePool(Enable|Size)|fastFailIfNoBufferInStorePool|warmMap(p)?edFileEnable", _MAPPED),
    (r"useReentrantLockWhenPutMessage|osPageCacheBusyTimeOutMills|transferMsgByHeap", _MAPPED),
    (r"storePath(ConsumeQueue|Index)|storeCheckpoint|abortFile|rocketmqHome|brokerConfigPath", _PATHS),
    (r"forceRegister|compressedRegister|enableSingleTopicRegister", _REGISTER),
    (r"sendHeartbeatTimeoutMillis|brokerNotActiveTimeoutMillis|compatibleWithOldNameSrv", _REGISTER),
    (r"maxTransfer(Bytes|Count)OnMessageIn(Memory|Disk)|pullBatchMaxMessageCount", _PULL),
    (r"maxFilterMessageSize|bitMapLengthConsumeQueueExt|maxLmqConsumeQueueNum", _PULL),
    (r"haSlaveFallbehindMax|maxSlaveResendLength", _HA),
    (r"syncMasterFlushOffsetWhenStartup|syncControllerMetadataPeriod|syncBrokerMemberGroupPeriod", _HA),
    (r"consumerOffsetUpdateVersionStep|delayOffsetUpdateVersionStep|forwardTimeout|skipPreOnline", _HA),
    (r"metricsGrpcExporter\w+|metric(GrpcExporter|LoggingExporter)\w+", _METRICS),
    (r"recoverConcurrently|recoverThreadPoolNums|maxRecoveryCommitlogFiles|maxChecksumRange", _RECOVERY),
    (r"destroyMapedFileIntervalForcibly|deleteCommitLogFilesInterval", "a file goes when nobody needs it"),
    (r"deleteConsumeQueueFilesInterval|redeleteHangedFileInterval", "a file goes when nobody needs it"),
    (r"dLeger(Group|Peers|SelfId)|preferredLeaderId", _DLEDGER),
    (r"timerRollWindowSlot|timerFlushIntervalMs|timerGetMessageThreadNum|timerPutMessageThreadNum",
     "timers are read from the log, without a wheel"),
    (r"enableShutdownGracefully|shutdownWaitTimeSeconds|subscriptionExpiredTimeout",
     "shutdownHandOverTimeout says how long a stop may take"),
)  # fmt: skip
"""Patterns of keys that are ignored whatever their value is, and why."""

ONE_VALUE: Final[dict[str, tuple[str, str]]] = {
    "useTLS": ("false", "tls.server.mode and tls.enable decide about TLS"),
    "enableDLegerCommitLog": ("false", _DLEDGER),
    "duplicationEnable": ("false", "there is no duplication mode"),
    "storeType": ("default", "there are files, and no RocksDB"),
    "enableConsumeQueueExt": ("false", "there are no extension files of queues"),
    "enableLmq": ("false", "there are no lightweight queues"),
    "enableSlaveActingMaster": ("false", "a slave becomes master, with enableControllerMode, or it does not"),
    "enableRemoteEscape": ("false", "a slave becomes master, with enableControllerMode, or it does not"),
    "lockInStrictMode": ("false", "queues are locked by the master; the locks end with its term"),
    "offsetCheckInSlave": ("false", "a slave moves no consumer"),
    "readUnCommitted": ("false", "consumers see what is confirmed"),
    "useServerSideResetOffset": (
        "true",
        "offsets are reset at the broker, and consumers told by their pulls",
    ),
    "filterSupportRetry": ("false", "retries are filtered by tags only"),
    "rejectPullConsumerEnable": (
        "false",
        "pull consumers are served; litePullMessageEnable is for lite ones",
    ),
    "clusterTopicEnable": ("true", "the topic with the cluster's name is there"),
    "brokerTopicEnable": ("true", "the topic with the broker's name is there"),
    "traceOn": ("true", "clients decide whether they trace"),
    "fetchNamesrvAddrByAddressServer": ("false", "namesrvAddr has the addresses"),
    "fetchNameSrvAddrByDnsLookup": (
        "false",
        "namesrvAddr has the addresses; names are resolved at each dial",
    ),
    "fetchControllerAddrByDnsLookup": ("false", "controllerAddr has the addresses of all"),
    "regionId": ("DefaultRegion", "messages have the region DefaultRegion"),
    "accessMessageInMemoryMaxRatio": ("40", "40 percent of the memory are taken to hold the log's tail"),
}
"""Keys with the only value that is possible here; any other one asks for a missing feature."""

UNSUPPORTED: Final[dict[str, str]] = {
    "readOnlyCommitLogStorePaths": "there is one directory of the CommitLog",
}

_IGNORED: Final = tuple((re.compile(pattern), why) for pattern, why in IGNORED)


def look_up(key: str, value: str) -> Foreign | None:
    """Returns what a key of RocketMQ means here; None: it is not a known key of RocketMQ."""
    if key in UNSUPPORTED:
        return Foreign(UNSUPPORTED[key], is_refused=True)
    if key in ONE_VALUE:
        fits, why = ONE_VALUE[key]
        return Foreign(why, is_refused=value.strip().lower() != fits.lower())
    for pattern, why in _IGNORED:
        if pattern.fullmatch(key):
            return Foreign(why, is_refused=False)
    return None
