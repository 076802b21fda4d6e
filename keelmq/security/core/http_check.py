"""The check of HTTP requests: a password or a token instead of a signature, and the same decisions.

What differs from requests over TCP (access.py): every user shows the password, also from a white address of
its account and for codes on the authenticationWhitelist; with authorization alone as well, since a name
without a password proves nothing. What only members may send is refused, unless a member's certificate is
shown. Nothing is remembered: HTTP is for administration."""

from collections.abc import Iterable
from hashlib import sha256
from hmac import compare_digest
from shlex import quote
from typing import Final

from keelmq.remoting.operation import Role
from keelmq.security.core import plain_acl
from keelmq.security.core.access import AccessControl, AccessRequest, Granted, Refused
from keelmq.security.core.acls import Action, cluster_resource, subject_of
from keelmq.security.core.authorize import Context, Denied, decide
from keelmq.security.core.contexts import Required, Unreadable, required_of
from keelmq.security.core.refusals import Reason
from keelmq.security.core.rules import rule_of

WRONG_PASSWORD: Final = "the user or the password is wrong"
MEMBERS_ONLY: Final = "this request is for members of this cluster only, which send it to the remoting port"
NOBODY_ADMINISTERS: Final = (
    "nobody can prove to be an administrator here: set httpTokensFile, or authenticationEnabled=true"
)


class HttpControl:
    """The check of one AccessControl's users and ACLs."""

    def __init__(self, control: AccessControl) -> None:
        self._control = control

    @property
    def has_users(self) -> bool:
        """Whether any user has a password here."""
        return self._checks_users or self._control.plain is not None

    def needs_user(self, peer_ip: str) -> bool:
        """Returns whether requests from this address need a user."""
        plain = self._control.plain
        return self._checks_users or (plain is not None and not plain.is_white(peer_ip))

    @property
    def _checks_users(self) -> bool:
        settings = self._control.settings
        return settings.authentication_enabled or settings.authorization_enabled

    def member_of(self, certificate_names: Iterable[str]) -> str | None:
        """Returns the name by which a verified certificate is a member's."""
        members = self._control.settings.member_certificates
        return next((name for name in certificate_names if name in members), None)

    def check_password(self, username: str, password: str, peer_ip: str) -> str | None:
        """Returns why the user is not authenticated; None: it is. The caller counts failures."""
        plain = self._control.plain
        if self._checks_users:
            user = self._control.users.user(username)
            if not _is_same(password, None if user is None else user.password) or user is None:
                return WRONG_PASSWORD
            if not user.is_enabled:
                return f"User:{username} is disabled."
        if plain is not None and not (self._checks_users and plain.is_white(peer_ip)):
            account = plain.accounts.get(username)
            if not _is_same(password, None if account is None else account.password):
                return WRONG_PASSWORD
        return None

    def check_members(self, code: int) -> Refused | None:
        """Checks whether only members may send this."""
        if self._control.settings.members_required and rule_of(code).members_only:
            return self._refused(MEMBERS_ONLY, "member")
        return None

    def check_view(self, username: str, role: Role, peer_ip: str) -> Refused | None:
        """Checks a route that is no operation: it needs Get of the cluster, or Update to change something."""
        action = Action.GET if role is Role.READ else Action.UPDATE
        context = Context(cluster_resource(self._control.settings.cluster_name), (action,))
        plain = self._control.plain
        if plain is not None and not plain.is_white(peer_ip) and role is not Role.READ:
            account = plain.accounts.get(username)
            if account is None or not account.is_admin:
                return self._refused(f"accessKey={username} is no admin (ACL 1.0), and this needs one")
        return self._without_members(role) or self._decided(username, (context,), peer_ip)

    def check_request(self, username: str, request: AccessRequest) -> Granted | Refused:
        """Checks an operation with its resources. The user is authenticated, or "": nothing was checked."""
        rule, settings, plain = rule_of(request.code), self._control.settings, self._control.plain
        if (refused := self.check_members(request.code)) is not None:
            return refused
        required = Required(())
        if plain is not None or settings.authorization_enabled:
            try:
                required = required_of(rule, request.ext_fields or {}, request.body, settings.cluster_name)
            except Unreadable as error:
                return self._refused(str(error), "unreadable")
        if plain is not None and not plain.is_white(request.peer_ip):
            account = plain.accounts.get(username)
            why = (
                f"No acl config for {username}"
                if account is None
                else plain_acl.authorize(account, request.code, required.contexts, request.peer_ip)
            )
            if why is not None:
                return self._refused(f"AclException: {why}")
        refused = self._without_members(rule.role)
        if refused is None and request.code not in settings.authorization_whitelist:
            refused = self._decided(username, required.contexts, request.peer_ip)
        return refused or Granted(username, rule.role, lookups=required.lookups)

    def _without_members(self, role: Role) -> Refused | None:
        """Where signatures are not checked, only members administer over TCP; over HTTP there is none."""
        settings = self._control.settings
        if role is Role.ADMINISTER and settings.members_required and not self.has_users:
            return self._refused(NOBODY_ADMINISTERS, "member")
        return None

    def _decided(self, username: str, contexts: tuple[Context, ...], peer_ip: str) -> Refused | None:
        if not self._control.settings.authorization_enabled:
            return None
        users = self._control.users
        verdict = decide(users.user(username), users.acl(subject_of(username)), contexts, peer_ip)
        if not isinstance(verdict, Denied):
            return None
        return self._refused(verdict.remark + _remedy(username, verdict.context))

    def _refused(self, remark: str, reason: Reason = "rights") -> Refused:
        return Refused(self._control.settings.refused_code, remark, reason)


def _remedy(username: str, context: Context | None) -> str:
    if context is None:
        return ""
    # Quoted, as it will be copied: the refused sender chose the names.
    subject, resource = quote(subject_of(username)), quote(context.resource.key)
    action = context.actions[0].name.capitalize()
    command = f"mqadmin updateAcl -s {subject} -r {resource} -a {action} -d Allow"
    return f" An administrator can grant it: {command}"


def _is_same(given: str, expected: str | None) -> bool:
    """Whether a password is right; None: there is no such user. The time reveals neither."""
    is_same = compare_digest(_hash(given), _hash(expected or ""))
    return is_same and expected is not None


def _hash(text: str) -> bytes:
    return sha256(text.encode("utf-8", "replace")).digest()
