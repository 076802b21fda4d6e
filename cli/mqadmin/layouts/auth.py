"""RocketMQ's layouts of users and access control lists."""

from collections.abc import Sequence

from keelmq.remoting.operations.auth import AclInfo, UserInfo

_USER = "{:<16}  {:<22}  {:<22}"
_ACL = "{:<16}  {:<10}  {:<22}  {:<22}  {:<20}  {:<10}"


def users(found: Sequence[UserInfo]) -> str:
    """Returns one line for each user. Passwords are never shown."""
    rows = [_USER.format("#UserName", "#UserType", "#UserStatus")]
    rows += [
        _USER.format(each.username or "", each.user_type or "", each.user_status or "") for each in found
    ]
    return "\n".join(row.rstrip() for row in rows)


def acls(found: Sequence[AclInfo]) -> str:
    """Returns one line for each entry of each policy."""
    rows = [_ACL.format("#Subject", "#PolicyType", "#Resource", "#Actions", "#SourceIp", "#Decision")]
    for acl in found:
        for policy in acl.policies or []:
            rows += [
                _ACL.format(
                    acl.subject or "",
                    policy.policy_type or "",
                    entry.resource or "",
                    ",".join(entry.actions or []),
                    ",".join(entry.source_ips or []),
                    entry.decision or "",
                )
                for entry in policy.entries or []
            ]
    return "\n".join(row.rstrip() for row in rows)
