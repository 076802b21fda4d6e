"""Users and access control lists, over the masters of all clusters. Passwords are never in an answer."""

import json
from typing import Final

from pydantic import Field

from keelmq.console.data.cluster_context import (
    ClusterContext,
    ServerProblem,
    ServerProblems,
    ask_each,
    brokers_in,
)
from keelmq.remoting.operation import Wire
from keelmq.remoting.operations.auth import AclInfo, PolicyInfo
from keelmq.runtime.clock import wall_ms

ENTRIES_MAX: Final = 2_000


class UserRow(Wire):
    """A user. brokers: where it is; isMissingAt: brokers that answered and do not have it; differs: its type
    or status is not the same everywhere."""

    username: str
    user_type: str
    user_status: str
    brokers: list[str]
    is_missing_at: list[str] = Field(default_factory=list)
    differs: bool = False


class AclRow(Wire):
    """The ACL of a subject. differs: it is not the same at all brokers that have it."""

    subject: str
    policies: list[PolicyInfo]
    brokers: list[str]
    is_missing_at: list[str] = Field(default_factory=list)
    differs: bool = False


class AccessView(Wire):
    """clusters: whose users can be changed. cut: entries that are not shown."""

    taken_ms: int
    clusters: list[str]
    users: list[UserRow]
    acls: list[AclRow]
    cut: int = 0
    problems: list[ServerProblem] = Field(default_factory=list)
    not_asked: int = 0


async def access(context: ClusterContext, words: str = "") -> AccessView:
    """Returns users and ACLs whose names contain a text. AdminError: no name server answers."""
    server_problems = ServerProblems()
    info = await context.admin.name_servers.cluster_info(context.name_servers)
    brokers = [each for each in brokers_in(info) if each.is_master]
    part = words or None
    users_at = await ask_each(server_problems, brokers, lambda at: context.admin.auth.list_users(at, part))
    acls_at = await ask_each(server_problems, brokers, lambda at: context.admin.auth.list_acls(at, part))
    users: dict[str, dict[str, tuple[str, str]]] = {}
    for broker, found in users_at:
        for user in found:
            known = (user.user_type or "", user.user_status or "")
            users.setdefault(user.username or "", {})[broker.name] = known
    acls: dict[str, dict[str, AclInfo]] = {}
    for broker, lists in acls_at:
        for acl in lists:
            acls.setdefault(acl.subject or "", {})[broker.name] = acl
    with_users = [broker.name for broker, _ in users_at]
    with_acls = [broker.name for broker, _ in acls_at]
    user_rows = [
        UserRow(
            username=name,
            user_type=next(iter(at.values()))[0],
            user_status=next(iter(at.values()))[1],
            brokers=sorted(at),
            is_missing_at=sorted(set(with_users) - set(at)),
            differs=len(set(at.values())) > 1,
        )
        for name, at in sorted(users.items())
    ]
    acl_rows = [
        AclRow(
            subject=name,
            policies=next(iter(at.values())).policies or [],
            brokers=sorted(at),
            is_missing_at=sorted(set(with_acls) - set(at)),
            differs=len({_text(each) for each in at.values()}) > 1,
        )
        for name, at in sorted(acls.items())
    ]
    return AccessView(
        taken_ms=wall_ms(),
        clusters=sorted(info.cluster_addr_table),
        users=user_rows[:ENTRIES_MAX],
        acls=acl_rows[:ENTRIES_MAX],
        cut=max(0, len(user_rows) - ENTRIES_MAX) + max(0, len(acl_rows) - ENTRIES_MAX),
        problems=server_problems.listed,
        not_asked=server_problems.not_asked,
    )


def _text(acl: AclInfo) -> str:
    entries = [
        json.dumps([policy.policy_type, entry.model_dump(exclude_none=True)], sort_keys=True)
        for policy in acl.policies or []
        for entry in policy.entries or []
    ]
    return "\n".join(sorted(entries))
