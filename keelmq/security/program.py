"""ProgramSecurity: the check that all ports of one program share, made of its configuration; it follows the
files of accounts."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Final

from keelmq.runtime.clock import now_ms, wall_ms
from keelmq.runtime.config import ConfigError
from keelmq.security.config import SecurityConfig, codes_of
from keelmq.security.core.access import AccessControl, UsersAndAcls
from keelmq.security.core.access_settings import AccessSettings
from keelmq.security.core.acls import Acl, InvalidAcl
from keelmq.security.core.member_proof import MemberProofs
from keelmq.security.core.migration import migrate
from keelmq.security.core.plain_acl import BadPlainAcl, PlainAcl
from keelmq.security.core.throttle import FailureThrottle
from keelmq.security.core.users import InvalidUser, User
from keelmq.security.server_access import ServerAccess
from keelmq.security.signer import Signer, optional_signer
from keelmq.security.user_store import WithMember

if TYPE_CHECKING:
    from keelmq.security.plain_acl_files import PlainAclFiles

POLL_S: Final = 1.0
"""A change of a file counts after this time at most."""

log = logging.getLogger(__name__)


class ProgramSecurity:
    """`access` None: all requests at `internal` are served. The constructor raises ConfigError."""

    def __init__(
        self,
        config: SecurityConfig,
        users: UsersAndAcls,
        *,
        cluster_name: str,
        poll_users: Callable[[], Awaitable[None]] | None = None,
        clock: Callable[[], int] = wall_ms,
    ) -> None:
        """cluster_name: in Cluster:<name> of ACLs. poll_users: takes changes of files that have the users."""
        self._poll_users = poll_users
        self._changed: Callable[[], None] | None = None
        self.member = config.member_credentials
        """The credentials that sign this program's own requests."""
        self._plain_files = _plain_files(config) if config.acl_enable else None
        plain = None if self._plain_files is None else _load(self._plain_files)
        proofs, throttle = MemberProofs(uptime=now_ms, not_before_ms=clock()), FailureThrottle()

        def access_of(keys: SecurityConfig) -> ServerAccess | None:
            if not keys.security_on:
                return None
            control = AccessControl(
                WithMember(users, self.member),
                _settings(keys, cluster_name, self.member_name),
                plain=plain,
                proofs=proofs,
                throttle=throttle,
            )
            return ServerAccess(control, clock=clock, proofs=proofs)

        outside = config.at_listeners
        self.access = access_of(config)
        self.listener_access = self.access if outside is config else access_of(outside)
        """The check at listeners other than `internal`."""

    @property
    def accesses(self) -> list[ServerAccess]:
        """The checks of all ports, each once."""
        both = (self.access, self.listener_access)
        return [each for each in dict.fromkeys(both) if each is not None]

    @property
    def signer(self) -> Signer | None:
        """The signer of this program's own requests; None: they are not signed."""
        return optional_signer(self.member, proof=True)

    @property
    def member_name(self) -> str | None:
        """The user that members sign as."""
        return None if self.member is None else self.member.access_key

    def tell_super_users(self, users: Iterable[User]) -> None:
        """Logs the users that may do everything: one that was created while nothing was checked stays."""
        names = sorted(user.username for user in users if user.is_super)
        if any(each.control.settings.authentication_enabled for each in self.accesses):
            log.info("users that may do everything: %s", ", ".join(names) or "none")

    def when_changed(self, callback: Callable[[], None]) -> None:
        """callback(): the accounts of ACL 1.0 have changed. Users and ACLs have separate watchers."""
        self._changed = callback

    async def run(self) -> None:
        """Follows the files. Returns if there are none."""
        while self._plain_files is not None or self._poll_users is not None:
            await asyncio.sleep(POLL_S)
            if self._plain_files is not None:
                plain = await asyncio.to_thread(self._plain_files.poll)
                if plain is not None:
                    self._set_plain(plain)
            if self._poll_users is not None:
                await self._poll_users()

    def _set_plain(self, plain: PlainAcl) -> None:
        for each in self.accesses:
            each.control.set_plain(plain)
        if self._changed is not None:
            self._changed()


def first_users(config: SecurityConfig) -> list[tuple[User, Acl | None]]:
    """Returns the users and ACLs that are created while there is no user at all: initAuthenticationUser, and
    the accounts of ACL 1.0. Raises ConfigError."""
    init_user = config.init_user
    found: list[tuple[User, Acl | None]] = [] if init_user is None else [(init_user, None)]
    if config.migrate_auth_from_v1_enabled:
        plain = _load(_plain_files(config))
        try:
            found += migrate(plain, {user.username for user, _ in found})
        except (InvalidUser, InvalidAcl) as error:
            raise ConfigError(f"migrateAuthFromV1Enabled: {config.plain_acl_path}: {error}") from None
    return found


def _plain_files(config: SecurityConfig) -> "PlainAclFiles":
    # Imports PyYAML, which only programs with such files need.
    from keelmq.security.plain_acl_files import PlainAclFiles

    directory = config.plain_acl_path
    return PlainAclFiles(directory / "plain_acl.yml", directory / "acl")


def _load(files: "PlainAclFiles") -> PlainAcl:
    try:
        return files.load()
    except (BadPlainAcl, OSError) as error:
        raise ConfigError(f"aclPath: {error}") from None


def _settings(config: SecurityConfig, cluster_name: str, member: str | None) -> AccessSettings:
    return AccessSettings(
        authentication_enabled=config.authentication_enabled,
        authorization_enabled=config.authorization_enabled,
        authentication_whitelist=codes_of(config.authentication_whitelist),
        authorization_whitelist=codes_of(config.authorization_whitelist),
        stateful_authentication=config.is_stateful,
        stateful_expired_ms=config.stateful_authentication_cache_expired_second * 1_000,
        stateful_cache_max=config.stateful_authentication_cache_max_num,
        decision_cache_max=config.stateful_authorization_cache_max_num,
        cluster_name=cluster_name,
        members_required=config.members_required,
        member_users=frozenset() if member is None else frozenset({member}),
        member_certificates=config.member_certificates,
        proof_required=config.member_proof_required,
    )
