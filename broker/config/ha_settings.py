"""HaSecuritySettings: who may replicate from this broker, and TLS of HA links. All keys are ours."""

from typing import Literal

from pydantic import Field, field_validator

from keelmq.runtime.config import Config
from keelmq.security.core.address_patterns import AddressPattern, parse_pattern


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
