"""From ACL 1.0 to 2.0: users and ACLs for the accounts of plain_acl.yml. White addresses are not migrated.

Source: RocketMQ 5.3.3 AuthMigrator.
"""

from collections.abc import Container

from keelmq.security.core.acls import (
    Acl,
    Action,
    Decision,
    Pattern,
    Policy,
    PolicyEntry,
    PolicyType,
    Resource,
    ResourceType,
    subject_of,
)
from keelmq.security.core.plain_acl import Account, Permission, PlainAcl
from keelmq.security.core.users import User, UserType


def migrate(plain_acl: PlainAcl, known_users: Container[str]) -> list[tuple[User, Acl | None]]:
    """Returns what is to be created, in the order of the files: accounts whose user exists are left out.
    Raises InvalidUser and InvalidAcl, before anything is created."""
    return [
        (_user(account), _acl(account))
        for name, account in plain_acl.accounts.items()
        if name not in known_users
    ]


def _user(account: Account) -> User:
    type_ = UserType.SUPER if account.is_admin else UserType.NORMAL
    return User(account.access_key, account.password, type_)


def _acl(account: Account) -> Acl | None:
    """None: a Super user needs none."""
    if account.is_admin:
        return None
    custom = tuple(_entry(resource, permission) for resource, permission in account.perms.items())
    default = (
        _entry(Resource(ResourceType.TOPIC, "", Pattern.ANY), account.default_topic_perm),
        _entry(Resource(ResourceType.GROUP, "", Pattern.ANY), account.default_group_perm),
    )
    policies = [Policy(PolicyType.CUSTOM, custom)] if custom else []
    return Acl(subject_of(account.access_key), (*policies, Policy(PolicyType.DEFAULT, default)))


def _entry(resource: Resource, permission: Permission) -> PolicyEntry:
    if Permission.DENY in permission:
        return PolicyEntry(resource, frozenset({Action.ALL}), Decision.DENY)
    actions = set()
    if permission & (Permission.PUB | Permission.ANY):
        actions.add(Action.PUB)
    if permission & (Permission.SUB | Permission.ANY):
        actions.add(Action.SUB)
    return PolicyEntry(resource, frozenset(actions), Decision.ALLOW)
