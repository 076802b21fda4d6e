"""LimitsConfig: what one address, and peers that have not authenticated, may use of a program's remoting
ports; for brokers, name servers and controllers. The limits themselves are in peer_limits.py."""

import resource
from typing import Final

from pydantic import Field

from keelmq.remoting.frame import FRAME_BYTES_MAX
from keelmq.remoting.peer_limits import Limits, PeerLimits
from keelmq.remoting.servers.tcp import CONNECTIONS_MAX, LARGE_BYTES_MAX
from keelmq.runtime.config import Config

FILES_SHARE: Final = 0.75
"""Share of the open files that the system allows; the others are for the store, for logs and for connections
to other programs."""
SMALL_BYTES_MAX: Final = 67_108_864
"""Bytes of unfinished frames beyond those that large ones may hold: a thousand frames that are almost
large."""


class LimitsConfig(Config):
    """Base of the configuration of every program with remoting ports."""

    max_connections: int = Field(
        0,
        ge=0,
        description="connections of all remoting ports together; 0: three quarters of the limit of open "
        f"files, at most {CONNECTIONS_MAX}. Above it the oldest connection that has not authenticated is "
        "closed, and without one the new connection (ours)",
    )
    max_connections_per_address: int = Field(
        2_000,
        ge=0,
        description="the same of one remote address (of IPv6: of one /64 network); 0: no limit. Raise it "
        "where many clients come through one proxy or NAT (ours)",
    )
    unauthenticated_requests_per_second: int = Field(
        1_000,
        ge=0,
        description="requests of one address on connections none of whose requests has passed "
        "authentication, and TLS handshakes of it, twice as many at once; 0: no limit; without "
        "authentication only handshakes count (ours)",
    )
    unauthenticated_frame_bytes_per_address: int = Field(
        FRAME_BYTES_MAX + 4_194_304,
        ge=0,
        description="bytes of frames that have not ended, of one address on such connections: the default "
        "has room for one largest frame, as a broker's registration may be; 0: no limit (ours)",
    )
    unauthenticated_frame_bytes: int = Field(
        67_108_864, ge=65_536, description="the same of all addresses together (ours)"
    )
    frame_timeout_millis: int = Field(
        30_000, ge=0, description="ms within which a frame that has begun must end; 0: no limit (ours)"
    )
    frame_bytes_per_second: int = Field(
        8_192,
        ge=1,
        description="a frame gets another second for each of these many bytes of it that have come (ours)",
    )

    def peer_limits(self) -> PeerLimits:
        """Returns new PeerLimits, for all remoting ports of a program."""
        return PeerLimits(self.limits())

    def limits(self) -> Limits:
        """Returns the limits that these settings mean on this machine."""
        return Limits(
            connections=self.max_connections or connections_max(),
            connections_per_address=self.max_connections_per_address,
            unauthenticated_requests_per_s=self.unauthenticated_requests_per_second,
            unauthenticated_bytes_per_address=self.unauthenticated_frame_bytes_per_address,
            unauthenticated_bytes=self.unauthenticated_frame_bytes,
            partial_bytes=LARGE_BYTES_MAX + SMALL_BYTES_MAX,
            frame_timeout_s=self.frame_timeout_millis / 1_000,
            frame_bytes_per_s=self.frame_bytes_per_second,
        )


LIMIT_KEYS: Final = frozenset(field.alias or name for name, field in LimitsConfig.model_fields.items())


def connections_max() -> int:
    """Returns how many connections the limit of open files leaves room for, at most CONNECTIONS_MAX."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return CONNECTIONS_MAX
    return max(1, min(CONNECTIONS_MAX, int(files * FILES_SHARE)))
