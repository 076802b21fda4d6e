"""What programs import from keelmq: every name is there, and importing it loads no server."""

import subprocess
import sys

import pytest

import keelmq
from keelmq import client
from tools import blocking_clients

SERVERS = ("broker", "namesrv", "cli", "pytest_keelmq", "fastapi", "uvicorn", "starlette", "pysyncobj")


def loaded(statements: str) -> set[str]:
    """The modules of a fresh process after these statements."""
    code = f"{statements}\nimport sys\nprint('\\n'.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True
    )
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "statements",
    [
        "from keelmq import Producer, Consumer, Message",
        "from keelmq import *",
        "import keelmq; keelmq.blocking.BlockingProducer",
        "from keelmq.blocking import BlockingConsumer",
    ],
)
def test_a_client_loads_no_server(statements: str) -> None:
    assert {name for name in loaded(statements) if name.split(".")[0] in SERVERS} == set()


def test_keelmq_alone_loads_no_client() -> None:
    """Brokers and name servers import keelmq.remoting, and so keelmq."""
    found = loaded("import keelmq.remoting.codes")
    assert "keelmq.remoting.codes" in found
    assert not {name for name in found if name.startswith("keelmq.client")}


def test_every_public_name_of_the_clients_is_there() -> None:
    assert set(keelmq.__all__) == {*client.__all__, "blocking"}
    for name in client.__all__:
        assert getattr(keelmq, name) is getattr(client, name)
    assert set(keelmq.__all__) <= set(dir(keelmq))


def test_the_short_names() -> None:
    assert keelmq.Consumer is keelmq.LitePullConsumer
    assert keelmq.blocking.BlockingConsumer is keelmq.blocking.BlockingLitePullConsumer


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Consumers'"):
        _ = keelmq.Consumers  # type: ignore[attr-defined]


def test_the_blocking_clients_have_the_signatures_of_the_asyncio_clients() -> None:
    command = "PYTHONPATH=. .venv/bin/python tools/blocking_clients.py"
    assert blocking_clients.text() == blocking_clients.FILE.read_text(), f"run: {command}"
