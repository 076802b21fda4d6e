"""TLS of the ports and of the connections to others: would each program start with its tls.* keys, and until
when are its certificates good?"""

from collections.abc import Iterator, Sequence

from cli.doctor.files import ConfigFile
from keelmq.health.findings import Finding, failed, ok, warning
from keelmq.runtime.config import ConfigError
from keelmq.runtime.tls.contexts import ClientTls, ServerTls
from keelmq.runtime.tls.files import CertificateFiles, days_left
from keelmq.runtime.tls.settings import TlsConfig, client_tls, server_tls

RENEW_DAYS = 30
URGENT_DAYS = 7
RENEW = "renew it and replace both files: no restart is needed"


def check_port_certificates(files: Sequence[ConfigFile]) -> list[Finding]:
    """Nothing for a program without certificates and without tls.enable."""
    return [finding for file in files for finding in _one(file.name, file.server)]


def _one(name: str, config: TlsConfig) -> Iterator[Finding]:
    try:
        made: list[ServerTls | ClientTls | None] = [server_tls(config), client_tls(config)]
    except ConfigError as error:
        yield failed("config.tls", name, str(error), "correct the key or the file: it would not start")
        return
    for tls in made:
        if tls is not None and tls.files.named():
            yield from _files(name, tls.files, days_left(tls.expires))


def _files(name: str, files: CertificateFiles, days: float | None) -> Iterator[Finding]:
    for line in files.warnings():
        text, _, step = line.rpartition(": ")
        yield warning("config.tls", name, text, step)
    if days is None:
        yield ok("config.tls", name, ", ".join(f"{key} {path}" for key, path in files.named()))
        return
    text = f"{files.names.certificate} {files.certificate}: {days:.0f} days left"
    if days < URGENT_DAYS:
        yield failed("config.tls", name, text, RENEW)
    elif days < RENEW_DAYS:
        yield warning("config.tls", name, text, RENEW)
    else:
        yield ok("config.tls", name, text)
