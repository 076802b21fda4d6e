"""What a program loads until it is ready: only what it uses by then. The rest costs each process memory and
time (`keelmq bench start`)."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.ports import free_port

SERVE = """
import asyncio, sys

async def main():
    async with server:
        print(*sys.modules)

asyncio.run(main())
"""
BROKER = f"""
import sys
from broker.app.program import make_parser, read_config
from broker.app.broker import Broker

server = Broker(*read_config(make_parser().parse_args(sys.argv[1:]), {{}}))
{SERVE}"""
NAMESRV = f"""
import sys
from namesrv.program import build, make_parser

server = build(make_parser("mqnamesrv").parse_args(sys.argv[1:]), {{}}, controller_only=False)
{SERVE}"""

OF_HTTP = {
    *("fastapi", "starlette", "uvicorn", "anyio", "httptools", "prometheus_client", "http", "socketserver"),
    *("keelmq.console", "keelmq.web", "keelmq.remoting.servers.http", "keelmq.remoting.servers.health"),
}
"""Loaded by a thread while the program serves already, and not at all with httpPort=-1, as here."""
OF_OTHER_FEATURES = {"yaml", "cryptography"}
"""Files of ACL 1.0, and certificates and secrets."""
OF_NO_SERVER = {
    *(
        "cli",
        "analytics",
        "keelmq.client",
        "pytest_keelmq",
        "tests",
        "typer",
        "rich",
        "click",
        "httpcore",
        "httpx",
    ),
    *("multiprocessing", "unittest", "xml", "sqlite3", "urllib.request"),
}
OF_CONTAINERS = {"broker.container"}


def loaded(code: str, settings: dict[str, object]) -> set[str]:
    """The modules, and the packages that they are in, of a process that has just started this server."""
    command = [sys.executable, "-c", code, "--set", "bindAddress=127.0.0.1", "--set", "httpPort=-1"]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    parts = [name.split(".") for name in done.stdout.split()]
    return {".".join(each[:depth]) for each in parts for depth in range(1, len(each) + 1)}


def test_a_broker(tmp_path: Path) -> None:
    settings = {"listenPort": 0, "brokerIP1": "127.0.0.1", "storePathRootDir": tmp_path / "store"}
    found = loaded(BROKER, settings)
    assert "broker.store.message_store" in found
    assert found & (OF_HTTP | OF_OTHER_FEATURES | OF_NO_SERVER | OF_CONTAINERS | {"namesrv"}) == set()


@pytest.mark.parametrize("controller", [False, True])
def test_a_name_server(tmp_path: Path, controller: bool) -> None:
    settings: dict[str, object] = {"listenPort": 0, "kvConfigPath": tmp_path / "kv.json"}
    if controller:
        settings |= {
            "enableControllerInNamesrv": "true",
            "controllerDLegerGroup": "group",
            "controllerDLegerPeers": f"n0-127.0.0.1:{free_port()}",
            "controllerDLegerSelfId": "n0",
            "controllerStorePath": tmp_path / "controller",
        }
    found = loaded(NAMESRV, settings)
    assert ("pysyncobj" in found) == controller
    assert found & (OF_HTTP | OF_OTHER_FEATURES | OF_NO_SERVER | {"broker"}) == set()
