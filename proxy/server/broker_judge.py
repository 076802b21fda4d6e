"""BrokerJudge: mqproxy has no users, so it asks a broker whether a client may send a request (29007).

This is for what goes to no broker otherwise (routes, heartbeats, settings). Each broker has all users and
ACLs of its cluster. What it allows counts for some seconds here. A request that goes to a broker is judged
there, each time."""

import logging
from typing import Any, Final

from broker.clients.proxied_requests import NO_ADDRESS, Sender
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.codes import MASTER_ID, ResponseCode
from keelmq.remoting.command import RemotingCommand, encode, request_command
from keelmq.remoting.operation import Empty, Failed, Ok, Outcome, Unknown
from keelmq.remoting.operations.clients import SERVE_FOR_CLIENT, UNREGISTER_CLIENT, UnregisterClientRequest
from keelmq.remoting.operations.route import GET_BROKER_CLUSTER_INFO
from keelmq.runtime.clock import now_ms
from keelmq.security.core.access import NO_USERNAME
from keelmq.security.server_access import ip_of

ALLOWED_MS: Final = 5_000
ALLOWED_MAX: Final = 10_000
REQUEST_BYTES_MAX: Final = 4_096
"""Of a request whose verdict is remembered."""
MASTERS_MS: Final = 30_000
CHECK_KEY_MS: Final = 60_000
ASK_MS: Final = 1_000
TRIES: Final = 3
"""Brokers that are asked, if one does not answer."""

logger = logging.getLogger(__name__)


class MissingKey:
    """RemotingClient's on_refused in a proxy without a key: says once what to set."""

    def __init__(self) -> None:
        self._is_told = False

    def refused(self, address: str, operation: str, remark: str) -> None:
        """Logs the first refusal."""
        if NO_USERNAME in remark and not self._is_told:
            self._is_told = True
            logger.error(
                "%s refuses %s, since it checks signatures and this proxy has no key: set "
                "authenticationEnabled=true, and innerClientAuthenticationCredentials (or securityPath) as "
                "at the brokers",
                address,
                operation,
            )


class BrokerJudge:
    """client: signs as a member of the cluster."""

    def __init__(self, client: RemotingClient, name_servers: tuple[str, ...]) -> None:
        self._client, self._name_servers = client, name_servers
        self._allowed: dict[object, int] = {}
        self._masters: list[str] = []
        self._masters_until_ms = 0
        self._check_key_ms = 0
        self._is_told = False

    async def judge(self, command: RemotingCommand, sender: Sender) -> Outcome[Any]:
        """See guard.Judge."""
        request = encode(command)
        key = (sender.credential, ip_of(sender.address), request)
        if self._allowed.get(key, 0) > now_ms():
            return Ok(Empty())
        outcome: Outcome[Any] = Failed(ResponseCode.SERVICE_NOT_AVAILABLE, "no broker has a master now")
        for address in (await self._known_masters())[:TRIES]:
            outcome = await self._client.call(
                address, SERVE_FOR_CLIENT, sender.header(judge_only=True), request, timeout_ms=ASK_MS
            )
            if isinstance(outcome, Ok):
                self._remember(key, len(request))
            if not _is_silent(outcome):
                if isinstance(outcome, Failed):
                    await self._check_key(address)
                return outcome
            if address in self._masters:  # another call may have found newer ones meanwhile
                self._masters.remove(address)
                self._masters.append(address)
        return outcome

    async def _check_key(self, address: str) -> None:
        """A broker refuses a client's signature and this proxy's with the same words. So it is asked about an
        anonymous client, now and then: if it does not say that this one is anonymous, the key is wrong."""
        if now_ms() < self._check_key_ms:
            return
        self._check_key_ms = now_ms() + CHECK_KEY_MS
        request = encode(request_command(UNREGISTER_CLIENT, UnregisterClientRequest(clientID="")))
        header = Sender(NO_ADDRESS).header(judge_only=True)
        outcome = await self._client.call(address, SERVE_FOR_CLIENT, header, request, timeout_ms=ASK_MS)
        is_refused = isinstance(outcome, Failed) and outcome.code == ResponseCode.NO_PERMISSION
        is_wrong = is_refused and NO_USERNAME not in outcome.remark
        if is_wrong and not self._is_told:
            logger.error(
                "%s refuses the key of this proxy, so no client is served (%s): set "
                "innerClientAuthenticationCredentials (or securityPath) as at the brokers",
                address,
                outcome.remark,
            )
        self._is_told = is_wrong

    def _remember(self, key: object, count: int) -> None:
        if count > REQUEST_BYTES_MAX:
            return
        self._allowed.pop(key, None)
        if len(self._allowed) >= ALLOWED_MAX:
            del self._allowed[next(iter(self._allowed))]
        self._allowed[key] = now_ms() + ALLOWED_MS

    async def _known_masters(self) -> list[str]:
        """Those that answered are first."""
        if self._masters and now_ms() < self._masters_until_ms:
            return list(self._masters)
        for address in self._name_servers:
            found = await self._client.call(address, GET_BROKER_CLUSTER_INFO, Empty(), timeout_ms=ASK_MS)
            if isinstance(found, Ok):
                brokers = found.body.broker_addr_table.values()
                masters = {each.broker_addrs.get(MASTER_ID) for each in brokers} - {None}
                kept = [each for each in self._masters if each in masters]
                self._masters = kept + sorted(masters.difference(kept))
                self._masters_until_ms = now_ms() + MASTERS_MS
                break
        return list(self._masters)


def _is_silent(outcome: Outcome[Any]) -> bool:
    return isinstance(outcome, Unknown) or (
        isinstance(outcome, Failed) and outcome.code == ResponseCode.RPC_SEND_TO_CHANNEL_FAILED
    )
