"""Name servers and masters must have the same users: the doctor says where they differ."""

from typing import cast

import pytest

from keelmq.client.admin import AdminClient, AdminError
from keelmq.health.findings import Level
from keelmq.health.users import NONE, SHOWN_MAX, rights_of, same_rights
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operations.auth import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo

ON = {"authenticationEnabled": "true"}
A, B, C = "10.0.0.1:9876", "10.0.0.2:9876", "10.0.0.3:9876"


def entry(*actions: str, resource: str = "Topic:orders", ips: list[str] | None = None) -> PolicyEntryInfo:
    return PolicyEntryInfo(resource=resource, actions=list(actions), source_ips=ips, decision="Allow")


class FakeAdmin:
    """A server with one user, who has an ACL, and an ACL whose user is gone."""

    def __init__(self, *entries: PolicyEntryInfo, refuses: bool = False) -> None:
        self.entries, self.refuses, self.auth = list(entries), refuses, self

    async def list_users(self, address: str) -> list[UserInfo]:
        return [UserInfo(username="orders", user_type="Normal", user_status="enable")]

    async def list_acls(self, address: str) -> list[AclInfo]:
        if self.refuses:
            raise AdminError("listAcl", address, "no", ResponseCode.NO_PERMISSION)
        policy = PolicyInfo(policy_type="Custom", entries=self.entries)
        return [AclInfo(subject="User:orders", policies=[policy]), AclInfo(subject="User:gone", policies=[])]


async def rights(*entries: PolicyEntryInfo, refuses: bool = False) -> dict[str, str] | None:
    admin = cast(AdminClient, FakeAdmin(*entries, refuses=refuses))
    found = await rights_of(admin, A, ON)
    return None if found is None else dict(found)


async def test_the_order_of_what_a_server_lists_does_not_matter() -> None:
    one = await rights(entry("Pub", "Sub", ips=["10.0.0.0/8", "::1"]), entry("Get", resource="*"))
    other = await rights(entry("Get", resource="*"), entry("Sub", "Pub", ips=["::1", "10.0.0.0/8"]))
    assert one == other
    assert one is not None
    assert one["User:orders"] == (
        "Normal enable (Allow Get on *; Allow Pub,Sub on Topic:orders from 10.0.0.0/8,::1)"
    )
    assert one["User:gone"] == "()"


async def test_who_may_not_read_users_compares_nothing() -> None:
    assert await rights(refuses=True) is None
    assert await rights_of(cast(AdminClient, FakeAdmin()), A, {"authenticationEnabled": "false"}) is None
    assert not list(same_rights({A: {"User:a": "Normal enable"}, B: None}))


async def test_a_user_that_one_name_server_lacks() -> None:
    orders = await rights(entry("Pub"))
    assert not list(same_rights({A: orders, B: dict(orders or {})}))
    (found,) = same_rights({A: orders, B: {"User:gone": "()"}, C: orders})
    assert (found.level, found.check, found.subject) == (Level.FAILED, "users.agree", "User:orders")
    assert f"Normal enable (Allow Pub on Topic:orders) at {A}, {C}; {NONE} at {B}" in found.text
    assert found.command == f"mqadmin createUser -u orders -b {B}"


@pytest.mark.parametrize("other", [(entry("Sub"),), (entry("Pub", ips=["10.0.0.1"]),), ()])
async def test_an_acl_that_is_another_one(other: tuple[PolicyEntryInfo, ...]) -> None:
    (found,) = same_rights({A: await rights(entry("Pub")), B: await rights(*other)})
    assert found.subject == "User:orders"
    assert found.command == f"mqadmin getAcl -s User:orders -b '{A};{B}'"


def test_many_differences_are_cut() -> None:
    many = {f"User:{number}": "Normal enable" for number in range(9)}
    *shown, last = same_rights({A: many, B: {}})
    assert len(shown) == SHOWN_MAX
    assert last.text == "9 differ"
