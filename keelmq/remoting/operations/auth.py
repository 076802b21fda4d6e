"""Requests of ACL 2.0: users (3001-3005), access control lists (3006-3010), and the exchange of both among
members (29006, ours).

Source: RocketMQ 5.3.3 CreateUserRequestHeader and the like, UserInfo, AclInfo. Blank and unknown values are
judged by the broker, not by these models, so that it can answer in RocketMQ's words."""

from typing import Any

from pydantic import Field

from keelmq.remoting.codes import RequestCode
from keelmq.remoting.operation import Operation, Wire


class UserRequest(Wire):
    """Header of 3001 to 3004. forwarded, forwarded_for (ours): set by a broker that received the request and
    is not master; the user who sent it, of whom the master knows nothing else. Only members are believed."""

    username: str = ""
    forwarded: bool | None = None
    forwarded_for: str | None = None


class ListUsersRequest(Wire):
    """Header of 3005. filter: a part of the name; None: all users."""

    filter: str | None = None


class UserInfo(Wire):
    """Body of 3001 and 3002, response body of 3004, member of the one of 3005. password: the secret key; our
    brokers never return it. user_type: Super or Normal; user_status: enable or disable."""

    username: str | None = None
    password: str | None = Field(default=None, repr=False)
    user_type: str | None = None
    user_status: str | None = None


class AclRequest(Wire):
    """Header of 3006, 3007 and 3009. subject: User:name. forwarded, forwarded_for: see UserRequest."""

    subject: str = ""
    forwarded: bool | None = None
    forwarded_for: str | None = None


class DeleteAclRequest(Wire):
    """Header of 3008. policy_type: Custom or Default; None: both. resource: None: the whole policy.
    forwarded, forwarded_for: see UserRequest."""

    subject: str = ""
    policy_type: str | None = None
    resource: str | None = None
    forwarded: bool | None = None
    forwarded_for: str | None = None


class ListAclsRequest(Wire):
    """Header of 3010. Parts of subjects and resources; None: all."""

    subject_filter: str | None = None
    resource_filter: str | None = None


class PolicyEntryInfo(Wire):
    """One line of a policy. resource: `*`, Type:name, Type:prefix* or Type:*, where Type is Topic, Group,
    Cluster or Namespace. source_ips: None: from everywhere. decision: Allow or Deny."""

    resource: str | None = None
    actions: list[str] | None = None
    source_ips: list[str] | None = None
    decision: str | None = None


class PolicyInfo(Wire):
    """policy_type: Custom or Default; entries of Default count where none of Custom matches."""

    policy_type: str | None = None
    entries: list[PolicyEntryInfo] | None = None


class AclInfo(Wire):
    """Body of 3006 and 3007, response body of 3009, member of the one of 3010."""

    subject: str | None = None
    policies: list[PolicyInfo] | None = None


class UserDeletion(Wire):
    """Response body of 29054: the user that 3003 would delete. None: there is none."""

    user: UserInfo | None = None


class AclDeletion(Wire):
    """Response body of 29055: the ACL from which 3008 would delete. None: there is none."""

    acl: AclInfo | None = None


class SyncUsersRequest(Wire):
    """Header of 29006. digest: of all rows of the sender, tombstones included; "": the rows in the body are
    sent or wanted, and nothing is compared."""

    digest: str = ""


class UserRows(Wire):
    """Body of 29006 and of its response. users, acls: rows in their stored form, with passwords, times of
    change and tombstones. wanted_users, wanted_acls: keys of rows that the response should have. user_times,
    acl_times: key -> ms of the last change, of all rows of the responder; in a response to another digest."""

    users: list[dict[str, Any]] = Field(default_factory=list, repr=False)
    acls: list[dict[str, Any]] = Field(default_factory=list)
    wanted_users: list[str] = Field(default_factory=list)
    wanted_acls: list[str] = Field(default_factory=list)
    user_times: dict[str, int] | None = None
    acl_times: dict[str, int] | None = None


AUTH_CREATE_USER = Operation(
    RequestCode.AUTH_CREATE_USER, "authCreateUser", UserRequest, request_body=UserInfo
)
AUTH_UPDATE_USER = Operation(
    RequestCode.AUTH_UPDATE_USER, "authUpdateUser", UserRequest, request_body=UserInfo
)
AUTH_DELETE_USER = Operation(RequestCode.AUTH_DELETE_USER, "authDeleteUser", UserRequest)
EXPLAIN_DELETE_USER = Operation(
    RequestCode.KEELMQ_EXPLAIN_DELETE_USER, "explainDeleteUser", UserRequest, response_body=UserDeletion
)
AUTH_GET_USER = Operation(RequestCode.AUTH_GET_USER, "authGetUser", UserRequest, response_body=UserInfo)
AUTH_LIST_USER = Operation(
    RequestCode.AUTH_LIST_USER, "authListUser", ListUsersRequest, response_body=list[UserInfo]
)
AUTH_CREATE_ACL = Operation(RequestCode.AUTH_CREATE_ACL, "authCreateAcl", AclRequest, request_body=AclInfo)
AUTH_UPDATE_ACL = Operation(RequestCode.AUTH_UPDATE_ACL, "authUpdateAcl", AclRequest, request_body=AclInfo)
AUTH_DELETE_ACL = Operation(RequestCode.AUTH_DELETE_ACL, "authDeleteAcl", DeleteAclRequest)
EXPLAIN_DELETE_ACL = Operation(
    RequestCode.KEELMQ_EXPLAIN_DELETE_ACL, "explainDeleteAcl", DeleteAclRequest, response_body=AclDeletion
)
AUTH_GET_ACL = Operation(RequestCode.AUTH_GET_ACL, "authGetAcl", AclRequest, response_body=AclInfo)
AUTH_LIST_ACL = Operation(
    RequestCode.AUTH_LIST_ACL, "authListAcl", ListAclsRequest, response_body=list[AclInfo]
)
SYNC_USERS = Operation(
    RequestCode.KEELMQ_SYNC_USERS,
    "syncUsers",
    SyncUsersRequest,
    request_body=UserRows,
    response_body=UserRows,
)
