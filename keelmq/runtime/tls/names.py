"""The names in the certificate of a peer, as plain values."""

from collections.abc import Mapping
from typing import Any

NAMED_IN = ("DNS", "URI")


def certificate_names(certificate: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Returns the DNS names and URIs of subjectAltName, then the common names, without repetitions.
    `certificate`: what SSLSocket.getpeercert() returns; empty unless the peer's certificate was verified."""
    if not certificate:
        return ()
    names = [value for kind, value in certificate.get("subjectAltName", ()) if kind in NAMED_IN]
    for part in certificate.get("subject", ()):
        names += [value for key, value in part if key == "commonName"]
    return tuple(dict.fromkeys(names))
