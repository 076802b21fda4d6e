"""What the console does not do: ask other machines, take passwords in clear text, sign other routes."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import pytest

from keelmq.client.admin import AdminClient
from keelmq.console.access import COOKIE, ConsoleAccess
from keelmq.console.actions.action import Acting
from keelmq.console.actions.containers import ADD_BROKER, REMOVE_BROKER, AddBroker, RemoveBroker
from keelmq.console.data.times import Budget
from keelmq.console.details import Details
from keelmq.console.examples import STATUS
from keelmq.console.poller import ClusterPoller
from keelmq.console.verifiers import ClusterVerifier
from keelmq.remoting.servers.http_access import Forbidden
from keelmq.remoting.servers.http_answers import NotFound
from keelmq.runtime.clock import now_ms

FOREIGN = "192.0.2.7:10811"


@dataclass(frozen=True)
class Far:
    """A browser on another machine, without TLS."""

    address: str
    connection_id: int = 0
    is_tls: bool = False


class Nobody:
    """An AdminClient and a poller that must not be asked."""

    async def ask(self, address: str, question: Callable[..., Awaitable[Any]]) -> Any:
        raise AssertionError(f"asked {address}")

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"asked for {name}")


async def test_a_container_on_another_machine_is_not_asked() -> None:
    acting = Acting(cast(AdminClient, Nobody()), status=STATUS)
    with pytest.raises(NotFound, match="no machine of this cluster"):
        await ADD_BROKER.run(acting, AddBroker(container=FOREIGN, config_path="/b.conf"))
    wanted = RemoveBroker(container=FOREIGN, cluster="C", broker_name="b", broker_id=1)
    with pytest.raises(NotFound, match="no machine of this cluster"):
        await REMOVE_BROKER.run(acting, wanted)
    with pytest.raises(NotFound, match="no machine of this cluster"):
        await Details(cast(ClusterPoller, Nobody())).containers(STATUS, [FOREIGN])


@pytest.mark.parametrize("address", ["10.0.0.9:4000", "[2001:db8::1]:4000"])
async def test_a_password_in_the_clear_is_not_checked(address: str) -> None:
    async def brokers() -> Sequence[str]:
        raise AssertionError("asked for brokers")

    with pytest.raises(Forbidden, match="over TLS and from this machine only"):
        await ClusterVerifier(brokers).verify("alice", "a long one", Far(address))


def test_a_cookie_is_for_the_routes_of_the_console_only() -> None:
    access = ConsoleAccess(ClusterVerifier(lambda: pytest.fail("asked")), as_password=True)
    access.sessions.begin("an-id", "alice", "secret", now_ms())
    cookie = f"{COOKIE}=an-id"
    assert (access.authorization_of("/v1/console/status", cookie) or "").startswith("Basic ")
    assert access.authorization_of("/v1/groups", cookie) is None
    assert access.authorization_of("/v1/console/status", f"{COOKIE}=another") is None


def test_a_search_ends_at_its_bytes_and_at_its_time() -> None:
    now = now_ms()
    assert Budget(now + 60_000).why_over == ""
    assert "64 MiB" in Budget(now + 60_000, bytes_left=0).why_over
    assert "8 s" in Budget(now).why_over
