"""AdminClient's requests to one broker about users and access control lists (ACL 2.0)."""

from keelmq.client.admin.transport import AdminTransport, body_of
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


class AuthAdmin(AdminTransport):
    """Requests to one broker about its users and ACLs. All methods raise AdminError."""

    async def create_user(self, broker_addr: str, user: UserInfo) -> None:
        """Creates a user (AUTH_CREATE_USER, 3001). The password crosses the network: use TLS."""
        await self.ask(broker_addr, AUTH_CREATE_USER, UserRequest(username=user.username or ""), user)

    async def update_user(self, broker_addr: str, user: UserInfo) -> None:
        """Changes what is given (AUTH_UPDATE_USER, 3002)."""
        await self.ask(broker_addr, AUTH_UPDATE_USER, UserRequest(username=user.username or ""), user)

    async def delete_user(self, broker_addr: str, username: str) -> None:
        """Deletes the user and its ACL (AUTH_DELETE_USER, 3003)."""
        await self.ask(broker_addr, AUTH_DELETE_USER, UserRequest(username=username))

    async def explain_delete_user(self, broker_addr: str, username: str) -> UserInfo | None:
        """Returns the user that would be deleted (EXPLAIN_DELETE_USER, 29054). Raises as explain()."""
        answer = await self.explain(broker_addr, EXPLAIN_DELETE_USER, UserRequest(username=username))
        return body_of(answer, UserDeletion, EXPLAIN_DELETE_USER, broker_addr).user

    async def explain_delete_acl(
        self, broker_addr: str, subject: str, resource: str | None = None
    ) -> AclInfo | None:
        """Returns the ACL from which entries would be deleted (EXPLAIN_DELETE_ACL, 29055). Raises as
        explain()."""
        header = DeleteAclRequest(subject=subject, resource=resource)
        answer = await self.explain(broker_addr, EXPLAIN_DELETE_ACL, header)
        return body_of(answer, AclDeletion, EXPLAIN_DELETE_ACL, broker_addr).acl

    async def get_user(self, broker_addr: str, username: str) -> UserInfo | None:
        """Returns the user; None: there is none (AUTH_GET_USER, 3004)."""
        answer = await self.ask(broker_addr, AUTH_GET_USER, UserRequest(username=username))
        return answer.body if isinstance(answer.body, UserInfo) else None

    async def list_users(self, broker_addr: str, part: str | None = None) -> list[UserInfo]:
        """Returns the users whose names contain `part` (AUTH_LIST_USER, 3005)."""
        answer = await self.ask(broker_addr, AUTH_LIST_USER, ListUsersRequest(filter=part))
        return list(answer.body or [])

    async def create_acl(self, broker_addr: str, acl: AclInfo) -> None:
        """Creates an ACL, or merges it into the subject's (AUTH_CREATE_ACL, 3006)."""
        await self.ask(broker_addr, AUTH_CREATE_ACL, AclRequest(subject=acl.subject or ""), acl)

    async def update_acl(self, broker_addr: str, acl: AclInfo) -> None:
        """Merges by policy type and resource (AUTH_UPDATE_ACL, 3007)."""
        await self.ask(broker_addr, AUTH_UPDATE_ACL, AclRequest(subject=acl.subject or ""), acl)

    async def delete_acl(self, broker_addr: str, subject: str, resource: str | None = None) -> None:
        """Deletes the entries of a resource; None: the whole ACL (AUTH_DELETE_ACL, 3008)."""
        await self.ask(broker_addr, AUTH_DELETE_ACL, DeleteAclRequest(subject=subject, resource=resource))

    async def get_acl(self, broker_addr: str, subject: str) -> AclInfo | None:
        """Returns the subject's ACL; None: it has none (AUTH_GET_ACL, 3009)."""
        answer = await self.ask(broker_addr, AUTH_GET_ACL, AclRequest(subject=subject))
        return answer.body if isinstance(answer.body, AclInfo) else None

    async def list_acls(
        self, broker_addr: str, subject_part: str | None = None, resource_part: str | None = None
    ) -> list[AclInfo]:
        """Returns the ACLs whose subjects and resources contain these parts (AUTH_LIST_ACL, 3010)."""
        header = ListAclsRequest(subject_filter=subject_part, resource_filter=resource_part)
        return list((await self.ask(broker_addr, AUTH_LIST_ACL, header)).body or [])
