"""Handlers of users (3001-3005) and ACLs (3006-3010), for every program.

Passwords are never answered (pitfall 21). Codes and remarks: RocketMQ 5.3.3 AdminBrokerProcessor,
AuthenticationMetadataManagerImpl, AuthorizationMetadataManagerImpl. Different on purpose: creating again what
is there already is a success, since tools send the request to every broker of a group."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Call, CommandError, Operation, OperationTable, Reply, Wire
from keelmq.remoting.operations.auth import (
    AUTH_CREATE_ACL,
    AUTH_CREATE_USER,
    AUTH_DELETE_ACL,
    AUTH_DELETE_USER,
    AUTH_GET_ACL,
    AUTH_GET_USER,
    AUTH_LIST_ACL,
    AUTH_LIST_USER,
    AUTH_UPDATE_ACL,
    AUTH_UPDATE_USER,
    EXPLAIN_DELETE_ACL,
    EXPLAIN_DELETE_USER,
    AclDeletion,
    AclInfo,
    AclRequest,
    DeleteAclRequest,
    ListAclsRequest,
    ListUsersRequest,
    UserDeletion,
    UserInfo,
    UserRequest,
)
from keelmq.security.core.acls import (
    SUBJECT_PREFIX,
    Acl,
    InvalidAcl,
    PolicyType,
    Resource,
    parse_acl,
    parse_policy_type,
    parse_resource,
    parse_subject,
)
from keelmq.security.core.users import InvalidUser, User, create_user, update_user
from keelmq.security.user_store import UserStore

Change = UserRequest | AclRequest | DeleteAclRequest
Forward = Callable[[Operation[Any, Any], Change, Wire | None], Awaitable[bool]]
"""Sends a change to the master. True: it was carried out there; False: this program carries it out. Raises
CommandError."""

USERS_MAX = 10_000
Parsed = TypeVar("Parsed")


async def _here(operation: Operation[Any, Any], header: Change, body: Wire | None) -> bool:
    return False


class UserRequests:
    """member: name of the user that members sign as, which no request may take."""

    def __init__(self, store: UserStore, *, member: str | None = None, forward: Forward = _here) -> None:
        self._store, self._member, self._forward = store, member, forward
        self._changing = asyncio.Lock()

    def bind(self, table: OperationTable) -> None:
        """Binds 3001 to 3010, 29054 and 29055."""
        table.bind(AUTH_CREATE_USER, self.create_user)
        table.bind(AUTH_UPDATE_USER, self.update_user)
        table.bind(AUTH_DELETE_USER, self.delete_user)
        table.bind(EXPLAIN_DELETE_USER, self.explain_delete_user)
        table.bind(AUTH_GET_USER, self.get_user)
        table.bind(AUTH_LIST_USER, self.list_users)
        table.bind(AUTH_CREATE_ACL, self.create_acl)
        table.bind(AUTH_UPDATE_ACL, self.update_acl)
        table.bind(AUTH_DELETE_ACL, self.delete_acl)
        table.bind(EXPLAIN_DELETE_ACL, self.explain_delete_acl)
        table.bind(AUTH_GET_ACL, self.get_acl)
        table.bind(AUTH_LIST_ACL, self.list_acls)

    # -- users -------------------------------------------------------------------------------------------

    async def create_user(self, header: UserRequest, call: Call) -> Reply:
        """Creates a user (3001)."""
        self._check_name(header.username)
        user = _parsed(lambda: create_user(header.username, _fields(call)))
        self._refuse_others(header, call, user)
        if await self._is_forwarded(AUTH_CREATE_USER, header, call):
            return Reply()
        async with self._changing:
            found = self._store.user(user.username)
            if found == user:
                return Reply()
            if found is not None:
                raise _refused(f"The user is existed: {user.username}; updateUser changes it")
            if len(self._store.users()) >= USERS_MAX:
                raise CommandError(ResponseCode.SYSTEM_ERROR, f"there are already {USERS_MAX} users")
            call.changes[user.username] = None, user.info()
            await self._store.save_user(user)
        return Reply()

    async def update_user(self, header: UserRequest, call: Call) -> Reply:
        """Changes what the body names of a user (3002)."""
        self._check_name(header.username)
        self._refuse_others(header, call, self._store.user(header.username))
        if await self._is_forwarded(AUTH_UPDATE_USER, header, call):
            return Reply()
        async with self._changing:
            found = self._store.user(header.username)
            if found is None:
                raise _refused(f"The user is not exist: {header.username}; createUser makes it")
            user = _parsed(lambda: update_user(found, _fields(call)))
            self._refuse_others(header, call, found, user)
            call.changes[user.username] = found.info(), user.info()
            if found.password != user.password:
                call.changes[f"password of {user.username}"] = "old", "new"
            await self._store.save_user(user)
        return Reply()

    async def delete_user(self, header: UserRequest, call: Call) -> Reply:
        """Deletes a user and its ACL (3003)."""
        self._check_name(header.username)
        self._refuse_others(header, call, self._store.user(header.username))
        if await self._is_forwarded(AUTH_DELETE_USER, header, call):
            return Reply()
        async with self._changing:
            found = self._store.user(header.username)
            self._refuse_others(header, call, found)
            if found is not None:
                call.changes[header.username] = found.info(), None
            await self._store.remove_user(header.username)
        return Reply()

    async def explain_delete_user(self, header: UserRequest, call: Call) -> Reply:
        """Returns the user that 3003 would delete, and deletes nothing (29054). Raises CommandError as
        3003."""
        found = self._store.user(header.username)
        self._check_name(header.username)
        self._refuse_others(header, call, found)
        return Reply(body=UserDeletion(user=None if found is None else _user_info(found)))

    async def get_user(self, header: UserRequest, call: Call) -> Reply:
        """Returns a user without its password (3004); no body if there is none."""
        _check_blank(header.username)
        found = self._store.user(header.username)
        return Reply(body=None if found is None else _user_info(found))

    async def list_users(self, header: ListUsersRequest, call: Call) -> Reply:
        """Returns the users whose names contain the filter (3005); no body if there are none."""
        wanted = header.filter or ""
        users = sorted(self._store.users(), key=lambda user: user.username)
        found = [_user_info(user) for user in users if wanted in user.username]
        return Reply(body=found or None)

    async def _is_forwarded(self, operation: Operation[Any, Any], header: Change, call: Call) -> bool:
        """Returns whether the master has carried it out. The forwarded request names the user, since this
        member sends it. Raises CommandError."""
        marked = header.model_copy(update={"forwarded_for": _sender_of(header, call) or None})
        return await self._forward(operation, marked, _body(call))

    def _check_name(self, username: str) -> None:
        _check_blank(username)
        if username == self._member:
            raise _refused(
                f"{username} is the user of the cluster's members: innerClientAuthenticationCredentials "
                "has it, and no request changes it"
            )

    def _refuse_others(self, header: UserRequest, call: Call, *users: User | None) -> None:
        """Only Super users touch Super users: otherwise a user who may administer users could become one."""
        name = _sender_of(header, call)
        if not name:
            return
        caller = self._store.user(name)
        if (caller is None or not caller.is_super) and any(user and user.is_super for user in users):
            remark = f"User:{name} is not a Super user: only those create, change or delete Super users"
            raise CommandError(ResponseCode.SYSTEM_ERROR, remark)

    # -- ACLs --------------------------------------------------------------------------------------------

    async def create_acl(self, header: AclRequest, call: Call) -> Reply:
        """Creates the ACL of a user, or adds to the one that is there (3006)."""
        return await self._merge(AUTH_CREATE_ACL, header, call)

    async def update_acl(self, header: AclRequest, call: Call) -> Reply:
        """Adds entries to the ACL of a user; those of the same resource are replaced (3007)."""
        return await self._merge(AUTH_UPDATE_ACL, header, call)

    async def _merge(self, operation: Operation[Any, Any], header: AclRequest, call: Call) -> Reply:
        _check_blank(header.subject)
        acl = _parsed(lambda: parse_acl(_fields(call), header.subject))
        if await self._is_forwarded(operation, header, call):
            return Reply()
        async with self._changing:
            if self._store.user(acl.subject.removeprefix(SUBJECT_PREFIX)) is None:
                raise _refused(f"The subject of {acl.subject} is not exist; createUser makes the user")
            found = self._store.acl(acl.subject)
            merged = acl if found is None else _parsed(lambda: found.merged(acl))
            call.changes[acl.subject] = None if found is None else found.info(), merged.info()
            await self._store.save_acl(merged)
        return Reply()

    async def delete_acl(self, header: DeleteAclRequest, call: Call) -> Reply:
        """Deletes the entries of a resource, or the whole ACL (3008)."""
        subject, resource, policy_type = _deleted_of(header)
        if await self._is_forwarded(AUTH_DELETE_ACL, header, call):
            return Reply()
        async with self._changing:
            found = self._store.acl(subject)
            if found is None:
                return Reply()
            left = found.without(resource, policy_type)
            call.changes[subject] = found.info(), None if left is None else left.info()
            if left is None:
                await self._store.remove_acl(subject)
            else:
                await self._store.save_acl(left)
        return Reply()

    async def explain_delete_acl(self, header: DeleteAclRequest, call: Call) -> Reply:
        """Returns the ACL from which 3008 would delete, and deletes nothing (29055). Raises CommandError as
        3008."""
        found = self._store.acl(_deleted_of(header)[0])
        return Reply(body=AclDeletion(acl=None if found is None else _acl_info(found)))

    async def get_acl(self, header: AclRequest, call: Call) -> Reply:
        """Returns an ACL (3009); no body if there is none."""
        _check_blank(header.subject)
        found = self._store.acl(_parsed(lambda: parse_subject(header.subject)))
        return Reply(body=None if found is None else _acl_info(found))

    async def list_acls(self, header: ListAclsRequest, call: Call) -> Reply:
        """Returns the ACLs whose subject and resources contain the filters (3010); no body if there are
        none."""
        found: list[Acl] = []
        for acl in sorted(self._store.acls(), key=lambda acl: acl.subject):
            if (header.subject_filter or "") not in acl.subject:
                continue
            about = acl.about(header.resource_filter) if header.resource_filter else acl
            found += [] if about is None else [about]
        return Reply(body=[_acl_info(acl) for acl in found] or None)


def _sender_of(header: Change, call: Call) -> str:
    """Returns the user whose rights count; "": a member, or nothing was checked."""
    return (header.forwarded_for or "") if call.caller.is_member else call.caller.user


def _deleted_of(header: DeleteAclRequest) -> tuple[str, Resource | None, PolicyType]:
    """Returns the subject, the resource (None: all) and the policy of a deletion. Raises CommandError."""
    _check_blank(header.subject)
    text = header.resource
    return (
        _parsed(lambda: parse_subject(header.subject)),
        None if not text else _parsed(lambda: parse_resource(text)),
        _parsed(lambda: parse_policy_type(header.policy_type)),
    )


def _check_blank(text: str) -> None:
    if not text.strip():
        raise CommandError(ResponseCode.INVALID_PARAMETER, "The username or subject can not be blank")


def _refused(remark: str) -> CommandError:
    return CommandError(ResponseCode.NO_PERMISSION, remark)


def _parsed(parse: Callable[[], Parsed]) -> Parsed:
    try:
        return parse()
    except (InvalidUser, InvalidAcl) as error:
        raise _refused(str(error)) from None


def _body(call: Call) -> Wire | None:
    return call.body if isinstance(call.body, Wire) else None


def _fields(call: Call) -> dict[str, Any]:
    """Returns the body's fields by their names on the wire."""
    body = _body(call)
    return {} if body is None else body.model_dump(by_alias=True, exclude_none=True)


def _user_info(user: User) -> UserInfo:
    return UserInfo.model_validate(user.info())


def _acl_info(acl: Acl) -> AclInfo:
    return AclInfo.model_validate(acl.info())
