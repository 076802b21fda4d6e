"""Certificates of the raft port, as running controllers report them."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

from keelmq.health.findings import Finding, failed, warning

RENEW_DAYS = 30
URGENT_DAYS = 7
RENEW = "renew it (keelmq certificates, where ca.key is) and copy both files: no restart is needed"


def certificate_problems(address: str, raft: Mapping[str, object], member: str = "") -> Iterator[Finding]:
    """Yields problems of a running member's certificate, from its /v1/health. member: its id."""
    if fault := raft.get("certificateFault"):
        step = "correct the files: it still uses the old ones, but would not start again"
        text, line = f"its new certificate is not in use: {fault}", f"keelmq certificates {member or 'ID'}"
        yield warning("controller.raft", address, text, step, line)
    ends = raft.get("certificateEnds")
    if isinstance(ends, int):
        until = datetime.fromtimestamp(ends, UTC)
        if (days := (until - datetime.now(UTC)).total_seconds() / 86_400) < RENEW_DAYS:
            tell = failed if days < URGENT_DAYS else warning
            text = f"its certificate {'ended' if days < 0 else 'ends'} at {until:%Y-%m-%d %H:%M} UTC"
            yield tell("controller.raft", address, text, RENEW, f"keelmq certificates {member or 'ID'}")
