"""mqadmin: topics, groups, settings and metrics of a cluster, as JSON files, for backups or comparison.

Source: RocketMQ 5.3.3 ExportMetadataCommand, ExportConfigsCommand, ExportMetricsCommand.
"""

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.command_line import NamesrvAddr
from cli.mqadmin.commands.speed import counter_of, day_sum
from cli.mqadmin.shell import Action, Output, command, dump, explain
from cli.mqadmin.targets import Where, at_brokers, brokers_of_cluster, on_each
from keelmq.client.admin import AdminClient, AdminError
from keelmq.remoting.address_text import parse_addresses
from keelmq.remoting.codes import MASTER_ID, ResponseCode, version_text
from keelmq.remoting.operation import Empty
from keelmq.remoting.operations.broker_admin import GET_SYSTEM_TOPIC_LIST_FROM_BROKER
from keelmq.remoting.operations.broker_metadata import SubscriptionGroupConfig
from keelmq.remoting.operations.route import BrokerData, TopicConfig, TopicList
from keelmq.runtime.clock import wall_ms

DIRECTORY = Path(tempfile.gettempdir()) / "rocketmq" / "export"
OF_GROUPS = ("%RETRY%", "%DLQ%")
OF_REPLIES = "_REPLY_TOPIC"
HALF_TOPIC, SCHEDULE_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC", "SCHEDULE_TOPIC_XXXX"
BUILT_IN_GROUPS = frozenset(
    (
        "DEFAULT_CONSUMER", "DEFAULT_PRODUCER", "TOOLS_CONSUMER", "SCHEDULE_CONSUMER", "FILTERSRV_CONSUMER",
        "__MONITOR_CONSUMER", "CLIENT_INNER_PRODUCER", "SELF_TEST_P_GROUP", "SELF_TEST_C_GROUP",
        "CID_ONS-HTTP-PROXY", "CID_ONSAPI_PERMISSION", "CID_ONSAPI_OWNER", "CID_ONSAPI_PULL",
    )
)  # fmt: skip
BUILT_IN_PREFIX = "CID_RMQ_SYS_"

FilePath = Annotated[Path, typer.Option("-f", "--filePath", help="Directory of the file")]
ClusterNeeded = Annotated[str, typer.Option("-c", "--clusterName", help="The masters of this cluster")]


@command("exportMetadata")
@at_brokers
def export_metadata(
    *,
    where: Where,
    file_path: FilePath = DIRECTORY,
    only_topics: Annotated[bool, typer.Option("-t", "--topic", help="Only topics: topic.json")] = False,
    only_groups: Annotated[
        bool, typer.Option("-g", "--subscriptionGroup", help="Only groups: subscriptionGroup.json")
    ] = False,
    special: Annotated[
        bool, typer.Option("-s", "--specialTopic", help="Also retry and dead-letter topics")
    ] = False,
) -> Action:
    """Topics and groups of a broker (-b), or of a cluster (-c: the queues of its masters added up)."""
    if only_topics and only_groups:
        raise typer.BadParameter("give -t or -g, or none of them for both")

    async def action(admin: AdminClient) -> Output:
        async def ask(address: str) -> tuple[dict[str, TopicConfig], dict[str, SubscriptionGroupConfig]]:
            topics = {} if only_groups else await user_topics(admin, address, special=special)
            return topics, {} if only_topics else await user_groups(admin, address)

        target = await where.find(admin)
        results = await on_each(admin, target, ask)
        told = [each.answer for each in results if each.answer is not None]
        value: dict[str, Any] = {}
        if not only_groups:
            value["topicConfigTable"] = _merged_topics([topics for topics, _ in told])
        if not only_topics:
            value["subscriptionGroupTable"] = _merged_groups([groups for _, groups in told])
        name = "topic" if only_topics else "subscriptionGroup" if only_groups else "metadata"
        value["exportTime"] = wall_ms()
        errors = [each.error for each in results if each.error is not None]
        if not told:
            raise errors[0]
        return _written(file_path / f"{name}.json", value, errors, target.missing)

    return action


async def user_topics(admin: AdminClient, address: str, *, special: bool) -> dict[str, TopicConfig]:
    """Returns the topics of applications; `special`: with retry and dead-letter topics."""
    answer = await admin.ask(address, GET_SYSTEM_TOPIC_LIST_FROM_BROKER, Empty())
    system = set(answer.body.topic_list) if isinstance(answer.body, TopicList) else set()
    return {
        name: config
        for name, config in sorted((await admin.brokers.topics(address)).items())
        if name not in system
        and not name.endswith(OF_REPLIES)
        and (special or not name.startswith(OF_GROUPS))
    }


async def user_groups(admin: AdminClient, address: str) -> dict[str, SubscriptionGroupConfig]:
    """Returns name -> configuration of the groups that applications made, sorted by name."""
    return {
        name: config
        for name, config in sorted((await admin.groups.list_groups(address)).items())
        if name not in BUILT_IN_GROUPS and not name.startswith(BUILT_IN_PREFIX)
    }


def _merged_topics(tables: list[dict[str, TopicConfig]]) -> dict[str, Any]:
    merged: dict[str, TopicConfig] = {}
    for table in tables:
        for name, config in table.items():
            known = merged.get(name)
            more = {
                "read_queue_nums": config.read_queue_nums + (known.read_queue_nums if known else 0),
                "write_queue_nums": config.write_queue_nums + (known.write_queue_nums if known else 0),
            }
            merged[name] = config.model_copy(update=more)
    return {name: dump(config) for name, config in sorted(merged.items())}


def _merged_groups(tables: list[dict[str, SubscriptionGroupConfig]]) -> dict[str, Any]:
    merged: dict[str, SubscriptionGroupConfig] = {}
    for table in tables:
        for name, config in table.items():
            count = config.retry_queue_nums + (merged[name].retry_queue_nums if name in merged else 0)
            merged[name] = config.model_copy(update={"retry_queue_nums": count})
    return {name: dump(config) for name, config in sorted(merged.items())}


def _written(
    path: Path, value: dict[str, Any], errors: list[AdminError], missing: tuple[str, ...] = ()
) -> Output:
    """Writes the file, as a whole or not at all, and returns the output."""
    problems = (*(explain(error) for error in errors), *missing)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(".json.tmp")
        draft.write_text(json.dumps(value, ensure_ascii=False, indent=2) + "\n")
        os.replace(draft, path)
    except OSError as error:
        remark = f"cannot write {path}: {error.strerror}; choose another directory with -f"
        raise AdminError("export", str(path), remark, ResponseCode.SYSTEM_ERROR) from None
    return Output({"file": str(path)} | value, f"export {path} success", problems)


@command("exportConfigs")
def export_configs(
    namesrv_addr: NamesrvAddr, cluster_name: ClusterNeeded, file_path: FilePath = DIRECTORY
) -> Action:
    """The settings of every master of a cluster, and the cluster's size: configs.json."""

    async def action(admin: AdminClient) -> Output:
        brokers = await brokers_of_cluster(admin, cluster_name, namesrv_addr)
        masters, missing = _masters(brokers)
        results = await admin.each(";".join(masters.values()), admin.brokers.broker_config) if masters else []
        names = {address: name for name, address in masters.items()}
        slaves = sum(len(each.broker_addrs) - (MASTER_ID in each.broker_addrs) for each in brokers)
        value = {
            "brokerConfigs": {
                names[each.address]: dict(sorted(each.answer.items()))
                for each in results
                if each.answer is not None
            },
            "clusterScale": {
                "namesrvSize": len(parse_addresses(namesrv_addr)),
                "masterBrokerSize": len(masters),
                "slaveBrokerSize": slaves,
            },
        }
        errors = [each.error for each in results if each.error is not None]
        if errors and not value["brokerConfigs"]:
            raise errors[0]
        return _written(file_path / "configs.json", value, errors, missing)

    return action


def _masters(brokers: list[BrokerData]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Returns broker name -> master's address, and a line for each broker name without a master."""
    masters = {
        each.broker_name: each.broker_addrs[MASTER_ID] for each in brokers if MASTER_ID in each.broker_addrs
    }
    missing = [each.broker_name for each in brokers if MASTER_ID not in each.broker_addrs]
    return masters, tuple(f"the name servers list no master of {name}: it is left out" for name in missing)


@command("exportMetrics")
def export_metrics(
    namesrv_addr: NamesrvAddr, cluster_name: ClusterNeeded, file_path: FilePath = DIRECTORY
) -> Action:
    """Counters of the masters of a cluster, each and in total, and client versions: metrics.json."""

    async def action(admin: AdminClient) -> Output:
        masters, missing = _masters(await brokers_of_cluster(admin, cluster_name, namesrv_addr))

        async def ask(address: str) -> dict[str, Any]:
            return await _report(admin, address)

        results = await admin.each(";".join(masters.values()), ask) if masters else []
        names = {address: name for name, address in masters.items()}
        reports = {names[each.address]: each.answer for each in results if each.answer is not None}
        errors = [each.error for each in results if each.error is not None]
        if errors and not reports:
            raise errors[0]
        quotas = [report["runtimeQuota"] for report in reports.values()]
        rates = ("normalInTps", "normalOutTps", "transInTps", "scheduleInTps")
        counts = ("normalOneDayInNum", "normalOneDayOutNum", "transOneDayInNum", "scheduleOneDayInNum")
        value = {
            "evaluateReport": reports,
            "totalData": {
                "totalTps": {
                    f"total{key[0].upper()}{key[1:]}": sum((quota["tps"][key] for quota in quotas), 0.0)
                    for key in rates
                },
                "totalOneDayNum": {key: sum(quota["oneDayNum"][key] for quota in quotas) for key in counts},
            },
        }
        return _written(file_path / "metrics.json", value, errors, missing)

    return action


async def _report(admin: AdminClient, address: str) -> dict[str, Any]:
    """Returns the report about one broker."""
    runtime, settings = await admin.brokers.runtime_info(address), await admin.brokers.broker_config(address)
    topics, groups = await user_topics(admin, address, special=False), await user_groups(admin, address)
    half = await counter_of(admin, address, "TOPIC_PUT_NUMS", HALF_TOPIC)
    scheduled = await counter_of(admin, address, "TOPIC_PUT_NUMS", SCHEDULE_TOPIC)
    return {
        "runtimeEnv": {
            "cpuNum": settings.get("clientCallbackExecutorThreads"),
            "totalMemKBytes": runtime.get("totalMemKBytes"),
        },
        "runtimeQuota": {
            "diskRatio": {key: runtime.get(key) for key in ("commitLogDiskRatio", "consumeQueueDiskRatio")},
            "tps": {
                "normalInTps": _first_rate(runtime, "putTps"),
                "normalOutTps": _first_rate(runtime, "getTransferredTps"),
                "transInTps": half.stats_minute.tps,
                "scheduleInTps": scheduled.stats_minute.tps,
            },
            "oneDayNum": {
                "normalOneDayInNum": _day(runtime, "msgPutTotal"),
                "normalOneDayOutNum": _day(runtime, "msgGetTotal"),
                "transOneDayInNum": day_sum(half),
                "scheduleOneDayInNum": day_sum(scheduled),
            },
            "messageAverageSize": runtime.get("putMessageAverageSize"),
            "topicSize": len(topics),
            "groupSize": len(groups),
        },
        "runtimeVersion": {
            "rocketmqVersion": runtime.get("brokerVersionDesc"),
            "clientInfo": await _clients(admin, address, list(groups)),
        },
    }


async def _clients(admin: AdminClient, address: str, groups: list[str]) -> list[str]:
    """Returns LANGUAGE%VERSION of the connected consumers, sorted."""
    found = set()
    for group in groups:
        try:
            body = await admin.groups.consumer_connections(address, group)
        except AdminError as error:
            if error.code is None:
                raise
            continue  # no client of this group is connected
        found |= {f"{each.language}%{version_text(each.version)}" for each in body.connection_set}
    return sorted(found)


def _first_rate(runtime: Mapping[str, str], key: str) -> float:
    """Returns the rate of the last 10 s."""
    return float((runtime.get(key) or "0").split()[0])


def _day(runtime: Mapping[str, str], name: str) -> int:
    """Returns yesterday's messages."""
    today, before = (int(runtime.get(f"{name}{day}Morning") or 0) for day in ("Today", "Yesterday"))
    return max(today - before, 0)
