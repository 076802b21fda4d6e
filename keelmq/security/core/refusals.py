"""Why a request is refused: the reasons that are counted, and the texts that several checks share."""

from typing import Literal

from keelmq.remoting.codes import RequestCode
from keelmq.security.core.plain_acl import PlainAcl

Reason = Literal["unsigned", "signature", "user", "throttled", "member", "proof", "rights", "unreadable"]
"""Why a request is refused, for metrics and the audit log: no signature; a wrong one; no such user, or a
disabled one; too many failures of this address; for members only; no or a wrong proof; no right to it; its
resources cannot be read."""


class Refusal(Exception):
    """Ends a check."""

    def __init__(self, reason: Reason, remark: str) -> None:
        super().__init__(remark)
        self.reason, self.remark = reason, remark


def reason_of_plain(plain: PlainAcl, access_key: str) -> Reason:
    """Returns why PlainAcl.authenticate() has no account."""
    if not access_key:
        return "unsigned"
    return "signature" if access_key in plain.accounts else "user"


def name_of(code: int) -> str:
    """Returns a request code with its name."""
    try:
        return f"{RequestCode(code).name} ({code})"
    except ValueError:
        return f"code {code}"
