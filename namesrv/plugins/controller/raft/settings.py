"""Checks RaftSettings, and makes the LinkSettings from them."""

from collections.abc import Callable

from keelmq.remoting.addresses import is_loopback
from keelmq.runtime.config import ConfigError
from namesrv.plugins.controller.raft.api import RaftSettings
from namesrv.plugins.controller.raft.transport.addresses import AddressBook, listen_host, resolve
from namesrv.plugins.controller.raft.transport.certificates import Certificates
from namesrv.plugins.controller.raft.transport.channel import (
    SECRET_BYTES_MIN,
    Channel,
    KeyChannel,
    PlainChannel,
)
from namesrv.plugins.controller.raft.transport.link import LinkSettings


def check_settings(settings: RaftSettings) -> None:
    """Raises ConfigError: settings contradict each other, or would not be safe."""
    if settings.self_id not in settings.members:
        raise ConfigError(f"raft member {settings.self_id!r} is not in {sorted(settings.members)}")
    if (
        settings.election_min_s <= 3 * settings.heartbeat_s
        or settings.election_max_s <= settings.election_min_s
    ):
        raise ConfigError("raft timers: 3 x heartbeat < election minimum < election maximum")
    if settings.connection_timeout_s < settings.election_max_s:
        raise ConfigError("raft timers: connection timeout must not be below the election maximum")
    if len(settings.members) == 1:
        return
    if settings.tls is not None:
        if settings.secret is not None:
            raise ConfigError("raft has a shared secret and certificates: configure only one of them")
    elif settings.secret is not None:
        if len(settings.secret) < SECRET_BYTES_MIN:
            raise ConfigError(
                f"the raft secret needs at least {SECRET_BYTES_MIN} bytes, it has {len(settings.secret)}"
            )
    elif not settings.insecure:
        raise ConfigError("raft between members needs a shared secret, or certificates")
    elif not all(is_loopback(host) for host, _ in settings.members.values()):
        raise ConfigError("raft without a secret is possible only when every member is on a loopback address")
    elif settings.listen_host is not None and not is_loopback(settings.listen_host):
        raise ConfigError("raft without a secret listens on a loopback address only")


def link_settings(
    settings: RaftSettings, certificates: Certificates | None, book: AddressBook, now: Callable[[], float]
) -> LinkSettings:
    """Returns the settings of the links. `certificates` None: a shared key, or no authentication."""
    host, port = settings.members[settings.self_id]

    def channel(dialed: bool) -> Channel:
        if certificates is not None:
            return certificates.channel(dialed)
        if settings.secret is None:
            return PlainChannel()
        return KeyChannel(settings.secret, settings.cluster_id, dialed=dialed)

    return LinkSettings(
        self_id=settings.self_id,
        members=frozenset(settings.members),
        cluster_id=settings.cluster_id,
        listen=resolve(settings.listen_host or listen_host(host), port),
        connection_timeout_s=settings.connection_timeout_s,
        retry_s=settings.connection_retry_s,
        channel=channel,
        lookup=book.lookup,
        learn=book.learn,
        accept_unlisted=settings.secret is not None or certificates is not None,
        now=now,
    )
