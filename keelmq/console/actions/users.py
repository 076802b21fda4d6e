"""Actions on users and access control lists: at every master of a cluster, and at name servers
that keep users.

Passwords are SecretStr: they are not in previews, answers, logs or the audit log.
"""

from collections.abc import Awaitable, Callable
from typing import Annotated, Final, Literal

from pydantic import ConfigDict, Field, SecretStr, StringConstraints

from keelmq.console.actions.action import (
    Acting,
    Action,
    Parameters,
    Preview,
    ServerOutcome,
    at_each,
    command_line,
    explained_at,
)
from keelmq.console.actions.masters import masters
from keelmq.remoting.codes import RequestCode, ResponseCode
from keelmq.remoting.operation import Role
from keelmq.remoting.operations.auth import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo

PASSWORD_FILE: Final = "FILE"
SUBJECT: Final = r"^User:.+$"

UserName = Annotated[str, StringConstraints(min_length=1, max_length=256, strip_whitespace=True)]


class _OfCluster(Parameters):
    cluster: str = Field(min_length=1, max_length=256)


class CreateUser(_OfCluster):
    """A new user. Blanks around a password belong to it."""

    model_config = ConfigDict(str_strip_whitespace=False)

    username: UserName
    password: SecretStr = Field(min_length=1, max_length=1_024)
    user_type: Literal["Normal", "Super"] = "Normal"


class UpdateUser(_OfCluster):
    """What is null stays as it is. Blanks around a password belong to it."""

    model_config = ConfigDict(str_strip_whitespace=False)

    username: UserName
    password: SecretStr | None = Field(default=None, min_length=1, max_length=1_024)
    user_type: Literal["Normal", "Super"] | None = None
    user_status: Literal["enable", "disable"] | None = None


class DeleteUser(_OfCluster):
    """The user and its ACL."""

    username: str = Field(min_length=1, max_length=256)


class UpdateAcl(_OfCluster):
    """Replaces the entries of these resources in the subject's ACL; makes it if there is none."""

    subject: str = Field(min_length=6, max_length=256, pattern=SUBJECT)
    resources: list[str] = Field(min_length=1, max_length=100)
    actions: list[Literal["All", "Pub", "Sub", "Create", "Update", "Delete", "Get", "List"]] = Field(
        min_length=1, max_length=8
    )
    decision: Literal["Allow", "Deny"] = "Allow"
    source_ips: list[str] = Field(default_factory=list, max_length=100)


class DeleteAcl(_OfCluster):
    """resource null: the whole ACL."""

    subject: str = Field(min_length=6, max_length=256, pattern=SUBJECT)
    resource: str | None = Field(default=None, max_length=512)


async def _at_all(acting: Acting, cluster: str, ask: Callable[[str], Awaitable[None]]) -> list[ServerOutcome]:
    """Asks the masters, and the name servers that keep users: clients sign requests to these, too."""
    at = await masters(acting, cluster)
    done = await at_each(at.addresses, ask)
    also = await at_each(acting.name_servers, ask)
    unable = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    return done + [each for each in also if each.code != unable]


async def _preview(
    acting: Acting,
    cluster: str,
    what: str,
    command: str,
    *,
    subject: str = "",
    must_exist: bool | None = None,
    find: Callable[[str], Awaitable[object | None]] | None = None,
    confirm: str = "",
) -> Preview:
    at = await masters(acting, cluster)
    warnings, is_possible = list(at.warnings), True
    if find is not None:
        explained = await explained_at(at.addresses, find)
        there = [address for address, found in explained.answers.items() if found is not None]
        warnings += explained.warnings
        is_possible = explained.is_possible
        if must_exist is False and there:
            warnings.append(f"{subject} exists at {', '.join(there)}: it would be refused there")
            is_possible = len(there) < len(at.addresses)
        if must_exist and explained.is_nowhere(lambda found: found is not None):
            warnings.append(f"{subject} does not exist")
            is_possible = False
    return Preview(
        what=what,
        servers=[*at.addresses, *acting.name_servers],
        warnings=warnings,
        command=command,
        is_possible=is_possible,
        type_to_confirm=confirm,
    )


def _line(acting: Acting, name: str, cluster: str, *more: object) -> str:
    return command_line("mqadmin", name, "-n", acting.name_server_list, "-c", cluster, *more)


async def _preview_create(acting: Acting, request: CreateUser) -> Preview:
    command = _line(
        acting, "createUser", request.cluster, "-u", request.username, "-t", request.user_type,
        "--passwordFile", PASSWORD_FILE,
    )  # fmt: skip
    return await _preview(
        acting,
        request.cluster,
        f"User {request.username} ({request.user_type}) is created in cluster {request.cluster}.",
        command,
        subject=f"user {request.username}",
        must_exist=False,
        find=lambda at: acting.admin.auth.get_user(at, request.username),
    )


async def _create(acting: Acting, request: CreateUser) -> list[ServerOutcome]:
    user = UserInfo(
        username=request.username, password=request.password.get_secret_value(), user_type=request.user_type
    )
    return await _at_all(acting, request.cluster, lambda at: acting.admin.auth.create_user(at, user))


async def _preview_update(acting: Acting, request: UpdateUser) -> Preview:
    changes = [
        *(["a new password"] if request.password else []),
        *([f"type {request.user_type}"] if request.user_type else []),
        *([f"status {request.user_status}"] if request.user_status else []),
    ]
    command = _line(
        acting, "updateUser", request.cluster, "-u", request.username, "-t", request.user_type,
        "-s", request.user_status, *(["--passwordFile", PASSWORD_FILE] if request.password else []),
    )  # fmt: skip
    preview = await _preview(
        acting,
        request.cluster,
        f"User {request.username} gets {', '.join(changes) or 'nothing new'} in cluster {request.cluster}.",
        command,
        subject=f"user {request.username}",
        must_exist=True,
        find=lambda at: acting.admin.auth.get_user(at, request.username),
    )
    warnings = list(preview.warnings)
    if acting.user == request.username:
        warnings.append("this is the user that you are logged in as: you may be logged out")
    return preview.model_copy(
        update={"warnings": warnings, "is_possible": preview.is_possible and bool(changes)}
    )


async def _update(acting: Acting, request: UpdateUser) -> list[ServerOutcome]:
    user = UserInfo(
        username=request.username,
        password=None if request.password is None else request.password.get_secret_value(),
        user_type=request.user_type,
        user_status=request.user_status,
    )
    return await _at_all(acting, request.cluster, lambda at: acting.admin.auth.update_user(at, user))


async def _preview_delete(acting: Acting, request: DeleteUser) -> Preview:
    preview = await _preview(
        acting,
        request.cluster,
        f"User {request.username} and its ACL are deleted in cluster {request.cluster}.",
        _line(acting, "deleteUser", request.cluster, "-u", request.username),
        subject=f"user {request.username}",
        must_exist=True,
        find=lambda at: acting.admin.auth.explain_delete_user(at, request.username),
        confirm=request.username,
    )
    if acting.user != request.username:
        return preview
    warnings = [*preview.warnings, "this is the user that you are logged in as"]
    return preview.model_copy(update={"warnings": warnings})


async def _delete(acting: Acting, request: DeleteUser) -> list[ServerOutcome]:
    return await _at_all(
        acting, request.cluster, lambda at: acting.admin.auth.delete_user(at, request.username)
    )


def _acl(request: UpdateAcl) -> AclInfo:
    entries = [
        PolicyEntryInfo(
            resource=each,
            actions=list(request.actions),
            source_ips=request.source_ips or None,
            decision=request.decision,
        )
        for each in request.resources
    ]
    return AclInfo(subject=request.subject, policies=[PolicyInfo(policy_type="Custom", entries=entries)])


async def _preview_acl(acting: Acting, request: UpdateAcl) -> Preview:
    name = request.subject.removeprefix("User:")
    command = _line(
        acting, "updateAcl", request.cluster, "-s", request.subject, "-r", ",".join(request.resources),
        "-a", ",".join(request.actions), "-d", request.decision, "-i", ",".join(request.source_ips),
    )  # fmt: skip
    verb = "may" if request.decision == "Allow" else "may not"
    where = f" from {', '.join(request.source_ips)}" if request.source_ips else ""
    what = f"{request.subject} {verb} {', '.join(request.actions)} on {', '.join(request.resources)}"
    return await _preview(
        acting,
        request.cluster,
        f"{what}{where}.",
        command,
        subject=f"user {name}",
        must_exist=True,
        find=lambda at: acting.admin.auth.get_user(at, name),
    )


async def _update_acl(acting: Acting, request: UpdateAcl) -> list[ServerOutcome]:
    acl = _acl(request)

    async def ask(at: str) -> None:
        has_one = await acting.admin.auth.get_acl(at, request.subject) is not None
        await (acting.admin.auth.update_acl if has_one else acting.admin.auth.create_acl)(at, acl)

    return await _at_all(acting, request.cluster, ask)


async def _preview_delete_acl(acting: Acting, request: DeleteAcl) -> Preview:
    which = f"the entries of {request.resource} in the ACL" if request.resource else "the whole ACL"
    return await _preview(
        acting,
        request.cluster,
        f"{which} of {request.subject} in cluster {request.cluster}: what it allows is forbidden afterwards, "
        "and what it forbids may be allowed.",
        _line(acting, "deleteAcl", request.cluster, "-s", request.subject, "-r", request.resource),
        subject=f"the ACL of {request.subject}",
        must_exist=True,
        find=lambda at: acting.admin.auth.explain_delete_acl(at, request.subject, request.resource),
        confirm=request.subject,
    )


async def _delete_acl(acting: Acting, request: DeleteAcl) -> list[ServerOutcome]:
    return await _at_all(
        acting,
        request.cluster,
        lambda at: acting.admin.auth.delete_acl(at, request.subject, request.resource),
    )


_CLUSTER: Final = {"cluster": "DefaultCluster"}
CREATE_USER: Final = Action(
    name="createUser",
    title="create a user",
    description="At every master of a cluster, and at name servers that keep users.",
    parameters=CreateUser,
    role=Role.ADMINISTER,
    code=RequestCode.AUTH_CREATE_USER,
    preview=_preview_create,
    run=_create,
    example={**_CLUSTER, "username": "alice", "password": "a long one", "userType": "Normal"},
)
UPDATE_USER: Final = Action(
    name="updateUser",
    title="change a user",
    description="Its password, type or status; values that are null do not change.",
    parameters=UpdateUser,
    role=Role.ADMINISTER,
    code=RequestCode.AUTH_UPDATE_USER,
    preview=_preview_update,
    run=_update,
    example={**_CLUSTER, "username": "alice", "userStatus": "disable"},
)
DELETE_USER: Final = Action(
    name="deleteUser",
    title="delete a user",
    description="With its ACL.",
    parameters=DeleteUser,
    role=Role.ADMINISTER,
    code=RequestCode.AUTH_DELETE_USER,
    preview=_preview_delete,
    run=_delete,
    example={**_CLUSTER, "username": "alice"},
)
UPDATE_ACL: Final = Action(
    name="updateAcl",
    title="grant or deny a user something",
    description="Replaces the entries of these resources in the ACL; makes the ACL if there is none.",
    parameters=UpdateAcl,
    role=Role.ADMINISTER,
    code=RequestCode.AUTH_UPDATE_ACL,
    preview=_preview_acl,
    run=_update_acl,
    example={**_CLUSTER, "subject": "User:alice", "resources": ["Topic:orders"], "actions": ["Pub", "Sub"]},
)
DELETE_ACL: Final = Action(
    name="deleteAcl",
    title="delete an ACL, or its entries of a resource",
    description="At every master of a cluster, and at name servers that keep users.",
    parameters=DeleteAcl,
    role=Role.ADMINISTER,
    code=RequestCode.AUTH_DELETE_ACL,
    preview=_preview_delete_acl,
    run=_delete_acl,
    example={**_CLUSTER, "subject": "User:alice", "resource": "Topic:orders"},
)
ACTIONS: Final = (CREATE_USER, UPDATE_USER, DELETE_USER, UPDATE_ACL, DELETE_ACL)
