"""HttpConfig: the http* keys that all programs share, and HttpPolicy: which requests their port accepts.

Imports no FastAPI.
"""

import re
from pathlib import Path

import msgspec
from pydantic import Field, field_validator

from keelmq.remoting.servers.http_access import HttpAccess, Sessions
from keelmq.remoting.servers.http_hosts import AllowedHosts, host_of
from keelmq.runtime.config import Config, home_path


class HttpConfig(Config):
    """Base of the configuration of every program with an HTTP port. The port itself is httpPort."""

    http_bind_address: str = Field(
        "", description="address that the HTTP port binds, such as 127.0.0.1; empty: bindAddress (ours)"
    )
    http_allowed_hosts: str = Field(
        "",
        description="names under which browsers, and programs that change something, may address the HTTP "
        "port, besides IP addresses, localhost and the names of this machine: of a Kubernetes service, of a "
        "reverse proxy; separated by commas, *.example.org for all below a domain, * for any (ours)",
    )
    http_allowed_origins: str = Field(
        "",
        description="origins of web pages that may change something over HTTP, besides pages of this port: "
        "https://console.example.org; separated by commas (ours)",
    )
    http_read_only: bool = Field(False, description="refuse every HTTP request that changes something (ours)")
    http_tokens_file: Path | None = Field(
        None,
        description="tokens for HTTP, a line for each: ROLE NAME sha256:HEX, the role read, operate or "
        "administer; with it every HTTP request needs a token or a user's password (ours)",
    )
    http_metrics_open: bool = Field(
        True, description="/metrics needs no credentials; /livez and /readyz never do (ours)"
    )
    http_basic_over_plain: bool = Field(
        False,
        description="take passwords over HTTP without TLS from other machines, too: anybody on the way can "
        "read them (ours)",
    )

    @field_validator("http_tokens_file")
    @classmethod
    def _expand_tokens_file(cls, path: Path | None) -> Path | None:
        return home_path(path)

    @field_validator("http_allowed_hosts")
    @classmethod
    def _are_hosts(cls, text: str) -> str:
        for each in _listed(text):
            if each != "*" and host_of(each.removeprefix("*.").encode()) != each.removeprefix("*.").lower():
                raise ValueError(f"{each!r} is not a host name: no scheme, no port, no path")
        return text

    @field_validator("http_allowed_origins")
    @classmethod
    def _are_origins(cls, text: str) -> str:
        for each in _listed(text):
            if not re.fullmatch(r"https?://[^/?#@\s]+", each):
                raise ValueError(
                    f"{each!r} is not an origin: scheme://host or scheme://host:port, and no path"
                )
        return text


class HttpPolicy(msgspec.Struct, frozen=True):
    """Which requests an HTTP port accepts. `origins`: of pages besides its own, in lower case. `access` None:
    anyone may send them. `sessions`: of a page with a log-in."""

    hosts: AllowedHosts = msgspec.field(default_factory=AllowedHosts)
    origins: frozenset[str] = frozenset()
    read_only: bool = False
    metrics_open: bool = True
    access: HttpAccess | None = None
    sessions: Sessions | None = None


def http_policy(config: HttpConfig, *names: str, access: HttpAccess | None = None) -> HttpPolicy:
    """Returns the policy of a program's HTTP port. `names`: hosts that the program binds or announces."""
    return HttpPolicy(
        hosts=AllowedHosts((*names, *_listed(config.http_allowed_hosts))),
        origins=frozenset(each.lower() for each in _listed(config.http_allowed_origins)),
        read_only=config.http_read_only,
        metrics_open=config.http_metrics_open,
        access=access,
    )


def _listed(text: str) -> list[str]:
    return [each for each in re.split(r"[,;\s]+", text) if each]
