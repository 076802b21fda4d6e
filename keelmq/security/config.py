"""SecurityConfig: the keys of authentication and authorization, for every program.

Source: RocketMQ 5.3.3 AuthConfig; keys that are ours say so. securityPath closes a program with one key: the
directory's files give defaults to all others (keelmq/runtime/config.py, defaults_below)."""

import json
import os
from pathlib import Path
from typing import ClassVar, Self

from pydantic import Field, SecretStr, field_validator, model_validator

from keelmq.runtime.config import SECURITY_FILE, Config, ConfigError, home_path
from keelmq.security.core.users import InvalidUser, User, UserType
from keelmq.security.private_file import read_private
from keelmq.security.signer import Credentials

CREDENTIALS_BYTES_MAX = 65_536
_STATEFUL = "stateful"


class SecurityConfig(Config):
    """Base of the configuration of every program with ports."""

    DEFAULTS: ClassVar[tuple[str, ...]] = (SECURITY_FILE,)

    security_path: Path | None = Field(
        None,
        description="directory that `keelmq init-security` made: its security.conf, and the file with the "
        "program's name, have the defaults of all other keys (ours)",
    )
    authentication_enabled: bool = Field(False, description="requests must be signed by a user")
    authentication_provider: str = Field("", description="without effect: there is one provider")
    authentication_metadata_provider: str = Field("", description="without effect: users are kept here")
    authentication_strategy: str = Field(
        "",
        description="a name with Stateful in it: a connection's verdict counts for a while; else stateless",
    )
    authentication_whitelist: str = Field(
        "", description="request codes that need no signature, separated by commas"
    )
    init_authentication_user: SecretStr | None = Field(
        None,
        description='{"username":"..","password":".."}: a Super user, created while there is no user at all',
    )
    inner_client_authentication_credentials: SecretStr | None = Field(
        None,
        description='{"accessKey":"..","secretKey":".."}: what the members of the cluster sign with, equal '
        "at all of them; the user is known everywhere, and is in no table",
    )
    inner_client_authentication_credentials_file: Path | None = Field(
        None, description="file with the same text, that only its owner may open: safer than the key (ours)"
    )
    member_proof_required: bool = Field(
        True,
        description="members also prove that a request is new; false lets brokers and controllers of "
        "RocketMQ in (ours)",
    )
    member_authentication_required: bool | None = Field(
        None,
        description="what only members may send needs their signature or certificate (default: true with "
        "authenticationEnabled, or if one of them is set); false while they are introduced (ours)",
    )
    member_certificate_names: str = Field(
        "",
        description="client certificates with one of these names, separated by commas, are of members; they "
        "need no signature (ours; see tls.server.need.client.auth)",
    )
    authorization_enabled: bool = Field(False, description="users may do what their ACLs allow")
    listeners_authentication_enabled: bool | None = Field(
        None,
        description="authenticationEnabled at all listeners but internal (default: as there); true: clients "
        "outside sign, and those inside need not (ours)",
    )
    listeners_authorization_enabled: bool | None = Field(
        None,
        description="authorizationEnabled at all listeners but internal (default: as there; ours)",
    )
    authorization_provider: str = Field("", description="without effect: there is one provider")
    authorization_metadata_provider: str = Field("", description="without effect: ACLs are kept here")
    authorization_strategy: str = Field(
        "", description="without effect: what was allowed is remembered until any user or ACL changes"
    )
    authorization_whitelist: str = Field(
        "", description="request codes that need no ACL, separated by commas"
    )
    migrate_auth_from_v1_enabled: bool = Field(
        False, description="accounts of plain_acl.yml become users and ACLs, unless the user exists"
    )
    stateful_authentication_cache_max_num: int = Field(
        10_000, gt=0, description="connections and users whose verdict is remembered"
    )
    stateful_authentication_cache_expired_second: int = Field(
        60, gt=0, description="for how many s, with a stateful authenticationStrategy"
    )
    user_cache_max_num: int = Field(1_000, description="without effect: all users are in memory")
    user_cache_expired_second: int = Field(600, description="without effect")
    user_cache_refresh_second: int = Field(60, description="without effect: a change counts at once")
    acl_cache_max_num: int = Field(1_000, description="without effect: all ACLs are in memory")
    acl_cache_expired_second: int = Field(600, description="without effect")
    acl_cache_refresh_second: int = Field(60, description="without effect: a change counts at once")
    stateful_authorization_cache_max_num: int = Field(10_000, gt=0, description="decisions remembered")
    stateful_authorization_cache_expired_second: int = Field(60, description="without effect")
    acl_enable: bool = Field(False, description="ACL 1.0: accounts of plain_acl.yml and acl/*.yml in aclPath")
    acl_path: Path | None = Field(
        None, description="directory of plain_acl.yml and acl/ (default: conf in ROCKETMQ_HOME; ours)"
    )

    @field_validator("security_path", "inner_client_authentication_credentials_file", "acl_path")
    @classmethod
    def _expand_security(cls, path: Path | None) -> Path | None:
        return home_path(path)

    @field_validator("authentication_whitelist", "authorization_whitelist")
    @classmethod
    def _codes(cls, text: str) -> str:
        codes_of(text)
        return text

    @field_validator("init_authentication_user")
    @classmethod
    def _init_user(cls, secret: SecretStr | None) -> SecretStr | None:
        _init_user(secret)
        return secret

    @field_validator("inner_client_authentication_credentials")
    @classmethod
    def _credentials(cls, secret: SecretStr | None) -> SecretStr | None:
        if secret is not None and secret.get_secret_value():
            credentials_of(secret.get_secret_value())
        return secret

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self._inner_text and self.inner_client_authentication_credentials_file is not None:
            raise ValueError(
                "innerClientAuthenticationCredentials and innerClientAuthenticationCredentialsFile are both "
                "set: leave one out"
            )
        return self

    @model_validator(mode="after")
    def _no_weaker_outside(self) -> Self:
        for key in ("Authentication", "Authorization"):
            name = f"{key.lower()}_enabled"
            if getattr(self, name) and getattr(self, f"listeners_{name}") is False:
                raise ValueError(
                    f"listeners{key}Enabled=false with {key.lower()}Enabled=true would check clients inside, "
                    "and not those outside: leave it out"
                )
        return self

    @property
    def _inner_text(self) -> str:
        secret = self.inner_client_authentication_credentials
        return "" if secret is None else secret.get_secret_value().strip()

    @property
    def member_credentials(self) -> Credentials | None:
        """The credentials that sign this program's requests to other members; None: it does not sign. Reads
        the file; raises ConfigError."""
        path = self.inner_client_authentication_credentials_file
        if path is None:
            return credentials_of(self._inner_text) if self._inner_text else None
        name = "innerClientAuthenticationCredentialsFile"
        try:
            return credentials_of(read_private(path, CREDENTIALS_BYTES_MAX).decode())
        except OSError as error:
            raise ConfigError(f"{name}: cannot read {path}: {error.strerror}") from error
        except ValueError as error:
            why = "not UTF-8 text" if isinstance(error, UnicodeDecodeError) else error
            raise ConfigError(f"{name}: {path}: {why}") from None

    @property
    def init_user(self) -> User | None:
        """The user of initAuthenticationUser."""
        return _init_user(self.init_authentication_user)

    @property
    def member_certificates(self) -> frozenset[str]:
        """The names in memberCertificateNames."""
        return frozenset(name.strip() for name in self.member_certificate_names.split(",") if name.strip())

    @property
    def security_on(self) -> bool:
        """Whether any request of an anonymous client is refused."""
        return (
            self.authentication_enabled or self.authorization_enabled or self.acl_enable or self.has_members
        )

    @property
    def at_listeners(self) -> Self:
        """The keys as they are at listeners other than `internal`; the same object unless they differ."""
        found = {
            name: outside
            for name in ("authentication_enabled", "authorization_enabled")
            if (outside := getattr(self, f"listeners_{name}")) is not None and outside != getattr(self, name)
        }
        return self.model_copy(update=found) if found else self

    @property
    def has_members(self) -> bool:
        """Whether this program can tell members of its cluster from anonymous clients."""
        has_secret = self._inner_text or self.inner_client_authentication_credentials_file is not None
        return bool(has_secret or self.member_certificates)

    @property
    def members_required(self) -> bool:
        """Whether what only members may send is refused to others."""
        required = self.member_authentication_required
        return self.authentication_enabled or self.has_members if required is None else required

    @property
    def is_stateful(self) -> bool:
        """Whether authenticationStrategy names the stateful one."""
        return _STATEFUL in self.authentication_strategy.lower()

    @property
    def plain_acl_path(self) -> Path:
        """The directory of the files of ACL 1.0. Raises ConfigError."""
        home = os.environ.get("ROCKETMQ_HOME")
        if self.acl_path is None and not home:
            raise ConfigError(
                "aclEnable and migrateAuthFromV1Enabled need aclPath: the directory of plain_acl.yml"
            )
        return self.acl_path or Path(home or "") / "conf"


def codes_of(text: str) -> frozenset[int]:
    """Returns the request codes of a white list. Raises ValueError."""
    codes = set()
    for part in text.replace(";", ",").split(","):
        if part.strip():
            if not part.strip().isdecimal():
                raise ValueError(f"{part.strip()[:40]!r} is not a request code, which is a number")
            codes.add(int(part))
    return frozenset(codes)


def credentials_of(text: str) -> Credentials:
    """Returns the credentials of RocketMQ's JSON text. Raises ValueError, without the text."""
    found = _json_object(text, '{"accessKey":"..","secretKey":".."}')
    token = found.get("securityToken")
    return Credentials(
        str(found.get("accessKey") or ""), str(found.get("secretKey") or ""), str(token) if token else None
    )


def _init_user(secret: SecretStr | None) -> User | None:
    if secret is None or not secret.get_secret_value().strip():
        return None
    found = _json_object(secret.get_secret_value(), '{"username":"..","password":".."}')
    try:
        return User(str(found.get("username") or ""), str(found.get("password") or ""), UserType.SUPER)
    except InvalidUser as error:
        raise ValueError(str(error)) from None


def _json_object(text: str, form: str) -> dict[str, object]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ValueError(f"is not JSON of the form {form}")
    return found
