"""What AccessControl checks: the switches of authentication, authorization and membership."""

import msgspec

from keelmq.remoting.codes import ResponseCode
from keelmq.security.core.contexts import Role
from keelmq.security.core.rules import RULES, UNKNOWN


class AccessSettings(msgspec.Struct, frozen=True):
    """member_users: sign for members of this cluster (innerClientAuthenticationCredentials).
    member_certificates: names in client certificates of members. members_required: what only members may
    send needs one of the two; if signatures are not checked at all, all administrative requests do, too.

    proof_required: requests of member_users need a proof (member_proof.py); False lets RocketMQ's brokers in.
    proof_to_administer: requests of users that administer need it too, unless they come over TLS."""

    authentication_enabled: bool = False
    authorization_enabled: bool = False
    authentication_whitelist: frozenset[int] = frozenset()
    authorization_whitelist: frozenset[int] = frozenset()
    stateful_authentication: bool = False
    stateful_expired_ms: int = 60_000
    stateful_cache_max: int = 10_000
    decision_cache_max: int = 10_000
    cluster_name: str = "DefaultCluster"
    members_required: bool = False
    member_users: frozenset[str] = frozenset()
    member_certificates: frozenset[str] = frozenset()
    proof_required: bool = True
    proof_to_administer: bool = False
    refused_code: int = ResponseCode.NO_PERMISSION

    def is_open(self, code: int) -> bool:
        """Whether anyone may send it, whatever it contains."""
        rule = RULES.get(code, UNKNOWN)
        asks_member = self.members_required and (rule.members_only or rule.role is Role.ADMINISTER)
        asks_user = self.authentication_enabled and code not in self.authentication_whitelist
        asks_rights = self.authorization_enabled and code not in self.authorization_whitelist
        return not asks_member and not asks_user and not asks_rights
