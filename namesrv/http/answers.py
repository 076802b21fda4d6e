"""What responses of the analytics pages share: security headers, ETags, compression, refusals."""

from collections.abc import Mapping

from fastapi import Request, Response

from keelmq.remoting.servers.http_answers import problem
from keelmq.web.report import PAGE_POLICY

SECURITY_HEADERS = {
    "Content-Security-Policy": PAGE_POLICY,
    "X-Content-Type-Options": "nosniff",
}
REVALIDATE = {"Cache-Control": "no-cache"}
NOT_STORED = {"Cache-Control": "no-store"}
"""The page keeps the ETag itself."""


def secured(headers: Mapping[str, str]) -> dict[str, str]:
    """Returns the headers with those of every page."""
    return {**SECURITY_HEADERS, **headers}


def is_known(request: Request, etag: str) -> bool:
    """Returns whether If-None-Match has this ETag. Weak comparison (RFC 9110)."""
    asked = (part.strip().removeprefix("W/") for part in request.headers.get("if-none-match", "").split(","))
    return any(part in (etag, "*") for part in asked)


def accepts_gzip(request: Request) -> bool:
    """Returns whether Accept-Encoding names gzip, or all, with a weight above 0."""
    for part in request.headers.get("accept-encoding", "").split(","):
        name, _, weight = part.partition(";")
        if name.strip().lower() in ("gzip", "*"):
            return weight.replace(" ", "").lower() not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def refusal(status: int, detail: str) -> Response:
    """Returns a response that says what is wrong and what to do."""
    return problem(status, detail, headers=SECURITY_HEADERS)
