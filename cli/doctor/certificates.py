"""Certificates of the raft port: whether each member can load its files, until when, and whether they accept
each other."""

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from cli.doctor.files import ConfigFile
from cli.doctor.machine import check_private
from keelmq.health.certificates import RENEW, RENEW_DAYS, URGENT_DAYS
from keelmq.health.findings import Finding, failed, ok, warning
from keelmq.runtime.config import ConfigError
from namesrv.plugins.controller.config import ControllerConfig


def check_certificates(files: Sequence[ConfigFile]) -> list[Finding]:
    """Returns findings about the controllers' certificates; none if no controller has certificates."""
    controllers = [(file.name, file.controller) for file in files if file.controller is not None]
    with_tls = [(name, controller) for name, controller in controllers if controller.tls_files is not None]
    if not with_tls:
        return []
    found = [finding for name, controller in with_tls for finding in _one(name, controller)]
    others = [name for name, controller in controllers if controller.tls_files is None]
    if others:
        text = f"{', '.join(name for name, _ in with_tls)} have certificates, {', '.join(others)} do not"
        found.append(
            failed(
                "config.secret",
                "raft port",
                text,
                "give certificates to all or to none: they refuse each other otherwise",
            )
        )
    return found + list(_same_authority(with_tls))


def _one(name: str, controller: ControllerConfig) -> Iterator[Finding]:
    files = controller.tls_files
    assert files is not None
    try:
        facts = controller.read_certificates()
        assert facts is not None
        private = check_private(name, files.key)
    except ConfigError as error:
        yield failed(
            "config.secret", name, str(error), "correct the path, or create new ones: keelmq certificates"
        )
        return
    days = facts.days_left(datetime.now(UTC))
    text = f"{files.certificate}: for {', '.join(facts.names)}, until {facts.not_after:%Y-%m-%d}"
    if days < URGENT_DAYS:
        yield failed("config.secret", name, f"{text}: {days:.0f} days left", RENEW)
    elif days < RENEW_DAYS:
        yield warning("config.secret", name, f"{text}: {days:.0f} days left", RENEW)
    yield private or ok("config.secret", name, text)


def _same_authority(controllers: Sequence[tuple[str, ControllerConfig]]) -> Iterator[Finding]:
    """CA files may differ only while a CA is replaced."""
    digests: dict[bytes, list[str]] = defaultdict(list)
    for name, controller in controllers:
        files = controller.tls_files
        if files is not None and files.trust.is_file():
            digests[hashlib.sha256(files.trust.read_bytes()).digest()].append(name)
    if len(digests) > 1:
        text = f"different CA files: {' and '.join(', '.join(names) for names in digests.values())}"
        step = "acceptable while a CA is replaced (one of the files has both); else copy one file to all"
        yield warning("config.secret", "controllerRaftTlsTrustCertPath", text, step)
