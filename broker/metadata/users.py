"""Users and their ACLs: config/users.json and config/acls.json.

Replicated like topics, within the in-sync contract: a change is answered when every member in sync has it, so
a fail-over never restores a right that was withdrawn. Keys of rows: user names and subjects. Rows are the
stored forms of keelmq/security, including passwords. Rows of deleted users and ACLs stay as tombstones
(keelmq/security/core/user_changes.py)."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from broker.metadata.core.table import Version
from broker.metadata.file_store import FileStore, Row
from broker.metadata.store import data_version
from keelmq.security.core.acls import Acl, parse_stored_acl
from keelmq.security.core.users import User, parse_stored_user

logger = logging.getLogger(__name__)


class UserTable(FileStore[User]):
    """Row: one user."""

    name: ClassVar[str] = "users"
    what: ClassVar[str] = "the table of users"
    is_private: ClassVar[bool] = True

    def row_of(self, value: Any) -> User:
        """Returns the user of a stored form. Raises ValueError."""
        return parse_stored_user(value)

    def json_of(self, row: User) -> Any:
        """Returns the stored form, with the password."""
        return row.stored()

    def read_file(self, value: Mapping[str, Any]) -> tuple[dict[str, User], dict[str, int]]:
        """Returns the rows of users.json; there are no tombstones."""
        return _rows(value, "users", self.row_of), {}

    def file_of(self, rows: Mapping[str, User], gone: Mapping[str, int], version: Version) -> dict[str, Any]:
        """Returns the content of users.json."""
        return _file("users", {name: rows[name].stored() for name in sorted(rows)}, version)


class AclTable(FileStore[Acl]):
    """Row: the ACL of one subject."""

    name: ClassVar[str] = "acls"
    what: ClassVar[str] = "the table of ACLs"
    is_private: ClassVar[bool] = True

    def row_of(self, value: Any) -> Acl:
        """Returns the ACL of a stored form. Raises ValueError."""
        return parse_stored_acl(value)

    def json_of(self, row: Acl) -> Any:
        """Returns the stored form."""
        return row.stored()

    def read_file(self, value: Mapping[str, Any]) -> tuple[dict[str, Acl], dict[str, int]]:
        """Returns the rows of acls.json; there are no tombstones."""
        return _rows(value, "acls", self.row_of), {}

    def file_of(self, rows: Mapping[str, Acl], gone: Mapping[str, int], version: Version) -> dict[str, Any]:
        """Returns the content of acls.json."""
        return _file("acls", {subject: rows[subject].stored() for subject in sorted(rows)}, version)


def create_first(wanted: Sequence[tuple[User, Acl | None]], users: UserTable, acls: AclTable) -> None:
    """Creates these users, but only while the table is empty: a user that an administrator has deleted must
    not come back with the next master."""
    if not wanted or users.table.rows:
        return
    try:
        if first_acls := {acl.subject: acl for _, acl in wanted if acl is not None}:
            acls.change(first_acls)
        users.change({user.username: user for user, _ in wanted})
    except OSError as error:
        logger.error("cannot write %s: %s; no user was created", error.filename, error)
        return
    logger.info("users created: %s", ", ".join(user.username for user, _ in wanted))


def _rows(value: Mapping[str, Any], member: str, row_of: Callable[[Any], Row]) -> dict[str, Row]:
    found = {}
    for key, each in (value.get(member) or {}).items():
        try:
            found[key] = row_of(each)
        except ValueError as error:
            raise ValueError(f"{key}: {error}") from None
    return found


def _file(member: str, rows: dict[str, Any], version: Version) -> dict[str, Any]:
    return {"dataVersion": data_version(version).model_dump(by_alias=True), member: rows}
