"""Which version of a user or an ACL counts."""

from dataclasses import replace

import pytest

from keelmq.security.core.acls import parse_stored_acl
from keelmq.security.core.user_changes import (
    TOMBSTONE_MS,
    changed_now,
    deleted_acl,
    deleted_user,
    difference,
    digest_of,
    edited,
    newer,
    times_of,
)
from keelmq.security.core.users import User, UserStatus, create_user, parse_stored_user

NOW_MS = 1_800_000_000_000
ALICE = User("alice", "alice-secret", changed_ms=NOW_MS)


@pytest.mark.parametrize("now_ms", [0, NOW_MS - 3_600_000, NOW_MS, NOW_MS + 1])
def test_a_change_is_newer_than_what_it_replaces_whatever_the_clock_says(now_ms: int) -> None:
    assert changed_now(ALICE, ALICE, now_ms).changed_ms == max(NOW_MS + 1, now_ms)
    assert changed_now(ALICE, None, now_ms).changed_ms > 0


def test_the_later_version_counts_everywhere() -> None:
    later = replace(ALICE, password="new-secret", changed_ms=NOW_MS + 1)
    assert newer([later], {"alice": ALICE}, NOW_MS) == [later]
    assert newer([ALICE], {"alice": later}, NOW_MS) == []
    assert newer([ALICE], {"alice": ALICE}, NOW_MS) == []
    assert newer([ALICE], {}, NOW_MS) == [ALICE]


def test_a_deletion_is_a_version_and_older_releases_let_nobody_in_with_it() -> None:
    gone = deleted_user("alice", "random", ALICE, NOW_MS)
    assert newer([ALICE], {"alice": gone}, NOW_MS) == [] and newer([gone], {"alice": ALICE}, NOW_MS) == [gone]
    assert parse_stored_user(gone.stored()) == gone
    assert create_user("alice", gone.stored()).status is UserStatus.DISABLE, "what an older release reads"
    acl = deleted_acl("alice", None, NOW_MS)
    assert parse_stored_acl(acl.stored()) == acl and acl.is_deleted
    ((policy,),) = ([each.info() for each in acl.policies],)
    (entry,) = policy["entries"]
    assert (entry["resource"], entry["actions"], entry["decision"]) == ("*", ["All"], "Deny")


def test_old_tombstones_are_neither_told_nor_taken() -> None:
    gone = deleted_user("alice", "random", ALICE, NOW_MS)
    later_ms = NOW_MS + TOMBSTONE_MS + 2
    assert times_of({"alice": gone}, NOW_MS) and not times_of({"alice": gone}, later_ms)
    assert newer([gone], {}, later_ms) == []


def test_servers_with_the_same_versions_have_the_same_digest() -> None:
    assert digest_of({"a": 1, "b": 2}, {}) == digest_of({"b": 2, "a": 1}, {})
    assert digest_of({"a": 1}, {}) != digest_of({"a": 2}, {}) != digest_of({}, {"a": 2})
    assert difference({"a": 1, "b": 5, "c": 0}, {"a": 2, "b": 5}) == (["c"], ["a"])


def test_an_edited_file_adds_and_changes_and_deletes_nothing() -> None:
    bob = User("bob", "bobs-secret", changed_ms=NOW_MS)
    before = {"alice": ALICE, "bob": bob}
    carol, disabled = User("carol", "carols-secret"), replace(ALICE, status=UserStatus.DISABLE)
    after = edited({"alice": disabled, "carol": carol}, before, NOW_MS + 5)
    assert after == {"alice": disabled, "bob": bob, "carol": carol}
    assert {key: row.changed_ms - NOW_MS for key, row in after.items()} == {"alice": 5, "bob": 0, "carol": 5}
    assert edited({"alice": replace(ALICE, password="old-secret", changed_ms=7)}, before, NOW_MS) == before
