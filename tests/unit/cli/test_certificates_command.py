"""keelmq certificates, and the recipe without it: what they make, a group runs with."""

import asyncio
import re
import shutil
import stat
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from broker.config.broker_config import BrokerConfig
from cli import certificates
from cli.keelmq import app
from keelmq.remoting.operation import Failed
from keelmq.runtime.tls.contexts import ClientTls, ServerTls, TlsSettings
from keelmq.runtime.tls.files import CertificateFiles, key_names
from keelmq.runtime.tls.settings import client_tls, server_tls
from namesrv.plugins.controller.config import ControllerConfig
from namesrv.plugins.controller.raft.api import TlsFiles
from namesrv.plugins.controller.raft.transport.certificates import Certificates, read_certificates
from tests.support.server_parts import address_of, server
from tests.support.tls_parts import answered, ask
from tests.unit.namesrv.plugins.controller.raft.test_raft_certificates import shakes_hands

DOCUMENT = Path(__file__).parents[3] / "docs" / "configuration.md"


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["certificates", *arguments])
    assert result.exit_code == code, result.output
    return result.output


def files_of(directory: Path, stem: str) -> TlsFiles:
    return TlsFiles(directory / f"{stem}.crt", directory / f"{stem}.key", directory / "ca.crt")


def test_a_certificate_for_each(tmp_path: Path) -> None:
    output = tmp_path / "certificates"
    text = run("n0", "n1", "--output", str(output))
    mine, other = (Certificates(files_of(output, name), name) for name in ("n0", "n1"))
    assert shakes_hands(mine, other) and shakes_hands(other, mine)
    assert mine.info.names == ("n0",)
    for path in output.glob("*.key"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert sorted(path.name for path in output.iterdir()) == [
        "ca.crt", "ca.key", "n0.crt", "n0.key", "n1.crt", "n1.key",
    ]  # fmt: skip
    lines = dict(line.split("=", 1) for line in text.splitlines() if line.startswith("controllerRaft"))
    config = ControllerConfig.model_validate(
        {
            "controllerDLegerGroup": "g",
            "controllerDLegerPeers": "n0-10.0.0.1:9878;n1-10.0.0.2:9878",
            "controllerDLegerSelfId": "n0",
            **lines,
        }
    )
    assert config.read_certificates() == mine.info


def test_again_is_a_renewal(tmp_path: Path) -> None:
    run("n0", "n1", "--output", str(tmp_path), "--days", "10")
    old = Certificates(files_of(tmp_path, "n0"), "n0")
    ends = old.info.not_after
    assert "ca.crt" not in run("n0", "--output", str(tmp_path), "--days", "20").splitlines()[0]
    assert shakes_hands(old, Certificates(files_of(tmp_path, "n1"), "n1"))
    assert old.info.not_after > ends


def test_one_for_all(tmp_path: Path) -> None:
    run("n0", "n1", "--together", "--output", str(tmp_path))
    for name in ("n0", "n1"):
        assert read_certificates(files_of(tmp_path, "members"), name).info.names == ("n0", "n1")


@pytest.mark.parametrize("option", ["--days", "--ca-days"])
def test_a_validity_that_no_certificate_can_have(tmp_path: Path, option: str) -> None:
    for days in ("36501", "9999999", "9" * 40):
        assert f"Invalid value for '{option}'" in run("n0", "--output", str(tmp_path), option, days, code=2)
    assert not list(tmp_path.iterdir()), "no CA either"
    run("n0", "--output", str(tmp_path), option, "36500")


def test_never_longer_than_the_ca(tmp_path: Path) -> None:
    run("n0", "--output", str(tmp_path), "--ca-days", "5")
    assert 4 < read_certificates(files_of(tmp_path, "n0"), "n0").info.days_left(datetime.now(UTC)) < 5
    for path in tmp_path.iterdir():
        path.unlink()
    certificates.new_authority(tmp_path, -0.01)
    assert "ended at" in run("n0", "--output", str(tmp_path), code=1)


@pytest.mark.parametrize("member", ["../n0", "ca", "n 0", "n/0", ""])
def test_ids_that_are_no_file_names(tmp_path: Path, member: str) -> None:
    assert "id" in run(member, "--output", str(tmp_path / "new"), code=1)
    assert not (tmp_path / "new").exists()


def test_a_ca_that_is_not_whole(tmp_path: Path) -> None:
    run("n0", "--output", str(tmp_path))
    (tmp_path / "ca.key").rename(tmp_path / "away")
    assert "ca.key" in run("n0", "--output", str(tmp_path), code=1)
    (tmp_path / "ca.key").write_text("nothing")
    assert "cannot be used" in run("n0", "--output", str(tmp_path), code=1)
    shutil.copy(tmp_path / "n0.key", tmp_path / "ca.key")
    assert "not the key of" in run("n0", "--output", str(tmp_path), code=1)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl here")
def test_the_recipe_with_openssl(tmp_path: Path) -> None:
    """The block of docs/configuration.md, pasted."""
    match = re.search(r"```sh\n(# a CA and certificates.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert match is not None
    subprocess.run(["sh", "-e", "-c", match[1]], cwd=tmp_path, check=True, capture_output=True, timeout=30)
    made = [Certificates(files_of(tmp_path, name), name) for name in ("n0", "n1", "n2")]
    assert all(shakes_hands(one, other) for one in made for other in made)


def test_certificates_of_servers_and_clients(tmp_path: Path) -> None:
    """What the command prints is what a program loads, and a client of the same CA verifies its host."""
    output = tmp_path / "certificates"
    text = run(
        "broker-a", "--role", "server", "--host", "localhost", "--host", "127.0.0.1", "--output", str(output)
    )
    run("app", "--role", "client", "--output", str(output))
    lines = dict(line.split("=", 1) for line in text.splitlines() if line.startswith("tls."))
    keys = {**lines, "tls.server.need.client.auth": "require", "tls.client.verifyHostName": "true"}
    config = BrokerConfig.model_validate(keys)
    client = ClientTls.of(
        TlsSettings(output / "ca.crt", output / "app.crt", output / "app.key", verify_hostname=True)
    )

    async def story() -> None:
        async with server(tls=server_tls(config)) as of:
            port = of.address[1]
            for tls in (client, client_tls(config)):
                assert answered(await ask(f"localhost:{port}", tls))
                assert answered(await ask(f"127.0.0.1:{port}", tls))

    asyncio.run(story())
    files = CertificateFiles(key_names("tls.server"), output / "app.crt", output / "app.key")
    as_server = ServerTls("enforcing", files)

    async def other_story() -> None:
        async with server(tls=as_server) as of:
            outcome = await ask(address_of(of), ClientTls.of(TlsSettings(output / "ca.crt")))
            assert isinstance(outcome, Failed)  # a client's certificate is none for a server

    asyncio.run(other_story())


def test_hosts_are_not_for_raft(tmp_path: Path) -> None:
    told = run("n0", "--host", "localhost", "--output", str(tmp_path), code=1)
    assert "--host is for --role server and client" in told


@pytest.mark.parametrize("host", ["bröker", "", "broker a", "broker-a:10911", "https://broker-a"])
def test_a_host_that_no_certificate_can_be_for(tmp_path: Path, host: str) -> None:
    output = tmp_path / "certificates"
    text = run("broker-a", "--role", "server", "--host", host, "--output", str(output), code=1)
    assert f"--host {host!r} is neither a DNS name nor an IP address" in text
    assert not output.exists()
