"""ConsoleSources: the cluster that a console shows, and what it asks with."""

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from keelmq.runtime.tls.contexts import Tls
from keelmq.security.signer import Credentials

POLL_MS = 2_000
TIMEOUT_MS = 1_500
"""Time limit of one request of a poll. A poll asks in rounds, so it may take several times as long."""


class ConsoleSources(msgspec.Struct, frozen=True):
    """`name_servers`, `controllers`: called before each poll. `finds_others`: also the name servers that the
    brokers list. `credentials`: of the program, for reading only; they never sign an action. `http`: TCP
    address -> HTTP address, where it is known. `audit_directory`: of this program's audit log."""

    name_servers: Callable[[], tuple[str, ...]]
    controllers: Callable[[], tuple[str, ...]] = tuple
    finds_others: bool = False
    credentials: Credentials | None = None
    tls: Tls = False
    http: Mapping[str, str] = msgspec.field(default_factory=dict)
    poll_ms: int = POLL_MS
    timeout_ms: int = TIMEOUT_MS
    read_only: bool = False
    audit_directory: Callable[[], Path | None] = lambda: None
