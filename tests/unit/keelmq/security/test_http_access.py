"""Who may use an HTTP port: users with passwords, tokens of a file, members with certificates."""

import base64
import hashlib
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Caller, Changes, Peer, Request, Role
from keelmq.remoting.servers.http_access import Forbidden, TooManyFailures, Unauthenticated
from keelmq.remoting.servers.http_call import HttpPeer
from keelmq.remoting.servers.http_settings import HttpConfig
from keelmq.runtime.config import ConfigError
from keelmq.security.core.access import AccessControl
from keelmq.security.core.access_settings import AccessSettings
from keelmq.security.core.acls import Acl
from keelmq.security.core.plain_acl import parse_plain_acl
from keelmq.security.core.users import User, UserStatus
from keelmq.security.http_access import HttpServerAccess, http_access
from keelmq.security.server_access import ServerAccess
from keelmq.security.tokens_file import CHECK_MS, TokensFile
from namesrv.app import Namesrv
from namesrv.config import NamesrvConfig
from tests.support.raft_certificates import Authority
from tests.support.tls_parts import client_files
from tests.unit.keelmq.security.parts import NOW_MS, SECRETS, Tables, acl_of, control, tables

TOKENS = {name: f"{name}-token-of-32-characters-or-so" for name in ("reader", "operator", "admin")}
RIGHTS = ("Topic:mine Get Allow",)
REMOTE, LOCAL = "10.0.0.7:5000", "127.0.0.1:5000"


def line(role: str, name: str, token: str) -> str:
    return f"{role} {name} sha256:{hashlib.sha256(token.encode()).hexdigest()}\n"


LINES = {name: line(role, name, TOKENS[name]) for name, role in
         (("reader", "read"), ("operator", "OPERATE"), ("admin", "administer"))}  # fmt: skip


def tokens_file(directory: Path, text: str | None = None) -> Path:
    path = directory / "http.tokens"
    path.touch(mode=0o600)
    path.write_text("# ours\n\n" + "".join(LINES.values()) if text is None else text)
    return path


def basic(user: str, password: str | None = None) -> str:
    text = f"{user}:{SECRETS[user] if password is None else password}"
    return "Basic " + base64.b64encode(text.encode()).decode()


def bearer(name: str) -> str:
    return "Bearer " + TOKENS.get(name, name)


def auth(value: str) -> dict[str, str]:
    return {"authorization": value}


class Noted:
    """An Audit that keeps what it is told."""

    def __init__(self) -> None:
        self.lines: list[tuple[int, str, str, int, Changes]] = []
        self.peers: list[Peer] = []
        self.pages: list[tuple[str, str]] = []

    def wants(self, code: int) -> bool:
        return True

    def record(
        self, request: Request, peer: Peer, caller: Caller, *, code: int, remark: str, changes: Changes
    ) -> None:
        self.lines.append((request.code, caller.user, remark, code, dict(changes)))
        self.peers.append(peer)

    def refused(self, what: str, *, address: str, is_tls: bool, remark: str) -> None:
        self.pages.append((what, remark))


class Running:
    """A name server with users, and a client of its HTTP port."""

    def __init__(self, server: Namesrv, users: Tables, http: httpx.AsyncClient) -> None:
        self.server, self.users, self.http = server, users, http
        self.audit = Noted()
        server.table.audit = self.audit

    async def get(self, path: str, authorization: str | None = None) -> httpx.Response:
        return await self.http.get(path, headers=auth(authorization) if authorization else {})

    async def post(self, name: str, authorization: str, **json: object) -> httpx.Response:
        return await self.http.post(f"/v1/{name}", json=json, headers=auth(authorization))


@asynccontextmanager
async def running(
    tmp_path: Path, *acl: str, users: bool = True, **settings: object
) -> AsyncIterator[Running]:
    made = {"listenPort": 0, "bindAddress": "127.0.0.1", "kvConfigPath": tmp_path / "kv.json", **settings}
    server, found = Namesrv(NamesrvConfig.model_validate(made)), tables(*acl)
    if users:
        server.table.access = ServerAccess(control(found))
    async with server:
        assert server.http_address is not None
        async with httpx.AsyncClient(base_url="http://{}:{}".format(*server.http_address)) as http:
            yield Running(server, found, http)


# -- users, at a name server ---------------------------------------------------------------------------------


async def test_without_credentials_only_probes_and_metrics_are_served(tmp_path: Path) -> None:
    async with running(tmp_path) as made:
        for path in ("/livez", "/readyz", "/metrics"):
            assert (await made.get(path)).status_code == 200
        for path in ("/docs", "/openapi.json", "/v1/routes", "/v1/config", "/static/analytics.js", "/x"):
            answer = await made.get(path)
            assert answer.status_code == 401, path
            assert answer.headers["www-authenticate"].startswith('Basic realm="keelmq"')
        start = await made.get("/")  # of a console that is built, else of the analytics page
        assert start.status_code == 401 or start.headers["location"] == "console/"
        answer = await made.http.post("/v1/getNamesrvConfig")
        assert answer.status_code == 401 and "Authorization: Basic" in answer.json()["detail"]


async def test_a_super_user_does_everything(tmp_path: Path) -> None:
    async with running(tmp_path) as made:
        root = basic("root")
        assert (await made.get("/docs", root)).status_code == 200
        assert (await made.get("/v1/routes", root)).status_code == 200
        assert (await made.post("getNamesrvConfig", root)).status_code == 200
        changed = await made.http.patch("/v1/config", json={"orderMessageEnable": True}, headers=auth(root))
        assert changed.status_code == 200 and made.server.config.order_message_enable


async def test_a_user_does_what_the_acl_says(tmp_path: Path) -> None:
    async with running(tmp_path, *RIGHTS) as made:
        alice = basic("alice")
        mine = await made.post("getRouteInfoByTopic", alice, topic="mine")
        assert mine.status_code == 409 and mine.json()["code"] == ResponseCode.TOPIC_NOT_EXIST
        other = await made.post("getRouteInfoByTopic", alice, topic="other")
        assert other.status_code == 403
        assert other.json()["detail"] == (
            "User:alice has no permission to access Topic:other from 127.0.0.1, no matched policies. An "
            "administrator can grant it: mqadmin updateAcl -s User:alice -r Topic:other -a Pub -d Allow"
        )
        for host in ("x/livez?", "localhost/readyz#"):
            answer = await made.http.get("/v1/routes", headers={**auth(alice), "host": host})
            assert answer.status_code == 403
        view = await made.get("/v1/routes", alice)
        assert view.status_code == 403 and "Cluster:DefaultCluster" in view.json()["detail"]
        made.users.put(acl_of("alice", "Cluster:DefaultCluster Get Allow"))
        assert (await made.get("/v1/routes", alice)).status_code == 200
        change = await made.http.patch("/v1/config", json={"orderMessageEnable": True}, headers=auth(alice))
        assert change.status_code == 403 and "-a Update" in change.json()["detail"]
        assert not made.server.config.order_message_enable
        made.users.put(acl_of("alice", "Cluster:DefaultCluster Get,Update Allow"))
        change = await made.http.patch("/v1/config", json={"orderMessageEnable": True}, headers=auth(alice))
        assert change.status_code == 200


@pytest.mark.parametrize(
    "authorization",
    [
        basic("alice", "wrong"), basic("nobody", "x"), basic("alice", ""), basic("", ""), basic("gone"),
        "Basic", "Basic !", "Basic " + base64.b64encode(b"alice").decode(),
        "Basic " + base64.b64encode(b"\xff:\xff").decode(), bearer("reader"), "Bearer", "Digest x", "",
    ],
)  # fmt: skip
async def test_wrong_credentials_are_401(tmp_path: Path, authorization: str) -> None:
    async with running(tmp_path, "Cluster:* Get Allow") as made:
        answer = await made.http.get("/v1/routes", headers=auth(authorization))
        assert answer.status_code == 401, answer.text
        assert "www-authenticate" in answer.headers
        assert SECRETS["alice"] not in answer.text and TOKENS["reader"] not in answer.text


async def test_an_unknown_user_and_a_wrong_password_look_the_same(tmp_path: Path) -> None:
    async with running(tmp_path) as made:
        answers = [await made.get("/v1/routes", basic(user, "wrong")) for user in ("alice", "nobody")]
        assert answers[0].json() == answers[1].json()


async def test_what_is_revoked_ends_with_the_next_request(tmp_path: Path) -> None:
    async with running(tmp_path, "Cluster:* Get Allow") as made:
        assert (await made.get("/v1/routes", basic("alice"))).status_code == 200
        made.users.put(User("alice", "another-secret"))
        assert (await made.get("/v1/routes", basic("alice"))).status_code == 401
        assert (await made.get("/v1/routes", basic("alice", "another-secret"))).status_code == 200
        made.users.put(User("alice", "another-secret", status=UserStatus.DISABLE))
        assert (await made.get("/v1/routes", basic("alice", "another-secret"))).status_code == 401
        made.users.put(User("alice", SECRETS["alice"]), Acl("User:alice", ()))
        assert (await made.get("/v1/routes", basic("alice"))).status_code == 403


async def test_operations_are_audited_with_their_caller(tmp_path: Path) -> None:
    """And with the address of the connection: anybody can write the headers of a proxy."""
    async with running(tmp_path, *RIGHTS) as made:
        made.http.headers.update({"x-forwarded-for": "203.0.113.7", "x-forwarded-proto": "https"})
        await made.post("getRouteInfoByTopic", basic("alice"), topic="mine")
        await made.post("putKVConfig", basic("alice"), namespace="n", key="k", value="v")
        await made.post("putKVConfig", basic("alice", "wrong"), namespace="n", key="k", value="v")
        await made.get("/v1/routes")
        for user in ("root", "alice"):
            await made.http.patch("/v1/config", json={"orderMessageEnable": True}, headers=auth(basic(user)))
        first, second, anonymous, third, fourth = made.audit.lines
    assert first[:2] == (105, "alice") and first[3] == ResponseCode.TOPIC_NOT_EXIST
    assert second[0] == 100 and second[3] == 16 and "Cluster:DefaultCluster" in second[2]
    assert anonymous[:2] == (100, "") and anonymous[3] == 16 and "password is wrong" in anonymous[2]
    assert third[:2] == (318, "root") and third[3] == 0
    assert fourth[:2] == (318, "alice") and fourth[3] == 16
    assert [page for page, _ in made.audit.pages] == ["GET /v1/routes"], (
        "not those that were let pass, or are requests"
    )
    assert "needs credentials" in made.audit.pages[0][1]
    assert {peer.address.rpartition(":")[0] for peer in made.audit.peers} == {"127.0.0.1"}
    assert not any(peer.is_tls for peer in made.audit.peers)


async def test_members_send_nothing_over_http(tmp_path: Path) -> None:
    """registerBroker by a Super user, or a token: a false route takes a cluster over."""
    async with running(tmp_path, httpTokensFile=tokens_file(tmp_path)) as made:
        made.server.table.access = None  # the port keeps what it began with
        broker = {"brokerName": "b", "brokerAddr": "b:1", "clusterName": "c", "brokerId": 0}
        broker["haServerAddr"] = "b:2"
        assert (await made.post("registerBroker", basic("root"), **broker)).status_code == 200
    async with running(tmp_path, users=False, httpTokensFile=tokens_file(tmp_path)) as made:
        assert (await made.post("registerBroker", bearer("admin"), **broker)).status_code == 200
    server = ServerAccess(control(tables(), members_required=True, member_users=frozenset({"inner"})))
    made_access = HttpServerAccess(server, TokensFile(tokens_file(tmp_path)))
    for sender in (basic("root"), basic("inner"), bearer("admin")):
        caller = made_access.authenticate(sender, HttpPeer(LOCAL))
        with pytest.raises(Forbidden, match="members of this cluster only"):
            made_access.admit(caller, Command(103), HttpPeer(LOCAL))
        made_access.admit(caller, Command(318), HttpPeer(LOCAL))


async def test_a_flood_of_guesses_is_refused_but_not_those_who_were_right(tmp_path: Path) -> None:
    async with running(tmp_path, httpTokensFile=tokens_file(tmp_path)) as made:
        assert (await made.get("/v1/routes", basic("root"))).status_code == 200
        answers = [await made.get("/v1/routes", bearer(f"guess-{number:020}")) for number in range(25)]
        assert [answer.status_code for answer in answers[:20]] == [401] * 20
        assert {answer.status_code for answer in answers[20:]} == {429}
        assert int(answers[-1].headers["retry-after"]) >= 1
        assert (await made.get("/v1/routes", basic("root"))).status_code == 200
        # A right token is no guess.
        assert (await made.get("/v1/routes", bearer("reader"))).status_code == 200
        assert (await made.get("/livez")).status_code == 200


async def test_without_security_everybody_is_served(tmp_path: Path) -> None:
    async with running(tmp_path, users=False) as made:
        assert (await made.get("/v1/routes")).status_code == 200
        assert (await made.http.patch("/v1/config", json={"orderMessageEnable": True})).status_code == 200
        assert (await made.get("/v1/routes", basic("nobody", "x"))).status_code == 200


# -- tokens --------------------------------------------------------------------------------------------------


async def test_roles_of_tokens(tmp_path: Path) -> None:
    """Tokens close a port also where there are no users."""
    async with running(tmp_path, users=False, httpTokensFile=tokens_file(tmp_path)) as made:
        assert (await made.get("/v1/routes")).status_code == 401
        assert (await made.get("/v1/routes", basic("root"))).status_code == 401
        wipe, config = {"brokerName": "b"}, {"orderMessageEnable": True}
        got = {}
        for name in TOKENS:
            patched = await made.http.patch("/v1/config", json=config, headers=auth(bearer(name)))
            got[name] = [
                (await made.get("/v1/routes", bearer(name))).status_code,
                (await made.post("getNamesrvConfig", bearer(name))).status_code,
                (await made.post("wipeWritePermOfBroker", bearer(name), **wipe)).status_code,
                (await made.post("putKVConfig", bearer(name), namespace="n", key="k", value="v")).status_code,
                patched.status_code,
            ]
    assert got == {
        "reader": [200, 200, 403, 403, 403],
        "operator": [200, 200, 200, 403, 403],
        "admin": [200, 200, 200, 200, 200],
    }
    assert {user for _, user, *_ in made.audit.lines} >= {"token:reader", "token:operator", "token:admin"}


class Clock:
    now_ms = NOW_MS

    def __call__(self) -> int:
        return self.now_ms


def found(made: TokensFile, clock: Clock, *names: str) -> list[bool]:
    clock.now_ms += CHECK_MS
    return [made.find(TOKENS[name]) is not None for name in names]


def test_a_changed_file_counts_at_once(tmp_path: Path) -> None:
    path, clock = tokens_file(tmp_path, LINES["reader"]), Clock()
    made = TokensFile(path, clock=clock)
    assert found(made, clock, "reader", "admin") == [True, False]
    path.write_text(LINES["admin"])
    assert made.find(TOKENS["reader"]) is not None  # until CHECK_MS have passed
    assert found(made, clock, "reader", "admin") == [False, True]
    (tmp_path / "next").touch(mode=0o600)
    (tmp_path / "next").write_text(LINES["reader"])
    os.replace(tmp_path / "next", path)
    assert found(made, clock, "reader", "admin") == [True, False]
    path.unlink()
    assert found(made, clock, "reader", "admin") == [False, False]
    tokens_file(tmp_path, LINES["admin"])
    assert found(made, clock, "reader", "admin") == [False, True]


def test_a_broken_or_open_file_leaves_the_last_good_one(tmp_path: Path) -> None:
    path, clock = tokens_file(tmp_path, LINES["reader"]), Clock()
    made = TokensFile(path, clock=clock)
    path.write_text(LINES["admin"] + "administer everybody\n")
    assert found(made, clock, "reader", "admin") == [True, False]
    assert made.problem is not None and made.problem.startswith("line 2 is not")
    path.write_text(LINES["admin"])
    path.chmod(0o644)
    assert found(made, clock, "reader", "admin") == [True, False]
    assert "chmod 600" in (made.problem or "")
    path.chmod(0o600)
    assert found(made, clock, "reader", "admin") == [False, True]
    assert made.problem is None


def test_a_token_that_can_be_guessed_is_none(tmp_path: Path) -> None:
    made = TokensFile(tokens_file(tmp_path, line("read", "a", "t" * 15) + line("read", "b", "t" * 16)))
    assert [made.find("t" * length) is not None for length in (15, 16)] == [False, True]


def test_a_name_is_one_token(tmp_path: Path) -> None:
    path = tokens_file(tmp_path, line("read", "a", "t" * 16) + line("administer", "a", "u" * 16))
    with pytest.raises(ConfigError, match="line 2: a is there twice"):
        TokensFile(path)


def test_a_bad_file_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^httpTokensFile: cannot read .*: No such file"):
        http_access(HttpConfig(http_tokens_file=tmp_path / "none"), None)
    path = tokens_file(tmp_path)
    path.chmod(0o640)
    with pytest.raises(ConfigError, match=f"^httpTokensFile: {path}: .*chmod 600"):
        http_access(HttpConfig(http_tokens_file=path), None)
    path = tokens_file(tmp_path / ".." / tmp_path.name, "root admin secret\n")
    path.chmod(0o600)
    with pytest.raises(ConfigError, match=f"^httpTokensFile: {path}: line 1 is not ROLE") as raised:
        http_access(HttpConfig(http_tokens_file=path), None)
    assert "secret" not in str(raised.value)
    path.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="is not UTF-8 text"):
        http_access(HttpConfig(http_tokens_file=path), None)


# -- where the request comes from ----------------------------------------------------------------------------


class Command:
    """A request without fields."""

    version, ext_fields, body = 479, {}, b""  # type: ignore[var-annotated]

    def __init__(self, code: int) -> None:
        self.code = code


def access(**options: Any) -> HttpServerAccess:
    return HttpServerAccess(ServerAccess(control(tables())), None, **options)


@pytest.mark.parametrize(
    ("peer", "over_plain", "is_taken"),
    [
        (HttpPeer(LOCAL), False, True),
        (HttpPeer("[::1]:5000"), False, True),
        (HttpPeer("[::ffff:127.0.0.1]:5000"), False, True),
        (HttpPeer(REMOTE), False, False),
        (HttpPeer(), False, False),
        (HttpPeer(REMOTE), True, True),
        (HttpPeer(REMOTE, is_tls=True), False, True),
    ],
)
def test_where_passwords_are_taken(peer: HttpPeer, over_plain: bool, is_taken: bool) -> None:
    made = access(basic_over_plain=over_plain)
    with pytest.raises(Unauthenticated) as asked:
        made.authenticate(None, peer)
    # A browser must not ask for a password that it would send where anybody can read it.
    assert any(each.startswith("Basic") for each in asked.value.challenges) == is_taken
    if is_taken:
        assert made.authenticate(basic("root"), peer).user == "root"
    else:
        with pytest.raises(Forbidden, match="httpBasicOverPlain"):
            made.authenticate(basic("root"), peer)


def test_failures_count_for_their_address() -> None:
    made = access()
    for _ in range(20):
        with pytest.raises(Unauthenticated):
            made.authenticate(basic("root", "wrong"), HttpPeer(LOCAL))
    with pytest.raises(TooManyFailures):
        made.authenticate(basic("root"), HttpPeer("127.0.0.1:6000"))
    assert made.authenticate(basic("root"), HttpPeer(REMOTE, is_tls=True)).user == "root"


def test_guesses_do_not_shut_out_who_was_right_before() -> None:
    made = access()
    made.authenticate(basic("root"), HttpPeer(LOCAL))
    for _ in range(20):
        with pytest.raises(Unauthenticated):
            made.authenticate(basic("root", "wrong"), HttpPeer(LOCAL))
    with pytest.raises(TooManyFailures):
        made.authenticate(basic("root", "wrong"), HttpPeer(LOCAL))
    assert made.authenticate(basic("root"), HttpPeer(LOCAL)).user == "root"


def test_what_was_right_is_remembered_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keelmq.security.http_access.GOOD_MAX", 3)
    made = access()
    for number in range(10):
        made.authenticate(basic("root"), HttpPeer(f"127.0.0.{number + 1}:5000"))
    assert made.remembered == 3


def test_an_empty_password_is_nobodys() -> None:
    """Also where unknown names are compared with an empty one, so that they take the same time."""
    plain, _ = parse_plain_acl([("f", {"accounts": [{"accessKey": "RocketMQ", "secretKey": "12345678"}]})])
    for server in (
        ServerAccess(AccessControl(tables(), AccessSettings(), plain=plain)),
        ServerAccess(control(tables())),
    ):
        made = HttpServerAccess(server, None)
        for name in ("nobody", "RocketMQ", "root"):
            with pytest.raises(Unauthenticated):
                made.authenticate(basic(name, ""), HttpPeer(LOCAL))


async def test_over_tls_and_with_the_certificate_of_a_member(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    issued = authority.issue("localhost")
    settings = {
        "tls.server.mode": "enforcing",
        "tls.server.certPath": issued.certificate,
        "tls.server.keyPath": issued.key,
        "tls.server.need.client.auth": "optional",
        "tls.server.trustCertPath": issued.trust,
    }
    member = client_files(authority, "broker-1.example.org")
    made = {"listenPort": 0, "bindAddress": "127.0.0.1", "kvConfigPath": tmp_path / "kv.json", **settings}
    server = Namesrv(NamesrvConfig.model_validate(made))
    server.table.access = ServerAccess(
        control(tables(), member_certificates=frozenset({"broker-1.example.org"}))
    )
    server.table.audit = audit = Noted()
    context = ssl.create_default_context(cafile=str(authority.path))
    context.check_hostname = False
    async with server:
        assert server.http_address is not None
        base = "https://{}:{}".format(*server.http_address)
        async with httpx.AsyncClient(base_url=base, verify=context) as http:
            assert (await http.get("/v1/routes")).status_code == 401
            assert (await http.get("/v1/routes", headers=auth(basic("root")))).status_code == 200
            await http.post("/v1/getNamesrvConfig", headers=auth(basic("root")))
        context.load_cert_chain(str(member.certificate), str(member.key))
        async with httpx.AsyncClient(base_url=base, verify=context) as http:
            assert (await http.get("/v1/routes")).status_code == 200
            assert (await http.post("/v1/getNamesrvConfig")).status_code == 200
    assert [user for _, user, *_ in audit.lines] == ["root", "broker-1.example.org"]
    assert all(peer.is_tls for peer in audit.peers)
    assert audit.peers[1].certificate_names == ("broker-1.example.org",)


# -- other switches ------------------------------------------------------------------------------------------


def test_members_alone_close_what_administers() -> None:
    """Without users nobody can show to be an administrator; reading stays as open as over TCP."""
    server = ServerAccess(
        control(tables(), authentication_enabled=False, authorization_enabled=False, members_required=True)
    )
    made = HttpServerAccess(server, None)
    nobody = made.authenticate(None, HttpPeer(REMOTE))
    made.check_role(nobody, Role.READ, HttpPeer(REMOTE))
    made.admit(nobody, Command(105), HttpPeer(REMOTE))
    with pytest.raises(Forbidden, match="httpTokensFile"):
        made.check_role(nobody, Role.ADMINISTER, HttpPeer(REMOTE))
    for code in (318, 103):
        with pytest.raises(Forbidden):
            made.admit(nobody, Command(code), HttpPeer(REMOTE))
    with pytest.raises(Unauthenticated, match="there are no users here"):
        made.authenticate(basic("root"), HttpPeer(LOCAL))


def test_authorization_alone_asks_for_the_password() -> None:
    """Over TCP it believes any name. A name without a password opens nothing here."""
    made = HttpServerAccess(ServerAccess(control(tables(), authentication_enabled=False)), None)
    for wrong in (None, basic("root", "wrong")):
        with pytest.raises(Unauthenticated):
            made.authenticate(wrong, HttpPeer(LOCAL))
    assert made.authenticate(basic("root"), HttpPeer(LOCAL)).user == "root"


def test_codes_without_authentication_need_a_user_over_http() -> None:
    made = HttpServerAccess(ServerAccess(control(tables(), authentication_whitelist=frozenset({105}))), None)
    with pytest.raises(Unauthenticated):
        made.authenticate(None, HttpPeer(LOCAL))


PLAIN = {
    "globalWhiteRemoteAddresses": ["10.9.*.*"],
    "accounts": [
        {"accessKey": "operator", "secretKey": "operator-secret", "admin": True},
        {"accessKey": "someone", "secretKey": "someone-secret", "defaultTopicPerm": "SUB"},
    ],
}


def test_accounts_of_acl_1() -> None:
    checked = control(tables(), authentication_enabled=False, authorization_enabled=False)
    checked.set_plain(parse_plain_acl([("plain_acl.yml", PLAIN)])[0])
    made, here = HttpServerAccess(ServerAccess(checked), None), HttpPeer(LOCAL)
    operator = made.authenticate(basic("operator", "operator-secret"), here)
    someone = made.authenticate(basic("someone", "someone-secret"), here)
    for wrong in (None, basic("someone", "wrong"), basic("root"), basic("someone", "")):
        with pytest.raises(Unauthenticated):
            made.authenticate(wrong, here)
    made.check_role(operator, Role.ADMINISTER, here)
    made.check_role(someone, Role.READ, here)
    with pytest.raises(Forbidden, match="accessKey=someone is no admin"):
        made.check_role(someone, Role.ADMINISTER, here)
    made.admit(operator, Command(318), here)
    with pytest.raises(Forbidden, match="AclException"):
        made.admit(someone, Command(318), here)
    white = HttpPeer("10.9.0.1:5000", is_tls=True)
    assert made.authenticate(None, white).user == ""
    with pytest.raises(Unauthenticated):
        made.authenticate(basic("someone", "wrong"), white)


def test_refusals_are_counted() -> None:
    server = ServerAccess(control(tables()))
    made = HttpServerAccess(server, None)
    for wrong in (None, basic("root", "wrong")):
        with pytest.raises(Unauthenticated):
            made.authenticate(wrong, HttpPeer(LOCAL))
    with pytest.raises(Forbidden):
        made.check_role(made.authenticate(basic("alice"), HttpPeer(LOCAL)), Role.READ, HttpPeer(LOCAL))
    assert server.refusals == {"unsigned": 1, "signature": 1, "rights": 1}
