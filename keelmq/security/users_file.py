"""users.json and acls.json: users and ACLs of programs that have no replicated tables (name server,
controller).

    users.json: {"users": [{"username", "password", "userType", "userStatus"}, ...]}
    acls.json:  {"acls": [AclInfo, ...]}, both with "changedMs" and "deleted"

Files that others can read are refused, since they have secrets in them. Changes are durable before they
count, and what an administrator edits is read again when its content changes; a broken edit leaves the last
good state. An edit adds and changes users and ACLs. It deletes none: a file that lacks some, such as a copy
of an old one, is completed again. Deleted rows stay as tombstones (core/user_changes.py), which no method but
all_users() and all_acls() returns."""

import hashlib
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from keelmq.runtime.clock import wall_ms
from keelmq.runtime.durable_file import replace_file
from keelmq.security.core.acls import SUBJECT_PREFIX, Acl, InvalidAcl, parse_stored_acl, subject_of
from keelmq.security.core.user_changes import (
    Row,
    changed_now,
    deleted_acl,
    deleted_user,
    edited,
    is_expired,
    key_of,
    newer,
    present,
)
from keelmq.security.core.users import InvalidUser, User, parse_stored_user
from keelmq.security.private_file import read_private

FILE_BYTES_MAX: Final = 16_777_216
KEPT_SHOWN_MAX: Final = 5

log = logging.getLogger(__name__)


class BadUsersFile(ValueError):
    """The text has the file and what is wrong with it; never a secret."""


class UsersFile:
    """UsersAndAcls of one directory. Absent files are empty ones."""

    def __init__(self, directory: Path, *, clock: Callable[[], int] = wall_ms) -> None:
        self._clock = clock
        self.users_path = directory / "users.json"
        self.acls_path = directory / "acls.json"
        self._users: dict[str, User] = {}
        self._acls: dict[str, Acl] = {}
        self._hashes: tuple[bytes, ...] = (_hash(b""), _hash(b""))
        """Hashes of the two files, as they were last read or written."""
        self._generation = 0
        self.problem: str | None = None
        """Why the files as they are now do not count; None: they do."""

    # -- UsersAndAcls ------------------------------------------------------------------------------------

    @property
    def generation(self) -> int:
        return self._generation

    def user(self, username: str) -> User | None:
        found = self._users.get(username)
        return None if found is None or found.is_deleted else found

    def acl(self, subject: str) -> Acl | None:
        found = self._acls.get(subject)
        return None if found is None or found.is_deleted else found

    def users(self) -> list[User]:
        return present(self._users.values())

    def acls(self) -> list[Acl]:
        return present(self._acls.values())

    def all_users(self) -> Mapping[str, User]:
        """Returns the users and the tombstones of deleted ones."""
        return self._users

    def all_acls(self) -> Mapping[str, Acl]:
        """Returns the ACLs and the tombstones of deleted ones."""
        return self._acls

    # -- reading -----------------------------------------------------------------------------------------

    def load(self) -> None:
        """Reads the files at start. Raises BadUsersFile and OSError."""
        self._users, self._acls, self._hashes = self._parsed()
        self._generation += 1

    def poll(self) -> bool:
        """Reads the files, and takes what was added or changed in them. Returns whether they were edited.
        Never raises for a file."""
        try:
            hashes = _hash(self._read(self.users_path)), _hash(self._read(self.acls_path))
            if hashes == self._hashes:
                self.problem = None
                return False
            self._take_edit()
        except (BadUsersFile, OSError) as error:
            if str(error) != self.problem:
                log.error("users and ACLs are not read again, the last good ones stay: %s", error)
            self.problem = str(error)
            return False
        self.problem = None
        return True

    def _take_edit(self) -> None:
        """Raises BadUsersFile and OSError."""
        users, acls, hashes = self._parsed()
        now_ms = self._clock()
        after_users, after_acls = edited(users, self._users, now_ms), edited(acls, self._acls, now_ms)
        kept = [*_kept(after_users, self._users, users), *_kept(after_acls, self._acls, acls)]
        if kept:
            log.warning(
                "%s or %s was replaced by a file that lacks users or ACLs, or has older ones: %s as before; "
                "mqadmin deleteUser, updateUser, deleteAcl and updateAcl change them",
                self.users_path,
                self.acls_path.name,
                ", ".join(kept[:KEPT_SHOWN_MAX]) + (", ... stay" if len(kept) > KEPT_SHOWN_MAX else " stay"),
            )
        self._users, self._acls, self._hashes = after_users, after_acls, hashes
        self._generation += 1
        if _times(after_users) != _times(users):
            self._save_users(after_users)
        if _times(after_acls) != _times(acls):
            self._save_acls(after_acls)

    def _parsed(self) -> tuple[dict[str, User], dict[str, Acl], tuple[bytes, ...]]:
        users_data, acls_data = self._read(self.users_path), self._read(self.acls_path)
        users = _parse(users_data, self.users_path, "users", parse_stored_user)
        acls = _parse(acls_data, self.acls_path, "acls", parse_stored_acl)
        return users, acls, (_hash(users_data), _hash(acls_data))

    def _read(self, path: Path) -> bytes:
        try:
            return read_private(path, FILE_BYTES_MAX)
        except FileNotFoundError:
            return b""
        except ValueError as error:
            raise BadUsersFile(f"{path} {error}") from None

    # -- changing ----------------------------------------------------------------------------------------

    def check(self) -> None:
        """Takes what an administrator has edited, since a change writes whole files. Raises BadUsersFile and
        OSError: the files as they are now cannot be used, so a change would overwrite the edit."""
        if not self.poll() and self.problem is not None:
            raise BadUsersFile(self.problem)

    def put_user(self, user: User, *, first: bool = False) -> None:
        """Adds or replaces a user. first: as a configuration file creates it, so that any change of it at
        another server is newer. Raises OSError, and then nothing has changed."""
        known = self._users.get(user.username)
        row = user if first else changed_now(user, known, self._clock())
        self._save_users({**self._users, user.username: row})

    def delete_user(self, username: str) -> None:
        """Deletes a user, and its ACL first: after a crash in between it has no rights. Raises OSError:
        nothing has changed, or the ACL is deleted (a new generation)."""
        known = self._users.get(username)
        if known is None and subject_of(username) not in self._acls:
            return
        self.delete_acl(subject_of(username))
        if known is not None and not known.is_deleted:
            row = deleted_user(username, secrets.token_hex(), known, self._clock())
            self._save_users({**self._users, username: row})

    def put_acl(self, acl: Acl, *, first: bool = False) -> None:
        """Adds or replaces a subject's ACL. first: see put_user(). Raises OSError, and then nothing has
        changed."""
        row = acl if first else changed_now(acl, self._acls.get(acl.subject), self._clock())
        self._save_acls({**self._acls, acl.subject: row})

    def delete_acl(self, subject: str) -> None:
        """Deletes an ACL. Raises OSError, and then nothing has changed."""
        known = self._acls.get(subject)
        if known is not None and not known.is_deleted:
            row = deleted_acl(subject.removeprefix(SUBJECT_PREFIX), known, self._clock())
            self._save_acls({**self._acls, subject: row})

    def merge(self, users: Sequence[User], acls: Sequence[Acl]) -> bool:
        """Takes the rows that are newer than those here, with their times. Returns whether there were any.
        ACLs of deleted users go first. Raises OSError: nothing, or a part of it, is done."""
        now_ms = self._clock()
        newer_acls = {key_of(each): each for each in newer(acls, self._acls, now_ms)}
        newer_users = {key_of(each): each for each in newer(users, self._users, now_ms)}
        if gone := {key: each for key, each in newer_acls.items() if each.is_deleted}:
            self._save_acls({**self._acls, **gone})
        if newer_users:
            self._save_users({**self._users, **newer_users})
        if len(gone) < len(newer_acls):
            self._save_acls({**self._acls, **newer_acls})
        return bool(newer_acls or newer_users)

    def _save_users(self, users: dict[str, User]) -> None:
        users = _without_expired(users, self._clock())
        data = _encode({"users": [user.stored() for user in users.values()]})
        _replace_private(self.users_path, data)
        self._users = users
        self._saved(_hash(data), self._hashes[1])

    def _save_acls(self, acls: dict[str, Acl]) -> None:
        acls = _without_expired(acls, self._clock())
        data = _encode({"acls": [acl.stored() for acl in acls.values()]})
        _replace_private(self.acls_path, data)
        self._acls = acls
        self._saved(self._hashes[0], _hash(data))

    def _saved(self, *hashes: bytes) -> None:
        """What is in memory is what is in the files: the next poll has nothing to do."""
        self._generation += 1
        self._hashes = hashes


def _without_expired(rows: dict[str, Row], now_ms: int) -> dict[str, Row]:
    return {key: row for key, row in rows.items() if not is_expired(row, now_ms)}


def _kept(after: Mapping[str, Row], before: Mapping[str, Row], read: Mapping[str, Row]) -> list[str]:
    """Returns the keys of rows that are not as in the file that was read."""
    return sorted(
        key
        for key, row in before.items()
        if after[key] is row and read.get(key) != row and (key in read or not row.is_deleted)
    )


def _times(rows: Mapping[str, User] | Mapping[str, Acl]) -> dict[str, int]:
    return {key: row.changed_ms for key, row in rows.items()}


def _replace_private(path: Path, data: bytes) -> None:
    """No earlier version is kept: a deleted user's secret must not stay in it."""
    replace_file(path, data, keep_backup=False, private=True)


def _encode(value: Mapping[str, Any]) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


def _hash(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def _decode(data: bytes, path: Path, name: str) -> list[Any]:
    if not data.strip():
        return []
    try:
        value = msgspec.json.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise BadUsersFile(f"{path} is not JSON") from None
    listed = value.get(name) if isinstance(value, dict) else None
    if not isinstance(listed, list):
        raise BadUsersFile(f'{path} has no list "{name}"')
    return listed


def _parse(data: bytes, path: Path, name: str, parse: Callable[[object], Row]) -> dict[str, Row]:
    """Returns the rows of the list `name`. Raises BadUsersFile."""
    rows: dict[str, Row] = {}
    for at, each in enumerate(_decode(data, path, name)):
        try:
            row = parse(each)
        except (InvalidUser, InvalidAcl) as error:
            raise BadUsersFile(f"{path}: {name}[{at}]: {error}") from None
        key = key_of(row)
        if key in rows:
            raise BadUsersFile(f"{path}: {name}[{at}]: {key} is there twice")
        rows[key] = row
    return rows
