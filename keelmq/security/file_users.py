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
from keelmq.security.user_sync import SyncUsers
from keelmq.security.users_file import BadUsersFile, UsersFile

NO_DIRECTORY = "this server keeps no users: set usersPath, or securityPath, and restart it"

log = logging.getLogger(__name__)


class FileUsersConfig(SecurityConfig):
    """Base of the configuration of such a program."""

    users_path: Path | None = Field(
        None,
        description="directory of users.json and acls.json, the state of this program: no directory that is "
        "copied to it; read again when they change (default: beside kvConfigPath, controllerStorePath or "
        "containerStatePath, named after it; ours)",
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


def users_directory(config: FileUsersConfig, beside: Path) -> Path:
    """Returns the directory of the users. beside: a file or directory of this program's own state."""
    return config.users_path or beside.expanduser().with_suffix(".users")


def load_users(config: FileUsersConfig, beside: Path) -> FileUserStore | None:
    """Returns the users of this program; None: it has no access check, and no directory is set. Creates the
    first ones. beside: see users_directory(). Raises ConfigError."""
    outside = config.at_listeners
    is_on = outside.authentication_enabled or outside.authorization_enabled
    if config.users_path is None and config.security_path is None and not is_on:
        return None
    directory = users_directory(config, beside)
    users = UsersFile(directory)
    try:
        users.load()
        if not users.all_users():
            _take_over(config, users, directory)
        _create_first(config, users, directory)
    except BadUsersFile as error:
        raise ConfigError(f"usersPath: {error}") from None
    except OSError as error:
        raise ConfigError(f"usersPath: cannot use {error.filename or directory}: {error.strerror}") from error
    return FileUserStore(users)


def _take_over(config: FileUsersConfig, users: UsersFile, directory: Path) -> None:
    """Copies the users of securityPath, where earlier releases kept them. Done once: from then on there
    are users in `directory`."""
    if config.security_path is None or config.security_path.resolve() == directory.resolve():
        return
    before = UsersFile(config.security_path)
    before.load()
    if users.merge(list(before.all_users().values()), list(before.all_acls().values())):
        log.info(
            "users and ACLs copied from %s to %s: only those are used now", config.security_path, directory
        )


def _create_first(config: FileUsersConfig, users: UsersFile, directory: Path) -> None:
    """Only while there is no user: a deleted one must not come back with the next start."""
    wanted = [] if users.all_users() else first_users(config)
    for user, acl in wanted:
        if acl is not None:
            users.put_acl(acl, first=True)
        users.put_user(user, first=True)
    if wanted:
        names = ", ".join(user.username for user, _ in wanted)
        log.info("users created in %s: %s", directory, names)


def binder_of(
    users: FileUserStore | None, security: ProgramSecurity, *, exchanges: bool = True
) -> Callable[[OperationTable], None]:
    """Returns what binds 3001 to 3010, and 29006, to a table; without a directory they are answered with what
    to do. exchanges: brokers exchange users with this program. All tables share the handlers, which make one
    change at a time."""
    if users is not None:
        security.tell_super_users(users.users())
        requests, sync = UserRequests(users, member=security.member_name), SyncUsers(users)

        def bind(table: OperationTable) -> None:
            requests.bind(table)
            if exchanges and security.member is not None:
                sync.bind(table)

        return bind
    codes = range(RequestCode.AUTH_CREATE_USER, RequestCode.AUTH_LIST_ACL + 1)

    def refuse(table: OperationTable) -> None:
        table.unsupported |= dict.fromkeys(codes, NO_DIRECTORY)

    return refuse
