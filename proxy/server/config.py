"""ProxyConfig: the settings of one mqproxy process. Names are RocketMQ's keys. Source: RocketMQ 5.5
ProxyConfig."""

from typing import ClassVar

from pydantic import Field, field_validator

from broker.config.grpc_settings import GrpcSettings
from keelmq.remoting.address_text import parse_addresses
from keelmq.remoting.config_store import StoredConfig
from keelmq.remoting.servers.http_settings import HttpConfig
from keelmq.remoting.servers.limits import LimitsConfig
from keelmq.security.open_network import OpenNetworkConfig
from keelmq.upstream.keys import PROXY


class ProxyConfig(StoredConfig, GrpcSettings, LimitsConfig, OpenNetworkConfig, HttpConfig):
    """What a proxy needs to know: where the name servers are, and its ports."""

    DEFAULTS: ClassVar[tuple[str, ...]] = (*OpenNetworkConfig.DEFAULTS, "proxy.conf")
    UPSTREAM: ClassVar[frozenset[str]] = PROXY

    namesrv_addr: str = Field("", alias="namesrvAddr", description="name servers, host:port;host:port")
    bind_address: str = Field("0.0.0.0", description="address that all ports bind; ::, IPv4 and IPv6 (ours)")
    http_port: int = Field(
        0,
        ge=-1,
        le=65_535,
        description="port of /livez, /readyz and /metrics; 0: grpcServerPort + 10000, -1: none (ours)",
    )
    proxy_address: str = Field(
        "",
        description="host that is shown to clients which do not say at which address they reach this proxy; "
        "empty: detected (ours)",
    )
    max_message_size: int = Field(
        4_194_304, gt=0, le=16_000_000, description="bytes of one message body, as at the brokers"
    )

    @field_validator("namesrv_addr")
    @classmethod
    def _check_addresses(cls, text: str) -> str:
        if text:
            parse_addresses(text)
        return text
