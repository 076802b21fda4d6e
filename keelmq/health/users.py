"""Whether name servers and masters have the same users and ACLs: each answers clients by its own."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from shlex import quote
from typing import Final

from keelmq.client.admin import AdminClient, AdminError
from keelmq.health.findings import Finding, failed
from keelmq.remoting.booleans import is_true
from keelmq.remoting.operations.auth import AclInfo, UserInfo

SWITCHES: Final = (
    "authenticationEnabled",
    "authorizationEnabled",
    "listenersAuthenticationEnabled",
    "listenersAuthorizationEnabled",
)
SHOWN_MAX: Final = 5
NONE: Final = "not there"
STEP: Final = (
    "masters exchange users with name servers every 5 s over TLS with verified certificates: if it still "
    "differs then, repeat the change there, and look for `not exchanged` in the masters' logs"
)

Rights = Mapping[str, str]
"""User:name -> its type, state and ACL as one text, without its password, which no answer has."""


async def rights_of(admin: AdminClient, address: str, settings: Mapping[str, str]) -> Rights | None:
    """Returns the users of a server; None: it has no access check, or does not show them to this user."""
    if not any(is_true(settings.get(key)) for key in SWITCHES):
        return None
    with suppress(AdminError):
        acls = {acl.subject or "": _acl_text(acl) for acl in await admin.auth.list_acls(address)}
        subjects = {
            f"User:{user.username}": _user_text(user) for user in await admin.auth.list_users(address)
        }
        return {
            each: " ".join(filter(None, (subjects.get(each), acls.get(each)))) for each in subjects | acls
        }
    return None


def _user_text(user: UserInfo) -> str:
    return f"{user.user_type} {user.user_status}"


def _acl_text(acl: AclInfo) -> str:
    lines = sorted(
        f"{entry.decision} {','.join(sorted(entry.actions or ()))} on {entry.resource}"
        + (f" from {','.join(sorted(entry.source_ips))}" if entry.source_ips else "")
        + (" by default" if policy.policy_type == "Default" else "")
        for policy in acl.policies or ()
        for entry in policy.entries or ()
    )
    return f"({'; '.join(lines)})"


def same_rights(servers: Mapping[str, Rights | None]) -> Iterator[Finding]:
    """Yields a finding for each user that differs between servers that report users, SHOWN_MAX of them."""
    told = {address: rights for address, rights in servers.items() if rights is not None}
    subjects = sorted({each for rights in told.values() for each in rights})
    different = [each for each in subjects if len({rights.get(each) for rights in told.values()}) > 1]
    for subject in different[:SHOWN_MAX]:
        places: dict[str, list[str]] = defaultdict(list)
        for address, rights in told.items():
            places[rights.get(subject, NONE)].append(address)
        text = "; ".join(f"{value} at {', '.join(at)}" for value, at in places.items())
        yield failed("users.agree", subject, f"differs: {text}", STEP, _command(subject, places))
    if len(different) > SHOWN_MAX:
        text, step = f"{len(different)} differ", "repair these, and run it again"
        yield failed("users.agree", "users and ACLs", text, step)


def _command(subject: str, places: Mapping[str, list[str]]) -> str:
    """Returns the command that creates the user where it is missing, or shows its ACL everywhere."""
    if NONE in places:
        name = quote(subject.partition(":")[2])
        return f"mqadmin createUser -u {name} -b {quote(';'.join(places[NONE]))}"
    everywhere = ";".join(address for at in places.values() for address in at)
    return f"mqadmin getAcl -s {quote(subject)} -b {quote(everywhere)}"
