"""What programs say at start about ports that other machines reach."""

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from keelmq.security.open_network import OpenNetworkConfig, openings, warn_of_open_ports
from tests.support.raft_certificates import Authority

LOG = logging.getLogger("tests.open")
AUTH = {"authenticationEnabled": True, "authorizationEnabled": True}


def said(caplog: pytest.LogCaptureFixture, addresses: list[str], **keys: object) -> list[str]:
    caplog.clear()
    warn_of_open_ports(LOG, "mqbroker", OpenNetworkConfig.model_validate(keys), addresses)
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def certified(tmp_path: Path) -> dict[str, object]:
    files = Authority(tmp_path).issue("localhost")
    return {"tls.server.certPath": files.certificate, "tls.server.keyPath": files.key}


def test_one_line_says_what_is_open_and_what_closes_it(caplog: pytest.LogCaptureFixture) -> None:
    (line,) = said(caplog, ["127.0.0.1:1", "0.0.0.0:10911", "10.0.0.1:2"])
    assert line.startswith(
        "mqbroker is open to other machines at 0.0.0.0:10911, 10.0.0.1:2: requests need no"
    )
    assert "self-signed" in line and "keelmq init-security" in line and "allowOpenNetwork=true" in line


@pytest.mark.parametrize("address", ["127.0.0.1:1", "[::1]:1", "localhost:1", "127.0.0.53:1"])
def test_nothing_about_addresses_of_this_machine(caplog: pytest.LogCaptureFixture, address: str) -> None:
    assert said(caplog, [address]) == []


@pytest.mark.parametrize("address", ["0.0.0.0:1", "[::]:1", "mq.example:1", ":1"])
def test_addresses_that_others_reach(caplog: pytest.LogCaptureFixture, address: str) -> None:
    assert len(said(caplog, [address])) == 1


def test_it_can_be_meant(caplog: pytest.LogCaptureFixture) -> None:
    assert said(caplog, ["0.0.0.0:1"], allowOpenNetwork=True) == []


def test_what_each_key_closes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    own = certified(tmp_path)
    assert said(caplog, ["0.0.0.0:1"], **AUTH, **own) == []
    (line,) = said(caplog, ["0.0.0.0:1"], **own)
    assert "no signature" in line and "TLS" not in line
    (line,) = said(caplog, ["0.0.0.0:1"], **AUTH)
    assert "no signature" not in line and "self-signed" in line
    (line,) = said(caplog, ["0.0.0.0:1"], authenticationEnabled=True, **own)
    assert "authorizationEnabled=false" in line
    (line,) = said(caplog, ["0.0.0.0:1"], **AUTH, **own | {"tls.server.mode": "disabled"})
    assert "there is no TLS" in line


@pytest.mark.parametrize("keys", [{"aclEnable": True}, AUTH])
def test_acl_of_either_generation_counts(keys: dict[str, object]) -> None:
    (only,) = openings(OpenNetworkConfig.model_validate(keys))
    assert "self-signed" in only


def test_a_certificate_in_tls_config_file_counts(tmp_path: Path) -> None:
    own = certified(tmp_path)
    file = tmp_path / "tls.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in own.items()))
    assert openings(OpenNetworkConfig.model_validate({**AUTH, "tls.config.file": file})) == []


PROGRAMS = {
    "mqnamesrv": ["namesrv", "--set", "listenPort=0", "--set", "httpPort=-1"],
    "mqbroker": ["broker", "--set", "listenPort=0", "--set", "haListenPort=0", "--set", "httpPort=-1"],
}


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize(("address", "warnings"), [("0.0.0.0", 1), ("127.0.0.1", 0)])
def test_programs_say_it_before_they_are_ready(
    tmp_path: Path, program: str, address: str, warnings: int
) -> None:
    store = ["--set", f"storePathRootDir={tmp_path}", "--set", "brokerIP1=127.0.0.1"]
    command = [sys.executable, "-m", *PROGRAMS[program], "--set", f"bindAddress={address}"]
    command += store if program == "mqbroker" else ["--set", f"kvConfigPath={tmp_path}/kv.json"]
    log = tmp_path / "log"
    with (
        log.open("wb") as stderr,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True) as process,
    ):
        assert process.stdout is not None
        ready = process.stdout.readline()
        process.terminate()
    lines = [line for line in log.read_text().splitlines() if "open to other machines" in line]
    assert ready.startswith("ready: ") and len(lines) == warnings, log.read_text()
    assert all(" WARNING " in line and f"{program} is open" in line for line in lines)
