"""Queue assignment by the broker (400), and the request mode of groups: pull or pop (401, 402).

The queues of all brokers that have the topic are divided among the group's members that this broker knows.
They come from the route of the name servers, which is cached for KEPT_MS. Source: RocketMQ 5.3.3
QueryAssignmentProcessor.
"""

from typing import Final

from broker.clients.core.registry import BROADCASTING
from broker.config.client_settings import ClientSettings
from broker.metadata.core.topic_names import NAME_BYTES_MAX, RETRY_PREFIX
from broker.metadata.groups import illegal_group
from broker.metadata.service import Metadata
from broker.metadata.topics import PERM_READ
from broker.pop.core.allocate import STRATEGIES, Queue, for_pop, for_pull
from broker.put.forward_to_master import ask_master
from broker.put.handler_context import HandlerContext
from keelmq.remoting.changes import change_of
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Call, CommandError, Empty, OperationTable, Reply
from keelmq.remoting.operations.clients import MessageQueueBody
from keelmq.remoting.operations.pop import (
    GET_ALL_MESSAGE_REQUEST_MODE,
    QUERY_ASSIGNMENT,
    SET_MESSAGE_REQUEST_MODE,
    MessageQueueAssignment,
    MessageQueueAssignments,
    QueryAssignmentBody,
    RequestModeBody,
    RequestModeRequest,
)
from keelmq.runtime.clock import now_ms

KEPT_MS: Final = 5_000
KEPT_MAX: Final = 4_096
POP: Final = "POP"


class AssignmentHandlers:
    def __init__(self, context: HandlerContext, metadata: Metadata, broker_name: str) -> None:
        self._context, self._metadata = context, metadata
        self._settings: ClientSettings = context.settings
        self._broker_name = broker_name
        self._routes: dict[str, tuple[int, list[Queue]]] = {}

    def bind(self, table: OperationTable) -> None:
        """Binds 400 (QUERY_ASSIGNMENT), 401 and 402 (SET_ and GET_ALL_MESSAGE_REQUEST_MODE)."""
        table.bind(QUERY_ASSIGNMENT, self.query_assignment)
        table.bind(SET_MESSAGE_REQUEST_MODE, self.set_message_request_mode)
        table.bind(GET_ALL_MESSAGE_REQUEST_MODE, self.get_all_message_request_mode)

    async def query_assignment(self, header: Empty, call: Call) -> Reply:
        """Returns the queues and the request mode of one client (400). Raises CommandError for an unknown
        strategy."""
        body = call.body
        if not isinstance(body, QueryAssignmentBody):
            raise CommandError(ResponseCode.SYSTEM_ERROR, "the request has no body")
        _check_names(body.topic, body.consumer_group)
        strategy = STRATEGIES.get(body.strategy_name)
        if strategy is None:
            remark = f"strategyName {body.strategy_name} is not one of {', '.join(STRATEGIES)}"
            raise CommandError(ResponseCode.SYSTEM_ERROR, remark)
        queues = await self._queues(body.topic)
        mode = self._mode(body.topic, body.consumer_group)
        group = self._context.registry.consumers.get(body.consumer_group)
        clients = sorted(group.client_ids) if group is not None else []
        if body.message_model == BROADCASTING:
            mine = queues
        elif mode.mode == POP:
            mine = for_pop(body.client_id, clients, queues, strategy, mode.pop_share_queue_num)
        else:
            mine = for_pull(body.client_id, clients, queues, strategy)
        assigned = [
            MessageQueueAssignment(message_queue=MessageQueueBody(**queue._asdict()), mode=mode.mode)
            for queue in dict.fromkeys(mine)
        ]
        return Reply(body=MessageQueueAssignments(message_queue_assignments=assigned))

    def _mode(self, topic: str, group: str) -> RequestModeBody:
        """Returns the mode that was set, else the default. Retry topics are pulled by default: a pop of the
        topic itself returns its retries."""
        mode = self._metadata.request_modes.get(topic, group)
        if mode is not None:
            return mode
        is_retry = topic.startswith(RETRY_PREFIX)
        return RequestModeBody(
            topic=topic,
            consumer_group=group,
            mode="PULL" if is_retry else self._settings.default_message_request_mode,
            pop_share_queue_num=self._settings.default_pop_share_queue_num,
        )

    async def _queues(self, topic: str) -> list[Queue]:
        """Returns the topic's queues, sorted; without an answer of a name server, this broker's own."""
        now = now_ms()
        kept = self._routes.get(topic)
        if kept is not None and now < kept[0]:
            return kept[1]
        route = await self._context.find_route(topic)
        if route is not None:
            counts = [(data.broker_name, data.read_queue_nums) for data in route.queue_datas
                      if data.perm & PERM_READ]  # fmt: skip
        else:
            mine = self._context.topics.get(topic)
            counts = [] if mine is None else [(self._broker_name, mine.read_queue_nums)]
        queues = sorted(Queue(topic, name, queue_id) for name, count in counts for queue_id in range(count))
        if len(self._routes) >= KEPT_MAX:
            self._routes.clear()
        self._routes[topic] = (now + KEPT_MS, queues)
        return queues

    async def set_message_request_mode(self, header: RequestModeRequest, call: Call) -> Reply:
        """Sets the mode of a group for a topic; answered when replicated (401). A replica forwards it to the
        master: RocketMQ's replica stores it only locally, and tools send it to any broker. Raises
        CommandError for a retry topic, for popping a batch topic, and if there is no master."""
        if not isinstance(call.body, RequestModeBody):
            raise CommandError(ResponseCode.SYSTEM_ERROR, "the request has no body")
        _check_names(call.body.topic, call.body.consumer_group)
        if call.body.topic.startswith(RETRY_PREFIX):
            remark = "retry topic is not allowed to set mode"
            raise CommandError(ResponseCode.NO_PERMISSION, remark)
        if call.body.mode == POP and self._context.store.queues.is_batch(call.body.topic):
            remark = (
                f"the topic[{call.body.topic}] has queue.type=BatchCQ: its batches are pulled, not popped"
            )
            raise CommandError(ResponseCode.NO_PERMISSION, remark)
        modes = self._metadata.request_modes
        if not self._metadata.gate.writable and await ask_master(
            self._context, SET_MESSAGE_REQUEST_MODE, header, call.body
        ):
            return Reply()
        try:
            before = modes.get(call.body.topic, call.body.consumer_group)
            version = modes.update(call.body)
            call.changes["mode"] = change_of(before, call.body)
        except (ValueError, OSError) as error:
            remark = f"the request mode cannot be stored: {error}"
            raise CommandError(ResponseCode.SYSTEM_ERROR, remark) from error
        await self._metadata.replicated(modes, version)
        return Reply()

    async def get_all_message_request_mode(self, header: Empty, call: Call) -> Reply:
        """Returns the whole table of modes (402)."""
        return Reply(body=self._metadata.request_modes.body())


def _check_names(topic: str, group: str) -> None:
    """Raises CommandError for illegal names: both requests store theirs, and a name may be as large as a
    frame."""
    problem = illegal_group(group)
    if len(topic.encode()) > NAME_BYTES_MAX:
        problem = f"the specified topic is longer than topic max length {NAME_BYTES_MAX}"
    if problem is not None:
        raise CommandError(ResponseCode.INVALID_PARAMETER, problem)
