"""GrpcSettings: the port for RocketMQ 5's own clients (gRPC) and its limits. A part of BrokerConfig and of
mqproxy's configuration.

Source: RocketMQ 5.5 ProxyConfig.
"""

from pydantic import Field

from keelmq.runtime.config import Config


class GrpcSettings(Config):
    """Names are RocketMQ's keys for its proxy; the description has the unit."""

    grpc_server_port: int = Field(
        8081, ge=0, le=65_535, description="port for RocketMQ 5's own clients (gRPC); 0: any free one"
    )
    grpc_max_inbound_message_size: int = Field(
        8_388_608,
        ge=65_536,
        le=2**31 - 1,
        description="bytes of one request of gRPC, which may be a batch of messages; RocketMQ: 136314880",
    )
    grpc_max_concurrent_calls_per_connection: int = Field(
        10_000, ge=1, le=2**31 - 1, description="calls at once on one connection; RocketMQ: no limit"
    )
    grpc_max_concurrent_calls_per_address: int = Field(
        10_000,
        ge=1,
        le=2**31 - 1,
        description="the same of one remote address (of IPv6: of one /64 network); more are refused "
        "(TOO_MANY_REQUESTS) (ours)",
    )
    grpc_max_concurrent_calls: int = Field(
        20_000,
        ge=1,
        le=2**31 - 1,
        description="calls at once on all connections: each consumer has one that waits for messages, and "
        "each client its stream; more are refused (RESOURCE_EXHAUSTED) (ours)",
    )
    grpc_client_consumer_min_long_polling_timeout_millis: int = Field(
        5_000, ge=0, description="ms that a receive without messages waits at least"
    )
    grpc_client_consumer_max_long_polling_timeout_millis: int = Field(
        20_000, ge=1, le=120_000, description="the same, at most"
    )
    default_invisible_time_mills: int = Field(
        60_000,
        ge=10_000,
        le=10_800_000,
        description="ms for which messages of a push consumer stay invisible after its last sign of life (it "
        "sends one every 5 s); 3 h in all at most",
    )
    user_property_max_num: int = Field(128, ge=0, description="properties of a message of gRPC")
    max_user_property_size: int = Field(
        16_384, ge=0, le=32_767, description="bytes of a message's properties, tag and keys together"
    )
    max_message_group_size: int = Field(
        64, ge=2, description="a message group is shorter than this many bytes"
    )
    max_delay_time_mills: int = Field(
        86_400_000, ge=0, description="ms until the delivery of a delayed message of gRPC, at most"
    )
