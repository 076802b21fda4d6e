"""Role changes in controller mode: news from the controllers in, one change at a time out.

News (1003, 1002, 1004, 1008) are decided by core/role.py. A change is: fence (no writes) -> HA service ->
topics -> unfence -> remember the epoch -> announce. The epoch is remembered last, so a change that failed
half-way is repeated, and the broker stays fenced until one succeeds. Newer news interrupt a change that waits
for the master's HA address.

A promotion that fails again and again, or does not end, is given up: the mastership goes to another member of
the SyncStateSet, or, if there is none, this broker falls silent, so that the controllers see a group without
a master and say so. It goes on trying.
Source: RIP-44, RocketMQ 5.3.3 ReplicasManager (pitfalls 25, 42, 50, 51 mended).
"""

import asyncio
import errno
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from broker.controller_client import ControllerClient
from broker.core.role import (
    AdoptSyncStateSet,
    AskForElection,
    ChangeToMaster,
    ChangeToSlave,
    MasterNews,
    Role,
    Stay,
    decide_role,
    finished,
    newest,
)
from broker.ha.ports import EpochPassed, MasterDoor
from broker.identity import Identity, news_of
from remoting.clock import now_ms, wall_ms
from remoting.codes import ResponseCode
from remoting.operation import Failed, LocalProtocolError, Ok, in_short
from remoting.operations.controller import (
    ALTER_SYNC_STATE_SET,
    ELECT_MASTER,
    GET_REPLICA_INFO,
    AlterSyncStateSetRequest,
    ElectMasterRequest,
    MasterInfo,
    NotifyBrokerRoleChangedRequest,
    ReplicaInfoRequest,
    SyncStateSet,
)
from remoting.tasks import TaskSet, Trouble, wait_for_event

logger = logging.getLogger(__name__)

ELECT_BACKOFF_FIRST_MS = 100
ELECT_BACKOFF_MAX_MS = 1_000
HA_ADDRESS_RETRY_MS = 200
PROMOTION_MS = 10_000
"""A promotion takes some milliseconds; one that takes so long is taken for stuck."""
PROMOTIONS_MAX = 3
"""Failures of one promotion until the mastership is given back."""

MASTER_EXISTS_IS_GOOD = (ResponseCode.SUCCESS, ResponseCode.CONTROLLER_MASTER_STILL_EXIST)
FENCED = (ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH, ResponseCode.CONTROLLER_INVALID_MASTER)


class HaRoles(Protocol):
    """What a role change needs of the HA service."""

    async def become_master(self, *, broker_id: int, epoch: int, sync_state_set: SyncStateSet) -> None: ...
    async def become_slave(
        self, *, broker_id: int, epoch: int, master_ha_address: str, master_file_bytes: int | None
    ) -> None: ...
    def adopt_sync_state_set(self, sync_state_set: SyncStateSet) -> None: ...


class RoleShell(Protocol):
    """What a role change does to the rest of the broker."""

    def fence(self, remark: str) -> None:
        """No more writes. Replies that wait go on waiting: what replicas have confirmed is safe."""
        ...

    def send_clients_away(self) -> None:
        """We are no longer master: replies that wait get an answer of unknown fate, connections close."""
        ...

    def unfence(self) -> None: ...

    async def find_master(self, master_address: str) -> MasterDoor | None: ...

    async def serve_as(self, role: Role) -> None:
        """Topics and versions for the new role; called while still fenced."""
        ...

    def announce(self, role: Role) -> None:
        """Tell name servers and controllers, without waiting for them."""
        ...


class ReplicasManager:
    """Who is master, as far as this broker knows, and every change of that."""

    def __init__(
        self,
        identity: Identity,
        controller: ControllerClient,
        ha: HaRoles,
        shell: RoleShell,
        *,
        cluster_name: str,
        broker_name: str,
        poll_period_ms: int,
        on_change: Callable[[Role, Role, int], None] | None = None,
        on_confirmed: Callable[[int], None] = lambda asked_ms: None,
    ) -> None:
        """`on_change(before, after, took_ms)`: a change has just been finished. `on_confirmed(asked_ms)`: the
        active controller, asked then, says that this broker is master."""
        self._identity, self._controller, self._ha, self._shell = identity, controller, ha, shell
        self._cluster_name, self._broker_name = cluster_name, broker_name
        self._poll_period_ms = poll_period_ms
        self._role = self._acting = Role(broker_id=0)  # _acting: of the change that is under way, too
        self._news: MasterNews | None = None
        self._news_came, self._poll_now, self._master_wanted = (
            asyncio.Event(),
            asyncio.Event(),
            asyncio.Event(),
        )
        self._changing = asyncio.Lock()
        self._on_change, self._on_confirmed = on_change, on_confirmed
        self._no_master_because = ""
        self._failed: tuple[int, int] = (0, 0)  # masterEpoch of a promotion that fails, how often it did
        self.fault = ""
        """Why this broker cannot be what the controllers say; it is silent towards them then."""
        self._door: MasterDoor | None = None

    @property
    def role(self) -> Role:
        """The last finished role; broker_id 0 until the identity is settled."""
        return self._role

    def start(self, tasks: TaskSet) -> None:
        tasks.start("replicas manager", lambda: self._run(tasks))

    def offer(self, news: MasterNews) -> None:
        """Take note of what a controller said; acted upon by the role task."""
        self._news = newest(self._news, news)
        self._news_came.set()

    def notified(self, request: NotifyBrokerRoleChangedRequest, body: SyncStateSet | None) -> None:
        """1008. Without a master it says that one is missing: the poll asks for an election."""
        if request.broker_name not in (None, self._broker_name):
            return
        header = MasterInfo(
            master_broker_id=request.master_broker_id,
            master_address=request.master_address,
            master_epoch=request.master_epoch,
            sync_state_set_epoch=request.sync_state_set_epoch,
        )
        self.offer(news_of(header, body))

    def poll_now(self) -> None:
        """Something happened (a connection came back, a proposal was refused): ask before the period is
        over."""
        self._poll_now.set()

    async def _run(self, tasks: TaskSet) -> None:
        """Identity first, then roles. Restarted by its supervisor, it finds the identity settled already."""
        if self._role.broker_id == 0:
            news = await self._identity.settle()
            assert self._identity.broker_id is not None
            self._role = self._acting = Role(broker_id=self._identity.broker_id)
            self.offer(news)
            tasks.start("poll of the replica info", self._poll_forever)
            tasks.start("elections", self._elect_when_wanted)
        while True:
            await self._news_came.wait()
            self._news_came.clear()
            news_now, self._news = self._news, None
            if news_now is not None:
                await self._act_on(news_now)

    async def _act_on(self, news: MasterNews) -> None:
        try:
            await self._carry_out_unless_late(news)
        except BaseException as error:
            self._news = newest(news, self._news or news)  # not done: the supervisor starts us again
            self._news_came.set()
            if isinstance(error, Exception) and news.master_broker_id == self._role.broker_id:
                await self._promotion_failed(news, error)
            if isinstance(error, (OSError, LocalProtocolError)):  # the text says what to do
                raise Trouble(f"no role change at masterEpoch {news.master_epoch}: {_said(error)}") from error
            raise

    async def _carry_out_unless_late(self, news: MasterNews) -> None:
        """The master's link may tell of a term before a controller can; news that arrive after that are late
        and are dropped. EpochPassed: the controllers, asked now, do not know of that term either."""
        try:
            await self._carry_out(news)
        except EpochPassed as passed:
            self._acting = self._role
            present = await self._poll()
            if present is not None and present.master_epoch < passed.known_epoch:
                raise
            logger.info(
                "news of masterEpoch %d came late: the log knows %d", news.master_epoch, passed.known_epoch
            )

    async def _promotion_failed(self, news: MasterNews, error: Exception) -> None:
        epoch, count = self._failed
        self._failed = (news.master_epoch, count + 1 if epoch == news.master_epoch else 1)
        if self._failed[1] < PROMOTIONS_MAX:
            return
        reason = f"this broker cannot become master at masterEpoch {news.master_epoch}: {_said(error)}"
        if await self._give_back(news):
            logger.critical("%s", reason)
        elif self.fault != reason:  # told once, not at every try
            self.fault = reason
            logger.critical(
                "%s; no other replica is known to have everything, so the group stays without a master",
                reason,
            )

    async def _give_back(self, news: MasterNews) -> bool:
        """Nothing was stored in this term: every other member is as good. False: nobody takes it."""
        for other in sorted(news.sync_state_set - {self._role.broker_id}):
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

    async def _carry_out(self, news: MasterNews) -> None:
        match decide_role(self._role, news):
            case ChangeToMaster():
                async with self._changing:
                    await self._change("master", news, self._become_master)
            case ChangeToSlave():
                async with self._changing:
                    await self._change(f"slave of {news.master_broker_id}", news, self._become_slave)
            case AdoptSyncStateSet():
                self._ha.adopt_sync_state_set(sync_state_set_of(news))
                self._role = self._acting = finished(self._role, news)
            case AskForElection():
                if news.master_epoch > self._role.epoch and self._role.is_master:
                    self._shell.fence("the controllers have ended this broker's term as master")
                self.fault = ""  # whoever is elected now may be this one: it is a new try
                self._master_wanted.set()
            case Stay(reason):
                logger.debug("role stays: %s", reason)

    async def _change(
        self, name: str, news: MasterNews, become: Callable[[MasterNews], Awaitable[bool]]
    ) -> None:
        """Fence, change, serve, unfence, remember: in this order."""
        before, started_ms = self._role, now_ms()
        self._shell.fence(f"role is changing: {name} at masterEpoch {news.master_epoch}")
        after = self._acting = finished(before, news)  # the HA service may propose before this returns
        if after.is_master:
            self.poll_now()  # the lease of a new master with heirs begins with the answer
        async with asyncio.timeout(PROMOTION_MS / 1000 if after.is_master else None):
            if not await become(news):
                return  # newer news are waiting
        await self._shell.serve_as(after)
        if after.is_master:
            self._shell.unfence()
        self._role, self._no_master_because, self.fault = after, "", ""
        self._master_wanted.clear()
        took_ms = now_ms() - started_ms
        if self._on_change is not None:
            self._on_change(before, after, took_ms)
        self._shell.announce(after)
        logger.info(
            "role change: %s at masterEpoch %d in %d ms (was %s); SyncStateSet %s",
            name,
            news.master_epoch,
            took_ms,
            before,
            sorted(news.sync_state_set),
        )

    async def _become_master(self, news: MasterNews) -> bool:
        await self._ha.become_master(
            broker_id=self._role.broker_id,
            epoch=news.master_epoch,
            sync_state_set=sync_state_set_of(news),
        )
        self._door = None
        return True

    async def _become_slave(self, news: MasterNews) -> bool:
        assert news.master_address is not None
        if self._role.is_master:
            self._shell.send_clients_away()
        while (door := await self._shell.find_master(news.master_address)) is None:
            logger.info("the HA address of master %s is not known yet", news.master_address)
            await asyncio.sleep(HA_ADDRESS_RETRY_MS / 1000)
            if self._news is not None and not isinstance(decide_role(self._acting, self._news), Stay):
                return False  # another master, or this one at another address
        await self._follow(news.master_epoch, door)
        return True

    async def _follow(self, epoch: int, door: MasterDoor) -> None:
        await self._ha.become_slave(
            broker_id=self._role.broker_id,
            epoch=epoch,
            master_ha_address=door.ha_address,
            master_file_bytes=door.file_bytes,
        )
        self._door = door

    async def _poll_forever(self) -> None:
        while True:
            await wait_for_event(self._poll_now, self._poll_period_ms)
            await self._poll()

    async def _poll(self, fence: tuple[Role, int] | None = None) -> MasterNews | None:
        request = ReplicaInfoRequest(broker_name=self._broker_name)
        if fence is not None:
            role, doubted_epoch = fence
            request = ReplicaInfoRequest(
                broker_name=self._broker_name,
                master_broker_id=role.broker_id,
                master_epoch=role.epoch,
                fence_sync_state_set_epoch=doubted_epoch,
            )
        asked_ms = now_ms()
        match await self._controller.call(GET_REPLICA_INFO, request):
            case Ok(header=header, body=body):
                news = news_of(header, body)
                acting = self._acting
                if acting.is_master and (news.master_epoch, news.master_broker_id) == (
                    acting.epoch,
                    acting.broker_id,
                ):
                    self._on_confirmed(asked_ms)
            case Failed(code=ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST):
                again = await self._identity.register_again()
                if again is None:
                    return None
                news = again
            case other:
                logger.debug("poll of the replica info: %s", other)
                return None
        self.offer(news)
        return news

    async def _elect_when_wanted(self) -> None:
        """1002 with back-off for as long as no master is known."""
        backoff_ms = ELECT_BACKOFF_FIRST_MS
        while True:
            await self._master_wanted.wait()
            if await self._ask_for_election():
                self._master_wanted.clear()
                backoff_ms = ELECT_BACKOFF_FIRST_MS
                continue
            await asyncio.sleep(backoff_ms / 1000)
            backoff_ms = min(backoff_ms * 2, ELECT_BACKOFF_MAX_MS)

    async def _ask_for_election(self) -> bool:
        request = ElectMasterRequest(
            cluster_name=self._cluster_name,
            broker_name=self._broker_name,
            broker_id=self._role.broker_id,
            invoke_time=wall_ms(),
        )
        outcome = await self._controller.call(ELECT_MASTER, request, good=MASTER_EXISTS_IS_GOOD)
        if not isinstance(outcome, Ok):
            if self._master_wanted.is_set() and in_short(outcome) != self._no_master_because:
                self._no_master_because = in_short(outcome)
                logger.warning("no master for %s yet: %s", self._broker_name, self._no_master_because)
            return False
        return self.elected(outcome)

    def elected(self, outcome: Ok[MasterInfo]) -> bool:
        """The answer to an 1002. False: nobody is master."""
        members = outcome.body.sync_state_set if outcome.body else []
        epoch = outcome.header.sync_state_set_epoch or 0
        news = news_of(outcome.header, SyncStateSet(sync_state_set=members, sync_state_set_epoch=epoch))
        if news.master_broker_id is None:
            return False
        self.offer(news)
        return True

    async def alter_sync_state_set(self, new_set: frozenset[int], current_epoch: int) -> SyncStateSet | None:
        """1001 for the HA service. None: refused or unknown, and the truth must be read again."""
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
        """1004 for the HA service, which does not know what became of a 1001. None: not known, or no longer
        ours to know. A KeelMQ controller raises the set epoch before it answers, if it still is the doubted
        one: the 1001 is refused from then on. RocketMQ's skip the fields, and answer with the same epoch."""
        news = await self._poll((self._acting, doubted_epoch))
        role = self._acting
        if news is None or news.master_epoch != role.epoch or not role.is_master:
            return None
        return sync_state_set_of(news)

    async def refresh_ha_address(self) -> None:
        """The same master may have come back with another HA port: dial that one."""
        role = self._role
        if role.epoch == 0 or role.is_master or role.master_address is None:
            return
        door = await self._shell.find_master(role.master_address)
        async with self._changing:
            if door is not None and door != self._door and role is self._role:
                try:
                    await self._follow(role.epoch, door)
                except EpochPassed:  # its link told of a later term before the controllers could
                    self.poll_now()


def sync_state_set_of(news: MasterNews) -> SyncStateSet:
    return SyncStateSet(
        sync_state_set=sorted(news.sync_state_set), sync_state_set_epoch=news.sync_state_set_epoch
    )


def _said(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"it did not end within {PROMOTION_MS} ms"
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return "the disk of storePathRootDir is full: make room, it goes on trying"
    return str(error) or type(error).__name__
