"""Every request, response code, header field and metric of RocketMQ exists here, or has a reason why not."""

import importlib
import pkgutil
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from pydantic.fields import FieldInfo

from keelmq.remoting import operations
from keelmq.remoting.codes import RequestCode
from keelmq.remoting.operation import Wire
from keelmq.upstream.keys import names
from keelmq.upstream.wire import Row, wire_verdicts
from tools.metrics_tables import TABLES
from tools.request_tables import servers

ROOT = Path(__file__).parents[4]
NO_MODEL = {
    # bodies, helpers, and headers without fields
    "ExtraInfoUtil", "CreateTopicListRequestHeader", "EndTransactionResponseHeader",
    "GetAllProducerInfoRequestHeader",
    "GetConsumerListByGroupResponseHeader", "HeartbeatRequestHeader", "LockBatchMqRequestHeader",
    "UnlockBatchMqRequestHeader", "UnregisterClientResponseHeader", "UpdateConsumerOffsetResponseHeader",
    "ViewMessageResponseHeader",
    # of requests that are not served
    "CheckRocksdbCqWriteProgressRequestHeader", "ExportRocksDBConfigToJsonRequestHeader",
    "GetLiteClientInfoRequestHeader", "GetLiteGroupInfoRequestHeader", "GetLiteTopicInfoRequestHeader",
    "GetParentTopicInfoRequestHeader", "LiteSubscriptionCtlRequestHeader",
    "NotifyUnsubscribeLiteRequestHeader",
    "PopLiteMessageRequestHeader", "PopLiteMessageResponseHeader", "TriggerLiteDispatchRequestHeader",
    # of no request
    "CheckTransactionStateResponseHeader", "InitConsumerOffsetRequestHeader",
    "RegisterOrderTopicRequestHeader",
    "StatisticsMessagesRequestHeader",
    # decoded without a model (broker/put/send_commands.py)
    "SendMessageRequestHeader",
}  # fmt: skip
MODEL_OF = {
    "CloneGroupOffsetRequestHeader": "CloneOffsetRequest",
    "ConsumeMessageDirectlyResultRequestHeader": "ConsumerCallRequest",
    "ConsumerSendMsgBackRequestHeader": "SendBackRequest",
    "CleanControllerBrokerDataRequestHeader": "CleanBrokerDataRequest",
    "ElectMasterResponseHeader": "MasterInfo",
    "GetMetaDataResponseHeader": "ControllerMetadata",
    "GetReplicaInfoRequestHeader": "BrokerNameRequest",
    "GetReplicaInfoResponseHeader": "MasterInfo",
    "GetNextBrokerIdRequestHeader": "BrokerSetRequest",
    "CreateAclRequestHeader": "AclRequest",
    "CreateUserRequestHeader": "UserRequest",
    "DeleteSubscriptionGroupRequestHeader": "DeleteGroupRequest",
    "DeleteUserRequestHeader": "UserRequest",
    "ExchangeHAInfoRequestHeader": "ExchangeHaInfo",
    "ExchangeHAInfoResponseHeader": "ExchangeHaInfo",
    "GetAclRequestHeader": "AclRequest",
    "GetAllSubscriptionGroupRequestHeader": "GroupPageRequest",
    "GetAllSubscriptionGroupResponseHeader": "GroupPageResponse",
    "GetAllTopicConfigRequestHeader": "TopicPageRequest",
    "GetAllTopicConfigResponseHeader": "TopicPageResponse",
    "GetBrokerConfigResponseHeader": "BrokerConfigResponse",
    "GetBrokerMemberGroupRequestHeader": "BrokerMemberGroupRequest",
    "GetConsumerConnectionListRequestHeader": "ConsumerGroupRequest",
    "GetConsumerListByGroupRequestHeader": "ConsumerGroupRequest",
    "GetConsumerListByGroupResponseBody": "ConsumerIdList",
    "GetConsumerRunningInfoRequestHeader": "ConsumerCallRequest",
    "GetConsumerStatusRequestHeader": "ConsumerStatusRequest",
    "GetConsumeStatsInBrokerHeader": "BrokerConsumeStatsRequest",
    "GetConsumeStatsRequestHeader": "ConsumeStatsRequest",
    "GetEarliestMsgStoretimeRequestHeader": "QueueRequest",
    "GetEarliestMsgStoretimeResponseHeader": "TimestampResponse",
    "GetMaxOffsetRequestHeader": "QueueRequest",
    "GetMaxOffsetResponseHeader": "OffsetResponse",
    "GetMinOffsetRequestHeader": "QueueRequest",
    "GetMinOffsetResponseHeader": "OffsetResponse",
    "GetProducerConnectionListRequestHeader": "ProducerGroupRequest",
    "GetSubscriptionGroupConfigRequestHeader": "GroupRequest",
    "GetTopicConfigRequestHeader": "TopicRequest",
    "GetTopicsByClusterRequestHeader": "ClusterRequest",
    "GetTopicStatsInfoRequestHeader": "TopicRequest",
    "GetUserRequestHeader": "UserRequest",
    "AddWritePermOfBrokerRequestHeader": "RouteBrokerNameRequest",
    "AddWritePermOfBrokerResponseHeader": "AddWritePermResponse",
    "DeleteKVConfigRequestHeader": "KVConfigKey",
    "DeleteTopicFromNamesrvRequestHeader": "DeleteTopicRequest",
    "DeleteTopicRequestHeader": "TopicRequest",
    "GetKVConfigRequestHeader": "KVConfigKey",
    "GetKVListByNamespaceRequestHeader": "KVNamespaceRequest",
    "GetRouteInfoRequestHeader": "RouteRequest",
    "UnRegisterBrokerRequestHeader": "UnregisterBrokerRequest",
    "WipeWritePermOfBrokerRequestHeader": "RouteBrokerNameRequest",
    "WipeWritePermOfBrokerResponseHeader": "WipeWritePermResponse",
    "NotifyConsumerIdsChangedRequestHeader": "ConsumerGroupRequest",
    "NotifyMinBrokerIdChangeRequestHeader": "MinBrokerIdChangeRequest",
    "QueryConsumeQueueRequestHeader": "ConsumeQueueRequest",
    "QueryConsumerOffsetRequestHeader": "ConsumerOffsetRequest",
    "QueryConsumerOffsetResponseHeader": "ConsumerOffsetResponse",
    "QueryConsumeTimeSpanRequestHeader": "GroupTopicRequest",
    "QueryCorrectionOffsetHeader": "CorrectionOffsetRequest",
    "QuerySubscriptionByConsumerRequestHeader": "GroupTopicRequest",
    "QueryTopicConsumeByWhoRequestHeader": "TopicRequest",
    "QueryTopicsByConsumerRequestHeader": "GroupRequest",
    "ReplyMessageRequestHeader": "PushReplyRequest",
    "ResetMasterFlushOffsetHeader": "FlushOffsetRequest",
    "ResumeCheckHalfMessageRequestHeader": "ResumeCheckRequest",
    "SearchOffsetResponseHeader": "OffsetResponse",
    "SendMessageRequestHeaderV2": "SendMessageRequestV2",
    "UpdateAclRequestHeader": "AclRequest",
    "UpdateGroupForbiddenRequestHeader": "GroupForbiddenRequest",
    "UpdateUserRequestHeader": "UserRequest",
    "ViewBrokerStatsDataRequestHeader": "ViewStatsRequest",
}


ADDED_TO_ANSWERS = {
    "ElectMasterResponseHeader": {"controllers"},
    "GetMetaDataResponseHeader": {"httpAddress", "keelmqVersion", "raftAddress", "selfId"},
    "GetReplicaInfoResponseHeader": {"controllers", "syncStateSetEpoch"},
    "RegisterBrokerResponseHeader": {"listeners"},
    "RegisterBrokerToControllerResponseHeader": {"controllers"},
    "QueryDataVersionResponseHeader": {"takesParts"},
    "SendMessageResponseHeader": {"MSG_REGION", "TRACE_ON", "masterAddress"},  # the first two are RocketMQ's
}


def models() -> Iterator[tuple[str, type[Wire]]]:
    for module in pkgutil.walk_packages(operations.__path__, f"{operations.__name__}."):
        for name, value in vars(importlib.import_module(module.name)).items():
            if isinstance(value, type) and issubclass(value, Wire) and value.__module__ == module.name:
                yield name, value


def unjudged(theirs: Iterable[str], ours: Iterable[str], verdicts: Iterable[Row]) -> list[str]:
    """Names that are neither ours nor have a verdict, and verdicts that are about no missing name."""
    verdicts = tuple(verdicts)
    twice = [name for row in verdicts for name in row.names]
    assert len(twice) == len(set(twice))
    missing = set(theirs) - set(ours)
    return [*sorted(missing - set(twice)), *(f"stale: {name}" for name in sorted(set(twice) - missing))]


def test_every_request_is_served_or_refused_with_a_reason() -> None:
    served = [RequestCode(code).name for code in servers()]
    assert unjudged(names().request_codes, served, wire_verdicts().request) == []
    assert servers()[RequestCode.GET_BROKER_CONFIG] == ["broker", "broker container"]
    assert all(row.why == row.why.strip(" .") for row in wire_verdicts().request)


def test_every_response_code_is_sent_or_has_a_reason() -> None:
    packages = ("broker", "keelmq", "namesrv")
    files = [path for name in packages for path in sorted((ROOT / name).rglob("*.py"))]
    code = "".join(path.read_text() for path in files if path.name != "codes.py")
    sent = re.findall(r"\b(?:ResponseCode|Code)\.([A-Z_]+)\b", code)
    assert unjudged(names().response_codes, sent, wire_verdicts().response) == []


def headers() -> dict[str, type[Wire]]:
    """Returns our model of each header of RocketMQ. MODEL_OF has those with another name."""
    ours = dict(models())
    mine = {name: MODEL_OF.get(name, name.removesuffix("Header")) for name in names().headers}
    return {name: ours[model] for name, model in mine.items() if name not in NO_MODEL}


def fields_of(model: type[Wire]) -> dict[str, FieldInfo]:
    return {info.alias or name: info for name, info in model.model_fields.items()}


def test_every_header_field_is_ours_or_has_a_reason() -> None:
    ours = [f"{header}.{field}" for header, model in headers().items() for field in fields_of(model)]
    theirs = [f"{header}.{field}" for header in headers() for field in names().headers[header]]
    assert unjudged(theirs, ours, wire_verdicts().field) == []
    assert len(theirs) > 350
    assert {*MODEL_OF, *NO_MODEL} <= names().headers.keys()


def test_an_answer_has_a_field_of_ours_only_where_it_is_meant() -> None:
    """A Java peer of another release may take a field that it does not expect for a page, or for its own. So
    each one is absent unless the peer, or the case, needs it."""
    added: dict[str, set[str]] = {}
    for header, model in headers().items():
        ours = fields_of(model)
        more = ours.keys() - set(names().headers[header])
        if header.endswith("ResponseHeader") and more:
            added[header] = more
            assert all(ours[field].default is None for field in more), header
    assert added == ADDED_TO_ANSWERS


def test_every_metric_is_exported_or_has_a_reason() -> None:
    exported = {metric.name for table in TABLES for metric in table.metrics}
    assert unjudged(names().metrics, exported, wire_verdicts().metric) == []
    assert wire_verdicts().metric_note.keys() <= set(names().metrics) & exported
    assert len(names().metrics) > 50


def test_a_name_without_a_verdict_and_a_stale_verdict_are_named() -> None:
    rows = (Row("why", ("B", "D")),)
    assert unjudged(("A", "B", "C", "D"), ("A", "D"), rows) == ["C", "stale: D"]
