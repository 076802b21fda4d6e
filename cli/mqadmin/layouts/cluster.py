"""Texts of mqadmin: RocketMQ's layouts, value in, text out. No I/O.

Source: captured output of RocketMQ 5.1.4's mqadmin (tests/fixtures/mqadmin), widths and labels as there.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from keelmq.client import MessageExt, SendResult
from keelmq.client.admin import ServerResult
from keelmq.remoting.operations.broker import EpochEntryCache
from keelmq.remoting.operations.controller import (
    BrokerReplicasInfo,
    ControllerMetadata,
    ElectMasterResponseBody,
    MasterInfo,
    ReplicaIdentity,
)
from keelmq.remoting.operations.route import TopicRouteData

_CLUSTER = "%-22s  %-22s  %-4s  %-22s %-16s  %16s  %16s  %-22s  %11s  %-12s  %-8s  %10s"
_CLUSTER_TITLES = (
    "#Cluster Name",
    "#Broker Name",
    "#BID",
    "#Addr",
    "#Version",
    "#InTPS(LOAD)",
    "#OutTPS(LOAD)",
    "#Timer(Progress)",
    "#PCWait(ms)",
    "#Hour",
    "#SPACE",
    "#ACTIVATED",
)
_TOTALS = "%-16s  %-32s %14s %14s %14s %14s"
_TOTALS_TITLES = (
    "#Cluster Name",
    "#Broker Name",
    "#InTotalYest",
    "#OutTotalYest",
    "#InTotalToday",
    "#OutTotalToday",
)
_ROUTE = "%-45s %-32s %-50s %-10s %-11s %-5s"
_TOPIC_TITLES = "%-20s  %-48s  %-48s"
_TOPIC = "%-20s  %-64s  %-64s"
_SENT = "%-32s  %-4s  %-20s    %s"
_HOUR_MS = 3_600_000


@dataclass(frozen=True)
class BrokerRow:
    """One replica of clusterList. `table`: its answer to 28; `problem`: why there is none."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    table: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""


def controller_metadata(metadata: ControllerMetadata) -> str:
    """getControllerMetaData: the group, its leader, and a line for each peer."""
    lines = [
        "",
        f"#ControllerGroup\t{metadata.group or ''}",
        f"#ControllerLeaderId\t{metadata.controller_leader_id or ''}",
        f"#ControllerLeaderAddress\t{metadata.controller_leader_address or ''}",
    ]
    lines += [f"#Peer:\t{peer}" for peer in (metadata.peers or "").split(";") if peer]
    return "\n".join(lines)


def sync_state_sets(info: BrokerReplicasInfo) -> str:
    """getSyncStateSet: master, epochs and replicas of each broker name."""
    lines: list[str] = []
    for name, replicas in info.replicas_info_table.items():
        lines += [
            "",
            f"#brokerName\t{name}",
            f"#MasterBrokerId\t{_or_none(replicas.master_broker_id)}",
            f"#MasterAddr\t{_or_none(replicas.master_address)}",
            f"#MasterEpoch\t{replicas.master_epoch}",
            f"#SyncStateSetEpoch\t{replicas.sync_state_set_epoch}",
            f"#SyncStateSetNums\t{len(replicas.in_sync_replicas)}",
        ]
        for label, members in (
            ("InSyncReplica", replicas.in_sync_replicas),
            ("NotInSyncReplica", replicas.not_in_sync_replicas),
        ):
            for member in members:
                lines += ["", f"{label}:\t{_identity(member)}"]
    return "\n".join(lines)


def broker_epochs(entries: Sequence[tuple[str, EpochEntryCache]]) -> str:
    """(broker address, its epochs). The last entry ends at the broker's max offset."""
    lines: list[str] = []
    for address, cache in entries:
        lines += [
            "",
            f"#clusterName\t{cache.cluster_name}",
            f"#brokerName\t{cache.broker_name}",
            f"#brokerAddr\t{address}",
            f"#brokerId\t{cache.broker_id}",
        ]
        for index, entry in enumerate(cache.epoch_list, start=1):
            end_offset = cache.max_offset if index == len(cache.epoch_list) else entry.end_offset
            span = f"startOffset={entry.start_offset}, endOffset={end_offset}"
            lines.append(f"#Epoch: EpochEntry{{epoch={entry.epoch}, {span}}}")
    return "\n".join(lines)


def elected(cluster_name: str, broker_name: str, master: MasterInfo, body: ElectMasterResponseBody) -> str:
    """electMaster: the new master, its epochs, and the replicas of the group."""
    lines = [
        "",
        f"#ClusterName\t{cluster_name}",
        f"#BrokerName\t{broker_name}",
        f"#BrokerMasterAddr\t{_or_none(master.master_address)}",
        f"#MasterEpoch\t{_or_none(master.master_epoch)}",
        f"#SyncStateSetEpoch\t{_or_none(master.sync_state_set_epoch)}",
    ]
    group = body.broker_member_group
    for broker_id, address in sorted(group.broker_addrs.items()) if group else ():
        lines.append(f"\t#Broker\t{broker_id}\t{address}")
    return "\n".join(lines)


def cluster_list(rows: Sequence[BrokerRow], now_ms: int) -> str:
    """clusterList: blanks for a replica that did not answer (its problem goes to standard error)."""
    return "\n".join([_CLUSTER % _CLUSTER_TITLES, *(_cluster_line(row, now_ms) for row in rows)])


def cluster_totals(rows: Sequence[BrokerRow]) -> str:
    """clusterList -m."""
    lines = [_TOTALS % _TOTALS_TITLES]
    for row in rows:
        counts = {
            name: _int(row.table, name)
            for side in ("Put", "Get")
            for name in (
                f"msg{side}TotalYesterdayMorning",
                f"msg{side}TotalTodayMorning",
                f"msg{side}TotalTodayNow",
            )
        }
        yesterday = [
            counts[f"msg{side}TotalTodayMorning"] - counts[f"msg{side}TotalYesterdayMorning"]
            for side in ("Put", "Get")
        ]
        today = [
            counts[f"msg{side}TotalTodayNow"] - counts[f"msg{side}TotalTodayMorning"]
            for side in ("Put", "Get")
        ]
        lines.append(_TOTALS % (row.cluster, row.broker_name, *yesterday, *today))
    return "\n".join(lines)


def topic_route(route: TopicRouteData) -> str:
    """fastjson's pretty printer: tabs, sorted names, the members of an id -> address map on one line."""
    brokers = [
        {
            "brokerAddrs": dict(sorted(broker.broker_addrs.items())),
            "brokerName": broker.broker_name,
            "cluster": broker.cluster,
            "enableActingMaster": broker.enable_acting_master,
        }
        for broker in route.broker_datas
    ]
    queues = [dict(sorted(queue.model_dump(by_alias=True).items())) for queue in route.queue_datas]
    value = {"brokerDatas": brokers, "filterServerTable": route.filter_server_table, "queueDatas": queues}
    return _pretty(value, 0)


def topic_route_list(route: TopicRouteData) -> str:
    """topicRoute -l."""
    lines = [_ROUTE % ("#ClusterName", "#BrokerName", "#BrokerAddrs", "#ReadQueue", "#WriteQueue", "#Perm")]
    queues = {queue.broker_name: queue for queue in route.queue_datas}
    read = write = 0
    for broker in route.broker_datas:
        queue = queues.get(broker.broker_name)
        addresses = (
            "{" + ", ".join(f"{key}={value}" for key, value in sorted(broker.broker_addrs.items())) + "}"
        )
        counts = (queue.read_queue_nums, queue.write_queue_nums, queue.perm) if queue else (0, 0, 0)
        read, write = read + counts[0], write + counts[1]
        lines.append(_ROUTE % (broker.cluster, broker.broker_name, addresses, *counts))
    lines += ["-" * 158, _ROUTE % ("Total:", len(route.broker_datas), "", read, write, "")]
    return "\n".join(lines)


def topic_list(rows: Sequence[tuple[str, str, Sequence[str]]]) -> str:
    """topicList -c: cluster, topic, consumer groups. The titles are narrower than the rows, as upstream's."""
    lines = [_TOPIC_TITLES % ("#Cluster Name", "#Topic", "#Consumer Group")]
    for cluster, topic, groups in rows:
        lines += [_TOPIC % (cluster, topic, group) for group in groups or ("",)]
    return "\n".join(lines)


def configs(results: Sequence[ServerResult[dict[str, str]]]) -> str:
    """getNamesrvConfig, getControllerConfig; keys sorted."""
    lines: list[str] = []
    for each in results:
        if each.answer is not None:
            lines.append(f"============{each.address}============")
            lines += [f"{key:<50}=  {value}" for key, value in sorted(each.answer.items())]
    return "\n".join(lines)


def updated(what: str, results: Sequence[ServerResult[Any]], key: str, value: str) -> str:
    """updateNamesrvConfig, updateControllerConfig: the servers that made the change."""
    places = ", ".join(each.address for each in results if each.error is None)
    return f"update {what} config success![{places}]\n{key} : {value}" if places else ""


def write_perm(verb: str, broker_name: str, results: Sequence[ServerResult[int]]) -> str:
    """wipeWritePerm, addWritePerm."""
    lines = []
    for each in results:
        result = "Failed" if each.error is not None else f"OK, {each.answer}"
        lines.append(f"{verb} write perm of broker[{broker_name}] in name server[{each.address}] {result}")
    return "\n".join(lines)


def if_any(results: Sequence[ServerResult[Any]], text: str) -> str:
    """Returns `text` if any server made the change, else ""."""
    return text if any(each.error is None for each in results) else ""


def sent(result: SendResult) -> str:
    """sendMessage: the row of one acknowledged message."""
    return "\n".join(
        [
            _SENT % ("#Broker Name", "#QID", "#Send Result", "#MsgId"),
            _SENT % (result.broker_name, result.queue_id, result.status.name, result.msg_id),
        ]
    )


def body_text(message: MessageExt, codec: str = "utf-8") -> str:
    """Returns a body as text, or why it cannot be shown. Bytes that are not of this encoding are replaced."""
    if message.body_error:
        return f"({message.body_error}; {len(message.body)} bytes are stored)"
    return message.body.decode(codec, errors="replace")


def consumed(message: MessageExt, body: str | None = None) -> str:
    """consumeMessage, printMsg. body None: the message's own, as UTF-8."""
    shown = body_text(message) if body is None else body
    properties = ", ".join(f"{key}={value}" for key, value in message.properties.items())
    return (
        f"MSGID: {message.msg_id} MessageExt [brokerName={message.broker_name}, queueId={message.queue_id}, "
        f"storeSize={message.stored_bytes}, queueOffset={message.queue_offset}, sysFlag={message.sys_flag}, "
        f"bornTimestamp={message.born_timestamp}, bornHost=/{message.born_host}, "
        f"storeTimestamp={message.store_timestamp}, storeHost=/{message.store_host}, "
        f"commitLogOffset={message.physical_offset}, reconsumeTimes={message.reconsume_times}, "
        f"topic='{message.topic}', flag={message.flag}, properties={{{properties}}}] "
        f"BODY: {shown}"
    )


def _cluster_line(row: BrokerRow, now_ms: int) -> str:
    table = row.table
    if not table:
        return (_CLUSTER % (row.cluster, row.broker_name, row.broker_id, row.address, *[""] * 8)).rstrip()
    timer = (
        f"{_int(table, 'timerReadBehind')}-{_int(table, 'timerOffsetBehind')}"
        f"({_float(table, 'timerCongestNum') / 10_000:.1f}w, {_float(table, 'timerEnqueueTps'):.1f}, "
        f"{_float(table, 'timerDequeueTps'):.1f})"
    )
    oldest_ms = _int(table, "earliestMessageTimeStamp")
    return _CLUSTER % (
        row.cluster,
        row.broker_name,
        row.broker_id,
        row.address,
        table.get("brokerVersionDesc", ""),
        _load(table, "putTps", "send"),
        _load(table, "getTransferredTps", "pull"),
        timer,
        _int(table, "pageCacheLockTimeMills"),
        f"{(now_ms - oldest_ms) / _HOUR_MS if oldest_ms > 0 else 0:.2f}",
        f"{_float(table, 'commitLogDiskRatio'):.4f}",
        table.get("brokerActive", ""),
    )


def _load(table: Mapping[str, str], rate: str, pool: str) -> str:
    queued = _int(table, f"{pool}ThreadPoolQueueSize")
    waited_ms = _int(table, f"{pool}ThreadPoolQueueHeadWaitTimeMills")
    return f"{_float(table, rate):9.2f}({queued},{waited_ms}ms)"


def _int(table: Mapping[str, str], key: str) -> int:
    return int(_float(table, key))


def _float(table: Mapping[str, str], key: str) -> float:
    """Returns the first number of the text (rates have three); 0 if there is none."""
    words = table.get(key, "").split()
    try:
        return float(words[0]) if words else 0.0
    except ValueError:
        return 0.0


def _or_none(value: object) -> str:
    return "null" if value is None else str(value)


def _identity(replica: ReplicaIdentity) -> str:
    return (
        f"ReplicaIdentity{{brokerName='{replica.broker_name}', brokerId={replica.broker_id}, "
        f"brokerAddress='{replica.broker_address}', alive={str(replica.alive).lower()}}}"
    )


def _pretty(value: object, depth: int) -> str:
    indent = "\t" * (depth + 1)
    match value:
        case dict() if value and all(isinstance(key, int) for key in value):
            members = ",".join(f"{key}:{_pretty(item, depth + 1)}" for key, item in value.items())
            return "{" + members + "\n" + "\t" * depth + "}"
        case dict() if value:
            members = ",\n".join(f'{indent}"{key}":{_pretty(item, depth + 1)}' for key, item in value.items())
            return "{\n" + members + "\n" + "\t" * depth + "}"
        case list() if value:
            return (
                "[\n"
                + ",\n".join(indent + _pretty(item, depth + 1) for item in value)
                + "\n"
                + "\t" * depth
                + "]"
            )
        case _:
            return json.dumps(value, ensure_ascii=False)
