"""ServerConfig: the keys of TLS, security, audit and HTTP together, for every program with ports."""

from keelmq.remoting.servers.http_settings import HttpConfig
from keelmq.security.audit.settings import AuditConfig
from keelmq.security.open_network import OpenNetworkConfig


class ServerConfig(OpenNetworkConfig, AuditConfig, HttpConfig):
    """Base of the configurations of brokers and name servers."""
