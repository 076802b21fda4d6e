"""ElectionRequests: a broker's electMaster (1002), sent while it knows no master, and to give back its
mastership."""

import asyncio
import logging
import random
from collections.abc import Callable

from broker.controller_mode.broker_id_registration import role_update_of
from broker.controller_mode.controller_client import ControllerClient
from broker.core.role import RoleUpdate
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Ok, in_short
from keelmq.remoting.operations.controller import ELECT_MASTER, ElectMasterRequest, MasterInfo, SyncStateSet
from keelmq.runtime.backoff import Backoff
from keelmq.runtime.clock import wall_ms

logger = logging.getLogger(__name__)

ELECT_AGAIN = Backoff(first_ms=100, max_ms=1_000)
MASTER_EXISTS_IS_GOOD = (ResponseCode.SUCCESS, ResponseCode.CONTROLLER_MASTER_STILL_EXIST)


class ElectionRequests:
    """Event loop only. offer: gets the role updates of the answers."""

    def __init__(
        self,
        controller: ControllerClient,
        *,
        cluster_name: str,
        broker_name: str,
        broker_id: Callable[[], int],
        offer: Callable[[RoleUpdate], None],
    ) -> None:
        self._controller, self._broker_id, self._offer = controller, broker_id, offer
        self._cluster_name, self._broker_name = cluster_name, broker_name
        self._wanted = asyncio.Event()
        self._no_master_because = ""

    def want(self) -> None:
        """No master is known: asks for one, until there is one."""
        self._wanted.set()

    def have(self) -> None:
        """There is a master, or this broker has no id to ask with."""
        self._wanted.clear()
        self._no_master_because = ""

    async def run(self) -> None:
        """Sends 1002, with a back-off, for as long as no master is known."""
        failures = 0
        while True:
            await self._wanted.wait()
            if await self._ask():
                self._wanted.clear()
                failures = 0
                continue
            failures += 1
            await asyncio.sleep(ELECT_AGAIN.pause_ms(failures, random.random()) / 1000)

    async def _ask(self) -> bool:
        request = ElectMasterRequest(
            cluster_name=self._cluster_name,
            broker_name=self._broker_name,
            broker_id=self._broker_id(),
            invoke_time=wall_ms(),
        )
        outcome = await self._controller.call(ELECT_MASTER, request, good=MASTER_EXISTS_IS_GOOD)
        if not isinstance(outcome, Ok):
            if self._wanted.is_set() and in_short(outcome) != self._no_master_because:
                self._no_master_because = in_short(outcome)
                logger.warning("no master for %s yet: %s", self._broker_name, self._no_master_because)
            return False
        return self.elected(outcome)

    def elected(self, outcome: Ok[MasterInfo]) -> bool:
        """Handles the answer to a 1002. False: it names no master."""
        members = outcome.body.sync_state_set if outcome.body else []
        epoch = outcome.header.sync_state_set_epoch or 0
        role_update = role_update_of(
            outcome.header, SyncStateSet(sync_state_set=members, sync_state_set_epoch=epoch)
        )
        if role_update.master_broker_id is None:
            return False
        self._offer(role_update)
        return True

    async def give_back(self, sync_state_set: frozenset[int]) -> bool:
        """Asks the controller to elect another member of the SyncStateSet. Nothing was stored in this term,
        so each has all messages. False: none was elected."""
        for other in sorted(sync_state_set - {self._broker_id()}):
            request = ElectMasterRequest(
                cluster_name=self._cluster_name,
                broker_name=self._broker_name,
                broker_id=other,
                designate_elect=True,
                invoke_time=wall_ms(),
            )
            outcome = await self._controller.call(ELECT_MASTER, request)
            if isinstance(outcome, Ok) and self.elected(outcome):
                return True
        return False
