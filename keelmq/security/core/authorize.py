"""The decision of ACL 2.0: whether a user may do something, from an address.

All contexts must pass. For each, the entries of the Custom policy that match resource, action and address
count; only if there are none, those of the Default policy. The first of them in this order decides:

1. a concrete resource type before `*`;
2. a literal name before a prefix before all of the type;
3. a longer prefix before a shorter one;
4. Deny before Allow.

This is the documented order, and RocketMQ's after 5.3.3 (#9539, #9784). The comparator of 5.3.3 has short
prefixes and Allow first (pitfall 17). An entry matches an action if it names any of the wanted ones, so a
Deny of one wanted action refuses the request unless a more specific entry allows it. Source: RocketMQ 5.5
AclAuthorizationHandler."""

from collections.abc import Iterable
from typing import Final, NamedTuple

from keelmq.security.core.acls import (
    Acl,
    Action,
    Decision,
    Pattern,
    PolicyEntry,
    PolicyType,
    Resource,
    ResourceType,
)
from keelmq.security.core.address_patterns import Address, peer_address
from keelmq.security.core.users import User

NO_MATCH: Final = "no matched policies."
DENIED: Final = "the decision is deny."

_RANKS: Final = {Pattern.LITERAL: 0, Pattern.PREFIXED: 1, Pattern.ANY: 2}


class Context(NamedTuple):
    """A resource, and the actions of which one must be granted."""

    resource: Resource
    actions: tuple[Action, ...]


class Allowed(NamedTuple):
    pass


class Denied(NamedTuple):
    """remark: for the answer. context None: it is about the user."""

    remark: str
    context: Context | None = None


ALLOWED: Final = Allowed()


def decide(
    user: User | None, acl: Acl | None, contexts: Iterable[Context], source_ip: str
) -> Allowed | Denied:
    """`acl`: of this user; None: there is none. source_ip: without the port."""
    if user is None:
        return Denied("The user is not exist.")
    if not user.is_enabled:
        return Denied(f"User:{user.username} is disabled.")
    if user.is_super:
        return ALLOWED
    address = peer_address(source_ip)
    for context in contexts:
        why = _refusal(acl, context, address)
        if why is not None:
            # With the address: without it the reason cannot be found (pitfall 18).
            what = f"{context.resource.key} from {source_ip}"
            remark = f"User:{user.username} has no permission to access {what}, {why}"
            return Denied(remark, context)
    return ALLOWED


def _refusal(acl: Acl | None, context: Context, address: Address | None) -> str | None:
    """Returns why the context does not pass; None: it does."""
    if acl is None:
        return NO_MATCH
    for type_ in (PolicyType.CUSTOM, PolicyType.DEFAULT):
        matching = [
            entry
            for entry in acl.entries_of(type_)
            if entry.matches(context.resource, context.actions, address)
        ]
        if matching:
            return None if min(matching, key=_order).decision is Decision.ALLOW else DENIED
    return NO_MATCH


def _order(entry: PolicyEntry) -> tuple[bool, int, int, bool]:
    resource = entry.resource
    return (
        resource.type is ResourceType.ANY,
        _RANKS[resource.pattern],
        -len(resource.name),
        entry.decision is Decision.ALLOW,
    )
