"""Registration with the controllers: carries out the effects of core/registration.py on disk and controller.

`step()` decides what comes next. After a lost reply, or without an answer, an effect is repeated with a
back-off and jitter, because several new replicas may start together and want the same next id.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from broker.controller_mode.broker_meta_file import MetaFiles
from broker.controller_mode.controller_client import ControllerClient
from broker.core.registration import Effect, Event, RegisterState, Registration, event_of, recover, step
from broker.core.role import RoleUpdate
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Failed, Ok, Outcome, in_short
from keelmq.remoting.operations.controller import (
    APPLY_BROKER_ID,
    GET_NEXT_BROKER_ID,
    REGISTER_BROKER_TO_CONTROLLER,
    ApplyBrokerIdRequest,
    BrokerSetRequest,
    MasterInfo,
    NotifyBrokerRoleChangedRequest,
    RegisterBrokerToControllerRequest,
    SyncStateSet,
)
from keelmq.runtime.backoff import Backoff
from keelmq.runtime.clock import wall_ms

logger = logging.getLogger(__name__)

AGAIN = Backoff(first_ms=50, max_ms=2_000)
EXPLAIN_EVERY = 30
"""A failure that persists is logged again after this many tries."""


def role_update_of(
    header: MasterInfo | NotifyBrokerRoleChangedRequest, sync_state_set: SyncStateSet | None
) -> RoleUpdate:
    """Returns the role update in an answer to 1002, 1003 or 1004, or in a 1008. Without masterEpoch: epoch 0,
    no master."""
    members = sync_state_set or SyncStateSet()
    return RoleUpdate(
        master_epoch=header.master_epoch or 0,
        master_broker_id=header.master_broker_id if header.master_address else None,
        master_address=header.master_address or None,
        sync_state_set=frozenset(members.sync_state_set),
        sync_state_set_epoch=members.sync_state_set_epoch or header.sync_state_set_epoch or 0,
    )


class Identity:
    """The id of this broker, and its registration."""

    def __init__(
        self,
        files: MetaFiles,
        controller: ControllerClient,
        *,
        cluster_name: str,
        broker_name: str,
        broker_address: Callable[[], str],
        on_registered: Callable[[], None],
        last_epoch: Callable[[], int | None],
    ) -> None:
        """broker_address: host:port that is announced to clients. on_registered: called when heartbeats may
        begin. last_epoch: of the log; None: not known."""
        self._files, self._controller, self._on_registered = files, controller, on_registered
        self._cluster_name, self._broker_name = cluster_name, broker_name
        self._broker_address = broker_address
        self._last_epoch = last_epoch
        self._check_code = ""
        self.now = Registration()
        self._is_loaded, self._is_new = False, True
        self._tries = 0
        self._was_lost = self._is_replaced = False

    def load(self) -> None:
        """Reads the files. Raises BrokerMetaError if they cannot be trusted."""
        temp, meta = self._files.load()
        owner = meta or temp
        self._check_code = owner.register_check_code if owner else ""
        self.now = recover(temp.broker_id if temp else None, meta.broker_id if meta else None)
        self._is_new = meta is None  # without an id it was never master, regardless of its epoch file
        self._is_loaded = True

    @property
    def broker_id(self) -> int | None:
        """The permanent id; None until the controller has granted it."""
        granted = self.now.state in (RegisterState.CREATE_METADATA_FILE_DONE, RegisterState.REGISTERED)
        return self.now.broker_id if granted else None

    @property
    def is_registered(self) -> bool:
        """Whether the controller has accepted this broker's registration (1003)."""
        return self.now.state is RegisterState.REGISTERED

    @property
    def address(self) -> str:
        """host:port that this broker is registered with."""
        return self._broker_address()

    def lose(self) -> None:
        """The controllers have registered the id at another address: settle() asks for it again. If a process
        runs there, it is the broker from now on, and settle() never returns: reclaiming the id when that
        process restarts would lose the messages that it has acknowledged."""
        assert self.is_registered
        self._was_lost = True
        self.now = replace(
            self.now, state=RegisterState.CREATE_METADATA_FILE_DONE, effect=Effect.REGISTER_TO_CONTROLLER
        )

    async def settle(self) -> RoleUpdate:
        """Registers, and returns what the controller knows about the master. Never gives up, except as in
        lose()."""
        assert self._is_loaded, "a broker that forgot its id would take another one"
        if self.now.broker_id is None and (epoch := self._last_epoch()):
            logger.error(
                "%s is missing, although the log has epochs up to %d: this broker applies for a new id. If "
                "the file is lost and not left out of a restore, stop the broker, restore the file, and "
                "start again; the old id stays a replica of the group until cleanBrokerMetadata",
                self._files.meta_path, epoch,
            )  # fmt: skip
        failures = 0
        role_update = RoleUpdate(master_epoch=0)
        while self.now.state is not RegisterState.REGISTERED:
            if self.now.effect is Effect.REGISTER_TO_CONTROLLER:
                assert self.now.broker_id is not None
                event, role_update = await self._register(self.now.broker_id)
                broker_id = None
            else:
                event, broker_id = await self._perform(self.now)
            self.now = step(self.now, event, broker_id)
            if self._is_replaced:
                logger.critical(
                    "another process has taken broker id %d: this one stops registering until a restart",
                    self.now.broker_id or 0,
                )
                await asyncio.Event().wait()
            if event is Event.UNKNOWN:
                failures += 1
                await asyncio.sleep(AGAIN.pause_ms(failures, random.random()) / 1000)
        self._is_new = False
        self._on_registered()
        logger.info("registered with the controller as brokerId %d", self.now.broker_id)
        return role_update

    async def register_again(self) -> RoleUpdate | None:
        """Sends 1003 once more: the controller has forgotten this broker. None: it failed."""
        assert self.broker_id is not None
        event, role_update = await self._register(self.broker_id)
        return role_update if event is Event.OK else None

    async def _perform(self, now: Registration) -> tuple[Event, int | None]:
        match now.effect:
            case Effect.GET_NEXT_BROKER_ID:
                return await self._next_broker_id()
            case Effect.WRITE_TEMP:
                assert now.broker_id is not None
                self._check_code = f"{self._broker_address()};{wall_ms()}"
                self._files.write_temp(now.broker_id, self._check_code)
            case Effect.APPLY_BROKER_ID:
                return await self._apply(now), None
            case Effect.DELETE_TEMP:
                self._files.delete_temp()
            case Effect.REPLACE_TEMP_BY_META:
                self._files.replace_temp_by_meta()
        return Event.OK, None

    async def _next_broker_id(self) -> tuple[Event, int | None]:
        request = BrokerSetRequest(cluster_name=self._cluster_name, broker_name=self._broker_name)
        outcome = await self._controller.call(GET_NEXT_BROKER_ID, request)
        event = self._event(Effect.GET_NEXT_BROKER_ID, outcome)
        return event, outcome.header.next_broker_id if isinstance(outcome, Ok) else None

    async def _apply(self, now: Registration) -> Event:
        assert now.broker_id is not None
        request = ApplyBrokerIdRequest(
            cluster_name=self._cluster_name,
            broker_name=self._broker_name,
            applied_broker_id=now.broker_id,
            register_check_code=self._check_code,
        )
        return self._event(Effect.APPLY_BROKER_ID, await self._controller.call(APPLY_BROKER_ID, request))

    async def _register(self, broker_id: int) -> tuple[Event, RoleUpdate]:
        request = RegisterBrokerToControllerRequest(
            cluster_name=self._cluster_name,
            broker_name=self._broker_name,
            broker_id=broker_id,
            broker_address=self._broker_address(),
            invoke_time=wall_ms(),
            epoch=0 if self._is_new else self._last_epoch(),
            register_check_code=self._check_code or None,
        )
        outcome = await self._controller.call(REGISTER_BROKER_TO_CONTROLLER, request)
        event = self._event(Effect.REGISTER_TO_CONTROLLER, outcome)
        if isinstance(outcome, Failed) and outcome.code == ResponseCode.CONTROLLER_INVALID_REQUEST:
            self._is_replaced = self._was_lost
        if isinstance(outcome, Ok):
            self._was_lost = False
            return event, role_update_of(outcome.header, outcome.body)
        return event, RoleUpdate(master_epoch=0)

    def _event(self, effect: Effect, outcome: Outcome[Any]) -> Event:
        """Returns the event for an outcome. A failure is logged at the first try, and every EXPLAIN_EVERY."""
        event = event_of(effect, outcome)
        if event is Event.OK:
            self._tries = 0
            return event
        if self._tries % EXPLAIN_EVERY == 0:
            logger.warning("%s: %s", effect.name, self._explain(outcome))
        self._tries += 1
        return event

    def _explain(self, outcome: Outcome[Any]) -> str:
        if (
            isinstance(outcome, Failed)
            and outcome.code == ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
        ):
            return (
                f"the controllers do not know brokerId {self.now.broker_id} of group {self._broker_name}, "
                f"which {self._files.meta_path} says is ours: their store was wiped, this id was cleaned, or "
                "controllerAddr names another cluster. This broker stays fenced and asks again. Bring the "
                "controllers' store back, or remove that file to join under a new id"
            )
        if isinstance(outcome, Failed):
            return f"refused: {in_short(outcome)}"
        return f"no answer: {outcome}"
