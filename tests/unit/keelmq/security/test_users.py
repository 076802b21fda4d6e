"""Users: parsing, what answers show, and what is refused."""

import pytest

from keelmq.security.core.users import (
    InvalidUser,
    User,
    UserStatus,
    UserType,
    create_user,
    parse_stored_user,
    update_user,
)


@pytest.mark.parametrize("written", ["Super", "super", "SUPER", "1", 1])
def test_types_are_parsed_in_any_case(written: object) -> None:
    assert create_user("a", {"password": "p", "userType": written}).user_type is UserType.SUPER


def test_a_new_user_is_normal_and_enabled() -> None:
    user = create_user("a", {"password": "p", "userType": "", "userStatus": None})
    assert (user.user_type, user.status) == (UserType.NORMAL, UserStatus.ENABLE)


def test_an_update_applies_what_is_not_blank() -> None:
    user = create_user("a", {"password": "p"})
    assert update_user(user, {"password": " ", "userStatus": "disable"}) == User(
        "a", "p", UserType.NORMAL, UserStatus.DISABLE
    )


def test_pitfall_14_an_update_returns_the_changed_user() -> None:
    user = create_user("a", {"password": "old"})
    changed = update_user(user, {"password": "new", "userType": "Super"})
    assert (changed.password, changed.user_type) == ("new", UserType.SUPER)
    assert changed.secret.signature_of(b"x") != user.secret.signature_of(b"x")


def test_pitfall_21_secrets_are_never_returned_or_shown() -> None:
    user = User("alice", "swordfish")
    assert user.info() == {"username": "alice", "userType": "Normal", "userStatus": "enable"}
    assert "swordfish" not in repr(user) + str(user.info())
    assert parse_stored_user(user.stored()) == user


@pytest.mark.parametrize(
    ("username", "info", "says"),
    [
        ("", {"password": "p"}, "username can not be blank"),
        ("a", {}, "password can not be blank"),
        ("a", {"password": "  "}, "password can not be blank"),
        ("a:b", {"password": "p"}, "illegal username"),
        (" a", {"password": "p"}, "illegal username"),
        ("a\n", {"password": "p"}, "illegal username"),
        ("a" * 256, {"password": "p"}, "at most 255"),
        ("a", {"password": "p" * 1025}, "at most 1024"),
        ("a", {"password": "p", "userType": "Hyper"}, "'Hyper' is none of Super, Normal"),
        ("a", {"password": "p", "userStatus": "off"}, "'off' is none of Enable, Disable"),
    ],
)
def test_what_is_refused(username: str, info: dict[str, object], says: str) -> None:
    with pytest.raises(InvalidUser, match=says):
        create_user(username, info)


def test_an_error_never_has_the_password_in_it() -> None:
    with pytest.raises(InvalidUser) as caught:
        User("a", "swordfish\ud800")
    assert "swordfish" not in str(caught.value)
    assert caught.value.__cause__ is None and caught.value.__suppress_context__
