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
        said = await explained_at(at.addresses, find)
        there = [address for address, found in said.told.items() if found is not None]
        warnings += said.warnings
        is_possible = said.is_possible
        if must_exist is False and there:
            warnings.append(f"{subject} exists at {', '.join(there)}: it would be refused there")
            is_possible = len(there) < len(at.addresses)
        if must_exist and said.is_nowhere(lambda found: found is not None):
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


async def _preview_create(acting: Acting, asked: CreateUser) -> Preview:
    command = _line(
        acting, "createUser", asked.cluster, "-u", asked.username, "-t", asked.user_type,
        "--passwordFile", PASSWORD_FILE,
    )  # fmt: skip
    return await _preview(
        acting,
        asked.cluster,
        f"User {asked.username} ({asked.user_type}) is created in cluster {asked.cluster}.",
        command,
        subject=f"user {asked.username}",
        must_exist=False,
        find=lambda at: acting.admin.auth.get_user(at, asked.username),
    )


async def _create(acting: Acting, asked: CreateUser) -> list[ServerOutcome]:
    user = UserInfo(
        username=asked.username, password=asked.password.get_secret_value(), user_type=asked.user_type
    )
    return await _at_all(acting, asked.cluster, lambda at: acting.admin.auth.create_user(at, user))


async def _preview_update(acting: Acting, asked: UpdateUser) -> Preview:
    changes = [
        *(["a new password"] if asked.password else []),
        *([f"type {asked.user_type}"] if asked.user_type else []),
        *([f"status {asked.user_status}"] if asked.user_status else []),
    ]
    command = _line(
        acting, "updateUser", asked.cluster, "-u", asked.username, "-t", asked.user_type,
        "-s", asked.user_status, *(["--passwordFile", PASSWORD_FILE] if asked.password else []),
    )  # fmt: skip
    preview = await _preview(
        acting,
        asked.cluster,
        f"User {asked.username} gets {', '.join(changes) or 'nothing new'} in cluster {asked.cluster}.",
        command,
        subject=f"user {asked.username}",
        must_exist=True,
        find=lambda at: acting.admin.auth.get_user(at, asked.username),
    )
    warnings = list(preview.warnings)
    if acting.user == asked.username:
        warnings.append("this is the user that you are logged in as: you may be logged out")
    return preview.model_copy(
        update={"warnings": warnings, "is_possible": preview.is_possible and bool(changes)}
    )


async def _update(acting: Acting, asked: UpdateUser) -> list[ServerOutcome]:
    user = UserInfo(
        username=asked.username,
        password=None if asked.password is None else asked.password.get_secret_value(),
        user_type=asked.user_type,
        user_status=asked.user_status,
    )
    return await _at_all(acting, asked.cluster, lambda at: acting.admin.auth.update_user(at, user))


async def _preview_delete(acting: Acting, asked: DeleteUser) -> Preview:
    preview = await _preview(
        acting,
        asked.cluster,
        f"User {asked.username} and its ACL are deleted in cluster {asked.cluster}.",
        _line(acting, "deleteUser", asked.cluster, "-u", asked.username),
        subject=f"user {asked.username}",
        must_exist=True,
        find=lambda at: acting.admin.auth.explain_delete_user(at, asked.username),
        confirm=asked.username,
    )
    if acting.user != asked.username:
        return preview
    warnings = [*preview.warnings, "this is the user that you are logged in as"]
    return preview.model_copy(update={"warnings": warnings})


async def _delete(acting: Acting, asked: DeleteUser) -> list[ServerOutcome]:
    return await _at_all(acting, asked.cluster, lambda at: acting.admin.auth.delete_user(at, asked.username))


def _acl(asked: UpdateAcl) -> AclInfo:
    entries = [
        PolicyEntryInfo(
            resource=each,
            actions=list(asked.actions),
            source_ips=asked.source_ips or None,
            decision=asked.decision,
        )
        for each in asked.resources
    ]
    return AclInfo(subject=asked.subject, policies=[PolicyInfo(policy_type="Custom", entries=entries)])


async def _preview_acl(acting: Acting, asked: UpdateAcl) -> Preview:
    name = asked.subject.removeprefix("User:")
    command = _line(
        acting, "updateAcl", asked.cluster, "-s", asked.subject, "-r", ",".join(asked.resources),
        "-a", ",".join(asked.actions), "-d", asked.decision, "-i", ",".join(asked.source_ips),
    )  # fmt: skip
    verb = "may" if asked.decision == "Allow" else "may not"
    where = f" from {', '.join(asked.source_ips)}" if asked.source_ips else ""
    what = f"{asked.subject} {verb} {', '.join(asked.actions)} on {', '.join(asked.resources)}"
    return await _preview(
        acting,
        asked.cluster,
        f"{what}{where}.",
        command,
        subject=f"user {name}",
        must_exist=True,
        find=lambda at: acting.admin.auth.get_user(at, name),
    )


async def _update_acl(acting: Acting, asked: UpdateAcl) -> list[ServerOutcome]:
    acl = _acl(asked)

    async def ask(at: str) -> None:
        has_one = await acting.admin.auth.get_acl(at, asked.subject) is not None
        await (acting.admin.auth.update_acl if has_one else acting.admin.auth.create_acl)(at, acl)

    return await _at_all(acting, asked.cluster, ask)


async def _preview_delete_acl(acting: Acting, asked: DeleteAcl) -> Preview:
    which = f"the entries of {asked.resource} in the ACL" if asked.resource else "the whole ACL"
    return await _preview(
        acting,
        asked.cluster,
        f"{which} of {asked.subject} in cluster {asked.cluster}: what it allows is forbidden afterwards, and "
        "what it forbids may be allowed.",
        _line(acting, "deleteAcl", asked.cluster, "-s", asked.subject, "-r", asked.resource),
        subject=f"the ACL of {asked.subject}",
        must_exist=True,
        find=lambda at: acting.admin.auth.explain_delete_acl(at, asked.subject, asked.resource),
        confirm=asked.subject,
    )


async def _delete_acl(acting: Acting, asked: DeleteAcl) -> list[ServerOutcome]:
    return await _at_all(
        acting, asked.cluster, lambda at: acting.admin.auth.delete_acl(at, asked.subject, asked.resource)
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
