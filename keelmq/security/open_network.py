"""What a program leaves open to anyone who reaches its ports; reported at start and by `keelmq doctor`."""

import logging
from collections.abc import Iterable

from pydantic import Field

from keelmq.remoting.address_text import host_of
from keelmq.remoting.addresses import is_loopback
from keelmq.runtime.tls.settings import TlsConfig, with_file
from keelmq.security.config import SecurityConfig

CLOSE = "`keelmq init-security DIR --cluster NAME --host HOST` and securityPath=DIR close it"


class OpenNetworkConfig(TlsConfig, SecurityConfig):
    """Base of the configuration of every program with ports."""

    allow_open_network: bool = Field(
        False,
        description="no warning at start about ports that are open to other machines: they are meant to be "
        "(ours)",
    )


def openings(config: OpenNetworkConfig) -> list[str]:
    """Returns what anonymous clients can do to a program with these settings; empty: nothing. Raises
    ConfigError: tls.config.file cannot be read."""
    found = []
    if not config.authentication_enabled and not config.acl_enable:
        found.append("requests need no signature, so whoever reaches it can read, send and administer")
    elif not config.authorization_enabled and not config.acl_enable:
        found.append("authorizationEnabled=false, so every user can do everything")
    keys = with_file(config)
    if keys.tls_server_mode == "disabled":
        found.append("there is no TLS (tls.server.mode=disabled)")
    elif keys.tls_server_cert_path is None:
        what = "the certificate is self-signed" if keys.tls_test_mode_enable else "there is no certificate"
        found.append(f"{what}, so TLS clients cannot tell which server they talk to")
    return found


def warn_of_open_ports(
    log: logging.Logger, program: str, config: OpenNetworkConfig, addresses: Iterable[str]
) -> None:
    """Warns in one line if other machines can reach an open port. `addresses`: host:port of what is bound."""
    reached = [each for each in addresses if not is_loopback(host_of(each))]
    found = openings(config) if reached and not config.allow_open_network else []
    if found:
        log.warning(
            "%s is open to other machines at %s: %s; %s, or say that it is meant: allowOpenNetwork=true",
            program,
            ", ".join(reached),
            "; ".join(found),
            CLOSE,
        )
