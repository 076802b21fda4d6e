"""A cluster of the lab with all security on: TLS in every direction, users and ACLs, members that
authenticate each other."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cli.credentials import read_credentials
from cli.init_security import SecurityOptions, create
from cli.security_files import ADMIN, CREDENTIALS
from keelmq.remoting.client import connect_with, sign_with
from keelmq.runtime.tls.contexts import ClientTls, TlsSettings
from keelmq.security.signer import signer_of

SECURITY = "security"
HOSTS = ("127.0.0.1", "localhost")


@contextmanager
def secured(
    directory: Path, cluster_name: str, *, wanted: bool = True, hosts: tuple[str, ...] = HOSTS
) -> Iterator[dict[str, str]]:
    """Does what `keelmq init-security` does, and yields the settings of every program. Clients that this
    process makes within the block are the administrator's. hosts: addresses of the servers. Without `wanted`
    it does nothing."""
    if not wanted:
        yield {}
        return
    security = directory / SECURITY
    create(security, SecurityOptions(cluster_name, hosts, together=True))
    found = read_credentials(security / ADMIN / CREDENTIALS)
    connect_with(ClientTls.of(found.tls))
    sign_with(signer_of(found.credentials))
    try:
        yield {"securityPath": str(security)}
    finally:
        connect_with(None)
        sign_with(None)


def application_tls(directory: Path) -> TlsSettings:
    """Returns the TLS of an application: it knows the CA, and has a user but no certificate."""
    return TlsSettings(ca=directory / SECURITY / "ca.crt")


def credentials_path(directory: Path) -> Path:
    """Returns the administrator's credentials file, for tools."""
    return directory / SECURITY / ADMIN / CREDENTIALS
