"""Users and ACLs of a program that replicates nothing (a name server, a controller, a broker container):
files, and the requests that change them."""

import logging
from collections.abc import Callable
from pathlib import Path

from pydantic import Field, field_validator

from keelmq.remoting.codes import RequestCode
from keelmq.remoting.operation import OperationTable
from keelmq.runtime.config import ConfigError, home_path
from keelmq.security.config import SecurityConfig
from keelmq.security.program import ProgramSecurity, first_users
from keelmq.security.user_requests import UserRequests
from keelmq.security.user_store import FileUserStore
from keelmq.security.users_file import BadUsersFile, UsersFile

NO_DIRECTORY = "this server keeps no users: set usersPath, or securityPath, and restart it"

log = logging.getLogger(__name__)


class FileUsersConfig(SecurityConfig):
    """Base of the configuration of such a program."""

    users_path: Path | None = Field(
        None,
        description="directory of users.json and acls.json, read again when they change (default: "
        "securityPath; required with authenticationEnabled, ours)",
    )
    authorization_cluster: str = Field(
        "DefaultCluster",
        min_length=1,
        description="name in Cluster:<name> of ACLs, for what is not about a topic or a group (ours)",
    )

    @field_validator("users_path")
    @classmethod
    def _expand_users_path(cls, path: Path | None) -> Path | None:
        return home_path(path)


def load_users(config: FileUsersConfig) -> FileUserStore | None:
    """Returns the users of usersPath; None: no directory is set. Creates the first ones. Raises
    ConfigError."""
    directory = config.users_path or config.security_path
    if directory is None:
        if config.authentication_enabled or config.authorization_enabled:
            raise ConfigError(
                "authenticationEnabled and authorizationEnabled need usersPath, or securityPath: the "
                "directory of users.json and acls.json (`keelmq init-security` makes one)"
            )
        return None
    users = UsersFile(directory)
    try:
        users.load()
        _create_first(config, users, directory)
    except BadUsersFile as error:
        raise ConfigError(f"usersPath: {error}") from None
    except OSError as error:
        raise ConfigError(f"usersPath: cannot use {error.filename or directory}: {error.strerror}") from error
    return FileUserStore(users)


def _create_first(config: FileUsersConfig, users: UsersFile, directory: Path) -> None:
    """Only while there is no user: a deleted one must not come back with the next start."""
    wanted = [] if users.users() else first_users(config)
    for user, acl in wanted:
        if acl is not None:
            users.put_acl(acl)
        users.put_user(user)
    if wanted:
        names = ", ".join(user.username for user, _ in wanted)
        log.info("users created in %s: %s", directory, names)


def binder_of(users: FileUserStore | None, security: ProgramSecurity) -> Callable[[OperationTable], None]:
    """Returns what binds 3001 to 3010 to a table; without a directory they are answered with what to do. All
    tables share the handlers, which make one change at a time."""
    if users is not None:
        security.tell_super_users(users.users())
        return UserRequests(users, member=security.member_name).bind
    codes = range(RequestCode.AUTH_CREATE_USER, RequestCode.AUTH_LIST_ACL + 1)

    def refuse(table: OperationTable) -> None:
        table.unsupported |= dict.fromkeys(codes, NO_DIRECTORY)

    return refuse
