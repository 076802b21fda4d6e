"""PullConsumer: reads queues by offset, with long polling. The application decides what it reads and when.

It does not take part in the rebalancing of its group; push_consumer.py and lite_pull_consumer.py do. Reads
continue during a fail-over: keelmq/client/cluster/queue_reader.py.
"""

import logging

from keelmq.client.cluster.broker_monitor import PROBE_INTERVAL_MS, BrokerMonitor
from keelmq.client.cluster.queue_reader import (
    ATTEMPT_TIMEOUT_MS,
    PULL_MAX_NUMS,
    READ_TIMEOUT_MS,
    PullError,
    PullErrorKind,
    PullResult,
    QueueReader,
    subscription_of,
)
from keelmq.client.cluster.routes import RouteCache, RouteError, TopicRoute
from keelmq.client.consumer.damage import describe
from keelmq.client.core.checks import INT32_MAX, check_int, check_one_of, check_text
from keelmq.client.core.names import check_group
from keelmq.client.core.queues import MessageQueue
from keelmq.client.core.subscription import ALL
from keelmq.client.lifecycle import Lifecycle
from keelmq.client.message import BODY_BYTES_MAX
from keelmq.remoting.client import RemotingClient
from keelmq.runtime.clock import now_ms
from keelmq.runtime.rate_limited_log import RateLimitedLogger
from keelmq.runtime.tls.contexts import Tls
from keelmq.security.signer import Credentials, check_shared, optional_signer

logger = logging.getLogger(__name__)


class PullConsumer(Lifecycle):
    """Reads queues by offset. `client`: a RemotingClient to share; without it the consumer owns one and
    closes it. `probe_interval_ms`: after this long without a response, a broker with waiting pulls gets a
    small request, to find out whether it hangs. `body_bytes_max`: bytes of one inflated body, and of all of
    one pull; a message with a longer one is in result.damaged. `tls`: see Producer. `credentials`: all
    requests are signed with them."""

    def __init__(
        self,
        namesrv_addr: str,
        group: str = "DEFAULT_CONSUMER",
        *,
        client: RemotingClient | None = None,
        probe_interval_ms: int = PROBE_INTERVAL_MS,
        body_bytes_max: int = BODY_BYTES_MAX,
        tls: Tls = False,
        credentials: Credentials | None = None,
    ) -> None:
        super().__init__()
        check_shared(client, credentials)
        check_int("probe_interval_ms", probe_interval_ms, least=1)
        check_int("body_bytes_max", body_bytes_max, least=1)
        self.group = check_group(group)
        self._own_client = client is None
        self._client = client or RemotingClient(
            drop_silent_ms=ATTEMPT_TIMEOUT_MS, tls=tls, signer=optional_signer(credentials)
        )
        self._routes = RouteCache(self._client, namesrv_addr, on_change=self._route_changed)
        self._monitor = BrokerMonitor(
            self._client, self._routes, cuts_replaced=False, probe_interval_ms=probe_interval_ms
        )  # not replaced masters: a producer may send over a shared client
        self._reader = QueueReader(self._client, self._monitor, group, body_bytes_max=body_bytes_max)
        self._damaged = RateLimitedLogger(logger, level=logging.ERROR)

    async def _close(self) -> None:
        await self._monitor.close()
        await self._routes.close()
        if self._own_client:
            await self._client.close()

    async def fetch_queues(self, topic: str) -> list[MessageQueue]:
        """Returns the readable queues, from a fresh route. PullError: there is no route."""
        check_text("topic", topic)
        try:
            return list((await self._routes.refresh(topic)).read_queues)
        except RouteError as error:
            raise PullError(PullErrorKind.NO_ROUTE, error.remark, error.code) from None

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        max_nums: int = PULL_MAX_NUMS,
        *,
        subscription: str = ALL,
        sql: str | None = None,
        suspend_ms: int = 0,
        timeout_ms: int = READ_TIMEOUT_MS,
    ) -> PullResult:
        """Returns messages from `offset` on. `subscription`: "*" or "TagA || TagB"; `sql` instead: an SQL92
        condition over properties. `suspend_ms` > 0: long polling, in which the broker holds the request until
        a message arrives or this time is over (in addition to timeout_ms). Messages that no replica can
        deliver are in result.damaged; next_begin_offset is behind them. PullError; with `damaged` if the
        broker may still heal the first message: pull again later, or from error.damaged.end_offset on."""
        check_one_of("queue", queue, MessageQueue)
        check_int("offset", offset)
        check_int("max_nums", max_nums, least=1, most=INT32_MAX)
        check_int("suspend_ms", suspend_ms)
        check_int("timeout_ms", timeout_ms, least=1)
        wanted = subscription_of(queue.topic, subscription, sql)
        result = await self._reader.pull(
            queue, offset, max_nums, wanted, suspend_ms=suspend_ms, timeout_ms=timeout_ms
        )
        for each in result.damaged:
            self._damaged.tell(now_ms(), "%s: not delivered", describe(queue, each))
        return result

    async def min_offset(self, queue: MessageQueue, *, timeout_ms: int = READ_TIMEOUT_MS) -> int:
        """Returns the offset of the oldest stored message. PullError."""
        check_one_of("queue", queue, MessageQueue)
        return await self._reader.min_offset(queue, timeout_ms=timeout_ms)

    async def max_offset(self, queue: MessageQueue, *, timeout_ms: int = READ_TIMEOUT_MS) -> int:
        """Returns the offset that the next readable message will get. PullError."""
        check_one_of("queue", queue, MessageQueue)
        return await self._reader.max_offset(queue, timeout_ms=timeout_ms)

    async def offset_at(
        self, queue: MessageQueue, timestamp_ms: int, *, timeout_ms: int = READ_TIMEOUT_MS
    ) -> int:
        """Returns the offset of the first message stored at that time (ms since 1970) or later. PullError."""
        check_one_of("queue", queue, MessageQueue)
        check_int("timestamp_ms", timestamp_ms)
        return await self._reader.offset_at(queue, timestamp_ms, timeout_ms=timeout_ms)

    async def committed_offset(self, queue: MessageQueue, *, timeout_ms: int = READ_TIMEOUT_MS) -> int | None:
        """Returns the group's committed offset; None: it has committed nothing. PullError."""
        check_one_of("queue", queue, MessageQueue)
        return await self._reader.committed_offset(queue, timeout_ms=timeout_ms)

    async def commit(self, queue: MessageQueue, offset: int, *, timeout_ms: int = READ_TIMEOUT_MS) -> None:
        """Commits `offset`, that of the next message to consume. PullError."""
        check_one_of("queue", queue, MessageQueue)
        check_int("offset", offset)
        await self._reader.commit(queue, offset, timeout_ms=timeout_ms)

    def _route_changed(self, route: TopicRoute) -> None:
        self._monitor.route_changed(route)
