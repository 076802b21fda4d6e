"""Users: name, secret key, type and status; how they are written on the wire and in files.

The secret key is stored as text, because HMAC needs it. It is in the stored form only: never in a repr, and
never in an answer, although RocketMQ's AUTH_GET_USER returns it (pitfall 21). Source: RocketMQ 5.3.3 User,
UserInfo, UserType, UserStatus."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, Final, TypeVar

from keelmq.security.core.signature import SecretKey

USERNAME_CHARS_MAX: Final = 255
PASSWORD_CHARS_MAX: Final = 1_024
CHANGED_MS_MAX: Final = 2**52


class InvalidUser(ValueError):
    """The text says what is wrong, in RocketMQ's words where it has them. It never has the password in it."""


class UserType(IntEnum):
    """Numbers as in RocketMQ's stored form."""

    SUPER = 1
    NORMAL = 2

    @property
    def wire(self) -> str:
        return self.name.capitalize()


class UserStatus(IntEnum):
    """Numbers as in RocketMQ's stored form."""

    ENABLE = 1
    DISABLE = 2

    @property
    def wire(self) -> str:
        return self.name.lower()


Named = TypeVar("Named", bound=IntEnum)


def parse_named(type_: type[Named], value: object, what: str) -> Named:
    """Returns the member by its name in any case, or by its number. Raises InvalidUser."""
    text = str(value).strip()
    for member in type_:
        if text.upper() == member.name or text == str(member.value):
            return member
    names = ", ".join(member.name.capitalize() for member in type_)
    raise InvalidUser(f"{what} {text[:40]!r} is none of {names}")


@dataclass(frozen=True, slots=True)
class User:
    """`secret`: the password as the key of signatures. changed_ms, is_deleted: see core/user_changes.py."""

    username: str
    password: str = field(repr=False)
    user_type: UserType = UserType.NORMAL
    status: UserStatus = UserStatus.ENABLE
    changed_ms: int = field(default=0, compare=False)
    is_deleted: bool = False
    secret: SecretKey = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_username(self.username)
        if not self.password.strip():
            raise InvalidUser("password can not be blank")
        if len(self.password) > PASSWORD_CHARS_MAX:
            raise InvalidUser(f"a password has at most {PASSWORD_CHARS_MAX} characters")
        try:
            object.__setattr__(self, "secret", SecretKey(self.password.encode()))
        except UnicodeEncodeError:
            # The error would have the password in its text.
            raise InvalidUser("the password is not valid Unicode") from None

    @property
    def is_super(self) -> bool:
        return self.user_type is UserType.SUPER

    @property
    def is_enabled(self) -> bool:
        return self.status is UserStatus.ENABLE

    def info(self) -> dict[str, str]:
        """Returns UserInfo as an answer has it: without the password."""
        return {
            "username": self.username,
            "userType": self.user_type.wire,
            "userStatus": self.status.wire,
        }

    def stored(self) -> dict[str, Any]:
        """Returns the form for files and replicas: with the password."""
        return {**self.info(), "password": self.password, **stored_change(self.changed_ms, self.is_deleted)}


def check_username(username: str) -> None:
    """Raises InvalidUser. A colon would make the subject "User:name" ambiguous."""
    if not username.strip():
        raise InvalidUser("username can not be blank")
    if len(username) > USERNAME_CHARS_MAX:
        raise InvalidUser(f"a username has at most {USERNAME_CHARS_MAX} characters")
    if username != username.strip() or ":" in username or not username.isprintable():
        raise InvalidUser(
            f"illegal username {username[:40]!r}: no colon, no blank at an end, printable characters"
        )


def create_user(username: str, info: Mapping[str, Any]) -> User:
    """Returns the user of an AUTH_CREATE_USER: Normal and enabled unless it says otherwise. Raises
    InvalidUser."""
    return User(
        username,
        _text(info.get("password")),
        parse_named(UserType, info["userType"], "userType") if _given(info, "userType") else UserType.NORMAL,
        parse_named(UserStatus, info["userStatus"], "userStatus")
        if _given(info, "userStatus")
        else UserStatus.ENABLE,
    )


def update_user(user: User, info: Mapping[str, Any]) -> User:
    """Returns the changed user: only parts that are not blank are applied (pitfall 14: the returned one is
    to be stored). Raises InvalidUser."""
    if _given(info, "password"):
        user = replace(user, password=_text(info["password"]))
    if _given(info, "userType"):
        user = replace(user, user_type=parse_named(UserType, info["userType"], "userType"))
    if _given(info, "userStatus"):
        user = replace(user, status=parse_named(UserStatus, info["userStatus"], "userStatus"))
    return user


def parse_stored_user(value: object) -> User:
    """Returns a user from its stored form, ours or RocketMQ's (with numbers). Raises InvalidUser."""
    if not isinstance(value, Mapping):
        raise InvalidUser("a stored user is not a JSON object")
    changed_ms, is_deleted = parse_stored_change(value)
    user = create_user(_text(value.get("username")), value)
    return replace(user, changed_ms=changed_ms, is_deleted=is_deleted)


def stored_change(changed_ms: int, is_deleted: bool) -> dict[str, Any]:
    """Returns the members of a stored form that say when it was changed; those with a default are left out,
    as in files of RocketMQ and of earlier releases."""
    at = {"changedMs": changed_ms} if changed_ms else {}
    return {**at, "deleted": True} if is_deleted else at


def parse_stored_change(value: Mapping[str, Any]) -> tuple[int, bool]:
    """Returns changed_ms and is_deleted of a stored form. Raises InvalidUser."""
    changed_ms, is_deleted = value.get("changedMs", 0), value.get("deleted", False)
    if type(changed_ms) is not int or not 0 <= changed_ms <= CHANGED_MS_MAX:
        raise InvalidUser(f"changedMs {str(changed_ms)[:40]!r} is not a time in ms since 1970")
    if not isinstance(is_deleted, bool):
        raise InvalidUser(f"deleted {str(is_deleted)[:40]!r} is neither true nor false")
    return changed_ms, is_deleted


def _given(info: Mapping[str, Any], name: str) -> bool:
    return bool(_text(info.get(name)).strip())


def _text(value: object) -> str:
    """YAML and JSON may have an all-digit name or password as a number."""
    return "" if value is None else str(value)
