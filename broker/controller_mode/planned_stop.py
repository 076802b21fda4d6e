"""A planned stop (SIGTERM): hands over, then serves as a slave until the clients have the new route.

A slave that the name servers show as an alias of the master, and to which producers send, does the same.

Meanwhile this broker forwards messages, send-backs, transaction ends, commits of offsets and queue locks to
the new master, and answers pulls from its own copy of the log.
"""

import asyncio
import logging
from collections.abc import Callable

from broker.admission.send_forwarder import SendForwarder
from broker.clients.core.registry import ClientRegistry
from broker.config.broker_config import BrokerConfig
from broker.controller_mode.hand_over import HandOver, HandOverError
from broker.core.planned_stop import Observed, PlannedStopRule
from broker.core.role import Role
from keelmq.runtime.clock import now_ms

logger = logging.getLogger(__name__)

OUR_LANGUAGE = "PYTHON"
"""Language of clients that read the route as soon as an answer was forwarded or a connection closes. RocketMQ
has no remoting client in pure Python: the one on PyPI wraps the C++ client, and reports CPP."""
LOOK_MS = 20
LOOK_AT_CLIENTS_MS = 500
"""Pause between checks while clients with an old route are connected: there may be many to check."""


class PlannedStop:
    """The planned stop of one broker in controller mode."""

    def __init__(
        self,
        hand_over: HandOver,
        forwarder: SendForwarder,
        registry: ClientRegistry,
        *,
        role: Callable[[], Role],
        is_linked: Callable[[], bool],
        announce: Callable[[], None],
        config: BrokerConfig,
    ) -> None:
        """is_linked: returns whether the replication link to another master is up. announce: registers with
        the name servers again, in the background."""
        self._hand_over, self._forwarder, self._registry = hand_over, forwarder, registry
        self._role, self._is_linked = role, is_linked
        self._announce, self._config = announce, config
        self._demoted_ms: int | None = None
        self._was_alias = False
        self.is_running = False

    def role_changed(self, before: Role, after: Role) -> None:
        """Records when the mastership was lost. Must be called after every role change."""
        if before.is_master and not after.is_master:
            self._demoted_ms = now_ms()

    @property
    def _hand_over_ms(self) -> int:
        """shutdownHandOverTimeout in ms; 0: no hand-over, and no wait for clients."""
        return self._config.shutdown_hand_over_timeout

    @property
    def _forward_ms(self) -> int:
        """shutdownForwardTimeout in ms; 0: the stop does not wait for clients with an old route."""
        return self._config.shutdown_forward_timeout if self._config.forward_late_sends else 0

    async def run(self) -> None:
        """Hands over if this broker is master. Returns when the broker may stop: at once if it was never
        master and no producer sends to it, or if it cannot hand over."""
        if not self._hand_over_ms:
            return
        began_ms = linked_ms = now_ms()
        told, self.is_running = False, True
        if not self._role().is_master:
            self._announce()  # the name servers show another slave as alias
            if self._senders() and (
                self._demoted_ms is None or began_ms - self._demoted_ms >= self._forward_ms
            ):
                self._demoted_ms, self._was_alias = began_ms, True
        while not self._role().is_master or await self._hands_over():
            if self._is_linked():
                linked_ms = now_ms()
            if self._demoted_ms is None:
                return
            rule = PlannedStopRule(began_ms, self._demoted_ms, self._hand_over_ms, self._forward_ms)
            observed = self._observe(linked_ms)
            if rule.may_end(observed):
                return
            if observed.old_routes and not told:
                told = True
                logger.info(
                    "forwarding for %d clients with an old route, up to %d ms (shutdownForwardTimeout); "
                    "a second signal stops at once",
                    observed.old_routes,
                    max(self._demoted_ms + self._forward_ms - observed.now_ms, 0),
                )
            await asyncio.sleep((LOOK_AT_CLIENTS_MS if observed.old_routes else LOOK_MS) / 1000)

    async def _hands_over(self) -> bool:
        """Returns whether the mastership was handed over. False: the reason is logged, and the controllers
        elect another master after this broker has stopped."""
        try:
            async with asyncio.timeout(self._hand_over_ms / 1000):
                await self._hand_over.give(leaves=True)
        except (HandOverError, TimeoutError):
            return False
        return True

    def _observe(self, linked_ms: int) -> Observed:
        return Observed(
            now_ms=now_ms(),
            old_routes=len(self._old_routes()) if self._forward_ms else 0,
            forwarding=self._forwarder.count,
            last_send_ms=self._forwarder.last_taken_ms,
            linked_ms=linked_ms,
        )

    def _old_routes(self) -> set[int]:
        """Returns the ids of connections whose clients poll the route: those that sent a heartbeat, or a
        message before their first heartbeat. Of a slave that was an alias: only those that sent messages."""
        if self._was_alias:
            return self._senders()
        clients = self._registry.connections()
        ours = {each for each, client in clients.items() if client.language == OUR_LANGUAGE}
        return (clients.keys() - ours) | self._senders()

    def _senders(self) -> set[int]:
        """Returns the ids of open connections of RocketMQ's clients that brought messages to forward."""
        senders = {peer.connection_id for peer in self._forwarder.senders if not peer.is_closing()}
        clients = self._registry.connections()
        return {each for each in senders if each not in clients or clients[each].language != OUR_LANGUAGE}
