"""ServerTls and ClientTls: the ssl.SSLContexts of one program, for its ports and for its own connections.

`context` is the newest one that works; new connections take it, and open ones keep theirs.
"""

import asyncio
import logging
import ssl
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final, Literal, NamedTuple, Protocol, Self

from pydantic import SecretStr

from keelmq.runtime.config import ConfigError
from keelmq.runtime.log_context import in_context
from keelmq.runtime.tls.files import CertificateFiles, FollowedFiles, Names, key_names
from keelmq.runtime.tls.self_signed import SelfSigned, load_self_signed

logger = logging.getLogger(__name__)

Mode = Literal["disabled", "permissive", "enforcing"]
ClientAuth = Literal["none", "optional", "require"]

_VERIFY: Final[dict[str, ssl.VerifyMode]] = {
    "none": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,
    "require": ssl.CERT_REQUIRED,
}
IN_PYTHON: Final = Names(*(f"TlsSettings.{name}" for name in ("certificate", "key", "password", "ca")))


class PortTls(Protocol):
    """What one port needs of the program's TLS."""

    @property
    def mode(self) -> Mode: ...

    @property
    def accepts_tls(self) -> bool: ...

    @property
    def is_made(self) -> bool: ...

    @property
    def context(self) -> ssl.SSLContext: ...

    @property
    def counts(self) -> dict[str, Counter[str]]: ...

    def make_soon(self, made: Callable[[str | None], None]) -> None: ...


class _PortContexts(NamedTuple):
    """`http`: never requires a certificate, as orchestrators that probe that port have none. `grpc`: clients
    of gRPC end a connection whose server does not choose HTTP/2 (ALPN)."""

    context: ssl.SSLContext
    http: ssl.SSLContext
    grpc: ssl.SSLContext


class _ClientContexts(NamedTuple):
    """`http`: another one, because the HTTP client announces HTTP in it (ALPN)."""

    context: ssl.SSLContext
    http: ssl.SSLContext


class ServerTls:
    """What the remoting ports of one program share. The constructor raises ConfigError."""

    def __init__(
        self,
        mode: Mode,
        files: CertificateFiles | None = None,
        *,
        client_auth: ClientAuth = "none",
        self_signed: bool = False,
        http_mode: Mode | None = None,
        listeners_mode: Mode | None = None,
    ) -> None:
        """`self_signed`: without a certificate, make one for the first TLS client. `http_mode`: of the HTTP
        port, `listeners_mode`: of listeners but `internal`; None: as `mode`."""
        self.mode: Mode = mode
        self.files = files or CertificateFiles(key_names("tls.server"))
        self.counts: dict[str, Counter[str]] = {}
        """Outcomes of the connections of each TlsPort, by its name."""
        self._client_auth = client_auth
        self._followed: FollowedFiles[_PortContexts] | None = None
        self._self_signed: _PortContexts | None = None
        self._waiting: list[Callable[[str | None], None]] = []
        self._making: asyncio.Task[None] | None = None
        self._may_self_sign = self_signed
        self.http = OtherPortTls(self, http_mode or mode, lambda contexts: contexts.http)
        self.grpc = OtherPortTls(self, mode, lambda contexts: contexts.grpc)
        self.listeners = OtherPortTls(self, listeners_mode or mode, lambda contexts: contexts.context)
        self.files.check()
        modes = {self.mode, self.http.mode, self.listeners.mode}
        if modes != {"disabled"} and self.files.certificate is not None:
            self._followed = FollowedFiles(self.files, self._new_contexts, "TLS of our ports")
        elif "enforcing" in modes:
            logger.warning(
                "TLS is enforced with a self-signed certificate (tls.test.mode.enable): clients cannot "
                "verify this server; set tls.server.certPath and tls.server.keyPath"
            )

    @property
    def can_serve(self) -> bool:
        """Whether there is, or will be, a certificate."""
        return self._followed is not None or self._may_self_sign

    @property
    def accepts_tls(self) -> bool:
        return self.mode != "disabled" and self.can_serve

    @property
    def is_made(self) -> bool:
        """Whether `context` is there now."""
        return self._followed is not None or self._self_signed is not None

    @property
    def contexts(self) -> _PortContexts:
        """AssertionError: see is_made."""
        if self._followed is not None:
            return self._followed.made
        assert self._self_signed is not None, "no certificate was made yet: make_soon()"
        return self._self_signed

    @property
    def context(self) -> ssl.SSLContext:
        """For new connections, of asyncio or of a thread."""
        return self.contexts.context

    @property
    def expires(self) -> datetime | None:
        """None: no certificate of the operator's."""
        return None if self._followed is None else self._followed.expires

    @property
    def fault(self) -> str | None:
        """Why the files as they are now are not in use."""
        return None if self._followed is None else self._followed.fault

    def check(self) -> bool:
        return self._followed is not None and self._followed.check()

    async def run(self) -> None:
        """The task of one program, for all its ports: follows the files. Returns if there are none."""
        if self._followed is not None:
            await self._followed.run()

    def make_soon(self, made: Callable[[str | None], None]) -> None:
        """Makes the self-signed certificate in a thread; made() gets None then, or the problem, in its
        caller's context. The library is imported here: a program without TLS clients does not pay for it."""
        self._waiting.append(in_context(made))
        if self._making is None:
            self._making = asyncio.get_running_loop().create_task(self._make())

    async def _make(self) -> None:
        problem: str | None = None
        try:
            signed = await asyncio.to_thread(SelfSigned.make)
            found = self._new_contexts()
            for context in set(found):
                load_self_signed(context, signed)
            self._self_signed = found
            logger.info("a self-signed certificate was made for TLS clients (tls.test.mode.enable)")
        except (ImportError, OSError, ssl.SSLError) as error:
            problem = f"no self-signed certificate could be made: {error}"
        finally:
            self._making = None
            waiting, self._waiting = self._waiting, []
            for made in waiting:
                made(problem)

    def _new_contexts(self) -> _PortContexts:
        strict, grpc = self._new_context(self._client_auth), self._new_context(self._client_auth)
        grpc.set_alpn_protocols(["h2"])
        http = self._new_context("optional") if self._client_auth == "require" else strict
        return _PortContexts(strict, http, grpc)

    def _new_context(self, client_auth: ClientAuth) -> ssl.SSLContext:
        context = _bare(ssl.PROTOCOL_TLS_SERVER)
        context.num_tickets = 0  # nothing is resumed: a CA that was taken away holds for every connection
        context.options |= ssl.OP_NO_TICKET
        context.verify_mode = _VERIFY[client_auth]
        self.files.load_into(context)
        return context


class OtherPortTls:
    """The same certificate, for a port of the program with another mode, or another protocol."""

    def __init__(self, of: ServerTls, mode: Mode, choose: Callable[[_PortContexts], ssl.SSLContext]) -> None:
        self.mode: Mode = mode
        self._of, self._choose = of, choose

    @property
    def accepts_tls(self) -> bool:
        return self.mode != "disabled" and self._of.can_serve

    @property
    def is_made(self) -> bool:
        return self._of.is_made

    @property
    def context(self) -> ssl.SSLContext:
        return self._choose(self._of.contexts)

    @property
    def counts(self) -> dict[str, Counter[str]]:
        return self._of.counts

    def make_soon(self, made: Callable[[str | None], None]) -> None:
        self._of.make_soon(made)


class ClientTls:
    """For connections that this program opens. The constructor raises ConfigError."""

    def __init__(
        self, files: CertificateFiles | None = None, *, verify: bool = False, verify_hostname: bool = False
    ) -> None:
        """`verify`: the server's certificate, with files.trust or else with the system's CAs."""
        self.files = files or CertificateFiles(key_names("tls.client"))
        self.verifies, self.verifies_hostname = verify, verify_hostname
        if verify_hostname and not verify:
            raise ConfigError(
                "a host name can be verified only if the certificate is verified: set "
                f"{self.files.names.trust}, or tls.client.authServer=true for the CAs of this system"
            )
        self._followed = FollowedFiles(
            self.files,
            lambda: _ClientContexts(self._new_context(), self._new_context()),
            "TLS of our connections",
        )

    @classmethod
    def of(cls, given: "Tls") -> Self | None:
        """What applications write. ConfigError."""
        if isinstance(given, cls):
            return given
        if isinstance(given, TlsSettings):
            return cls(
                given.files(),
                verify=given.ca is not None or given.verify_hostname,
                verify_hostname=given.verify_hostname,
            )
        return cls() if given else None

    @property
    def context(self) -> ssl.SSLContext:
        """For new connections."""
        return self._followed.made.context

    @property
    def http_context(self) -> ssl.SSLContext:
        """For HTTP requests."""
        return self._followed.made.http

    @property
    def expires(self) -> datetime | None:
        return self._followed.expires

    @property
    def fault(self) -> str | None:
        return self._followed.fault

    def check(self) -> bool:
        return self._followed.check()

    async def refresh(self) -> None:
        """Before a connection is opened: takes files that have changed. They are read each RELOAD_PERIOD_S
        at most, in a thread."""
        if self.files.named() and self._followed.is_due():
            await asyncio.to_thread(self._followed.check)

    def explain(self, problem: str) -> str:
        """Returns an error of a handshake with what to do about it."""
        for words, remedy in _REMEDIES:
            if words in problem:
                return remedy.format(
                    problem=problem, certificate=self.files.names.certificate, trust=self._trust()
                )
        return f"TLS handshake failed: {problem}"

    def _trust(self) -> str:
        if self.files.trust is not None:
            return f"{self.files.names.trust} {self.files.trust}"
        return "the CAs of this system"

    def _new_context(self) -> ssl.SSLContext:
        context = _bare(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = self.verifies_hostname
        context.verify_mode = ssl.CERT_REQUIRED if self.verifies else ssl.CERT_NONE
        if self.verifies and self.files.trust is None:
            context.load_default_certs()
        self.files.load_into(context)
        return context


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """TLS of a client in an application. `ca`: verify the servers' certificates with it; without it they are
    encrypted, but not verified. `certificate`, `key`, `password`: what the client shows. `verify_hostname`:
    the certificate must have the host that is connected to."""

    ca: Path | str | None = None
    certificate: Path | str | None = None
    key: Path | str | None = None
    password: str | None = field(default=None, repr=False)
    verify_hostname: bool = False
    names: Names = IN_PYTHON

    def files(self) -> CertificateFiles:
        password = None if self.password is None else SecretStr(self.password)
        return CertificateFiles(
            self.names, _path(self.certificate), _path(self.key), password, _path(self.ca)
        )


Tls = bool | TlsSettings | ClientTls | None
"""What applications write. True: connections are encrypted, but servers are not verified."""


def _path(given: Path | str | None) -> Path | None:
    return None if given is None else Path(given).expanduser()


_REMEDIES: Final = (
    ("self-signed certificate", "the server's certificate is not signed by {trust}: use its CA ({problem})"),
    (
        "unable to get local issuer",
        "the server's certificate is not signed by {trust}: use its CA ({problem})",
    ),
    ("has expired", "the server's certificate has expired: renew it there ({problem})"),
    ("not yet valid", "the server's certificate is not valid yet: are both clocks right? ({problem})"),
    ("ostname mismatch", "the server's certificate is for another host: use a name that it has ({problem})"),
    (
        "IP address mismatch",
        "the server's certificate is for another host: use a name that it has ({problem})",
    ),
    ("wrong version number", "the server does not speak TLS on this port (tls.server.mode=disabled?)"),
    ("certificate required", "the server requires a certificate of this client: {certificate} ({problem})"),
    ("unknown ca", "the server does not know the CA of our certificate, {certificate} ({problem})"),
    ("handshake failure", "the server refuses us; it may require a certificate: {certificate} ({problem})"),
    ("closed the connection", "the server ends TLS handshakes (tls.server.mode=disabled?)"),
    ("was lost", "the server ends TLS handshakes (tls.server.mode=disabled?)"),
)


def _bare(protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.check_hostname = False
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    return context
