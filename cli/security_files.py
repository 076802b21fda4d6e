"""The files that close a cluster, as path -> text: for each server, for administrators, for clients, and for
a place where no server is. No input or output; new_security() draws the secrets.

`keelmq init-security` writes them for a cluster that has its configuration, `keelmq init --secure` for a new
one. Every server has private keys that no other server has. Equal at all servers are the CA, the
credentials of members, the hashes of the HTTP tokens and the settings (docs/adr/0083-*.md).
"""

import hashlib
import json
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from cli.certificates import CA_DAYS, DAYS, Authority, Pair, Role, make_authority, sign

ADMIN, CLIENT, OFFLINE = "admin", "client", "keep-offline"
RAFT_OFFLINE = f"{OFFLINE}/raft"
"""The CA of the controllers: a certificate of it for a member's id is membership (ADR 14), so it issues
nothing else."""
CREDENTIALS = "credentials.yml"
ADMINISTRATOR, MEMBER = "admin", "keelmq-member"
TOKEN_ROLES = ("administer", "read")
SECRET_BYTES = 24
RAFT_SECRET_BYTES = 32

CLUSTER_NAME = re.compile(r"[A-Za-z0-9_.-]{1,48}")
_HERE = "${securityPath}"


@dataclass(frozen=True, slots=True)
class Server:
    """`names`: DNS names and addresses that its certificate is for. For the raft port it gets a certificate
    for `controller_id`, or the key that all controllers share, or nothing: it has no controller."""

    names: tuple[str, ...]
    controller_id: str | None = None
    shares_raft_key: bool = False


@dataclass(frozen=True, slots=True)
class Security:
    """The secrets of one cluster. `days`: validity of the certificates that it issues."""

    cluster: str
    days: int
    authority: Authority = field(repr=False)
    raft_authority: Authority = field(repr=False)
    password: str = field(repr=False)
    member_secret: str = field(repr=False)
    raft_key: str = field(repr=False)
    tokens: Mapping[str, str] = field(repr=False)
    """Role -> token."""

    def of_server(self, server: Server) -> dict[str, str]:
        """Returns what securityPath of this server has. Each call makes new keys."""
        issued = {
            "server": sign(self.authority, "server", server.names, self.days, Role.SERVER),
            "member": sign(self.authority, "member", [member_name(self.cluster)], self.days, Role.CLIENT),
        }
        found = {
            "security.conf": _lines(_common(self.password)),
            "broker.conf": _lines(_broker()),
            "namesrv.conf": _lines(_namesrv(self.cluster)),
            "ca.crt": self.authority.pair.certificate,
            "member.json": json.dumps({"accessKey": MEMBER, "secretKey": self.member_secret}) + "\n",
            "http-tokens": "".join(
                f"{role} {ADMINISTRATOR if role == 'administer' else 'metrics'} sha256:{_hashed(token)}\n"
                for role, token in self.tokens.items()
            ),
        }
        if (member := server.controller_id) is not None:
            issued["controller"] = sign(self.raft_authority, member, [member], self.days, Role.RAFT)
            found["controller-ca.crt"] = self.raft_authority.pair.certificate
            found["controller.conf"] = _lines(_certified_controller(member))
        elif server.shares_raft_key:
            found["raft.key"] = self.raft_key + "\n"
            found["controller.conf"] = _lines(_controller())
        for stem, pair in issued.items():
            found |= _files(stem, pair)
        return found

    def of_administrators(self) -> dict[str, str]:
        """Returns what is in the directory ADMIN."""
        names = [f"{ADMINISTRATOR}.{self.cluster}"]
        return {
            CREDENTIALS: credentials_text(
                ADMINISTRATOR, self.password, "{ca: ca.crt, certificate: admin.crt, key: admin.key}"
            ),
            "ca.crt": self.authority.pair.certificate,
            **_files("admin", sign(self.authority, "admin", names, self.days, Role.CLIENT)),
            **{token_file(role): token + "\n" for role, token in self.tokens.items()},
        }

    def of_client(self, user: str, password: str) -> dict[str, str]:
        """Returns what is in the directory CLIENT: an application's credentials."""
        return {
            CREDENTIALS: credentials_text(user, password, "{ca: ca.crt}"),
            "ca.crt": self.authority.pair.certificate,
        }

    def kept_offline(self, *, with_raft: bool) -> dict[str, str]:
        """Returns the keys of the CAs, by their path below the directory of the cluster."""
        found = {f"{OFFLINE}/{name}": text for name, text in _files("ca", self.authority.pair).items()}
        if with_raft:
            of_raft = _files("ca", self.raft_authority.pair)
            found |= {f"{RAFT_OFFLINE}/{name}": text for name, text in of_raft.items()}
        return found


def new_security(cluster: str, *, days: int = DAYS, ca_days: int = CA_DAYS) -> Security:
    """Returns new secrets, and new CAs that are valid for `ca_days` days."""
    return Security(
        cluster=cluster,
        days=days,
        authority=make_authority(ca_days),
        raft_authority=make_authority(ca_days),
        password=new_secret(),
        member_secret=new_secret(),
        raft_key=new_secret(RAFT_SECRET_BYTES),
        tokens={role: new_secret() for role in TOKEN_ROLES},
    )


def new_secret(size: int = SECRET_BYTES) -> str:
    """Hexadecimal: nothing in it means anything to a shell or to a properties file."""
    return secrets.token_hex(size)


def token_file(role: str) -> str:
    """Returns the name of the file with the HTTP token of this role, in ADMIN."""
    return f"http-{role}.token"


def member_name(cluster: str) -> str:
    """Returns the name in the certificate that members show to each other."""
    return f"member.{cluster}"


def credentials_text(user: str, password: str, tls: str) -> str:
    """Returns a credentials file. RocketMQ's mqadmin reads the same (conf/tools.yml); it ignores `tls`."""
    return _lines(
        [
            "# For mqadmin and keelmq: --credentials FILE, or KEELMQ_CREDENTIALS=FILE.",
            f"accessKey: {user}",
            f'secretKey: "{password}"',  # quoted: YAML would read some as numbers
            f"tls: {tls}",
        ]
    )


def _files(stem: str, pair: Pair) -> dict[str, str]:
    return {f"{stem}.crt": pair.certificate, f"{stem}.key": pair.key}


def _common(password: str) -> Iterable[str]:
    user = json.dumps({"username": ADMINISTRATOR, "password": password}, separators=(",", ":"))
    return (
        "# Defaults of every program with securityPath; its own file overrides them. docs/security.md",
        "",
        "# Requests must be signed by a user, whose ACL says what it may do.",
        "authenticationEnabled=true",
        "authorizationEnabled=true",
        "# The first user, created while there is none; to change its password: mqadmin updateUser.",
        f"initAuthenticationUser={user}",
        "",
        "# What the servers of this cluster sign their own requests with.",
        f"innerClientAuthenticationCredentialsFile={_HERE}/member.json",
        "",
        "# HTTP: a token that administers and one that reads, both in admin, or a user's password.",
        f"httpTokensFile={_HERE}/http-tokens",
        "",
        "# TLS only, at the ports and between the servers. Both keep plain clients out: C++ 1.2 and Node.js",
        "# clients have no TLS, for them set tls.server.mode=permissive.",
        "tls.server.mode=enforcing",
        f"tls.server.certPath={_HERE}/server.crt",
        f"tls.server.keyPath={_HERE}/server.key",
        f"tls.server.trustCertPath={_HERE}/ca.crt",
        "tls.server.need.client.auth=optional",
        "tls.enable=true",
        f"tls.client.certPath={_HERE}/member.crt",
        f"tls.client.keyPath={_HERE}/member.key",
        f"tls.client.trustCertPath={_HERE}/ca.crt",
    )


def _broker() -> Iterable[str]:
    return (
        "# TLS between a master and its slaves, which also prove that they are members.",
        "haTlsMode=enforcing",
        "haTlsEnable=true",
    )


def _namesrv(cluster: str) -> Iterable[str]:
    return (
        "# Cluster:<name> in ACLs.",
        f"authorizationCluster={cluster}",
    )


def _controller() -> Iterable[str]:
    return (
        "# How the controllers of a group know each other.",
        f"controllerRaftSecretFile={_HERE}/raft.key",
    )


def _certified_controller(member: str) -> Iterable[str]:
    return (
        f"# How the controllers of a group know each other: this certificate is for {member} alone.",
        f"controllerRaftTlsCertPath={_HERE}/controller.crt",
        f"controllerRaftTlsKeyPath={_HERE}/controller.key",
        f"controllerRaftTlsTrustCertPath={_HERE}/controller-ca.crt",
    )


def _lines(lines: Iterable[str]) -> str:
    return "\n".join([*lines, ""])


def _hashed(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
