"""UserStore: users and ACLs that requests change. A broker's are replicated tables; those of name servers
and controllers are files."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import CommandError
from keelmq.security.core.access import UsersAndAcls
from keelmq.security.core.acls import Acl
from keelmq.security.core.users import User, UserType
from keelmq.security.signer import Credentials
from keelmq.security.users_file import BadUsersFile, UsersFile


class UserStore(UsersAndAcls, Protocol):
    """A change is durable, and on the replicas that count, when its coroutine returns. They raise
    CommandError."""

    def users(self) -> Collection[User]: ...

    def acls(self) -> Collection[Acl]: ...

    async def save_user(self, user: User) -> None:
        """Adds or replaces a user."""
        ...

    async def remove_user(self, username: str) -> None:
        """Removes a user and its ACL; an unknown one is a success."""
        ...

    async def save_acl(self, acl: Acl) -> None:
        """Adds or replaces the ACL of its subject."""
        ...

    async def remove_acl(self, subject: str) -> None:
        """Removes an ACL; an unknown one is a success."""
        ...

    def all_users(self) -> Mapping[str, User]:
        """Returns the users and the tombstones of deleted ones."""
        ...

    def all_acls(self) -> Mapping[str, Acl]:
        """Returns the ACLs and the tombstones of deleted ones."""
        ...

    async def merge(self, users: Sequence[User], acls: Sequence[Acl]) -> None:
        """Takes the rows that are newer than those here, with their times."""
        ...


class FileUserStore:
    """UserStore of a UsersFile. Threads write and read the files, one at a time."""

    def __init__(self, files: UsersFile) -> None:
        self.files = files
        self._lock = asyncio.Lock()

    @property
    def generation(self) -> int:
        return self.files.generation

    def user(self, username: str) -> User | None:
        return self.files.user(username)

    def acl(self, subject: str) -> Acl | None:
        return self.files.acl(subject)

    def users(self) -> Collection[User]:
        return self.files.users()

    def acls(self) -> Collection[Acl]:
        return self.files.acls()

    def all_users(self) -> Mapping[str, User]:
        return self.files.all_users()

    def all_acls(self) -> Mapping[str, Acl]:
        return self.files.all_acls()

    async def merge(self, users: Sequence[User], acls: Sequence[Acl]) -> None:
        await self._changed(lambda: self.files.merge(users, acls))

    async def poll(self) -> None:
        """Takes the files if an administrator has changed them."""
        async with self._lock:
            await asyncio.to_thread(self.files.poll)

    async def save_user(self, user: User) -> None:
        await self._changed(lambda: self.files.put_user(user))

    async def remove_user(self, username: str) -> None:
        await self._changed(lambda: self.files.delete_user(username))

    async def save_acl(self, acl: Acl) -> None:
        await self._changed(lambda: self.files.put_acl(acl))

    async def remove_acl(self, subject: str) -> None:
        await self._changed(lambda: self.files.delete_acl(subject))

    async def _changed(self, change: Callable[[], object]) -> None:
        async with self._lock:
            try:
                await asyncio.to_thread(self.files.check)
            except (BadUsersFile, OSError) as error:
                raise CommandError(ResponseCode.SYSTEM_ERROR, f"{error}; nothing was changed") from error
            generation = self.files.generation
            try:
                await asyncio.to_thread(change)
            except OSError as error:
                is_partly_done = self.files.generation != generation
                done = "a part of it is done: repeat it later" if is_partly_done else "nothing was changed"
                remark = f"cannot write {error.filename or self.files.users_path}: {error.strerror or error}"
                raise CommandError(ResponseCode.SYSTEM_ERROR, f"{remark}; {done}") from error


class NoUsers:
    """UsersAndAcls of a program that keeps none: only members are known there."""

    generation = 0

    def user(self, username: str) -> User | None:
        return None

    def acl(self, subject: str) -> Acl | None:
        return None


class WithMember:
    """UsersAndAcls with the user that members sign as. That one is in no table: no request can change or
    delete it, and a replica that has no table yet knows it."""

    def __init__(self, users: UsersAndAcls, member: Credentials | None) -> None:
        self._users = users
        self._member = None if member is None else User(member.access_key, member.secret_key, UserType.SUPER)

    @property
    def generation(self) -> int:
        return self._users.generation

    def user(self, username: str) -> User | None:
        if self._member is not None and username == self._member.username:
            return self._member
        return self._users.user(username)

    def acl(self, subject: str) -> Acl | None:
        return self._users.acl(subject)
