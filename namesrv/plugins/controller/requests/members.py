"""Membership of the controller group: addController, removeController, transferLeader (docs/adr/0011).

Only the leader serves these requests; the reply is the group after the change. Each is safe to repeat: a
change that was made before is a success. The request address of a new controller is part of the change, so
every controller reports it (1005). Brokers receive it with 1008 before the operator gets the reply: if the
new controller became leader without having their heartbeats, it would count them as dead.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import NoReturn

from keelmq.remoting.addresses import is_loopback
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Call, CommandError, Empty, Ok, OperationTable, Reply
from keelmq.remoting.operations import controller as wire
from keelmq.runtime.tls.contexts import ClientTls
from keelmq.security.signer import Signer
from namesrv.plugins.controller.config import Address, parse_peers
from namesrv.plugins.controller.proposer import NOT_LEADER_REMARK, result_of
from namesrv.plugins.controller.raft.api import ChangeOutcome, ChangeRefused, NotActive, Replicator
from namesrv.plugins.controller.requests.replies import address_text, invalid

log = logging.getLogger(__name__)

IDENTIFY_TIMEOUT_MS = 2_000
ANY_HOST = ("0.0.0.0", "::")
HOW_TO_START = (
    "start it first, with an empty controllerStorePath and all members and itself in controllerDLegerPeers"
)


class MemberHandlers:
    """`metadata()`: this controller's reply to 1005. `notify_brokers()`: sends 1008 to all brokers."""

    def __init__(
        self,
        replicator: Replicator,
        metadata: Callable[[], wire.ControllerMetadata],
        notify_brokers: Callable[[], Awaitable[None]],
        tls: ClientTls | None = None,
        signer: Signer | None = None,
    ) -> None:
        self._replicator, self._metadata, self._notify_brokers = replicator, metadata, notify_brokers
        self._client: RemotingClient | None = None  # to a new controller
        self._tls, self._signer = tls, signer

    def bind(self, table: OperationTable) -> None:
        """Binds KeelMQ's addController (29021), removeController (29022, 29024) and transferLeader
        (29023)."""
        table.bind(wire.ADD_CONTROLLER, self.add)
        table.bind(wire.REMOVE_CONTROLLER, self.remove)
        table.bind(wire.EXPLAIN_REMOVE_CONTROLLER, self.explain_remove)
        table.bind(wire.TRANSFER_LEADER, self.transfer)

    async def close(self) -> None:
        """Closes the connections to new controllers."""
        if self._client is not None:
            await self._client.close()

    async def add(self, request: wire.AddControllerRequest, call: Call) -> Reply:
        """addController. Returns the new group. Raises CommandError: refused; UnknownOutcome."""
        self._check_leads()
        new, address = request.controller_id, _parsed(request)
        members = self._replicator.request_addresses
        if members.get(new) == address:
            return Reply(self._metadata(), remark=f"{new} is already a member")
        if new in members:
            invalid(
                f"{new} is already a member, at {address_text(members[new])}: choose another id, or, if it "
                "has moved, removeController first"
            )
        _check_place(members, address)
        raft_address = await self._identified(new, address)
        _check_host(members, raft_address)
        self._require_committed(await self._replicator.add_member(new, raft_address, address))
        call.changes[f"controller {new}"] = None, address_text(address)
        log.warning("%s: controller %s at %s was added", call.peer.address, new, address_text(address))
        await self._notify_brokers()
        return Reply(self._metadata())

    async def remove(self, request: wire.ControllerIdRequest, call: Call) -> Reply:
        """removeController. Returns the new group. Raises CommandError: refused; UnknownOutcome."""
        old, members = request.controller_id, self._replicator.request_addresses
        if not self._is_removable(old, members):
            return Reply(self._metadata(), remark=f"{old} is not a member: nothing to do")
        address = address_text(members[old])
        self._require_committed(await self._replicator.remove_member(old))
        call.changes[f"controller {old}"] = address, None
        log.warning("%s: controller %s was removed", call.peer.address, old)
        return Reply(self._metadata(), remark=f"stop {old} now, if it still runs")

    async def explain_remove(self, request: wire.ControllerIdRequest, call: Call) -> Reply:
        """Answers as removeController would, and removes nothing (29024): the present group. Raises
        CommandError: it would be refused."""
        old, members = request.controller_id, self._replicator.request_addresses
        if not self._is_removable(old, members):
            return Reply(self._metadata(), remark=f"{old} is not a member: nothing to do")
        self._require_committed(await self._replicator.remove_member(old, dry_run=True))
        return Reply(self._metadata())

    def _is_removable(self, old: str, members: Mapping[str, Address]) -> bool:
        """Returns False: it is not a member. Raises CommandError: refused."""
        self._check_leads()
        if old not in members:
            return False
        if len(members) == 1:
            invalid(f"{old} is the only member: none would be left")
        if old == self._replicator.self_id:
            transfer_target = next(each for each in sorted(members) if each != old)
            invalid(
                f"{old} leads: move the leadership first (transferLeader, for example to {transfer_target}), "
                "then repeat"
            )
        return True

    async def transfer(self, request: wire.ControllerIdRequest, call: Call) -> Reply:
        """transferLeader. Answers when that member leads. Raises CommandError: refused; UnknownOutcome."""
        self._check_leads()
        if request.controller_id == self._replicator.self_id:
            return Reply(self._metadata(), remark=f"{request.controller_id} already leads")
        self._require_committed(await self._replicator.transfer_leadership(request.controller_id))
        call.changes["leader"] = self._replicator.self_id, request.controller_id
        log.warning("%s: the leadership was transferred to %s", call.peer.address, request.controller_id)
        return Reply(self._metadata())

    async def _identified(self, new: str, address: Address) -> Address:
        """Asks the controller at `address` for its id and group (1005), and returns its raft address.

        Raises CommandError: it does not answer, or it is another controller or of another group.
        """
        where = address_text(address)
        if self._client is None:
            self._client = RemotingClient(
                connect_timeout_ms=IDENTIFY_TIMEOUT_MS, tls=self._tls, signer=self._signer
            )
        outcome = await self._client.call(
            where, wire.GET_METADATA_INFO, Empty(), timeout_ms=IDENTIFY_TIMEOUT_MS
        )
        if not isinstance(outcome, Ok):
            invalid(f"{new} does not answer at {where} ({outcome.remark}): {HOW_TO_START}")
        metadata, group = outcome.header, self._metadata().group
        if metadata.self_id is None or metadata.raft_address is None:
            invalid(f"the server at {where} is no KeelMQ controller of this version")
        if metadata.group != group:
            invalid(f"the controller at {where} is of group {metadata.group}, not {group}")
        if metadata.self_id != new:
            invalid(
                f"the controller at {where} is {metadata.self_id}, not {new}: see its controllerDLegerSelfId"
            )
        return _address("raft address", new, metadata.raft_address)

    def _check_leads(self) -> None:
        if not self._replicator.is_active:
            self._not_leader(self._replicator.leader_id)

    def _not_leader(self, leader: str | None) -> NoReturn:
        where = self._replicator.request_addresses.get(leader or "")
        who = "" if leader is None or where is None else f": ask {leader} at {address_text(where)}"
        raise CommandError(ResponseCode.CONTROLLER_NOT_LEADER, NOT_LEADER_REMARK + who)

    def _require_committed(self, outcome: ChangeOutcome) -> None:
        """Raises CommandError unless the change was committed."""
        match outcome:
            case ChangeRefused(reason):
                invalid(reason)
            case NotActive(leader):
                self._not_leader(leader)
            case _:
                result_of(outcome)


def _parsed(request: wire.AddControllerRequest) -> Address:
    return _address("controllerAddress", request.controller_id, request.controller_address)


def _address(what: str, member: str, text: str) -> Address:
    """Parses host:port by the rules of controllerDLegerPeers. Raises CommandError."""
    try:
        found = parse_peers(what, f"{member}-{text}")
    except ValueError as error:
        invalid(str(error))
    if list(found) != [member]:
        invalid(f"{what}: {member!r} at {text!r} is not one controller (for example n3 at 10.0.0.4:9878)")
    return found[member]


def _check_place(members: Mapping[str, Address], address: Address) -> None:
    for member, taken in sorted(members.items()):
        if taken == address:
            invalid(f"{address_text(address)} is the address of member {member}")
    _check_host(members, address)


def _check_host(members: Mapping[str, Address], address: Address) -> None:
    """Raises CommandError: a loopback address, unless all members have one, or a wildcard address."""
    is_local = is_loopback(address[0]) and not all(is_loopback(host) for host, _port in members.values())
    if is_local or address[0] in ANY_HOST:
        invalid(
            f"{address_text(address)}: other machines need an address at which they can reach this controller"
        )
