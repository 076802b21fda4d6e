"""HaLinkSettings: the links between a master and its slaves. HaSecuritySettings: who may replicate from this
broker, and TLS of HA links; all keys of it are ours."""

from typing import Literal

from pydantic import Field, field_validator

from keelmq.runtime.config import Config
from keelmq.security.core.address_patterns import AddressPattern, parse_pattern


class HaLinkSettings(Config):
    """Base of BrokerConfig."""

    ha_send_heartbeat_interval: int = Field(
        1_000,
        gt=0,
        description="ms of silence before one; below haHousekeepingInterval; in controller mode KeelMQ's "
        "brokers send one another something every 150 ms if this is more; RocketMQ: 5000",
    )
    ha_housekeeping_interval: int = Field(20_000, gt=0, description="ms of silence that close a link")
    ha_transfer_batch_size: int = Field(131_072, ge=4_096, le=1_048_576, description="bytes per HA packet")
    ha_flow_control_enable: bool = Field(
        False, description="limit what a master sends to each slave: maxHaTransferByteInSecond"
    )
    max_ha_transfer_byte_in_second: int = Field(
        104_857_600,
        ge=65_536,
        description="bytes per second to one slave: always, with haFlowControlEnable (below what producers "
        "write, a slave leaves the SyncStateSet and never returns); without it only to one that is far "
        "behind while producers write, less on a busy machine, but always more than they write",
    )
    ha_catch_up_threads: int = Field(
        4,
        ge=0,
        le=64,
        description="slaves that are far behind and served by threads (sendfile) at the same time; 0: the "
        "event loop serves them all, packet by packet",
    )
    ha_stay_awake: bool = Field(
        True,
        description="while one message waits for its replicas, the master does not sleep for some 250 us: "
        "their acks find it awake. false: where CPU time is counted, and a fast answer is not needed",
    )


class HaSecuritySettings(Config):
    """Base of BrokerConfig."""

    ha_authentication_required: bool | None = Field(
        None,
        description="a slave must prove its membership with innerClientAuthenticationCredentials before it "
        "gets anything, or with a certificate of memberCertificateNames (default: true if one of them is "
        "set); false while they are introduced (ours)",
    )
    ha_plain_slaves: str = Field(
        "",
        description="addresses of slaves that need not prove their membership, as those of RocketMQ cannot; "
        "patterns as in plain_acl.yml, separated by semicolons (ours)",
    )
    ha_plain_master: bool | None = Field(
        None,
        description="this slave follows a master that cannot prove its membership, as those of RocketMQ "
        "(default: false if innerClientAuthenticationCredentials are set; ours)",
    )
    ha_tls_mode: Literal["disabled", "permissive", "enforcing"] = Field(
        "disabled",
        description="what the replication port serves: disabled (plain only), permissive (plain and TLS), "
        "enforcing (TLS only), with the certificate of tls.server.*; RocketMQ's slaves are always plain "
        "(ours)",
    )
    ha_tls_enable: bool = Field(
        False, description="this slave connects to its master with TLS, by the keys tls.client.* (ours)"
    )

    @field_validator("ha_plain_slaves")
    @classmethod
    def _patterns(cls, text: str) -> str:
        plain_slaves_of(text)
        return text

    @property
    def plain_slaves(self) -> tuple[AddressPattern, ...]:
        """The patterns of haPlainSlaves."""
        return plain_slaves_of(self.ha_plain_slaves)


def plain_slaves_of(text: str) -> tuple[AddressPattern, ...]:
    """Returns the patterns. Raises BadAddressPattern, a ValueError."""
    return tuple(parse_pattern(part) for part in text.split(";") if part.strip())
