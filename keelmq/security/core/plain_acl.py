"""ACL 1.0: the accounts of plain_acl.yml, from YAML values that are parsed already, and its decision.

A file is checked as a whole before it counts (pitfall 8). An access key that several files define belongs to
the first one (pitfall 10). Codes without a resource that change something need an admin account, also those
that RocketMQ's list of admin codes lacks (pitfall 19). Source: RocketMQ 4.9.8 PlainAccessValidator,
PlainPermissionManager, Permission."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntFlag
from typing import Any, Final

import msgspec

from keelmq.remoting.codes import RequestCode as Code
from keelmq.security.core.acls import Action, Resource, ResourceType, group_resource, topic_resource
from keelmq.security.core.address_patterns import AddressPattern, BadAddressPattern, first_word, parse_pattern
from keelmq.security.core.authorize import Context
from keelmq.security.core.signature import ACCESS_KEY, ExtFields, SecretKey, verify

KEY_CHARS_MIN: Final = 7
ACCOUNTS_MAX: Final = 10_000
PERMS_MAX: Final = 10_000

_NOBODY: Final = SecretKey(b"")
SIGNATURE_ONLY: Final = frozenset(
    {
        Code.QUERY_CONSUMER_OFFSET, Code.SEARCH_OFFSET_BY_TIMESTAMP, Code.GET_MAX_OFFSET, Code.GET_MIN_OFFSET,
        Code.GET_EARLIEST_MSG_STORETIME, Code.GET_ROUTEINFO_BY_TOPIC,
    }
)  # fmt: skip
"""Codes with a topic or group that any account may send, as with RocketMQ."""
ADMIN_ONLY: Final = frozenset({17, 25, 50, 51, 52, 200, 207, 215, 513})
"""RocketMQ's list. By our rules all of them need an admin account anyway; 50 to 52 have no rule."""


class BadPlainAcl(ValueError):
    """The text has the file, where in it, and what is wrong; never a secret."""


class Permission(IntFlag):
    """Numbers as in RocketMQ."""

    DENY = 1
    ANY = 2
    PUB = 4
    SUB = 8


_PERMISSIONS: Final = {
    "PUB": Permission.PUB,
    "SUB": Permission.SUB,
    "PUB|SUB": Permission.PUB | Permission.SUB,
    "SUB|PUB": Permission.PUB | Permission.SUB,
    "DENY": Permission.DENY,
    "ANY": Permission.ANY,
}


@dataclass(frozen=True, slots=True)
class Account:
    """password: the secretKey. perms: by topic or group resource."""

    access_key: str
    password: str = field(repr=False)
    white: AddressPattern
    is_admin: bool = False
    default_topic_perm: Permission = Permission.DENY
    default_group_perm: Permission = Permission.DENY
    perms: Mapping[Resource, Permission] = field(default_factory=dict)
    secret: SecretKey = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "secret", SecretKey(self.password.encode("utf-8", "replace")))

    def may(self, resource: Resource, needed: Permission) -> bool:
        default = self.default_group_perm if resource.type is ResourceType.GROUP else self.default_topic_perm
        owned = self.perms.get(resource, default)
        if Permission.DENY in owned:
            return False
        return bool(owned & (needed | Permission.ANY))


class PlainAcl(msgspec.Struct, frozen=True):
    """All files together."""

    global_white: tuple[AddressPattern, ...] = ()
    accounts: Mapping[str, Account] = msgspec.field(default_factory=dict)

    def is_white(self, peer_ip: str) -> bool:
        return any(pattern.matches(peer_ip) for pattern in self.global_white)

    def authenticate(self, ext_fields: ExtFields, body: bytes, version: int, peer_ip: str) -> "Account | str":
        """Returns the account whose signature is right or whose white address the peer has, or why there is
        none. The peer is not one of the global white addresses: nothing is checked for those."""
        access_key = ext_fields.get(ACCESS_KEY)
        if not access_key:
            return "No accessKey is configured"
        account = self.accounts.get(access_key)
        if account is None:
            # RocketMQ says that there is none, and so whose passwords to guess.
            verify(_NOBODY, ext_fields, body, version)
            return f"Check signature failed for accessKey={access_key}"
        if account.white.matches(peer_ip):
            return account
        if not verify(account.secret, ext_fields, body, version):
            return f"Check signature failed for accessKey={access_key}"
        return account


def authorize(account: Account, code: int, contexts: Iterable[Context], peer_ip: str) -> str | None:
    """Returns why the account may not send this; None: it may. From its white address it may send
    everything."""
    if account.is_admin or account.white.matches(peer_ip):
        return None
    if code in ADMIN_ONLY:
        return f"Need admin permission for request code={code}, but accessKey={account.access_key} is not"
    if code in SIGNATURE_ONLY:
        return None
    for resource, actions in contexts:
        needed = _needed(actions)
        if needed is None:
            continue
        if needed is Permission.DENY:
            return f"Need admin permission for request code={code}, but accessKey={account.access_key} is not"
        if not account.may(resource, needed):
            return f"No permission for {account.access_key} to {needed.name} {resource.key} from {peer_ip}"
    return None


def _needed(actions: Sequence[Action]) -> Permission | None:
    """Returns the permission of ACL 1.0 for actions of 2.0; DENY: an admin's; None: a right signature is
    enough."""
    if Action.PUB in actions:
        return Permission.PUB
    if Action.SUB in actions:
        return Permission.SUB
    return None if set(actions) <= {Action.GET, Action.LIST} else Permission.DENY


# -- parsing ------------------------------------------------------------------------------------------------


def parse_plain_acl(files: Sequence[tuple[str, object]]) -> tuple[PlainAcl, list[str]]:
    """Returns the rules of all files, and warnings. `files`: (name, YAML value), the default file first.
    Raises BadPlainAcl."""
    white: list[AddressPattern] = []
    accounts: dict[str, Account] = {}
    owners: dict[str, str] = {}
    warnings: list[str] = []
    for name, value in files:
        if value is None:
            continue
        content = _mapping(value, name)
        for each in _list(content.get("globalWhiteRemoteAddresses"), f"{name}: globalWhiteRemoteAddresses"):
            white.append(_pattern(each, f"{name}: globalWhiteRemoteAddresses"))
        for at, raw in enumerate(_list(content.get("accounts"), f"{name}: accounts")):
            account = _account(raw, f"{name}: accounts[{at}]")
            if account.access_key in owners:
                owner = owners[account.access_key]
                warnings.append(f"{name}: accessKey {account.access_key} is ignored: {owner} defines it")
                continue
            owners[account.access_key] = name
            accounts[account.access_key] = account
    if len(accounts) > ACCOUNTS_MAX:
        raise BadPlainAcl(f"{len(accounts)} accounts; {ACCOUNTS_MAX} is the limit")
    return PlainAcl(tuple(white), accounts), warnings


def _account(value: object, where: str) -> Account:
    fields = _mapping(value, where)
    access_key = _text(fields.get("accessKey"), f"{where}: accessKey")
    secret_key = _text(fields.get("secretKey"), f"{where}: secretKey")
    for name, key in (("accessKey", access_key), ("secretKey", secret_key)):
        if len(key) < KEY_CHARS_MIN:
            raise BadPlainAcl(f"{where}: {name} cannot be shorter than {KEY_CHARS_MIN} characters")
    admin = _text(fields.get("admin"), f"{where}: admin").lower()
    if admin not in ("true", "false", ""):
        raise BadPlainAcl(f"{where}: admin is neither true nor false")
    perms: dict[Resource, Permission] = {}
    for name, resource_of in (("topicPerms", topic_resource), ("groupPerms", group_resource)):
        listed = _list(fields.get(name), f"{where}: {name}")
        if len(listed) > PERMS_MAX:
            raise BadPlainAcl(f"{where}: {name} has {len(listed)} entries; {PERMS_MAX} is the limit")
        for each in listed:
            text = _text(each, f"{where}: {name}")
            resource_name, equals, permission = text.partition("=")
            if not equals or not resource_name.strip():
                raise BadPlainAcl(f"{where}: {name} has {first_word(text)!r}, not name=permission")
            perms[resource_of(resource_name.strip())] = parse_permission(permission)
    return Account(
        access_key,
        secret_key,
        _pattern(fields.get("whiteRemoteAddress"), f"{where}: whiteRemoteAddress"),
        admin == "true",
        parse_permission(fields.get("defaultTopicPerm")),
        parse_permission(fields.get("defaultGroupPerm")),
        perms,
    )


def parse_permission(value: object) -> Permission:
    """Anything that is no permission counts as DENY, as with RocketMQ; so does an absent one."""
    if not isinstance(value, str):
        return Permission.DENY
    return _PERMISSIONS.get("|".join(each.strip() for each in value.split("|")), Permission.DENY)


def _pattern(value: object, where: str) -> AddressPattern:
    try:
        return parse_pattern(_text(value, where))
    except BadAddressPattern as error:
        raise BadPlainAcl(f"{where}: {error}") from None


def _mapping(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise BadPlainAcl(f"{where}: not a mapping")
    return value


def _list(value: object, where: str) -> list[Any]:
    """Null, and blank text, are an empty list and not one with an empty element (pitfall 7)."""
    if value is None or value == "":
        return []
    if not isinstance(value, list):
        raise BadPlainAcl(f"{where}: not a list")
    return value


def _text(value: object, where: str) -> str:
    """YAML reads keys of digits as numbers. A value that is not single may contain secrets."""
    if isinstance(value, Mapping | list | set | tuple):
        raise BadPlainAcl(f"{where}: not a text")
    return "" if value is None else str(value).strip()
