"""Certificate files: their names in the settings, their content in an ssl.SSLContext, and their changes.

FollowedFiles.check() compares the content of the files, not their dates: links that are switched (Kubernetes)
and copies with old dates are changes, too. A certificate without its key, because only one of both files was
written yet, changes nothing and is logged once; so does one that has expired while the old one has not.
"""

import asyncio
import hashlib
import logging
import ssl
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec
from pydantic import SecretStr

from keelmq.runtime.config import ConfigError, read_named
from keelmq.runtime.tls.self_signed import expiry_of
from keelmq.runtime.tls.transport import reason_of

logger = logging.getLogger(__name__)

RELOAD_PERIOD_S: Final = 5.0
WARN_DAYS: Final = 30
"""Certificates that expire so soon are in the log; automatic renewal has happened by then."""
OTHERS: Final = 0o007


class Names(NamedTuple):
    """The names of the settings where the operator writes them."""

    certificate: str
    key: str
    password: str
    trust: str


def key_names(prefix: str) -> Names:
    """Of a configuration file: tls.server or tls.client."""
    return Names(
        f"{prefix}.certPath", f"{prefix}.keyPath", f"{prefix}.keyPassword", f"{prefix}.trustCertPath"
    )


class CertificateFiles(msgspec.Struct, frozen=True):
    """`names`: for error texts. `trust`: the CAs that the other side is verified with."""

    names: Names
    certificate: Path | None = None
    key: Path | None = None
    password: SecretStr | None = None
    trust: Path | None = None

    def check(self) -> None:
        """ConfigError: one of the pair is missing."""
        if (self.certificate is None) != (self.key is None):
            missing = self.names.key if self.key is None else self.names.certificate
            raise ConfigError(
                f"{self.names.certificate} and {self.names.key} go together: set {missing}, too"
            )

    def named(self) -> list[tuple[str, Path]]:
        """The files by their keys."""
        names = self.names
        every = ((names.certificate, self.certificate), (names.key, self.key), (names.trust, self.trust))
        return [(name, path) for name, path in every if path is not None]

    def digest(self) -> bytes:
        """Changes with the content of any file, and when one cannot be read."""
        found = hashlib.sha256()
        for _, path in self.named():
            try:
                data = read_named(path)
            except OSError as error:
                data = f"error {error.errno}".encode()
            found.update(hashlib.sha256(data).digest())
        return found.digest()

    def load_into(self, context: ssl.SSLContext) -> None:
        """ConfigError with the key, the file and what to do."""
        for name, path in self.named():
            try:
                read_named(path)
            except OSError as error:
                raise ConfigError(f"{name} {path}: {error.strerror}") from error
        if self.certificate is not None and self.key is not None:
            self._load_pair(context, self.certificate, self.key)
        if self.trust is not None:
            try:
                context.load_verify_locations(self.trust)
            except (ssl.SSLError, OSError) as error:
                raise ConfigError(
                    f"{self.names.trust} {self.trust}: no certificate in PEM form "
                    "(-----BEGIN CERTIFICATE-----)"
                ) from error

    def _load_pair(self, context: ssl.SSLContext, certificate: Path, key: Path) -> None:
        secret = "" if self.password is None else self.password.get_secret_value()
        asked: list[bool] = []

        def password() -> str:  # without one OpenSSL would ask at the terminal
            asked.append(True)
            return secret

        try:
            context.load_cert_chain(certificate, key, password)
        except (ssl.SSLError, OSError, ValueError) as error:
            if asked:
                what = "is wrong" if secret else "is not set, and the key has one"
                problem = f"{self.names.password} {what} ({self.names.key} {key})"
            elif isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
                problem = f"{self.names.key} {key} is not the key of {self.names.certificate} {certificate}"
            else:
                why = reason_of(error)
                problem = (
                    f"{self.names.certificate} {certificate} and {self.names.key} {key}: {why} (both PEM)"
                )
            raise ConfigError(problem) from error

    def warnings(self) -> list[str]:
        """Lines about a key that anybody can read, and about certificates that expire."""
        found = []
        if self.key is not None and (mode := _mode_of(self.key)) & OTHERS:
            found.append(
                f"{self.names.key} {self.key} can be read by every user of this machine (mode "
                f"{mode & 0o777:04o}): chmod 600 {self.key}"
            )
        return found


def _mode_of(path: Path) -> int:
    try:
        return path.stat().st_mode
    except OSError:
        return 0


T = TypeVar("T")


class FollowedFiles(Generic[T]):
    """What make() makes of files, made anew when they change. Any thread may read `made`, and call check().
    The constructor raises ConfigError."""

    def __init__(self, files: CertificateFiles, make: Callable[[], T], name: str) -> None:
        files.check()
        self.files, self._make, self._name = files, make, name
        self.fault: str | None = None
        """Why the files as they are now are not in use."""
        self._checking = threading.Lock()
        self._next_check = time.monotonic() + RELOAD_PERIOD_S
        self._digest = files.digest()
        self.made, self.expires = self._load()
        """`expires`: when the first of our certificate and its chain expires; None: there is none."""
        for line in self._warnings():
            logger.warning("%s", line)

    def check(self) -> bool:
        """Reads the files, and takes them if they have changed and are good. Returns whether it did."""
        with self._checking:
            return self._check()

    def is_due(self) -> bool:
        """Returns True to at most one caller in RELOAD_PERIOD_S."""
        now = time.monotonic()
        if now < self._next_check:
            return False
        self._next_check = now + RELOAD_PERIOD_S
        return True

    def _check(self) -> bool:
        digest = self.files.digest()
        if digest == self._digest:
            return False
        try:
            made, expires = self._load()
            if _is_over(expires) and not _is_over(self.expires):
                raise ConfigError(f"{self._expiry(expires)}: renew it")
            self.made, self.expires = made, expires
        except ConfigError as error:
            if str(error) != self.fault:
                logger.error("%s continues to use its old certificate: %s", self._name, error)
            self.fault = str(error)
            return False
        self._digest, self.fault = digest, None
        ends = f", until {self.expires:%Y-%m-%d %H:%M} UTC" if self.expires is not None else ""
        logger.info("%s: new certificate files are in use%s", self._name, ends)
        for line in self._warnings():
            logger.warning("%s", line)
        return True

    async def run(self) -> None:
        """Checks each RELOAD_PERIOD_S. In a thread: the files may be on a slow disk."""
        while self.files.named():
            await asyncio.sleep(RELOAD_PERIOD_S)
            await asyncio.to_thread(self.check)

    def _load(self) -> tuple[T, datetime | None]:
        certificate = self.files.certificate
        return self._make(), None if certificate is None else expiry_of(certificate)

    def _warnings(self) -> list[str]:
        found = self.files.warnings()
        days = days_left(self.expires)
        if days is not None and days < WARN_DAYS:
            found.append(f"{self._expiry(self.expires)}: renew it; no restart is needed")
        return found

    def _expiry(self, expires: datetime | None) -> str:
        days = days_left(expires) or 0.0
        when = f"expired {-days:.0f} days ago" if days < 0 else f"expires in {days:.0f} days"
        return f"{self.files.names.certificate} {self.files.certificate} {when}"


def _is_over(expires: datetime | None) -> bool:
    days = days_left(expires)
    return days is not None and days < 0


def days_left(expires: datetime | None) -> float | None:
    return None if expires is None else (expires - datetime.now(UTC)).total_seconds() / 86_400
