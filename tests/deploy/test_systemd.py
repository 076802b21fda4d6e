"""The units of cli/machines: systemd reads them; commands, files, ports and limits are the programs'."""

import re
import shlex
import shutil
import subprocess
from argparse import ArgumentParser
from pathlib import Path

import pytest
from typer.main import get_command

from broker.app.program import make_parser as broker_parser
from broker.config.broker_config import BrokerConfig
from broker.container.program import make_parser as container_parser
from cli.keelmq import app
from cli.machines.init import PREFIX, files_of, next_steps
from cli.machines.layout import RAFT_KEY, SECURITY, SETTINGS, STATE, machines_of, settings_of
from keelmq.console.standalone import PORT as CONSOLE_PORT
from keelmq.remoting.servers.http_port import HTTP_PORT_DISTANCE
from keelmq.runtime.config import Config, load_config
from keelmq.runtime.program import OPEN_FILES_WANTED
from namesrv.config import NamesrvConfig
from namesrv.plugins.controller.config import ControllerConfig
from namesrv.program import make_parser as namesrv_parser
from proxy.server.config import ProxyConfig
from proxy.server.program import make_parser as proxy_parser
from tests.deploy.conftest import ROOT

ETC = ROOT / "cli" / "machines" / "etc"
UNITS = sorted(path for path in (ETC / "systemd" / "system").glob("keelmq-*.*") if path.is_file())
SERVICES = [path for path in UNITS if path.suffix == ".service"]
COMMON = ETC / "systemd" / "system" / "keelmq-.service.d" / "common.conf"
EXPOSURE_MAX_TENTHS = 20
"""systemd-analyze security: 0 is a program that can do nothing, 10 one without limits."""
HAND_OVER_S_MAX = 4
"""docs/kubernetes.md"""
PARSERS: dict[str, ArgumentParser] = {
    "mqnamesrv": namesrv_parser("mqnamesrv"),
    "mqcontroller": namesrv_parser("mqcontroller"),
    "mqbroker": broker_parser(),
    "mqbrokercontainer": container_parser(),
    "mqproxy": proxy_parser(),
}


def name(path: Path) -> str:
    return path.name


def settings(path: Path) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for line in path.read_text().splitlines():
        if line.startswith("["):
            section = found.setdefault(line.strip("[]"), {})
        elif line and not line.startswith("#"):
            key, _, value = line.partition("=")
            assert key not in section, line
            section[key] = value
    return found


def service(program: str) -> dict[str, str]:
    return settings(ETC / "systemd" / "system" / f"keelmq-{program}.service")["Service"]


@pytest.mark.parametrize("path", SERVICES, ids=name)
def test_its_command_exists(path: Path) -> None:
    program, *words = shlex.split(settings(path)["Service"]["ExecStart"])
    if (parser := PARSERS.get(Path(program).name)) is not None:
        assert parser.parse_args(words).config.parent == Path(SETTINGS)
        return
    assert Path(program).name == "keelmq"
    command = get_command(app)
    while words and not words[0].startswith("-"):
        command = command.commands[words.pop(0)]  # type: ignore[attr-defined]
    options = {name for parameter in command.params for name in parameter.opts}
    assert {word for word in words if word.startswith("-")} <= options
    if "--output" in words:
        writable = settings(path)["Service"]["ReadWritePaths"].split()
        assert any(words[words.index("--output") + 1].startswith(each) for each in writable)


@pytest.mark.parametrize("path", UNITS, ids=name)
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_reads_it(path: Path, tmp_path: Path) -> None:
    """As keelmq init writes it, with its command in another prefix; what it could do is next to nothing."""
    for file, text in files_of(machines_of(["10.0.0.1"]), "DefaultCluster", str(tmp_path / "env")).items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    (tmp_path / "env" / "bin").mkdir(parents=True)
    for program in ("keelmq", *PARSERS):
        (tmp_path / "env" / "bin" / program).write_text("#!/bin/sh\n")
        (tmp_path / "env" / "bin" / program).chmod(0o755)
    unit = tmp_path / "10.0.0.1" / path.relative_to(ETC.parent)
    done = systemd_analyze("verify", "--man=no", str(unit))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    if path.suffix == ".service":
        done = systemd_analyze("security", "--offline=true", f"--threshold={EXPOSURE_MAX_TENTHS}", str(unit))
        assert done.returncode == 0, done.stdout


def systemd_analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True, timeout=60)


def test_every_server_program_has_a_unit() -> None:
    commands = [shlex.split(settings(path)["Service"]["ExecStart"]) for path in SERVICES]
    assert {Path(program).name for program, *_ in commands} == {"keelmq", *PARSERS}
    assert {program for program, *_ in commands if not program.startswith(f"{PREFIX}/bin/")} == set()
    assert [
        path for path in UNITS if path.suffix == ".timer" and path.with_suffix(".service") not in UNITS
    ] == []


def test_servers_tell_when_they_are_ready_and_are_always_started_again() -> None:
    """Their say_ready() notifies systemd."""
    for path in SERVICES:
        if "analytics" not in path.name:
            unit = settings(path)
            assert (unit["Service"]["Type"], unit["Service"]["Restart"]) == ("notify", "always")
            assert unit["Unit"]["StartLimitIntervalSec"] == "0"
            assert unit["Install"]["WantedBy"] == "multi-user.target"


def test_limits_and_directories_are_the_programs() -> None:
    common = settings(COMMON)["Service"]
    assert common["LimitNOFILE"] == str(OPEN_FILES_WANTED)
    assert f"/var/lib/{common['StateDirectory']}" == STATE
    assert f'u {common["User"]} - "KeelMQ" {STATE}' in (ETC / "sysusers.d" / "keelmq.conf").read_text()
    kept = (ETC / "tmpfiles.d" / "keelmq.conf").read_text()
    assert f"d {SETTINGS} 0750 root {common['Group']}" in kept
    for mode, name in (("0640", RAFT_KEY), ("0750", SECURITY), ("0640", f"{SECURITY}/*")):
        assert f"z {SETTINGS}/{name} {mode} root {common['Group']}" in kept


def test_a_stop_has_the_time_that_it_takes() -> None:
    """The hand-over, the forwarding for clients with the old route, and writing back the page cache."""
    config = BrokerConfig()
    asked_s = config.shutdown_forward_timeout / 1000 + HAND_OVER_S_MAX
    assert asked_s < int(service("broker")["TimeoutStopSec"].removesuffix("s"))
    assert asked_s < int(service("container")["TimeoutStopSec"].removesuffix("s"))
    assert service("broker")["TimeoutStartSec"] == "infinity"  # recovery takes as long as it takes


def test_the_console_is_where_its_unit_says() -> None:
    text = (ETC / "systemd" / "system" / "keelmq-console.service").read_text()
    assert f"127.0.0.1:{CONSOLE_PORT}" in text and f"EnvironmentFile={SETTINGS}/console.env" in text


PAGE = (ROOT / "docs" / "machines.md").read_text()


def test_the_ports_of_the_page_are_those_of_the_files(tmp_path: Path) -> None:
    """With the HTTP ports, the VIP channel, and the raft port, which the files do not name."""
    (machine,) = machines_of(["10.0.0.1"])
    for file, text in settings_of(machine, [machine], "DefaultCluster").items():
        (tmp_path / file).write_text(text)
    name_server, controller = load(tmp_path / "namesrv.conf", NamesrvConfig, ControllerConfig)
    (broker,) = load(tmp_path / "broker.conf", BrokerConfig)
    (proxy,) = load(tmp_path / "proxy.conf", ProxyConfig)
    assert isinstance(name_server, NamesrvConfig) and isinstance(controller, ControllerConfig)
    assert isinstance(broker, BrokerConfig) and isinstance(proxy, ProxyConfig)
    ports = {
        name_server.listen_port,
        name_server.listen_port + HTTP_PORT_DISTANCE,
        *(port for _host, port in controller.request_addresses.values()),
        *(port for _host, port in controller.raft_addresses.values()),
        broker.listen_port,
        broker.listen_port - 2,
        broker.ha_listen_port,
        broker.listen_port + HTTP_PORT_DISTANCE,
        proxy.grpc_server_port,
    }
    table = PAGE.partition("| port | program | for |")[2].partition("\n\n")[0]
    assert {int(port) for port in re.findall(r"\b\d{4,5}\b", table)} == ports
    assert f"`127.0.0.1:{CONSOLE_PORT}`" in PAGE


def load(path: Path, *models: type[Config]) -> tuple[Config, ...]:
    return tuple(load_config(*models, path=path, environ={}, overrides={}))


def test_the_page_lists_the_units_with_their_files() -> None:
    table = PAGE.partition("## Units")[2].partition("\n- ")[0]
    for path in SERVICES:
        if "analytics" in path.name:
            assert f"`{path.stem}.timer`" in table or f"`{path.stem}`" in table
            continue
        (row,) = (line for line in table.splitlines() if line.startswith(f"| `{path.stem}`"))
        words = shlex.split(settings(path)["Service"]["ExecStart"])
        if "-c" in words:
            assert f"`{Path(words[words.index('-c') + 1]).name}`" in row
            assert f"`{Path(words[0]).name}`" in row


def test_the_page_types_what_keelmq_init_prints() -> None:
    machines = machines_of(["10.0.0.1", "10.0.0.2", "10.0.0.3"])
    (_, (_, commands), _) = next_steps(Path("/home/me/cluster"), machines, PREFIX)
    assert "```sh\n" + "\n".join(commands) + "\n```" in PAGE


def test_the_controller_of_the_page_runs_beside_a_name_server(tmp_path: Path) -> None:
    """No port of the one is the other's."""
    (text,) = re.findall(r"```properties\n# controller\.conf\n(.*?)```", PAGE, flags=re.DOTALL)
    (tmp_path / "controller.conf").write_text(text)
    server, controller = load(tmp_path / "controller.conf", NamesrvConfig, ControllerConfig)
    assert isinstance(server, NamesrvConfig) and isinstance(controller, ControllerConfig)
    machines = machines_of(["10.0.0.1", "10.0.0.2", "10.0.0.3"])
    (tmp_path / "namesrv.conf").write_text(settings_of(machines[0], machines, "c")["namesrv.conf"])
    name_server, embedded = load(tmp_path / "namesrv.conf", NamesrvConfig, ControllerConfig)
    assert isinstance(name_server, NamesrvConfig) and isinstance(embedded, ControllerConfig)
    assert (controller.request_addresses, controller.directory) == (
        embedded.request_addresses,
        embedded.directory,
    )
    assert server.config_store_path != name_server.config_store_path
    http = server.http_listen_port(controller.request_addresses["n0"][1])
    assert http != name_server.http_listen_port(name_server.listen_port)
