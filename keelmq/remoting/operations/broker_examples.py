"""An example request and response of each operation of brokers over HTTP: see examples.py, which has all."""

from typing import Any

_GROUP = {"brokerName": "broker-a"}
_SET = {"clusterName": "DefaultCluster", "brokerName": "broker-a"}
_VERSION = {"counter": 7, "stateVersion": 3, "timestamp": 1767225600000}
_GROUP_CONFIG = {
    "groupName": "orders",
    "consumeEnable": True,
    "consumeFromMinEnable": True,
    "consumeBroadcastEnable": True,
    "consumeMessageOrderly": False,
    "retryQueueNums": 1,
    "retryMaxTimes": 16,
    "groupRetryPolicy": {"type": "CUSTOMIZED"},
    "brokerId": 0,
    "whichBrokerWhenConsumeSlowly": 1,
    "notifyConsumerIdsChangedEnable": True,
    "groupSysFlag": 0,
    "consumeTimeoutMinute": 15,
    "attributes": {},
}
_TOPIC_CONFIG = {
    "topicName": "TopicTest",
    "readQueueNums": 8,
    "writeQueueNums": 8,
    "perm": 6,
    "topicFilterType": "SINGLE_TAG",
    "topicSysFlag": 0,
    "order": False,
    "attributes": {},
}
_TOPIC = {"topic": "TopicTest"}
_QUEUE = {**_TOPIC, "queueId": 0}
_MESSAGE_QUEUE = {**_QUEUE, "brokerName": "broker-a"}
_QUEUE_KEY = '{"brokerName":"broker-a","queueId":0,"topic":"TopicTest"}'
_OF_GROUP = {"group": "orders"}
_GROUP_AND_TOPIC = {**_OF_GROUP, **_TOPIC}
_CONSUMERS = {"consumerGroup": "orders"}
_CLIENT_ID = "10.0.0.9@4711"
_CLIENT = {"clientAddr": "10.0.0.9:40002", "clientId": _CLIENT_ID, "language": "JAVA", "version": 493}
_MESSAGE_ID = "0A00000100002A9F0000000000000800"
_SUBSCRIPTION = {
    **_TOPIC,
    "subString": "*",
    "subVersion": 1767225600000,
    "expressionType": "TAG",
    "classFilterMode": False,
    "codeSet": [],
    "tagsSet": [],
}
_CONSUMED = {"brokerOffset": 120, "consumerOffset": 100, "lastTimestamp": 1767225600000, "pullOffset": 100}
_CONSUME_STATS = {"consumeTps": 12.5, "offsetTable": {_QUEUE_KEY: _CONSUMED}}
_STATS = {"sum": 60, "tps": 1.0, "avgpt": 1.0}
_USER = {"username": "alice"}
_USER_INFO = {**_USER, "userType": "Normal", "userStatus": "enable"}
_SUBJECT = {"subject": "User:alice"}
_ENTRY = {"resource": "Topic:TopicTest", "actions": ["Pub"], "sourceIps": ["10.0.0.0/8"], "decision": "Allow"}
_ACL = {**_SUBJECT, "policies": [{"policyType": "Custom", "entries": [_ENTRY]}]}
_BACKUP = {
    "state": "copying",
    "name": "monday",
    "path": "/backup/monday",
    "bytesDone": 1048576,
    "bytesTotal": 8388608,
    "minOffset": 0,
    "endOffset": 8388608,
    "error": "",
}

OF_BROKERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    # topics
    "updateAndCreateTopic": (
        {**_TOPIC, "defaultTopic": "TBW102", "readQueueNums": 8, "writeQueueNums": 8, "perm": 6},
        {},
    ),
    "updateAndCreateTopicList": ({"body": {"topicConfigList": [_TOPIC_CONFIG]}}, {}),
    "deleteTopicInBroker": (_TOPIC, {}),
    "deleteTopicInBrokerList": ({"body": {"topicList": ["orders", "refunds"]}}, {}),
    "explainDeleteTopicInBroker": (
        _TOPIC,
        {"body": {"isKnown": True, "queues": 8, "messages": 100, "consumerGroups": ["orders"]}},
    ),
    "getTopicConfig": (_TOPIC, {"body": _TOPIC_CONFIG}),
    "getAllTopicConfig": (
        {},
        {
            "body": {
                "topicConfigTable": {"TopicTest": _TOPIC_CONFIG},
                "dataVersion": _VERSION,
                "topicQueueMappingInfoMap": {},
                "topicQueueMappingDetailMap": {},
            }
        },
    ),
    "getTopicStatsInfo": (
        _TOPIC,
        {
            "body": {
                "offsetTable": {
                    _QUEUE_KEY: {"lastUpdateTimestamp": 1767225600000, "maxOffset": 120, "minOffset": 0}
                },
                "topicPutTps": 12.5,
            }
        },
    ),
    "getSystemTopicListFromBroker": ({}, {"body": {"topicList": ["TBW102", "SCHEDULE_TOPIC_XXXX"]}}),
    # subscription groups
    "updateAndCreateSubscriptionGroup": ({"body": _GROUP_CONFIG}, {}),
    "updateAndCreateSubscriptionGroupList": ({"body": {"groupConfigList": [_GROUP_CONFIG]}}, {}),
    "deleteSubscriptionGroup": ({"groupName": "orders", "cleanOffset": True}, {}),
    "deleteSubscriptionGroupList": (
        {"body": {"groupNameList": ["orders", "refunds"], "cleanOffset": True}},
        {},
    ),
    "explainDeleteSubscriptionGroup": (
        {"groupName": "orders", "cleanOffset": True},
        {"body": {"isKnown": True, "behind": 3, "members": 0, "topics": ["%RETRY%orders"]}},
    ),
    "getSubscriptionGroupConfig": (_OF_GROUP, {"body": _GROUP_CONFIG}),
    "getAllSubscriptionGroupConfig": (
        {},
        {
            "body": {
                "subscriptionGroupTable": {"orders": _GROUP_CONFIG},
                "forbiddenTable": {},
                "dataVersion": _VERSION,
            }
        },
    ),
    "updateAndGetGroupForbidden": (
        {**_GROUP_AND_TOPIC, "readable": False},
        {"body": {**_GROUP_AND_TOPIC, "readable": False}},
    ),
    "setMessageRequestMode": (
        {"body": {**_TOPIC, **_CONSUMERS, "mode": "POP", "popShareQueueNum": 0}},
        {},
    ),
    # offsets, and what was consumed
    "queryConsumerOffset": ({**_CONSUMERS, **_QUEUE}, {"offset": 100}),
    "searchOffsetByTimestamp": ({**_QUEUE, "timestamp": 1767225600000}, {"offset": 100}),
    "getMaxOffset": (_QUEUE, {"offset": 120}),
    "getMinOffset": (_QUEUE, {"offset": 0}),
    "getEarliestMsgStoreTime": (_QUEUE, {"timestamp": 1767225600000}),
    "getConsumeStats": (_CONSUMERS, {"body": _CONSUME_STATS}),
    "getBrokerConsumeStats": (
        {"isOrder": False},
        {
            "body": {
                "brokerAddr": "10.0.0.1:10911",
                "consumeStatsList": [{"orders": [_CONSUME_STATS]}],
                "totalDiff": 20,
                "totalInflightDiff": 0,
            }
        },
    ),
    "resetOffset": (
        {**_GROUP_AND_TOPIC, "timestamp": 1767225600000, "isForce": True},
        {"body": {"offsetTable": {_QUEUE_KEY: 90}}},
    ),
    "explainResetOffset": (
        {**_GROUP_AND_TOPIC, "timestamp": 1767225600000, "isForce": True},
        {
            "body": {
                "offsetTable": {
                    _QUEUE_KEY: {
                        "brokerOffset": 100,
                        "consumerOffset": 97,
                        "timestampOffset": 90,
                        "resetOffset": 90,
                    }
                }
            }
        },
    ),
    "queryTopicConsumeByWho": (_TOPIC, {"body": {"groupList": ["orders"]}}),
    "queryTopicsByConsumer": (_OF_GROUP, {"body": {"topicList": ["TopicTest"]}}),
    "querySubscriptionByConsumer": (
        _GROUP_AND_TOPIC,
        {"body": {**_GROUP_AND_TOPIC, "subscriptionData": _SUBSCRIPTION}},
    ),
    "queryConsumeTimeSpan": (
        _GROUP_AND_TOPIC,
        {
            "body": {
                "consumeTimeSpanSet": [
                    {
                        "messageQueue": _MESSAGE_QUEUE,
                        "minTimeStamp": 1767139200000,
                        "maxTimeStamp": 1767225600000,
                        "consumeTimeStamp": 1767225540000,
                        "delayTime": 60000,
                    }
                ]
            }
        },
    ),
    "queryCorrectionOffset": (_TOPIC, {"body": {"correctionOffsets": {"0": 100}}}),
    "cloneGroupOffset": (
        {"srcGroup": "orders", "destGroup": "orders-new", **_TOPIC, "offline": True},
        {},
    ),
    "queryConsumeQueue": (
        {**_QUEUE, "index": 0, "count": 1},
        {
            "body": {
                "queueData": [{"physicOffset": 2048, "physicSize": 312, "tagsCode": 2598919, "eval": True}],
                "maxQueueIndex": 120,
                "minQueueIndex": 0,
            }
        },
    ),
    # connected clients
    "getConsumerListByGroup": (_CONSUMERS, {"body": {"consumerIdList": [_CLIENT_ID]}}),
    "getConsumerConnectionList": (
        _CONSUMERS,
        {
            "body": {
                "connectionSet": [_CLIENT],
                "subscriptionTable": {"TopicTest": _SUBSCRIPTION},
                "consumeType": "CONSUME_PASSIVELY",
                "messageModel": "CLUSTERING",
                "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
            }
        },
    ),
    "getProducerConnectionList": ({"producerGroup": "shop"}, {"body": {"connectionSet": [_CLIENT]}}),
    "getAllProducerInfo": (
        {},
        {
            "body": {
                "data": {
                    "shop": [
                        {
                            "clientId": _CLIENT_ID,
                            "language": "JAVA",
                            "remoteIP": "/10.0.0.9:40002",
                            "version": 493,
                            "lastUpdateTimestamp": 1_767_225_600_000,
                        }
                    ]
                }
            }
        },
    ),
    "invokeBrokerToGetConsumerStatus": (
        _GROUP_AND_TOPIC,
        {"body": {"consumerTable": {_CLIENT_ID: {_QUEUE_KEY: 100}}}},
    ),
    "getConsumerRunningInfo": (
        {**_CONSUMERS, "clientId": _CLIENT_ID},
        {"body": {"mqTable": {_QUEUE_KEY: {"commitOffset": 100}}, "properties": {"pause": "false"}}},
    ),
    "consumeMessageDirectly": (
        {**_CONSUMERS, "clientId": _CLIENT_ID, "msgId": _MESSAGE_ID},
        {"body": {"consumeResult": "CR_SUCCESS", "order": False, "autoCommit": True, "spentTimeMills": 3}},
    ),
    "resumeCheckHalfMessage": ({"msgId": _MESSAGE_ID}, {}),
    # the broker
    "getBrokerRuntimeInfo": ({}, {"body": {"table": {"brokerActive": "true", "putTps": "12.5 11.9 11.8"}}}),
    "viewBrokerStatsData": (
        {"statsName": "TOPIC_PUT_NUMS", "statsKey": "TopicTest"},
        {"body": {"statsMinute": _STATS, "statsHour": _STATS, "statsDay": _STATS}},
    ),
    "updateBrokerConfig": ({"body": "bWF4TWVzc2FnZVNpemU9MTA0ODU3Ngo="}, {}),
    "getBrokerConfig": (
        {},
        {
            "version": '{"counter":0,"stateVersion":0,"timestamp":0}',
            "body": "bWF4TWVzc2FnZVNpemU9MTA0ODU3Ngo=",
        },
    ),
    "cleanExpiredConsumeQueue": ({}, {}),
    "cleanUnusedTopic": ({}, {}),
    "deleteExpiredCommitLog": ({}, {}),
    "getBrokerHaStatus": (
        {},
        {
            "body": {
                "master": True,
                "masterCommitLogMaxOffset": 2048,
                "inSyncSlaveNums": 1,
                "haConnectionInfo": [
                    {
                        "addr": "10.0.0.2:40002",
                        "slaveAckOffset": 2048,
                        "diff": 0,
                        "inSync": True,
                        "transferredByteInSecond": 0,
                        "transferFromWhere": 2048,
                        "brokerId": 2,
                        "lagMillis": 0,
                        "beganAtOffset": 0,
                    }
                ],
                "haClientRuntimeInfo": {
                    "transferredByteInSecond": 0,
                    "maxOffset": 0,
                    "lastReadTimestamp": 0,
                    "lastWriteTimestamp": 0,
                    "masterFlushOffset": 0,
                    "activated": False,
                },
            }
        },
    ),
    "getBrokerEpoch": (
        _GROUP,
        {
            "body": {
                **_SET,
                "brokerId": 1,
                "epochList": [{"epoch": 3, "startOffset": 0, "endOffset": 2048}],
                "maxOffset": 2048,
            }
        },
    ),
    "setCommitLogReadMode": ({"READ_AHEAD_MODE": 1}, {}),
    # users and ACLs, of every program that has them
    "authCreateUser": (
        {**_USER, "body": {**_USER, "password": "a-long-secret", "userType": "Normal"}},
        {},
    ),
    "authUpdateUser": ({**_USER, "body": {"userStatus": "disable"}}, {}),
    "authDeleteUser": (_USER, {}),
    "explainDeleteUser": (_USER, {"body": {"user": _USER_INFO}}),
    "authGetUser": (_USER, {"body": _USER_INFO}),
    "authListUser": ({"filter": "ali"}, {"body": [_USER_INFO]}),
    "authCreateAcl": ({**_SUBJECT, "body": _ACL}, {}),
    "authUpdateAcl": ({**_SUBJECT, "body": _ACL}, {}),
    "authDeleteAcl": ({**_SUBJECT, "resource": "Topic:TopicTest"}, {}),
    "explainDeleteAcl": ({**_SUBJECT, "resource": "Topic:TopicTest"}, {"body": {"acl": _ACL}}),
    "authGetAcl": (_SUBJECT, {"body": _ACL}),
    "authListAcl": ({"resourceFilter": "TopicTest"}, {"body": [_ACL]}),
    # backups, and what a replica has
    "startStoreBackup": ({"backupName": "monday", "bytesPerSecond": 67108864}, {"body": _BACKUP}),
    "getStoreBackup": ({}, {"body": _BACKUP}),
    "cancelStoreBackup": ({}, {"body": {**_BACKUP, "state": "cancelled"}}),
    "getReplicaDigest": (
        {},
        {
            "body": {
                "cluster": "DefaultCluster",
                **_GROUP,
                "brokerId": 1,
                "isMaster": True,
                "minOffset": 0,
                "maxOffset": 2048,
                "confirmOffset": 2048,
                "dispatchOffset": 2048,
                "cutCount": 0,
                "epochs": [{"epoch": 3, "startOffset": 0}],
                "tables": {"topics": _VERSION},
            }
        },
    ),
}
