"""Carries out an upgrade: looks, asks the core for the next step, makes it, and waits until the cluster is
whole. The first thing that is not right within the time limit ends it; nothing else is touched then.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cli.rebalance.core.plan import Move
from cli.rebalance.moves import MoveFailed, Mover
from cli.rebalance.survey import Survey as MoveSurvey
from cli.upgrade.core.steps import (
    Deed,
    Done,
    HandOver,
    Restart,
    Stop,
    TransferLeader,
    Wait,
    is_at,
    next_step,
    plan,
)
from cli.upgrade.core.view import NO_VERSION, Fault, Server, View, shown, summary
from cli.upgrade.lease import Lease
from cli.upgrade.restart_command import UNITS, RestartCommand, RestartFailed, run_restart
from cli.upgrade.survey import NoAnswer, Survey
from keelmq.client.admin import AdminClient, AdminError
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operations.controller import TRANSFER_LEADER, ControllerIdRequest

POLL_S = 0.25
TOLD_AFTER_S = 5.0
"""A restart that takes longer reports what it waits for."""
AGAIN = "the same command goes on where this one stopped"

Tell = Callable[[str, dict[str, Any]], None]
"""Gets a line for people, and the same for programs."""


class Stopped(Exception):
    """Why the upgrade ended before its end, and what to do next."""

    def __init__(self, *reasons: str, next_step: str) -> None:
        super().__init__("; ".join(reasons))
        self.reasons, self.next_step = reasons, next_step


@dataclass(frozen=True, slots=True)
class Order:
    """What is wanted. target: "" for the version that is not reported. command: None, people restart. logs:
    the directory that gets the output of the commands. install: runs before the command."""

    target: str
    only: str | None
    allow_gap: bool
    timeout_s: float
    command: RestartCommand | None
    logs: Path
    install: RestartCommand | None = None

    @property
    def version(self) -> str:
        """The target as people write it."""
        return self.target or NO_VERSION

    def next_step(self, view: View) -> Deed | Wait | Stop | Done:
        """Returns the core's next step."""
        return next_step(view, self.target, only=self.only, allow_gap=self.allow_gap)

    def plan(self, view: View) -> list[Deed | Wait | Stop | Done]:
        """Returns the core's steps up to the end."""
        return plan(view, self.target, only=self.only, allow_gap=self.allow_gap)


class Roll:
    """One run. `made`: the number of steps that were begun."""

    def __init__(self, survey: Survey, admin: AdminClient, lease: Lease, order: Order, tell: Tell) -> None:
        self._survey, self._admin, self._lease = survey, admin, lease
        self._order, self._tell = order, tell
        self._status = "keelmq status shows what is wrong, and the next command"
        self.made = 0
        self._installed = ""
        self._told = ""
        self._of = 0

    async def run(self) -> None:
        """Returns when all is done. Raises Stopped, Refused, Held."""
        view, deadline_s = await self._look(), self._deadline_s()
        while True:
            match step := self._order.next_step(view):
                case Done():
                    return
                case Stop():
                    raise Stopped(*step.reasons, next_step=stop_text(step))
                case Wait(reason):
                    self._check(deadline_s, reason)
                    self._waits(reason)
                    view = await self._later()
                    continue
            if isinstance(step, Restart) and await self._installs(step.server):
                view, deadline_s = await self._look(), self._deadline_s()
                continue
            await self._lease.check()
            self._of = self.made + len(self._order.plan(view)) - 1
            self.made += 1
            match step:
                case Restart(server):
                    await self._restart(server)
                case HandOver():
                    await self._hand_over(step)
                case TransferLeader():
                    await self._transfer(step)
            self._told = ""
            view = await self._look()
            deadline_s = self._deadline_s()

    async def _restart(self, server: Server) -> None:
        command, began_s, log = self._order.command, time.monotonic(), None
        if command is None:
            text = f"restart {server.label} with {self._order.version} now: {UNITS[server.kind]}"
            self._step(text, "restartNow", _of_server(server))
        else:
            log = await self._run(command, server)
        restarted_s = time.monotonic()
        back_s = await self._back(server, log)
        if command is None:
            restarted_s = back_s
        restart_s, whole_s = restarted_s - began_s, time.monotonic() - restarted_s
        again = "in sync" if server.has_brokers else "whole"
        self._step(
            f"{server.label}: restarted in {restart_s:.1f} s, {again} after {whole_s:.1f} s",
            "restarted",
            {**_of_server(server), "restartMs": round(restart_s * 1000), "wholeMs": round(whole_s * 1000)},
        )

    async def _installs(self, server: Server) -> bool:
        """Installs the target for the server, unless that was the last thing done. Returns whether it did:
        the cluster is looked at again then, because an installation takes time."""
        if self._order.install is None or self._installed == server.address:
            return False
        await self._lease.check()
        await self._run(self._order.install, server, "install-")
        self._installed = server.address
        return True

    async def _run(self, command: RestartCommand, server: Server, prefix: str = "") -> Path:
        """Returns the file with the output. Raises Stopped."""
        address = server.address.replace(":", "-")
        log = self._order.logs / f"{self.made:03}-{prefix}{server.kind}-{address}.log"
        try:
            words = command.for_server(server, self._order.version)
            await run_restart(words, log, timeout_s=self._order.timeout_s)
        except (RestartFailed, ValueError) as error:
            next_step = f"correct it, and see that the server runs; {AGAIN}"
            text = f"the command for {server.label} failed: {error}"
            raise Stopped(text, next_step=next_step) from None
        return log

    async def _back(self, server: Server, log: Path | None) -> float:
        """Waits until the server has the target version and the cluster is whole. Returns when it had. log:
        the output of the command; None: a person restarts, and may take any time until that begins."""
        deadline_s = self._deadline_s() if self._order.command is not None else None
        back_s = 0.0
        while True:
            view = await self._look()
            now = next((each for each in view.servers if each.address == server.address), None)
            is_back = now is not None and is_at(now, self._order.target)
            has_begun = now is None or now.versions != server.versions or bool(view.faults)
            back_s = back_s or (time.monotonic() if is_back else 0.0)
            if is_back and not view.faults:
                return back_s
            if now is not None and not is_back and not view.faults and not now.versions & server.versions:
                raise Stopped(
                    f"{server.label} reports {shown(now.versions)} after its restart, and not "
                    f"{self._order.version}",
                    next_step=f"see which version is installed there; {AGAIN}",
                )
            if self._order.command is None:
                deadline_s = (deadline_s or self._deadline_s()) if has_begun else None
            if deadline_s is not None:
                missing = self._missing(server, now, view)
                if time.monotonic() > deadline_s:
                    raise self._not_back(server, now, missing, log)
                if self._deadline_s() - deadline_s > TOLD_AFTER_S:
                    self._waits(missing if view.faults else f"{server.label}: {missing}")
            await asyncio.sleep(POLL_S)

    def _not_back(self, server: Server, now: Server | None, missing: str, log: Path | None) -> Stopped:
        was, next_step = "was restarted, and is ", self._status
        if now is None or not now.versions:
            next_step = f"start it (journalctl -u {UNITS[server.kind]} says why it ended)"
        elif now.versions == server.versions:
            was, next_step = "is ", "see which unit the command restarts, and what it installs"
        output = f"; the output of the command is in {log}" if log is not None else ""
        return Stopped(
            f"{server.label} {was}not right within {self._order.timeout_s:g} s: {missing}{output}",
            next_step=f"{next_step}; {AGAIN}",
        )

    def _missing(self, server: Server, now: Server | None, view: View) -> str:
        if now is not None and now.versions == server.versions and not view.faults:
            return (
                f"it still reports {shown(now.versions)}, so it was not restarted, or {self._order.version} "
                "is not installed there"
            )
        return summary(view.faults)

    async def _hand_over(self, step: HandOver) -> None:
        survey = MoveSurvey(self._survey.controllers, addresses=self._survey.broker_addresses())
        mover = Mover(self._admin, survey, self._survey.name_servers, wait_s=self._order.timeout_s)
        who = f"{step.group}: broker {step.from_id} to broker {step.to_id}"
        hosts = [survey.addresses[step.group, each] for each in (step.from_id, step.to_id)]
        try:
            made = await mover.make(Move(step.cluster, step.group, step.from_id, step.to_id, *hosts))
        except MoveFailed as error:
            state = "handed over, but" if error.is_made else "not handed over:"
            raise Stopped(f"{who} {state} {error}", next_step=f"{self._status}; {AGAIN}") from None
        how = (
            "handed over" if made.is_planned else "elected, because the old master did not hand over in time"
        )
        self._step(
            f"{who} {how} in {made.took_ms / 1000:.1f} s",
            "handedOver",
            {
                "brokerName": step.group,
                "fromBrokerId": step.from_id,
                "toBrokerId": step.to_id,
                "tookMs": made.took_ms,
                "handedOver": made.is_planned,
            },
        )

    async def _transfer(self, step: TransferLeader) -> None:
        """A refusal may pass: the other controller still reads the log. So it is asked again in time."""
        began_s, deadline_s = time.monotonic(), self._deadline_s()
        request = ControllerIdRequest(controller_id=step.to_id)
        while True:
            reason = "it still leads"
            try:
                await self._admin.controllers.change_controllers(
                    self._survey.controllers, TRANSFER_LEADER, request
                )
            except AdminError as error:
                reason = f"{error.code_name}: {error.remark}" if error.code else error.remark
                if error.code == ResponseCode.NO_PERMISSION:
                    raise Stopped(
                        reason, next_step=f"give the credentials of an administrator; {AGAIN}"
                    ) from None
            view = await self._look()
            if view.leader not in ("", step.from_id) and not view.faults:
                break
            self._check(deadline_s, f"controller {step.from_id}: {summary(view.faults) or reason}")
            await asyncio.sleep(POLL_S)
        took_s = time.monotonic() - began_s
        self._step(
            f"controller {step.from_id} made {view.leader} the leader in {took_s:.1f} s",
            "transferred",
            {"fromId": step.from_id, "toId": view.leader, "tookMs": round(took_s * 1000)},
        )

    async def _look(self) -> View:
        """As Survey.look(), also while no server answers."""
        try:
            return await self._survey.look()
        except NoAnswer as error:
            return View((), faults=(Fault("no server answers", str(error)),))

    async def _later(self) -> View:
        await asyncio.sleep(POLL_S)
        return await self._look()

    def _deadline_s(self) -> float:
        return time.monotonic() + self._order.timeout_s

    def _check(self, deadline_s: float, reason: str) -> None:
        """Raises Stopped: the time is over."""
        if time.monotonic() > deadline_s:
            raise Stopped(
                f"not within {self._order.timeout_s:g} s: {reason}", next_step=f"{self._status}; {AGAIN}"
            )

    def _waits(self, reason: str) -> None:
        if reason != self._told:
            self._tell(f"waiting: {reason}", {"event": "waiting", "reason": reason})
        self._told = reason

    def _step(self, text: str, event: str, values: dict[str, Any]) -> None:
        of = max(self._of, self.made)
        self._tell(f"[{self.made}/{of}] {text}", {"event": event, "step": self.made, "of": of, **values})


def stop_text(step: Stop) -> str:
    """Returns what to do about it."""
    return "accept it with --allow-gap, or add servers first" if step.is_gap else "correct the options"


def _of_server(server: Server) -> dict[str, Any]:
    return {
        "kind": server.kind.value,
        "name": server.name,
        "address": server.address,
        "from": sorted(each or NO_VERSION for each in server.versions),
    }


def planned(step: Deed, version: str) -> tuple[str, dict[str, Any]]:
    """Returns a step that was not made, for people and for programs."""
    match step:
        case Restart(server):
            text = f"restart {server.label}: {shown(server.versions)} to {version}"
            return text, {"event": "planned", "deed": "restart", **_of_server(server)}
        case HandOver(_, group, from_id, to_id):
            text = f"hand over {group}: broker {from_id} to broker {to_id}"
            ids = {"brokerName": group, "fromBrokerId": from_id, "toBrokerId": to_id}
            return text, {"event": "planned", "deed": "handOver", **ids}
        case TransferLeader(from_id, to_id):
            text = f"make controller {to_id} the leader instead of {from_id}"
            return text, {"event": "planned", "deed": "transferLeader", "fromId": from_id, "toId": to_id}
