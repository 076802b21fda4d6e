"""The check of every request: who sends it, and whether they may. Servers call nothing else.

    member's certificate -> ACL 1.0 -> signature (ACL 2.0) -> member and proof -> authorization

Each switch works alone. A failed check has no effect but on the throttle. What was allowed is remembered by
(user, code, resources, address) until any user or ACL changes, so revocation takes effect with the next
request. What was refused is never remembered: with RocketMQ's stateful strategy a wrong first request makes
correct ones fail for a minute."""

from collections.abc import Iterable
from typing import Final, NamedTuple, NoReturn, Protocol

from keelmq.remoting.codes import RequestCode
from keelmq.security.core import plain_acl
from keelmq.security.core.access_settings import AccessSettings
from keelmq.security.core.acls import Acl, Action, subject_of
from keelmq.security.core.authorize import Context, Denied, decide
from keelmq.security.core.contexts import (
    TRACE_TOPIC,
    Lookup,
    Role,
    Rule,
    Unreadable,
    lookups_of,
    required_of,
    topic_context,
)
from keelmq.security.core.member_proof import PROOF, MemberProofs
from keelmq.security.core.plain_acl import PlainAcl
from keelmq.security.core.refusals import Reason, Refusal, name_of, reason_of_plain
from keelmq.security.core.rules import RULES, UNKNOWN
from keelmq.security.core.signature import (
    ACCESS_KEY,
    SIGNATURE,
    Credential,
    ExtFields,
    SecretKey,
    is_signature,
    verify,
)
from keelmq.security.core.throttle import FailureThrottle
from keelmq.security.core.users import User

NO_USERNAME: Final = "username cannot be null."
WRONG_SIGNATURE: Final = "check signature failed."
UNKNOWN_SUBJECT: Final = "Authorization failed. Please verify your access rights and try again."
_NO_SECRET: Final = SecretKey(b"")
"""Checks the signature of an unknown user, which takes as long as that of a known one."""
_NO_FIELDS: Final[ExtFields] = {}
KEY_CHARS_MAX: Final = 4_096
"""Characters of the names that a remembered decision is about."""


class UsersAndAcls(Protocol):
    """Where users and ACLs are kept: a broker's replicated tables, a name server's files."""

    @property
    def generation(self) -> int:
        """Grows with every change of a user or an ACL."""
        ...

    def user(self, username: str) -> User | None: ...

    def acl(self, subject: str) -> Acl | None: ...


class AccessRequest(NamedTuple):
    """ext_fields None: the request has none. peer_ip: without the port. certificate_names: of the client's
    certificate, which the server has verified. credential: of a client of gRPC, instead of the ext fields
    AccessKey and Signature; it does not cover the request."""

    code: int
    version: int
    ext_fields: ExtFields | None
    body: bytes
    peer_ip: str
    connection_id: int = 0
    is_tls: bool = False
    certificate_names: Iterable[str] = ()
    own_address: str = ""
    credential: Credential | None = None


class Granted(NamedTuple):
    """username "": nothing was checked. role: of the request. lookups: topics that the handler has to check
    with check_topic() before it answers."""

    username: str
    role: Role
    is_member: bool = False
    lookups: tuple[Lookup, ...] = ()


class Refused(NamedTuple):
    code: int
    remark: str
    reason: Reason


class AccessControl:
    """One for each server. Not for several threads."""

    def __init__(
        self,
        users: UsersAndAcls,
        settings: AccessSettings,
        *,
        plain: PlainAcl | None = None,
        proofs: MemberProofs | None = None,
        throttle: FailureThrottle | None = None,
    ) -> None:
        """plain: the accounts of ACL 1.0; None: aclEnable is off."""
        self._users = users
        self._settings = settings
        self._plain = plain
        self._proofs = proofs if proofs is not None else MemberProofs()
        self._throttle = throttle if throttle is not None else FailureThrottle()
        self._generation = users.generation
        self._state = object()
        self._allowed: dict[tuple[object, ...], Granted] = {}
        """(user, code, address, fields of its resources) -> what was granted, without look-ups."""
        self._authenticated: dict[tuple[int, str, bool], int] = {}
        """(connection, user, whether that is an account of ACL 1.0, which has its own secret) whose signature
        was right -> until when that counts, in ms."""

    @property
    def remembered(self) -> tuple[int, int]:
        """How many decisions, and how many pairs of connection and user."""
        return len(self._allowed), len(self._authenticated)

    @property
    def state(self) -> object:
        """Another object after every change of users, ACLs and accounts."""
        if self._generation != self._users.generation:
            self._forget()
        return self._state

    @property
    def users(self) -> UsersAndAcls:
        return self._users

    @property
    def settings(self) -> AccessSettings:
        return self._settings

    @property
    def plain(self) -> PlainAcl | None:
        """The accounts of ACL 1.0 as they are now."""
        return self._plain

    @property
    def throttle(self) -> FailureThrottle:
        return self._throttle

    def set_plain(self, plain: PlainAcl | None) -> None:
        """Takes the accounts of changed files."""
        self._plain = plain
        self._allowed.clear()
        self._state = object()

    def check(self, request: AccessRequest, now_ms: int) -> Granted | Refused:
        """Time matters for proofs, the throttle and the stateful strategy: now_ms is a wall clock."""
        settings = self._settings
        rule = RULES.get(request.code, UNKNOWN)
        if request.certificate_names and settings.member_certificates:
            for name in request.certificate_names:
                if name in settings.member_certificates:
                    return Granted(name, rule.role, is_member=True, lookups=())
        if self._generation != self._users.generation:
            self._forget()
        ext_fields = request.ext_fields if request.ext_fields is not None else _NO_FIELDS
        if request.credential is not None:
            ext_fields = {**ext_fields, ACCESS_KEY: request.credential.access_key}
        try:
            by_plain = None
            # A member proves itself by its own signature, whatever accounts there are.
            if self._plain is not None and ext_fields.get(ACCESS_KEY) not in settings.member_users:
                by_plain = self._check_plain(self._plain, request, rule, ext_fields, now_ms)
            by_user = self._check_user(request, rule, ext_fields, now_ms)
            if by_user is None or by_plain is None:
                return by_user or by_plain or Granted("", rule.role)
            return by_user._replace(lookups=by_user.lookups or by_plain.lookups)
        except Refusal as refusal:
            return Refused(settings.refused_code, refusal.remark, refusal.reason)
        except Unreadable as error:
            remark = f"{name_of(request.code)} is refused: {error}"
            return Refused(settings.refused_code, remark, "unreadable")

    def check_topic(self, granted: Granted, lookup: Lookup, topic: str, peer_ip: str) -> Granted | Refused:
        """Checks the topic that the handler found. It returns Granted without lookups."""
        if not granted.is_member and not (topic == TRACE_TOPIC and Action.PUB in lookup.actions):
            contexts = (topic_context(topic, *lookup.actions),)
            try:
                if self._plain is not None and not self._plain.is_white(peer_ip):
                    self._authorize_plain(
                        self._plain, granted.username, RequestCode.VIEW_MESSAGE_BY_ID, contexts, peer_ip
                    )
                if self._settings.authorization_enabled:
                    self._decide(granted.username, contexts, peer_ip)
            except Refusal as refusal:
                return Refused(self._settings.refused_code, refusal.remark, refusal.reason)
        return granted._replace(lookups=())

    def _forget(self) -> None:
        """Nothing that was right before a change of users or ACLs counts after it."""
        self._generation = self._users.generation
        self._allowed.clear()
        self._authenticated.clear()
        self._state = object()

    # -- ACL 1.0 -----------------------------------------------------------------------------------------

    def _check_plain(
        self, plain: PlainAcl, request: AccessRequest, rule: Rule, ext_fields: ExtFields, now_ms: int
    ) -> Granted:
        if plain.is_white(request.peer_ip):
            return Granted("", rule.role)
        access_key = ext_fields.get(ACCESS_KEY) or ""
        self._refuse_throttled(request, access_key, now_ms, is_plain=True)
        account = plain.authenticate(ext_fields, request.body, request.version, request.peer_ip)
        if isinstance(account, str):
            if access_key:
                self._throttle.failed(request.peer_ip, now_ms, access_key)
            raise Refusal(reason_of_plain(plain, access_key), f"AclException: {account}")
        self._remember(request.connection_id, access_key, now_ms, is_plain=True)
        if account.is_admin:
            return Granted(access_key, rule.role)
        key = ("1.0", access_key, request.code, request.peer_ip, *map(ext_fields.get, rule.fields))
        if rule.body is None:
            granted = self._allowed.get(key)
            if granted is not None:
                return _with_lookups(granted, rule, ext_fields)
        required = required_of(rule, ext_fields, request.body, self._settings.cluster_name)
        self._authorize_plain(plain, access_key, request.code, required.contexts, request.peer_ip)
        granted = Granted(access_key, rule.role)
        if rule.body is None:
            self._allow(key, granted)
        return granted._replace(lookups=required.lookups)

    def _authorize_plain(
        self, plain: PlainAcl, access_key: str, code: int, contexts: tuple[Context, ...], peer_ip: str
    ) -> None:
        account = plain.accounts.get(access_key)
        why = (
            f"No acl config for {access_key}"
            if account is None
            else plain_acl.authorize(account, code, contexts, peer_ip)
        )
        if why is not None:
            raise Refusal("user" if account is None else "rights", f"AclException: {why}")

    # -- ACL 2.0 -----------------------------------------------------------------------------------------

    def _check_user(
        self, request: AccessRequest, rule: Rule, ext_fields: ExtFields, now_ms: int
    ) -> Granted | None:
        """None: neither members nor users are checked."""
        settings, code = self._settings, request.code
        needs_member = settings.members_required and (
            rule.members_only
            or (rule.role is Role.ADMINISTER and not settings.authentication_enabled and self._plain is None)
        )
        needs_user = settings.authentication_enabled and code not in settings.authentication_whitelist
        username, is_member = "", False
        if needs_user or needs_member or ext_fields.get(ACCESS_KEY) in settings.member_users:
            username = self._authenticate(request, rule, ext_fields, now_ms)
            is_member = username in settings.member_users
        elif settings.authentication_enabled:
            # On the white list: a signature is not needed, but requests without a valid one are anonymous.
            username = self._authenticated_or_anonymous(request, rule, ext_fields, now_ms)
            is_member = username in settings.member_users
        elif settings.authorization_enabled:
            username = ext_fields.get(ACCESS_KEY) or ""
        if needs_member and not is_member:
            raise Refusal("member", f"{name_of(code)} is for members of this cluster only")
        if is_member:
            return Granted(username, rule.role, is_member=True)
        if settings.authorization_enabled and code not in settings.authorization_whitelist:
            return self._authorize(username, request, rule, ext_fields)
        return Granted(username, rule.role) if username else None

    def _authenticate(self, request: AccessRequest, rule: Rule, ext_fields: ExtFields, now_ms: int) -> str:
        """Returns the user whose signature is right, and whose proof is right if one is needed."""
        settings = self._settings
        username = ext_fields.get(ACCESS_KEY)
        if not username:
            raise Refusal("unsigned", NO_USERNAME)
        if request.credential is not None and username in settings.member_users:
            raise Refusal("member", f"User:{username} is of the servers, and not for clients")
        needs_proof = settings.proof_required and username in settings.member_users
        if settings.proof_to_administer and rule.role is Role.ADMINISTER and not request.is_tls:
            needs_proof = True
        needs_proof = needs_proof or PROOF in ext_fields
        if settings.stateful_authentication and not needs_proof and rule.role is not Role.ADMINISTER:
            until_ms = self._authenticated.get((request.connection_id, username, False), 0)
            if until_ms > now_ms:
                # Every change of users clears this, so the user is still the same and enabled.
                return username
        self._refuse_throttled(request, username, now_ms)
        user = self._users.user(username)
        secret = _NO_SECRET if user is None else user.secret
        if not _is_signed(secret, request, ext_fields) or user is None:
            # RocketMQ says whether the user exists, and so for which names to guess passwords.
            self._fail(request, username, now_ms, "user" if user is None else "signature", WRONG_SIGNATURE)
        if not user.is_enabled:
            self._fail(request, username, now_ms, "user", f"User:{username} is disabled.")
        if needs_proof:
            of = "" if username in settings.member_users else username
            why = self._proofs.check(
                request.code, ext_fields, request.body, now_ms, request.own_address, user=of
            )
            if why is not None:
                raise Refusal("proof", f"{name_of(request.code)} is refused: {why}")
        if request.credential is None:  # else each request has a connection id of its own
            self._remember(request.connection_id, username, now_ms)
        return username

    def _authenticated_or_anonymous(
        self, request: AccessRequest, rule: Rule, ext_fields: ExtFields, now_ms: int
    ) -> str:
        if not ext_fields.get(SIGNATURE):
            return ""
        try:
            return self._authenticate(request, rule, ext_fields, now_ms)
        except Refusal:
            return ""

    def _authorize(self, username: str, request: AccessRequest, rule: Rule, ext_fields: ExtFields) -> Granted:
        key = (username, request.code, request.peer_ip, *map(ext_fields.get, rule.fields))
        if rule.body is None:
            granted = self._allowed.get(key)
            if granted is not None:
                return _with_lookups(granted, rule, ext_fields)
        required = required_of(rule, ext_fields, request.body, self._settings.cluster_name)
        if not username:
            if required.contexts or required.lookups:
                raise Refusal("rights", UNKNOWN_SUBJECT)
            return Granted("", rule.role)
        self._decide(username, required.contexts, request.peer_ip)
        granted = Granted(username, rule.role)
        if rule.body is None:
            self._allow(key, granted)
        return granted._replace(lookups=required.lookups)

    def _decide(self, username: str, contexts: tuple[Context, ...], peer_ip: str) -> None:
        verdict = decide(self._users.user(username), self._users.acl(subject_of(username)), contexts, peer_ip)
        if isinstance(verdict, Denied):
            raise Refusal("rights", verdict.remark)

    # -- what is remembered ------------------------------------------------------------------------------

    def _allow(self, key: tuple[object, ...], granted: Granted) -> None:
        if sum(len(each) for each in key if isinstance(each, str)) > KEY_CHARS_MAX:
            return  # names of a frame's size would fill the memory, ten thousand times
        if len(self._allowed) >= self._settings.decision_cache_max:
            # The oldest one: those in use come back at once.
            del self._allowed[next(iter(self._allowed))]
        self._allowed[key] = granted

    def _remember(self, connection_id: int, username: str, now_ms: int, *, is_plain: bool = False) -> None:
        """Also without the stateful strategy: connections that were right are not throttled."""
        key = (connection_id, username, is_plain)
        if key not in self._authenticated and len(self._authenticated) >= self._settings.stateful_cache_max:
            del self._authenticated[next(iter(self._authenticated))]
        self._authenticated[key] = now_ms + self._settings.stateful_expired_ms

    def _refuse_throttled(
        self, request: AccessRequest, username: str, now_ms: int, *, is_plain: bool = False
    ) -> None:
        """Never a member: its secret is random, and an anonymous client must not keep it from the cluster."""
        if username in self._settings.member_users:
            return
        wait_ms = self._throttle.wait_ms(request.peer_ip, now_ms, username)
        if wait_ms and (request.connection_id, username, is_plain) not in self._authenticated:
            raise Refusal(
                "throttled",
                f"too many failed authentications from {request.peer_ip}; "
                f"try again in {wait_ms // 1000 + 1} s",
            )

    def _fail(
        self, request: AccessRequest, username: str, now_ms: int, reason: Reason, remark: str
    ) -> NoReturn:
        self._throttle.failed(request.peer_ip, now_ms, username)
        raise Refusal(reason, remark)


def _is_signed(secret: SecretKey, request: AccessRequest, ext_fields: ExtFields) -> bool:
    credential = request.credential
    if credential is None:
        return verify(secret, ext_fields, request.body, request.version)
    return is_signature(secret, credential.signature, credential.signed)


def _with_lookups(granted: Granted, rule: Rule, ext_fields: ExtFields) -> Granted:
    return granted._replace(lookups=lookups_of(rule, ext_fields)) if rule.lookups else granted
