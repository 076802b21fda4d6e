"""Makes the moves of a plan, one after the other, each as a planned hand-over: no send fails.

The controllers ask the master to hand over: it drains while it holds sends, and the new master has every byte
when it is elected. The next move begins when the new master accepts messages, all name servers that answer
show it, and every former member of the SyncStateSet is in it again. The first failure ends the sequence.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from cli.rebalance.core.plan import Move
from cli.rebalance.survey import Survey
from keelmq.client.admin import AdminClient, AdminError
from keelmq.remoting.address_text import parse_addresses
from keelmq.remoting.booleans import is_true
from keelmq.remoting.codes import MASTER_ID, ResponseCode
from keelmq.remoting.operations.controller import ReplicasInfo

POLL_S = 0.1
BEHIND_BYTES_MAX = 4 << 20
"""A replica that is further behind than this may not have caught up when the master stops waiting for it."""


class MoveFailed(Exception):
    """The text says why, and what to do. `is_made`: the master has moved anyway."""

    def __init__(self, text: str, *, is_made: bool = False) -> None:
        super().__init__(text)
        self.is_made = is_made


@dataclass(frozen=True, slots=True)
class Made:
    """A move that was made. is_planned: the old master handed over, so that no send failed; else the
    controllers elected without it, and clients had to repeat sends."""

    move: Move
    took_ms: int
    is_planned: bool


class Mover:
    """wait_s: how long each of the conditions before and after an election may take."""

    def __init__(self, admin: AdminClient, survey: Survey, name_servers: str, *, wait_s: float) -> None:
        self._admin, self._survey, self._wait_s = admin, survey, wait_s
        self._name_servers = parse_addresses(name_servers)

    async def make(self, move: Move) -> Made:
        """Makes one move and waits until the group is as good as before. Raises MoveFailed."""
        began_s = time.monotonic()
        before = await self._checked(move)
        await self._until(f"replica {move.to_id} has not caught up", lambda: self._is_behind(move))
        is_planned = await self._elect(move)
        members = {each.broker_id for each in before.in_sync_replicas if each.alive}
        await self._until("", lambda: self._not_whole(move, members), is_made=True)
        return Made(move, round((time.monotonic() - began_s) * 1000), is_planned)

    async def _checked(self, move: Move) -> ReplicasInfo:
        """Returns the group's present set, if the plan is still right. Raises MoveFailed."""
        try:
            info = await self._set_of(move)
        except AdminError as error:
            raise MoveFailed(str(error)) from error
        if info.master_broker_id != move.from_id:
            raise MoveFailed(
                f"its master is broker {info.master_broker_id} now, not {move.from_id} as planned"
            )
        if move.to_id not in {each.broker_id for each in info.in_sync_replicas if each.alive}:
            raise MoveFailed(f"broker {move.to_id} is not in the SyncStateSet any more, or not alive")
        return info

    async def _set_of(self, move: Move) -> ReplicasInfo:
        sets = await self._admin.controllers.sync_state_sets(self._survey.controllers, [move.group])
        if move.group not in sets.replicas_info_table:
            code = ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST
            remark = f"the controllers do not know {move.group} any more"
            raise AdminError("getSyncStateSet", self._survey.controllers, remark, code)
        return sets.replicas_info_table[move.group]

    async def _is_behind(self, move: Move) -> str:
        """Returns how far the new master is behind; "": it can take over."""
        status = await self._admin.brokers.ha_status(self._survey.addresses[move.group, move.from_id])
        links = [each for each in status.ha_connection_info if each.broker_id == move.to_id]
        if links and links[0].diff > BEHIND_BYTES_MAX:
            return f"broker {move.to_id} is {links[0].diff} bytes behind"
        return ""  # RocketMQ's masters do not name the replica of a link: the hand-over waits itself

    async def _elect(self, move: Move) -> bool:
        """Returns whether the old master handed over. Raises MoveFailed."""
        try:
            _, body = await self._admin.controllers.elect_master(
                self._survey.controllers,
                cluster_name=move.cluster,
                broker_name=move.group,
                broker_id=move.to_id,
            )
            return move.from_id in body.sync_state_set
        except AdminError as error:
            if error.code is not None and error.code != ResponseCode.CONTROLLER_MASTER_STILL_EXIST:
                raise MoveFailed(f"{error.code_name}: {error.remark}") from error
        members: set[int] = set()

        async def not_elected() -> str:
            info = await self._set_of(move)
            members.clear()
            members.update(each.broker_id for each in info.in_sync_replicas)
            is_elected = info.master_broker_id == move.to_id
            return "" if is_elected else f"its master is broker {info.master_broker_id}"

        await self._until("the answer of the election was lost, and", not_elected)
        return move.from_id in members

    async def _not_whole(self, move: Move, members: set[int]) -> str:
        """Returns the condition that is not met yet after an election; "": none."""
        info = await self._set_of(move)
        if info.master_broker_id != move.to_id:
            return f"broker {info.master_broker_id} is master instead of {move.to_id}"
        address = info.master_address or self._survey.addresses[move.group, move.to_id]
        runtime = await self._admin.brokers.runtime_info(address)
        if not is_true(runtime.get("writable", "true")):
            return f"{address} does not take messages yet: {runtime.get('notWritable') or 'no reason given'}"
        if missing := members - {each.broker_id for each in info.in_sync_replicas}:
            return f"broker {', '.join(map(str, sorted(missing)))} is not in the SyncStateSet again"
        return await self._not_shown(move.group, address)

    async def _not_shown(self, group: str, address: str) -> str:
        """Returns which name servers show another master. Those that do not answer do not count."""
        results = await self._admin.each(";".join(self._name_servers), self._admin.name_servers.cluster_info)
        tables = {each.address: each.answer.broker_addr_table for each in results if each.answer is not None}
        if not tables:
            return "no name server answers"
        wrong = [
            at
            for at, table in tables.items()
            if group not in table or table[group].broker_addrs.get(MASTER_ID) != address
        ]
        return f"name server {', '.join(wrong)} does not show {address} as master yet" if wrong else ""

    async def _until(
        self, what: str, missing: Callable[[], Awaitable[str]], *, is_made: bool = False
    ) -> None:
        """Returns when nothing is missing. Raises MoveFailed after wait_s."""
        deadline_s = time.monotonic() + self._wait_s
        while True:
            try:
                text = await missing()
            except AdminError as error:
                if error.code == ResponseCode.NO_PERMISSION:
                    raise MoveFailed(str(error), is_made=is_made) from error
                text = str(error)  # an election of the controllers, a broker that is busy: it may pass
            if not text:
                return
            if time.monotonic() >= deadline_s:
                reason = f"{what}: {text}" if what else text
                raise MoveFailed(f"not within {self._wait_s:g} s: {reason}", is_made=is_made)
            await asyncio.sleep(POLL_S)
