"""users.json and acls.json: users and ACLs of programs that have no replicated tables (name server,
controller).

    users.json: {"users": [{"username", "password", "userType", "userStatus"}, ...]}
    acls.json:  {"acls": [AclInfo, ...]}

Files that others can read are refused, since they have secrets in them. Changes are durable before they
count, and what an administrator edits is read again when its content changes; a broken edit leaves the last
good state."""

import hashlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from keelmq.runtime.durable_file import replace_file
from keelmq.security.core.acls import Acl, InvalidAcl, parse_acl, subject_of
from keelmq.security.core.users import InvalidUser, User, parse_stored_user
from keelmq.security.private_file import read_private

FILE_BYTES_MAX: Final = 16_777_216

log = logging.getLogger(__name__)


class BadUsersFile(ValueError):
    """The text has the file and what is wrong with it; never a secret."""


class UsersFile:
    """UsersAndAcls of one directory. Absent files are empty ones."""

    def __init__(self, directory: Path) -> None:
        self.users_path = directory / "users.json"
        self.acls_path = directory / "acls.json"
        self._users: dict[str, User] = {}
        self._acls: dict[str, Acl] = {}
        self._hashes: tuple[bytes, ...] = (_hash(b""), _hash(b""))
        """Of the two files, as they were last read or written."""
        self._generation = 0
        self.problem: str | None = None
        """Why the files as they are now do not count; None: they do."""

    # -- UsersAndAcls ------------------------------------------------------------------------------------

    @property
    def generation(self) -> int:
        return self._generation

    def user(self, username: str) -> User | None:
        return self._users.get(username)

    def acl(self, subject: str) -> Acl | None:
        return self._acls.get(subject)

    def users(self) -> list[User]:
        return list(self._users.values())

    def acls(self) -> list[Acl]:
        return list(self._acls.values())

    # -- reading -----------------------------------------------------------------------------------------

    def load(self) -> None:
        """Reads the files at start. Raises BadUsersFile and OSError."""
        users_data, acls_data = self._read(self.users_path), self._read(self.acls_path)
        hashes = _hash(users_data), _hash(acls_data)
        users, acls = _parse_users(users_data, self.users_path), _parse_acls(acls_data, self.acls_path)
        self._hashes, self._users, self._acls = hashes, users, acls
        self._generation += 1

    def poll(self) -> bool:
        """Reads the files, and takes them if their content has changed. Never raises for a file."""
        try:
            hashes = _hash(self._read(self.users_path)), _hash(self._read(self.acls_path))
            if hashes == self._hashes:
                self.problem = None
                return False
            self.load()
        except (BadUsersFile, OSError) as error:
            if str(error) != self.problem:
                log.error("users and ACLs are not read again, the last good ones stay: %s", error)
            self.problem = str(error)
            return False
        self.problem = None
        return True

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
        OSError: the files as they are now cannot be used, so a change would overwrite somebody's edit."""
        if not self.poll() and self.problem is not None:
            raise BadUsersFile(self.problem)

    def put_user(self, user: User) -> None:
        """Adds or replaces a user. Raises OSError, and then nothing has changed."""
        self._save_users({**self._users, user.username: user})

    def delete_user(self, username: str) -> None:
        """Deletes a user and its ACL; an unknown one is a success. The ACL goes first: after a crash between
        the two the user has no rights, instead of a later user of that name having these. Raises OSError:
        nothing has changed, or the ACL is deleted (a new generation)."""
        self.delete_acl(subject_of(username))
        self._save_users({name: user for name, user in self._users.items() if name != username})

    def put_acl(self, acl: Acl) -> None:
        """Adds or replaces a subject's ACL. Raises OSError, and then nothing has changed."""
        self._save_acls({**self._acls, acl.subject: acl})

    def delete_acl(self, subject: str) -> None:
        if subject in self._acls:
            self._save_acls({name: acl for name, acl in self._acls.items() if name != subject})

    def _save_users(self, users: dict[str, User]) -> None:
        data = _encode({"users": [user.stored() for user in users.values()]})
        _replace_private(self.users_path, data)
        self._users = users
        self._saved(_hash(data), self._hashes[1])

    def _save_acls(self, acls: dict[str, Acl]) -> None:
        data = _encode({"acls": [acl.info() for acl in acls.values()]})
        _replace_private(self.acls_path, data)
        self._acls = acls
        self._saved(self._hashes[0], _hash(data))

    def _saved(self, *hashes: bytes) -> None:
        """What is in memory is what is in the files: the next poll has nothing to do."""
        self._generation += 1
        self._hashes = hashes


def _replace_private(path: Path, data: bytes) -> None:
    """No version before is kept: a deleted user's secret must not stay in it."""
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


def _parse_users(data: bytes, path: Path) -> dict[str, User]:
    users: dict[str, User] = {}
    for at, each in enumerate(_decode(data, path, "users")):
        try:
            user = parse_stored_user(each)
        except InvalidUser as error:
            raise BadUsersFile(f"{path}: users[{at}]: {error}") from None
        if user.username in users:
            raise BadUsersFile(f"{path}: users[{at}]: {user.username} is there twice")
        users[user.username] = user
    return users


def _parse_acls(data: bytes, path: Path) -> dict[str, Acl]:
    acls: dict[str, Acl] = {}
    for at, each in enumerate(_decode(data, path, "acls")):
        try:
            acl = parse_acl(each)
        except InvalidAcl as error:
            raise BadUsersFile(f"{path}: acls[{at}]: {error}") from None
        if acl.subject in acls:
            raise BadUsersFile(f"{path}: acls[{at}]: {acl.subject} is there twice")
        acls[acl.subject] = acl
    return acls
