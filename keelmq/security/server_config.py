"""ServerConfig: the keys of TLS, security, audit, HTTP and limits together, for every program with ports."""

from keelmq.remoting.servers.http_settings import HttpConfig
from keelmq.remoting.servers.limits import LimitsConfig
from keelmq.security.audit.settings import AuditConfig
from keelmq.security.open_network import OpenNetworkConfig


class ServerConfig(OpenNetworkConfig, AuditConfig, HttpConfig, LimitsConfig):
    """Base of the configurations of brokers and name servers."""
