"""Authentication, authorization and secrets: what is open, which passwords are weak or shared, and which
files others can read."""

import stat
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from cli.doctor.files import ConfigFile, Kind
from cli.doctor.machine import KV_DEFAULT, host_of
from keelmq.health.findings import Finding, failed, ok, warning
from keelmq.remoting.addresses import is_loopback
from keelmq.runtime.config import ConfigError, parse_settings, secret_keys
from keelmq.runtime.tls.settings import with_file
from keelmq.security.core.plain_acl import BadPlainAcl
from keelmq.security.file_users import users_directory
from keelmq.security.open_network import CLOSE, OpenNetworkConfig, openings
from keelmq.security.plain_acl_files import PlainAclFiles
from keelmq.security.private_file import exposed
from keelmq.security.users_file import BadUsersFile, UsersFile

DEFAULT_PASSWORDS = frozenset(
    {"12345678", "123456789", "1234567890", "admin", "keelmq", "password", "rocketmq", "rocketmq2", "secret"}
)
"""In lower case. RocketMQ's documents and example files have some of them."""
PASSWORD_CHARS_MIN = 12
OFFLINE_KEY = Path("keep-offline") / "ca.key"
"""In a directory of `keelmq init-security`."""
NEW_PASSWORD = "choose a random one: head -c 24 /dev/urandom | base64"


def check_security(files: Sequence[ConfigFile]) -> list[Finding]:
    """Returns findings about the settings and the secrets of each file. They have all loaded."""
    found: list[Finding] = []
    for file in files:
        config = file.server
        found += _open(file, config, config.bind_address)
        found += _settings(file.name, config)
        found += _secret_files(file, config)
        found += _passwords(file.name, config, _users_directory(file))
    return found


def _open(file: ConfigFile, config: OpenNetworkConfig, bound: str) -> Iterator[Finding]:
    """Reports the same openings as the program at its start."""
    is_remote = file.controller is not None and not is_loopback(host_of(file))
    try:
        found = openings(config)
    except ConfigError:
        return  # config.tls says why
    if is_loopback(bound) and not is_remote:
        yield ok("config.security", file.name, "only this machine reaches its ports")
    elif not found:
        yield ok("config.security", file.name, "requests need a signature and an ACL; TLS has a certificate")
    elif config.allow_open_network:
        yield ok("config.security", file.name, f"open as allowOpenNetwork says: {'; '.join(found)}")
    else:
        text = f"open to other machines: {'; '.join(found)}"
        yield warning("config.security", file.name, text, f"{CLOSE}; allowOpenNetwork=true if it is meant")


def _settings(name: str, config: OpenNetworkConfig) -> Iterator[Finding]:
    """Combinations that protect less than they seem to."""
    is_inside = config.authentication_enabled or config.acl_enable
    config = config.at_listeners
    if config.authorization_enabled and not config.authentication_enabled:
        text = (
            "authorizationEnabled without authenticationEnabled: whoever knows a user's name has its rights"
        )
        yield failed("config.security", name, text, "set authenticationEnabled=true, too")
    if config.authentication_enabled and not config.authorization_enabled and not config.acl_enable:
        text = "authenticationEnabled without authorizationEnabled: every user can do everything"
        yield warning(
            "config.security", name, text, "give the users ACLs, then set authorizationEnabled=true"
        )
    if not config.authentication_enabled and not config.acl_enable:
        return
    try:
        keys = with_file(config)
    except ConfigError:
        return
    mode = keys.tls_server_mode
    if not is_inside:
        mode = keys.listeners_tls_mode or mode
    if mode != "enforcing":
        text = (
            f"tls.server.mode={mode}: on plain connections messages can be read, and a client's signed "
            "request can be sent again by whoever sees it"
        )
        step = "when all clients use TLS: tls.server.mode=enforcing"
        yield warning("config.security", name, text, step)
    if is_inside and not config.has_members:
        text = (
            "there are no credentials of members, so brokers, name servers and controllers refuse each other"
        )
        step = "set innerClientAuthenticationCredentialsFile, the same for all"
        yield warning("config.security", name, text, step)


def _secret_files(file: ConfigFile, config: OpenNetworkConfig) -> Iterator[Finding]:
    """Files with secrets in them that others can open."""
    paths = [file.path] if _has_secret(file) else []
    if config.inner_client_authentication_credentials_file is not None:
        paths.append(config.inner_client_authentication_credentials_file)
    directory = config.security_path
    if directory is not None:
        paths += sorted(path for path in directory.iterdir() if path.is_file() and path.suffix != ".crt")
        if stat.S_IMODE(directory.stat().st_mode) & 0o022:
            text = f"{directory} can be changed by others, who could replace every key in it"
            yield failed("config.security", file.name, text, f"chmod 700 {directory}")
        if (directory / OFFLINE_KEY).exists():
            text = f"{directory / OFFLINE_KEY}: whoever copies it can create servers and members"
            step = "move that folder to a machine that runs no server"
            yield warning("config.security", file.name, text, step)
    if config.acl_enable:
        paths += sorted(path for path in config.plain_acl_path.rglob("*.y*ml") if path.is_file())
    for path in dict.fromkeys(paths):
        if problem := exposed(path):
            text, _, step = problem.rpartition("; ")
            yield failed("config.security", file.name, text, step)


def _has_secret(file: ConfigFile) -> bool:
    given = parse_settings(file.path.read_text(encoding="utf-8"), file.name)
    configs = (file.broker, file.namesrv, file.container, file.controller, file.proxy)
    return any(
        given.get(key) for config in configs if config is not None for key in secret_keys(type(config))
    )


def _users_directory(file: ConfigFile) -> Path | None:
    """Returns where the program keeps its users; None: a broker, in its store, or a program without any."""
    if file.container is not None:
        return users_directory(file.container, file.container.state_path)
    if file.namesrv is None:
        return None
    alone = file.controller if file.kind is Kind.CONTROLLER else None
    beside = alone.state_path if alone is not None else file.namesrv.kv_config_path or KV_DEFAULT
    return users_directory(file.namesrv, beside)


def _passwords(name: str, config: OpenNetworkConfig, users: Path | None) -> Iterator[Finding]:
    """Weak ones, and the members' secret as a user's password. No text has a password in it."""
    known: list[tuple[str, str, str]] = []  # where, who, secret
    try:
        member = config.member_credentials
        if config.init_user is not None:
            known.append(("initAuthenticationUser", config.init_user.username, config.init_user.password))
        known += _users_of(users)
        if config.acl_enable or config.migrate_auth_from_v1_enabled:
            directory = config.plain_acl_path
            plain = PlainAclFiles(directory / "plain_acl.yml", directory / "acl").load()
            known += [(str(directory), each.access_key, each.password) for each in plain.accounts.values()]
    except (ConfigError, BadUsersFile, BadPlainAcl, OSError) as error:
        yield failed("config.passwords", name, str(error), "correct the file: the program would not start")
        return
    if member is not None:
        for where, user, secret in known:
            if secret == member.secret_key:
                text = f"the password of {user} ({where}) is the secret of the members: that user is a member"
                yield failed("config.passwords", name, text, NEW_PASSWORD)
        known.append(("innerClientAuthenticationCredentials", member.access_key, member.secret_key))
    weak = [(where, user, why) for where, user, secret in known if (why := weakness(user, secret))]
    of_user: dict[tuple[str, str], list[str]] = defaultdict(list)
    for where, user, why in weak:
        of_user[user, why].append(where)
    for (user, why), places in of_user.items():
        text = f"the password of {user} ({', '.join(places)}) {why}"
        tell = warning if why.startswith("has") else failed
        yield tell("config.passwords", name, text, NEW_PASSWORD)
    if known and not weak:
        names = ", ".join(sorted({user for _, user, _ in known}))
        yield ok("config.passwords", name, f"long enough: {names}")


def _users_of(directory: Path | None) -> list[tuple[str, str, str]]:
    if directory is None:
        return []
    users = UsersFile(directory)
    users.load()
    return [(str(users.users_path), each.username, each.password) for each in users.users()]


def weakness(user: str, password: str) -> str:
    """Returns why a password can be guessed; empty: it cannot."""
    if password.lower() in DEFAULT_PASSWORDS:
        return "is one that everybody tries first"
    if password.lower() == user.lower():
        return "is the user's name"
    if len(password) < PASSWORD_CHARS_MIN:
        return f"has less than {PASSWORD_CHARS_MIN} characters"
    return ""
