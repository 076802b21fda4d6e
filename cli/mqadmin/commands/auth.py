"""mqadmin: users and access control lists of brokers (ACL 2.0)."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from cli.mqadmin.confirmation import asks_first
from cli.mqadmin.layouts import auth as layouts
from cli.mqadmin.shell import Action, DoesNotExist, Output, command
from cli.mqadmin.targets import UserServers, at_brokers, changing, previewing, showing
from keelmq.client.admin import AdminClient, AdminError
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operations.auth import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from keelmq.runtime.config import read_named

T = TypeVar("T")

Username = Annotated[str, typer.Option("-u", "--username", help="Name of the user")]
Password = Annotated[
    str | None,
    typer.Option(
        "-p",
        "--password",
        help="Other users of this machine see it in the list of processes: prefer --passwordFile",
    ),
]
PasswordFile = Annotated[
    Path | None, typer.Option("--passwordFile", help="File with the password in its first line")
]
UserType = Annotated[str | None, typer.Option("-t", "--userType", help="Super or Normal")]
Subject = Annotated[str, typer.Option("-s", "--subject", help="User:name")]
Resources = Annotated[
    str, typer.Option("-r", "--resources", help="Such as Topic:orders,Topic:order*,Group:*, or * for all")
]
Actions = Annotated[
    str, typer.Option("-a", "--actions", help="Such as Pub,Sub; also All, Create, Update, Delete, Get, List")
]
Decision = Annotated[str, typer.Option("-d", "--decision", help="Allow or Deny")]
SourceIp = Annotated[
    str | None, typer.Option("-i", "--sourceIp", help="Addresses or CIDR blocks (default: everywhere)")
]
FromBroker = Annotated[str, typer.Option("-f", "--fromBroker", help="Copy from this broker, host:port")]
ToBroker = Annotated[str, typer.Option("-t", "--toBroker", help="To this broker, host:port")]


def password_from(password: str | None, file: Path | None) -> str | None:
    """Returns the password of -p or of the file; None: neither is given. BadParameter: both, or no file."""
    if password is not None and file is not None:
        raise typer.BadParameter("give -p or --passwordFile, not both")
    if file is None:
        return password
    try:
        return (read_named(file).decode().splitlines() or [""])[0]
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise typer.BadParameter(f"cannot read {file}: {why}") from None


@command("createUser")
@at_brokers
def create_user(
    *,
    username: Username,
    password: Password = None,
    password_file: PasswordFile = None,
    user_type: UserType = None,
    where: UserServers,
) -> Action:
    """Create a user. Without -p and --passwordFile it asks for the password."""
    secret = password_from(password, password_file)
    if secret is None:
        secret = typer.prompt(f"Password of {username}", hide_input=True, confirmation_prompt=True, err=True)
    user = UserInfo(username=username, password=secret, user_type=user_type)
    return changing(where, lambda admin, each: admin.auth.create_user(each, user), f"create user {username}")


@command("updateUser")
@at_brokers
def update_user(
    *,
    username: Username,
    password: Password = None,
    password_file: PasswordFile = None,
    user_type: UserType = None,
    status: Annotated[str | None, typer.Option("-s", "--userStatus", help="enable or disable")] = None,
    where: UserServers,
) -> Action:
    """Change a user's password, type or status. --passwordFile - asks for the new password."""
    if str(password_file) == "-" and password is None:
        secret = typer.prompt(f"Password of {username}", hide_input=True, confirmation_prompt=True, err=True)
    else:
        secret = password_from(password, password_file)
    if secret is None and user_type is None and status is None:
        raise typer.BadParameter("give -p, --passwordFile, -t or -s")
    user = UserInfo(username=username, password=secret, user_type=user_type, user_status=status)
    return changing(where, lambda admin, each: admin.auth.update_user(each, user), f"update user {username}")


@command("deleteUser")
@asks_first
@at_brokers
def delete_user(
    *,
    username: Username,
    where: UserServers,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing: show the user")] = False,
) -> Action:
    """Delete a user and its ACL."""

    remark = f"user {username} does not exist: nothing was deleted"

    async def ask(admin: AdminClient, address: str) -> None:
        existing(await admin.auth.get_user(address, username), "deleteUser", address, remark)
        await admin.auth.delete_user(address, username)

    async def preview(admin: AdminClient, address: str) -> UserInfo:
        found = await admin.auth.explain_delete_user(address, username)
        return existing(found, "deleteUser", address, remark)

    if dry_run:
        return previewing(where, preview, layouts.users)
    return changing(where, ask, f"delete user {username}")


@command("getUser")
@at_brokers
def get_user(*, username: Username, where: UserServers) -> Action:
    """Show one user, without the password."""

    async def ask(admin: AdminClient, address: str) -> Sequence[UserInfo]:
        found = await admin.auth.get_user(address, username)
        return [existing(found, "getUser", address, f"user {username} does not exist")]

    return showing(where, ask, layouts.users)


@command("listUser")
@at_brokers
def list_users(
    *,
    part: Annotated[str | None, typer.Option("-f", "--filter", help="Part of the names")] = None,
    where: UserServers,
) -> Action:
    """List the users, without their passwords."""
    return showing(where, lambda admin, each: admin.auth.list_users(each, part), layouts.users)


@command("copyUser")
def copy_users(
    from_broker: FromBroker,
    to_broker: ToBroker,
    usernames: Annotated[
        str | None, typer.Option("-u", "--usernames", help="Only these, name,name (default: all)")
    ] = None,
) -> Action:
    """Copy users from a broker to another. KeelMQ's brokers return no passwords; those users are not
    copied."""

    async def copy(admin: AdminClient, user: UserInfo) -> None:
        if not user.password:
            remark = f"{from_broker} does not return the password of {user.username}: create the user there"
            raise AdminError("copyUser", to_broker, remark, ResponseCode.NO_PERMISSION)
        known = await admin.auth.get_user(to_broker, user.username or "")
        await (admin.auth.create_user if known is None else admin.auth.update_user)(to_broker, user)

    async def action(admin: AdminClient) -> Output:
        found = {each.username or "": each for each in await admin.auth.list_users(from_broker)}
        return await copied(found, usernames, lambda each: copy(admin, each), "user", to_broker)

    return action


def policy_of(resources: str, actions: str, decision: str, source_ip: str | None) -> list[PolicyInfo]:
    """Returns the Custom policy of the flags, an entry for each resource."""
    entries = [
        PolicyEntryInfo(
            resource=each,
            actions=parts(actions),
            source_ips=parts(source_ip) if source_ip is not None else None,
            decision=decision,
        )
        for each in parts(resources)
    ]
    return [PolicyInfo(policy_type="Custom", entries=entries)]


@command("createAcl")
@at_brokers
def create_acl(
    *,
    subject: Subject,
    resources: Resources,
    actions: Actions,
    decision: Decision,
    source_ip: SourceIp = None,
    where: UserServers,
) -> Action:
    """Grant or deny a user actions on resources; adds to the ACL that it has."""
    acl = AclInfo(subject=subject, policies=policy_of(resources, actions, decision, source_ip))
    return changing(where, lambda admin, each: admin.auth.create_acl(each, acl), f"create acl of {subject}")


@command("updateAcl")
@at_brokers
def update_acl(
    *,
    subject: Subject,
    resources: Resources,
    actions: Actions,
    decision: Decision,
    source_ip: SourceIp = None,
    where: UserServers,
) -> Action:
    """Replace the entries of these resources in a user's ACL."""
    acl = AclInfo(subject=subject, policies=policy_of(resources, actions, decision, source_ip))
    return changing(where, lambda admin, each: admin.auth.update_acl(each, acl), f"update acl of {subject}")


@command("deleteAcl")
@asks_first
@at_brokers
def delete_acl(
    *,
    subject: Subject,
    resource: Annotated[
        str | None, typer.Option("-r", "--resource", help="Only this resource (default: the whole ACL)")
    ] = None,
    where: UserServers,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing: show the ACL")] = False,
) -> Action:
    """Delete a user's ACL, or its entries of one resource."""

    remark = f"{subject} has no ACL: nothing was deleted"

    async def ask(admin: AdminClient, address: str) -> None:
        existing(await admin.auth.get_acl(address, subject), "deleteAcl", address, remark)
        await admin.auth.delete_acl(address, subject, resource)

    async def preview(admin: AdminClient, address: str) -> AclInfo:
        found = await admin.auth.explain_delete_acl(address, subject, resource)
        return existing(found, "deleteAcl", address, remark)

    if dry_run:
        return previewing(where, preview, layouts.acls)
    return changing(where, ask, f"delete acl of {subject}")


@command("getAcl")
@at_brokers
def get_acl(*, subject: Subject, where: UserServers) -> Action:
    """Show a user's ACL."""

    async def ask(admin: AdminClient, address: str) -> Sequence[AclInfo]:
        found = await admin.auth.get_acl(address, subject)
        return [existing(found, "getAcl", address, f"{subject} has no ACL")]

    return showing(where, ask, layouts.acls)


@command("listAcl")
@at_brokers
def list_acls(
    *,
    subject: Annotated[str | None, typer.Option("-s", "--subject", help="Part of the subjects")] = None,
    resource: Annotated[str | None, typer.Option("-r", "--resource", help="Part of the resources")] = None,
    where: UserServers,
) -> Action:
    """List the ACLs."""
    return showing(where, lambda admin, each: admin.auth.list_acls(each, subject, resource), layouts.acls)


@command("copyAcl")
def copy_acls(
    from_broker: FromBroker,
    to_broker: ToBroker,
    subjects: Annotated[
        str | None, typer.Option("-s", "--subjects", help="Only these, User:a,User:b (default: all)")
    ] = None,
) -> Action:
    """Copy ACLs from a broker to another, whose entries of the same resources are replaced."""

    async def action(admin: AdminClient) -> Output:
        found = {each.subject or "": each for each in await admin.auth.list_acls(from_broker)}
        return await copied(
            found, subjects, lambda each: admin.auth.create_acl(to_broker, each), "acl of", to_broker
        )

    return action


async def copied(
    found: Mapping[str, T],
    names: str | None,
    copy: Callable[[T], Awaitable[None]],
    what: str,
    to_broker: str,
) -> Output:
    """Copies those of `names`, None: all. Returns a row for each; a name that is not found is a problem."""
    wanted = parts(names)
    chosen = [name for name in found if not wanted or name in wanted]
    errors = await asyncio.gather(*(copy(found[name]) for name in chosen), return_exceptions=True)
    rows: list[dict[str, Any]] = []
    missing = [name for name in wanted if name not in found]
    lines, problems = [], [f"{what} {name} does not exist: nothing was copied" for name in missing]
    for name, error in zip(chosen, errors, strict=True):
        if error is not None and not isinstance(error, AdminError):
            raise error
        rows.append({"name": name, "ok": error is None, "error": None if error is None else str(error)})
        if error is None:
            lines.append(f"copy {what} {name} to {to_broker} success.")
        else:
            problems.append(str(error))
    code = 1 if problems and not lines else None
    return Output(rows, "\n".join(lines), tuple(problems), exit_code=code)


def existing(found: T | None, request: str, address: str, remark: str) -> T:
    """Returns the user or ACL. DoesNotExist: there is none."""
    if found is None:
        raise DoesNotExist(request, address, remark, ResponseCode.QUERY_NOT_FOUND)
    return found


def parts(text: str | None) -> list[str]:
    """Returns the parts of a list, which commas separate."""
    return [each.strip() for each in (text or "").split(",") if each.strip()]
