"""Handlers of metadata operations: 14, 15, 17, 18, 43, 45, 200, 201, 207, 215, 225, 351, 352, 5002, 5003;
29001 for replicas.

A change is answered when it is on disk here and, if messages wait for replicas, on every member in sync.
Source: RocketMQ 5.5 AdminBrokerProcessor, ConsumerManageProcessor.
"""

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from broker.admission.send_forwarder import ForwardToMaster, answer_of_master, no_other_master
from broker.core.read_counters import ReadCounters
from broker.metadata.core.attributes import parse_changes
from broker.metadata.core.table import Version
from broker.metadata.core.topic_names import retry_topics
from broker.metadata.groups import BUILT_IN, POSITIONS, illegal_group
from broker.metadata.offsets import NOT_FOUND
from broker.metadata.pages import ANSWER_BYTES_MAX, page_of
from broker.metadata.service import Metadata
from broker.metadata.store import MetadataStore
from broker.metadata.topics import BATCH_CQ, QUEUE_TYPE, Topic, illegal_name
from broker.metadata.wire import encode_updates, is_large
from broker.store.message_store import MessageStore
from keelmq.remoting.body import body_bytes
from keelmq.remoting.changes import change_of
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Call, CommandError, Empty, Ok, OperationTable, Reply
from keelmq.remoting.operations.broker import (
    DELETE_TOPIC_IN_BROKER,
    TopicRequest,
)
from keelmq.remoting.operations.broker_admin import (
    DELETE_SUBSCRIPTION_GROUP_LIST,
    DELETE_TOPIC_IN_BROKER_LIST,
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
    UPDATE_AND_CREATE_TOPIC_LIST,
    GroupConfigs,
    GroupNames,
    TopicConfigs,
)
from keelmq.remoting.operations.broker_metadata import (
    DELETE_SUBSCRIPTIONGROUP,
    GET_ALL_CONSUMER_OFFSET,
    GET_ALL_DELAY_OFFSET,
    GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    GET_SUBSCRIPTIONGROUP_CONFIG,
    GET_TOPIC_CONFIG,
    PULL_METADATA,
    QUERY_CONSUMER_OFFSET,
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    UPDATE_AND_CREATE_TOPIC,
    UPDATE_CONSUMER_OFFSET,
    ConsumerOffsetRequest,
    ConsumerOffsetResponse,
    CreateTopicRequest,
    DeleteGroupRequest,
    GroupPageRequest,
    GroupPageResponse,
    GroupRequest,
    MetadataVersions,
    PullMetadataRequest,
    PullMetadataResponse,
    SubscriptionGroupConfig,
    SubscriptionGroups,
    UpdateConsumerOffsetRequest,
)
from keelmq.remoting.operations.clients import TopicNames
from keelmq.remoting.operations.route import TopicConfig

QUEUES_MAX = 65_535
PERM_MAX = 7
"""Read, write and inherit (RocketMQ: PermName.isValid)."""
BOOTS_FIRST = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"

Result = TypeVar("Result")


class MetadataHandlers:
    """The handlers of one broker. A refusal is a CommandError with RocketMQ's code and remark."""

    def __init__(
        self,
        metadata: Metadata,
        store: MessageStore,
        cached_bytes: int = sys.maxsize,
        *,
        reads: ReadCounters | None = None,
        forward_to_master: ForwardToMaster = no_other_master,
    ) -> None:
        """cached_bytes: the tail of the log that is assumed to be in memory. reads: counters that drop
        deleted topics and groups. forward_to_master: sends a request to the master, if this broker is not
        master."""
        self._metadata, self._store, self._cached_bytes = metadata, store, cached_bytes
        self._reads = reads or ReadCounters()
        self._forward_to_master = forward_to_master

    def bind(self, table: OperationTable) -> None:
        """Binds every operation of this module."""
        table.bind(QUERY_CONSUMER_OFFSET, self.query_consumer_offset)
        table.bind(UPDATE_CONSUMER_OFFSET, self.update_consumer_offset)
        table.bind(UPDATE_AND_CREATE_TOPIC, self.update_and_create_topic)
        table.bind(UPDATE_AND_CREATE_TOPIC_LIST, self.update_and_create_topics)
        table.bind(DELETE_TOPIC_IN_BROKER, self.delete_topic)
        table.bind(DELETE_TOPIC_IN_BROKER_LIST, self.delete_topics)
        table.bind(GET_TOPIC_CONFIG, self.get_topic_config)
        table.bind(GET_ALL_CONSUMER_OFFSET, self.get_all_consumer_offset)
        table.bind(GET_ALL_DELAY_OFFSET, self.get_all_delay_offset)
        table.bind(UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, self.update_and_create_group)
        table.bind(UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, self.update_and_create_groups)
        table.bind(GET_ALL_SUBSCRIPTIONGROUP_CONFIG, self.get_all_groups)
        table.bind(GET_SUBSCRIPTIONGROUP_CONFIG, self.get_group)
        table.bind(DELETE_SUBSCRIPTIONGROUP, self.delete_group)
        table.bind(DELETE_SUBSCRIPTION_GROUP_LIST, self.delete_groups)
        table.bind(PULL_METADATA, self.pull_metadata)

    # -- common ------------------------------------------------------------------------------------------

    def _changed(self, change: Callable[[], Result], bad_code: int = ResponseCode.SYSTEM_ERROR) -> Result:
        """Returns the result of change(), and raises its errors as CommandError."""
        try:
            return change()
        except ValueError as error:
            raise CommandError(bad_code, str(error)) from error
        except OSError as error:
            raise CommandError(
                ResponseCode.SYSTEM_ERROR, f"cannot write {error.filename or 'it'}: {error.strerror or error}"
            ) from error

    # -- topics ------------------------------------------------------------------------------------------

    async def update_and_create_topic(self, header: CreateTopicRequest, call: Call) -> Reply:
        """Creates or replaces one topic (17)."""
        _must_be_master(self._metadata)
        config = TopicConfig(
            topic_name=header.topic,
            read_queue_nums=header.read_queue_nums,
            write_queue_nums=header.write_queue_nums,
            perm=header.perm,
            topic_filter_type=header.topic_filter_type,
            topic_sys_flag=header.topic_sys_flag,
            order=header.order,
        )
        self._check_topic(config)
        topics = self._metadata.topics
        changes = self._changed(lambda: parse_changes(header.attributes))
        self._check_type(config.topic_name, changes)
        before = self._config_of(config.topic_name)
        version = self._changed(lambda: topics.alter(config, changes))
        self._tell_topic(config.topic_name, before, call)
        await self._metadata.replicated(topics, version)
        return Reply()

    async def update_and_create_topics(self, header: Empty, call: Call) -> Reply:
        """Creates or replaces several topics (18). All names and numbers are checked before any topic is
        changed."""
        _must_be_master(self._metadata)
        configs = call.body.topic_config_list if isinstance(call.body, TopicConfigs) else []
        for config in configs:
            self._check_topic(config)
            self._check_type(config.topic_name, config.attributes)
        topics = self._metadata.topics
        for config in configs:
            before = self._config_of(config.topic_name)
            self._changed(partial(topics.alter, config, config.attributes))
            self._tell_topic(config.topic_name, before, call)
        await self._metadata.replicated(topics, topics.table.version)
        return Reply()

    def _config_of(self, name: str) -> TopicConfig | None:
        topic = self._metadata.topics.get(name)
        return None if topic is None else topic.config

    def _tell_topic(self, name: str, before: TopicConfig | None, call: Call) -> None:
        call.changes[f"topic {name}"] = change_of(before, self._config_of(name))

    def _check_topic(self, config: TopicConfig) -> None:
        _refuse_topic(self._metadata, config.topic_name)
        for name, count in (("read", config.read_queue_nums), ("write", config.write_queue_nums)):
            if not 0 <= count <= QUEUES_MAX:
                remark = f"{name}QueueNums {count} is not in 0..{QUEUES_MAX}"
                raise CommandError(ResponseCode.INVALID_PARAMETER, remark)
        if not 0 <= config.perm <= PERM_MAX:
            remark = f"perm {config.perm} of {config.topic_name} is not 2 (write), 4 (read) or 6 (both)"
            raise CommandError(ResponseCode.INVALID_PARAMETER, f"{remark}, with or without 1 (inherit)")

    def _check_type(self, name: str, changes: Mapping[str, str]) -> None:
        """Raises CommandError for a deleted topic that is created again with another queue.type: it would
        continue in queues that cannot hold its messages."""
        wants_batches = changes.get(f"+{QUEUE_TYPE}") == BATCH_CQ
        if self._metadata.topics.get(name) is None and self._store.queues.has_messages(
            name, in_batches=not wants_batches
        ):
            kept, wanted = ("SimpleCQ", BATCH_CQ) if wants_batches else (BATCH_CQ, "SimpleCQ")
            remark = f"{name} was a topic with {QUEUE_TYPE}={kept} before, and its queues still exist"
            raise CommandError(ResponseCode.SYSTEM_ERROR, f"{remark}: {wanted} needs another name")

    async def delete_topic(self, header: TopicRequest, call: Call) -> Reply:
        """Deletes the settings and the consumer offsets of a topic (215).

        The messages stay until retention deletes them. Queue offsets are never reused: a topic that is
        created again continues behind them (design S4).
        """
        metadata, topic = self._metadata, header.topic
        if not is_topic_deletable(metadata, topic):
            return Reply()
        groups = metadata.offsets.groups_of(topic)
        retries = [name for group in groups for name in retry_topics(group, topic)]
        names = [topic, *(name for name in retries if name in metadata.topics.topics)]
        gone = {name: self._config_of(name) for name in names}
        version = self._changed(lambda: metadata.topics.delete(names, self._store.commit_log.max_offset))
        self._changed(lambda: metadata.request_modes.forget(topic=topic))
        for group in groups:
            call.changes[f"offsets of group {group} in topic {topic}"] = (
                metadata.offsets.row(group, topic),
                None,
            )
        for name, before in gone.items():
            self._tell_topic(name, before, call)
            metadata.offsets.remove_topic(name)
            metadata.resets.forget(topic=name)
            self._reads.forget(topic=name)
        return await self._deleted(metadata.topics, version)

    async def delete_topics(self, header: Empty, call: Call) -> Reply:
        """Deletes topics one after the other, as 215 does (5002). All names are checked before the first one
        is deleted."""
        names = _named(call.body.topic_list if isinstance(call.body, TopicNames) else [], "topic")
        for name in names:
            is_topic_deletable(self._metadata, name)
        for name in names:
            await self.delete_topic(TopicRequest(topic=name), call)
        return Reply()

    async def get_topic_config(self, header: TopicRequest, call: Call) -> Reply:
        """Returns the settings of one topic (351)."""
        topic = self._metadata.topics.get(header.topic)
        if topic is None:
            raise CommandError(
                ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {header.topic}"
            )
        return Reply(body=topic.config)

    # -- groups ------------------------------------------------------------------------------------------

    async def update_and_create_group(self, header: Empty, call: Call) -> Reply:
        """Creates or replaces one subscription group (200)."""
        if not isinstance(call.body, SubscriptionGroupConfig):
            raise CommandError(ResponseCode.SYSTEM_ERROR, "the body has no subscription group")
        return await self._update_groups([call.body], call)

    async def update_and_create_groups(self, header: Empty, call: Call) -> Reply:
        """Creates or replaces several subscription groups (225)."""
        configs = call.body.group_config_list if isinstance(call.body, GroupConfigs) else []
        return await self._update_groups(configs, call)

    async def _update_groups(self, configs: Sequence[SubscriptionGroupConfig], call: Call) -> Reply:
        _must_be_master(self._metadata)
        for config in configs:
            problem = illegal_group(config.group_name)
            if problem is not None:
                raise CommandError(ResponseCode.INVALID_PARAMETER, problem)
        groups = self._metadata.groups
        for config in configs:
            before = groups.get(config.group_name)
            self._changed(partial(groups.update, config))
            call.changes[f"group {config.group_name}"] = change_of(before, groups.get(config.group_name))
        await self._metadata.replicated(groups, groups.table.version)
        return Reply()

    async def get_all_groups(self, header: GroupPageRequest, call: Call) -> Reply:
        """Returns the table of subscription groups (201), in pages if it does not fit into a frame."""
        table = self._metadata.groups
        groups, forbidden = await table.encoder.encoded(), table.forbidden()
        page = page_of(
            groups,
            "groups",
            seq=header.group_seq,
            count_max=header.max_group_num,
            version=header.data_version,
        )
        frame = SubscriptionGroups(forbidden_table=forbidden, data_version=groups.version)
        body = page.body(body_bytes(frame), b"subscriptionGroupTable")
        return Reply(GroupPageResponse(total_group_num=page.total), body)

    async def get_group(self, header: GroupRequest, call: Call) -> Reply:
        """Returns the settings of one group (352)."""
        config = self._metadata.groups.get(header.group)
        if config is None:
            remark = f"No group in this broker. group: {header.group}"
            raise CommandError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
        return Reply(body=config)

    async def delete_group(self, header: DeleteGroupRequest, call: Call) -> Reply:
        """Deletes a group, and its offsets if cleanOffset is set (207)."""
        metadata, name = self._metadata, header.group_name
        refuse_deletion_of_group(metadata, name)
        before = metadata.groups.get(name)
        version = self._changed(lambda: metadata.groups.delete(name))
        call.changes[f"group {name}"] = change_of(before, None)
        self._changed(lambda: metadata.request_modes.forget(group=name))
        if header.clean_offset:
            call.changes[f"topics with offsets of group {name}"] = metadata.offsets.topics_of(name), []
            metadata.offsets.remove_group(name)
        metadata.resets.forget(group=name)
        self._reads.forget(group=name)
        return await self._deleted(metadata.groups, version)

    async def _deleted(self, table: MetadataStore[Any], version: Version) -> Reply:
        """Commits the removed offsets, and waits for everything that a deletion changed."""
        metadata = self._metadata
        offsets = self._changed(metadata.offsets.commit_staged)
        await metadata.on_disk(metadata.request_modes)
        await metadata.replicated(table, version)
        await metadata.replicated(metadata.offsets, offsets)
        return Reply()

    async def delete_groups(self, header: Empty, call: Call) -> Reply:
        """Deletes groups one after the other, as 207 does (5003). All names are checked before the first one
        is deleted."""
        body = call.body if isinstance(call.body, GroupNames) else GroupNames()
        names = _named(body.group_name_list, "group")
        for name in names:
            refuse_deletion_of_group(self._metadata, name)
        for name in names:
            one = DeleteGroupRequest(group_name=name, clean_offset=body.clean_offset)
            await self.delete_group(one, call)
        return Reply()

    # -- offsets -----------------------------------------------------------------------------------------

    async def query_consumer_offset(
        self, header: ConsumerOffsetRequest, call: Call
    ) -> ConsumerOffsetResponse:
        """Returns a group's offset of one queue (14). Without one: 0 if the queue's first message is in
        memory and the client allows it, else QUERY_NOT_FOUND."""
        offset = self._metadata.offsets.query(header.consumer_group, header.topic, header.queue_id)
        if offset != NOT_FOUND:
            return ConsumerOffsetResponse(offset=offset)
        if header.set_zero_if_not_found is False:
            remark = "Not found, do not set to zero, maybe this group boot first"
            raise CommandError(ResponseCode.QUERY_NOT_FOUND, remark)
        if self._is_young(header.topic, header.queue_id):
            return ConsumerOffsetResponse(offset=0)
        raise CommandError(ResponseCode.QUERY_NOT_FOUND, BOOTS_FIRST)

    def _is_young(self, topic: str, queue_id: int) -> bool:
        """Returns whether the queue's first message exists and is in memory: a new group then begins
        with it."""
        queue = self._store.find_queue(topic, queue_id)
        if queue is None or queue.min_offset > 0 or queue.max_offset <= 0:
            return False
        first, _, _ = queue.unit(0)
        return self._store.commit_log.max_offset - first <= self._cached_bytes

    async def update_consumer_offset(self, header: UpdateConsumerOffsetRequest, call: Call) -> Reply:
        """Commits a group's offset of one queue (15).

        A oneway commit is replicated with the next batch, within 100 ms; a two-way commit is answered when it
        is replicated. A replica forwards it to the master: a consumer with an old route would lose its
        commits for up to 30 s.
        """
        metadata = self._metadata
        if not metadata.gate.writable and not header.forwarded:
            marked = header.model_copy(update={"forwarded": True})
            outcome = await answer_of_master(
                metadata.gate, self._forward_to_master, UPDATE_CONSUMER_OFFSET, marked
            )
            if isinstance(outcome, Ok):
                return Reply()
        _must_be_master(self._metadata, in_sync=False)
        groups, before = metadata.groups, metadata.groups.table.version
        if self._changed(lambda: groups.find(header.consumer_group, call.peer)) is None:
            remark = f"Group {header.consumer_group} not exist!"
            raise CommandError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
        topic = metadata.topics.get(header.topic)
        if topic is None:
            raise CommandError(ResponseCode.TOPIC_NOT_EXIST, f"Topic {header.topic} not exist!")
        if header.queue_id is None or header.commit_offset is None:
            what = "QueueId" if header.queue_id is None else "Offset"
            raise CommandError(ResponseCode.INVALID_PARAMETER, f"{what} is null, topic is {header.topic}")
        if metadata.resets.is_pending(header.consumer_group, header.topic, header.queue_id):
            return Reply()  # ignored: the consumer has not received an operator's reset yet
        offsets = metadata.offsets
        if header.commit_offset >= 0:
            self._refuse_queue(topic, header.queue_id)
            if not offsets.commit(header.consumer_group, header.topic, header.queue_id, header.commit_offset):
                remark = f"there are {offsets.rows_max} pairs of topic and group already"
                raise CommandError(ResponseCode.SYSTEM_ERROR, remark)
        if not call.is_oneway:
            version, created = self._changed(offsets.commit_staged), groups.table.version
            await metadata.replicated(offsets, version)
            if created != before:
                await metadata.replicated(groups, created)
        return Reply()

    def _refuse_queue(self, topic: Topic, queue_id: int) -> None:
        """Raises CommandError for a queue that does not exist: RocketMQ stores an offset for any queueId, and
        writes all of them with each later commit. A queue that the topic no longer has can be read to its
        end."""
        if not 0 <= queue_id < topic.queue_count and self._store.find_queue(topic.name, queue_id) is None:
            remark = f"queueId[{queue_id}] is illegal, topic[{topic.name}] has {topic.queue_count} queues"
            raise CommandError(ResponseCode.INVALID_PARAMETER, remark)

    async def get_all_consumer_offset(self, header: Empty, call: Call) -> Reply:
        """Returns all consumer offsets (43). Raises CommandError with the limit: RocketMQ has no pages of
        them."""
        try:
            return Reply(body=await self._metadata.offsets.body(ANSWER_BYTES_MAX))
        except ValueError as error:
            raise CommandError(ResponseCode.SYSTEM_ERROR, str(error)) from error

    async def get_all_delay_offset(self, header: Empty, call: Call) -> Reply:
        """Returns the offsets of all delay levels (45)."""
        return Reply(body=self._metadata.delays.body())

    # -- replicas ----------------------------------------------------------------------------------------

    async def pull_metadata(self, header: PullMetadataRequest, call: Call) -> Reply:
        """Answers a replica's long poll with the updates that it lacks (29001)."""
        named = call.body if isinstance(call.body, MetadataVersions) else MetadataVersions()
        updates = await self._metadata.pull(header, named)
        answer = PullMetadataResponse(master_epoch=header.master_epoch)
        encode = partial(encode_updates, updates)
        return Reply(header=answer, body=await asyncio.to_thread(encode) if is_large(updates) else encode())


def is_topic_deletable(metadata: Metadata, topic: str) -> bool:
    """Returns False on a slave to which the deletion is already replicated, since mqadmin asks every broker.
    Raises CommandError: the deletion is refused."""
    if not metadata.gate.writable and topic not in metadata.topics.topics:
        return False
    _must_be_master(metadata)
    _refuse_topic(metadata, topic)
    return True


def refuse_deletion_of_group(metadata: Metadata, name: str) -> None:
    """Raises CommandError: the deletion is refused."""
    _must_be_master(metadata)
    if name in BUILT_IN or name in POSITIONS:
        remark = f"the group {name} belongs to the broker and cannot be deleted"
        raise CommandError(ResponseCode.INVALID_PARAMETER, remark)


def _named(names: Sequence[str], what: str) -> Sequence[str]:
    """Returns the names without repetitions. Raises CommandError if there are none."""
    if not names:
        raise CommandError(ResponseCode.INVALID_PARAMETER, f"the body names no {what}")
    return list(dict.fromkeys(names))


def _must_be_master(metadata: Metadata, *, in_sync: bool = True) -> None:
    """Raises CommandError if this broker is not a writable master. in_sync: also if fewer replicas than
    minInSyncReplicas are in sync, as for messages."""
    gate = metadata.gate
    if not gate.writable:
        remark = f"metadata cannot be changed on this broker: {gate.remark or 'not master'}"
        raise CommandError(ResponseCode.SYSTEM_ERROR, remark)
    few = gate.refuse_few_replicas() if in_sync else None
    if few is not None:
        raise CommandError(*few)


def _refuse_topic(metadata: Metadata, name: str) -> None:
    problem = illegal_name(name)
    if problem is None and metadata.topics.is_system(name):
        problem = f"The topic[{name}] is conflict with system topic."
    if problem is not None:
        raise CommandError(ResponseCode.INVALID_PARAMETER, problem)
