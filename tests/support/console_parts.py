"""A console without a cluster: a poller that says what a test puts into it, and an application around it."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI

from keelmq.console.access import ConsoleAccess, Verifier
from keelmq.console.actions.action import Action
from keelmq.console.actions_api import actions_router
from keelmq.console.api import console_router
from keelmq.console.console import Console
from keelmq.console.examples import STATUS
from keelmq.console.sources import ConsoleSources
from keelmq.health.status import ClusterStatus, GroupStatus
from keelmq.remoting.operation import Audit
from keelmq.remoting.servers.http_app import new_app


@dataclass
class FakePoller:
    """`status`: the next answer. polls: how often it was asked."""

    status: ClusterStatus = STATUS
    pulse_value: object = None
    polls: int = 0
    is_closed: bool = False
    polled: asyncio.Event = field(default_factory=asyncio.Event)

    async def take(self) -> ClusterStatus:
        self.polls += 1
        self.polled.set()
        return self.status

    async def pulse(self) -> object:
        return self.pulse_value

    async def close(self) -> None:
        self.is_closed = True


def sources(**changed: Any) -> ConsoleSources:
    return ConsoleSources(**{"name_servers": lambda: ("127.0.0.1:9876",), **changed})


def with_group(status: ClusterStatus, **changed: Any) -> ClusterStatus:
    """The status with other values of its first group."""
    first: GroupStatus = status.groups[0].model_copy(update=changed)
    return status.model_copy(update={"groups": [first, *status.groups[1:]]})


def console_app(
    console: Console,
    verifier: Verifier,
    actions: Sequence[Action[Any]] = (),
    *,
    as_password: bool = False,
    audit: Audit | None = None,
) -> tuple[FastAPI, ConsoleAccess]:
    app = new_app("a console")
    access = ConsoleAccess(verifier, as_password=as_password)
    app.include_router(console_router(console, access))
    app.include_router(actions_router(console, access, actions, audit=lambda: audit))
    app.state.sessions = access
    return app, access


def events(lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(event, data) of a stream's lines."""
    name = ""
    for line in lines:
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, line.removeprefix("data: ")
