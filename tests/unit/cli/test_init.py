"""keelmq init: files that every program takes, a cluster that survives any machine; nothing overwritten."""

import json
import re
import shlex
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from broker.config.broker_config import BrokerConfig
from cli import private_tree
from cli.credentials import read_credentials
from cli.keelmq import app
from keelmq.console.standalone import PORT as CONSOLE_PORT
from keelmq.remoting.servers.http_port import HTTP_PORT_DISTANCE
from keelmq.runtime.config import Config, load_config
from keelmq.runtime.tls.settings import server_tls
from keelmq.security.open_network import OpenNetworkConfig, openings
from namesrv.config import NamesrvConfig
from namesrv.plugins.controller.config import ControllerConfig
from proxy.server.config import ProxyConfig

HOSTS = [f"10.0.0.{number}" for number in range(1, 10)]


def run(directory: Path, *arguments: str, hosts: int | list[str] = 3, code: int = 0) -> str:
    names = HOSTS[:hosts] if isinstance(hosts, int) else hosts
    options = [word for name in names for word in ("--host", name)]
    result = CliRunner().invoke(app, ["init", str(directory), *options, *arguments])
    assert result.exit_code == code, result.output
    return result.output


def load(machine: Path, name: str, *models: type[Config]) -> tuple[Config, ...]:
    return tuple(load_config(*models, path=machine / "etc" / "keelmq" / name, environ={}, overrides={}))


def broker_at(machine: Path) -> BrokerConfig:
    (config,) = load(machine, "broker.conf", BrokerConfig)
    assert isinstance(config, BrokerConfig)
    return config


def controller_at(machine: Path) -> tuple[NamesrvConfig, ControllerConfig]:
    name_server, controller = load(machine, "namesrv.conf", NamesrvConfig, ControllerConfig)
    assert isinstance(name_server, NamesrvConfig) and isinstance(controller, ControllerConfig)
    return name_server, controller


@pytest.mark.parametrize("hosts", [1, 3, 9, ["mq-1.example", "mq-2.example", "mq-3.example"], ["fd00::1"]])
def test_the_files_fit_together(hosts: int | list[str], tmp_path: Path) -> None:
    run(tmp_path / "c", "--cluster", "orders", hosts=hosts)
    names = HOSTS[:hosts] if isinstance(hosts, int) else hosts
    machines = [tmp_path / "c" / name for name in names]
    servers = machines[:3]
    pairs = [controller_at(each) for each in servers]
    members = [f"[{name}]:9878" if ":" in name else f"{name}:9878" for name in names[:3]]
    for number, (name_server, controller) in enumerate(pairs):
        assert name_server.route_aliases_enable
        assert controller.controller_d_leger_self_id == f"n{number}"
        asked = controller.request_addresses
        assert asked == pairs[0][1].request_addresses
        assert [name.strip("[]") for name, _port in asked.values()] == names[:3]
        assert controller.controller_raft_secret_file == Path("/etc/keelmq/raft.key")
    keys = {(each / "etc" / "keelmq" / "raft.key").read_bytes() for each in servers}
    assert len(keys) == 1 and len(keys.pop()) > 32
    for number, (name, machine) in enumerate(zip(names, machines, strict=True)):
        broker = broker_at(machine)
        assert (broker.broker_cluster_name, broker.broker_ip1, broker.broker_id) == ("orders", name, -1)
        assert broker.broker_name == f"broker-{'abc'[number // 3]}"
        assert broker.enable_controller_mode and list(broker.controllers) == members
        assert list(broker.name_servers) == [each.replace(":9878", ":9876") for each in members]
        assert broker.all_ack_in_sync_state_set
        assert broker.min_in_sync_replicas == min(2, len(names))
        assert (machine / "etc" / "keelmq" / "namesrv.conf").exists() == (number < 3)
        assert (machine / "etc" / "keelmq" / "raft.key").exists() == (number < 3)
        (proxy,) = load(machine, "proxy.conf", ProxyConfig)
        assert isinstance(proxy, ProxyConfig) and proxy.namesrv_addr == broker.namesrv_addr
        (line,) = [
            each
            for each in (machine / "etc" / "keelmq" / "console.env").read_text().splitlines()
            if not each.startswith("#")
        ]
        assert shlex.split(line) == [f"NAMESRV_ADDR={broker.namesrv_addr}"]


def test_programs_of_a_machine_share_neither_port_nor_directory(tmp_path: Path) -> None:
    run(tmp_path / "c")
    machine = tmp_path / "c" / HOSTS[0]
    name_server, controller = controller_at(machine)
    broker = broker_at(machine)
    (proxy,) = load(machine, "proxy.conf", ProxyConfig)
    assert isinstance(proxy, ProxyConfig)
    ports = [
        name_server.listen_port,
        name_server.listen_port + HTTP_PORT_DISTANCE,
        controller.request_addresses["n0"][1],
        controller.raft_addresses["n0"][1],
        broker.listen_port,
        broker.listen_port - 2,
        broker.ha_listen_port,
        broker.listen_port + HTTP_PORT_DISTANCE,
        proxy.grpc_server_port,
        CONSOLE_PORT,
    ]
    assert len(set(ports)) == len(ports)
    kept = [broker.store_path_root_dir, controller.directory, name_server.kv_config_path]
    kept += [path for path in (name_server.config_store_path, broker.config_store_path) if path is not None]
    assert len(set(kept)) == 5
    assert all(path.is_relative_to("/var/lib/keelmq") for path in kept)
    assert not any(path.is_relative_to(other) for path in kept for other in kept if path is not other)


def test_only_the_owner_may_read_the_key(tmp_path: Path) -> None:
    run(tmp_path / "c")
    assert stat.S_IMODE((tmp_path / "c").stat().st_mode) == 0o700
    for key in (tmp_path / "c").rglob("raft.key"):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600


def test_nothing_that_exists_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "mine").write_text("mine")
    assert "exists and is not empty: nothing was changed" in run(tmp_path / "c", code=1)
    assert [each.name for each in (tmp_path / "c").rglob("*")] == ["mine"]
    assert "nothing was changed" in run(tmp_path / "c" / "mine", "--dry-run", code=1)


def test_a_failure_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, text: str) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(private_tree, "write_private", full)
    assert "No space left on device" in run(tmp_path / "c", code=1)
    assert not (tmp_path / "c").exists()
    (tmp_path / "empty").mkdir()
    run(tmp_path / "empty", code=1)
    assert list((tmp_path / "empty").iterdir()) == []


def test_a_dry_run_shows_the_files_and_creates_nothing(tmp_path: Path) -> None:
    shown = json.loads(run(tmp_path / "c", "--dry-run", "--json"))
    assert not (tmp_path / "c").exists() and shown["created"] is False
    assert f"{HOSTS[0]}/etc/keelmq/namesrv.conf" in run(tmp_path / "c", "--dry-run")
    created = json.loads(run(tmp_path / "c", "--json"))
    assert created["created"] is True and created["files"] == shown["files"]
    there = [str(each.relative_to(tmp_path / "c")) for each in (tmp_path / "c").rglob("*") if each.is_file()]
    assert sorted(there) == shown["files"]


def test_what_is_typed_on_each_machine(tmp_path: Path) -> None:
    """Every machine once; those with controllers start the name server first. No step shows the key."""
    shown = json.loads(run(tmp_path / "c", "--json", "--prefix", "/srv/mq", hosts=6))
    steps = {each["title"]: each["commands"] for each in shown["next"]}
    assert len(steps["from here to each machine"]) == 6
    first = steps[
        "on 10.0.0.1, 10.0.0.2, 10.0.0.3: a name server with a controller, and a broker of broker-a"
    ]
    second = steps["on 10.0.0.4, 10.0.0.5, 10.0.0.6: a broker of broker-b"]
    assert first[-1].endswith(" enable --now keelmq-namesrv keelmq-broker")
    assert second[-1].endswith(" enable --now keelmq-broker")
    assert "namesrv.conf" in first[3] and "namesrv.conf" not in second[3]
    key = (tmp_path / "c" / HOSTS[0] / "etc" / "keelmq" / "raft.key").read_text().strip()
    assert key not in json.dumps(shown)
    unit = (tmp_path / "c" / HOSTS[5] / "etc/systemd/system/keelmq-broker.service").read_text()
    assert "ExecStart=/srv/mq/bin/mqbroker " in unit and "/opt/keelmq" not in unit


# ------------------------------------------------------------------ --secure


SECURITY = Path("etc") / "keelmq" / "security"
PRIVATE_KEY = re.compile(r"-----BEGIN PRIVATE KEY-----.*?-----END PRIVATE KEY-----", re.DOTALL)


@pytest.fixture
def secure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two groups; securityPath of the files is where the test has them."""
    run(tmp_path / "c", "--secure", "--cluster", "orders", hosts=6)
    for name in HOSTS[:6]:
        settings = tmp_path / "c" / name / "etc" / "keelmq"
        for path in settings.glob("*.conf"):
            text = path.read_text()
            assert "\nsecurityPath=/etc/keelmq/security\n" in text, path
            path.write_text(text.replace("=/etc/keelmq/", f"={settings}/"))
    return tmp_path / "c"


def test_every_program_of_a_secure_cluster_is_closed(secure: Path) -> None:
    for number, name in enumerate(HOSTS[:6]):
        machine = secure / name
        (proxy,) = load(machine, "proxy.conf", ProxyConfig)
        assert isinstance(proxy, ProxyConfig)
        configs: list[OpenNetworkConfig] = [broker_at(machine), proxy]
        if number < 3:
            name_server, controller = controller_at(machine)
            configs.append(name_server)
            assert controller.controller_raft_secret_file is None
            facts = controller.read_certificates()
            assert facts is not None and facts.names == (f"n{number}",)
        for config in configs:
            assert openings(config) == [] and server_tls(config).mode == "enforcing"
            assert config.authentication_enabled and config.authorization_enabled and config.members_required
            assert config.member_credentials is not None and config.init_user is not None
        assert configs[0].member_credentials == broker_at(secure / HOSTS[0]).member_credentials
        assert certificate_names(machine / SECURITY / "server.crt") == [name]
        assert (machine / SECURITY / "controller.key").exists() == (number < 3)
        assert not (machine / "etc" / "keelmq" / "raft.key").exists()


def test_no_machine_has_the_key_of_another_or_of_a_ca(secure: Path) -> None:
    keys = {
        name: {key for path in files(secure / name) for key in PRIVATE_KEY.findall(path.read_text())}
        for name in (*HOSTS[:6], "admin", "client", "keep-offline")
    }
    assert [len(each) for each in keys.values()] == [3, 3, 3, 2, 2, 2, 1, 0, 2]
    assert len(set().union(*keys.values())) == sum(map(len, keys.values()))


def test_machines_get_neither_tokens_nor_passwords_of_applications(secure: Path) -> None:
    of_machines = "".join(path.read_text() for name in HOSTS[:6] for path in files(secure / name))
    for path in [*(secure / "admin").glob("http-*.token"), secure / "admin" / "client.password"]:
        assert path.read_text().strip() not in of_machines
    console = read_credentials(secure / HOSTS[5] / SECURITY / "console.yml")
    assert console.credentials.secret_key == (secure / "admin" / "console.password").read_text().strip()
    client = read_credentials(secure / "client" / "credentials.yml")
    assert client.credentials.secret_key == (secure / "admin" / "client.password").read_text().strip()
    assert client.tls is not None and (secure / "client" / "ca.crt").exists()
    env = (secure / HOSTS[5] / "etc" / "keelmq" / "console.env").read_text()
    assert 'KEELMQ_CREDENTIALS="/etc/keelmq/security/console.yml"' in env


def test_only_the_owner_may_read_what_is_secret(secure: Path) -> None:
    folders = [secure / name for name in ("admin", "client", "keep-offline", "keep-offline/raft")]
    for folder in [*folders, *(secure / name / SECURITY for name in HOSTS[:6])]:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir() if path.is_file()} == {0o600}


def test_the_controllers_trust_no_certificate_of_a_port(secure: Path) -> None:
    """A certificate of a member's id is membership: a server whose host is called n1 must not have one."""
    machine = secure / HOSTS[0] / SECURITY
    assert (machine / "ca.crt").read_bytes() == (secure / "keep-offline" / "ca.crt").read_bytes()
    of_controllers = (machine / "controller-ca.crt").read_bytes()
    assert of_controllers == (secure / "keep-offline" / "raft" / "ca.crt").read_bytes()
    assert of_controllers != (machine / "ca.crt").read_bytes()


def test_what_is_typed_for_a_secure_cluster_has_no_secret(tmp_path: Path) -> None:
    shown = run(tmp_path / "c", "--secure", "--json", "--cluster", "orders", hosts=3)
    steps = {each["title"]: each["commands"] for each in json.loads(shown)["next"]}
    then = steps["from here, when all machines run"]
    assert then[0] == f"export KEELMQ_CREDENTIALS={tmp_path}/c/admin/credentials.yml"
    assert f"--passwordFile {tmp_path}/c/admin/client.password -c orders" in then[1]
    assert "-s User:console -r Cluster:orders -a Get -d Allow" in then[4]
    (away,) = steps["keep the keys of the CAs on a medium that no server reads"]
    assert away.endswith(f"rm -r {tmp_path}/c/keep-offline")
    assert not any("keep-offline" in line for line in steps["from here to each machine"])
    for path in files(tmp_path / "c"):
        for secret in re.findall(r"\b[0-9a-f]{48,}\b", path.read_text()):
            assert secret not in shown
    assert "PRIVATE KEY" not in shown


def test_more_machines_of_a_secure_cluster(secure: Path, tmp_path: Path) -> None:
    """The same CAs, secrets and users; keys of their own."""
    grown = ("--cluster", "orders", "--secure-like", str(secure))
    run(tmp_path / "more", *grown, hosts=9)
    for old, new in ((HOSTS[0], HOSTS[8]), (HOSTS[1], HOSTS[6])):
        before, after = secure / old / SECURITY, tmp_path / "more" / new / SECURITY
        for name in ("ca.crt", "member.json", "http-tokens", "security.conf", "console.yml", "broker.conf"):
            assert (after / name).read_bytes() == (before / name).read_bytes(), name
        assert (after / "server.key").read_bytes() != (before / "server.key").read_bytes()
    for name in ("admin/credentials.yml", "client/credentials.yml", "keep-offline/raft/ca.key"):
        assert (tmp_path / "more" / name).read_bytes() == (secure / name).read_bytes()


def test_without_the_files_of_the_cluster_no_machine_is_added(secure: Path, tmp_path: Path) -> None:
    def says(*arguments: str) -> str:
        output = run(tmp_path / "more", *arguments, hosts=9, code=1)
        assert len(output.splitlines()) == 1 and not (tmp_path / "more").exists()
        return output

    assert "its cluster is 'orders': give --cluster orders" in says("--secure-like", str(secure))
    like = ("--cluster", "orders", "--secure-like", str(secure))
    (secure / "admin" / "client.password").unlink()
    assert "client.password" in says(*like)
    (secure / "keep-offline" / "ca.key").rename(secure / "ca.key")
    assert "ca.key: No such file" in says(*like)
    (secure / "keep-offline").rename(tmp_path / "medium")
    assert "keep-offline is not there: put the keys of the CAs back" in says(*like)


def files(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file()]


def certificate_names(path: Path) -> list[str]:
    from cryptography import x509

    found = x509.load_pem_x509_certificate(path.read_bytes())
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(each.value) for each in names]


# ------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("hosts", "arguments", "why"),
    [
        (2, (), "2 machines: give 1 for a trial, or 3 for each broker group"),
        (4, (), "4 machines"),
        (["a", "a", "b"], (), "a machine is given twice"),
        (["10.0.0.1:9876"], (), "'10.0.0.1:9876' is neither a DNS name nor an IP address"),
        (["*.example"], (), "names several machines"),
        (["admin"], (), "is the name of a folder"),
        (1, ("--cluster", "a b"), "--cluster 'a b' is not a name"),
        (1, ("--prefix", "opt"), "--prefix 'opt' is not an absolute path"),
        (1, ("--prefix", "/opt/x y"), "is not an absolute path"),
        ([f"h{number}" for number in range(81)], (), "78 at most"),
    ],
)
def test_bad_input_is_refused(
    hosts: int | list[str], arguments: tuple[str, ...], why: str, tmp_path: Path
) -> None:
    output = run(tmp_path / "c", *arguments, hosts=hosts, code=1)
    assert why in output and len(output.splitlines()) == 1
    assert not (tmp_path / "c").exists()
