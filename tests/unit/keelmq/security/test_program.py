"""ProgramSecurity: what each key of the configuration does to the check."""

import asyncio
import threading
from pathlib import Path

import pytest
from msgspec.structs import replace

from keelmq.runtime.config import ConfigError, load_config
from keelmq.security.config import SecurityConfig
from keelmq.security.core.access_settings import AccessSettings
from keelmq.security.core.plain_acl import PlainAcl
from keelmq.security.core.users import UserType
from keelmq.security.plain_acl_files import PlainAclFiles
from keelmq.security.private_file import read_private
from keelmq.security.program import ProgramSecurity, first_users
from tests.unit.keelmq.security.parts import NOW_MS, tables

INNER = '{"accessKey":"inner","secretKey":"inner-secret"}'


def loaded(**settings: str) -> SecurityConfig:
    (config,) = load_config(SecurityConfig, path=None, environ={}, overrides=settings)
    assert isinstance(config, SecurityConfig)
    return config


def test_every_key_is_in_the_check() -> None:
    config = loaded(
        authenticationEnabled="true",
        authorizationEnabled="true",
        authenticationWhitelist="310,11",
        authorizationWhitelist="34",
        authenticationStrategy="StatefulAuthenticationStrategy",
        statefulAuthenticationCacheExpiredSecond="7",
        statefulAuthenticationCacheMaxNum="8",
        statefulAuthorizationCacheMaxNum="9",
        innerClientAuthenticationCredentials=INNER,
        memberCertificateNames="broker-a, broker-b",
        memberProofRequired="false",
    )
    made = ProgramSecurity(config, tables(), cluster_name="C1", clock=lambda: NOW_MS)
    assert made.access is not None and made.member_name == "inner" and made.signer is not None
    assert made.access.control.settings == AccessSettings(
        authentication_enabled=True,
        authorization_enabled=True,
        authentication_whitelist=frozenset({310, 11}),
        authorization_whitelist=frozenset({34}),
        stateful_authentication=True,
        stateful_expired_ms=7_000,
        stateful_cache_max=8,
        decision_cache_max=9,
        cluster_name="C1",
        members_required=True,
        member_users=frozenset({"inner"}),
        member_certificates=frozenset({"broker-a", "broker-b"}),
        proof_required=False,
    )


@pytest.mark.parametrize(
    ("settings", "is_on", "asks_members"),
    [
        ({}, False, False),
        ({"memberAuthenticationRequired": "true"}, False, True),
        ({"authenticationEnabled": "true"}, True, True),
        ({"authenticationEnabled": "true", "memberAuthenticationRequired": "false"}, True, False),
        ({"authorizationEnabled": "true"}, True, False),
        ({"innerClientAuthenticationCredentials": INNER}, True, True),
        ({"memberCertificateNames": "broker-a"}, True, True),
    ],
)
def test_one_key_is_enough_for_a_check(settings: dict[str, str], is_on: bool, asks_members: bool) -> None:
    config = loaded(**settings)
    assert (config.security_on, config.members_required) == (is_on, asks_members)
    access = ProgramSecurity(config, tables(), cluster_name="C1").access
    assert (access is not None) is is_on


def test_listeners_have_the_check_of_the_program_unless_keys_of_their_own_differ() -> None:
    for settings in ({}, {"authenticationEnabled": "true", "listenersAuthenticationEnabled": "true"}):
        made = ProgramSecurity(loaded(**settings), tables(), cluster_name="C1")
        assert made.listener_access is made.access
        assert len(made.accesses) == len(settings) // 2


def test_listeners_check_more_than_the_program_and_share_its_users_and_accounts() -> None:
    config = loaded(
        innerClientAuthenticationCredentials=INNER,
        memberAuthenticationRequired="false",
        listenersAuthenticationEnabled="true",
        listenersAuthorizationEnabled="true",
    )
    made = ProgramSecurity(config, tables(), cluster_name="C1")
    assert made.access is not None and made.listener_access is not None
    inside, outside = (each.control for each in made.accesses)
    assert outside is made.listener_access.control
    assert outside.settings == replace(
        inside.settings, authentication_enabled=True, authorization_enabled=True
    )
    assert not inside.settings.authentication_enabled
    assert (inside.users.generation, inside.throttle) == (outside.users.generation, outside.throttle)


@pytest.mark.parametrize("key", ["uthenticationEnabled", "uthorizationEnabled"])
def test_listeners_cannot_check_less_than_the_program(key: str) -> None:
    with pytest.raises(ConfigError, match=rf"listenersA{key}=false with a{key}=true"):
        loaded(**{f"a{key}": "true", f"listenersA{key}": "false"})


def test_the_first_user_is_not_replaced_by_an_account_of_that_name(tmp_path: Path) -> None:
    (tmp_path / "plain_acl.yml").write_text(
        "accounts:\n"
        "- {accessKey: rocketmq, secretKey: of-acl-1}\n"
        "- {accessKey: another, secretKey: of-acl-1}\n"
    )
    config = loaded(
        initAuthenticationUser='{"username":"rocketmq","password":"of-the-key"}',
        migrateAuthFromV1Enabled="true",
        aclPath=str(tmp_path),
    )
    found = [(user.username, user.password, user.user_type) for user, _ in first_users(config)]
    assert found == [
        ("rocketmq", "of-the-key", UserType.SUPER),
        ("another", "of-acl-1", UserType.NORMAL),
    ]


def test_a_file_of_secrets_has_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "secrets"
    path.touch(mode=0o600)
    path.write_bytes(b"x" * 11)
    with pytest.raises(ValueError, match="has more than 10 bytes"):
        read_private(path, 10)
    assert read_private(path, 11) == b"x" * 11


async def test_accounts_are_read_while_requests_are_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand of them take some hundred ms; a master that stands still for a second is replaced."""
    reading, served, both = threading.Event(), threading.Event(), asyncio.Event()
    found = PlainAcl()
    in_time: list[bool] = []

    def poll(_files: PlainAclFiles) -> PlainAcl:
        reading.set()
        in_time.append(served.wait(3))
        return found

    monkeypatch.setattr("keelmq.security.program.POLL_S", 0)
    monkeypatch.setattr(PlainAclFiles, "poll", poll)
    config = loaded(aclEnable="true", aclPath=str(tmp_path))
    security = ProgramSecurity(config, tables(), cluster_name="C1")
    security.when_changed(both.set)
    following = asyncio.create_task(security.run())
    try:
        await asyncio.to_thread(reading.wait, 10)
        served.set()
        await asyncio.wait_for(both.wait(), 10)
    finally:
        following.cancel()
    assert all(in_time)
    assert security.access is not None and security.access.control.plain is found
