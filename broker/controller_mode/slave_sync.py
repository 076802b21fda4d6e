"""A slave's requests to its master's broker port: for metadata, and for the HA address.

A KeelMQ master gets long polls (29001), one at a time. A change is stored here durably, and the next poll
acknowledges it within a round trip. RocketMQ's master answers 29001 with "not supported" and is polled as by
its own slaves (21, 43, 45, 201). An answer of another masterEpoch is refused (design S3).

An address may be reassigned to a broker of another group (Kubernetes does so with addresses of deleted pods),
and neither the HA handshake nor an epoch identifies the group. So the peer is asked for its configuration
before every link to it, and is followed only if it belongs to this group.
"""

import asyncio
import logging
import random
from typing import Any, NamedTuple, TypeVar

from broker.ha.ports import MasterHaAddress
from broker.metadata.service import Metadata
from broker.metadata.wire import decode_updates, is_large
from keelmq.remoting.address_text import host_of, join_address
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import CommandError, Empty, Failed, Ok, Operation, Unknown, Wire
from keelmq.remoting.operations.broker import GET_ALL_TOPIC_CONFIG, GET_BROKER_CONFIG
from keelmq.remoting.operations.broker_metadata import (
    GET_ALL_CONSUMER_OFFSET,
    GET_ALL_DELAY_OFFSET,
    GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    PULL_METADATA,
    GroupPageRequest,
    MetadataUpdate,
    MetadataVersions,
    PullMetadataRequest,
    SubscriptionGroupConfig,
    SubscriptionGroups,
)
from keelmq.remoting.operations.pop import GET_ALL_MESSAGE_REQUEST_MODE
from keelmq.remoting.operations.route import TopicConfig, TopicConfigSerializeWrapper, TopicPageRequest
from keelmq.remoting.operations.timers import GET_TIMER_CHECK_POINT
from keelmq.remoting.paged_table import PAGE_ROWS, PagedTable
from keelmq.runtime.backoff import Backoff
from keelmq.runtime.tasks import wait_for_event

logger = logging.getLogger(__name__)

SYNC_PERIOD_MS = 3_000
"""Between two polls of a RocketMQ master."""
CALL_TIMEOUT_MS = 1_000
VERIFIED_MS = 500
"""How long a verified peer needs no new check: a slave dials its new master repeatedly until that one accepts
slaves."""
WAIT_MS = 1_000
HURRY_MS = 50
"""Pause before a fetch: unknown topics come in bursts, and one fetch serves all of them."""
RETRY = Backoff(first_ms=20, max_ms=500)

Resp = TypeVar("Resp", bound=Wire)


class Leader(NamedTuple):
    """The master to follow, its masterEpoch, and the id of this broker."""

    address: str
    epoch: int
    broker_id: int


class SlaveSync:
    """Copies the metadata of a master. Idle until follow() names one."""

    def __init__(
        self,
        client: RemotingClient,
        metadata: Metadata,
        *,
        cluster: str,
        broker_name: str,
    ) -> None:
        self._client, self._metadata = client, metadata
        self._cluster, self._broker_name = cluster, broker_name
        self._leader: Leader | None = None
        self._changed, self._hurry = asyncio.Event(), asyncio.Event()
        self._last_problem = self._refused = ""
        self._verified: tuple[str, float] = (
            "",
            0.0,
        )  # the last broker verified to be of this group, and the loop's time
        self.route_ha_address: tuple[str, str] | None = None
        """(master address, HA address) as last reported by a name server."""

    def follow(self, leader: Leader | None) -> None:
        """Follows this master from now on; None: this broker is master itself, or knows no master. Requests
        to the previous one are cancelled."""
        if leader != self._leader:
            self._leader = leader
            self._changed.set()

    def unknown_topic(self) -> None:
        """A record of an unknown topic arrived: asks a RocketMQ master soon."""
        self._hurry.set()

    # -- following ---------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Follows the master that follow() names last. Runs until it is cancelled."""
        while True:
            self._changed.clear()
            following = asyncio.create_task(self._follow(self._leader))
            changed = asyncio.create_task(self._changed.wait())
            try:
                await asyncio.wait((following, changed), return_when=asyncio.FIRST_COMPLETED)
                if following.done():
                    following.result()
            finally:
                following.cancel()
                changed.cancel()
                await asyncio.gather(following, changed, return_exceptions=True)

    async def _follow(self, leader: Leader | None) -> None:
        """Asks this master until the task is cancelled: by long polls, or, if it is RocketMQ's, by polls."""
        failures = 0
        problem: str | None = None
        if leader is None:
            await asyncio.Event().wait()
            return
        while True:
            unverified_peer = await self.unverified_peer() if problem is not None else None
            problem = unverified_peer or await self._pull(leader)
            if problem is None:
                failures = 0
                self._last_problem = ""
                continue
            if problem == _IS_ROCKETMQ:
                logger.info("master %s is a RocketMQ broker: its metadata is polled", leader.address)
                await self._poll_forever(leader)
            if problem != self._last_problem:
                logger.info(
                    "metadata of master %s at masterEpoch %d: %s", leader.address, leader.epoch, problem
                )
                self._last_problem = problem
            failures += 1
            await asyncio.sleep(RETRY.pause_ms(failures, random.random()) / 1000)

    async def _pull(self, leader: Leader) -> str | None:
        """Sends one long poll and applies the answer. Returns why that failed; None: success.

        Never two at a time: the late answer of an earlier poll could be a whole table that is older than the
        versions acknowledged since. The client drops it.
        """
        request = PullMetadataRequest(
            broker_name=self._broker_name,
            broker_id=leader.broker_id,
            master_epoch=leader.epoch,
            wait_millis=WAIT_MS,
            takes_parts=True,
        )
        stores = self._metadata.stores
        try:
            await self._metadata.all_on_disk()  # the request acknowledges the versions that it names
        except CommandError as error:
            return str(error)
        versions = MetadataVersions(versions={name: store.data_version for name, store in stores.items()})
        guesses = self._metadata.topics.guesses()
        outcome = await self._client.call(
            leader.address, PULL_METADATA, request, versions, timeout_ms=WAIT_MS + CALL_TIMEOUT_MS
        )
        if isinstance(outcome, Failed) and outcome.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return _IS_ROCKETMQ
        if not isinstance(outcome, Ok):
            return str(outcome)
        if outcome.header.master_epoch != leader.epoch:
            return f"the answer is of masterEpoch {outcome.header.master_epoch}"
        try:
            for update in await _decoded(bytes(outcome.body or b"")):
                store = stores.get(update.store)
                if store is None:
                    continue
                accepted = await store.accept_large(update) if is_large([update]) else store.accept(update)
                if accepted is not None:
                    return f"{update.store} refused: {accepted}"
            self._metadata.topics.settle(guesses)
        except ValueError as error:
            return f"the answer does not fit: {error}"
        except OSError as error:
            return f"cannot be written here: {error}"
        return None

    # -- a RocketMQ master -------------------------------------------------------------------------------

    async def _poll_forever(self, leader: Leader) -> None:
        while True:
            if await self.unverified_peer() is None:
                await self.fetch_tables(leader)
            if await wait_for_event(self._hurry, SYNC_PERIOD_MS):
                await asyncio.sleep(HURRY_MS / 1000)

    async def fetch_tables(self, leader: Leader) -> None:
        """Fetches every table as a whole. One that could not be fetched is tried again in the next round."""
        metadata, epoch = self._metadata, leader.epoch
        guesses = metadata.topics.guesses()
        topics = await self._fetch_topics(leader)
        if topics is not None:
            metadata.topics.apply_remote(topics, epoch, guesses=guesses)
        for operation, adopt in (
            (GET_ALL_CONSUMER_OFFSET, metadata.offsets.adopt),
            (GET_ALL_DELAY_OFFSET, metadata.delays.adopt),
            (GET_TIMER_CHECK_POINT, metadata.timers.adopt),
            (GET_ALL_MESSAGE_REQUEST_MODE, metadata.request_modes.adopt),
        ):
            body = await self._fetch(leader, operation)
            refusal = adopt(body, epoch) if body is not None else None
            if refusal is not None:
                logger.warning("%s of %s ignored: %s", operation.name, leader.address, refusal)
        groups = await self._fetch_groups(leader)
        refusal = metadata.groups.adopt(groups, epoch) if groups is not None else None
        if refusal is not None:
            logger.warning("the groups of %s are ignored: %s", leader.address, refusal)

    async def _fetch_topics(self, leader: Leader) -> TopicConfigSerializeWrapper | None:
        """Returns the whole table, of one version; None: it is not available now."""
        table = PagedTable[TopicConfig]()
        while True:
            header = TopicPageRequest(
                topic_seq=table.seq, max_topic_num=PAGE_ROWS, data_version=table.version_text
            )
            outcome = await self._ask_master(leader, GET_ALL_TOPIC_CONFIG, header)
            if outcome is None or outcome.body is None:
                return None
            page: TopicConfigSerializeWrapper = outcome.body
            try:
                if table.take(page.topic_config_table, page.data_version, outcome.header.total_topic_num):
                    return page.model_copy(update={"topic_config_table": table.rows})
            except ValueError as error:
                logger.info("%s of master %s: %s", GET_ALL_TOPIC_CONFIG.name, leader.address, error)
                return None

    async def _fetch_groups(self, leader: Leader) -> SubscriptionGroups | None:
        """As _fetch_topics()."""
        operation, table = GET_ALL_SUBSCRIPTIONGROUP_CONFIG, PagedTable[SubscriptionGroupConfig]()
        while True:
            header = GroupPageRequest(
                group_seq=table.seq, max_group_num=PAGE_ROWS, data_version=table.version_text
            )
            outcome = await self._ask_master(leader, operation, header)
            if outcome is None or outcome.body is None:
                return None
            page: SubscriptionGroups = outcome.body
            try:
                total = outcome.header.total_group_num
                if table.take(page.subscription_group_table, page.data_version, total):
                    return page.model_copy(update={"subscription_group_table": table.rows})
            except ValueError as error:
                logger.info("%s of master %s: %s", operation.name, leader.address, error)
                return None

    async def _fetch(self, leader: Leader, operation: Operation[Any, Resp]) -> Any:
        outcome = await self._ask_master(leader, operation, Empty())
        return None if outcome is None else outcome.body

    async def _ask_master(
        self, leader: Leader, operation: Operation[Any, Resp], header: Wire
    ) -> Ok[Resp] | None:
        outcome = await self._client.call(leader.address, operation, header, timeout_ms=CALL_TIMEOUT_MS)
        if not isinstance(outcome, Ok):
            logger.info("%s of master %s: %s", operation.name, leader.address, outcome)
            return None
        return outcome

    # -- the HA address ----------------------------------------------------------------------------------

    async def find_master(self, master: str) -> MasterHaAddress | None:
        """Returns the HA address of the broker at `master`, by its own answer, else by a name server's. None:
        neither is known, or the broker is of another group."""
        text = await self._ask(master)
        if text is not None:
            if self._refusal(master, text) is not None:
                return None
            found = master_server(text, master)
            if found is not None:
                return found
        if self.route_ha_address is not None and self.route_ha_address[0] == master:
            return MasterHaAddress(self.route_ha_address[1])
        return None

    async def unverified_peer(self) -> str | None:
        """Returns why the broker at the master's address must not be followed: it is of another group. None:
        it is of this group, was so less than VERIFIED_MS ago, or does not answer."""
        leader = self._leader
        if leader is None or self._was_verified_lately(leader.address):
            return None
        text = await self._ask(leader.address)
        return None if text is None else self._refusal(leader.address, text)

    async def _ask(self, master: str) -> str | None:
        """Returns the configuration of the broker at this address; None: it does not answer with one.

        The connection may lead to a machine that is gone. If the connection breaks, the request is sent once
        more, over a new one.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + CALL_TIMEOUT_MS / 1000
        for _ in range(2):
            left_ms = int((deadline - loop.time()) * 1000)
            if left_ms <= 0:
                break
            outcome = await self._client.call(master, GET_BROKER_CONFIG, Empty(), timeout_ms=left_ms)
            if not isinstance(outcome, Unknown):
                text = outcome.body if isinstance(outcome, Ok) else None
                return bytes(text).decode("utf-8", "replace") if text else None
        return None

    def _was_verified_lately(self, master: str) -> bool:
        address, verified = self._verified
        return address == master and asyncio.get_running_loop().time() - verified < VERIFIED_MS / 1000

    def _refusal(self, master: str, text: str) -> str | None:
        """Returns None if this configuration is of a broker of this group. RocketMQ uses the same keys."""
        ours = (self._cluster, self._broker_name)
        settings = settings_of(text)
        theirs = (settings.get("brokerClusterName", ours[0]), settings.get("brokerName", ours[1]))
        if theirs == ours:
            self._verified, self._refused = (master, asyncio.get_running_loop().time()), ""
            return None
        refusal = f"{master} is of {'/'.join(theirs)} now, not of {'/'.join(ours)}: nothing is copied from it"
        if refusal != self._refused:
            self._refused = refusal
            logger.error("%s; waiting for the controllers to name another master", refusal)
        return refusal


async def _decoded(body: bytes) -> list[MetadataUpdate]:
    is_deflated = not body.startswith(b"{")
    return await asyncio.to_thread(decode_updates, body) if body and is_deflated else decode_updates(body)


_IS_ROCKETMQ = "29001 is not supported"


def settings_of(properties: str) -> dict[str, str]:
    """Returns the settings in the body of an answer to 26."""
    return {
        key.strip(): value.strip()
        for key, equals, value in (line.partition("=") for line in properties.splitlines())
        if equals
    }


def master_server(properties: str, broker_address: str) -> MasterHaAddress | None:
    """Returns haListenPort at brokerIP2, brokerIP1 or the host of broker_address. None: there is no port."""
    settings = settings_of(properties)
    port = settings.get("haListenPort", "")
    if not port.isdecimal() or not 0 < int(port) < 65_536:
        return None
    host = settings.get("brokerIP2") or settings.get("brokerIP1") or host_of(broker_address)
    file_bytes = settings.get("mappedFileSizeCommitLog", "")
    return MasterHaAddress(join_address(host, int(port)), int(file_bytes) if file_bytes.isdecimal() else None)
