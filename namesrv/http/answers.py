"""What responses of the analytics pages share: security headers, ETags, refusals."""

from collections.abc import Mapping

from fastapi import Request, Response

from keelmq.remoting.servers.http_answers import problem
from keelmq.web.report import PAGE_POLICY

SECURITY_HEADERS = {
    "Content-Security-Policy": PAGE_POLICY,
    "X-Content-Type-Options": "nosniff",
}


def known(request: Request, headers: Mapping[str, str]) -> Response | None:
    """Returns a response with status 304 if If-None-Match has the ETag of `headers`, else None. Weak
    comparison (RFC 9110)."""
    asked = (part.strip().removeprefix("W/") for part in request.headers.get("if-none-match", "").split(","))
    if any(part in (headers["ETag"], "*") for part in asked):
        return Response(status_code=304, headers=dict(headers))
    return None


def refusal(status: int, detail: str) -> Response:
    """Returns a response that says what is wrong and what to do."""
    return problem(status, detail, headers=SECURITY_HEADERS)
