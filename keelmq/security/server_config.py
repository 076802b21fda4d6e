"""ServerConfig: the keys of TLS, security and audit together, for every program with ports."""

from keelmq.security.audit.settings import AuditConfig
from keelmq.security.open_network import OpenNetworkConfig


class ServerConfig(OpenNetworkConfig, AuditConfig):
    """Base of the configurations of brokers and name servers."""
