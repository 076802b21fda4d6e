"""The role of this broker in controller mode: handles role updates, and carries out one change at a time.

Role updates come from the controllers: answers to 1002, 1003 and 1004, and the notification 1008.
core/role.py decides what each means. A change is: fence (no writes), HA service, metadata, unfence, remember
the epoch, announce. The epoch is remembered last, so a change that failed half-way is repeated, and the
broker stays fenced until one succeeds. A newer role update interrupts a change that waits for the master's HA
address.

A promotion that fails PROMOTIONS_MAX times, or does not end, is given up: the mastership goes to another
member of the SyncStateSet. If there is none, this broker sends no more heartbeats, so that the controllers
see and report a group without a master. It keeps trying. Source: RIP-44, RocketMQ 5.3.3 ReplicasManager
(pitfalls 25, 42, 50, 51 are fixed here).
"""

import asyncio
import logging
from collections.abc import Callable

from broker.controller_mode.broker_id_registration import Identity, role_update_of
from broker.controller_mode.controller_client import ControllerClient
from broker.controller_mode.election_requests import ElectionRequests
from broker.controller_mode.role_change import RoleChange, failure_text, sync_state_set_of
from broker.core.role import (
    AdoptSyncStateSet,
    AskForElection,
    ChangeToMaster,
    ChangeToSlave,
    RegisterAgain,
    Role,
    RoleUpdate,
    Stay,
    decide_role,
    finished,
    id_is_taken,
    newest,
)
from broker.ha.ports import EpochPassed
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Failed, LocalProtocolError, Ok, in_short
from keelmq.remoting.operations.controller import (
    ALTER_SYNC_STATE_SET,
    GET_REPLICA_INFO,
    AlterSyncStateSetRequest,
    MasterInfo,
    NotifyBrokerRoleChangedRequest,
    ReplicaInfoRequest,
    SyncStateSet,
)
from keelmq.runtime.clock import now_ms, wall_ms
from keelmq.runtime.tasks import TaskSet, Trouble, wait_for_event

logger = logging.getLogger(__name__)

PROMOTIONS_MAX = 3
"""Failures of one promotion until the mastership is given back."""
HA_ADDRESS_CHECK_MS = 3_000
"""Interval of the look-ups of the master's HA address."""
FENCED = (ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH, ResponseCode.CONTROLLER_INVALID_MASTER)


class ReplicasManager:
    """Keeps the role of this broker, and changes it when the controllers decide so."""

    def __init__(
        self,
        identity: Identity,
        controller: ControllerClient,
        role_change: RoleChange,
        *,
        cluster_name: str,
        broker_name: str,
        poll_period_ms: int,
        on_change: Callable[[Role, Role, int], None],
        on_confirmed: Callable[[int], None],
        on_sync_state_set: Callable[[frozenset[int]], None],
        unfit_because: Callable[[], str],
        on_refused: Callable[[], None],
    ) -> None:
        """on_change(before, after, took_ms): a change has just been finished. on_confirmed(asked_ms): the
        active controller, asked at that time, says that this broker is master. on_sync_state_set: gets the
        SyncStateSet of every role update. unfit_because: why this broker must not be master; empty: it may.
        on_refused: `refused_epoch` has grown."""
        self._identity, self._controller, self._role_change = identity, controller, role_change
        self._cluster_name, self._broker_name = cluster_name, broker_name
        self.poll_period_ms = poll_period_ms
        self._role = self._acting = Role(broker_id=0)  # _acting: during a change, already the new role
        self._role_update: RoleUpdate | None = None
        self._role_update_came, self._poll_now = asyncio.Event(), asyncio.Event()
        self._elections = ElectionRequests(
            controller,
            cluster_name=cluster_name,
            broker_name=broker_name,
            broker_id=lambda: self._role.broker_id,
            offer=self.offer,
        )
        self._changing = asyncio.Lock()
        self._on_change, self._on_confirmed = on_change, on_confirmed
        self._on_sync_state_set = on_sync_state_set
        self._unfit_because, self._on_refused = unfit_because, on_refused
        self._lost_because = ""
        self._failed: tuple[int, int] = (0, 0)  # masterEpoch of a failing promotion, number of failures
        self.fault = ""
        """Why this broker cannot take the role that the controllers gave it; it sends no heartbeats then."""
        self.refused_epoch = -1
        """This process begins no term up to this masterEpoch any more; -1: none was refused."""

    @property
    def role(self) -> Role:
        """The last finished role; broker_id 0 until the broker has its id."""
        return self._role

    def start(self, tasks: TaskSet) -> None:
        """Starts the background tasks; two more start when the broker is registered."""
        tasks.start("replicas manager", lambda: self._run(tasks))
        tasks.start("HA address of the master", self._refresh_ha_address_forever)

    def offer(self, role_update: RoleUpdate) -> None:
        """Keeps a role update for the background task. Of several that wait, the newest one counts."""
        self._role_update = newest(self._role_update, role_update)
        self._role_update_came.set()
        self._on_sync_state_set(role_update.sync_state_set)

    def notify_broker_role_changed(
        self, request: NotifyBrokerRoleChangedRequest, body: SyncStateSet | None
    ) -> None:
        """Handles a 1008 of the active controller. One without a master makes this broker ask for an
        election."""
        if request.broker_name not in (None, self._broker_name):
            return
        self.offer(role_update_of(request, body))

    def poll_now(self) -> None:
        """Asks the controllers for the role at once, before the poll period is over."""
        self._poll_now.set()

    async def _run(self, tasks: TaskSet) -> None:
        """Registers, then handles role updates. After an error its supervisor calls it again, and it
        continues with the same id."""
        while True:
            if self._lost_because:
                await self._give_up_id()
            if not self._identity.is_registered or self._role.broker_id == 0:
                await self._register(tasks)
            await self._role_update_came.wait()
            self._role_update_came.clear()
            role_update_now, self._role_update = self._role_update, None
            if role_update_now is not None:
                await self._act_on(role_update_now)

    async def _register(self, tasks: TaskSet) -> None:
        role_update, is_first = await self._identity.settle(), self._role.broker_id == 0
        assert self._identity.broker_id is not None
        self._role = self._acting = Role(broker_id=self._identity.broker_id, address=self._identity.address)
        self._role_update, self.fault = None, ""
        self.offer(role_update)
        if is_first:
            tasks.start("poll of the replica info", self._poll_forever)
            tasks.start("elections", self._elections.run)

    def _lost_id(self, reason: str) -> None:
        """Another process is registered with this broker's id, for example after a pause of this one."""
        if self._identity.is_registered:
            self._lost_because = reason
            self._role_update_came.set()

    async def _give_up_id(self) -> None:
        """Ends the role. From now on the broker behaves as if it had just been started."""
        self.fault = f"{self._lost_because}: this process serves nothing"
        logger.critical("%s", self.fault)
        self._role_change.fence(self.fault)
        if self._role.is_master:
            self._role_change.send_clients_away()
        async with self._changing:
            await self._role_change.leave_role(self.fault)
            self._role = self._acting = Role(broker_id=self._role.broker_id, address=self._role.address)
        self._elections.have()
        self._identity.lose()
        self._lost_because = ""

    async def _act_on(self, role_update: RoleUpdate) -> None:
        try:
            await self._carry_out_unless_late(role_update)
        except BaseException as error:
            # it is not done: the supervisor starts this task again
            self._role_update = newest(role_update, self._role_update or role_update)
            self._role_update_came.set()
            if isinstance(error, Exception) and role_update.master_broker_id == self._role.broker_id:
                await self._promotion_failed(role_update, error)
            if isinstance(error, (OSError, LocalProtocolError)):  # the text has the remedy
                raise Trouble(
                    f"no role change at masterEpoch {role_update.master_epoch}: {failure_text(error)}"
                ) from error
            raise

    async def _carry_out_unless_late(self, role_update: RoleUpdate) -> None:
        """Drops a role update of an older term than one that the HA link has already named. Raises
        EpochPassed if the controllers, asked again, do not know that term either."""
        try:
            await self._carry_out(role_update)
        except EpochPassed as passed:
            self._acting = self._role
            present = await self._poll()
            if present is not None and present.master_epoch < passed.known_epoch:
                raise
            logger.info(
                "ignored an outdated role update of masterEpoch %d: the log already has masterEpoch %d",
                role_update.master_epoch,
                passed.known_epoch,
            )

    async def _promotion_failed(self, role_update: RoleUpdate, error: Exception) -> None:
        epoch, count = self._failed
        self._failed = (role_update.master_epoch, count + 1 if epoch == role_update.master_epoch else 1)
        if self._failed[1] < PROMOTIONS_MAX:
            return
        why = failure_text(error)
        reason = f"this broker cannot become master at masterEpoch {role_update.master_epoch}: {why}"
        if await self._elections.give_back(role_update.sync_state_set):
            logger.critical("%s", reason)
        elif self.fault != reason:  # logged once, not at every try
            self.fault = reason
            logger.critical(
                "%s; no other replica is known to have all messages, so the group stays without a master",
                reason,
            )

    async def _refuse(self, epoch: int, sync_state_set: frozenset[int], why: str) -> None:
        """Refuses to be master up to this masterEpoch, for the life of this process. The controllers learn it
        from the next heartbeat, and elect a member of the previous SyncStateSet."""
        if epoch <= self.refused_epoch:
            return
        self.refused_epoch = epoch
        logger.critical("this broker refuses to be master at masterEpoch %d: %s", epoch, why)
        if not await self._elections.give_back(sync_state_set):
            self._on_refused()

    async def _carry_out(self, role_update: RoleUpdate) -> None:
        match decide_role(self._role, role_update):
            case ChangeToMaster() if why := self._unfit_because():
                await self._refuse(role_update.master_epoch, role_update.sync_state_set, why)
            case ChangeToMaster() if role_update.master_epoch <= self.refused_epoch:
                logger.info("masterEpoch %d was refused by this process", role_update.master_epoch)
            case ChangeToMaster():
                async with self._changing:
                    await self._change_to_master(role_update)
            case ChangeToSlave():
                async with self._changing:
                    await self._change_to_slave(role_update)
            case AdoptSyncStateSet():
                self._role_change.ha.adopt_sync_state_set(sync_state_set_of(role_update))
                self._role = self._acting = finished(self._role, role_update)
            case AskForElection():
                if role_update.master_epoch > self._role.epoch and self._role.is_master:
                    self._role_change.fence("the controllers have ended this broker's term as master")
                self.fault = ""  # the next election may choose this broker: that is a new try
                if self._unfit_because() and role_update.master_epoch > self.refused_epoch:
                    self.refused_epoch = role_update.master_epoch
                    self._on_refused()
                self._elections.want()
            case RegisterAgain(reason):
                self._lost_id(reason)
            case Stay(reason):
                logger.debug("role stays: %s", reason)

    async def _change_to_master(self, role_update: RoleUpdate) -> None:
        started_ms = now_ms()
        after = self._acting = finished(self._role, role_update)  # the HA service may propose before the end
        self.poll_now()  # the lease of a master with replicas begins with the answer
        await self._role_change.change_to_master(after, role_update, self)
        self._changed(after, role_update, now_ms() - started_ms)

    async def _change_to_slave(self, role_update: RoleUpdate) -> None:
        before, started_ms = self._role, now_ms()
        after = self._acting = finished(before, role_update)
        if await self._role_change.change_to_slave(
            before, after, role_update, is_superseded=self._is_superseded
        ):
            self._changed(after, role_update, now_ms() - started_ms)

    def _is_superseded(self) -> bool:
        """Returns whether the update that waits names another master, or this one at another address."""
        waiting = self._role_update
        if waiting is None:
            return bool(self._lost_because)
        return not isinstance(decide_role(self._acting, waiting), Stay)

    def _changed(self, after: Role, role_update: RoleUpdate, took_ms: int) -> None:
        before, self._role = self._role, after
        self.fault = ""
        self._elections.have()
        self._on_change(before, after, took_ms)
        logger.info(
            "role change: %s at masterEpoch %d in %d ms (was %s); SyncStateSet %s",
            "master" if after.is_master else f"slave of {after.master_broker_id}",
            role_update.master_epoch,
            took_ms,
            before,
            sorted(role_update.sync_state_set),
            extra={
                "brokerName": self._broker_name,
                "masterBrokerId": after.master_broker_id,
                "masterEpoch": role_update.master_epoch,
                "syncStateSet": sorted(role_update.sync_state_set),
                "tookMs": took_ms,
            },
        )

    async def _poll_forever(self) -> None:
        while True:
            await wait_for_event(self._poll_now, self.poll_period_ms)
            await self._poll()

    async def _poll(self, fence: tuple[Role, int] | None = None) -> RoleUpdate | None:
        role, doubted_epoch = (None, None) if fence is None else fence
        request = ReplicaInfoRequest(
            broker_name=self._broker_name,
            broker_id=self._role.broker_id,
            broker_address=self._role.address,
            master_broker_id=None if role is None else role.broker_id,
            master_epoch=None if role is None else role.epoch,
            fence_sync_state_set_epoch=doubted_epoch,
        )
        asked_ms = now_ms()
        match await self._controller.call(GET_REPLICA_INFO, request):
            case Ok(header=header, body=body):
                role_update = role_update_of(header, body)
                acting = self._acting
                is_same = role_update.master_broker_id == acting.broker_id and not id_is_taken(
                    acting, role_update
                )
                if acting.is_master and is_same and role_update.master_epoch == acting.epoch:
                    self._on_confirmed(asked_ms)
            case Failed(code=ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED, remark=reason):
                self._lost_id(reason)
                return None
            case Failed(code=ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST):
                again = await self._identity.register_again()
                if again is None:
                    return None
                role_update = again
            case other:
                logger.debug("poll of the replica info: %s", other)
                return None
        self.offer(role_update)
        return role_update

    def elected(self, outcome: Ok[MasterInfo]) -> bool:
        """Handles the answer to a 1002. False: it names no master."""
        return self._elections.elected(outcome)

    async def alter_sync_state_set(self, new_set: frozenset[int], current_epoch: int) -> SyncStateSet | None:
        """Sends 1001 for this master's term. None: refused or unknown, and the set must be read again."""
        role = self._acting
        if not role.is_master:
            return None
        request = AlterSyncStateSetRequest(
            broker_name=self._broker_name,
            master_broker_id=role.broker_id,
            master_epoch=role.epoch,
            invoke_time=wall_ms(),
        )
        body = SyncStateSet(sync_state_set=sorted(new_set), sync_state_set_epoch=current_epoch)
        outcome = await self._controller.call(ALTER_SYNC_STATE_SET, request, body)
        if not isinstance(outcome, Ok) or outcome.body is None:
            said = "an answer without a set" if isinstance(outcome, Ok) else in_short(outcome)
            logger.warning("SyncStateSet %s at epoch %d: %s", sorted(new_set), current_epoch, said)
            if isinstance(outcome, Failed) and outcome.code in FENCED:
                self.poll_now()
            return None
        agreed: SyncStateSet = outcome.body
        return agreed if self._acting.epoch == role.epoch else None

    async def read_sync_state_set(self, doubted_epoch: int) -> SyncStateSet | None:
        """Sends 1004 for this master's term, after a 1001 with an unknown outcome. None: not known, or this
        broker is no longer master. A KeelMQ controller raises the set epoch before it answers, if it still is
        doubted_epoch: the 1001 is refused from then on. RocketMQ's ignore the fields, and answer with the
        same epoch."""
        role_update = await self._poll((self._acting, doubted_epoch))
        role = self._acting
        if role_update is None or role_update.master_epoch != role.epoch or not role.is_master:
            return None
        return sync_state_set_of(role_update)

    async def _refresh_ha_address_forever(self) -> None:
        while True:
            await asyncio.sleep(HA_ADDRESS_CHECK_MS / 1000)
            await self.refresh_ha_address()

    async def refresh_ha_address(self) -> None:
        """Dials the master of this slave again, if it is at another HA address now."""
        role = self._role
        if role.epoch == 0 or role.is_master or role.master_address is None:
            return
        master = await self._role_change.sync.find_master(role.master_address)
        async with self._changing:
            if master is not None and role is self._role:
                try:
                    await self._role_change.refresh_ha_address(role, master)
                except EpochPassed:  # the HA link named a later term before the controllers did
                    self.poll_now()
