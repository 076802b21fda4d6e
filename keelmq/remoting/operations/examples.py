"""An example request and response of each operation over HTTP: for OpenAPI and docs/reference/http.md.

Tests validate them against the operations' models.
"""

from typing import Any

from keelmq.remoting.operations.broker_examples import OF_BROKERS

_GROUP = {"brokerName": "broker-a"}
_SET = {"clusterName": "DefaultCluster", "brokerName": "broker-a"}
_BROKER = {**_SET, "brokerAddr": "10.0.0.1:10911", "brokerId": 0}
_MEMBERS = {"syncStateSet": [1, 2], "syncStateSetEpoch": 4}
_MASTER = {
    "masterBrokerId": 1,
    "masterAddress": "10.0.0.1:10911",
    "masterEpoch": 3,
    "syncStateSetEpoch": 4,
}
_NEW_MASTER = {**_MASTER, "masterBrokerId": 2, "masterAddress": "10.0.0.2:10911", "masterEpoch": 4}
_ADDRESSES = {"0": "10.0.0.1:10911", "2": "10.0.0.2:10911"}
_QUEUES = {
    "brokerName": "broker-a",
    "perm": 6,
    "readQueueNums": 8,
    "topicSysFlag": 0,
    "writeQueueNums": 8,
}
_DATA = {
    "brokerAddrs": _ADDRESSES,
    "brokerName": "broker-a",
    "cluster": "DefaultCluster",
    "enableActingMaster": False,
}
_ROUTE = {"brokerDatas": [_DATA], "filterServerTable": {}, "queueDatas": [_QUEUES]}
_VERSION = {"counter": 7, "stateVersion": 3, "timestamp": 1767225600000}
_KEY = {"namespace": "ORDER_TOPIC_CONFIG", "key": "TopicTest"}
_VALUE = {"value": "broker-a:8"}
_TOPICS = {"body": {"topicList": ["TopicTest"]}}
_ELECTION = {
    "eventId": 12,
    "ts": 1767225600000,
    "clusterName": "DefaultCluster",
    "brokerName": "broker-a",
    "oldMasterBrokerId": 1,
    "newMasterBrokerId": 2,
    "masterEpoch": 4,
    "syncStateSetEpoch": 5,
    "reason": "master 1 is not active",
    "unclean": False,
    "lastHeartbeatTs": 1767225599200,
    "detectedTs": 1767225599990,
}
_CANDIDATE = {
    "brokerId": 2,
    "brokerAddress": "10.0.0.2:10911",
    "inSync": True,
    "alive": True,
    "wins": True,
    "why": "wins: designated",
    "epoch": 3,
    "maxOffset": 4096,
    "confirmOffset": 4096,
    "electionPriority": 2147483647,
    "behindBytes": 0,
}
_EXPLAINED = {
    **_MASTER,
    "body": {
        "syncStateSet": [1, 2],
        "explanation": {
            "code": 0,
            "remark": "designated",
            "verdict": "elected",
            "isChange": True,
            "newMasterBrokerId": 2,
            "unclean": False,
            "candidates": [_CANDIDATE],
        },
    },
}
_REPLICAS = {
    "masterBrokerId": 1,
    "masterAddress": "10.0.0.1:10911",
    "masterEpoch": 3,
    "syncStateSetEpoch": 4,
    "inSyncReplicas": [
        {"brokerName": "broker-a", "brokerId": 1, "brokerAddress": "10.0.0.1:10911", "alive": True},
        {"brokerName": "broker-a", "brokerId": 2, "brokerAddress": "10.0.0.2:10911", "alive": True},
    ],
    "notInSyncReplicas": [],
}
_STATE = {"v": 2, "brokers": [], "event_count": 12, "cleaned": [], "settings": {}, "elections": []}


def _controllers(leader: str, count: int) -> dict[str, Any]:
    """Returns the metadata of the controllers from n0's view."""
    addresses = {f"n{number}": f"10.0.0.{number + 1}:9878" for number in range(count)}
    return {
        "group": "keelmq",
        "controllerLeaderId": leader,
        "controllerLeaderAddress": addresses[leader],
        "isLeader": leader == "n0",
        "peers": "".join(f"{each}:{address};" for each, address in addresses.items()),
        "httpAddress": "10.0.0.1:19876",
        "selfId": "n0",
        "raftAddress": "10.0.0.1:10878",
        "keelmqVersion": "0.1.0",
    }


EXAMPLES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    # name server
    "putKVConfig": ({**_KEY, **_VALUE}, {}),
    "getKVConfig": (_KEY, _VALUE),
    "deleteKVConfig": (_KEY, {}),
    "registerBroker": ({**_BROKER, "body": "e30="}, {}),
    "unregisterBroker": (_BROKER, {}),
    "getRouteInfoByTopic": ({"topic": "TopicTest"}, {"body": _ROUTE}),
    "getBrokerClusterInfo": (
        {},
        {
            "body": {
                "brokerAddrTable": {"broker-a": _DATA},
                "clusterAddrTable": {"DefaultCluster": ["broker-a"]},
            }
        },
    ),
    "wipeWritePermOfBroker": (_GROUP, {"wipeTopicCount": 7}),
    "explainWipeWritePermOfBroker": (
        _GROUP,
        {"wipeTopicCount": 7, "body": {"topics": ["TopicTest"], "nowhereElse": ["TopicTest"]}},
    ),
    "getAllTopicListFromNameserver": ({}, _TOPICS),
    "deleteTopicInNamesrv": ({"topic": "TopicTest"}, {}),
    "registerTopicInNamesrv": ({"topic": "TopicTest", "body": {"queueDatas": [_QUEUES]}}, {}),
    "getKVListByNamespace": (
        {"namespace": "ORDER_TOPIC_CONFIG"},
        {"body": {"table": {"TopicTest": "broker-a:8"}}},
    ),
    "getTopicsByCluster": ({"cluster": "DefaultCluster"}, _TOPICS),
    "getSystemTopicListFromNs": (
        {},
        {"body": {"topicList": ["DefaultCluster", "broker-a"], "brokerAddr": "10.0.0.1:10911"}},
    ),
    "getUnitTopicList": ({}, {"body": {"topicList": []}}),
    "getHasUnitSubTopicList": ({}, {"body": {"topicList": []}}),
    "getHasUnitSubUnUnitTopicList": ({}, {"body": {"topicList": []}}),
    "updateNamesrvConfig": ({"body": "c3VwcG9ydEFjdGluZ01hc3Rlcj10cnVlCg=="}, {}),
    "getNamesrvConfig": ({}, {"keelmqVersion": "0.1.0", "body": "bGlzdGVuUG9ydD05ODc2Cg=="}),
    "queryDataVersion": ({**_BROKER, "body": _VERSION}, {"changed": False, "body": _VERSION}),
    "addWritePermOfBroker": (_GROUP, {"addTopicCount": 7}),
    "getBrokerMemberGroup": (
        _SET,
        {
            "body": {
                "brokerMemberGroup": {
                    "cluster": "DefaultCluster",
                    "brokerName": "broker-a",
                    "brokerAddrs": _ADDRESSES,
                }
            }
        },
    ),
    "brokerHeartbeat": (_BROKER, {}),
    # controller
    "alterSyncStateSet": (
        {
            **_GROUP,
            "masterBrokerId": 1,
            "masterEpoch": 3,
            "body": {"syncStateSet": [1, 2, 3], "syncStateSetEpoch": 4},
        },
        {"newSyncStateSetEpoch": 5, "body": {"syncStateSet": [1, 2, 3], "syncStateSetEpoch": 5}},
    ),
    "electMaster": (
        {**_SET, "brokerId": 2, "designateElect": True},
        {**_NEW_MASTER, "body": {"syncStateSet": [2]}},
    ),
    "explainElection": ({**_SET, "brokerId": 2, "designateElect": True}, _EXPLAINED),
    "registerBrokerToController": (
        {**_SET, "brokerId": 1, "brokerAddress": "10.0.0.1:10911"},
        {**_SET, **_MASTER, "body": _MEMBERS},
    ),
    "getReplicaInfo": (_GROUP, {**_MASTER, "body": _MEMBERS}),
    "getControllerMetaData": ({}, _controllers("n0", 3)),
    "getSyncStateSet": (
        {"body": ["broker-a"]},
        {"body": {"replicasInfoTable": {"broker-a": _REPLICAS}}},
    ),
    "getNextBrokerId": (_SET, {**_SET, "nextBrokerId": 3}),
    "applyBrokerId": (
        {**_SET, "appliedBrokerId": 3, "registerCheckCode": "10.0.0.3:10911;1767225600000"},
        _SET,
    ),
    "updateControllerConfig": ({"body": "ZW5hYmxlRWxlY3RVbmNsZWFuTWFzdGVyPWZhbHNlCg=="}, {}),
    "getControllerConfig": ({}, {"body": "ZW5hYmxlRWxlY3RVbmNsZWFuTWFzdGVyPWZhbHNlCg=="}),
    "cleanBrokerData": ({**_SET, "brokerControllerIdsToClean": "3"}, {}),
    "explainCleanBrokerData": (
        {**_SET, "brokerControllerIdsToClean": "3"},
        {
            "body": {
                "replicas": [{**_GROUP, "brokerId": 3, "brokerAddress": "10.0.0.3:10911", "alive": False}],
                "isWhole": False,
            }
        },
    ),
    "getElections": ({**_GROUP, "count": 1}, {"body": {"elections": [_ELECTION]}}),
    "exportState": ({}, {"body": _STATE}),
    "importState": ({"body": _STATE}, {"groups": 0}),
    "addController": ({"controllerId": "n3", "controllerAddress": "10.0.0.4:9878"}, _controllers("n0", 4)),
    "removeController": ({"controllerId": "n3"}, _controllers("n0", 3)),
    "explainRemoveController": ({"controllerId": "n3"}, _controllers("n0", 4)),
    "transferLeader": ({"controllerId": "n1"}, _controllers("n1", 3)),
    **OF_BROKERS,
}
