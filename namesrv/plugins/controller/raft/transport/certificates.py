"""Certificates: reads and checks the certificate files of one member, and reads them again when they change.

Each time a TLS handshake between the member's own two contexts is performed, so a member that its group would
refuse does not start. If changed files are not valid, the reason is logged and the old ones stay in use.
"""

import logging
import ssl
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from keelmq.runtime.config import ConfigError, read_named
from namesrv.plugins.controller.raft.api import TlsFiles
from namesrv.plugins.controller.raft.transport.channel import ChannelError
from namesrv.plugins.controller.raft.transport.tls import TlsChannel

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

logger = logging.getLogger(__name__)

CERT_KEY, KEY_KEY, TRUST_KEY = (
    "controllerRaftTlsCertPath",
    "controllerRaftTlsKeyPath",
    "controllerRaftTlsTrustCertPath",
)
RETRY_S = 5.0  # after invalid files, of which some may not have been written yet
ROUND_TRIPS_MAX = 4  # of the handshake between the two contexts, which needs two
RENEW_DAYS = 30  # days before the expiry from which on it is logged; automatic renewal happens earlier


class CertificateInfo(msgspec.Struct, frozen=True):
    """`names`: DNS names of the certificate. `not_after`: when the certificate or its CA expires, UTC."""

    names: tuple[str, ...]
    not_after: datetime

    def days_left(self, now: datetime) -> float:
        """Returns the days until `not_after`; negative: expired."""
        return (self.not_after - now).total_seconds() / 86_400


class Contexts(msgspec.Struct, frozen=True):
    """TLS contexts made from one version of the files."""

    info: CertificateInfo
    dialer: ssl.SSLContext
    listener: ssl.SSLContext


def read_certificates(files: TlsFiles, member: str) -> Contexts:
    """Reads and checks the files. Raises ConfigError with the file, the fault and what to do."""
    chain = _certificates(CERT_KEY, files.certificate)
    trusted = _certificates(TRUST_KEY, files.trust)
    _check_key(files, chain[0])
    names = _names(chain[0])
    if member not in names:
        has = f"it is for {', '.join(names)}" if names else "it has no DNS name"
        raise ConfigError(
            f"{CERT_KEY} {files.certificate}: subjectAltName lacks DNS:{member}, {has}: "
            f"make one with `keelmq certificates {member}`"
        )
    now = datetime.now(UTC)
    _check_dates(CERT_KEY, files.certificate, chain[:1], now)
    _check_dates(TRUST_KEY, files.trust, trusted, now)
    ends = [chain[0].not_valid_after_utc, max(each.not_valid_after_utc for each in trusted)]
    contexts = Contexts(
        CertificateInfo(names, min(ends)), _context(files, dialed=True), _context(files, dialed=False)
    )
    _check_handshake(files, contexts)
    return contexts


class Certificates:
    """Makes channels with the current files. The constructor raises ConfigError.

    Used in the raft thread and, for status(), in the event loop: both may read the files at the same time.
    """

    def __init__(self, files: TlsFiles, member: str) -> None:
        self._files, self._member = files, member
        self._stamps = self._stat()
        self._contexts = read_certificates(files, member)
        self._retry_at = float("-inf")
        self.fault: str | None = None  # why the current files are not in use
        self._warn_of_expiry()

    @property
    def info(self) -> CertificateInfo:
        """Names and expiry of the certificate in use."""
        return self._contexts.info

    def status(self) -> dict[str, int | str]:
        """Returns `certificateEnds` (seconds since 1970) and `certificateFault` (why newer files are
        unused)."""
        self._refresh()  # so that a renewal is visible before the next connection
        ends: dict[str, int | str] = {"certificateEnds": int(self.info.not_after.timestamp())}
        return ends if self.fault is None else ends | {"certificateFault": self.fault}

    def channel(self, dialed: bool) -> TlsChannel:
        """Returns a TLS channel. `dialed`: this side opened the connection."""
        self._refresh()
        return TlsChannel(self._contexts.dialer if dialed else self._contexts.listener, dialed=dialed)

    def _refresh(self) -> None:
        now = time.monotonic()
        stamps = self._stat()
        if stamps == self._stamps or now < self._retry_at:
            return
        try:
            self._contexts = read_certificates(self._files, self._member)
        except ConfigError as error:
            if str(error) != self.fault:
                logger.error("the raft port keeps its old certificate: %s", error)
            self.fault, self._retry_at = str(error), now + RETRY_S
            return
        self._stamps, self.fault = stamps, None
        logger.info("the raft port has a new certificate, valid until %s", _day(self.info.not_after))
        self._warn_of_expiry()

    def _stat(self) -> tuple[object, ...]:
        """Returns values that change with content or mode of a file, or the target of a link (pod
        secrets)."""
        return tuple(_stamp(path) for path in (self._files.certificate, self._files.key, self._files.trust))

    def _warn_of_expiry(self) -> None:
        days = self.info.days_left(datetime.now(UTC))
        if days < RENEW_DAYS:
            logger.warning(
                "the raft certificate or its CA expires in %.0f days, at %s: renew it, no restart is needed",
                days,
                _day(self.info.not_after),
            )


def _stamp(path: Path) -> object:
    try:
        found = path.stat()
    except OSError as error:
        return error.errno
    return found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_size


def _read(key: str, path: Path) -> bytes:
    try:
        return read_named(path)
    except OSError as error:
        raise ConfigError(f"{key} {path}: {error.strerror}") from error


def _certificates(key: str, path: Path) -> "list[Certificate]":
    # imported here: a member without certificates does not need the library's memory
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.x509 import DuplicateExtension, InvalidVersion, load_pem_x509_certificates

    try:
        found = load_pem_x509_certificates(_read(key, path))
        for each in found:  # parsed lazily: parse now, while an error can name the file
            each.public_key(), each.extensions
        return found
    except (ValueError, UnsupportedAlgorithm, DuplicateExtension, InvalidVersion):
        raise ConfigError(f"{key} {path}: no certificate in PEM form (-----BEGIN CERTIFICATE-----)") from None


def _check_key(files: TlsFiles, certificate: "Certificate") -> None:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    data = _read(KEY_KEY, files.key)
    try:
        public = load_pem_private_key(data, None).public_key()
    except TypeError:
        raise ConfigError(
            f"{KEY_KEY} {files.key}: the key has a password: remove it with "
            f"openssl pkey -in {files.key} -out KEY (and chmod 600 KEY)"
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        raise ConfigError(f"{KEY_KEY} {files.key}: no private key in PEM form") from None
    if public != certificate.public_key():
        raise ConfigError(f"{KEY_KEY} {files.key} does not belong to {CERT_KEY} {files.certificate}")


def _names(certificate: "Certificate") -> tuple[str, ...]:
    from cryptography.x509 import DNSName, ExtensionNotFound, SubjectAlternativeName

    try:
        found = certificate.extensions.get_extension_for_class(SubjectAlternativeName)
    except ExtensionNotFound:
        return ()
    return tuple(found.value.get_values_for_type(DNSName))


def _check_dates(key: str, path: Path, certificates: "Iterable[Certificate]", now: datetime) -> None:
    """Raises ConfigError unless one is valid now: while a CA is replaced, the old one may have expired."""
    faults = []
    for each in certificates:
        if each.not_valid_after_utc < now:
            faults.append(f"expired at {_day(each.not_valid_after_utc)}: make a new one")
        elif each.not_valid_before_utc > now:
            faults.append(f"not valid before {_day(each.not_valid_before_utc)}: is the clock right?")
        else:
            return
    raise ConfigError(f"{key} {path}: {faults[0]}")


def _context(files: TlsFiles, *, dialed: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT if dialed else ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # a member is identified by the id in its HELLO, not by its host
    context.verify_mode = ssl.CERT_REQUIRED
    if not dialed:
        context.num_tickets = 0  # sessions are not resumed
    try:
        context.load_cert_chain(files.certificate, files.key)
        context.load_verify_locations(files.trust)
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(f"{CERT_KEY} {files.certificate}, {KEY_KEY}, {TRUST_KEY}: {error}") from error
    return context


def _check_handshake(files: TlsFiles, contexts: Contexts) -> None:
    """Performs the handshake that other members would perform. Raises ConfigError: it fails."""
    dialer, listener = TlsChannel(contexts.dialer, dialed=True), TlsChannel(contexts.listener, dialed=False)
    try:
        data = dialer.start()
        for _ in range(ROUND_TRIPS_MAX):
            listener.receive_data(data)
            dialer.receive_data(listener.data_to_send())
            data = dialer.data_to_send()
    except ChannelError as error:
        raise ConfigError(
            f"{CERT_KEY} {files.certificate} is refused with {TRUST_KEY} {files.trust}: {error} "
            "(that CA must have issued it, for server and client use)"
        ) from None


def _day(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M UTC")
