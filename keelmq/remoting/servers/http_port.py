"""The port of a program's HTTP server, and its listening socket. Imports no FastAPI."""

import socket

from keelmq.remoting.servers.listening import bound_socket
from keelmq.runtime.config import ConfigError, why_refused

HTTP_PORT_DISTANCE = 10_000
HTTP_OFF = -1
PORT_MAX = 65_535
BACKLOG = 1_024


def http_listen_port(http_port: int, *, listen_port: int, bound_port: int) -> int | None:
    """Returns the HTTP port for an httpPort key, by the rule of all programs; None: no HTTP. `listen_port` is
    the configured TCP port, `bound_port` the actual one. If the system chose the TCP port (0), or the result
    would exceed 65535, the system chooses the HTTP port as well."""
    if http_port == HTTP_OFF:
        return None
    if http_port > 0:
        return http_port
    return (
        bound_port + HTTP_PORT_DISTANCE if listen_port and bound_port + HTTP_PORT_DISTANCE <= PORT_MAX else 0
    )


def listening_socket(host: str, port: int) -> socket.socket:
    """Returns a socket that is bound and listening. Raises ConfigError."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        sock = bound_socket(family, host, port)
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"http: cannot listen on {host}:{port}: {why_refused(error)}") from error
    try:
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise ConfigError(f"http: cannot listen on {host}:{port}: {why_refused(error)}") from error
    return sock
