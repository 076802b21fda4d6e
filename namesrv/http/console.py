"""The console of a name server. It queries its own server like the others, over the remoting port. Imported
only when HTTP is enabled: it needs FastAPI.
"""

from keelmq.console.service import ConsoleService
from keelmq.console.sources import ConsoleSources
from keelmq.console.verifiers import PortVerifier
from keelmq.remoting.address_text import bracketed
from keelmq.remoting.servers.http_access import HttpAccess
from namesrv.http.of_server import Served

ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}


def make_console(server: Served, access: HttpAccess | None) -> ConsoleService:
    """Returns the console. It reads what members may read. `access`: the check of the HTTP port, which knows
    the users; None: anyone may see everything."""
    config = server.config

    def itself() -> tuple[str, ...]:
        if server.http_address is None:
            return ()  # not started
        host = config.bind_address
        return (f"{ANY_ADDRESS.get(host, bracketed(host))}:{server.address[1]}",)

    sources = ConsoleSources(
        name_servers=itself,
        finds_others=True,
        credentials=server.security.member,
        tls=server.client_tls or False,
        poll_ms=config.console_poll_mills,
        read_only=config.console_read_only,
        audit_directory=lambda: None if server.audit is None else server.audit.directory,
    )
    verifier = None if access is None else PortVerifier(access)
    return ConsoleService(sources, verifier, audit=lambda: server.audit)
