"""Whether a name server can be registered with in parts.

A name server with deleteTopicWithBrokerRegistration=true removes the topics that a registration lacks, so
each part would remove those of all others. KeelMQ's name servers get the number of the part, and remove no
topic before the last one: they announce that in the response to QUERY_DATA_VERSION (322). RocketMQ's are
asked for the setting (319).
"""

from typing import Any, Final

from keelmq.remoting.client import RemotingClient
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Empty, Ok, Outcome, Unknown, in_short
from keelmq.remoting.operations.namesrv_admin import GET_NAMESRV_CONFIG
from keelmq.remoting.operations.route import (
    QUERY_DATA_VERSION,
    DataVersion,
    QueryDataVersionRequest,
    RegisterBrokerRequest,
)

DELETES: Final = "deleteTopicWithBrokerRegistration"
_NOT_CARRIED_OUT: Final = (ResponseCode.RPC_SEND_TO_CHANNEL_FAILED, ResponseCode.SYSTEM_BUSY)


class SplitCheck:
    """The answers of the name servers, kept until their connections are lost."""

    def __init__(self, client: RemotingClient) -> None:
        self._client = client
        self._refusals: dict[str, str] = {}

    @property
    def problem(self) -> str:
        """Which name servers accept no parts, and why; empty: none is known."""
        return "; ".join(refusal for refusal in self._refusals.values() if refusal)

    def forget(self, address: str) -> None:
        """Asks this name server again before the next parts: it may have other settings."""
        self._refusals.pop(address, None)

    async def refusal(self, address: str, broker: RegisterBrokerRequest, *, timeout_ms: int) -> str:
        """Returns why the broker must not register in parts; empty: it may. A name server that refuses to
        return its setting has the default, which allows it. One that does not answer is asked again."""
        known = self._refusals.get(address)
        if known is not None:
            return known
        request = QueryDataVersionRequest(
            broker_name=broker.broker_name,
            broker_addr=broker.broker_addr,
            cluster_name=broker.cluster_name,
            broker_id=broker.broker_id,
            asks_for_parts=True,
        )
        outcome = await self._client.call(
            address, QUERY_DATA_VERSION, request, DataVersion(), timeout_ms=timeout_ms
        )
        if silence := _no_answer(address, outcome):
            return silence
        if isinstance(outcome, Ok) and outcome.header.takes_parts:
            self._refusals[address] = ""
            return ""
        settings = await self._client.call(address, GET_NAMESRV_CONFIG, Empty(), timeout_ms=timeout_ms)
        if silence := _no_answer(address, settings):
            return silence
        lines = bytes(settings.body or b"").splitlines() if isinstance(settings, Ok) else []
        deletes = f"{DELETES}=true".encode() in lines
        self._refusals[address] = (
            f"name server {address} would remove the topics of all other parts ({DELETES}=true)"
            if deletes
            else ""
        )
        return self._refusals[address]


def _no_answer(address: str, outcome: Outcome[Any]) -> str:
    """Returns why the setting is unknown: the name server was not reached, is slow or is busy; empty: it
    answered. Its answer to the registration itself does not count: it may be fast again by then."""
    if isinstance(outcome, Ok) or not (isinstance(outcome, Unknown) or outcome.code in _NOT_CARRIED_OUT):
        return ""
    return f"name server {address} does not tell whether it takes topics in parts: {in_short(outcome)}"
